"""Who may import what: the contract as data, walked over every module.

A part is the longest entry of `CONTRACT` that a module's name begins with. Type-only and late imports count
like others: the arrows show who knows whom, not when.
"""

from __future__ import annotations

import ast
import graphlib
import sys

FLOOR = (
    "errors",
    "service_errors",
    "changes",
    "checkpoint_errors",
    "fork_errors",
    "save_errors",
    "saved_state",
    "refusals",
    "text",
    "limits",
    "network",
    "security",
    "isolation_levels",
    "models",
    "charts",
    "audit.entries",
    "json_values",
    "results",
    "execution",
    "events",
    "record",
    "templates.template",
)
PORT = (
    "backends.base",
    "backends.checks",
    "backends.requests",
    "backends.checkpoint_requests",
    "backends.fork_requests",
    "backends.save_requests",
    "backends.saving",
    "judging",
    "backends.questions",
    "backends.stateless",
    "backends.streams",
    "backends.tool_requests",
)
# Adapter of an agent framework -> what it imports of others.
FRAMEWORKS: dict[str, set[str]] = {
    "ag2": {"ag2"},
    "autogen": {"autogen_core", "pydantic"},
    "deepagents": {"deepagents"},
    "dspy": {"dspy", "pydantic_core"},
    "google_adk": {"google", "pydantic"},
    "inspect": {"inspect_ai", "pydantic"},
    "langchain": {"langchain_core", "pydantic"},
    "llama_index": {"llama_index"},
    "openai_agents": {"agents"},
    "openai_agents_sandbox": {"agents", "pydantic"},
    "pydantic_ai": {"pydantic_ai"},
    "pydantic_ai_toolset": {"pydantic_ai"},
    "smolagents": {"PIL", "smolagents"},
}
FACADE = (
    "tools",
    "tool_schemas",
    "tool_running",
    "aio",
    "sandbox",
    "filesystem",
    "commands",
    "command_handle",
    "time_travel",
    "saving",
    "auditing",
    "forking",
    "pty",
    "lease",
    "callbacks",
    "portal",
)

_FLOOR = {f"fumehood.{name}" for name in FLOOR}
_PORT = {f"fumehood.{name}" for name in PORT}
_FACADE = {f"fumehood.facade.{name}" for name in FACADE}

