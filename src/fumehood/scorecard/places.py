"""The places of the attacker's program: every kind of process in a sandbox, and programs of the host.

Runs in the user's process and starts the processes there. It copies the program, starts it and parses the JSON that it
prints; the output is bounded by the sandbox's own limits and is judged elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Protocol

from fumehood.api.sandbox import Sandbox
from fumehood.values.guest_paths import HOME_PATH
from fumehood_jail import call_numbers, seccomp

# A batch maps a key to the name of a probe and its arguments.
Plan = Mapping[str, tuple[str, Sequence[Any]]]
KINDS = ("context", "child", "command", "pty", "task")
_SECONDS = 60.0
_BUBBLEWRAP = (
    "--unshare-all --die-with-parent --new-session --clearenv --cap-drop ALL --uid 1000 --gid 1000 --hostname sandbox "
    "--ro-bind /usr /usr --proc /proc --dev /dev --tmpfs /tmp --tmpfs /var"
)
_CELLS = {
    "context": "import attack.report\nprint('<<' + attack.report.report({name!r}, *{arguments!r}) + '>>')",
    "child": (
        "import subprocess\n"
        "print(subprocess.run({words!r}, stdout=subprocess.PIPE, text=True, check=True).stdout)"
    ),
    "task": (
        "import asyncio, attack.report\n"
        "async def attack_in_a_task():\n"
        "    return attack.report.report({name!r}, *{arguments!r})\n"
        "print('<<' + await asyncio.create_task(attack_in_a_task()) + '>>')"
    ),
}


def program() -> dict[str, bytes]:
    """Return the files of the attacker's program, by their names in its folder `attack`."""
    sources = files("fumehood.scorecard").joinpath("attack").iterdir()
    found = {source.name: source.read_bytes() for source in sources if source.name.endswith(".py")}

    with open(os.path.join(seccomp.POLICIES, f"syscalls_{call_numbers.MACHINE}.json"), "rb") as file:
        found["numbers.json"] = file.read()

    return found


class AttackTarget(Protocol):
    """A place in which the program runs.

    Attributes:
        name: Its column of the card.
        kinds: The kinds of processes that there are.
        home: The path of its writable folder inside.
    """

    name: str
    kinds: tuple[str, ...]
    home: str

    def probe(self, kind: str, name: str, *arguments: Any) -> Any:
        """Run one probe and return its result."""

    def write(self, name: str, content: bytes) -> None:
        """Put a file beside the program."""

    def start(self, words: list[str]) -> Callable[[], object]:
        """Start a program in the background; return a function that ends it, and in a sandbox everything else too."""


def run_batch(place: AttackTarget, kind: str, plan: Plan) -> dict[str, Any]:
    """Run many probes in one process; each returns its result, or why it could not run."""
    place.write("plan.json", json.dumps(plan).encode())
    found: dict[str, Any] = place.probe(kind, "batch", f"{place.home}/attack/plan.json")
    return found


class SandboxPlace:
    """A sandbox of this product.

    Args:
        sandbox: The sandbox, with its public interface.
        is_set_up: Whether the program is there already.
    """

    name = "fumehood"
    kinds: tuple[str, ...] = KINDS
    home = HOME_PATH

    def __init__(self, sandbox: Sandbox, *, is_set_up: bool = False) -> None:
        self.sandbox = sandbox

        for name, content in ({} if is_set_up else program()).items():
            self.write(name, content)

    def write(self, name: str, content: bytes) -> None:
        """Put a file beside the program."""
        self.sandbox.files.write(f"{HOME_PATH}/attack/{name}", content)

    def start(self, words: list[str]) -> Callable[[], object]:
        """Start a command in the background; return a function that kills the sandbox."""
        self.sandbox.commands.run(words, background=True)
        return self.sandbox.kill

    def probe(self, kind: str, name: str, *arguments: Any) -> Any:
        """Run one probe in one kind of process."""
        words = ["python3", "-m", "attack", name, json.dumps(arguments)]

        if kind == "command":
            return read_answer(self.sandbox.commands.run(words, timeout=_SECONDS).stdout)

        if kind == "pty":
            return read_answer(self._type(words))

        code = _CELLS[kind].format(name=name, arguments=arguments, words=words)
        execution = self.sandbox.run_code(code, timeout=_SECONDS)

        if execution.error is not None:
            raise RuntimeError(f"{execution.error.name}: {execution.error.value}")

        return read_answer("".join(execution.logs.stdout))

    def _type(self, words: list[str]) -> str:
        quoted = " ".join(f"'{word}'" for word in words)
        terminal = self.sandbox.pty.create(cols=200)
        terminal.send(f"exec {quoted}\n")
        return b"".join(terminal).decode("utf-8", "replace")


