"""F04 to F10: the host's file verbs against links, special files, strange names and huge trees."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fumehood import FileError, InvalidArgumentError

MIB = 1 << 20


@pytest.fixture
def treasure(tmp_path: Path, canary: str) -> Path:
    """A file of the host that no guest may reach."""
    path = tmp_path / "treasure"
    path.write_text(canary)
    return path


def plant(attacked, **links: str) -> None:
    """Makes links in the guest's folder `links`, anew."""
    attacked.run(
        f"import os, shutil\n"
        f"shutil.rmtree('links', ignore_errors=True); os.mkdir('links')\n"
        f"for name, target in {links!r}.items(): os.symlink(target, f'links/{{name}}')\n"
    )


def test_f04_links_are_not_followed_out_for_reading(attacked, treasure, canary):
    """By name, from the root of a process, through several links, and as a folder on the way."""
    plant(
        attacked,
        plain=str(treasure),
        folder=str(treasure.parent),
        upwards="../" * 20 + str(treasure),
        own_root=f"/proc/self/root{treasure}",
        init_root=f"/proc/1/root{treasure}",
        init_cwd=f"/proc/1/cwd/../../..{treasure}",
        first="second",
        second="plain",
        loop="loop",
    )
    files = attacked.sandbox.files

    for name in ("plain", "folder/treasure", "upwards", "own_root", "init_root", "init_cwd", "first", "loop"):
        with pytest.raises(FileError):
            files.read(f"links/{name}")

        with pytest.raises(FileError):
            list(files.read(f"links/{name}", format="stream"))

    listed = {info.name: info for info in files.list("links", depth=3)}
    assert listed["plain"].type == "symlink"
    assert listed["plain"].symlink_target == str(treasure)
    assert not [info for info in listed.values() if info.name == "treasure"]
    assert canary not in str(listed)

    control = treasure.parent / "link"
    control.symlink_to(treasure)
    assert control.read_text() == canary


def test_f04_init_has_no_descriptor_worth_a_link(attacked):
    """Init reads for the host, so a link to its descriptors is a way to whatever it has open.

    Of files that is what every process in the sandbox may read: its own limits. None can be written.
    """
    plant(attacked, **{f"fd{number}": f"/proc/self/fd/{number}" for number in range(64)})
    files = attacked.sandbox.files
    limits = (
        "/proc/meminfo",
        "/proc/sys/kernel/random/boot_id",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    )
    show = "import os; os.path.exists({0!r}) and print(open({0!r}).read(), end='')"
    open_to_all = {attacked.run(show.format(path)) for path in limits}
    found = set()

    for number in range(64):
        with pytest.raises(FileError):
            files.write(f"links/fd{number}", "1")

        with suppress(FileError):
            found.add(files.read(f"links/fd{number}"))

    assert found <= open_to_all


def test_f04_init_reads_its_own_memory_for_no_caller(attacked):
    """Its memory and environment are closed to its own process too."""
    names = ("mem", "environ", "pagemap", "auxv", "stack", "syscall")
    plant(attacked, **{name: f"/proc/self/{name}" for name in names})
    told = {}

    for name in names:
        try:
            told[name] = attacked.sandbox.files.read(f"links/{name}", format="bytes", max_bytes=MIB)
        except FileError:
            continue

    assert not any(told.values()), told


def test_f05_links_are_not_followed_out_for_writing(attacked, treasure, canary):
    """As the target of a write, as a folder above it, and as a destination."""
    folder = treasure.parent
    plant(attacked, target=str(treasure), parent=str(folder), own_root=f"/proc/self/root{folder}")
    files = attacked.sandbox.files

    for path in ("links/target", "links/parent/treasure", "links/parent/new", "links/own_root/new"):
        try:
            files.write(path, "overwritten")
        except FileError:
            continue

    files.write("mine.txt", "mine")

    for verb in (
        lambda: files.make_dir("links/parent/made"),
        lambda: files.rename("mine.txt", "links/parent/moved"),
        lambda: files.remove("links/parent/treasure"),
    ):
        try:
            verb()
        except FileError:
            continue

    assert os.listdir(folder) == ["treasure"]
    assert treasure.read_text() == canary

    (folder / "link").symlink_to(treasure)
    (folder / "link").write_text("control")
    assert treasure.read_text() == "control"


