"""A Mac's side: the client and the command line, where Python has none of what only Linux has.

No Mac is at hand. A process takes away the names that `socket`, `os` and `signal` have on Linux alone, says that it is
darwin on arm64, and has nothing of /proc in what it imports; what macOS does differently otherwise is not seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Of typeshed's stubs: what stands there under `sys.platform == "linux"`, as far as any module here names it.
AS_A_MAC = """
import os, platform, signal, socket, sys, types

GONE = {
    os: "pidfd_open memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING sched_getaffinity sched_setscheduler setxattr getxattr "
    "setresuid getresuid eventfd splice posix_fadvise copy_file_range O_PATH O_TMPFILE",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGRTMIN",
    socket: "TCP_KEEPIDLE TCP_USER_TIMEOUT SO_PEERCRED SO_PASSCRED SCM_CREDENTIALS SOCK_CLOEXEC SOCK_NONBLOCK "
    "MSG_CMSG_CLOEXEC AF_NETLINK AF_PACKET AF_VSOCK",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

# As macOS has it; the kernel here knows that number by another name.
socket.TCP_KEEPALIVE = 4
proxies = sys.modules["_scproxy"] = types.ModuleType("_scproxy")
proxies._get_proxies = proxies._get_proxy_settings = dict
sys.platform = "darwin"
platform.machine = lambda: "arm64"
from fumehood.cli.start import main

if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    sys.exit(main())
"""


def on_a_mac(*words: str, cwd: Path | None = None, **envs: str) -> subprocess.CompletedProcess[str]:
    """Runs a command there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    return subprocess.run(
        [sys.executable, "-c", AS_A_MAC, *words],
        env=kept | envs,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_mac_uses_the_sandboxes_of_a_server(server, tmp_path):
    """By the command line and by the library, with files both ways."""
    (tmp_path / "in.csv").write_text("1")
    at = {"FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token}
    code = "print(open('in.csv').read()); open('/mnt/data/out.csv', 'w').write('2');"
    done = on_a_mac("run", "--file", "in.csv", "--output", "out", "-c", code, cwd=tmp_path, **at)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert (tmp_path / "out" / "out.csv").read_text() == "2"
    library = "from fumehood import Sandbox\nwith Sandbox() as s: print(s.run_code('6 * 7').text)"
    done = on_a_mac("-c", library, **at)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert on_a_mac("ps", **at).returncode == 0


def test_a_mac_prints_what_starts_a_server():
    """Without a web framework or anything of Linux."""
    done = on_a_mac("serve", "--print-docker")
    assert (done.returncode, done.stderr) == (0, "")
    assert "docker run" in done.stdout


@pytest.mark.parametrize("words", [["run", "-c", "1"], ["doctor"], ["repl"], ["demo"]])
def test_without_a_server_a_mac_is_reported_the_way(words):
    """Instead of a name that its Python lacks."""
    done = on_a_mac(*words)
    assert (done.returncode, done.stdout) == (70, "")
    assert "sandboxes need Linux, and this is darwin" in done.stderr
    assert 'eval "$(fumehood serve --print-docker | sh)"' in done.stderr
    assert "Traceback" not in done.stderr
