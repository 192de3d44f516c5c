"""F01 to F03, F11: what guest code finds in the file system, what it can change, and how much fits."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fumehood

IMMUTABLE = {"EROFS", "EACCES", "EPERM"}


@pytest.mark.parametrize("folder", ["/etc", "/usr/bin", "/opt/fumehood/fumehood_guest", "{prefix}"])
def test_f01_the_system_cannot_be_changed(folder, inside, outside, attacked):
    """No write, rename, link, truncate or chmod, also not through /proc/self/root or an open descriptor."""
    folder = folder.format(prefix=attacked.run("import os; print(os.path.dirname(os.__file__))").strip())
    said = inside("change_files", folder)
    said.pop("rename over", None)
    assert set(said.values()) <= IMMUTABLE, said

    control_folder = outside.folder / "system"
    control_folder.mkdir()
    (control_folder / "file").write_text("content")
    control = outside("change_files", str(control_folder))
    assert {name: answer for name, answer in control.items() if answer != "ok"} in (
        {},
        {"attribute": "EOPNOTSUPP"},
    )


def test_f01_nothing_is_moved_into_the_system(attacked):
    """A rename from a writable place into a read-only one crosses mounts, and is refused for that alone."""
    said = attacked.probe("command", "change_files", "/etc")
    assert said["rename over"] in {"EXDEV", "EROFS", "EACCES"}


def test_f01_no_bytecode_is_planted_beside_our_code(attacked):
    """Jail init, zygote and contexts take what lies there for their own modules, and ask no source."""
    code = (
        "import errno, os\n"
        "for top in ('/opt/fumehood/fumehood_guest/context', '/opt/fumehood/fumehood_wire', '/home/user'):\n"
        "    try:\n"
        "        os.makedirs(f'{top}/__pycache__', exist_ok=True)\n"
        "        open(f'{top}/__pycache__/planted.pyc', 'wb').close()\n"
        "        print('ok')\n"
        "    except OSError as error:\n"
        "        print(errno.errorcode[error.errno])\n"
    )
    *ours, control = attacked.run(code).split()
    assert (len(ours), set(ours) <= IMMUTABLE, control) == (2, True, "ok"), ours


def test_f01_folders_that_links_lead_to_are_the_systems(attacked):
    """The root itself, and the places where a daemon of the host would look for files."""
    said = attacked.run(
        "import os\n"
        "for path in ('/x', '/run/x', '/var/x', '/opt/x', '/mnt/x', '/home/x', '/sys/x', '/dev/x', '/proc/x'):\n"
        "    try:\n"
        "        print(os.open(path, os.O_CREAT | os.O_WRONLY))\n"
        "    except OSError as error:\n"
        "        print('refused', error.errno)\n"
    )
    assert [line.split()[0] for line in said.splitlines()] == ["refused"] * 9


def test_f02_writable_mounts_are_bounded(attacked):
    """Each one is a sized memory filesystem without set-uid programs and devices; the rest is read-only."""
    table = attacked.run("print(open('/proc/self/mountinfo').read())")
    lines = [line.split() for line in table.splitlines() if line]
    writable = [
        (line[4], line[line.index("-") + 1], line[5].split(","), line[line.index("-") + 3])
        for line in lines
        if "rw" in line[5].split(",")
    ]
    assert writable

    for place, kind, options, super_options in writable:
        if (kind == "tmpfs" and not place.startswith("/dev/")) or place == "/dev/shm":
            assert {"nosuid", "nodev"} <= set(options), place
            assert "size=" in super_options, place
        else:
            assert place.startswith(("/dev/", "/proc")), place

    read_only = [
        line for line in lines if "ro" in line[5].split(",") and line[4].startswith(("/usr", "/opt"))
    ]
    assert read_only
    assert all({"nosuid", "nodev"} <= set(line[5].split(",")) for line in read_only)


def test_f02_a_set_uid_program_has_no_effect(attacked, tmp_path):
    """Neither one that the guest makes, nor root's own in the system."""
    said = attacked.run(
        "import os, shutil, stat, subprocess\n"
        "shutil.copy('/usr/bin/id', 'id')\n"
        "os.chmod('id', 0o6755)\n"
        "for words in (['./id', '-u', '-r'], ['./id', '-u']): print(subprocess.check_output(words, text=True))\n"
        "places = ('/usr/bin', '/home/user', '/tmp', '/')\n"
        "print(sorted({bool(os.statvfs(path).f_flag & os.ST_NOSUID) for path in places}))\n"
    )
    assert said.split() == ["1000", "1000", "[True]"]

    if os.geteuid() != 0:
        pytest.skip("needs root: to make a set-uid program for the control")

    control = tmp_path / "id"
    control.write_bytes(Path("/usr/bin/id").read_bytes())
    control.chmod(0o4755)
    tmp_path.chmod(0o755)

    if os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        pytest.skip("needs root: and a folder that is not mounted nosuid")

    def become_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)

    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)

    assert subprocess.check_output([control, "-u"], preexec_fn=become_nobody, text=True).strip() == "0"


