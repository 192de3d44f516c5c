"""A store in a folder of the test, and templates in it that nobody has to install."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from fumehood.templates.store import TemplateInfo, TemplateRecord, TemplateStore, new_info
from fumehood.values.template import Template


@dataclass
class Shelf:
    """A store, and a short way to put something into it."""

    folder: str
    heard: list[str] = field(default_factory=list)

    def open(self) -> TemplateStore:
        """Another process's view of the same folder."""
        return TemplateStore(self.folder)

    def put(self, name: str, *, preload: tuple[str, ...] = ()) -> TemplateInfo:
        store = self.open()

        with store.building(name, self.heard.append), store.new_build(name) as build:
            python = os.path.join(build.folder, "python")

            with open(python, "w", encoding="utf-8") as file:
                file.write("no interpreter")

            template = Template(name=name, python=python, preload=preload, envs={"A": "b"})
            info = new_info(template, version=(3, 11, 0), size_bytes=5, fingerprint="f")
            store.publish(TemplateRecord(info=info, build=build.name, interpreter="python"))

        return info

    def builds(self) -> list[str]:
        return sorted(os.listdir(os.path.join(self.folder, "builds")))


@pytest.fixture
def shelf(tmp_path) -> Shelf:
    return Shelf(str(tmp_path / "templates"))
