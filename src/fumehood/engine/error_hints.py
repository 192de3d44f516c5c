"""What the sandbox lacks for code that has failed, and how its maker gives it: time, memory, a package, a network.

Runs in the host process, on the engine's loop; pure. Every way to a sandbox shows this one hint: `error.hint` of Python
and HTTP. What a call was denied is explained by `host_faults`. Text of the guest chooses among the sentences here, and
only the name of a module and the path of a file enter one, never as something to install.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fumehood.values.execution import ExecutionError
from fumehood.values.failure_signs import is_unreached, similar_file
from fumehood.values.known_packages import package_of
from fumehood.values.network import Network

_STOPPED = {
    "time_limit": "a larger `timeout` of the execution, or `limits.wall_seconds` of the sandbox, allows more time",
    "cpu_limit": "a larger `limits.cpu_seconds` of the sandbox allows more",
    "out_of_memory": "a larger `limits.memory_bytes` of the sandbox allows more",
}
# With a dot, the package is there and has no such part.
_MISSING = re.compile(r"No module named '([A-Za-z_]\w{0,100})'", re.ASCII)
_EXITED = "it ends this call only, as the end of a program would; the variables are kept"
_NO_ROOT = "no process in a sandbox is root: what needs root is done when a template is built"
# Programs for which a process has to be root.
_NO_PROGRAM = re.compile(r"\[Errno 2\] No such file or directory: '(sudo|su|doas|apt|apt-get)'")

# A shell's status for a command that it has not found, of `%%bash` and of a cell in bash.
_NOT_FOUND = re.compile(r"(?:returned non-zero exit status|ended with status) 127\.?$")
_SHELLS_ERRORS = ("CalledProcessError", "ExitCode")


def with_hint(error: ExecutionError, network: Network) -> ExecutionError:
    """Return an error with a hint, if it has none yet and one is known.

    Args:
        error: The error of the code.
        network: What the sandbox can reach.
    """
    hint = "" if error.hint else _hint_of(error, network)
    return replace(error, hint=hint) if hint else error


def _hint_of(error: ExecutionError, network: Network) -> str:
    if error.kind != "exception":
        return _STOPPED.get(error.kind, "")

    if error.name == "ModuleNotFoundError":
        found = _MISSING.fullmatch(error.value)
        return "" if found is None else _about_module(found[1], network)

    if error.name == "FileNotFoundError" and (found := _NO_PROGRAM.fullmatch(error.value)):
        return f"there is no {found[1]!r}, and {_NO_ROOT}"

    if error.name in _SHELLS_ERRORS and _NOT_FOUND.search(error.value[-100:]):
        return f"a command was not found. Of sudo, apt and their like: {_NO_ROOT}"

    if meant := similar_file(error.name, error.traceback):
        return f"did you mean {meant}?"

    if error.name == "SystemExit":
        return _EXITED

    if is_unreached(error.name, error.value):
        return _about_network(network)

    return ""


def _about_module(name: str, network: Network) -> str:
    package = package_of(name)
    can_install = network.internet or "pip" in network.presets

    if not package:
        installed = (
            "`%pip install`" if can_install else "a template, or from `%pip install` with the network 'pip'"
        )
        return (
            f"there is no module {name!r}: a file of yours is to be uploaded; a package comes from {installed}, under "
            "the name that its project gives it"
        )

    if can_install:
        return f"the template has no package {package!r}: `%pip install {package}` installs it"

    return (
        f"the template has no package {package!r}: upload it, take a template with it, or make the sandbox with the "
        f"network 'pip' and run `%pip install {package}`"
    )


def _about_network(network: Network) -> str:
    if network.level == "none":
        return "the sandbox has no network: make it with one, such as 'pip' or the names of hosts"

    if network.level in ("pip", "listed"):
        return "the sandbox reaches only what its network rules list: the host may not be among them"

    return "the sandbox reaches public addresses on ports 80 and 443 alone"
