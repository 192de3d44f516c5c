"""Code that a wall or a limit has stopped is told which, as advice beside its own error."""

from __future__ import annotations

from fumehood import ErrorEvent, Limits

LIMITS = Limits(processes=40, inodes=512, disk_bytes=64 << 20)
MOUNT = (
    "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "if libc.mount(b'a', b'/tmp', b'tmpfs', 0, None): raise OSError(ctypes.get_errno(), 'Operation not permitted')"
)
FAILURES = {
    "open('/etc/x', 'w')": "can write only below /home/user",
    "import os; os.chroot('/tmp')": "the sandbox refuses `chroot`",
    "import socket; socket.sethostname('x')": "the sandbox refuses `sethostname`",
    MOUNT: "the sandbox refuses `mount`",
    "for n in range(2000): open(f'/tmp/{n}', 'w').close()": "`limits.inodes`",
    "held = []\nwhile True: held.append(open('/dev/null'))": "`limits.open_files`",
    "import threading as t, time\nfor n in range(300): t.Thread(target=time.sleep, args=(2,), daemon=True).start()": (
        "`limits.processes`"
    ),
}


def test_what_stood_in_the_way_is_said(face):
    sandbox = face.open(limits=LIMITS)
    hints = {code: sandbox.run_code(code).error.hint for code in FAILURES}
    assert [code for code, words in FAILURES.items() if words not in hints[code]] == []
    assert sandbox.run_code("1 / 0").error.hint == ""
    # Limits of the whole sandbox are events too, by the code's own word.
    assert sandbox.get_metrics().security_events["limit_hit"] == 3
    sandbox.run_code("held.clear()")
    assert sandbox.run_code("while True: pass", timeout=0.2).error.hint.startswith(
        "a larger `timeout` of the"
    )
    assert "there is no module 'nosuch'" in sandbox.run_code("import nosuch.part").error.hint
    fetching = "import urllib.request as u; u.urlopen('https://example.com')"
    assert sandbox.run_code(fetching).error.hint.startswith("the sandbox has no network: make it with one")


def test_it_comes_with_the_event_and_with_a_death_by_the_filter(sync_face):
    sandbox = sync_face.open()
    events = [event for event in sandbox.stream_code("open('/usr/x', 'w')") if isinstance(event, ErrorEvent)]
    assert "/usr/x" in events[0].error.hint
    died = sandbox.run_code("import os, signal; os.kill(os.getpid(), signal.SIGSYS)").error
    assert died.kind == "context_died"
    assert "the system call filter" in died.hint
