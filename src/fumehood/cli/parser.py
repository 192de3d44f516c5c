"""The parser of the command line: a wrong argument is one sentence, with the word that was probably meant.

Runs in the user's terminal. argparse itself would print the usage of the command, which hides the sentence, and end
with 2, which code that runs may end with as well.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from fumehood.text import visible

# EX_USAGE of sysexits.h, so that it is not taken for a code of the user's code.
EXIT_USAGE = 64

_INVALID_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<all>.*)\)"
)


class CommandParser(argparse.ArgumentParser):
    """Reads the arguments of a command, and complains in a sentence."""

    # The base class takes namespaces of any kind, and gives back the same.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Read what is known; here, where the command is known, what is left is an error."""
        found, unknown = super().parse_known_args(args, namespace)

        if unknown:
            self.error(self._about_unknown(unknown[0]))

        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and end."""
        refused = _INVALID_CHOICE.fullmatch(message)

        if refused:
            message = _about_choice(refused)

        print(
            visible(f"{self.prog}: {message}\n\nhint: `{self.prog} --help` says what it takes"),
            file=sys.stderr,
        )
        raise SystemExit(EXIT_USAGE)

    def _about_unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one argument too many"

        flag = word.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        return f"there is no option {flag!r}{_meant(flag, known)}"


def _about_choice(refused: re.Match[str]) -> str:
    choices = re.findall(r"[\w.-]+", refused["all"])
    return f"{refused['name']} {refused['given']!r} is none of {', '.join(choices)}{_meant(refused['given'], choices)}"


def _meant(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