def test_f05_a_race_does_not_move_an_upload_out(make, treasure, canary):
    """While the guest swaps a folder for a link all the time, every upload lands inside or fails."""
    mine = make()
    outside_folder = treasure.parent / "racing"
    outside_folder.mkdir()
    mine.run(
        f"import os, threading\n"
        f"os.mkdir('real')\n"
        f"racing = True\n"
        f"def swap():\n"
        f"    while racing:\n"
        f"        os.symlink({str(outside_folder)!r}, 'new'); os.rename('real', 'kept'); os.rename('new', 'real')\n"
        f"        os.unlink('real'); os.rename('kept', 'real')\n"
        f"threading.Thread(target=swap, daemon=True).start()\n"
    )
    landed = 0

    for number in range(200):
        try:
            mine.sandbox.files.write(f"real/{number}", canary)
            landed += 1
        except FileError:
            continue

    mine.run("racing = False")
    assert landed
    assert os.listdir(outside_folder) == []
    assert treasure.read_text() == canary


def test_f06_no_verb_changes_what_a_link_leads_to(attacked, treasure, canary):
    """Owner, mode, time and content of a host's file stay through every verb on a link to it."""
    before = os.stat(treasure)
    plant(attacked, one=str(treasure), two=str(treasure), folder=str(treasure.parent))
    files = attacked.sandbox.files
    assert files.get_info("links/one").symlink_target == str(treasure)
    files.rename("links/one", "links/renamed")
    files.remove("links/renamed")
    files.remove("links/folder")
    files.remove("links")
    after = os.stat(treasure)
    fields = ("st_uid", "st_gid", "st_mode", "st_mtime_ns", "st_ctime_ns", "st_nlink")
    assert [getattr(after, field) for field in fields] == [getattr(before, field) for field in fields]
    assert treasure.read_text() == canary


def test_f06_what_is_hard_to_remove_is_removed(attacked):
    """Folders that nobody may enter, hard links, and links to folders, which stay."""
    attacked.run(
        "import os\n"
        "os.makedirs('hard/closed/inner'); open('hard/closed/inner/file', 'w').close()\n"
        "os.mkdir('kept'); open('kept/file', 'w').close()\n"
        "os.symlink('/home/user/kept', 'hard/link'); os.link('kept/file', 'hard/second-name')\n"
        "os.chmod('hard/closed/inner', 0); os.chmod('hard/closed', 0)\n"
    )
    attacked.sandbox.files.remove("hard")
    assert not attacked.sandbox.files.exists("hard")
    assert attacked.sandbox.files.exists("kept/file")


def test_f07_special_files_do_not_hang_the_host(attacked):
    """FIFO, socket, device and locked file: refused or listed at once, and init goes on."""
    attacked.run(
        "import fcntl, os, shutil, socket\n"
        "shutil.rmtree('special', ignore_errors=True); os.mkdir('special')\n"
        "os.mkfifo('special/fifo')\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('special/socket'); server.close()\n"
        "os.symlink('/dev/zero', 'special/zero'); os.symlink('/dev/tty', 'special/tty')\n"
        "locked = open('special/locked', 'w'); locked.write('here'); locked.flush()\n"
        "fcntl.flock(locked, fcntl.LOCK_EX)\n"
    )
    files = attacked.sandbox.files
    started = time.monotonic()

    for name in ("fifo", "socket", "zero", "tty"):
        with pytest.raises(FileError):
            files.read(f"special/{name}")

        with pytest.raises(FileError):
            files.write(f"special/{name}", "x")

    assert files.read("special/locked") == "here"
    assert {info.name: info.type for info in files.list("special")} == {
        "fifo": "other", "socket": "other", "zero": "other", "tty": "other", "locked": "file"
    }  # fmt: skip
    files.remove("special")
    assert time.monotonic() - started < 20


def test_f07_a_reader_without_care_would_hang(tmp_path):
    """The control: an ordinary open of a FIFO waits for a writer."""
    os.mkfifo(tmp_path / "fifo")
    opened = threading.Event()

    def read() -> None:
        with open(tmp_path / "fifo", "rb"):
            opened.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert not opened.wait(0.05)

    with open(tmp_path / "fifo", "wb"):
        thread.join()


