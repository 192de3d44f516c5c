"""A tool call of a model in one form for all providers, with the description of the tool and pictures for them.

Plain values and pure functions. Arguments are a model's text: read within bounds, never trusted to have a type; a fault
in them is stored as a sentence for the model, not raised. Pictures have been checked and bounded before. The
description of the tool holds for every sandbox; differences between sandboxes are in the system prompt.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fumehood import InvalidArgumentError
from fumehood.llm.result import ToolImage, ToolResult
from fumehood.text import visible_line

# The provider's format in which a call was made, and is answered.
Form: TypeAlias = Literal["chat", "function", "response", "custom", "anthropic"]

Item: TypeAlias = dict[str, object]
"""A message, an item or a block as providers write it."""

CODE = "code"
"""The name of the tool's argument with the code."""
LANGUAGE = "language"
"""The name of its other argument, of a tool with several languages."""
PYTHON_ALONE = ("python",)
_MAX_ARGUMENT_CHARS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a tool.

    Attributes:
        id: The provider's id of the call; empty where it has none.
        name: The tool that is called.
        form: The provider's format of the call.
        arguments: Its arguments, by name.
        problem: The fault in the arguments, for the model; empty if there is none.
        caller: The caller of the call when it was no model, to be returned.
    """

    id: str
    name: str
    form: Form
    arguments: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""
    caller: object = None


def read_arguments(text: object) -> tuple[Mapping[str, object], str]:
    """Return the arguments in a model's JSON, and the fault in it."""
    if isinstance(text, Mapping):
        return text, ""

    if not isinstance(text, str) or not text.strip():
        return {}, "the arguments are empty"

    if len(text) > _MAX_ARGUMENT_CHARS:
        return {}, f"the arguments have {len(text):,} characters, and {_MAX_ARGUMENT_CHARS:,} are allowed"

    try:
        # Models forget to escape the ends of lines; the meaning is clear.
        value: object = json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        if text.lstrip()[0] not in '{["':
            # Some models send the code itself.
            return {CODE: text}, ""

        return {}, f"the arguments are no JSON: {error.msg} at character {error.pos}"
    except RecursionError:
        return {}, "the arguments are nested too deeply"

    if isinstance(value, str) and value.strip():
        return {CODE: value}, ""

    if not isinstance(value, dict):
        return {}, f"the arguments are a JSON {_kind(value)}, not an object"

    return value, ""


def plain(value: object) -> object:
    """Return dicts and lists in place of an SDK's own objects.

    Raises:
        InvalidArgumentError: The value is neither a dict, a list nor such an object.
    """
    dump = getattr(value, "model_dump", None)

    if callable(dump):
        return dump(mode="json", exclude_none=True)

    if isinstance(value, Mapping):
        return dict(value)

    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]

    raise InvalidArgumentError(
        field="message",
        value=value,
        allowed="a message or response of a provider: a dict, a list, or an SDK's object",
    )


def as_items(value: object) -> list[Item]:
    """Return the dicts among the members of a list; an empty list for anything else."""
    members = value if isinstance(value, (list, tuple)) else ()
    return [plain_dict(item) for item in members if isinstance(item, Mapping) or hasattr(item, "model_dump")]


def plain_dict(value: object) -> Item:
    """Return a value as a dict; an empty one if it is none."""
    made = plain(value) if isinstance(value, Mapping) or hasattr(value, "model_dump") else {}
    return made if isinstance(made, dict) else {}


def text_of(item: Mapping[str, object], name: str) -> str:
    """Return a text among the members of an item; an empty one if there is none."""
    value = item.get(name)
    return value if isinstance(value, str) else ""


def quoted(name: str) -> str:
    """Return a name from a model, quoted for a sentence."""
    return f"`{visible_line(name, max_characters=80)}`"


def _kind(value: object) -> str:
    return {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}.get(
        type(value), "null"
    )


@dataclass(frozen=True, slots=True)
class ToolWords:
    """The description of the tool.

    Attributes:
        name: Its name in calls.
        description: Its purpose.
        languages: The languages of its code, Python first.
    """

    name: str
    description: str
    languages: tuple[str, ...] = PYTHON_ALONE

    def schema(self) -> Item:
        """Return the JSON schema of its arguments; it suits strict modes too."""
        kind = "Python source code" if self.languages == PYTHON_ALONE else "Source code"
        properties: Item = {CODE: {"type": "string", "description": f"{kind}, as in a notebook's cell."}}

        if self.languages != PYTHON_ALONE:
            description = (
                "The language of the code; each keeps its own variables, and all see the same files."
            )
            properties[LANGUAGE] = {
                "type": "string",
                "enum": list(self.languages),
                "description": description,
            }

        return {
            "type": "object",
            "properties": properties,
            # Strict modes take no argument that may be left out.
            "required": list(properties),
            "additionalProperties": False,
        }


def describe_tool(*, is_transactional: bool, languages: tuple[str, ...] = PYTHON_ALONE) -> str:
    """Return the description of the tool."""
    others = "" if languages == PYTHON_ALONE else f"Code may also be in one of {', '.join(languages[1:])}. "
    undone = (
        "A call that fails is undone as a whole: neither its variables nor its files stay. "
        if is_transactional
        else ""
    )
    return (
        "Runs Python code in an isolated, live interpreter and returns what it printed, the value of its last "
        "expression, its figures, and the names of new files. Variables, imports and files are kept between calls. "
        f"{others}{undone}Data files are in /mnt/data; save files for the user there."
    )


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
