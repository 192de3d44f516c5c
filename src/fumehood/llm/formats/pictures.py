"""Pictures as providers take them: as base64 inside a message.

Pure functions over pictures that have been checked and bounded before.
"""

from __future__ import annotations

import base64

from fumehood.llm.formats.calls import Item
from fumehood.llm.result import ToolImage, ToolResult

_UNSEEN = "(Images cannot be shown to you here: print what you need of them, such as numbers.)"


def text_without_images(result: ToolResult) -> str:
    """Return the text of a result for an answer that can hold no pictures; it mentions pictures that are left out."""
    return f"{result.text}\n{_UNSEEN}" if result.images else result.text


def data_url(image: ToolImage) -> str:
    """Return the picture as a data URL."""
    return f"data:{image.mime};base64,{base64.b64encode(image.data).decode('ascii')}"


def anthropic_image(image: ToolImage) -> Item:
    """Return the picture as a block of Anthropic's messages."""
    data = base64.b64encode(image.data).decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": image.mime, "data": data}}
