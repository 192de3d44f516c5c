"""User ids: plans that fit the rights of the caller, and maps that really get written."""

import json
import os
import pwd

import pytest

from fumehood_jail import syscalls, users
from fumehood_jail.errors import JailError


def read_maps_of_clone(plan):
    """Writes a plan's maps for a child in a new user namespace; returns uid_map, gid_map and setgroups."""
    read_fd, write_fd = os.pipe()
    pid = syscalls.clone(syscalls.CLONE_NEWUSER)
    if pid == 0:
        os.close(write_fd)
        os.read(read_fd, 1)
        os._exit(0)

    try:
        users.write_maps(pid, plan)
        with open(f"/proc/{pid}/setgroups", encoding="ascii") as file:
            setgroups = file.read().strip()

        maps = [users.read_id_map(f"/proc/{pid}/{name}") for name in ("uid_map", "gid_map")]
        return [*maps, setgroups]
    finally:
        os.close(read_fd)
        os.close(write_fd)
        os.waitpid(pid, 0)


def as_ordinary_user(in_child, function, uid=65534):
    """Runs a function in a child that has given up root, or says that it cannot."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")

    def become():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        return function()

    return in_child(become)


@pytest.fixture
def root(tmp_path):
    """The folder for locks, where root can take ranges at all."""
    if os.geteuid() != 0 or users.read_id_map("/proc/self/uid_map") != [(0, 0, 4294967295)]:
        pytest.skip("needs root of a system with all ids")

    return str(tmp_path / "run" / "uids")


def test_root_takes_a_block_that_belongs_to_nobody(root):
    """Root gets 65536 ids beyond those of systemd, one for each sandbox; its own id is not among them."""
    plan = users.plan_ids(root)

    first = plan.uid_map[0][1]
    assert (plan.kind, plan.first_id, plan.count) == ("range", 1, 65535)
    assert plan.uid_map == plan.gid_map == [(0, first, 65536)]
    assert first >= 0x70000000
    assert first % 65536 == 0
    assert os.stat(root).st_mode & 0o777 == 0o700
    os.close(plan.lock_fd)


def test_blocks_are_not_shared(root):
    """While a plan's lock is open nobody else gets its block; afterwards somebody may."""
    taken, fd = users._reserve(root, [1, 2])
    other, other_fd = users._reserve(root, [1, 2])

    assert {taken, other} == {1, 2}
    with pytest.raises(JailError, match="2 blocks"):
        users._reserve(root, [1, 2])

    os.close(fd)
    again, again_fd = users._reserve(root, [1, 2])
    assert again == taken
    os.close(other_fd)
    os.close(again_fd)


def test_a_lock_outlives_only_its_process(root, in_child):
    """A block whose holder was killed is free again."""

    def reserve_and_die():
        users._reserve(root, [7])
        return True

    assert in_child(reserve_and_die)
    block, fd = users._reserve(root, [7])
    assert block == 7
    os.close(fd)


def test_somebody_elses_folder_is_not_trusted(tmp_path):
    """A folder for locks that others may write ends the launch."""
    folder = tmp_path / "uids"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(JailError, match="only its owner"):
        users._reserve(str(folder), [1])


def test_the_maps_of_a_range_are_written(root):
    """The child's maps are those of the plan, and it can never change its groups."""
    plan = users.plan_ids(root)

    assert read_maps_of_clone(plan) == [plan.uid_map, plan.gid_map, "deny"]
    os.close(plan.lock_fd)


def test_an_ordinary_user_without_subuids_has_one_id(in_child):
    """Somebody with no listed range maps the own id, and the plan says that sandboxes share it."""

    def plan():
        chosen = users.plan_ids()
        return [chosen.to_dict(), read_maps_of_clone(chosen)]

    chosen, maps = as_ordinary_user(in_child, plan)
    assert (chosen["kind"], chosen["count"], chosen["first_id"]) == ("single", 1, 0)
    assert maps == [[[0, 65534, 1]], [[0, 65534, 1]], "deny"]
    assert "share" in " ".join(chosen["notes"])


