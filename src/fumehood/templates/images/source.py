"""The sources of named templates from images: an image as it is, or one built from a Dockerfile, by us or by buildah.

Runs in the host process. An image is equal to an earlier one when the digest that its registry, folder or archive names
now is the same; a build, when all of its steps have led to the same layers. Our guest code is an input of both, since
the root of an image with its own Python has its bytecode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from fumehood.errors import InvalidArgumentError
from fumehood.templates.guest_code import guest_code_digest
from fumehood.templates.images.build import NO_IMAGE, build_image
from fumehood.templates.images.context import BuildContext
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.description import ImageConfig, describe
from fumehood.templates.images.dockerfile import Dockerfile, Instruction, read_dockerfile
from fumehood.templates.images.image_template import make_root
from fumehood.templates.images.jailed import image_ids
from fumehood.templates.images.layers import LayerStore, layer_key
from fumehood.templates.images.outer_builder import OuterBuild, build_outside, check_builder
from fumehood.templates.images.pull import open_source, pull
from fumehood.templates.images.reference import read_reference
from fumehood.templates.images.workbench import Base, BuildWorkbench, StepLimits
from fumehood.templates.recipe import FILES, Made, Say, Source, Workshop
from fumehood.values.network import Network

_MOST_CHARACTERS = 2 << 20
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.:~=-]*[a-z0-9+]|[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrder:
    """The user's options about the image of a template.

    Attributes:
        image: A reference; None with a Dockerfile.
        dockerfile: The path of a Dockerfile; None with an image.
        context: The folder of COPY and ADD; None: the folder of the Dockerfile.
        steps: Instructions that are carried out on the image.
        apt: Debian packages that are installed on it first.
        build_args: Values of ARGs.
        network: The network that steps may reach.
        instructions: Instructions that were read already, which are carried out on the image after the other steps.
        template: The name of a template that is built upon, in place of an image.
        uploads: Archives that those instructions copy from, by their names.
        limits: The limits of sandboxes that a client of E2B's API makes, by name.
        builder: A program that builds the Dockerfile in place of ours; None for ours.
    """

    image: str | None = None
    dockerfile: str | None = None
    context: str | None = None
    steps: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    instructions: tuple[Instruction, ...] = ()
    template: Base | None = None
    uploads: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    builder: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether an image is given, in any of these ways."""
        return any(one is not None for one in (self.image, self.dockerfile, self.template))

    def source(self, store: LayerStore, logins: RegistryLogins) -> Source:
        """Returns the source that makes the image.

        Raises:
            InvalidArgumentError: The options exclude each other, or one is invalid.
        """
        ways = [self.image, self.dockerfile, self.template]

        if sum(one is not None for one in ways) != 1:
            raise InvalidArgumentError(
                field="dockerfile", value=self.dockerfile, allowed="an image or a Dockerfile, not both"
            )

        if self.dockerfile is not None and (self.steps or self.apt):
            raise InvalidArgumentError(
                field="steps",
                value=[*self.steps, *self.apt],
                allowed="none with a Dockerfile: write them into it",
            )

        if self.builder is not None:
            return OuterSource(self._outer_build(self.builder), store)

        if self.image is not None and not self.steps and not self.apt and not self.instructions:
            return ReferencedImage(self.image, store, logins)

        name, text, context = self._text()
        settings = BuildSettings(
            context=context,
            network=self.network,
            arguments=self.build_args,
            image=self.image,
            base=self.template,
            uploads=self.uploads,
        )
        dockerfile = read_dockerfile(text, name)
        dockerfile.stages[-1].instructions.extend(self.instructions)
        return DockerfileSource(dockerfile, name, store, logins, settings)

    def _outer_build(self, builder: str) -> OuterBuild:
        """Returns the source for a build by another builder.

        Raises:
            InvalidArgumentError: There is no Dockerfile, or the builder is not supported.
        """
        check_builder(builder)

        if self.dockerfile is None:
            raise InvalidArgumentError(field="builder", value=builder, allowed="a Dockerfile beside it")

        path = os.path.abspath(self.dockerfile)
        dockerfile_text(path)
        context = os.path.abspath(self.context or os.path.dirname(path))
        return OuterBuild(builder=builder, dockerfile=path, context=context, arguments=self.build_args)

    def _text(self) -> tuple[str, str, str | None]:
        """Returns the name and the text of the Dockerfile, and its context."""
        if self.dockerfile is None:
            if self.image is not None:
                read_reference(self.image)

            lines = [
                f"FROM {self.image if self.image is not None else NO_IMAGE}",
                *_apt_steps(self.apt),
                *self.steps,
            ]

            if broken := next((line for line in lines if "\n" in line), None):
                raise InvalidArgumentError(
                    field="steps", value=broken, allowed="one instruction in each text"
                )

            return "steps", "\n".join(lines), self.context

        path = os.path.abspath(self.dockerfile)
        return os.path.basename(path), dockerfile_text(path), self.context or os.path.dirname(path)


