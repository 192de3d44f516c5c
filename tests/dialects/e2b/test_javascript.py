"""The unmodified JavaScript SDKs under node: one scene, told as JSON, that uses everything once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCENE = Path(__file__).parent / "scene.mjs"
MODULES = Path(__file__).parents[2] / "npm_programs" / "node_modules"
SECONDS = 100


@pytest.fixture(scope="module")
def told(addresses, tmp_path_factory) -> dict[str, object]:
    """What the scene saw."""
    node = shutil.which("node")

    if node is None or not (MODULES / "@e2b" / "code-interpreter").is_dir():
        pytest.skip("needs node and the packages of tests/npm_programs: `make test` installs them")

    # Modules are looked for beside the program, and the tree of the tests stays as it is.
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(SCENE, folder)
    (folder / "node_modules").symlink_to(MODULES)
    done = subprocess.run(
        [node, str(folder / SCENE.name)],
        env={"PATH": os.environ["PATH"], **addresses},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_sandboxes(told):
    """Made, listed, paused, connected to, ended."""
    assert told["listed"] == 1
    assert told["info"] == {"templateId": "code-interpreter-v1", "state": "running", "metadata": {"by": "js"}}
    assert told["paused"] == [True, False, False]
    assert told["connected"] == [True, "41"]
    assert told["metrics"] == 1
    assert told["ended"] == [True, False]


def test_volumes(told):
    """Files go in from outside, come out of a sandbox, and end with their volume."""
    assert told["volume"] == ["outside", "inside", ["/b", "/in"], True, False]


def test_files(told):
    """Written in every way, read in every way, watched, and given away by URL."""
    assert told["read"] == ["hello", "hello", 5, "zip zip"]
    assert told["entries"] == ["a", "b"]
    assert told["watched"] == ["create:c", "chmod:c", "write:c"]
    assert told["url"] == [200, "hello", 200, "put", 401]
    assert told["missing"] == "FileNotFoundError"


def test_commands(told):
    """Output, codes, input, terminals."""
    assert told["command"] == ["bar\n/tmp\n", "err\n", 0]
    assert told["failed"] == ["CommandExitError", 4]
    assert told["fed"] == "one\ntwo\n"
    assert told["killed"] == [True, "CommandExitError"]
    assert told["timedOut"] == "TimeoutError"
    assert told["terminal"] is True


def test_code(told):
    """Results, callbacks, charts, contexts, other languages."""
    assert told["code"] == ["2", ["out\n"], ["out\n"]]
    assert told["error"] == "ZeroDivisionError"
    assert told["chart"] == ["line", [[1, 3], [2, 4]]]
    assert told["frame"] == {"n": [1, 2]}
    assert told["contexts"] == ["/tmp", "NameError", True, "NotFoundError"]
    assert told["bash"] == ["from bash\n"]
    assert told["language"] == "SandboxError"
    assert told["interrupted"] == ["TimeoutError", "free"]


def test_forks(told):
    """Two that go on from here, each on its own."""
    assert told["forked"] == [["41", "42"], "41"]


def test_what_is_refused(told):
    """Wrong keys, unknown templates, what is not offered, and the dead."""
    assert told["badKey"] == "AuthenticationError"
    assert told["templates"] == [True, False]
    assert "404" in told["unknownTemplate"]
    assert told["snapshot"] == ["42", True, True, False]
    assert told["dead"] == ["SandboxNotFoundError", "TimeoutError", "SandboxNotFoundError"]
