"""Security events: what code does that somebody may want to know of, told as it happens, and what rules make of it."""

from __future__ import annotations

import queue

import pytest
from tests.waiting import until

from fumehood import (
    InvalidArgumentError,
    Limits,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxPausedError,
    SecurityEvent,
    SecurityRule,
)

DENIED = "import urllib.request\nurllib.request.urlopen('http://example.com/')"
MOUNT = (
    "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "if libc.mount(b'a', b'/tmp', b'tmpfs', 0, None): raise OSError(ctypes.get_errno(), 'refused')"
)
DESCRIBED = {"unusual_program": 1, "egress_denied": 1, "limit_hit": 1}


class Heard:
    """What a callback was told, to be waited for."""

    def __init__(self) -> None:
        self._events: queue.Queue[SecurityEvent] = queue.Queue()

    def __call__(self, event: SecurityEvent) -> None:
        self._events.put(event)

    def next(self, sandbox) -> SecurityEvent:
        """The next one; the loop of an AsyncSandbox runs meanwhile, with a call that changes nothing."""
        for _ in range(1000):
            try:
                return self._events.get(timeout=0.02)
            except queue.Empty:
                sandbox.is_running()

        raise AssertionError("no event came")


def test_events_are_reported_counted_and_typed(face):
    heard = Heard()
    sandbox = face.open(on_security_event=heard, limits=Limits(grace_seconds=0.3))
    sandbox.commands.run("/usr/bin/env true; nmap 127.0.0.1 || true")
    sandbox.run_code(DENIED)
    sandbox.run_code("while True: pass", timeout=0.3)
    program, denied, limit = (heard.next(sandbox) for _ in range(3))
    assert (program.kind, program.severity, program.advice) == ("unusual_program", "info", True)
    assert "nmap" in program.detail
    assert isinstance(program.process_id, int)
    assert (denied.kind, denied.severity, denied.advice) == ("egress_denied", "warning", False)
    assert "example.com:80" in denied.detail
    assert denied.sandbox_id == sandbox.id
    assert (limit.kind, limit.count, limit.action) == ("limit_hit", 1, "record")
    assert sandbox.get_metrics().security_events == DESCRIBED


def test_a_refused_system_call_is_reported_and_written(face):
    """The kernel refuses it, and tells the host of it: code has no say in that."""
    heard = Heard()
    sandbox = face.open(on_security_event=heard)
    execution = sandbox.run_code(MOUNT)
    assert execution.error.name == "PermissionError"
    event = heard.next(sandbox)
    assert (event.kind, event.severity, event.advice) == ("refused_call", "warning", False)
    assert "mount" in event.detail
    (entry,) = [entry for entry in sandbox.audit_log().entries if entry.kind == "refused_call"]
    assert entry.fields == {"call": "mount", "process": event.process_id}
    assert sandbox.get_metrics().security_events == {"refused_call": 1}


def test_a_rule_kills_at_its_count(face):
    heard = Heard()
    rules = [
        SecurityRule(kind="egress_denied", action="record"),
        SecurityRule(kind="egress_denied", action="kill", count=2),
    ]
    sandbox = face.open(on_security_event=heard, security_policy=rules)
    sandbox.run_code(DENIED)
    assert heard.next(sandbox).action == "record"

    with pytest.raises(SandboxClosedError) as closed:
        sandbox.run_code(DENIED)

    assert closed.value.reason == "policy"
    assert heard.next(sandbox).action == "kill"
    # Returns when nothing of it is left.
    sandbox.kill()
    log = sandbox.audit_log()
    assert log.entries[0].fields["security"]["rules"] == ["egress_denied 1 record", "egress_denied 2 kill"]
    assert [entry.kind for entry in log.entries if entry.kind in ("policy", "ended")] == ["policy", "ended"]
    assert log.entries[-1].fields["reason"] == "policy"


def test_a_rule_pauses(face):
    """What is paused can be looked at, and goes on when its owner says so."""
    sandbox = face.open(security_policy=[SecurityRule(kind="unusual_program", action="pause")])
    sandbox.run_code("x = 1")
    handle = sandbox.commands.run("nc -l 4444; sleep 60", background=True)
    assert handle.pid

    until(lambda: sandbox.get_info().state == "paused")

    with pytest.raises(SandboxPausedError):
        sandbox.run_code("x")

    sandbox.resume()
    assert sandbox.run_code("x").text == "1"


def test_storms_are_seen_where_figures_are_asked_for(face):
    heard = Heard()
    sandbox = face.open(on_security_event=heard, limits=Limits(processes=40, inodes=512))
    sandbox.run_code(
        "import subprocess\nsleepers = [subprocess.Popen(['sleep', '60']) for _ in range(30)]\n"
        "for n in range(400): open(f'/tmp/{n}', 'w').close()"
    )
    sandbox.get_metrics()
    storms = {heard.next(sandbox).kind, heard.next(sandbox).kind}
    assert storms == {"process_storm", "file_storm"}
    # As long as it lasts it is one storm.
    assert sandbox.get_metrics().security_events == {"process_storm": 1, "file_storm": 1}


