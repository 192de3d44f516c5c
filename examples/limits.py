"""What is allowed, what was spent, and what happens at the end of it."""

from __future__ import annotations

from fumehood import InvalidArgumentError, Limits, Sandbox


def main() -> None:
    """Reach the limit on time and on output; give a limit that makes no sense."""
    limits = Limits(wall_seconds=1, memory_bytes=512 * 2**20, stdout_bytes=1000)

    with Sandbox(limits=limits) as sandbox:
        sandbox.run_code("kept = 'still here'")
        execution = sandbox.run_code("while True: pass")
        assert execution.error is not None
        print(execution.error.kind, f"after {execution.usage.wall_seconds:.1f} s")
        print("state:", sandbox.run_code("kept").text)

        execution = sandbox.run_code("print('x' * 5000)")
        print("head and tail kept,", execution.truncated.stdout_bytes, "bytes left out between them")

    try:
        Limits(memory_bytes=-1)
    except InvalidArgumentError as error:
        print(error)


if __name__ == "__main__":
    main()
