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
_FACADE = {f"fumehood.api.{name}" for name in FACADE}

# Part -> parts of ours that it may import. A part may always import itself.
CONTRACT: dict[str, set[str]] = {
    "fumehood_wire": set(),
    "fumehood_jail": set(),
    "fumehood_guest": {"fumehood_wire", "fumehood_jail"},
    "fumehood.text": set(),
    "fumehood.errors": {"fumehood.text"},
    "fumehood.errors": {"fumehood.errors", "fumehood.values.limits", "fumehood.text"},
    "fumehood.errors": {"fumehood.errors", "fumehood.text"},
    "fumehood.errors": {"fumehood.errors", "fumehood.text"},
    "fumehood.errors": {"fumehood.errors", "fumehood.text"},
    "fumehood.values.saved_state": set(),
    "fumehood.refusals": {"fumehood.errors"},
    "fumehood.values.execution": set(),
    "fumehood.values.limits": {"fumehood.errors"},
    # What a policy may say is read by those who will decide by it: the pure parts of the way out.
    "fumehood.values.network": {
        "fumehood.values.addresses",
        "fumehood.values.domain_names",
        "fumehood.values.network_rules",
        "fumehood.errors",
        "fumehood.values.limits",
    },
    "fumehood.values.domain_names": set(),
    "fumehood.values.addresses": {"fumehood.values.domain_names"},
    "fumehood.values.network_rules": {
        "fumehood.values.addresses",
        "fumehood.values.domain_names",
        "fumehood.errors",
    },
    # The proxy stands on values alone: it knows no sandbox, and nobody but the host knows it.
    "fumehood.egress": {
        "fumehood.values.addresses",
        "fumehood.values.domain_names",
        "fumehood.values.network_rules",
        "fumehood.errors",
        "fumehood.values.limits",
        "fumehood.values.network",
        "fumehood.text",
    },
    "fumehood.values.sandbox": {"fumehood.errors"},
    "fumehood.values.security": {"fumehood.errors"},
    "fumehood.values.sandbox": {"fumehood.values.limits", "fumehood.values.network"},
    "fumehood.values.charts": set(),
    # The audit record stands on values alone: it knows no sandbox.
    "fumehood.values.audit": {"fumehood.values.charts"},
    "fumehood.audit": {
        "fumehood.values.audit",
        "fumehood.values.charts",
        "fumehood.errors",
        "fumehood.values.limits",
    },
    "fumehood.values.json_values": {"fumehood.text"},
    "fumehood.values.results": {"fumehood.values.charts", "fumehood.text"},
    "fumehood.values.execution": {
        "fumehood.values.audit",
        "fumehood.values.execution",
        "fumehood.values.limits",
        "fumehood.values.sandbox",
        "fumehood.values.results",
        "fumehood.text",
    },
    "fumehood.values.events": {
        "fumehood.values.execution",
        "fumehood.values.charts",
        "fumehood.values.execution",
        "fumehood.values.results",
    },
    "fumehood.values.execution": {"fumehood.values.execution"},
    "fumehood.values.template": {"fumehood.errors"},
    "fumehood.values.transcript": _FLOOR | {"fumehood.values.transcript"},
    "fumehood.values.transcript": _FLOOR,
    # What an error tells of the walls: text alone.
    "fumehood.engine.host_faults": set(),
    "fumehood.values.codec": _FLOOR,
    "fumehood.off_loop": set(),
    "fumehood.client": set(),
    "fumehood.values.requests": _FLOOR,
    "fumehood.values.checks": {"fumehood.errors", "fumehood.values.sandbox"},
    "fumehood.values.requests": _FLOOR | {"fumehood.values.checks", "fumehood.values.requests"},
    "fumehood.values.requests": {"fumehood.values.checks"},
    "fumehood.values.requests": _FLOOR | {"fumehood.values.checks"},
    "fumehood.values.requests": _FLOOR | {"fumehood.values.checks", "fumehood.values.requests"},
    "fumehood.port.backend": {"fumehood.values.requests"},
    "fumehood.saved": _FLOOR
    | _PORT
    | {"fumehood.values.codec", "fumehood.off_loop", "fumehood.values.codec", "fumehood.storage"},
    "fumehood.values.judging": _FLOOR | {"fumehood.values.checks"},
    "fumehood.port.backend": set(),
    "fumehood.port.loop_bound": {"fumehood.port.backend"},
    "fumehood.client.backend": _FLOOR
    | _PORT
    | {"fumehood.port.loop_bound", "fumehood.values.codec", "fumehood.values.codec"},
    "fumehood.values.codec": _FLOOR,
    "fumehood.values.questions": _FLOOR | {"fumehood.values.checks"},
    # The life of a stateless run is told over the port, which has it as a verb: the type alone.
    "fumehood.port.stateless": _FLOOR
    | {"fumehood.port.backend", "fumehood.values.checks", "fumehood.values.requests"},
    "fumehood.port.backend": _FLOOR | _PORT - {"fumehood.port.backend"},
    # What a template is, and how it is isolated, knows nothing of whoever keeps it.
    "fumehood.templates": _FLOOR,
    # The verbs try what they have built with a sandbox of its own.
    "fumehood.api.templates": _FLOOR
    | {
        "fumehood.assemble",
        "fumehood.portal",
        "fumehood.templates",
        "fumehood.api.templates",
    },
    "fumehood.api.templates": _FLOOR
    | {
        "fumehood.assemble",
        "fumehood.portal",
        "fumehood.api.sandbox",
        "fumehood.templates",
    },
    "fumehood.runtimes": _FLOOR | {"fumehood.templates"},
    "fumehood.runtimes.base": _FLOOR | {"fumehood.templates"},
    # Over any runtime.
    "fumehood.runtimes.own_interpreters": _FLOOR | {"fumehood.runtimes.base", "fumehood.templates"},
    # What the runtimes of Linux have in common.
    "fumehood.runtimes.launcher_client": {
        "fumehood.runtimes.descriptors",
        "fumehood.runtimes.descriptors",
        "fumehood.runtimes.base",
        "fumehood.runtimes.namespaces.runtime",
        "fumehood.runtimes.preload_reports",
    },
    "fumehood.runtimes.preload_reports": _FLOOR | {"fumehood.runtimes.base", "fumehood.templates"},
    # Reads what a step of the jail has failed with.
    "fumehood.runtimes.launch_faults": _FLOOR | {"fumehood_jail"},
    # The runtimes are the only parts of the host that know the jail. This spawner hears the zygote
    # through the wire, its plan says where the package of the guest lies.
    "fumehood.runtimes.namespaces.runtime": _FLOOR
    | {
        "fumehood.failpoints",
        "fumehood.runtimes.descriptors",
        "fumehood.runtimes.descriptors",
        "fumehood.templates",
        "fumehood.runtimes",
        "fumehood.runtimes.base",
        "fumehood.runtimes.launcher_client",
        "fumehood.runtimes.launch_faults",
        "fumehood.runtimes.preload_reports",
        "fumehood_guest",
        "fumehood_jail",
        "fumehood_wire",
    },
    # The second runtime knows the jail as well.
    "fumehood.runtimes.landlock.runtime": _FLOOR
    | {
        "fumehood.runtimes.descriptors",
        "fumehood.runtimes.descriptors",
        "fumehood.templates",
        "fumehood.runtimes",
        "fumehood.runtimes.base",
        "fumehood.runtimes.launcher_client",
        "fumehood.runtimes.launch_faults",
        "fumehood.runtimes.preload_reports",
        "fumehood.runtimes.namespaces.runtime",
        "fumehood_guest",
        "fumehood_jail",
        "fumehood_wire",
    },
    "fumehood.engine": _FLOOR
    | _PORT
    | {
        "fumehood.audit",
        "fumehood.egress",
        "fumehood.failpoints",
        "fumehood.engine.host_faults",
        "fumehood.runtimes.descriptors",
        "fumehood.runtimes.descriptors",
        "fumehood.runtimes.base",
        "fumehood.runtimes.own_interpreters",
        "fumehood.templates",
        "fumehood.values.transcript",
        "fumehood_wire",
    },
    "fumehood.engine.backend": _FLOOR
    | _PORT
    | {
        "fumehood.engine.backend",
        "fumehood.engine.backend",
        "fumehood.port.loop_bound",
        "fumehood.engine",
        "fumehood.templates",
    },
    "fumehood.engine.backend": _FLOOR,
    "fumehood.engine.backend": _FLOOR | _PORT | {"fumehood.engine", "fumehood.saved"},
    # Advice about code and outputs: values and text alone.
    "fumehood.advice": {"fumehood.errors", "fumehood.text"},
    # It refuses what cannot be called before anything runs.
    "fumehood.portal": {"fumehood.portal"},
    # What host and runtimes pass on their way; nobody else knows it, and nobody of ours arms one.
    "fumehood.failpoints": set(),
    "fumehood.runtimes.descriptors": set(),
    "fumehood.runtimes.descriptors": set(),
    "fumehood.portal": {"fumehood.errors"},
    # A tool is written down, its schema made and held, its calls run: each knows the one before.
    "fumehood.api.tool_schemas": _FLOOR,
    "fumehood.api.tools": _FLOOR | {"fumehood.values.requests", "fumehood.api.tool_schemas"},
    "fumehood.api.tools": _FLOOR
    | {
        "fumehood.values.requests",
        "fumehood.portal",
        "fumehood.portal",
        "fumehood.api.tools",
    },
    "fumehood.api.handle": _FLOOR | _PORT | {"fumehood.assemble"},
    "fumehood.api.commands": _FLOOR
    | _PORT
    | {
        "fumehood.portal",
        "fumehood.api.handle",
        "fumehood.portal",
    },
    "fumehood.api.commands": _FLOOR
    | _PORT
    | {
        "fumehood.portal",
        "fumehood.api.commands",
        "fumehood.api.handle",
        "fumehood.portal",
    },
    "fumehood.api.files": _FLOOR | _PORT | {"fumehood.api.handle", "fumehood.portal"},
    "fumehood.api.audit": _FLOOR
    | _PORT
    | {
        "fumehood.portal",
        "fumehood.api.handle",
        "fumehood.portal",
    },
    "fumehood.api.time_travel": _FLOOR | _PORT | {"fumehood.api.handle", "fumehood.portal"},
    "fumehood.api.time_travel": _FLOOR | _PORT | {"fumehood.api.handle", "fumehood.portal"},
    "fumehood.api.time_travel": _FLOOR
    | _PORT
    | {
        "fumehood.api.handle",
        "fumehood.portal",
        "fumehood.saved",
    },
    "fumehood.api.pty": _FLOOR
    | _PORT
    | {
        "fumehood.api.commands",
        "fumehood.api.handle",
        "fumehood.portal",
    },
    "fumehood.api.async_sandbox": _FLOOR
    | _PORT
    | _FACADE - {"fumehood.api.sandbox", "fumehood.portal"}
    | {"fumehood.notebook"},
    "fumehood.api.sandbox": _FLOOR | {"fumehood.port.backend", "fumehood.notebook"} | _FACADE,
    # Records as files, notebooks as code: over the public sandbox. One silent piece of code goes through the port.
    "fumehood.notebook": _FLOOR
    | {
        "fumehood.api.async_sandbox",
        "fumehood.port.backend",
        "fumehood.values.checks",
        "fumehood.values.requests",
        "fumehood.portal",
        "fumehood.api.sandbox",
        "fumehood.values.codec",
    },
    "fumehood.api.one_shot": _FLOOR | {"fumehood.port.backend"} | _FACADE,
    "fumehood.api.explore": _FLOOR | _PORT | _FACADE,
    "fumehood.api.artifacts": _FLOOR | {"fumehood.api.files"},
    "fumehood.assemble": _FLOOR
    | {
        "fumehood.audit",
        "fumehood.port.backend",
        "fumehood.client.backend",
        "fumehood.engine.backend",
        "fumehood.engine",
        "fumehood.portal",
        "fumehood.runtimes",
        "fumehood.runtimes.landlock.runtime",
        "fumehood.runtimes.namespaces.runtime",
        "fumehood.templates",
    },
    # The command line stands on what every user has; `doctor` alone asks the runtime.
    "fumehood.cli": _FLOOR
    | {
        "fumehood.api.async_sandbox",
        "fumehood.advice",
        "fumehood.api.artifacts",
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
        "fumehood.api.one_shot",
        "fumehood.api.sandbox",
        "fumehood.values.codec",
        "fumehood.server.setting_fields",
    },
    "fumehood.cli.saved": _FLOOR
    | _PORT
    | {
        "fumehood.cli",
        "fumehood.assemble",
        "fumehood.portal",
        "fumehood.api.sandbox",
        "fumehood.saved",
        "fumehood.api.time_travel",
        "fumehood.values.codec",
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
        "fumehood.values.codec",
        "fumehood.text",
        "fumehood.api.templates",
    },
    "fumehood.cli.demo": {"fumehood.cli", "fumehood.demos"},
    "fumehood.demos": {
        "fumehood.errors",
        "fumehood.api.explore",
        "fumehood.api.sandbox",
        "fumehood.text",
    },
    "fumehood.cli.doctor": {
        "fumehood.cli",
        "fumehood.cli.attacks",
        "fumehood.errors",
        "fumehood.text",
        "fumehood.runtimes.namespaces.runtime",
        "fumehood.values.template",
        "fumehood.api.templates",
    },
    "fumehood.cli.attacks": {"fumehood.cli", "fumehood.scorecard", "fumehood.text"},
    # What attacks the walls must know them: it is judged by their policy, and takes one of them away.
    "fumehood.scorecard": _FLOOR | {"fumehood.assemble", "fumehood.api.sandbox", "fumehood_jail"},
    # The attacker's program runs in guests and is copied there: it knows nobody.
    "fumehood.scorecard.attack": set(),
    # What a server remembers stands on values alone: it knows neither the server nor a sandbox that lives.
    "fumehood.storage": {
        "fumehood.errors",
        "fumehood.values.limits",
        "fumehood.values.network",
        "fumehood.errors",
        "fumehood.text",
    },
    # Files out: over the public sandbox, for library and server alike.
    "fumehood.storage.artifact_files": {"fumehood.text"},
    "fumehood.storage.artifact_finding": _FLOOR
    | {"fumehood.api.async_sandbox", "fumehood.storage.artifact_files"},
    "fumehood.storage.signed_files": _FLOOR
    | _FACADE
    | {
        "fumehood.values.checks",
        "fumehood.client.backend",
        "fumehood.storage.artifact_files",
        "fumehood.storage.artifact_finding",
    },
    "fumehood.storage.artifact_places": {"fumehood.errors", "fumehood.errors", "fumehood.storage"},
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
        "fumehood.values.sandbox",
        "fumehood.values.limits",
        "fumehood.values.network",
        "fumehood.server.setting_fields",
    },
    # Routes see the port and the services; `assembly` alone knows what stands behind them.
    "fumehood.server": _FLOOR
    | _PORT
    | {
        "fumehood.off_loop",
        "fumehood.values.codec",
        "fumehood.server.assembly",
        "fumehood.server.settings",
        "fumehood.storage",
    },
    "fumehood.server.assembly": _FLOOR
    | {
        "fumehood.assemble",
        "fumehood.port.backend",
        "fumehood.client.backend",
        "fumehood.engine.identity",
        "fumehood.server",
        "fumehood.server.settings",
        "fumehood.storage",
    },
    "fumehood.engine.identity": {"fumehood.errors", "fumehood.engine"},
    # The host daemon is an app of the server's routes over the engine of its own process, without the stores.
    "fumehood.daemon": _FLOOR
    | _PORT
    | {
        "fumehood.assemble",
        "fumehood.daemon.settings",
        "fumehood.engine.identity",
        "fumehood.server",
        "fumehood.server.settings",
    },
    "fumehood.daemon.settings": {
        "fumehood.errors",
        "fumehood.values.sandbox",
        "fumehood.values.limits",
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
    "fumehood.dialects": set(),
    "fumehood.dialects.e2b": _FLOOR
    | _PORT
    | {
        "fumehood.off_loop",
        "fumehood.saved",
        "fumehood.values.codec",
        "fumehood.server",
        "fumehood.server.settings",
        "fumehood.storage",
    },
    "fumehood.dialects.jupyter": _FLOOR
    | _PORT
    | {"fumehood.assemble", "fumehood.values.codec", "fumehood.server"},
    "fumehood.dialects.fusion": _FLOOR | _PORT | {"fumehood.server"},
    "fumehood.dialects.librechat": _FLOOR | _PORT | {"fumehood.server", "fumehood.storage"},
    "fumehood.dialects.openai": _FLOOR | _PORT | {"fumehood.server"},
    "fumehood.dialects.replit": _FLOOR | _PORT | {"fumehood.server"},
    # This dialect is a package of its own, which the server brings callers to.
    "fumehood.dialects.mcp": {"fumehood.mcp", "fumehood.server", "fumehood.errors"},
    # What its users import: a client that needs nothing of ours.
    "fumehood.dialects.replit.client": set(),
    # The tool for models stands on what every user has: the facade, and the thread that its synchronous face shares.
    "fumehood.llm": {
        "fumehood",
        "fumehood.notebook",
        "fumehood.portal",
        "fumehood.text",
        "fumehood.api.tools",
    },
    # A chat in the terminal brings files back, as the command line does.
    "fumehood.llm.terminal": {"fumehood", "fumehood.api.artifacts", "fumehood.llm", "fumehood.text"},
    # The tools over the Model Context Protocol: what every user has, and the words in which models are told of it.
    "fumehood.mcp": {"fumehood", "fumehood.llm", "fumehood.text"},
    # The facade names the public modules, for type checkers; at run time it imports none.
    "fumehood": _FLOOR
    | _PORT
    | _FACADE
    | {
        "fumehood.advice",
        "fumehood.api.explore",
        "fumehood.notebook",
        "fumehood.api.one_shot",
        "fumehood.storage.artifact_files",
        "fumehood.storage.artifacts",
        "fumehood.storage.signed_files",
        "fumehood.templates",
        "fumehood.api.templates",
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
    "fumehood.api.tool_schemas": {"jsonschema", "referencing"},
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
    "fumehood.dialects": {"starlette"},
    "fumehood.dialects.e2b": {"python_multipart", "starlette"},
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
    "fumehood.client.connection": {"httpx2", "websockets"},
}

# What a package must not import even though it is in the standard library, and why.
FORBIDDEN = {
    "fumehood_wire": ("asyncio", "socket", "selectors", "threading"),  # bytes in, events out
    "fumehood_jail": ("asyncio", "threading", "dataclasses", "logging"),  # it runs with privileges
}


def part_of(name: str) -> str:
    """The longest entry of the contract that `name` begins with; some parts have several modules."""
    if name.startswith(("fumehood.runtimes.namespaces.runtime", "fumehood.runtimes.packet_socket")):
        return "fumehood.runtimes.namespaces.runtime"

    if name.startswith("fumehood.runtimes.landlock.runtime"):
        return "fumehood.runtimes.landlock.runtime"

    if name.startswith("fumehood.client.backend"):
        return "fumehood.client.backend"

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
    graph["fumehood.api.handle"].discard("fumehood.assemble")

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