STRANGE_NAMES = [
    "new\nline",
    "tab\t",
    "back\\slash",
    "trailing.",
    "-rf",
    "\x1b[31mred",
    "‮gpj.exe",
    "a" * 255,
    "'; rm -rf ~",
]


@pytest.mark.parametrize("name", STRANGE_NAMES, ids=ascii)
def test_f08_strange_names_make_a_round_trip(attacked, name):
    """What Linux allows as a name is written, listed, read and removed as it is."""
    files = attacked.sandbox.files
    files.write(f"strange/{name}", "content")
    assert name in {info.name for info in files.list("strange")}
    assert files.read(f"strange/{name}") == "content"
    files.remove("strange")


@pytest.mark.parametrize(
    "name",
    ["a\0b", "", "x" * 5000, "x" * 256, "/proc/nowhere/x", "attack/kernel.py/x", "/new", "../../etc/new"],
)
def test_f08_impossible_names_are_refused(attacked, name):
    """By an error that says so; never by a crash, and nothing is left."""
    with pytest.raises((FileError, InvalidArgumentError)):
        attacked.sandbox.files.write(name, "content")

    assert attacked.sandbox.is_running()


def test_f08_names_that_are_no_text_can_be_handled(attacked):
    """Bytes that are no UTF-8 are listed as surrogates; as an argument they are refused, and the folder can go."""
    attacked.run("import os; os.makedirs('raw', exist_ok=True); open(b'raw/\\xff\\xfe', 'w').write('here')")
    (info,) = attacked.sandbox.files.list("raw")
    assert os.fsencode(info.name) == b"\xff\xfe"

    with pytest.raises(InvalidArgumentError):
        attacked.sandbox.files.read(info.path)

    attacked.sandbox.files.remove("raw")


def test_f10_a_sparse_file_does_not_fill_the_host(attacked, host_memory):
    """A petabyte of nothing is refused by its size; streaming it can stop at any time."""
    attacked.run("with open('sparse', 'wb') as file: file.truncate(1 << 50)")
    before = host_memory()

    with pytest.raises(FileError):
        attacked.sandbox.files.read("sparse", format="bytes", max_bytes=32 * MIB)

    stream = attacked.sandbox.files.read("sparse", format="stream")
    assert sum(len(next(stream)) for _ in range(8)) <= 8 * MIB
    stream.close()
    attacked.sandbox.files.remove("sparse")
    assert host_memory() - before < 128 * MIB


def test_f10_a_deep_tree_does_not_end_init(make):
    """Deeper than Python calls can nest: listed as far as asked, and a verb that cannot do it says so."""
    mine = make()
    mine.run(
        "import os\n"
        "os.mkdir('deep'); os.chdir('deep')\n"
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\n"
        "os.chdir('/home/user')\n"
    )
    files = mine.sandbox.files
    assert len(files.list("deep", depth=64)) == 64
    watch = files.watch("deep", recursive=True)

    for verb in (lambda: files.remove("deep"), lambda: files.rename("deep", "/mnt/data/deep")):
        try:
            verb()
        except FileError:
            continue

    mine.run("open('/home/user/deep/new', 'w').close()" if files.exists("deep") else "1")
    watch.close()
    assert mine.run("print(1)") == "1\n"


def test_f10_a_wide_folder_is_listed_within_bounds(make, host_memory):
    """Tens of thousands of files, and many names of one big file."""
    mine = make()
    mine.run(
        "import os\n"
        "os.mkdir('wide')\n"
        "for number in range(20_000): os.close(os.open(f'wide/{number}', os.O_CREAT))\n"
        "with open('big', 'wb') as file: file.truncate(1 << 30)\n"
        "os.mkdir('links')\n"
        "for number in range(200): os.link('big', f'links/{number}')\n",
    )
    before = host_memory()
    assert len(mine.sandbox.files.list("wide")) == 20_000
    assert len(mine.sandbox.files.list("links")) == 200
    assert host_memory() - before < 128 * MIB
