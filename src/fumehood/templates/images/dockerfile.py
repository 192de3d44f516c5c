"""Reads a Dockerfile: stages, and instructions with their flags.

Runs in the host process; starts nothing. Instructions and flags that this builder does not support are refused with
name and line before anything is built, never ignored in silence.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fumehood.errors import InvalidArgumentError

_MOST_BYTES = 1 << 20
_DONE = frozenset(
    ("FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER", "SHELL", "ENTRYPOINT", "CMD", "VOLUME")
)
# Instructions that are ignored: they affect neither files nor how programs are started.
_SILENT = frozenset(("LABEL", "EXPOSE", "STOPSIGNAL", "MAINTAINER"))
_IGNORED = {
    "HEALTHCHECK": "a template has no health check",
}
_REFUSED = {
    "ONBUILD": "no instructions for later builds: write them where they are to run, or name buildah as the builder"
}
_FLAGS = {
    "FROM": ("platform",),
    "RUN": (),
    "COPY": ("from", "chown", "chmod", "link"),
    "ADD": ("chown", "chmod", "link"),
}
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*")
_HEREDOC = re.compile(r"<<-?\s*[\"']?\w+")
_VARIABLE = re.compile(r"\\(\$)|\$(?:(\w+)|\{(\w+)(?::?([-+])([^}]*))?\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    Attributes:
        line: The number of its first line.
        name: Its name in capitals.
        flags: Its flags by name, such as `from` and `chown`.
        text: The text after the flags.
        words: The parts if the text is a JSON array; None otherwise.
    """

    line: int
    name: str
    flags: Mapping[str, str]
    text: str
    words: tuple[str, ...] | None

    def __str__(self) -> str:
        flags = "".join(f" --{name}={value}" for name, value in self.flags.items())
        return f"{self.name}{flags} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a build: a FROM and the instructions after it.

    Attributes:
        name: The name after `AS`, or its number.
        base: The image or stage that it begins with, with variables.
        platform: The value of `--platform`, with variables.
        instructions: Its instructions, in order.
    """

    name: str
    base: str
    platform: str = ""
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """A Dockerfile that can be built.

    Attributes:
        stages: Its stages, in order; the last one is the result.
        defaults: The values of ARG before the first FROM.
        warnings: Messages for the user about instructions that are ignored.
    """

    stages: tuple[Stage, ...]
    defaults: Mapping[str, str]
    warnings: tuple[str, ...]


def read_dockerfile(text: str, name: str = "Dockerfile") -> Dockerfile:
    """Reads a Dockerfile.

    Raises:
        InvalidArgumentError: A line cannot be built; the error says which, and why.
    """
    stages: list[Stage] = []
    defaults: dict[str, str] = {}
    warnings: list[str] = []

    for instruction in _instructions(text, name):
        if instruction.name in _IGNORED:
            warnings.append(
                f"line {instruction.line}: {instruction.name} is ignored: {_IGNORED[instruction.name]}"
            )
        elif instruction.name == "FROM":
            stages.append(_stage(instruction, len(stages), name))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.name == "ARG":
            for key, value in pairs(instruction, name):
                defaults[key] = expand(value or "", defaults)
        elif instruction.name not in _SILENT:
            raise _wrong(name, instruction.line, str(instruction), "FROM comes first")

    if not stages:
        raise _wrong(name, 1, "", "it has no FROM")

    return Dockerfile(stages=tuple(stages), defaults=defaults, warnings=tuple(warnings))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces variables: `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+instead}`."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]

        known = variables.get(found[2] or found[3], "")

        if found[4] == "-":
            return known or found[5]

        if found[4] == "+":
            return found[5] if known else ""

        return known

    return _VARIABLE.sub(value, text)


def pairs(instruction: Instruction, name: str) -> Iterator[tuple[str, str | None]]:
    """Yields the names and values of ENV or ARG; a name without a value has None."""
    try:
        words = shlex.split(instruction.text.replace("\\$", "\\\\$"))
    except ValueError as error:
        raise _wrong(name, instruction.line, str(instruction), f"quotes that end ({error})") from None

    if instruction.name == "ENV" and words and "=" not in words[0]:
        # The old form: the rest of the line is the value.
        key, _, value = instruction.text.partition(" ")
        yield key, value.strip()
        return

    for word in words:
        key, equals, value = word.partition("=")
        yield key, value if equals else None


def program(instruction: Instruction, shell: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the program with its arguments that RUN, CMD or ENTRYPOINT starts."""
    return instruction.words if instruction.words is not None else (*shell, instruction.text)


