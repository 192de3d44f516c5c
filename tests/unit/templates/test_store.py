"""The store: what is found by name, what survives whom, and what is swept away."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest

from fumehood import TemplateStoreError
from fumehood.templates.store import TemplateRecord, TemplateStore, hint_of_names, new_info
from fumehood.values.template import Template


def test_what_was_put_is_found_by_name_with_everything(shelf):
    """Another process's store finds it."""
    info = shelf.put("mine", preload=("json",))
    store = shelf.open()

    template = store.find("mine")

    assert store.names() == ("mine",)
    assert store.record("mine").info == info
    assert (template.name, template.preload, template.envs, template.files) == (
        "mine",
        ("json",),
        {"A": "b"},
        None,
    )
    assert os.path.exists(template.python)


@pytest.mark.parametrize(
    "name", ["nothing", "../mine", "/etc/passwd", "", "mine.json/..", ".mutex", "x" * 300]
)
def test_what_is_not_there_is_not_found(shelf, name):
    """A name that could be a path is never one."""
    shelf.put("mine")
    assert shelf.open().find(name) is None


def test_an_empty_store_is_no_error_and_makes_nothing(shelf):
    """Looking does not write."""
    assert shelf.open().names() == ()
    assert shelf.open().find("mine") is None
    assert not os.path.exists(shelf.folder)


def test_only_the_user_may_enter(shelf):
    """What lies there runs in sandboxes."""
    shelf.put("mine")
    assert stat.S_IMODE(os.stat(shelf.folder).st_mode) == 0o700


def test_a_new_build_takes_the_place_of_the_old_one_which_is_deleted(shelf):
    """One build stays."""
    shelf.put("mine")
    old = shelf.builds()
    shelf.put("mine", preload=("csv",))

    assert len(shelf.builds()) == 1
    assert shelf.builds() != old
    assert shelf.open().find("mine").preload == ("csv",)


def test_a_build_in_use_outlives_its_replacement_and_its_removal(shelf):
    """Whoever has found it keeps it until the store is closed."""
    shelf.put("mine")
    user = shelf.open()
    template = user.find("mine")

    shelf.put("mine")
    assert os.path.exists(template.python)
    assert len(shelf.builds()) == 2
    shelf.open().remove("mine")
    assert os.path.exists(template.python)
    assert shelf.open().names() == ()

    user.close()
    shelf.open().sweep()
    assert shelf.builds() == []


def test_removal_says_whether_the_files_are_gone(shelf):
    """True when nobody used it, false while somebody does."""
    shelf.put("free")
    shelf.put("used")
    user = shelf.open()
    user.find("used")

    assert shelf.open().remove("free") is True
    assert shelf.open().remove("used") is False
    assert sorted(os.listdir(shelf.folder)) == [".mutex", "builds"]
    user.close()


def test_a_build_that_fails_leaves_the_old_one_and_no_rubbish(shelf):
    """Whatever is raised."""
    shelf.put("mine")
    before = shelf.builds()
    store = shelf.open()

    def give_up():
        with store.building("mine", print), store.new_build("mine") as build:
            os.mkdir(os.path.join(build.folder, "half"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()

    assert shelf.builds() == before
    assert store.find("mine") is not None


def test_what_a_killed_builder_left_is_swept_away(shelf):
    """Its lock has died with it."""
    shelf.put("mine")
    before = shelf.builds()
    program = (
        "import os, sys\n"
        "from fumehood.templates.store import TemplateStore\n"
        "store = TemplateStore(sys.argv[1])\n"
        "with store.building('mine', print), store.new_build('mine') as build:\n"
        "    print(build.name, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", program, shelf.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    with builder:
        name = builder.stdout.readline().strip()
        shelf.open().sweep()
        assert name in shelf.builds()
        with pytest.raises(TemplateStoreError, match="being built"):
            shelf.open().remove("mine")
        builder.kill()

    shelf.open().sweep()
    assert shelf.builds() == before


def test_two_builds_of_one_name_come_one_after_the_other(shelf):
    """The second waits, says so, and sees what the first has made."""
    first = shelf.open()
    heard: list[str] = []
    waits = threading.Event()
    seen: list[object] = []

    def say(text: str) -> None:
        heard.append(text)
        waits.set()

    def second() -> None:
        with shelf.open().building("mine", say):
            seen.append(shelf.open().record("mine"))

    with first.building("mine", print):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        assert seen == []
        info = _publish(first)

    thread.join()
    assert heard == ["waiting for another build of 'mine'"]
    assert seen[0].info == info


def test_builds_of_two_names_do_not_wait_for_each_other(shelf):
    """The lock is the name's."""
    with shelf.open().building("one", pytest.fail):
        shelf.put("two")

    assert shelf.open().names() == ("two",)


def test_a_lock_whose_file_was_removed_excludes_nobody(shelf):
    """Whoever waited through a removal takes the new file's lock."""
    shelf.put("mine")
    shelf.open().remove("mine")
    shelf.put("mine")
    assert shelf.open().names() == ("mine",)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"info": 3}', '{"info": {"name": "mine"}, "build": "../../x", "interpreter": "p"}'],
)
def test_a_damaged_record_is_named_and_deletes_nothing(shelf, text):
    """The way out is in the error."""
    shelf.put("mine")
    before = shelf.builds()

    with open(os.path.join(shelf.folder, "mine.json"), "w", encoding="utf-8") as file:
        file.write(text)

    with pytest.raises(TemplateStoreError, match=r"'mine'.*damaged") as caught:
        shelf.open().find("mine")

    assert "--force" in caught.value.hint
    shelf.open().sweep()
    assert shelf.builds() == before
    shelf.open().remove("mine")
    assert (shelf.open().names(), shelf.builds()) == ((), [])


def test_a_store_that_cannot_be_made_or_read_is_named(shelf, tmp_path):
    """With the setting that leads elsewhere."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "mine.json").symlink_to("mine.json")
    with pytest.raises(TemplateStoreError, match="cannot be read") as caught:
        shelf.open().find("mine")

    assert "FUMEHOOD_HOME" in caught.value.hint
    store = TemplateStore(str(tmp_path / "templates" / "mine.json" / "deeper"))

    def build():
        with store.building("x", print):
            pass

    with pytest.raises(TemplateStoreError, match="cannot be made"):
        build()


def test_a_record_cannot_lead_out_of_its_builds(shelf):
    """The folder of a build is one of ours, and this template's."""
    shelf.put("mine")
    path = os.path.join(shelf.folder, "mine.json")

    with open(path, encoding="utf-8") as file:
        text = file.read()

    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(shelf.builds()[0], "../../elsewhere"))

    with pytest.raises(TemplateStoreError):
        shelf.open().find("mine")


def test_names_that_are_like_an_unknown_one_come_first():
    """The reader finds the typing error."""
    assert hint_of_names("pandsa", ["default", "pandas", "other"]) == "did you mean 'pandas'?"
    assert "'default'" in hint_of_names("zzz", ["default"])
    assert hint_of_names("zzz", []) == "`fumehood template build` makes one"


def _publish(store):
    with store.new_build("mine") as build:
        template = Template(name="mine", preload=())
        info = new_info(template, version=(3, 11, 0), size_bytes=0, fingerprint="f")
        store.publish(TemplateRecord(info=info, build=build.name, interpreter="python"))

    return info
