"""Settings of the whole test suite: under CI=true nothing is skipped in silence.

A test skipped because something is missing looks like one that passed. On a developer's machine that is a convenience,
in CI it is a hole. There a skip fails, unless its reason begins with one of the lines of CANNOT_EXIST_HERE: each names
what a kind of machine cannot have and no installation step could bring.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import left_out, tls_contexts
from tests.forked import ForkedCommand
from tests.part_times import PartTimes
from tests.tied import tied
from tests.time_limits import TimeLimits

from fumehood.values.template import DEFAULT_PRELOAD

CANNOT_EXIST_HERE = (
    "needs cgroup v1",
    "needs cgroup v2",
    "needs arm64",
    "needs x86-64",
    "needs Landlock ABI",
    "needs root",
    "needs an ordinary user",
    "needs a disk",
    "needs a file system",
    # What takes minutes of downloads has a target of its own.
    "downloads a Debian",
    "needs buildah",
)


# No test leaves a process behind that keeps sandboxes ready for `fumehood run`; those of that process start their own.
os.environ.setdefault("FUMEHOOD_DAEMON", "0")

# Grammars of addresses, which jsonschema would compile at its import for a second, and no schema here asks for.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# How long an example takes says nothing about it, and much about what else runs. They are other ones in each run, so
# that few are enough for one. Environments of frameworks have no hypothesis.
with contextlib.suppress(ImportError):
    import hypothesis

    _EXAMPLES = 300 if os.environ.get("EVERY_CASE") else 30
    hypothesis.settings.register_profile(
        "any pace", hypothesis.settings(), deadline=None, max_examples=_EXAMPLES
    )
    hypothesis.settings.load_profile("any pace")


# What servers import beforehand whose sandboxes draw or compute, as those of users do.
PRELOAD = ",".join(DEFAULT_PRELOAD)

# Run by themselves, after all others and in this order: what forks the test process, which must have one thread then,
# and what looks at the whole machine or uses all of it. Everything else runs in several processes at once.
SERIAL = (
    "tests/unit/jail/",
    "tests/unit/test_portal.py",
    "tests/attacks/test_resources.py",
    "tests/attacks/test_floods",
    "tests/integration/test_faults.py",
    "tests/integration/test_start_faults.py",
    "tests/server/test_floods.py",
    "tests/soak/",
)


# Files that take longest come first: one of them as the last would keep the other processes waiting.
LONG = (
    "tests/integration/test_template_builds.py",
    "tests/cluster/",
    "tests/integration/test_frameworks.py",
    "tests/server/test_openapi.py",
    "tests/integration/test_cli.py",
    "tests/server/test_host_daemon.py",
    "tests/server/test_shutdown.py",
    "tests/server/test_dialect_shutdown.py",
    "tests/integration/test_examples.py",
    "tests/mcp/",
    "tests/contract/",
    "tests/dialects/",
    "tests/llm/",
)


def pytest_configure(config: pytest.Config) -> None:
    """Say where the time went, let a time-out fail one test, and let the programs of tests be interrupted."""
    # A shell starts what runs in the background with SIGINT ignored, and each program that a test starts inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # And nohup does so with SIGHUP.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    config.pluginmanager.register(PartTimes(), "part times")
    config.pluginmanager.register(TimeLimits(), "time limits")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what does not run by itself, when that is all that was asked for: reading it takes long."""
    is_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS

    if not config.option.markexpr.startswith("serial") or not is_all or collection_path.is_dir():
        return None

    path = collection_path.relative_to(config.rootpath).as_posix()
    return True if path.endswith(".py") and not path.startswith(SERIAL) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what runs by itself, and bring forward what takes long or may find no other thread."""
    paths = {item: item.path.relative_to(config.rootpath).as_posix() for item in items}

    for item, path in paths.items():
        if path.startswith(SERIAL):
            item.add_marker("serial")

    places = {
        item: [not path.startswith(early) for early in (*SERIAL, *LONG)] for item, path in paths.items()
    }
    items.sort(key=places.__getitem__)
    is_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    left_out.mark(items, is_whole=is_all and not config.option.markexpr.startswith("serial"))


def pytest_collection_finish() -> None:
    """Take what collection has made out of sight of the garbage collector: there is much of it, and none is garbage.

    Each full collection, those that tests ask for included, would look at all of it, and each fork would copy it. And
    what has been imported by now are all HTTP clients that tests have.
    """
    tls_contexts.share()
    gc.collect()
    gc.freeze()


def _fail_a_refused_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return

    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")

    if not reason.startswith(CANNOT_EXIST_HERE):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped under CI=true, and the reason is not on the list of tests/conftest.py: {reason}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skipped itself for a component CI should have."""
    report = yield
    _fail_a_refused_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a whole module that skipped itself for a component CI should have."""
    report = yield
    _fail_a_refused_skip(report)
    return report


class RunningHost:
    """A real `fumehood host` in a process of its own, on a socket and with a state folder of its own.

    Unless a flag says otherwise it preloads nothing, which is most of what a start takes.

    Args:
        folder: Where both lie.
        is_older: Whether it is one of an earlier version: `tests/older_host.py`.
        flags: Settings, such as `max_sandboxes=5`.
    """

    def __init__(self, folder: Path, *, is_older: bool = False, **flags: object) -> None:
        self.folder = folder
        self.socket = folder / "run" / "host.sock"
        given = {
            "socket": self.socket,
            "state_folder": folder / "state",
            "pool_size": 0,
            "preload": "",
            **flags,
        }
        envs = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
        self.process: Any = (
            _older_host(_flags(given), envs) if is_older else ForkedCommand(["host", *_flags(given)], envs)
        )
        self.said: list[str] = []
        assert self.process.stderr is not None

        for line in self.process.stderr:
            self.said.append(line)

            if "listens on" in line or '"host.started"' in line:
                break

        # What it says later must be read, or it would wait for us.
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def stop(self) -> int:
        """End it gracefully and return its exit code."""
        return _stop(self.process, self._reader)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)


def _older_host(words: list[str], envs: dict[str, str]) -> subprocess.Popen[str]:
    argv = tied([sys.executable, "-m", "tests.older_host", *words])
    return subprocess.Popen(argv, env=envs, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True)


class RunningServer:
    """A real `fumehood serve` in a process of its own, on a free port, with a state folder of its own.

    Unless a flag says otherwise it preloads nothing, which is most of what a start takes.

    Args:
        state: Its state folder.
        own_token: Let it make its own token, as at a user's first start.
        ready: Wait until it takes work.
        python: The interpreter that runs it.
        flags: Settings, such as `max_sandboxes=5`.
    """

    def __init__(
        self,
        state: Path,
        *,
        own_token: bool = False,
        ready: bool = True,
        python: str = sys.executable,
        **flags: object,
    ) -> None:
        self.state = state
        self.token = "" if own_token else "test-token-0123456789"
        words = ["serve", "--port", "0", *_flags({"preload": "", **flags})]
        envs = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
        envs |= {"FUMEHOOD_STATE_FOLDER": str(state), "FUMEHOOD_TOKEN": self.token}
        # Many tests send wrong tokens, all of them from one address.
        envs["FUMEHOOD_WRONG_TOKENS_PER_MINUTE"] = "0"
        state.mkdir(mode=0o700, exist_ok=True)
        self.process: ForkedCommand | subprocess.Popen[str] = (
            ForkedCommand(words, envs) if python == sys.executable else _started(python, words, envs)
        )
        self.said: list[str] = []
        self.url = self._address()
        # What it says later must be read, or it would wait for us.
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

        try:
            self._wait_until_open(ready)
        except OSError as error:
            self.process.kill()
            self.stop()
            raise AssertionError("the server did not start:\n" + "".join(self.said)) from error

        if own_token:
            self.token = (state / "token").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        """What a request of the owner brings."""
        return {"Authorization": f"Bearer {self.token}"}

    def stop(self) -> int:
        """End it gracefully and return its exit code."""
        return _stop(self.process, self._reader)

    def _address(self) -> str:
        assert self.process.stderr is not None

        for line in self.process.stderr:
            self.said.append(line)

            if found := re.search(r"(?:listens on |\"address\": \")(http://[^\s\"]+)", line):
                return found[1]

        self.process.stderr.close()
        self.process.wait(30)
        raise AssertionError("the server did not start:\n" + "".join(self.said))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def _wait_until_open(self, ready: bool) -> None:
        # It listens before it says where, so the first answer waits until all is open.
        path, deadline = "readyz" if ready else "healthz", time.monotonic() + 60

        while (told := self._told(path)) != "":
            if time.monotonic() > deadline:
                raise TimeoutError(told)

            time.sleep(0.02)

    def _told(self, path: str) -> str:
        """Returns what a probe says against it, and nothing when all is well."""
        try:
            with urllib.request.urlopen(f"{self.url}/{path}", timeout=60):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _started(python: str, words: list[str], envs: Mapping[str, str]) -> subprocess.Popen[str]:
    argv = [python, "-m", "fumehood", *words]
    return subprocess.Popen(tied(argv), env=envs, stderr=subprocess.PIPE, text=True)


def _stop(process: ForkedCommand | subprocess.Popen[str], reader: threading.Thread) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)

    code = process.wait(30)
    reader.join(30)
    assert process.stderr is not None
    process.stderr.close()
    return code


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that need nothing special of it."""
    running = RunningServer(
        tmp_path_factory.mktemp("server"), pool_size=2, max_network="listed", preload=PRELOAD
    )
    yield running
    running.stop()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with settings of their own; each is ended after the test."""
    started: list[RunningServer] = []

    def start(state: Path | None = None, **flags: object) -> RunningServer:
        folder = state or tmp_path / f"state{len(started)}"
        started.append(RunningServer(folder, **flags))
        return started[-1]

    yield start

    for running in started:
        running.stop()


@pytest.fixture
def start_host(tmp_path: Path) -> Iterator[Callable[..., RunningHost]]:
    """Starts host daemons; each is ended after the test."""
    started: list[RunningHost] = []

    def start(folder: Path | None = None, **flags: object) -> RunningHost:
        place = folder or tmp_path / f"host{len(started)}"
        place.mkdir(mode=0o700, exist_ok=True)
        started.append(RunningHost(place, **flags))
        return started[-1]

    yield start

    for running in started:
        running.stop()
