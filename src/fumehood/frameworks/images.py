"""The base of an adapter's sandboxes: a template by its name, or an image that is built into one.

Runs in the process of a framework. No container tool is used; a template of an image is named by its description: all
sandboxes with the same image share one, and it is built again only when one of its inputs has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from fumehood import InvalidArgumentError, build_template
from fumehood.assemble import server_address

DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A template, an image or a Dockerfile.

    Attributes:
        template: The name of an existing template; nothing is built.
        image: A container image, as `build_template` takes it.
        dockerfile: The path of a Dockerfile; its folder is what COPY takes files from.
        url: The server of the sandboxes, which builds the image; None: that of FUMEHOOD_URL, or else this process.

    Raises:
        InvalidArgumentError: More than one of template, image and dockerfile is given.
    """

    template: str = DEFAULT_TEMPLATE
    image: str | None = None
    dockerfile: str | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        given = {
            "template": None if self.template == DEFAULT_TEMPLATE else self.template,
            "image": self.image,
            "dockerfile": self.dockerfile,
        }
        named = [field for field, value in given.items() if value is not None]

        if len(named) > 1:
            field = named[-1]
            raise InvalidArgumentError(
                field=field, value=given[field], allowed=f"None beside {' and '.join(named[:-1])}"
            )

    @property
    def is_image(self) -> bool:
        """Whether an image must be built."""
        return self.image is not None or self.dockerfile is not None

    @property
    def name(self) -> str:
        """The name of the template that sandboxes start from."""
        if not self.is_image:
            return self.template

        described = f"{self.image}\0{self.dockerfile and os.path.abspath(self.dockerfile)}"
        return f"image-{hashlib.sha256(described.encode()).hexdigest()[:32]}"

    def build(self, on_progress: Callable[[str], None] | None = None) -> str:
        """Build the image, unless it is built already, and return the name of the template.

        Args:
            on_progress: Called with a line of text for each step.

        Raises:
            InvalidArgumentError: The Dockerfile does not exist, or contains a refused instruction.
            ImageError: The image could not be pulled or unpacked.
            TemplateStoreError: A step failed.
        """
        if self.is_image:
            build_template(
                self.name,
                image=self.image,
                dockerfile=self.dockerfile,
                on_progress=on_progress,
                url=self.url or server_address(),
            )

        return self.name

    async def build_apart(self, on_progress: Callable[[str], None] | None = None) -> str:
        """Build the image as `build` does, in a thread, so that the loop continues."""
        return await asyncio.to_thread(self.build, on_progress)
