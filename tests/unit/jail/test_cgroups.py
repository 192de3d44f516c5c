"""Control groups: found where they may be made, bounding and measuring what is in them, gone when told."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fumehood_jail import cgroups
from fumehood_jail.cgroup_v1 import CgroupDriverV1
from fumehood_jail.cgroup_v2 import CgroupDriverV2, CgroupV2
from fumehood_jail.errors import JailError

MEBIBYTE = 1024 * 1024
PREFIX = "fumehoodtest"
MOUNTINFO = "/proc/self/mountinfo"


@pytest.fixture
def driver():
    """The driver of this system."""
    found, reasons = cgroups.detect()
    if found is None:
        pytest.skip(f"needs cgroup v1 or v2, writable: {'; '.join(reasons)}")

    return found


@pytest.fixture
def cgroup(driver, request):
    """A cgroup with small limits, killed and removed afterwards."""
    name = cgroups.cgroup_name(PREFIX, str(abs(hash(request.node.name))))
    made = driver.create(name, memory_bytes=64 * MEBIBYTE, processes=12, cpu_cores=0.5)
    yield made
    made.kill()
    _remove(made)


def start_in(cgroup, program):
    """Starts a Python program that begins when it has been put into the cgroup."""
    waiting = f"import sys, os, time\nsys.stdin.readline()\n{program}"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    cgroup.add(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    return process


def end(process):
    process.stdin.close()
    process.stdout.close()
    return process.wait(timeout=20)


def _remove(cgroup):
    deadline = time.monotonic() + 10
    while not cgroup.remove():
        assert time.monotonic() < deadline, "the processes of the cgroup do not end"


def test_memory_is_bounded(cgroup):
    """A process that takes more than the limit is killed, and counted; one that takes less is not."""
    modest = start_in(cgroup, f"bytearray({20 * MEBIBYTE})")
    assert end(modest) == 0
    assert cgroup.oom_kills() == 0
    assert 20 * MEBIBYTE < cgroup.peak_memory_bytes() < 64 * MEBIBYTE

    greedy = start_in(cgroup, f"x = bytearray({200 * MEBIBYTE})")
    assert end(greedy) == -signal.SIGKILL
    assert cgroup.oom_kills() == 1


def test_the_memory_limit_can_be_moved(cgroup):
    """The limit goes up and down, whatever the order of the two limits of version 1."""
    for limit in (200 * MEBIBYTE, 100 * MEBIBYTE, 300 * MEBIBYTE):
        cgroup.set_memory_bytes(limit)

    assert end(start_in(cgroup, f"x = bytearray({200 * MEBIBYTE})")) == 0


def test_a_peak_can_be_measured_anew(cgroup):
    """After `reset_peak` the peak is that of what came later."""
    end(start_in(cgroup, f"bytearray({40 * MEBIBYTE})"))
    before = cgroup.peak_memory_bytes()

    if not cgroup.reset_peak():
        pytest.skip("needs cgroup v1, or v2 of Linux 6.12")

    assert before > 40 * MEBIBYTE > cgroup.peak_memory_bytes()
    assert cgroup.memory_bytes() <= cgroup.peak_memory_bytes()


def test_processes_are_bounded(cgroup):
    """Forks beyond the limit fail; the members are listed."""
    program = """
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
        made += 1
except OSError:
    print(made, flush=True)
    time.sleep(100)
"""
    process = start_in(cgroup, program)
    assert process.stdout.readline().strip() == "11"
    assert process.pid in cgroup.processes()
    assert len(cgroup.processes()) == 12
    cgroup.kill()
    assert end(process) == -signal.SIGKILL


def test_cpu_time_is_counted_and_bounded(cgroup):
    """Busy time shows up as user time, and half a core takes twice the time for the same work."""
    program = "begun = time.process_time()\nwhile time.process_time() - begun < 0.5: pass"
    begun = time.monotonic()
    process = start_in(cgroup, program)
    assert end(process) == 0
    lasted = time.monotonic() - begun

    user_seconds, system_seconds = cgroup.cpu_seconds()
    assert 0.4 < user_seconds + system_seconds < 0.65 * lasted


def test_kill_ends_a_fork_bomb(cgroup):
    """Whatever forks, and ignores what can be ignored, is gone after `kill`."""
    program = """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
