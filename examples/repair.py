"""What an agent does all day: run code, read the error, run better code, with the state kept."""

from __future__ import annotations

from fumehood import Sandbox

# What a model would write; the second try comes after it has read the first one's error.
TRIES = (
    "measured = {'a': 3, 'b': None, 'c': 5}; sum(measured.values())",
    "sum(value for value in measured.values() if value is not None)",
)


def main() -> None:
    """Try until a try works."""
    with Sandbox() as sandbox:
        for code in TRIES:
            execution = sandbox.run_code(code)

            if execution.error is None:
                print("answer:", execution.text)
                break

            print("try again:", execution.error.name, "-", execution.error.value)


if __name__ == "__main__":
    main()