def dockerfile_text(path: str) -> str:
    """Returns the text of a Dockerfile.

    Raises:
        InvalidArgumentError: The Dockerfile cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        allowed = f"a file of text that can be read ({error})"
        raise InvalidArgumentError(field="dockerfile", value=path, allowed=allowed) from None


def _apt_steps(packages: Sequence[str]) -> list[str]:
    wrong = next((one for one in packages if _PACKAGE.fullmatch(one) is None), None)

    if wrong is not None:
        raise InvalidArgumentError(
            field="apt", value=wrong, allowed="names of Debian packages, as apt-get takes them"
        )

    if not packages:
        return []

    install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
    return [f"RUN apt-get update && {install} {' '.join(packages)} && rm -rf /var/lib/apt/lists/*"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """The settings of the steps of a build.

    Attributes:
        context: The folder of COPY and ADD; None for none.
        network: The network that the steps may reach.
        arguments: Values of ARGs.
        limits: The limits of each step.
        image: The image that the caller has named; None where a Dockerfile names it.
        base: The base of a build on top of a template; None for none.
        uploads: Archives that steps copy from.
    """

    context: str | None = None
    network: Network = field(default_factory=Network)
    arguments: Mapping[str, str] = field(default_factory=dict)
    limits: StepLimits = field(default_factory=StepLimits)
    image: str | None = None
    base: Base | None = None
    uploads: Mapping[str, str] = field(default_factory=dict)


class _BuiltSource(Source):
    """An image that `prepare` builds."""

    def __init__(self, store: LayerStore) -> None:
        self._store = store
        # Set by `prepare`.
        self._built: tuple[ImageConfig, tuple[str, ...]] | None = None

    def describe(self) -> dict[str, object]:
        """Returns the layers and the configuration of the built image."""
        assert self._built is not None, "it is described once it was built"
        config, layers = self._built
        return {
            "kind": "dockerfile",
            "layers": list(layers),
            "config": asdict(config),
            "guest_code": guest_code_digest(),
        }

    def make(self, workshop: Workshop) -> Made:
        """Makes the root of a template from the layers that were built."""
        assert self._built is not None, "it is made once it was built"
        config, layers = self._built
        return _made(config, layers, self._store, workshop)


class OuterSource(_BuiltSource):
    """A Dockerfile that another program builds.

    Args:
        build: The build to carry out.
        store: Where the layers go.
    """

    def __init__(self, build: OuterBuild, store: LayerStore) -> None:
        super().__init__(store)
        self._build = build

    def prepare(self, name: str, say: Say) -> None:
        """Lets the builder build the image, so that `describe` can return the result.

        Raises:
            TemplateStoreError: The builder is not installed, or has failed.
            ImageError: Its result is refused.
        """
        self._built = build_outside(self._build, name, self._store, say)


class DockerfileSource(_BuiltSource):
    """A Dockerfile, with the files of its context.

    Args:
        dockerfile: The Dockerfile.
        name: Its name, for messages.
        store: Where its layers go.
        logins: The registry logins.
        settings: The settings of its steps.
    """

    def __init__(
        self,
        dockerfile: Dockerfile,
        name: str,
        store: LayerStore,
        logins: RegistryLogins,
        settings: BuildSettings,
    ) -> None:
        super().__init__(store)
        self._dockerfile = dockerfile
        self._name = name
        self._context = BuildContext(settings.context)
        self._logins = logins
        self._settings = settings

    def prepare(self, name: str, say: Say) -> None:
        """Carries out the steps whose layers are not in the store yet, so that `describe` can return the result.

        Raises:
            TemplateStoreError: A step failed.
            ImageError: A base image cannot be pulled.
        """
        bench = BuildWorkbench(
            template=name,
            store=self._store,
            context=self._context,
            network=self._settings.network,
            arguments=self._settings.arguments,
            limits=self._settings.limits,
            logins=self._logins,
            say=say,
            ids=image_ids(name),
            image=self._settings.image,
            base=self._settings.base,
            uploads=self._settings.uploads,
        )
        self._built = build_image(self._dockerfile, self._name, bench)


class ReferencedImage(Source):
    """An image.

    Args:
        image: Its reference.
        store: Where its layers go.
        logins: The registry logins.

    Raises:
        InvalidArgumentError: The reference is invalid.
    """

    def __init__(self, image: str, store: LayerStore, logins: RegistryLogins) -> None:
        self._reference = read_reference(image)
        self._store = store
        self._logins = logins

    def describe(self) -> dict[str, object]:
        """Returns the digest and the parts of the image as its source has it now.

        Raises:
            ImageError: The image cannot be read.
        """
        with open_source(self._reference, self._logins) as source:
            found = describe(source, self._reference)

        return {"kind": "image", "digest": found.digest, "guest_code": guest_code_digest()}

    def make(self, workshop: Workshop) -> Made:
        """Pulls the layers that are missing, and makes the root of a template from the image."""
        with self._store.in_use():
            workshop.say(f"pulling {self._reference.text}")
            image = pull(self._reference, self._store, self._logins, say=workshop.say)
            layers = [layer_key("sha256", layer.diff_id) for layer in image.layers]
            return _made(image.config, layers, self._store, workshop)


def _made(config: ImageConfig, layers: Sequence[str], store: LayerStore, workshop: Workshop) -> Made:
    files = os.path.join(workshop.folder, FILES)
    root = make_root(config, layers, store, workshop, files)
    return Made(image=root, files=files if os.path.isdir(files) else None)
