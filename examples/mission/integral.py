"""The smallest case: a question in words, code that computes it, an answer that a person can check.

Runs in your process; the code of `CODE` runs in a sandbox that is gone afterwards. The model is scripted
(scripted_model.py): with a key, `model="anthropic:NAME"` asks a real one.
"""

from __future__ import annotations

from fumehood.llm import ask
from scripted_model import ScriptedModel, Step

QUESTION = "What is the integral of x squared from 0 to 5?"

# What a model would write.
CODE = """
from scipy.integrate import quad

value, error = quad(lambda x: x**2, 0, 5)
print(f"{value:.6f}")
"""


def main() -> None:
    """Ask, and hold the answer against the antiderivative."""
    model = ScriptedModel(
        Step(reads="integral", code=CODE),
        Step(reads="41.666667", writes="The integral is {read}."),
    )
    answer = ask(QUESTION, model=model)

    print("ran:    ", answer.cells[0].code.splitlines()[-1])
    print("answer: ", answer.text)
    print("by hand:", f"5**3 / 3 = {5**3 / 3:.6f}")


if __name__ == "__main__":
    main()
