"""A kernel of Jupyter as the language of code, in bodies of requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.values.languages import KERNEL_NAME

KernelLanguage = Annotated[
    str,
    Field(
        pattern=f"^{KERNEL_NAME.pattern}$",
        description="A kernel of Jupyter that the template has: kernel:NAME.",
    ),
]
