"""Shared data of all steps of a build, and the state of a stage's image.

Plain data of the host process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fumehood.templates.images.context import BuildContext
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.description import ImageConfig
from fumehood.templates.images.layers import LayerStore
from fumehood.templates.images.step_group import default_memory_bytes
from fumehood.values.network import Network
from fumehood_jail import users

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """An image that is in the store already.

    Attributes:
        layers: Names of its layers, the lowest first.
        config: How its programs are started.
    """

    layers: tuple[str, ...]
    config: ImageConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The limits of one step.

    Attributes:
        seconds: How long it may run.
        max_bytes: How much it may write.
        max_entries: How many files COPY or ADD may bring.
        memory_bytes: How much memory all its processes may take together, where there are control groups.
    """

    seconds: float = 3600.0
    max_bytes: int = 20 << 30
    max_entries: int = 300_000
    memory_bytes: int = field(default_factory=default_memory_bytes)


@dataclass(slots=True, kw_only=True)
class BuildWorkbench:
    """The data that all steps of a build share.

    Attributes:
        template: The name of the template, for messages.
        store: The store of the layers.
        context: The files of COPY and ADD.
        network: The network that programs may reach.
        arguments: Values of ARG that override those of the Dockerfile.
        limits: The limits of each step.
        logins: The logins of registries.
        say: Called with each step.
        ids: The ids of images.
        image: The image that the caller has named; only this one may be on the machine's disk.
        base: The image of a stage that begins with the template in place of an image.
        uploads: Archives that COPY takes files from, by the names behind `--from=upload:`.
    """

    template: str
    store: LayerStore
    context: BuildContext
    network: Network
    arguments: Mapping[str, str]
    limits: StepLimits
    logins: RegistryLogins
    say: Say
    ids: users.IdPlan
    image: str | None = None
    base: Base | None = None
    uploads: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StageState:
    """An image that is being built.

    Attributes:
        layers: Names of its layers, the lowest first.
        config: How its programs are started.
        arguments: Values of the ARGs that its instructions have declared.
    """

    layers: tuple[str, ...]
    config: ImageConfig
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The values of `$NAME` in an instruction."""
        return {**self.arguments, **self.config.envs}

    def folders(self, store: LayerStore) -> list[str]:
        """Returns the folders of its layers, the lowest first."""
        return [store.path(layer) for layer in self.layers]