print("on", flush=True)
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
"""
    process = start_in(cgroup, program)
    assert process.stdout.readline() == "on\n"

    cgroup.kill()

    assert end(process) == -signal.SIGKILL
    _remove(cgroup)
    assert not any(os.path.exists(folder) for folder in cgroup.folders)


def freeze(cgroup):
    deadline = time.monotonic() + 10
    while not cgroup.freeze():
        assert time.monotonic() < deadline, "it does not freeze"


def test_what_is_frozen_uses_no_time(cgroup):
    """Nothing in it runs, not what comes later either, until it is thawed."""
    if not cgroup.can_freeze:
        pytest.skip("needs cgroup v2, or v1 with a freezer that can be written")

    busy = start_in(cgroup, "print('on', flush=True)\nwhile True: pass")
    assert busy.stdout.readline() == "on\n"
    freeze(cgroup)
    before = cgroup.cpu_seconds()
    late = start_in(cgroup, "print('late', flush=True)")
    # Another process has its time meanwhile.
    subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
    assert cgroup.cpu_seconds() == before
    assert cgroup.is_frozen

    cgroup.thaw()
    assert late.stdout.readline() == "late\n"
    assert end(late) == 0
    busy.kill()
    assert end(busy) == -signal.SIGKILL


def test_what_is_frozen_can_be_killed(cgroup):
    """It wakes up only to die."""
    if not cgroup.can_freeze:
        pytest.skip("needs cgroup v2, or v1 with a freezer that can be written")

    process = start_in(cgroup, "print('on', flush=True)\nwhile True: pass")
    assert process.stdout.readline() == "on\n"
    freeze(cgroup)
    cgroup.kill_frozen()

    assert end(process) == -signal.SIGKILL
    assert not cgroup.is_frozen


def test_version_2_freezes():
    """The files of version 2 do what they say, also where its controllers belong to version 1."""
    mount = next((mount.folder for mount in cgroups._mounts(MOUNTINFO) if mount.version == 2), None)
    if mount is None or not os.access(f"{mount}/cgroup.procs", os.W_OK):
        pytest.skip("needs a mount of cgroup v2 that can be written")

    cgroup = CgroupV2("n", f"{mount}/{PREFIX}freeze")
    os.mkdir(cgroup.folders[0])
    try:
        process = start_in(cgroup, "print('on', flush=True)\nwhile True: pass")
        assert process.stdout.readline() == "on\n"
        freeze(cgroup)
        cgroup.thaw()
        freeze(cgroup)
        cgroup.kill_frozen()
        assert end(process) == -signal.SIGKILL
    finally:
        _remove(cgroup)


def test_removing_twice_is_no_error(driver):
    """`remove` on something that is gone is done."""
    cgroup = driver.create(
        cgroups.cgroup_name(PREFIX, "twice"), memory_bytes=MEBIBYTE, processes=1, cpu_cores=1
    )

    assert cgroup.remove()
    assert cgroup.remove()


def test_a_failed_create_leaves_nothing(driver):
    """A cgroup whose limits cannot be written is not left behind."""
    name = cgroups.cgroup_name(PREFIX, "failed")

    with pytest.raises(JailError, match=name):
        driver.create(name, memory_bytes=MEBIBYTE, processes=-5, cpu_cores=1)

    assert not any(os.path.exists(folder) for folder in driver.open(name).folders)


def test_sweep_removes_what_the_dead_left(driver):
    """Cgroups of dead owners go, with their processes; others stay."""
    own = cgroups.cgroup_name(PREFIX, "own")
    prefix, namespace, _, _, _ = own.split("-", 4)
    dead = f"{prefix}-{namespace}-{2**22 + 1}-1-dead"
    foreign = f"{prefix}-1-{2**22 + 1}-1-foreign"
    made = [
        driver.create(name, memory_bytes=64 * MEBIBYTE, processes=9, cpu_cores=1)
        for name in (own, dead, foreign)
    ]
    orphan = start_in(made[1], "time.sleep(100)")

    if made[1].can_freeze:
        freeze(made[1])

    removed, stuck = [], [dead]
    deadline = time.monotonic() + 10
    while stuck and time.monotonic() < deadline:
        more, stuck = cgroups.sweep(driver, PREFIX)
        removed += more

    assert end(orphan) == -signal.SIGKILL
    assert (removed, stuck) == ([dead], [])
    assert os.path.isdir(made[0].folders[0])
    assert os.path.isdir(made[2].folders[0])
    assert made[0].remove()
    assert made[2].remove()


def test_sweep_removes_old_and_empty_groups_of_other_pid_namespaces(driver):
    """Their owners cannot be looked up from here; a group that has a process or is new is left alone."""
    prefix = cgroups.cgroup_name(PREFIX, "own").partition("-")[0]
    empty, used, new = (
        driver.create(
            f"{prefix}-1-{2**22 + 1}-1-{name}", memory_bytes=64 * MEBIBYTE, processes=9, cpu_cores=1
        )
        for name in ("empty", "used", "new")
    )
    process = start_in(used, "sys.stdin.readline()")
    try:
        for old in (empty, used):
            os.utime(old.folders[0], (0, 0))

        assert cgroups.sweep(driver, PREFIX) == ([empty.name], [])
        assert not any(os.path.exists(folder) for folder in empty.folders)
        assert all(os.path.isdir(folder) for one in (used, new) for folder in one.folders)
    finally:
        end(process)
        for one in (empty, used, new):
            _remove(one)


def test_sweep_looks_beside_its_own_place(driver):
    """What a host of another session left in its own place, beside ours, goes as well, in every hierarchy."""
    memory = [
        parent for parent in driver.parents if parent not in {m.folder for m in cgroups._mounts(MOUNTINFO)}
    ]
    if not memory:
        pytest.skip("needs cgroup v1 or v2 with a place of our own below the mount")

    session = f"{os.path.dirname(memory[0])}/{PREFIX}session"
    name = cgroups.cgroup_name(PREFIX, "beside").replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")
    os.makedirs(f"{session}/{name}")
    try:
        removed, stuck = cgroups.sweep(driver, PREFIX)
        assert (removed, stuck) == ([name], [])
        assert not os.path.exists(f"{session}/{name}")
    finally:
        os.rmdir(session)


def test_an_owner_is_known_by_its_start():
    """The same number with another start time is another process."""
    start_time = cgroups._start_time(os.getpid())

    assert cgroups.owner_is_alive(os.getpid(), start_time)
    assert not cgroups.owner_is_alive(os.getpid(), start_time - 1)
    assert not cgroups.owner_is_alive(2**22 + 1, start_time)


def lay_out(folder, files):
    """Writes a tree of files that imitates cgroup file systems."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def detect_in(tmp_path, mountinfo, own):
    lay_out(tmp_path, {"proc/mountinfo": mountinfo.format(root=tmp_path), "proc/cgroup": own})
    return cgroups.detect(str(tmp_path / "proc"))


