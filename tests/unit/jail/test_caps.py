"""Capabilities: all five sets end up empty and stay so."""

import errno
import os
import subprocess

import pytest

from fumehood_jail import caps, syscalls
from fumehood_jail.errors import JailError

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def sets():
    """The capability sets of this process as the kernel states them."""
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file)

    return {name: int(fields[name], 16) for name in SETS}


def test_drop_all_empties_every_set(in_namespaces):
    """After `drop_all` nothing is left; before it everything was there."""

    def drop():
        before = sets()
        caps.drop_all()
        return [before["CapEff"] == before["CapBnd"] != 0, sets()]

    assert in_namespaces(syscalls.CLONE_NEWNS, drop) == [True, dict.fromkeys(SETS, 0)]


def test_nothing_comes_back(in_namespaces):
    """Neither setuid, executing as root, the ambient set nor new secure bits give a capability back."""

    def drop_and_try():
        caps.drop_all()
        shown = subprocess.run(
            ["grep", "^Cap", "/proc/self/status"], capture_output=True, text=True, check=True
        )
        refused = []
        for function, arguments in (
            (syscalls.prctl, (syscalls.PR_SET_SECUREBITS, 0)),
            (syscalls.prctl, (syscalls.PR_CAP_AMBIENT, 2, 21)),
            (syscalls.capset, (1 << 21, 1 << 21, 0)),
            (os.setgroups, ([],)),
            (syscalls.sethostname, ("changed",)),
        ):
            try:
                function(*arguments)
            except OSError as error:
                refused.append(error.errno)

        return [sorted({int(line.split()[1], 16) for line in shown.stdout.splitlines()}), refused]

    assert in_namespaces(syscalls.CLONE_NEWUTS, drop_and_try) == [[0], [errno.EPERM] * 5]


def test_seal_then_change_user_then_drop(in_namespaces):
    """`seal` lets the user id change keep what `drop_all` needs; all is empty in the end."""

    def change():
        caps.seal()
        sealed = sets()
        os.setresuid(0, 0, 0)
        caps.drop_all()
        return [sealed["CapEff"] != 0, sealed["CapBnd"], sets()]

    assert in_namespaces(0, change) == [True, 0, dict.fromkeys(SETS, 0)]


def test_keep_only(in_namespaces):
    """Only the named capabilities remain, also after executing as root of the namespace."""
    kept = frozenset({"CAP_SETUID", "CAP_SETGID", "CAP_KILL"})
    mask = 1 << 7 | 1 << 6 | 1 << 5

    def keep():
        caps.keep_only(kept)
        shown = subprocess.run(
            ["grep", "CapEff", "/proc/self/status"], capture_output=True, text=True, check=True
        )
        return [sets(), int(shown.stdout.split()[1], 16)]

    expected = {"CapInh": 0, "CapPrm": mask, "CapEff": mask, "CapBnd": mask, "CapAmb": 0}
    assert in_namespaces(0, keep) == [expected, mask]


def test_sealing_without_the_right_is_an_error(in_namespaces):
    """Without CAP_SETPCAP and with a bounding set left, the launch ends instead of going on half-dropped."""

    def drop():
        syscalls.capset(0, 0, 0)
        try:
            caps.drop_all()
        except JailError as error:
            return [error.step, error.errno]

        return None

    assert in_namespaces(0, drop) == ["capabilities", errno.EPERM]


def test_unknown_names_are_refused():
    """A misspelt capability is not quietly dropped."""
    with pytest.raises(KeyError, match="CAP_SYS_ADMINN"):
        caps.keep_only(frozenset({"CAP_SYS_ADMINN"}))


def test_capability_numbers_agree_with_the_kernel_header():
    """The order of the names is that of linux/capability.h."""
    header = "/usr/include/linux/capability.h"
    if not os.path.exists(header):
        pytest.skip("no kernel headers are installed")

    with open(header, encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith("#define CAP_")]

    stated = {words[1]: int(words[2]) for words in lines if len(words) == 3 and words[2].isdigit()}
    assert stated == caps._NUMBERS
