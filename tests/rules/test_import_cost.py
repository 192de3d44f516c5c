"""What importing costs: the facade nothing, and each process only what it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_LOADED = (
    "import sys; before = set(sys.modules); {imports}; after = set(sys.modules); "
    "import json; print(json.dumps(sorted(after - before)))"
)


def loaded_by(imports: str, root) -> set[str]:
    """The modules that a bare interpreter loads for these imports."""
    code = f"import sys; sys.path.insert(0, {str(root / 'src')!r}); " + _LOADED.format(imports=imports)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_the_facade_loads_nothing_of_ours(root):
    """`import fumehood` is free."""
    loaded = loaded_by("import fumehood", root)

    assert {name for name in loaded if name.startswith("fumehood")} == {"fumehood"}
    assert "asyncio" not in loaded


def test_values_and_errors_need_no_engine(root):
    """Whoever only names limits and errors does not pay for asyncio."""
    loaded = loaded_by("from fumehood import Limits, FumehoodError, Execution", root)

    assert not {"asyncio", "subprocess", "fumehood.portal", "fumehood.assemble"} & loaded


def test_importing_the_sandbox_loads_no_engine(root):
    """The backend comes with the first sandbox, not with the import."""
    loaded = loaded_by("from fumehood import Sandbox, AsyncSandbox", root)

    assert not {
        name
        for name in loaded
        if name.startswith(("fumehood.engine", "fumehood.runtimes", "fumehood.assemble"))
    }
    assert not {"fumehood_jail", "fumehood_wire", "fumehood_guest"} & loaded


@pytest.mark.parametrize("module", ["fumehood_jail.launcher", "fumehood_jail.launch"])
def test_the_jail_stays_small(root, module):
    """What runs with privileges loads a handful of modules of the standard library and nobody else's."""
    loaded = loaded_by(f"import {module}", root)

    assert not {"asyncio", "dataclasses", "logging", "threading", "inspect"} & loaded
    assert not {name for name in loaded if name.startswith(("fumehood.", "fumehood_guest", "IPython"))}


def test_the_wire_loads_only_itself(root):
    """Bytes in, events out: no sockets, no event loop."""
    loaded = loaded_by("import fumehood_wire.frames, fumehood_wire.messages, fumehood_wire.states", root)
    assert not {"asyncio", "socket", "selectors", "threading", "IPython"} & loaded


def test_starting_a_template_loads_no_engine(root):
    """A command starts the processes of its template first, and imports the engine while they start."""
    loaded = loaded_by("import fumehood.assemble, fumehood.runtimes.namespaces.runtime", root)

    assert not {
        name
        for name in loaded
        if name.startswith(("fumehood.api", "fumehood.engine", "fumehood.values.looking"))
    } - {"fumehood.engine", "fumehood.engine.settings", "fumehood.engine.identity"}
