"""One call, one sandbox: nothing is kept, nothing has to be closed."""

from __future__ import annotations

import fumehood


def main() -> None:
    """Run a snippet that works and one that does not."""
    execution = fumehood.run_code("print(6 * 7)")
    print("printed: ", execution.logs)

    execution = fumehood.run_code("1 / 0")
    assert execution.error is not None
    print("failed:  ", execution.error.name, "-", execution.error.value)


if __name__ == "__main__":
    main()