def test_an_ordinary_user_with_subuids_has_many_ids(in_child):
    """Somebody with listed ranges gets a block of them through newuidmap; root inside is the user."""
    uid = _user_with_subuids()

    def plan():
        chosen = users.plan_ids()
        return [chosen.to_dict(), read_maps_of_clone(chosen)]

    chosen, maps = as_ordinary_user(in_child, plan, uid)
    assert chosen["kind"] == "subuid"
    assert chosen["count"] > 1
    assert maps == [chosen["uid_map"], chosen["gid_map"], "allow"]
    assert chosen["uid_map"][0] == [0, uid, 1]


def test_no_new_privs_rules_out_newuidmap(in_child):
    """Where newuidmap could not gain its rights, the plan says so and takes the single id."""
    uid = _user_with_subuids()

    def plan():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        return users.plan_ids().to_dict()

    chosen = as_ordinary_user(in_child, plan, uid)
    assert chosen["kind"] == "single"
    assert "no_new_privs" in " ".join(chosen["notes"])


def test_supplementary_groups_can_be_dropped(in_namespaces):
    """Where the namespace forbids setgroups, the answer is no; nothing raises."""

    def drop():
        return [users.drop_supplementary_groups(), os.getgroups() == []]

    dropped, none_left = in_namespaces(0, drop)
    assert dropped == none_left


def test_a_plan_survives_json():
    """The launcher gets the same plan that the host made, without the lock."""
    plan = users.IdPlan(
        "subuid", [(0, 1000, 1), (1, 100000, 9)], [(0, 1000, 1), (1, 100000, 9)], 1, 9, ["note"], 5
    )

    copy = users.IdPlan.from_dict(json.loads(json.dumps(plan.to_dict())))

    assert copy.to_dict() == plan.to_dict()
    assert copy.uid_map == [(0, 1000, 1), (1, 100000, 9)]
    assert copy.lock_fd is None


def test_subordinate_ranges_are_read(tmp_path):
    """Lines for the user's name and number count; comments, others and nonsense do not."""
    me = pwd.getpwuid(os.getuid()).pw_name
    listed = tmp_path / "subuid"
    listed.write_text(f"{me}:100:5\n{os.getuid()}:200:6\nsomebody:300:7\n{me}:x:8\n# {me}:1:1\n\n")

    assert users.subordinate_ranges(str(listed)) == [(100, 5), (200, 6)]
    assert users.subordinate_ranges(str(tmp_path / "missing")) == []


def test_blocks_cover_the_ranges():
    """Ranges are cut into blocks that cover them without overlap."""
    assert list(users._blocks([(0, 4097), (10000, 3)])) == [(0, 4096), (4096, 1), (10000, 3)]


def test_a_refused_map_names_process_and_value():
    """Maps that the kernel refuses raise with the step and what was to be written."""
    plan = users.IdPlan("single", [(0, os.geteuid(), 1)], [(0, os.getegid(), 1)], 0, 1, [])

    with pytest.raises(JailError, match="map-ids"):
        users.write_maps(2**22 + 1, plan)


def _user_with_subuids():
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")

    for entry in pwd.getpwall():
        with open("/etc/subuid", encoding="utf-8") as uids, open("/etc/subgid", encoding="utf-8") as gids:
            listed = [any(line.startswith(f"{entry.pw_name}:") for line in file) for file in (uids, gids)]

        if entry.pw_uid != 0 and all(listed) and users.find_program("newuidmap"):
            return entry.pw_uid

    pytest.skip("needs an ordinary user with ranges in /etc/subuid, and newuidmap")
    raise AssertionError


def test_blocks_are_those_that_every_map_has_whole():
    """What one line maps needs no look at each block, and a gap in either map leaves a block out."""
    blocks = range(1000, 5000, 1000)
    whole = [(0, 100000, 1 << 20)]
    gap = [(0, 100000, 2500), (2600, 200000, 10000)]
    assert users._mapped_blocks([whole, whole], blocks, 1000) == [1000, 2000, 3000, 4000]
    assert users._mapped_blocks([whole, gap], blocks, 1000) == [1000, 3000, 4000]
    assert users._mapped_blocks([gap, whole], blocks, 1000) == [1000, 3000, 4000]
    assert users._mapped_blocks([whole, [(0, 100000, 900)]], blocks, 1000) == []