V2_MOUNT = "31 23 0:28 / {root}/cg rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
DELEGATED = "user.slice/user@1.service/app.slice"


def test_v2_takes_the_nearest_place_that_hands_down(tmp_path):
    """A program in a scope of its user's session gets its cgroups beside it, and nothing is moved."""
    lay_out(
        tmp_path / "cg",
        {
            "cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
            "cgroup.subtree_control": "cpu memory pids\n",
            "cgroup.procs": "",
            f"{DELEGATED}/cgroup.subtree_control": "memory pids\n",
            f"{DELEGATED}/cgroup.procs": "",
            f"{DELEGATED}/run-1.scope/cgroup.subtree_control": "\n",
            f"{DELEGATED}/run-1.scope/cgroup.procs": "77\n",
        },
    )
    driver, reasons = detect_in(tmp_path, V2_MOUNT, f"0::/{DELEGATED}/run-1.scope\n")

    assert isinstance(driver, CgroupDriverV2)
    assert driver.parent == str(tmp_path / "cg" / DELEGATED)
    assert driver.controllers == {"memory", "pids", "cpuacct", "freezer"}
    assert "run-1.scope" in reasons[0]


def test_v2_that_hands_nothing_down_is_reported(tmp_path):
    """Without a place that hands down memory and pids there is no driver, and each place is named."""
    lay_out(
        tmp_path / "cg",
        {
            "cgroup.controllers": "memory pids\n",
            "cgroup.subtree_control": "\n",
            "cgroup.procs": "1\n",
            "a/cgroup.subtree_control": "pids\n",
            "a/cgroup.procs": "",
        },
    )
    driver, reasons = detect_in(tmp_path, V2_MOUNT, "0::/a\n")

    assert driver is None
    assert [reason for reason in reasons if "hand down" in reason] == [
        f"cgroup v2: '{tmp_path}/cg/a' does not hand down memory",
        f"cgroup v2: '{tmp_path}/cg' does not hand down memory and pids",
    ]


def test_v1_takes_its_own_place_in_each_hierarchy(tmp_path):
    """Each controller is found at its own mount, co-mounted ones too, and within a container's mount."""
    mountinfo = (
        "32 31 0:29 /docker/abc {root}/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / {root}/memory\\040here rw - cgroup cgroup rw,memory\n"
        "39 31 0:36 / {root}/pids rw - cgroup cgroup rw,pids\n"
    )
    lay_out(tmp_path, {"cpu,cpuacct/x/f": "", "memory here/m/f": "", "pids/f": ""})
    own = "3:memory:/m\n2:cpu,cpuacct:/docker/abc/x\n1:pids:/\n0::/\n"
    driver, _ = detect_in(tmp_path, mountinfo, own)

    assert isinstance(driver, CgroupDriverV1)
    assert driver.open("n").folders == [
        f"{tmp_path}/pids/n",
        f"{tmp_path}/memory here/m/n",
        f"{tmp_path}/cpu,cpuacct/x/n",
    ]


