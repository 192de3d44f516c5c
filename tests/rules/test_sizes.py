"""Files, functions and classes stay small enough to be read in one go; exceptions may only become fewer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

MAX_FILE_LINES = 1_050
# What a tool makes of the asynchronous classes; and the tree of errors, which is one.
LONG = {"fumehood.api.sandbox", "fumehood.errors"}
MAX_FUNCTION_LINES = 80
MAX_NESTING = 4
MAX_PARAMETERS = 6
MAX_METHODS = 20

# Public verbs and values whose parameters are the interface: each is named at the call, none is positional.
WIDE = {
    # The parameters of a query.
    "fumehood.server.routes.cells:read_cells",
    "fumehood.server.routes.records:read_cells",
    "fumehood.server.routes.variables:list_variables",
    "fumehood.server.routes.sandboxes:list_sandboxes",
    "fumehood.api.async_sandbox:AsyncSandbox.__init__",
    "fumehood.api.async_sandbox:AsyncSandbox.create",
    "fumehood.api.async_sandbox:AsyncSandbox.from_notebook",
    "fumehood.api.contexts:AsyncContexts.run_code",
    "fumehood.api.contexts:AsyncContexts.stream_code",
    "fumehood.api.commands:AsyncCommands.run",
    "fumehood.api.sandbox:Commands.run",
    "fumehood.llm.interpreter:AsyncCodeInterpreter.__init__",
    "fumehood.llm.interpreter:CodeInterpreter.__init__",
    "fumehood.llm.agent:Agent.__init__",
    "fumehood.llm.agent:AsyncAgent.__init__",
    "fumehood.llm.agent:aask",
    "fumehood.llm.agent:ask",
    "fumehood.llm.providers.sdk:SdkProvider.__init__",
    "fumehood.api.one_shot:arun_code",
    "fumehood.api.one_shot:run_code",
    "fumehood.api.sandbox:Sandbox.__init__",
    "fumehood.api.async_sandbox:AsyncSandbox.load",
    "fumehood.api.sandbox:Sandbox.load",
    "fumehood.api.sandbox:Sandbox.create",
    "fumehood.api.sandbox:Sandbox.from_notebook",
    "fumehood.api.sandbox:Sandbox.run_code",
    "fumehood.api.sandbox:Sandbox.stream_code",
    "fumehood.api.templates:build_template",
    # The signature is Inspect's.
    "fumehood.frameworks.inspect:FumehoodSandboxEnvironment.exec",
    # A row of the table of languages.
    "fumehood.values.languages:_program",
    # Facts that are read once and passed down once.
    "fumehood_guest.context.context:run_context",
    "fumehood_jail.users:IdPlan.__init__",
}
# The port has more verbs than that, and who implements or serves it has them all; IPython's shell is subclassed as
# it is.
BIG = {
    "fumehood.api.async_sandbox:AsyncSandbox",
    "fumehood.port.backend:Backend",
    "fumehood.client.backend:HttpBackend",
    "fumehood.cluster.backend:ClusterBackend",
    "fumehood.engine.backend:LocalBackend",
    # The sandboxes of a host: one method for each verb about more than one of them.
    "fumehood.engine.supervisor:Supervisor",
    "fumehood.engine.sandbox:LiveSandbox",
    # The port: one method for each thing that the kernel can do to a sandbox.
    "fumehood.runtimes.base:Guest",
    "fumehood.runtimes.namespaces.guest:LinuxGuest",
    "fumehood.api.sandbox:Sandbox",
    "fumehood.server.tenancy:TenantBackend",
    "fumehood_guest.context.shell:PythonShell",
}
# A raw system call has as many arguments as the kernel wants.
_RAW = "fumehood_jail.syscalls"

_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = f"{prefix}{node.name}"

            if isinstance(node, _FUNCTIONS):
                yield name, node

            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def depth(node: ast.AST, level: int = 0) -> int:
    """How deep blocks are nested; `elif` is no deeper than its `if`, and an inner function begins anew."""
    deepest = level

    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]

        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
                continue

            is_elif = (
                isinstance(node, ast.If)
                and field == "orelse"
                and isinstance(child, ast.If)
                and len(children) == 1
            )
            deeper = isinstance(child, _BLOCKS) and not is_elif
            deepest = max(deepest, depth(child, level + deeper))

    return deepest


def test_files_are_short(modules):
    """A file of one idea fits in one sitting."""
    long = [module.name for module in modules if module.text.count("\n") > MAX_FILE_LINES]
    assert [name for name in long if name not in LONG] == []


def test_functions_are_short(modules):
    """No function is longer than a screen and a half, its documentation apart."""
    long = [
        f"{module.name}:{name}"
        for module in modules
        for name, node in functions(module.tree)
        if _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) else 0) > MAX_FUNCTION_LINES
    ]
    assert long == []


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_nesting_is_shallow(modules):
    """The ordinary path is the least indented one."""
    deep = [
        f"{module.name}:{name}"
        for module in modules
        for name, node in functions(module.tree)
        if depth(node) > MAX_NESTING
    ]
    assert deep == []


def test_parameters_are_few(modules):
    """More than six become an object of their own, except where they are the public interface."""
    wide: set[str] = set()

    for module in modules:
        for name, node in functions(module.tree):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len([argument for argument in arguments if argument.arg not in ("self", "cls")])

            if count > MAX_PARAMETERS and module.name != _RAW:
                wide.add(f"{module.name}:{name}")

    assert wide == WIDE


def test_classes_have_few_methods(modules):
    """A class is one thing."""
    big = {
        f"{module.name}:{node.name}"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and _verbs(node) > MAX_METHODS
    }
    assert big == BIG


def _verbs(node: ast.ClassDef) -> int:
    return len([item for item in node.body if isinstance(item, _FUNCTIONS) and not _is_small(item)])


def _is_small(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A property, an overload or a special method: no verb of its own."""
    names = {getattr(item, "id", getattr(item, "attr", "")) for item in node.decorator_list}
    return node.name.startswith("__") or bool(names & {"property", "cached_property", "overload"})
