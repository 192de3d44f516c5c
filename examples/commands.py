"""Programs beside the code: run them, feed them, let them work in the background."""

from __future__ import annotations

from fumehood import CommandExitError, Sandbox


def main() -> None:
    """A shell line, a failure, a conversation with a running program."""
    with Sandbox() as sandbox:
        print(sandbox.commands.run("uname -s && id -un").stdout, end="")

        try:
            sandbox.commands.run("cat missing.txt")
        except CommandExitError as error:
            print("exit code", error.exit_code, "-", error.stderr.strip())

        handle = sandbox.commands.run("sort -n", background=True, stdin=True)
        handle.send_stdin("30\n4\n200\n")
        handle.close_stdin()
        print("sorted:", handle.wait().stdout.split())


if __name__ == "__main__":
    main()
