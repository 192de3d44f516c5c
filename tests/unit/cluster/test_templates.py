"""Templates of a cluster: which machine a template is brought to, and from which one; no machine is asked here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from fumehood import TemplateStoreError
from fumehood.cluster import templates as module
from fumehood.cluster.placement import Report
from fumehood.cluster.templates import Templates
from fumehood.values.sandbox import Capacity

_CAPACITY = Capacity(
    sandboxes=0,
    max_sandboxes=8,
    memory_available_bytes=1 << 30,
    memory_total_bytes=1 << 30,
    cpu_cores=2,
    load=0.0,
    host_id="",
    incarnation="1",
    version="1",
)


class Host:
    """What stands for the port to a host daemon: it notes what is copied from it."""

    def __init__(self, name: str, copied: list[tuple[str, str]]) -> None:
        self.name = name
        self.copied = copied
        self.refuses = False

    async def copy_template(self, _name: str, target: Host) -> None:
        await asyncio.sleep(0)

        if target.refuses:
            raise TemplateStoreError(template="mine", operation="carry", reason="its disk is full")

        self.copied.append((self.name, target.name))


class Scene:
    """Some machines, their last reports, and the templates of the cluster."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **built_at: float | None) -> None:
        self.copied: list[tuple[str, str]] = []
        self.hosts = {name: Host(name, self.copied) for name in built_at}
        self.reports: dict[str, Report] = {}
        self.templates = Templates(loop, lambda: self.reports, self.hosts.__getitem__)  # type: ignore[arg-type]

        for name, seconds in built_at.items():
            self.report(name, seconds)

    def report(self, name: str, built_at: float | None) -> None:
        """A machine reports: it has a build of that time, or none."""
        has = {} if built_at is None else {"mine": built_at}
        capacity = replace(_CAPACITY, host_id=name)
        self.reports[name] = Report(capacity=capacity, templates=frozenset(has), built_at=has)
        self.templates.note(self.reports[name])


def on_scene(work: Callable[[Scene], Awaitable[None]], **built_at: float | None) -> None:
    """Runs work on a loop of its own."""

    async def run() -> None:
        await work(Scene(asyncio.get_running_loop(), **built_at))

    asyncio.run(run())


def test_an_earlier_build_is_replaced_by_the_latest_one() -> None:
    """From the machine that has it, once, also for two callers, and before that machine reports it."""

    async def work(scene: Scene) -> None:
        there = scene.templates.are_there
        assert await asyncio.gather(there("mine", "old"), there("mine", "old")) == [True, True]
        assert scene.copied == [("new", "old")]
        assert await there("mine", "old")
        assert await there("mine", "new")
        assert scene.copied == [("new", "old")]

        # It is built anew again: what has just come is no longer the latest.
        scene.report("new", 3.0)
        assert await there("mine", "old")
        assert scene.copied == [("new", "old")] * 2

    on_scene(work, old=1.0, new=2.0)


def test_a_machine_that_lacks_it_gets_the_latest_build() -> None:
    async def work(scene: Scene) -> None:
        assert await scene.templates.are_there("mine", "bare")
        assert scene.copied == [("new", "bare")]

    on_scene(work, old=1.0, bare=None, new=2.0)


def test_a_machine_that_refuses_goes_on_with_its_own_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has none is left out for a while; both are asked again later."""

    async def work(scene: Scene) -> None:
        scene.hosts["old"].refuses = scene.hosts["bare"].refuses = True
        assert await scene.templates.are_there("mine", "old")
        assert not await scene.templates.are_there("mine", "bare")
        scene.hosts["old"].refuses = scene.hosts["bare"].refuses = False
        assert not await scene.templates.are_there("mine", "bare")
        assert scene.copied == []

        monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
        assert await scene.templates.are_there("mine", "bare")
        assert await scene.templates.are_there("mine", "old")
        assert scene.copied == [("new", "bare"), ("new", "old")]

    on_scene(work, old=1.0, bare=None, new=2.0)


def test_the_latest_build_of_a_machine_that_is_gone_is_waited_for_by_none() -> None:
    async def work(scene: Scene) -> None:
        del scene.reports["new"]
        assert await scene.templates.are_there("mine", "old")
        assert await scene.templates.are_there("mine", "bare")
        assert scene.copied == [("old", "bare")]

    on_scene(work, old=1.0, bare=None, new=2.0)


def test_what_no_machine_has_or_can_send_is_left_to_the_machine() -> None:
    """The machine says that there is no such template; those of container images are made where they are."""

    async def work(scene: Scene) -> None:
        anywhere: Any = scene.templates.are_there
        assert await anywhere("other", "old")
        assert await anywhere("", "old")
        image = replace(scene.reports["old"], built_at={})
        scene.reports["old"] = image
        assert await anywhere("mine", "old")
        assert scene.copied == []

    on_scene(work, old=1.0, new=2.0)
