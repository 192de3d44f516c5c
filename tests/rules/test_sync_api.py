"""The synchronous and the asynchronous face are the same: name by name, parameter by parameter."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import typing

import pytest

from fumehood.api import async_sandbox, commands, explore, files, one_shot, pty, sandbox
from fumehood.storage import artifacts, signed_files

ROOT = pathlib.Path(__file__).parents[2]

ASYNC_VERSIONS = [
    (sandbox.Sandbox, async_sandbox.AsyncSandbox),
    (explore.Branches, explore.AsyncBranches),
    (sandbox.Filesystem, files.AsyncFilesystem),
    (sandbox.Watch, files.AsyncWatch),
    (sandbox.Commands, commands.AsyncCommands),
    (sandbox.CommandHandle, commands.AsyncCommandHandle),
    (sandbox.Pty, pty.AsyncPty),
    (sandbox.PtyHandle, pty.AsyncPtyHandle),
    (artifacts.ArtifactStore, artifacts.AsyncArtifactStore),
    (signed_files.SignedFiles, signed_files.AsyncSignedFiles),
]


def public_names(kind: type) -> set[str]:
    ours = [base for base in kind.__mro__ if base.__module__.startswith("fumehood.")]
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


def shape(function: typing.Any) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults of the parameters."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("sync", "async_impl"), ASYNC_VERSIONS, ids=lambda kind: kind.__name__)
def test_the_names_are_the_same(sync, async_impl):
    """Whoever knows one face knows the other."""
    assert public_names(sync) == public_names(async_impl)


@pytest.mark.parametrize(("sync", "async_impl"), ASYNC_VERSIONS, ids=lambda kind: kind.__name__)
def test_the_parameters_are_the_same(sync, async_impl):
    """Every verb takes the same arguments with the same defaults."""
    for name in public_names(sync):
        ours, theirs = inspect.getattr_static(sync, name), inspect.getattr_static(async_impl, name)

        if isinstance(ours, property):
            assert isinstance(theirs, property)
            continue

        assert isinstance(ours, classmethod) == isinstance(theirs, classmethod)
        assert shape(getattr(sync, name)) == shape(getattr(async_impl, name)), name


def test_the_constructors_are_the_same():
    """`Sandbox(...)`, `Sandbox.create(...)` and their async versions take the same arguments."""
    expected = shape(sandbox.Sandbox.__init__)[1:]

    assert shape(async_sandbox.AsyncSandbox.__init__)[1:] == expected
    assert shape(sandbox.Sandbox.create) == expected
    assert shape(async_sandbox.AsyncSandbox.create) == expected


def test_the_synchronous_api_is_written_from_the_asynchronous_one():
    """`make sync-api` would change nothing."""
    path = ROOT / "tools" / "sync_api.py"
    spec = importlib.util.spec_from_file_location("sync_api", path)
    assert spec is not None
    assert spec.loader is not None
    sync_api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sync_api)

    assert sync_api.page() == sync_api.TARGET.read_text(encoding="utf-8"), "run `make sync-api`"


def test_the_asynchronous_api_is_documented():
    """`help(AsyncSandbox.run_code)` says what `help(Sandbox.run_code)` says."""
    for sync, async_impl in ASYNC_VERSIONS:
        for name in public_names(sync):
            ours = inspect.getdoc(inspect.getattr_static(sync, name)) or ""
            theirs = inspect.getdoc(inspect.getattr_static(async_impl, name)) or ""
            assert set(ours.split()) <= set(theirs.split()), name


def test_the_single_call_has_an_async_version():
    """`run_code` and `arun_code` take the same arguments."""
    assert shape(one_shot.run_code) == shape(one_shot.arun_code)


@pytest.mark.parametrize(("sync", "async_impl"), ASYNC_VERSIONS, ids=lambda kind: kind.__name__)
def test_the_answers_are_the_same(sync, async_impl):
    """A verb returns the same type on both faces, save for the async versions themselves."""
    for name in public_names(sync):
        ours, theirs = getattr(sync, name), getattr(async_impl, name)

        if not callable(ours) or typing.get_overloads(ours):
            continue

        expected = str(inspect.signature(theirs).return_annotation)
        expected = expected.replace("Async", "").replace("Generator[Event, None]", "Iterator[Event]")
        assert str(inspect.signature(ours).return_annotation) == expected, name
