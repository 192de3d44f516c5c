"""What each part may import of others, and that modules form no cycle.

Which of our folders may know which is the layers contract in `pyproject.toml`: `lint-imports` holds it.
"""

from __future__ import annotations

import ast
import graphlib
import sys

# Adapter of an agent framework -> what it imports of others.
FRAMEWORKS: dict[str, set[str]] = {
    "ag2": {"ag2"},
    "autogen": {"autogen_core", "pydantic"},
    "deepagents": {"deepagents"},
    "dspy": {"dspy", "pydantic_core"},
    "google_adk": {"google", "pydantic"},
    "harbor": {"harbor"},
    "inspect": {"inspect_ai", "pydantic"},
    "langchain": {"langchain_core", "pydantic"},
    "llama_index": {"llama_index"},
    "openai_agents": {"agents"},
    "openai_agents_sandbox": {"agents", "pydantic"},
    "pydantic_ai": {"pydantic_ai"},
    "pydantic_ai_toolset": {"pydantic_ai"},
    "smolagents": {"PIL", "smolagents"},
    "swerex": {"pydantic", "swerex"},
}
# Where the folder is wanted: the benchmarks are no part of the wheel; an attack is run from a folder of its own.
STARTED_IN_A_CHECKOUT = {"fumehood.cli.bench", "fumehood.scorecard.places"}
# Packages of others, for each of ours or a part of it; the rest is the standard library.
FOREIGN = {
    "fumehood_wire": set(),
    "fumehood_jail": set(),
    # IPython, and what user code brings: looked for, never required.
    "fumehood_guest": {
        "IPython",
        "cloudpickle",
        "comm",
        "matplotlib",
        "mpl_toolkits",
        "numpy",
        "pandas",
        "traitlets",
    },
    "fumehood": set(),
    # In the kernel of a notebook, which is IPython's.
    "fumehood.ipython_magic": {"IPython", "pandas"},
    # Work that goes on in a guest and, as a control, outside; and modules of its own, by names beside it.
    "fumehood.scorecard.attack": {"calls", "matplotlib", "numpy", "pip", "report"},
    # The extra `tools`, for schemas that say more than our own check understands.
    "fumehood.api.tool_schemas": {"jsonschema", "referencing"},
    "fumehood.cli": {"click"},
    # The extra `chat`; plain text without it.
    "fumehood.cli.terminal": {"rich"},
    # The extra `server`.
    "fumehood.storage": {"alembic", "obstore", "sqlalchemy"},
    "fumehood.console": {"starlette"},
    "fumehood.server": {
        "fastapi",
        "h11",
        "prometheus_client",
        "cachetools",
        "pydantic",
        "pydantic_core",
        "python_multipart",
        "starlette",
        "uvicorn",
        "websockets",
    },
    "fumehood.server.settings": set(),
    "fumehood.daemon": {"fastapi", "starlette", "uvicorn"},
    "fumehood.daemon.settings": set(),
    # The extras `server` and `blobs`.
    "fumehood.saved.object_store": {"obstore"},
    # The extra `otel`.
    "fumehood.log.traces": {"opentelemetry"},
    "fumehood.server.tracing": {"fastapi", "opentelemetry"},
    "fumehood.dialects": {"cachetools", "pydantic", "starlette"},
    # The extras of the frameworks.
    **{f"fumehood.frameworks.{name}": packages for name, packages in FRAMEWORKS.items()},
    # The extra `mcp`, and what the SDK stands on.
    "fumehood.mcp": {"anyio", "mcp", "pydantic", "starlette"},
    # The extras `openai` and `anthropic`, and the reader of JSON that both bring.
    "fumehood.llm.providers": {"anthropic", "jiter", "openai"},
    # The extra `chat`.
    "fumehood.llm.terminal": {"rich"},
    # The extra `kernel`.
    "fumehood.dialects.jupyter.process": {"zmq"},
    "fumehood.cli.kernel": {"jupyter_client"},
    # The extra `egress`.
    "fumehood.egress.interception": {"cryptography"},
    # The extra `client`.
    "fumehood.client.connection": {"httpx2", "websockets"},
    # The extra `cluster`: its adapter, its transport, and what talks to Ray.
    "fumehood.cluster.adapter": {"httpcore2"},
    "fumehood.cluster.machine": {"ray"},
    "fumehood.cluster.members": {"ray"},
    "fumehood.cluster.transport": {"httpx2"},
}

# What a package must not import even though it is in the standard library, and why.
FORBIDDEN = {
    "fumehood_wire": ("asyncio", "socket", "selectors", "threading"),  # bytes in, events out
    "fumehood_jail": ("asyncio", "threading", "dataclasses", "logging"),  # it runs with privileges
}


COPIED = ("fumehood.scorecard.attack.", "fumehood.dialects.replit.client")

# `import fumehood` loads nothing: the names that it gives out are loaded when they are first used.
LAZY = "fumehood"


def test_there_are_no_cycles(modules):
    """Modules form no cycle: late imports and those for type checkers count as any other."""
    known = {module.name for module in modules} - {LAZY}
    graph = {module.name: module.of_ours(known) for module in modules if module.name != LAZY}

    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_packages_of_others_are_declared(modules):
    """Outside the standard library each package imports only what is written down for it."""
    broken: list[str] = []

    for module in modules:
        tops = {name.partition(".")[0] for name in module.imports} - {"None"}
        part = module.name

        while part not in FOREIGN:
            part = part.rpartition(".")[0]

        allowed = FOREIGN[part] | set(sys.stdlib_module_names)
        broken += [
            f"{module.name} imports {top}"
            for top in sorted(tops)
            if top not in allowed and not top.startswith("fumehood")
        ]

    assert broken == []


def test_programs_that_are_copied_elsewhere_import_nothing_of_ours(modules):
    """The attacker's programs are copied into guests, the client of the stateless API into users' projects."""
    broken = [
        f"{module.name} imports {name}"
        for module in modules
        if module.name.startswith(COPIED)
        for name in module.imports
        if name.startswith("fumehood")
    ]
    assert broken == []


def test_the_wire_has_no_io_and_the_jail_no_threads(modules):
    """What a part must stay free of, it does not import."""
    broken = [
        f"{module.name} imports {name}"
        for module in modules
        for name in module.imports
        if name.partition(".")[0] in FORBIDDEN.get(module.top, ())
    ]
    assert broken == []


def test_no_import_is_relative(modules):
    """A reader sees from each line where a name comes from; a program that is copied into guests has no such name."""
    broken = [
        module.name
        for module in modules
        if not module.name.startswith("fumehood.scorecard.attack.")
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert broken == []


def test_no_process_of_ours_imports_from_the_folder_it_starts_in(modules):
    """`python -m` looks there first, and what lies in it may be anybody's; -P and -I leave it out."""
    broken = [
        f"{module.name}, line {node.lineno}"
        for module in modules
        for node in module.nodes
        if [ast.unparse(item) for item in _items(node)[:2]] == ["sys.executable", "'-m'"]
        and module.top == "fumehood"
        and module.name not in STARTED_IN_A_CHECKOUT
    ]
    assert broken == []


def _items(node: ast.AST) -> list[ast.expr]:
    """The arguments of a call, or the items of a list or tuple."""
    if isinstance(node, ast.Call):
        return node.args

    return node.elts if isinstance(node, ast.Tuple | ast.List) else []
