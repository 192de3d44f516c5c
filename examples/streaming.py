"""Output while the code runs: by callbacks, and as one ordered sequence of events."""

from __future__ import annotations

from fumehood import ExecutionFinished, ResultEvent, Sandbox, StderrEvent, StdoutEvent

CODE = """
import sys
for step in range(3):
    print("step", step)
print("that was all", file=sys.stderr)
step * 10
"""


def main() -> None:
    """Run the same code twice."""
    with Sandbox() as sandbox:
        sandbox.run_code(CODE, on_stdout=lambda text: print("callback:", repr(text)))

        for event in sandbox.stream_code(CODE):
            match event:
                case StdoutEvent() | StderrEvent():
                    print(f"{type(event).__name__} at {event.at_seconds:.3f} s: {event.text!r}")
                case ResultEvent():
                    print("result:", event.result.text)
                case ExecutionFinished():
                    print("finished, CPU seconds:", round(event.execution.usage.user_cpu_seconds, 3))
                case _:
                    pass


if __name__ == "__main__":
    main()
