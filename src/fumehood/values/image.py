"""The root of sandboxes that are made from a container image: its layers, and how programs in it are started.

Plain data of the host process. The layers are folders of the layer store; nothing in them runs outside of a jail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.values.guest_paths import HOME_PATH


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRoot:
    """An image as a template's root.

    Attributes:
        store: The folder of the layer store.
        layers: Names of the layers in it, the lowest first.
        version: The version of the Python that runs code: major, minor and micro.
        python: That Python's path in the image; empty for the private one, which is in `interpreter`.
        interpreter: Name of the layer with the private Python; empty if the image's own is used.
        packages: Name of the layer with the guest's packages for the image's own Python; empty for the private one.
        envs: Environment variables of the image, only for programs in its sandboxes.
        workdir: The folder in which code and commands start.
        volumes: Further folders that sandboxes may write, as the image names them.
        links: The folders of the image that lead to a sandbox's own copy, `workdir` among them.
        user: The name of the one user in its sandboxes.
        shell: That user's shell.
    """

    store: str
    layers: tuple[str, ...]
    version: tuple[int, int, int]
    python: str = ""
    interpreter: str = ""
    packages: str = ""
    envs: Mapping[str, str] = field(default_factory=dict, hash=False)
    workdir: str = HOME_PATH
    volumes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    user: str = "user"
    shell: str = "/bin/bash"

    def path(self, layer: str) -> str:
        """Returns the folder of a layer's content."""
        return f"{self.store}/{layer}/root"

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of all layers that it is made of."""
        return tuple(name for name in (*self.layers, self.interpreter, self.packages) if name)