# Part -> parts of ours that it may import. A part may always import itself.
CONTRACT: dict[str, set[str]] = {
    "fumehood_wire": set(),
    "fumehood_jail": set(),
    "fumehood_guest": {"fumehood_wire", "fumehood_jail"},
    "fumehood.text": set(),
    "fumehood.errors": {"fumehood.text"},
    "fumehood.service_errors": {"fumehood.errors", "fumehood.limits", "fumehood.text"},
    "fumehood.checkpoint_errors": {"fumehood.errors", "fumehood.text"},
    "fumehood.fork_errors": {"fumehood.errors", "fumehood.text"},
    "fumehood.save_errors": {"fumehood.errors", "fumehood.text"},
    "fumehood.saved_state": set(),
    "fumehood.refusals": {"fumehood.errors"},
    "fumehood.changes": set(),
    "fumehood.limits": {"fumehood.errors"},
    # What a policy may say is read by those who will decide by it: the pure parts of the way out.
    "fumehood.network": {
        "fumehood.egress.addresses",
        "fumehood.egress.names",
        "fumehood.egress.rules",
        "fumehood.errors",
        "fumehood.limits",
    },
    "fumehood.egress.names": set(),
    "fumehood.egress.addresses": {"fumehood.egress.names"},
    "fumehood.egress.rules": {"fumehood.egress.addresses", "fumehood.egress.names", "fumehood.errors"},
    # The proxy stands on values alone: it knows no sandbox, and nobody but the host knows it.
    "fumehood.egress": {
        "fumehood.egress.addresses",
        "fumehood.egress.names",
        "fumehood.egress.rules",
        "fumehood.errors",
        "fumehood.limits",
        "fumehood.network",
        "fumehood.text",
    },
    "fumehood.isolation_levels": {"fumehood.errors"},
    "fumehood.security": {"fumehood.errors"},
    "fumehood.models": {"fumehood.limits", "fumehood.network"},
    "fumehood.charts": set(),
    # The audit record stands on values alone: it knows no sandbox.
    "fumehood.audit.entries": {"fumehood.charts"},
    "fumehood.audit": {
        "fumehood.audit.entries",
        "fumehood.charts",
        "fumehood.errors",
        "fumehood.limits",
    },
    "fumehood.json_values": {"fumehood.text"},
    "fumehood.results": {"fumehood.charts", "fumehood.text"},
    "fumehood.execution": {
        "fumehood.audit.entries",
        "fumehood.changes",
        "fumehood.limits",
        "fumehood.models",
        "fumehood.results",
        "fumehood.text",
    },
    "fumehood.events": {"fumehood.changes", "fumehood.charts", "fumehood.execution", "fumehood.results"},
    "fumehood.record": {"fumehood.execution"},
    "fumehood.templates.template": {"fumehood.errors"},
    "fumehood.transcript": _FLOOR | {"fumehood.kept_output"},
    "fumehood.kept_output": _FLOOR,
    # What an error tells of the walls: text alone.
    "fumehood.failure_hints": set(),
    "fumehood.serialise": _FLOOR,
    "fumehood.off_loop": set(),
    "fumehood.backends": set(),
    "fumehood.backends.tool_requests": _FLOOR,
    "fumehood.backends.checks": {"fumehood.errors", "fumehood.models"},
    "fumehood.backends.requests": _FLOOR | {"fumehood.backends.checks", "fumehood.backends.tool_requests"},
    "fumehood.backends.checkpoint_requests": {"fumehood.backends.checks"},
    "fumehood.backends.fork_requests": _FLOOR | {"fumehood.backends.checks"},
    "fumehood.backends.save_requests": _FLOOR | {"fumehood.backends.checks", "fumehood.backends.requests"},
    "fumehood.backends.saving": {"fumehood.backends.save_requests"},
    "fumehood.saved": _FLOOR
    | _PORT
    | {"fumehood.deserialise", "fumehood.off_loop", "fumehood.serialise", "fumehood.storage"},
    "fumehood.judging": _FLOOR | {"fumehood.backends.checks"},
    "fumehood.backends.streams": set(),
    "fumehood.backends.loop_bound": {"fumehood.backends.streams"},
    "fumehood.backends.http": _FLOOR
    | _PORT
    | {"fumehood.backends.loop_bound", "fumehood.deserialise", "fumehood.serialise"},
    "fumehood.deserialise": _FLOOR,
    "fumehood.backends.questions": _FLOOR | {"fumehood.backends.checks"},
    # The life of a stateless run is told over the port, which has it as a verb: the type alone.
    "fumehood.backends.stateless": _FLOOR
    | {"fumehood.backends.base", "fumehood.backends.checks", "fumehood.backends.requests"},
    "fumehood.backends.base": _FLOOR | _PORT - {"fumehood.backends.base"},
    # What a template is, and how it is isolated, knows nothing of whoever keeps it.
    "fumehood.templates": _FLOOR,
    # The verbs try what they have built with a sandbox of its own.
    "fumehood.templates.verbs": _FLOOR
    | {
        "fumehood.assemble",
        "fumehood.facade.callbacks",
        "fumehood.templates",
        "fumehood.templates.trial",
    },
    "fumehood.templates.trial": _FLOOR
    | {
        "fumehood.assemble",
        "fumehood.facade.portal",
        "fumehood.facade.sandbox",
        "fumehood.templates",
    },
    "fumehood.runtimes": _FLOOR | {"fumehood.templates"},
    "fumehood.runtimes.base": _FLOOR | {"fumehood.templates"},
    # Over any runtime.
    "fumehood.runtimes.own_interpreters": _FLOOR | {"fumehood.runtimes.base", "fumehood.templates"},
    # What the runtimes of Linux have in common.
    "fumehood.runtimes.kept_spawner": {
        "fumehood.descriptors",
        "fumehood.readiness",
        "fumehood.runtimes.base",
        "fumehood.runtimes.linux",
        "fumehood.runtimes.preload_reports",
    },
    "fumehood.runtimes.preload_reports": _FLOOR | {"fumehood.runtimes.base", "fumehood.templates"},
    # Reads what a step of the jail has failed with.
    "fumehood.runtimes.launch_faults": _FLOOR | {"fumehood_jail"},
    # The runtimes are the only parts of the host that know the jail. This spawner hears the zygote
    # through the wire, its plan says where the package of the guest lies.
    "fumehood.runtimes.linux": _FLOOR
    | {
        "fumehood.failpoints",
        "fumehood.descriptors",
        "fumehood.readiness",
        "fumehood.templates",
        "fumehood.runtimes",
        "fumehood.runtimes.base",
        "fumehood.runtimes.kept_spawner",
        "fumehood.runtimes.launch_faults",
        "fumehood.runtimes.preload_reports",
        "fumehood_guest",
        "fumehood_jail",
        "fumehood_wire",
    },
    # The second runtime knows the jail as well.
    "fumehood.runtimes.landlock": _FLOOR
    | {
        "fumehood.descriptors",
        "fumehood.readiness",
        "fumehood.templates",
        "fumehood.runtimes",
        "fumehood.runtimes.base",
        "fumehood.runtimes.kept_spawner",
        "fumehood.runtimes.launch_faults",
        "fumehood.runtimes.preload_reports",
        "fumehood.runtimes.linux",
        "fumehood_guest",
        "fumehood_jail",
        "fumehood_wire",
    },
    "fumehood.host": _FLOOR
    | _PORT
    | {
        "fumehood.audit",
        "fumehood.egress",
        "fumehood.failpoints",
        "fumehood.failure_hints",
        "fumehood.descriptors",
        "fumehood.readiness",
        "fumehood.runtimes.base",
        "fumehood.runtimes.own_interpreters",
        "fumehood.templates",
        "fumehood.transcript",
        "fumehood_wire",
    },
    "fumehood.backends.local": _FLOOR
    | _PORT
    | {
        "fumehood.backends.local_events",
        "fumehood.backends.local_saving",
        "fumehood.backends.loop_bound",
        "fumehood.host",
        "fumehood.templates",
    },
    "fumehood.backends.local_events": _FLOOR,
    "fumehood.backends.local_saving": _FLOOR | _PORT | {"fumehood.host", "fumehood.saved"},
    # Advice about code and outputs: values and text alone.
    "fumehood.advice": {"fumehood.errors", "fumehood.text"},
    # It refuses what cannot be called before anything runs.
    "fumehood.facade.portal": {"fumehood.facade.callbacks"},
    # What host and runtimes pass on their way; nobody else knows it, and nobody of ours arms one.
    "fumehood.failpoints": set(),
    "fumehood.descriptors": set(),
    "fumehood.readiness": set(),
    "fumehood.facade.callbacks": {"fumehood.errors"},
    # A tool is written down, its schema made and held, its calls run: each knows the one before.
    "fumehood.facade.tool_schemas": _FLOOR,
    "fumehood.facade.tools": _FLOOR | {"fumehood.backends.tool_requests", "fumehood.facade.tool_schemas"},
    "fumehood.facade.tool_running": _FLOOR
    | {
        "fumehood.backends.tool_requests",
        "fumehood.facade.callbacks",
        "fumehood.facade.portal",
        "fumehood.facade.tools",
    },
    "fumehood.facade.lease": _FLOOR | _PORT | {"fumehood.assemble"},
    "fumehood.facade.command_handle": _FLOOR
    | _PORT
    | {
        "fumehood.facade.callbacks",
        "fumehood.facade.lease",
        "fumehood.facade.portal",
    },
    "fumehood.facade.commands": _FLOOR
    | _PORT
    | {
        "fumehood.facade.callbacks",
        "fumehood.facade.command_handle",
        "fumehood.facade.lease",
        "fumehood.facade.portal",
    },
    "fumehood.facade.filesystem": _FLOOR | _PORT | {"fumehood.facade.lease", "fumehood.facade.portal"},
    "fumehood.facade.auditing": _FLOOR
    | _PORT
    | {
        "fumehood.facade.callbacks",
        "fumehood.facade.lease",
        "fumehood.facade.portal",
    },
    "fumehood.facade.time_travel": _FLOOR | _PORT | {"fumehood.facade.lease", "fumehood.facade.portal"},
    "fumehood.facade.forking": _FLOOR | _PORT | {"fumehood.facade.lease", "fumehood.facade.portal"},
    "fumehood.facade.saving": _FLOOR
    | _PORT
    | {
        "fumehood.facade.lease",
        "fumehood.facade.portal",
        "fumehood.saved",
    },
    "fumehood.facade.pty": _FLOOR
    | _PORT
    | {
        "fumehood.facade.command_handle",
        "fumehood.facade.lease",
        "fumehood.facade.portal",
    },
    "fumehood.facade.aio": _FLOOR
    | _PORT
    | _FACADE - {"fumehood.facade.sandbox", "fumehood.facade.portal"}
    | {"fumehood.notebook"},
    "fumehood.facade.sandbox": _FLOOR | {"fumehood.backends.base", "fumehood.notebook"} | _FACADE,
    # Records as files, notebooks as code: over the public sandbox. One silent piece of code goes through the port.
    "fumehood.notebook": _FLOOR
    | {
        "fumehood.facade.aio",
        "fumehood.backends.base",
        "fumehood.backends.checks",
        "fumehood.backends.requests",
        "fumehood.facade.portal",
        "fumehood.facade.sandbox",
        "fumehood.serialise",
    },
    "fumehood.facade.oneshot": _FLOOR | {"fumehood.backends.base"} | _FACADE,
    "fumehood.facade.exploring": _FLOOR | _PORT | _FACADE,
    "fumehood.facade.artifacts": _FLOOR | {"fumehood.facade.filesystem"},
    "fumehood.assemble": _FLOOR
    | {
        "fumehood.audit",
        "fumehood.backends.base",
        "fumehood.backends.http",
        "fumehood.backends.local",
        "fumehood.host",
        "fumehood.facade.portal",
        "fumehood.runtimes",
        "fumehood.runtimes.landlock",
        "fumehood.runtimes.linux",
        "fumehood.templates",
    },
    # The command line stands on what every user has; `doctor` alone asks the runtime.
    "fumehood.cli": _FLOOR
    | {
        "fumehood.facade.aio",
        "fumehood.advice",
        "fumehood.facade.artifacts",
        "fumehood.audit",
        "fumehood.cli.chat",
        "fumehood.cli.demo",
        "fumehood.cli.doctor",
        "fumehood.cli.host",
        "fumehood.cli.mcp",
        "fumehood.cli.saved",
        "fumehood.cli.serve",
        "fumehood.cli.template",
        "fumehood.notebook",
        "fumehood.facade.oneshot",
        "fumehood.facade.sandbox",
        "fumehood.serialise",
        "fumehood.server.setting_fields",
    },
    "fumehood.cli.saved": _FLOOR
    | _PORT
    | {
        "fumehood.cli",
        "fumehood.assemble",
        "fumehood.facade.portal",
        "fumehood.facade.sandbox",
        "fumehood.saved",
        "fumehood.facade.saving",
        "fumehood.serialise",
    },
    "fumehood.cli.chat": {
        "fumehood.cli",
        "fumehood.errors",
        "fumehood.llm",
        "fumehood.llm.terminal",
        "fumehood.refusals",
    },
    "fumehood.cli.serve": {
        "fumehood.cli",
        "fumehood.server",
        "fumehood.server.setting_fields",
        "fumehood.server.settings",
    },
    "fumehood.cli.mcp": {
        "fumehood.cli",
        "fumehood.errors",
        "fumehood.mcp",
        "fumehood.refusals",
        "fumehood.server",
        "fumehood.server.settings",
    },
    "fumehood.cli.host": {
        "fumehood.cli",
        "fumehood.daemon",
        "fumehood.daemon.settings",
        "fumehood.server.setting_fields",
    },
    "fumehood.cli.template": {
        "fumehood.cli",
        "fumehood.refusals",
        "fumehood.serialise",
        "fumehood.text",
        "fumehood.templates.verbs",
    },
    "fumehood.cli.demo": {"fumehood.cli", "fumehood.demos"},
    "fumehood.demos": {
        "fumehood.errors",
        "fumehood.facade.exploring",
        "fumehood.facade.sandbox",
        "fumehood.text",
    },
    "fumehood.cli.doctor": {
        "fumehood.cli",
        "fumehood.cli.attacks",
        "fumehood.errors",
        "fumehood.text",
        "fumehood.runtimes.linux",
        "fumehood.templates.template",
        "fumehood.templates.trial",
    },
    "fumehood.cli.attacks": {"fumehood.cli", "fumehood.scorecard", "fumehood.text"},
    # What attacks the walls must know them: it is judged by their policy, and takes one of them away.
    "fumehood.scorecard": _FLOOR | {"fumehood.assemble", "fumehood.facade.sandbox", "fumehood_jail"},
    # The attacker's program runs in guests and is copied there: it knows nobody.
    "fumehood.scorecard.attack": set(),
    # What a server remembers stands on values alone: it knows neither the server nor a sandbox that lives.
    "fumehood.storage": {
        "fumehood.errors",
        "fumehood.limits",
        "fumehood.network",
        "fumehood.service_errors",
        "fumehood.text",
    },
    # Files out: over the public sandbox, for library and server alike.
    "fumehood.storage.artifact_files": {"fumehood.text"},
    "fumehood.storage.artifact_finding": _FLOOR | {"fumehood.facade.aio", "fumehood.storage.artifact_files"},
    "fumehood.storage.signed_files": _FLOOR
    | _FACADE
    | {
        "fumehood.backends.checks",
        "fumehood.backends.http",
        "fumehood.storage.artifact_files",
        "fumehood.storage.artifact_finding",
    },
    "fumehood.storage.artifact_places": {"fumehood.errors", "fumehood.service_errors", "fumehood.storage"},
    "fumehood.storage.artifacts": _FLOOR
    | _FACADE
    | {
        "fumehood.assemble",
        "fumehood.storage.artifact_files",
        "fumehood.storage.artifact_finding",
        "fumehood.storage.artifact_places",
    },
    # The command line reads settings before it knows whether a server can be had at all.
    "fumehood.server.setting_fields": {"fumehood.errors", "fumehood.refusals"},
    "fumehood.server.settings": {
        "fumehood.errors",
        "fumehood.isolation_levels",
        "fumehood.limits",
        "fumehood.network",
        "fumehood.server.setting_fields",
    },
    # Routes see the port and the services; `assembly` alone knows what stands behind them.
    "fumehood.server": _FLOOR
    | _PORT
    | {
        "fumehood.off_loop",
        "fumehood.serialise",
        "fumehood.server.assembly",
        "fumehood.server.settings",
        "fumehood.storage",
    },
    "fumehood.server.assembly": _FLOOR
    | {
        "fumehood.assemble",
        "fumehood.backends.base",
        "fumehood.backends.http",
        "fumehood.host.identity",
        "fumehood.server",
        "fumehood.server.settings",
        "fumehood.storage",
    },
    "fumehood.host.identity": {"fumehood.errors", "fumehood.host"},
    # The host daemon is an app of the server's routes over the engine of its own process, without the stores.
    "fumehood.daemon": _FLOOR
    | _PORT
    | {
        "fumehood.assemble",
        "fumehood.daemon.settings",
        "fumehood.host.identity",
        "fumehood.server",
        "fumehood.server.settings",
    },
    "fumehood.daemon.settings": {
        "fumehood.errors",
        "fumehood.isolation_levels",
        "fumehood.limits",
        "fumehood.server.setting_fields",
    },
    "fumehood.__main__": {"fumehood.cli"},
    # Adapters of agent frameworks see what every user sees, and never each other.
    "fumehood.frameworks": set(),
    "fumehood.frameworks.host_functions": {"fumehood"},
    "fumehood.frameworks.needed": set(),
    **{
        f"fumehood.frameworks.{name}": {
            "fumehood",
            "fumehood.llm",
            "fumehood.frameworks.host_functions",
            "fumehood.frameworks.needed",
        }
        for name in FRAMEWORKS
    },
    "fumehood.frameworks.dspy_namespace": set(),
    "fumehood.frameworks.dspy": {
        "fumehood",
        "fumehood.frameworks.dspy_namespace",
        "fumehood.frameworks.host_functions",
        "fumehood.frameworks.needed",
    },
    # A dialect sees the port and the server's services, never another dialect; this one names templates as well.
    "fumehood.compat": set(),
    "fumehood.compat.e2b": _FLOOR
    | _PORT
    | {
        "fumehood.off_loop",
        "fumehood.saved",
        "fumehood.serialise",
        "fumehood.server",
        "fumehood.server.settings",
        "fumehood.storage",
    },
    "fumehood.compat.jupyter": _FLOOR
    | _PORT
    | {"fumehood.assemble", "fumehood.serialise", "fumehood.server"},
    "fumehood.compat.fusion": _FLOOR | _PORT | {"fumehood.server"},
    "fumehood.compat.librechat": _FLOOR | _PORT | {"fumehood.server", "fumehood.storage"},
    "fumehood.compat.openai": _FLOOR | _PORT | {"fumehood.server"},
    "fumehood.compat.replit": _FLOOR | _PORT | {"fumehood.server"},
    # This dialect is a package of its own, which the server brings callers to.
    "fumehood.compat.mcp": {"fumehood.mcp", "fumehood.server", "fumehood.service_errors"},
    # What its users import: a client that needs nothing of ours.
    "fumehood.compat.replit.client": set(),
    # The tool for models stands on what every user has: the facade, and the thread that its synchronous face shares.
    "fumehood.llm": {
        "fumehood",
        "fumehood.notebook",
        "fumehood.facade.portal",
        "fumehood.text",
        "fumehood.facade.tool_running",
    },
    # A chat in the terminal brings files back, as the command line does.
    "fumehood.llm.terminal": {"fumehood", "fumehood.facade.artifacts", "fumehood.llm", "fumehood.text"},
    # The tools over the Model Context Protocol: what every user has, and the words in which models are told of it.
    "fumehood.mcp": {"fumehood", "fumehood.llm", "fumehood.text"},
    # The facade names the public modules, for type checkers; at run time it imports none.
    "fumehood": _FLOOR
    | _PORT
    | _FACADE
    | {
        "fumehood.advice",
        "fumehood.facade.exploring",
        "fumehood.notebook",
        "fumehood.facade.oneshot",
        "fumehood.storage.artifact_files",
        "fumehood.storage.artifacts",
        "fumehood.storage.signed_files",
        "fumehood.templates",
        "fumehood.templates.verbs",
    },
}

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
    # Work that goes on in a guest and, as a control, outside; and modules of its own, by names beside it.
    "fumehood.scorecard.attack": {"calls", "matplotlib", "numpy", "pip", "report"},
    # The extra `tools`, for schemas that say more than our own check understands.
    "fumehood.facade.tool_schemas": {"jsonschema", "referencing"},
    # The extra `server`.
    "fumehood.storage": {"alembic", "obstore", "sqlalchemy"},
    "fumehood.server": {
        "fastapi",
        "h11",
        "prometheus_client",
        "pydantic",
        "python_multipart",
        "starlette",
        "uvicorn",
        "websockets",
    },
    "fumehood.server.setting_fields": set(),
    "fumehood.server.settings": set(),
    "fumehood.daemon": {"fastapi", "starlette", "uvicorn"},
    "fumehood.daemon.settings": set(),
    # The extra `otel`.
    "fumehood.server.tracing": {"fastapi", "opentelemetry"},
    "fumehood.compat": {"starlette"},
    "fumehood.compat.e2b": {"python_multipart", "starlette"},
    # The extras of the frameworks.
    **{f"fumehood.frameworks.{name}": packages for name, packages in FRAMEWORKS.items()},
    # The extra `mcp`, and what the SDK stands on.
    "fumehood.mcp": {"anyio", "mcp", "pydantic", "starlette"},
    # The extras `openai` and `anthropic`, and the reader of JSON that both bring.
    "fumehood.llm.providers": {"anthropic", "jiter", "openai"},
    # The extra `chat`.
    "fumehood.llm.terminal": {"rich"},
    # The extra `egress`.
    "fumehood.egress.interception": {"cryptography"},
    # The extra `client`.
    "fumehood.backends.http_connection": {"httpx2", "websockets"},
}

