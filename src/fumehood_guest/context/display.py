"""Sends what IPython shows to the outlet: the last expression of a cell, and `display()`.

The two classes replace the parts of IPython that print; they keep no results, because a kept picture costs memory for
the life of the context.
"""

from __future__ import annotations

import hashlib
import io
import tokenize
from typing import Any, Dict, Optional, Tuple

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter

from fumehood_guest.context.connected_shell import ConnectedShell
from fumehood_guest.context.fast_traits import QuickResult

_MAX_DISPLAY_ID_CHARACTERS = 64
_MAX_REPR_CHARACTERS = 10_000
_PLAIN_TYPES = frozenset((bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple))


class DisplayFunctions(DisplayPublisher):  # type: ignore[misc]
    """Implements `display()`, `update_display()` and `clear_output()`."""

    shell: ConnectedShell

    def publish(
        self,
        data: Dict[str, Any],
        metadata: Optional[Dict[str, Any]] = None,
        source: Any = None,
        *,
        transient: Optional[Dict[str, Any]] = None,
        update: bool = False,
        **_ignored: Any,
    ) -> None:
        """Sends a MIME bundle to the host, after the text that was written before it.

        Raises:
            ValueError: An update has no display_id.
        """
        kind = "update_display_data" if update else "display_data"
        display_id = _display_id(transient)

        if update and display_id is None:
            raise ValueError("an update needs the display_id of what it replaces")

        self.shell.streams.flush()
        self.shell.outlet.bundle(kind, data, metadata, display_id=display_id)

    def clear_output(self, wait: bool = False) -> None:
        """Clears the output of the cell; with `wait`, once there is new output."""
        self.shell.streams.flush()
        self.shell.outlet.clear(wait=bool(wait))


class ResultHook(DisplayHook):  # type: ignore[misc]
    """Shows the value of a cell's last expression."""

    shell: ConnectedShell
    exec_result = QuickResult()
    # Whether a value is being shown: an error during that fails the cell.
    is_showing = False

    def start_displayhook(self) -> None:
        """Begins the display of a value."""
        super().start_displayhook()
        self.is_showing = True

    def quiet(self) -> bool:
        """Whether the cell ends with a semicolon."""
        source = self.shell.running_source

        if ";" not in source:
            return False

        return _ends_with_semicolon(source)

    def write_output_prompt(self) -> None:
        """Does nothing: the number is part of the result."""

    def write_format_data(
        self, format_dict: Dict[str, Any], md_dict: Optional[Dict[str, Any]] = None
    ) -> None:
        """Sends the value."""
        self.shell.streams.flush()
        self.shell.outlet.bundle(
            "execute_result", format_dict, md_dict, execution_count=max(0, self.prompt_count)
        )

    def finish_displayhook(self) -> None:
        """Ends the display of a value."""
        self._is_active = self.is_showing = False

    def log_output(self, format_dict: Dict[str, Any]) -> None:
        """Keeps the text for `%history -o`, unless it is long."""
        text = format_dict.get("text/plain")

        if (
            isinstance(text, str)
            and len(text) <= _MAX_REPR_CHARACTERS
            and self.shell.history_manager is not None
        ):
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = text


class ValueFormatter(DisplayFormatter):  # type: ignore[misc]
    """Turns values into MIME bundles."""

    def format(
        self, obj: Any, include: Optional[Any] = None, exclude: Optional[Any] = None
    ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Returns the formats of a value and their metadata."""
        plain = self.formatters["text/plain"]

        # Plain values have only text, unless a formatter is registered for them.
        if type(obj) in _PLAIN_TYPES and include is None and exclude is None and not self._has_printer(obj):
            text = plain(obj)
            return ({} if text is None else {"text/plain": text}), {}

        formats, metadata = super().format(obj, include=include, exclude=exclude)
        return formats, metadata

    def _has_printer(self, obj: Any) -> bool:
        kind, key = type(obj), id(obj)
        formatters = [self.mimebundle_formatter, self.ipython_display_formatter]
        formatters += [one for mime, one in self.formatters.items() if mime != "text/plain"]
        return any(
            kind in one.type_printers or object in one.type_printers or key in one.singleton_printers
            for one in formatters
        )


def _display_id(transient: Optional[Dict[str, Any]]) -> Optional[str]:
    value = (transient or {}).get("display_id")

    if value is None:
        return None

    text = str(value)

    if len(text) <= _MAX_DISPLAY_ID_CHARACTERS:
        return text

    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _ends_with_semicolon(source: str) -> bool:
    skipped = (
        tokenize.ENDMARKER,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.INDENT,
    )
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in skipped:
                last = token.string
    except (tokenize.TokenError, SyntaxError):
        return False

    return last == ";"