class ProgramPlace:
    """A process of the host, alone or started by another program.

    Args:
        name: Its column of the card.
        folder: An empty folder of the host, for the program and its files.
        wrapper: The command before that of the interpreter.
        home: The path of the folder inside.
        envs: Its environment, beside that of this process.
    """

    kinds: tuple[str, ...] = ("process",)

    def __init__(
        self,
        name: str,
        folder: str,
        *,
        wrapper: Sequence[str] = (),
        home: str = "",
        envs: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.home = home or folder
        self.folder = folder
        self.wrapper = tuple(wrapper)
        self._envs = envs

        for file_name, content in program().items():
            self.write(file_name, content)

    def write(self, name: str, content: bytes) -> None:
        """Put a file beside the program."""
        path = os.path.join(self.folder, "attack", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)

        with open(path, "wb") as file:
            file.write(content)

    def start(self, words: list[str]) -> Callable[[], object]:
        """Start a program in the background; return a function that ends it."""
        started = subprocess.Popen(
            [*self.wrapper, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
        )

        def end() -> None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()

        return end

    def probe(self, kind: str, name: str, *arguments: Any) -> Any:
        """Run one probe."""
        return self.probe_with((), name, *arguments)

    def probe_with(self, pass_fds: Sequence[int], name: str, *arguments: Any) -> Any:
        """Run one probe that inherits descriptors."""
        words = [*self.wrapper, sys.executable, "-m", "attack", name, json.dumps(arguments)]
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
            cwd=self.folder,
            pass_fds=pass_fds,
            env=None if self._envs is None else dict(self._envs),
            timeout=_SECONDS,
        )

        if done.returncode != 0:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")

        return read_answer(done.stdout)


def bubblewrap(folder: str) -> ProgramPlace | None:
    """Return bubblewrap with its documented options, as strict as options alone make it; None: not installed.

    All namespaces, an empty environment, no capabilities, a user of its own, a new session; the system and the
    interpreter read-only, everything else in memory.
    """
    found = shutil.which("bwrap")

    if found is None:
        return None

    wrapper = [found, *_BUBBLEWRAP.split()]

    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        if os.path.islink(f"/{name}"):
            wrapper += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            wrapper += ["--ro-bind", f"/{name}", f"/{name}"]

    for path in ("/etc/hosts", "/etc/ld.so.cache"):
        wrapper += ["--ro-bind-try", path, path]

    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
        if not prefix.startswith("/usr/") and prefix != "/usr":
            wrapper += ["--ro-bind", prefix, prefix]

    wrapper += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", HOME_PATH]
    wrapper += ["--bind", folder, HOME_PATH, "--chdir", HOME_PATH, "--"]
    return ProgramPlace("bubblewrap", folder, wrapper=wrapper, home=HOME_PATH)


def read_answer(text: str) -> Any:
    """Parse the last line of JSON that the program has printed.

    A terminal echoes its input, so the last one counts; it may also have wrapped the line.
    """
    found = re.findall(r"<<(.*?)>>", text.replace("\r", "").replace("\n", ""))

    if not found:
        raise RuntimeError(f"the program printed no answer: {text[-300:]!r}")

    return json.loads(found[-1])
