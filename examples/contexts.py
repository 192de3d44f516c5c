"""Two contexts over the same files, each with its own variables."""

from __future__ import annotations

from fumehood import Sandbox


def main() -> None:
    """Give two contexts a variable of the same name."""
    with Sandbox() as sandbox:
        sandbox.run_code("import os; name = 'first'; os.makedirs('work', exist_ok=True)")
        second = sandbox.create_code_context(cwd="/home/user/work")
        sandbox.run_code("name = 'second'; open('note.txt', 'w').write(name)", context=second)

        print("default:", sandbox.run_code("name, open('work/note.txt').read()").text)
        print("second: ", sandbox.run_code("import os; name, os.getcwd()", context=second).text)
        print("contexts:", len(sandbox.list_code_contexts()))


if __name__ == "__main__":
    main()
