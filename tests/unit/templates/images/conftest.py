"""A store of layers, and images to pull into it."""

from __future__ import annotations

import pytest
from tests.image_layouts import Layout

from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.description import ImageDescription
from fumehood.templates.images.layers import LayerStore
from fumehood.templates.images.pull import UnpackBounds, pull
from fumehood.templates.images.reference import read_reference


class Bench:
    """A layout, a store, and a short way from one to the other."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.layout = Layout(folder / "layout")
        self.store = LayerStore(str(folder / "layers"))
        self.heard: list[str] = []

    def pull(
        self,
        reference: str | None = None,
        *,
        bounds: UnpackBounds | None = None,
        environment: dict[str, str] | None = None,
    ) -> ImageDescription:
        wanted = read_reference(reference or f"oci:{self.layout.folder}")

        with self.store.in_use():
            return pull(
                wanted, self.store, RegistryLogins(environment or {}), say=self.heard.append, bounds=bounds
            )

    def leftovers(self) -> list[str]:
        """What the store holds besides whole layers."""
        folder = self.folder / "layers"
        whole = {*self.store.keys(), ".lock"}
        return [path.name for path in folder.iterdir() if path.name not in whole] if folder.exists() else []


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)
