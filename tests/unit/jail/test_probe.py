"""The probe and its advice: what is said about a system is what was tried on it, and it names the way out."""

import errno
import json
import os
import subprocess
import sys

import pytest

from fumehood.errors import IsolationUnavailableError
from fumehood.runtimes.landlock import runtime as landlock
from fumehood.runtimes.namespaces import runtime as linux
from fumehood_jail import advice, probe, syscalls
from fumehood_jail.errors import JailError

REQUIRED = {
    "kernel",
    "user namespace",
    "pid namespace",
    "mnt namespace",
    "net namespace",
    "ipc namespace",
    "uts namespace",
    "cgroup namespace",
    "tmpfs",
    "proc",
    "pivot_root",
    "no_new_privs",
    "seccomp",
}
CONTAINER = {"uid": "0", "seccomp": "2", "container": "docker"}
USER = {"uid": "1000", "seccomp": "0"}


def by_name(layers):
    return {layer.name: layer for layer in layers}


def test_the_probe_finds_what_is_here():
    """On this system everything required is there, with nothing to do; the answer can be written as JSON."""
    layers = by_name(probe.probe())

    assert {name for name, layer in layers.items() if layer.need == "required"} == REQUIRED
    assert {name: layers[name].why for name in REQUIRED if layers[name].state != "there"} == {}
    assert {layers[name].how_to_get_it for name in REQUIRED} == {""}
    assert {"ids", "landlock", "cgroup"} <= set(layers)
    assert layers["forks"].state == "there", layers["forks"].why
    json.dumps([layer.to_dict() for layer in layers.values()])


def test_whatever_is_not_there_has_a_way_out():
    """Each layer that is missing or degraded says why and how to get it."""
    for layer in probe.probe():
        assert layer.state in ("there", "degraded", "missing")
        assert layer.why
        assert bool(layer.how_to_get_it) == (layer.state != "there"), layer.to_dict()


def test_the_probe_leaves_nothing_behind():
    """The trials end with their processes, mounts and cgroups."""

    def left():
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = file.read()

        found = [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if "fumehoodprobe" in folder]
        return [mounts, [folder for folder in found if f"-{os.getpid()}-" in folder]]

    before = left()
    probe.probe()
    assert left() == before


def test_a_container_that_forbids_namespaces(in_filter):
    """Behind a filter that refuses namespaces the probe names the filter and how to change it."""
    layers = in_filter(lambda: {layer.name: layer.to_dict() for layer in probe.probe()})

    user = layers["user namespace"]
    assert (user["state"], user["need"]) == ("missing", "required")
    assert "seccomp profile of the container" in user["why"]
    assert "EPERM" in user["why"]
    assert "--security-opt seccomp=" in user["how_to_get_it"]
    assert layers["proc"]["state"] == layers["ids"]["state"] == "missing"
    assert layers["forks"]["state"] == "missing"
    assert layers["forks"]["cause"] == "user namespace"


def test_a_container_with_a_masked_proc(in_namespaces):
    """Where parts of /proc are covered a new one is refused, and the probe says how to uncover it."""

    def mask_and_probe():
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        before = by_name(probe.probe())["proc"].state
        syscalls.mount("/dev/null", "/proc/timer_list", None, syscalls.MS_BIND)
        return [before, by_name(probe.probe())["proc"].to_dict()]

    before, layer = in_namespaces(syscalls.CLONE_NEWNS, mask_and_probe)

    assert before == "there"
    assert layer["state"] == "missing"
    assert "masked" in layer["why"]
    assert "systempaths=unconfined" in layer["how_to_get_it"]


def test_a_system_with_no_namespaces_left(in_namespaces):
    """Where the limit of user namespaces is 0 the probe names the setting."""

    def limit_and_probe():
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
            file.write("0")

        return by_name(probe.probe())["user namespace"].to_dict()

    layer = in_namespaces(0, limit_and_probe)
    assert layer["state"] == "missing"
    assert layer["why"] == "user.max_user_namespaces is 0 (ENOSPC)"
    assert "sysctl -w user.max_user_namespaces=" in layer["how_to_get_it"]


