"""What models are told of the tool itself: its name, what it does, its one argument.

Pure functions. Everything here holds for each sandbox; what differs between them stands in the system prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.llm.formats.calls import Item

CODE = "code"


@dataclass(frozen=True, slots=True)
class ToolWords:
    """The tool as models see it.

    Attributes:
        name: By which they call it.
        description: What it does.
    """

    name: str
    description: str

    def schema(self) -> Item:
        """Return the JSON schema of its arguments; it suits strict modes too."""
        code: Item = {"type": "string", "description": "Python source code, as in a notebook's cell."}
        return {
            "type": "object",
            "properties": {CODE: code},
            "required": [CODE],
            "additionalProperties": False,
        }


def describe_tool(*, is_transactional: bool) -> str:
    """Return the description of the tool."""
    undone = (
        "A call that fails is undone as a whole: neither its variables nor its files stay. "
        if is_transactional
        else ""
    )
    return (
        "Runs Python code in an isolated, live interpreter and returns what it printed, the value of its last "
        "expression, its figures, and the names of new files. Variables, imports and files are kept between calls. "
        f"{undone}Data files are in /mnt/data; save files for the user there."
    )
