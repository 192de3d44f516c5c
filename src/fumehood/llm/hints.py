"""One line for the model about its next step, for each common failure of code.

Runs in the user's process; pure functions over an `ExecutionError` and the state of the sandbox. A hint states only
facts about this sandbox; guest text never enters it, except for the path in the engine's own message about a denied
access.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from dataclasses import dataclass, field

from fumehood import ExecutionError, Network

_NETWORK_NAMES = frozenset(
    (
        "ClientConnectorError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "ConnectionRefusedError",
        "HTTPError",
        "MaxRetryError",
        "NameResolutionError",
        "NewConnectionError",
        "ProxyError",
        "SSLError",
        "URLError",
        "gaierror",
    )
)
_NETWORK_WORDS = (
    "name resolution",
    "Network is unreachable",
    "Name or service not known",
    "No route to host",
)
# Follows the hint when the variables are gone.
LOST = "All variables of earlier calls are gone, files are kept: import, load and define again what you need."
NOT_INSTALLABLE = "Nothing can be installed here: use another package or the standard library."
_FRAMES_CHARS = 4_000
# These start a program, and fail when it is missing or refused.
_PROGRAM = re.compile(r"\b(?:_execute_child|posix_spawnp?|execv[pe]{0,2}|execl[pe]{0,2})\b")
_NO_PROGRAM = (
    "There is no such program here (shutil.which(NAME) tells), and no root to install one with sudo or apt: use a "
    "package of Python, or a program that is there."
)
_NOT_EXECUTABLE = (
    "The file may not be executed: give it to its interpreter (bash FILE, python FILE), or os.chmod it first."
)
# The path in the message of a FileNotFoundError, bounded since it is compared with others.
_PATH = re.compile(r"'([^']{1,300})'$")
_MAX_SHOWN_FILES = 10
# The guest's line about the keys of a table, in place of a hint to look for them.
_KEYS_MARK = "\nThere are: "
_READ_ONLY = "Read-only file system"
_IN_REACH = re.compile(r"'(?:/mnt/data|/home/user)/[^']{1,300}'$")
_INSTALLS = re.compile(r"\bpip3?\s+(?:install|download)\b")
_WAITS = re.compile(r"\b(?:sleep|wait|recv|accept|acquire|urlopen|input)\(|\bjoin\(\)")
_SIGNAL = re.compile(r"\(signal (SIG[A-Z0-9]+)\)")
_CRASHES = frozenset(("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP"))
_MARKED = re.compile(r"^-+> \d+ (.{1,300})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about the sandbox that hints may state.

    Attributes:
        network: What can be reached.
        files: Paths of existing files, for code that missed one; each fit to be shown.
        memory: Its memory, as people write it.
        to_install: How a missing package is installed, where the model has tools for it; empty: as `network` allows.
        to_reach: How more of the network is reached, where the model has tools for it.
    """

    network: Network = field(default_factory=Network)
    files: tuple[str, ...] = ()
    memory: str = ""
    to_install: str = ""
    to_reach: str = ""


def hint_for(error: ExecutionError, around: Surroundings, code: str = "") -> str:
    """Return one line about the next step; empty when the message alone says it.

    Args:
        error: The error.
        around: The facts about the sandbox.
        code: The code that was run.
    """
    if error.kind != "exception":
        return _stopped(error, around, code)

    if error.name == "ModuleNotFoundError" or error.name == "ImportError":
        return _missing_module(around)

    if is_about_network(error):
        return around.to_reach or _unreachable(around.network)

    if error.name == "PermissionError" and _IN_REACH.search(error.value):
        return "That file is read-only: write to a file of another name."

    if _READ_ONLY in error.value:
        return _BY_NAME["PermissionError"]

    if error.hint:
        # The engine knows the reason and has given a hint.
        return f"{error.hint[0].upper()}{error.hint[1:]}."

    if error.name in ("FileNotFoundError", "PermissionError") and _PROGRAM.search(error.traceback):
        return _NO_PROGRAM if error.name == "FileNotFoundError" else _NOT_EXECUTABLE

    if error.name == "FileNotFoundError":
        return _missing_file(error.value, around.files)

    if error.name == "KeyError" and _KEYS_MARK in error.traceback:
        return ""

    return _BY_NAME.get(error.name, "")