def test_without_user_namespaces_one_row_names_the_cause(in_namespaces):
    """The other kinds are not tried, since their answer would name a wrong cause; each says what it follows from."""

    def limit_and_probe():
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
            file.write("0")

        return [layer.to_dict() for layer in probe.probe()]

    layers = {layer["name"]: layer for layer in in_namespaces(0, limit_and_probe)}
    assert layers["user namespace"]["cause"] == ""
    following = REQUIRED - {"kernel", "user namespace", "no_new_privs", "seccomp"} | {
        "ids",
        "forks",
        "overlay",
    }
    assert {name for name, layer in layers.items() if layer["cause"] == "user namespace"} == following

    for name in following:
        assert layers[name]["state"] == "missing"
        assert layers[name]["why"].startswith("and so: ")
        assert "user.max_" not in layers[name]["how_to_get_it"]


def test_the_weaker_level_is_promised_only_where_it_starts(in_namespaces):
    """As root of a user namespace with no other ids landlock-only is refused, and the level says so."""

    def limit_and_look():
        with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
            file.write("0")

        level = next(layer for layer in linux.doctor() if layer["name"] == "isolation level")
        try:
            landlock._own_ids()
        except IsolationUnavailableError as error:
            return [level, error.message, landlock.LandlockRuntime().is_possible()]

        return [level, "", True]

    level, refusal, is_named_in_hints = in_namespaces(0, limit_and_look)
    assert "root has no other user id" in refusal
    assert not is_named_in_hints
    assert level["state"] == "missing"
    assert "landlock-only: root has no other user id" in level["why"]
    assert "namespaces cannot be reached without: user namespace;" in level["why"]


@pytest.mark.parametrize(
    ("number", "kind", "facts", "why", "way_out"),
    [
        (errno.EPERM, "user", CONTAINER, "seccomp profile of the container", "seccomp=unconfined"),
        (errno.ENOSYS, "user", CONTAINER, "seccomp profile of the container", "seccomp=unconfined"),
        (
            errno.EPERM,
            "user",
            {**USER, "kernel.unprivileged_userns_clone": "0"},
            "userns_clone is 0",
            "clone=1",
        ),
        (
            errno.EPERM,
            "user",
            {**USER, "kernel.apparmor_restrict_unprivileged_userns": "1"},
            "apparmor_restrict_unprivileged_userns is set",
            "apparmor_restrict_unprivileged_userns=0",
        ),
        (errno.EPERM, "user", USER, "a security module, or a process in a chroot", "dmesg"),
        (
            errno.ENOSPC,
            "user",
            {**USER, "user.max_user_namespaces": "0"},
            "max_user_namespaces is 0",
            "sysctl -w",
        ),
        (errno.ENOSPC, "net", {**USER, "user.max_net_namespaces": "9"}, "user.max_net_namespaces", "raise"),
        (errno.EINVAL, "cgroup", USER, "no cgroup namespaces", "kernel"),
        (errno.EAGAIN, "pid", USER, "EAGAIN", "again"),
    ],
)
def test_why_a_clone_fails(number, kind, facts, why, way_out):
    """Each known cause of a refused namespace is told apart, and its remedy named."""
    found = advice.explain_clone(number, kind, facts)

    assert why in found[0]
    assert errno.errorcode[number] in found[0]
    assert way_out in found[1]


@pytest.mark.parametrize(
    ("number", "what", "facts", "why", "way_out"),
    [
        (errno.EPERM, "proc", CONTAINER, "masked", "systempaths=unconfined"),
        (errno.EPERM, "tmpfs", CONTAINER, "seccomp profile", "seccomp=unconfined"),
        (
            errno.EACCES,
            "tmpfs",
            {**CONTAINER, "apparmor": "docker-default (enforce)"},
            "docker-default",
            "apparmor=",
        ),
        (
            errno.EACCES,
            "tmpfs",
            {**USER, "kernel.apparmor_restrict_unprivileged_userns": "1"},
            "apparmor_restrict",
            "userns,",
        ),
        (errno.EINVAL, "pivot_root", {"uid": "0"}, "initramfs", "rootfs"),
        (errno.ENOMEM, "tmpfs", USER, "ENOMEM", "dmesg"),
    ],
)
def test_why_a_mount_fails(number, what, facts, why, way_out):
    """Each known cause of a refused mount is told apart, and its remedy named."""
    found = advice.explain_mount(number, what, facts)

    assert why in found[0]
    assert way_out in found[1]