def test_f03_nothing_tells_where_things_lie_on_the_host(attacked):
    """Not the environment, the paths of modules, tracebacks, command lines or memory maps."""
    said = attacked.run(
        "import glob, json, os, subprocess, sys, traceback\n"
        "try:\n"
        "    json.loads('{')\n"
        "except ValueError:\n"
        "    print(traceback.format_exc())\n"
        "print(sys.path, sys.prefix, sys.executable, sys.argv, dict(os.environ))\n"
        "print([getattr(module, '__file__', '') for module in sys.modules.values()])\n"
        "print([function.__code__.co_filename for function in (json.loads, subprocess.run, traceback.format_exc)])\n"
        "files = '/proc/*/cmdline /proc/*/maps /proc/self/environ'\n"
        "print(subprocess.check_output(f'cat {files} 2>/dev/null; true', shell=True))\n"
        "print(open('/etc/passwd').read(), open('/etc/hosts').read(), os.uname())\n"
    )
    here = str(Path(fumehood.__file__).resolve().parents[1])
    assert len(said) > 1000
    assert here not in said
    assert str(Path.home()) + "/" not in said.replace("/root/proc", "")
    assert (
        not platform.node()
        or platform.node() in ("localhost", "fumehood", "vm")
        or platform.node() not in said
    )

    control = subprocess.check_output(
        [sys.executable, "-c", "import fumehood; print(fumehood.__file__)"], text=True
    )
    assert here in control


def test_f03_mounts_show_no_more_than_where_the_template_lies(attacked):
    """The kernel names the source of each bind: of the host's folders those of the template, and nothing else."""
    table = attacked.run("print(open('/proc/self/mountinfo').read())")
    sources = {line.split()[3] for line in table.splitlines() if line and line.split()[4].startswith("/opt")}
    other = {
        line.split()[3] for line in table.splitlines() if line and not line.split()[4].startswith("/opt")
    }
    assert {
        source for source in other if re.match(r"/(root|home/(?!user)|work|run|var|etc)", source)
    } == set()
    assert all(source == "/" or source.startswith((sys.base_prefix, sys.prefix)) for source in sources), (
        sources
    )


@pytest.mark.parametrize("place", ["/home/user", "/tmp", "/dev/shm", "/mnt/data"])
def test_f11_bytes_are_bounded(place, make, attacked):
    """A place that is full says so; the host and another sandbox go on, and what is deleted is free again."""
    mine = make(limits=fumehood.Limits(disk_bytes=8 << 20))
    said = mine.run(
        f"import errno, os\n"
        f"fd = os.open('{place}/fill', os.O_CREAT | os.O_WRONLY)\n"
        f"written = 0\n"
        f"try:\n"
        f"    while written < 64 << 20: written += os.write(fd, bytes(1 << 16))\n"
        f"except OSError as error: print(errno.errorcode[error.errno])\n"
        f"os.close(fd); os.unlink('{place}/fill'); print(written)\n"
        f"print(os.write(os.open('{place}/again', os.O_CREAT | os.O_WRONLY), bytes(1 << 20)))\n"
    ).split()
    assert said[0] == "ENOSPC"
    assert 4 << 20 < int(said[1]) <= 8 << 20
    assert int(said[2]) == 1 << 20
    assert attacked.sandbox.files.write("still.bin", bytes(1 << 20)).size_bytes == 1 << 20


def test_f11_files_are_bounded(make, attacked):
    """Empty files have no bytes, and a bound all the same."""
    mine = make(limits=fumehood.Limits(inodes=1000))
    said = mine.run(
        "import errno, os\n"
        "os.mkdir('many')\n"
        "count = 0\n"
        "try:\n"
        "    while count < 5000:\n"
        "        os.close(os.open(f'many/{count}', os.O_CREAT))\n"
        "        count += 1\n"
        "except OSError as error: print(errno.errorcode[error.errno], count)\n"
    ).split()
    assert said[0] == "ENOSPC"
    assert int(said[1]) < 1000
    attacked.run("import os; [os.close(os.open(f'/tmp/f{n}', os.O_CREAT)) for n in range(2000)]")
    attacked.run("import os; [os.unlink(f'/tmp/f{n}') for n in range(2000)]")