def installs(code: str) -> bool:
    """Tell whether code installs packages with pip."""
    return _INSTALLS.search(code) is not None


def is_about_network(error: ExecutionError) -> bool:
    """Tell whether an error seems to be that an address was not reached."""
    return error.name in _NETWORK_NAMES or any(word in error.value for word in _NETWORK_WORDS)


_BY_NAME = {
    "NameError": "A name exists only after a call that defined it has succeeded: define or import it in this call.",
    "SyntaxError": "Nothing of this code was run. Correct it and send all of it again.",
    "IndentationError": "Nothing of this code was run. Correct it and send all of it again.",
    "TabError": "Nothing of this code was run. Correct it and send all of it again.",
    "UnicodeDecodeError": "It is no UTF-8: name its encoding, such as encoding='latin-1', or read it as bytes.",
    "KeyError": "Print what is there first, such as df.columns or list(d), and use a name from it.",
    "EOFError": "There is no standard input here: write the values into the code in place of input().",
    "MemoryError": "Work on less at a time: read in chunks, take only the columns you need, del what is done with.",
    "RecursionError": "Check that the recursion ends, or write it as a loop.",
    "SystemExit": "It ends this call only, and variables stay.",
    "PermissionError": "Write below /mnt/data or /home/user; the rest of the system is read-only.",
}


def _stopped(error: ExecutionError, around: Surroundings, code: str) -> str:
    match error.kind:
        case "time_limit" if installs(code):
            return _missing_module(around)
        case "time_limit" if _WAITS.search(_last_marked_line(error.traceback)):
            return "It was waiting, not computing: wait for less in one call, and look again in the next."
        case "time_limit" | "cpu_limit":
            return (
                "Do less in one call: try it on a small part first, use vectorised operations, or go on in "
                "several calls that keep their results in variables."
            )
        case "out_of_memory":
            within = f" within {around.memory}" if around.memory else ""
            return f"Work on less at a time{within}: read in chunks, take only the columns you need."
        case "context_died" if error.hint:
            return f"{error.hint[0].upper()}{error.hint[1:]}."
        case "context_died":
            return _ended_process(error.value)
        case _:
            return ""


def _ended_process(value: str) -> str:
    """Return the next step when the process of the code has ended; `value` is the engine's sentence about how."""
    signal = _SIGNAL.search(value)

    if signal is not None and signal[1] in _CRASHES:
        return (
            "Compiled code has crashed: a library, or what was called by ctypes. Find the call with a small input, and "
            "do it in another way."
        )

    if signal is not None:
        return (
            "Do not send signals to the process of the code (os.kill, signal.alarm); end a call by returning."
        )

    return (
        "Do not end the process (os._exit(), os.execv()), and do not close descriptors that the code has not opened "
        "(os.closerange()); to end a call early use sys.exit()."
    )


def _last_marked_line(traceback: str) -> str:
    lines = _MARKED.findall(traceback[-_FRAMES_CHARS:])
    return lines[-1] if lines else ""


def _missing_file(value: str, files: tuple[str, ...]) -> str:
    """Return the file that seems to be meant, or those that are there; `value` is the message of the error."""
    missed = _PATH.search(value)
    names = {posixpath.basename(path).lower(): path for path in files}
    meant = difflib.get_close_matches(posixpath.basename(missed[1]).lower(), names, n=1) if missed else []

    if meant:
        return f"Did you mean {names[meant[0]]}?"

    shown = ", ".join(files[:_MAX_SHOWN_FILES]) or "none yet"
    more = f", and {len(files) - _MAX_SHOWN_FILES:,} more" if len(files) > _MAX_SHOWN_FILES else ""
    return f"Files that are there: {shown}{more}."


def _missing_module(around: Surroundings) -> str:
    if around.to_install:
        return around.to_install

    if around.network.internet or "pip" in around.network.presets:
        return "Install it with %pip install NAME in a call of its own, or use a package that is there."

    return NOT_INSTALLABLE


def _unreachable(network: Network) -> str:
    match network.level:
        case "none":
            return "This sandbox has no network: use files that are there, or ask the user for them."
        case "pip" | "listed":
            return (
                "This sandbox reaches only what its network policy lists. Do not try other addresses; ask the user to "
                "upload the data."
            )
        case _:
            return "Check the address; only public addresses on ports 80 and 443 can be reached."