def test_why_maps_cannot_be_written():
    """Ubuntu's restriction shows when the maps are written."""
    facts = {**USER, "kernel.apparmor_restrict_unprivileged_userns": "1"}

    assert "AppArmor profile" in advice.explain_map(errno.EPERM, facts)[1]
    assert "/proc" in advice.explain_map(errno.EROFS, USER)[1]


@pytest.mark.parametrize(
    ("facts", "way_out"),
    [
        (CONTAINER, "docker run --security-opt writable-cgroups"),
        ({**USER, "systemd": "1"}, "systemd-run --user --scope -p Delegate=yes"),
        (USER, "Let root make a cgroup"),
        ({"uid": "0"}, "writable"),
    ],
)
def test_why_there_is_no_cgroup(facts, way_out):
    """Container, user and root are each told what helps them."""
    why, found = advice.explain_no_cgroup(["one", "two"], facts)

    assert why == "one; two"
    assert way_out in found
    folders = [f"cgroup v1: '/cg/{name}' is not writable" for name in ("memory", "pids")]
    assert (
        advice.explain_no_cgroup(["one", *folders], facts)[0]
        == "one; cgroup v1: 2 folders are not writable, such as '/cg/memory'"
    )


def test_hardening_compares_with_good_values():
    """A setting within its range is good; one outside is named with its value and the advised one."""
    facts = {"kernel.kptr_restrict": "0", "kernel.dmesg_restrict": "1", "kernel.perf_event_paranoid": "-1"}
    found = {name: (good, why, way_out) for name, good, why, way_out in advice.hardening(facts)}

    assert set(found) == set(facts)
    assert found["kernel.dmesg_restrict"] == (True, "kernel.dmesg_restrict is 1", "")
    assert found["kernel.kptr_restrict"][0] is found["kernel.perf_event_paranoid"][0] is False
    assert "kernel.perf_event_paranoid=2" in found["kernel.perf_event_paranoid"][2]


def test_facts_are_read(tmp_path):
    """Settings, filter mode and profile are found where the kernel shows them; the rest is left out."""
    for name, content in {
        "sys/kernel/kptr_restrict": "1\n",
        "sys/user/max_user_namespaces": "0\n",
        "self/status": "Name:\tx\nSeccomp:\t2\n",
        "self/attr/current": "docker-default (enforce)\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    facts = advice.read_facts(str(tmp_path))

    assert facts["kernel.kptr_restrict"] == "1"
    assert facts["user.max_user_namespaces"] == "0"
    assert facts["seccomp"] == "2"
    assert facts["apparmor"] == "docker-default (enforce)"
    assert "kernel.dmesg_restrict" not in facts


def test_a_probe_that_cannot_run_is_reported(monkeypatch):
    """If the process of the trials fails, its words are in the error."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(JailError, match="probe: no answer"):
        probe.probe()


def test_the_probe_of_an_ordinary_user(tmp_path):
    """Somebody without rights gets the required layers too."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")

    python = "/usr/bin/python3"
    package = os.path.dirname(os.path.dirname(os.path.abspath(probe.__file__)))
    if not os.path.exists(python):
        pytest.skip("needs a Python that everybody may run")

    program = f"import sys; sys.path.insert(0, {package!r}); from fumehood_jail import probe; probe.main()"
    done = subprocess.run(
        [python, "-I", "-S", "-c", program],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        check=True,
    )
    layers = {fields["name"]: fields for fields in json.loads(done.stdout)}
    assert {name: layers[name]["why"] for name in REQUIRED if layers[name]["state"] != "there"} == {}
