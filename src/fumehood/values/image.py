"""The root of sandboxes that are made from a container image: its layers, and how programs in it are started.

Plain data of the host process. The layers are folders of the layer store; nothing in them runs outside of a jail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.values.guest_paths import HOME_PATH

# In the content of a layer of bytecode: files for the paths of the image itself, the guest's packages with theirs, and
# the files of our guest code, which is copied into each base jail.
BYTECODE_OF_IMAGE = "image"
BYTECODE_OF_PACKAGES = "packages"
BYTECODE_OF_GUEST = "guest.json"


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
        bytecode: Name of the layer with what the image's own Python compiles at each start: a copy of `packages` with
            its bytecode, that of the image's own modules, and that of our guest code; empty if there is none.
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
    bytecode: str = ""
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
    def folders(self) -> list[str]:
        """The folders that make up the root, the lowest first: bytecode adds files, and replaces none."""
        below = [f"{self.path(self.bytecode)}/{BYTECODE_OF_IMAGE}"] if self.bytecode else []
        return [*below, *map(self.path, self.layers)]

    @property
    def packages_folder(self) -> str:
        """The folder of the guest's packages; empty for the private interpreter."""
        if self.bytecode:
            return f"{self.path(self.bytecode)}/{BYTECODE_OF_PACKAGES}"

        return self.path(self.packages) if self.packages else ""

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of all layers that it is made of."""
        return tuple(name for name in (*self.layers, self.interpreter, self.packages, self.bytecode) if name)
