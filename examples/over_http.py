"""The same program, elsewhere: a sandbox of a server, by FUMEHOOD_URL and FUMEHOOD_API_KEY.

Start one with `fumehood serve`; it says where it listens and where its token lies.
"""

from __future__ import annotations

import os
import sys
import urllib.request

from fumehood import FumehoodError, Sandbox


def main() -> None:
    """Code, files, an error and a web server, all of them on another machine."""
    if "FUMEHOOD_URL" not in os.environ:
        sys.exit(
            "set FUMEHOOD_URL and FUMEHOOD_API_KEY to the address and the token that `fumehood serve` names"
        )

    # `Sandbox(url=..., api_key=...)` does the same without the variables.
    with Sandbox() as sandbox:
        print("printed:  ", "".join(sandbox.run_code("print(6 * 7)").logs.stdout), end="")

        try:
            sandbox.files.read("missing.txt")
        except FileNotFoundError as error:
            print("not there:", type(error).__name__)

        sandbox.commands.run("python3 -m http.server 8000", background=True)
        sandbox.commands.run("until curl -s -o /dev/null 127.0.0.1:8000; do :; done")

        with urllib.request.urlopen(sandbox.get_url(8000)) as page:
            print("page:     ", page.readline().decode(), end="")

    try:
        sandbox.run_code("1")
    except FumehoodError as error:
        print("ended:    ", type(error).__name__)


if __name__ == "__main__":
    main()