# What a package must not import even though it is in the standard library, and why.
FORBIDDEN = {
    "fumehood_wire": ("asyncio", "socket", "selectors", "threading"),  # bytes in, events out
    "fumehood_jail": ("asyncio", "threading", "dataclasses", "logging"),  # it runs with privileges
}


def part_of(name: str) -> str:
    """The longest entry of the contract that `name` begins with; some parts have several modules."""
    if name.startswith(("fumehood.runtimes.linux", "fumehood.runtimes.packet_socket")):
        return "fumehood.runtimes.linux"

    if name.startswith("fumehood.runtimes.landlock"):
        return "fumehood.runtimes.landlock"

    if name.startswith("fumehood.backends.http"):
        return "fumehood.backends.http"

    while name not in CONTRACT:
        name = name.rpartition(".")[0]

    return name


def test_every_import_is_in_the_contract(modules):
    """An arrow that the table does not have is not drawn by accident."""
    known = {module.name for module in modules}
    broken: list[str] = []

    for module in modules:
        part = part_of(module.name)

        for target in sorted(module.of_ours(known)):
            if part_of(target) != part and part_of(target) not in CONTRACT[part]:
                broken.append(f"{module.name} imports {target}")

    assert broken == []


def test_there_are_no_cycles(modules):
    """Modules can be loaded in an order; the one late import, of `assemble` by the facade, is named here."""
    known = {module.name for module in modules}
    graph = {module.name: module.of_ours(known, types=False) for module in modules}
    graph["fumehood.facade.lease"].discard("fumehood.assemble")

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
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert broken == []
