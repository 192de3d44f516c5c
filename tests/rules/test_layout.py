"""The tests of a module are found where the module is: `tests/unit` has the folders of `src`, and no others."""

from __future__ import annotations

# `tests/unit/x` tests `src/fumehood/x`; the packages beside `fumehood` have the rest of their names.
PACKAGES = {"guest": "fumehood_guest", "jail": "fumehood_jail", "wire": "fumehood_wire"}
# Each folder of tests, and what is in it.
FOLDERS = {
    "artifacts": "files that sandboxes publish, in folders and in object stores",
    "attacks": "what hostile code tries, with a control outside for each",
    "cluster": "machines in network namespaces of their own, and what survives their faults",
    "console": "the page of the server, in a real browser",
    "contract": "what every implementation of the API promises",
    "dialects": "other projects' APIs, by their own clients",
    "external_clients": "what those clients are, installed without what they would bring along",
    "frameworks": "agent frameworks, each in an environment of its own",
    "fuzz": "mutated messages through all that reads a guest's",
    "integration": "whole sandboxes, engines that are killed, other users, the examples",
    "llm": "agents and tools for language models, against a scripted model",
    "mcp": "the MCP server, by raw messages and by its clients",
    "notebook": "notebooks that are written, read and run again",
    "npm_programs": "servers and clients in JavaScript that the tests run",
    "packages": "packages of the field, tried in sandboxes",
    "rules": "what the sources must look like",
    "server": "the HTTP server: routes, keys, ports, ends",
    "small_model": "a real language model, small enough for a processor",
    "soak": "thousands of mixed runs, then everything is counted",
    "typing": "a user's program, for the type checker",
    "unit": "one module each, by the folders of src",
}


def test_unit_tests_mirror_the_sources(root):
    """A folder of unit tests is a folder of the sources, so that the tests of a module are found without a search."""
    strays = []

    for folder in {path.parent for path in (root / "tests" / "unit").rglob("*.py")}:
        top, *rest = folder.relative_to(root / "tests" / "unit").parts or ("",)
        package = PACKAGES.get(top, f"fumehood/{top}")

        if not root.joinpath("src", package, *rest).is_dir():
            strays.append(str(folder.relative_to(root)))

    assert sorted(strays) == []


def test_folders_of_tests_say_what_is_in_them(root):
    """A new folder comes with a line that tells what it is for."""
    folders = [path for path in (root / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"]
    # What was installed into a folder that is gone is none of ours.
    named = {folder.name for folder in folders if any(path.is_file() for path in folder.iterdir())}
    assert named <= set(FOLDERS)
    assert [name for name in FOLDERS if not (root / "tests" / name).is_dir()] == []
