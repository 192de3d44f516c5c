"""The description of the tool for models: its name, its purpose, its one argument.

Pure functions. The texts hold for every sandbox; differences between sandboxes are in the system prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.llm.formats.calls import CODE, Item


@dataclass(frozen=True, slots=True)
class ToolWords:
    """The description of the tool.

    Attributes:
        name: Its name in calls.
        description: Its purpose.
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