def test_no_cgroups_at_all(tmp_path):
    """A system without cgroup file systems has reasons and no driver."""
    driver, reasons = detect_in(tmp_path, "22 1 0:20 / /sys rw - sysfs sysfs rw\n", "0::/\n")

    assert driver is None
    assert reasons[0] == "no cgroup file system is mounted"


def test_v2_files_are_read_and_written(tmp_path):
    """The verbs of version 2 use the documented files and their formats."""
    lay_out(
        tmp_path / "s",
        {
            "cpu.stat": "usage_usec 3500000\nuser_usec 2000000\nsystem_usec 1500000\n",
            "memory.current": "4096\n",
            "memory.peak": "8192\n",
            "memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n",
            "memory.max": "max\n",
            "memory.swap.max": "max\n",
            "cgroup.procs": "12\n34\n",
            "cgroup.kill": "",
            "pids.max": "max\n",
            "cpu.max": "max 100000\n",
        },
    )
    driver = CgroupDriverV2(str(tmp_path), frozenset({"memory", "pids", "cpu"}))
    cgroup = driver.open("s")
    cgroup.set_memory_bytes(1000)
    driver._limit(cgroup, 9, 1.5)
    cgroup.kill()

    assert cgroup.cpu_seconds() == (2.0, 1.5)
    assert (cgroup.memory_bytes(), cgroup.peak_memory_bytes(), cgroup.oom_kills()) == (4096, 8192, 2)
    assert cgroup.processes() == [12, 34]
    contents = {
        name: (tmp_path / "s" / name).read_text() for name in ("memory.max", "cpu.max", "cgroup.kill")
    }
    assert contents["memory.max"].startswith("1000")
    assert contents["cpu.max"].startswith("150000 100000")
    assert contents["cgroup.kill"] == "1"
    assert (tmp_path / "s" / "memory.swap.max").read_text().startswith("0")
    assert (tmp_path / "s" / "pids.max").read_text().startswith("9")
    cgroup.close()


def test_v2_asks_for_memory_a_piece_at_a_time(tmp_path):
    """And stops when nothing more comes; a kernel before 5.19 has no such file."""
    lay_out(tmp_path / "s", {"memory.current": "4096\n", "memory.reclaim": ""})
    cgroup = CgroupV2("s", str(tmp_path / "s"))
    assert cgroup.give_memory_back() == "memory.reclaim"
    assert (tmp_path / "s" / "memory.reclaim").read_text() == str(64 << 20)
    (tmp_path / "s" / "memory.reclaim").unlink()

    with pytest.raises(FileNotFoundError):
        cgroup.give_memory_back()

    cgroup.close()


def test_v2_before_memory_peak(tmp_path):
    """On kernels that keep no peak, what is in use now is returned, and the peak cannot be reset."""
    lay_out(tmp_path / "s", {"memory.current": "4096\n"})
    cgroup = CgroupV2("s", str(tmp_path / "s"))

    assert cgroup.peak_memory_bytes() == 4096
    assert not cgroup.reset_peak()
    cgroup.close()


def test_v2_in_the_kernel(tmp_path):
    """In the real unified hierarchy: joining, CPU time, killing at once and removing."""
    mounts = [mount for mount in cgroups._mounts(MOUNTINFO) if mount.version == 2]
    if not mounts or not os.access(mounts[0].folder, os.W_OK):
        pytest.skip("needs cgroup v2, writable")

    folder = f"{mounts[0].folder}/{cgroups.cgroup_name(PREFIX, 'unified')}"
    os.mkdir(folder)
    cgroup = CgroupV2(os.path.basename(folder), folder)
    try:
        process = start_in(
            cgroup, "sum(range(10**7))\nos.fork()\nos.fork()\nprint(1, flush=True)\ntime.sleep(100)"
        )
        assert process.stdout.readline() == "1\n"
        assert process.pid in cgroup.processes()
        assert sum(cgroup.cpu_seconds()) > 0
    finally:
        cgroup.kill()
        assert end(process) == -signal.SIGKILL
        _remove(cgroup)

    assert not os.path.exists(folder)