def test_a_guest_that_breaks_the_wire_is_reported_as_that(face):
    heard = Heard()
    sandbox = face.open(on_security_event=heard)

    with pytest.raises(ProtocolViolationError):
        sandbox.run_code(
            "import os, socket, stat\n"
            "for fd in range(3, 64):\n"
            "    try:\n"
            "        if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b'\\xff' * 64)\n"
            "    except OSError: pass\n"
            "import time; time.sleep(5)"
        )

    event = heard.next(sandbox)
    assert (event.kind, event.severity) == ("protocol_violation", "danger")
    sandbox.kill()
    assert "breach" in sandbox.audit_log().entries[-1].fields


def test_what_cannot_be_a_rule_is_refused(sync_face):
    with pytest.raises(InvalidArgumentError, match="kind"):
        SecurityRule(kind="anything", action="kill")

    with pytest.raises(InvalidArgumentError, match="action"):
        SecurityRule(kind="limit_hit", action="shout")

    with pytest.raises(InvalidArgumentError, match="count"):
        SecurityRule(kind="limit_hit", action="kill", count=0)

    with pytest.raises(InvalidArgumentError, match="security_policy"):
        sync_face.open(security_policy=["kill"])


def test_a_callback_that_fails_is_logged_and_called_again(sync_face, caplog):
    calls = queue.Queue()

    def fail(event: SecurityEvent) -> None:
        calls.put(event.kind)
        raise ValueError("no")

    sandbox = sync_face.open(on_security_event=fail)
    sandbox.commands.run("nmap || true")
    sandbox.run_code(DENIED)
    assert [calls.get(timeout=20), calls.get(timeout=20)] == ["unusual_program", "egress_denied"]
    assert "callback=on_security_event" in caplog.text


def test_a_callback_may_use_the_sandbox(sync_face):
    """It runs in a thread of its own: what it asks does not wait for the call that goes on."""
    states = queue.Queue()

    def look(event: SecurityEvent) -> None:
        states.put(sandbox.get_info().state)
        sandbox.interrupt()

    sandbox = sync_face.open(on_security_event=look)
    execution = sandbox.run_code(
        "import urllib.request\ntry: urllib.request.urlopen('http://example.com/')\nexcept OSError: pass\n"
        "import time; time.sleep(30)"
    )
    assert execution.error.kind == "interrupted"
    assert states.get(timeout=20) == "running"


def test_interpreters_tell_what_code_does_when_they_are_asked_to(face):
    """What it starts, connects to, loads, and opens to write where it is not meant to; all of it advice."""
    heard = Heard()
    sandbox = face.open(telemetry=True, on_security_event=heard)
    sandbox.run_code(
        "import ctypes, os, socket, subprocess\n"
        "subprocess.run(['true', 'word\\x1b[2J'])\n"
        "for _ in range(3):\n"
        "    try: open('/etc/hosts', 'a')\n"
        "    except OSError: pass\n"
        "open('/tmp/mine', 'w').close(); open('/etc/passwd').close(); open(os.devnull, 'w').close()\n"
        "socket.socket().connect_ex(('127.0.0.1', 9))\n"
        "ctypes.CDLL(None)"
    )
    events = [heard.next(sandbox) for _ in range(4)]
    assert [event.detail for event in events] == [
        "subprocess.Popen true word\\x1b[2J",
        "open /etc/hosts (3 times)",
        "socket.connect ('127.0.0.1', 9)",
        "ctypes.dlopen None",
    ]
    assert {(event.kind, event.severity, event.advice) for event in events} == {("telemetry", "info", True)}
    assert all(isinstance(event.process_id, int) for event in events)
    # However much it does, so much is told of one execution.
    sandbox.run_code("for n in range(1000):\n    try: open(f'/etc/{n}', 'w')\n    except OSError: pass")
    assert sandbox.get_metrics().security_events == {"telemetry": 104}
    told = [entry for entry in sandbox.audit_log().entries if entry.kind == "telemetry"]
    assert told[0].fields["advice"] is True


LATER = """
import os, threading, time
def later():
    while not os.path.exists("/home/user/go"):
        time.sleep(0.01)
    os.system("true")
    os.mkdir("/home/user/done")
threading.Thread(target=later, daemon=True).start()
"""


def test_telemetry_is_off_unless_asked_for_and_can_be_evaded(sync_face):
    """Code that is not looked at by Python's own means leaves no trace in it: hence advice."""
    quiet = sync_face.open()
    quiet.run_code("import os; os.system('true')")
    assert quiet.get_metrics().security_events == {}
    told = sync_face.open(telemetry=True)
    told.run_code(LATER)
    told.files.write("/home/user/go", "")

    while not told.files.exists("/home/user/done"):
        pass

    # A thread that goes on after the cell is not listened to, and neither are child processes.
    told.run_code("import subprocess; subprocess.run(['sh', '-c', 'true; ls / > /dev/null'])")
    assert told.get_metrics().security_events == {"telemetry": 1}
