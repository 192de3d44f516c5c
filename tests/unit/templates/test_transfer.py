"""Templates that are carried from one store to another: whole, or not at all."""

from __future__ import annotations

import io
import json
import os
import tarfile

import pytest

from fumehood import TemplateStoreError
from fumehood.daemon.templates import BuildTimes
from fumehood.templates.carried import pack, unpack


def packed(shelf, name="mine") -> bytes:
    out = io.BytesIO()
    pack(shelf.open(), name, out)
    return out.getvalue()


def rewritten(stream: bytes, change) -> bytes:
    """A stream whose record, and further entries, are other ones."""
    out = io.BytesIO()

    with tarfile.open(fileobj=io.BytesIO(stream)) as old, tarfile.open(fileobj=out, mode="w") as new:
        entries = [(entry, old.extractfile(entry)) for entry in old]
        head = json.loads(entries[0][1].read())
        more = change(head) or []
        body = json.dumps(head).encode()
        entries[0][0].size = len(body)
        new.addfile(entries[0][0], io.BytesIO(body))

        for entry, content in [*more, *entries[1:]]:
            new.addfile(entry, content)

    return out.getvalue()


@pytest.fixture
def sent(shelf) -> bytes:
    """The stream of a template that has an interpreter; the template is removed."""
    info = shelf.put("mine", preload=("json",))
    assert info.name == "mine"
    os.chmod(os.path.join(shelf.folder, "builds", shelf.builds()[0], "python"), 0o755)
    stream = packed(shelf)
    assert shelf.open().remove("mine")
    return stream


def test_it_is_the_same_in_the_other_store(shelf, sent):
    store = shelf.open()
    assert unpack(store, "mine", io.BytesIO(sent)) is True
    template = store.find("mine")
    assert (template.preload, template.envs) == (("json",), {"A": "b"})

    with open(template.python, encoding="utf-8") as file:
        assert file.read() == "no interpreter"

    assert unpack(store, "mine", io.BytesIO(sent)) is False


def test_a_later_build_is_not_replaced_by_an_earlier_one(shelf, sent):
    """The other way round it is."""
    shelf.put("mine")
    later = shelf.open().record("mine").build
    assert unpack(shelf.open(), "mine", io.BytesIO(sent)) is False
    assert shelf.open().record("mine").build == later

    def in_future(head):
        head["record"]["info"]["built_at"] = "2999-01-01T00:00:00+00:00"

    assert unpack(shelf.open(), "mine", io.BytesIO(rewritten(sent, in_future))) is True
    assert shelf.open().record("mine").build != later


def test_builds_are_dated_once_and_again_when_they_change(shelf, monkeypatch):
    """A host daemon reports the times several times a second: it reads the records of those alone that have changed."""
    first, other = shelf.put("mine").built_at.timestamp(), shelf.put("other").built_at.timestamp()
    store, times, read = shelf.open(), BuildTimes(), []
    reading = store.record
    monkeypatch.setattr(store, "record", lambda name: read.append(name) or reading(name))
    assert times.times(store) == {"mine": first, "other": other}
    assert times.times(store) == {"mine": first, "other": other}
    assert sorted(read) == ["mine", "other"]

    again = shelf.put("mine").built_at.timestamp()
    assert shelf.open().remove("other")
    assert times.times(store) == {"mine": again}
    assert read[2:] == ["mine"]


def test_what_was_cut_off_is_refused_wherever(shelf, sent):
    """Also between two entries, where a tar seems to end."""
    for length in range(0, len(sent) - 10240, 512):
        with pytest.raises(TemplateStoreError, match="damaged"):
            unpack(shelf.open(), "mine", io.BytesIO(sent[:length]))

    assert shelf.open().names() == ()
    assert shelf.builds() == []


def test_an_entry_outside_of_the_build_is_refused(shelf, sent):
    evil = tarfile.TarInfo("../../mine.json")
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, str(shelf.folder)
    through = tarfile.TarInfo("out/mine.json")

    for more in ([(evil, None)], [(link, None), (through, None)]):
        with pytest.raises(TemplateStoreError, match="damaged"):
            unpack(shelf.open(), "mine", io.BytesIO(rewritten(sent, lambda _, more=more: more)))

    assert shelf.open().names() == ()
    assert shelf.builds() == []


def _elsewhere(head):
    head["store"] = "/srv/templates"


def _other_build(head):
    head["record"]["build"] = "../mine.1234"


def _no_interpreter(head):
    head["record"]["interpreter"] = "bin/nothing"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_elsewhere, "the templates of this machine lie elsewhere"),
        (_other_build, "damaged"),
        (_no_interpreter, "its Python is not there on this machine"),
    ],
)
def test_a_template_that_cannot_be_used_here_is_refused(shelf, sent, change, words):
    with pytest.raises(TemplateStoreError, match=words):
        unpack(shelf.open(), "mine", io.BytesIO(rewritten(sent, change)))

    assert shelf.open().names() == ()


@pytest.mark.parametrize("name", ["nothing", "../mine", ""])
def test_a_template_that_is_not_there_is_not_sent(shelf, name):
    with pytest.raises(TemplateStoreError, match="none of this name"):
        packed(shelf, name)


def test_a_name_that_is_a_path_is_refused(shelf, sent):
    with pytest.raises(TemplateStoreError, match="no name"):
        unpack(shelf.open(), "../mine", io.BytesIO(sent))