def _stage(instruction: Instruction, number: int, name: str) -> Stage:
    words = instruction.text.split()

    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise _wrong(name, instruction.line, str(instruction), "FROM IMAGE, or FROM IMAGE AS NAME")

    return Stage(
        name=words[2].lower() if len(words) == 3 else str(number),
        base=words[0],
        platform=instruction.flags.get("platform", ""),
    )


def _instructions(text: str, name: str) -> Iterator[Instruction]:
    if len(text) > _MOST_BYTES:
        raise InvalidArgumentError(field="dockerfile", value=name, allowed=f"at most {_MOST_BYTES} bytes")

    for line, logical in _logical_lines(text):
        word, _, rest = logical.partition(" ")
        instruction = word.upper()

        if instruction in _REFUSED:
            raise _wrong(name, line, logical, _REFUSED[instruction])

        if instruction not in _DONE | _SILENT | _IGNORED.keys():
            raise _wrong(name, line, logical, f"one of {', '.join(sorted(_DONE))}")

        flags, rest = _split_flags(rest.strip(), instruction, name, line)
        _check(instruction, rest, name, line)
        yield Instruction(line=line, name=instruction, flags=flags, text=rest, words=_json_words(rest))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines with their continuations, and the number of each one's first line."""
    escape = "\\"
    parts: list[str] = []
    first = 0
    is_at_head = True

    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        stripped = line.strip()
        directive = _DIRECTIVE.fullmatch(stripped) if is_at_head else None

        if directive is not None and directive[1].lower() == "escape":
            escape = directive[2]

        is_at_head = is_at_head and directive is not None

        # Comments and empty lines do not end an instruction.
        if stripped.startswith("#") or not stripped:
            continue

        first = first if parts else number

        if stripped.endswith(escape):
            parts.append(stripped[: -len(escape)])
            continue

        yield first, "".join([*parts, stripped]).strip()
        parts = []

    if parts:
        yield first, "".join(parts).strip()


def _split_flags(rest: str, instruction: str, name: str, line: int) -> tuple[dict[str, str], str]:
    flags: dict[str, str] = {}

    while instruction in _FLAGS and rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        key, _, value = word[2:].partition("=")
        rest = rest.strip()

        if key not in _FLAGS[instruction]:
            known = ", ".join(f"--{one}" for one in _FLAGS[instruction]) or "no flags"
            raise _wrong(
                name,
                line,
                f"{instruction} {word}",
                f"{instruction} with {known}; buildah as the builder takes more",
            )

        flags[key] = value

    return flags, rest


def _check(instruction: str, rest: str, name: str, line: int) -> None:
    text = f"{instruction} {rest}"

    if not rest:
        raise _wrong(name, line, text, "something behind it")

    if instruction in ("RUN", "COPY", "ADD") and _HEREDOC.search(rest):
        raise _wrong(name, line, text, "no heredocs: join the lines with && and \\")

    if instruction == "ADD" and re.search(r"(^|\s|\")(https?|ftp|git)://|(^|\s)git@", rest):
        raise _wrong(
            name,
            line,
            text,
            "files of the context: fetch others with RUN curl, by the rules of the network, or let buildah build",
        )

    if instruction == "SHELL" and not _json_words(rest):
        raise _wrong(name, line, text, 'a JSON array, as in SHELL ["/bin/bash", "-c"]')


def _json_words(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None

    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None

    is_right = isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words)
    return tuple(words) if is_right else None


def _wrong(name: str, line: int, text: str, allowed: str) -> InvalidArgumentError:
    return InvalidArgumentError(field="dockerfile", value=f"{name}:{line}: {text[:200]}", allowed=allowed)
