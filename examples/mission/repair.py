"""Code that fails twice, for two reasons, and is repaired by what its errors say.

Runs in your process; the code runs in one live sandbox, so that each repair goes on with the variables that are there
already. The model is scripted (scripted_model.py), and each of its repairs is written only when it has read the error
that calls for it. The file is one of those that people have: semicolons, decimal commas, and not UTF-8.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fumehood.llm import Agent, CellFinished, TextWritten, TurnFinished
from scripted_model import ScriptedModel, Step

MEASURED = "Gerät;Wert\nWaage;3,5\nThermometer;21,25\nWaage;4,5\n"

# What a model would write: its first thought, and what it makes of the errors.
FIRST = """
import pandas as pd

table = pd.read_csv("/mnt/data/measured.csv", sep=";")
"""
SECOND = """
table = pd.read_csv("/mnt/data/measured.csv", sep=";", encoding="latin-1")
table.groupby("Gerät").Wert.mean()
"""
THIRD = """
table["Wert"] = table.Wert.str.replace(",", ".").astype(float)
print(table.groupby("Gerät").Wert.mean().to_string(header=False))
"""


def main() -> None:
    """Ask once, and watch the tries."""
    model = ScriptedModel(
        Step(reads="measured.csv", code=FIRST),
        Step(reads="UnicodeDecodeError", writes="Not UTF-8: I read it as Latin-1.", code=SECOND),
        Step(reads="TypeError", writes="The numbers are text, with decimal commas.", code=THIRD),
        Step(reads="21.25", writes="The means are:\n{read}"),
    )

    with tempfile.TemporaryDirectory() as folder, Agent(model, max_repairs=3) as agent:
        path = Path(folder, "measured.csv")
        path.write_text(MEASURED, encoding="latin-1")

        for event in agent.stream("What is the mean of each instrument?", files=[path]):
            match event:
                case TextWritten(text=text):
                    print("model:  ", text)
                case CellFinished(cell=cell):
                    error = cell.result.execution and cell.result.execution.error
                    print("sandbox:", f"{error.name}: {error.value}" if error else "done")
                case TurnFinished(answer=answer):
                    print("cells:  ", len(answer.cells), answer.stopped)


if __name__ == "__main__":
    main()
