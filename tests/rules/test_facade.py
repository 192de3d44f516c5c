"""The synchronous and the asynchronous face are the same: name by name, parameter by parameter."""

from __future__ import annotations

import inspect
import typing

import pytest

from fumehood.api import async_sandbox, commands, explore, one_shot, pty, sandbox, time_travel
from fumehood.api import commands as command_handle
from fumehood.api import files as filesystem
from fumehood.storage import artifacts, signed_files

ASYNC_VERSIONS = [
    (sandbox.Sandbox, async_sandbox.AsyncSandbox),
    (time_travel.TimeTravel, time_travel.AsyncTimeTravel),
    (time_travel.Forking, time_travel.AsyncForking),
    (explore.Branches, explore.AsyncBranches),
    (filesystem.Filesystem, filesystem.AsyncFilesystem),
    (filesystem.Watch, filesystem.AsyncWatch),
    (commands.Commands, commands.AsyncCommands),
    (command_handle.CommandHandle, command_handle.AsyncCommandHandle),
    (pty.Pty, pty.AsyncPty),
    (pty.PtyHandle, pty.AsyncPtyHandle),
    (artifacts.ArtifactStore, artifacts.AsyncArtifactStore),
    (signed_files.SignedFiles, signed_files.AsyncSignedFiles),
]
# Steps of `run` that only the asynchronous side has, and what is an attribute there and a property here.
ONE_SIDED = {"feed", "feed_and_wait", "pid", "exit_code"}


def public_names(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")} - ONE_SIDED


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
