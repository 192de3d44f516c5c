"""Settings of a process: flags over environment over one TOML file over defaults, read once at its start.

Runs in each process that has an engine or serves. A setting is a field of a frozen dataclass; its name is the key of
the TOML file, `FUMEHOOD_<FIELD>` (or a name of its own) is its variable, and `--<field>` its flag. This module does not
know the meaning of any setting.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from fumehood.errors import InvalidArgumentError
from fumehood.log.formats import FORMATS
from fumehood.refusals import naming_arguments
from fumehood.text import visible_line

LOG_LEVELS = ("debug", "info", "warning", "error")
SECRET_FIELDS = ("token",)
# Lists of NAME=VALUE, of which a value may be a secret of the programs that get it.
_ENVS_FIELDS = ("replit_envs",)
HIDDEN = "***"
_MAX_LINE_CHARACTERS = 500
# The password between `//` and `@` of an address, and its query.
_PASSWORD = re.compile(r"(?<=://)([^/?#:@]*):[^/?#]*@")
_QUERY = re.compile(r"\?.+", re.DOTALL)
_PREFIX = "FUMEHOOD_"
_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list of texts, or one text with commas between them",
}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class DeclaredSettings(Protocol):
    """A frozen dataclass of settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class SettingsKind(DeclaredSettings, Protocol):
    """A frozen dataclass of the settings of a process."""

    # The name of its state folder.
    STATE_NAME: ClassVar[str]
    # The headings of its help, and the settings under each; a setting without a heading is listed first.
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]]


_Settings = TypeVar("_Settings", bound=SettingsKind)
_Declared = TypeVar("_Declared", bound=DeclaredSettings)


def setting(
    help_text: str,
    default: Any,
    low: float | None = None,
    high: float | None = None,
    variable: str | None = None,
) -> Any:
    """Returns a field for a setting.

    Args:
        help_text: Its description.
        default: Its default value, which also determines its type.
        low: The smallest value.
        high: The largest one.
        variable: The name of its variable; None: made from the field's.
    """
    return field(
        default=default, metadata={"help": help_text, "low": low, "high": high, "variable": variable}
    )


def other_default(kind: type[DeclaredSettings], name: str, default: Any) -> Any:
    """Returns the field of a setting of another kind with a different default."""
    return field(default=default, metadata=kind.__dataclass_fields__[name].metadata)


def variable_of(item: Field[Any]) -> str:
    """Returns the environment variable of a setting."""
    return item.metadata["variable"] or f"{_PREFIX}{item.name.upper()}"


def flag_of(name: str) -> str:
    """Returns the flag of a setting."""
    return "--" + name.replace("_", "-")


def check_bounds(settings: DeclaredSettings) -> None:
    """Raises InvalidArgumentError when a value is out of its bounds; called by each kind when it is made."""
    for item in fields(settings):
        low, high, value = item.metadata["low"], item.metadata["high"], getattr(settings, item.name)

        if low is not None and not low <= value <= high:
            raise InvalidArgumentError(field=item.name, value=value, allowed=_allowed(item))


def check_log_level(value: str) -> None:
    """Raises InvalidArgumentError unless the value is a log level."""
    if value not in LOG_LEVELS:
        raise InvalidArgumentError(field="log_level", value=value, allowed="debug, info, warning or error")


def check_log_format(value: str) -> None:
    """Raises InvalidArgumentError unless the value is a log format."""
    if value not in FORMATS:
        raise InvalidArgumentError(field="log_format", value=value, allowed=" or ".join(FORMATS))


def state_path(folder: str, name: str) -> Path:
    """Returns the state folder: the given one, or the usual one of that name."""
    return Path(folder).expanduser() if folder else Path("~/.local/state").expanduser() / name


def load(
    kind: type[_Settings], flags: Mapping[str, Any], *, environ: Mapping[str, str], file: str | None = None
) -> tuple[_Settings, dict[str, str]]:
    """Reads the settings of a kind, and the source of each one.

    Args:
        kind: The dataclass.
        flags: Values of the command line by field; None means not given.
        environ: The environment.
        file: A TOML file; `FUMEHOOD_CONFIG` names one as well.

    Returns:
        The settings, and for each field `flag`, `environment`, `file` or `default`.

    Raises:
        InvalidArgumentError: A value is not allowed, or the file names a setting that does not exist.
    """
    items = {item.name: item for item in fields(kind)}
    chosen: dict[str, Any] = {}
    sources = dict.fromkeys(items, "default")
    path = file or environ.get(f"{_PREFIX}CONFIG")

    if base := environ.get("XDG_STATE_HOME", ""):
        chosen["state_folder"] = str(Path(base) / kind.STATE_NAME)

    with naming_arguments({"config": "--config" if file else f"{_PREFIX}CONFIG"}):
        given = _read_file(path) if path else {}

    for name, value in given.items():
        if name not in items:
            raise InvalidArgumentError(
                field=f"{path}: setting", value=name, allowed="one that `--print-config` lists"
            )

        chosen[name], sources[name] = value, "file"

    for name, item in items.items():
        if (text := environ.get(variable_of(item))) is not None:
            chosen[name], sources[name] = text, "environment"

        if flags.get(name) is not None:
            chosen[name], sources[name] = flags[name], "flag"

    with naming_arguments(names_as_given(kind, sources, path)):
        return kind(**{name: _typed(items[name], value) for name, value in chosen.items()}), sources


def names_as_given(
    kind: type[SettingsKind], sources: Mapping[str, str], path: str | None = None
) -> dict[str, str]:
    """Returns the name of each setting as its user knows it: the flag, the variable, or the key of the file.

    Args:
        kind: The dataclass.
        sources: The source of each setting, as `load` returns it.
        path: The file.
    """
    file = f"{path}: " if path else ""
    return {
        item.name: {"file": f"{file}{item.name}", "environment": variable_of(item)}.get(
            sources[item.name], flag_of(item.name)
        )
        for item in fields(kind)
    }


def load_environment(kind: type[_Declared], environ: Mapping[str, str]) -> _Declared:
    """Reads the settings of a kind from the environment alone.

    Raises:
        InvalidArgumentError: A value is not allowed; the error names its variable.
    """
    items = [item for item in fields(kind) if variable_of(item) in environ]

    with naming_arguments({item.name: variable_of(item) for item in items}):
        return kind(**{item.name: _typed(item, environ[variable_of(item)]) for item in items})


def print_settings(settings: SettingsKind, sources: Mapping[str, str]) -> str:
    """Returns the settings as a TOML file that can be read again, with `***` in the place of each secret."""
    lines = []

    for item in fields(settings):
        shown = _without_secrets(item.name, getattr(settings, item.name))
        lines.append(f"# {item.metadata['help']} ({sources[item.name]})\n{item.name} = {_toml(shown)}\n")

    return "\n".join(lines)


def logged_settings(settings: SettingsKind, *, all_of_them: bool) -> dict[str, Any]:
    """Returns the settings by name, for the log; secrets are not shown.

    Args:
        settings: The settings.
        all_of_them: False leaves out what has its default, and secrets altogether: such a line is read by a person.
    """
    shown = {
        item.name: _without_secrets(item.name, getattr(settings, item.name)) for item in fields(settings)
    }

    if all_of_them:
        return shown

    usual = {item.name: item.default for item in fields(settings)}
    return {
        name: value for name, value in shown.items() if name not in SECRET_FIELDS and value != usual[name]
    }


def origin_of(item: Field[Any], source: str) -> str:
    """Returns the origin of a setting in words: its flag, its variable, or the file."""
    return {"flag": flag_of(item.name), "environment": variable_of(item)}.get(source, "the file of settings")


def changed_settings(settings: SettingsKind, sources: Mapping[str, str], command: str) -> list[str]:
    """Returns lines for a terminal: each setting that was given and is not its default; secrets are not shown.

    Args:
        settings: The settings.
        sources: The source of each setting, as `load` returns it.
        command: The command that prints all of them.
    """
    lines = []

    for item in fields(settings):
        value, source = getattr(settings, item.name), sources[item.name]

        if source != "default" and value != item.default and item.name not in SECRET_FIELDS:
            line = (
                f"    {item.name} = {_toml(_without_secrets(item.name, value))} ({origin_of(item, source)})"
            )
            lines.append(visible_line(line, max_characters=_MAX_LINE_CHARACTERS))

    head = "settings that are not the defaults:" if lines else "settings: the defaults"
    return [head, *lines, f"all settings: fumehood {command} --print-config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedSetting:
    """A setting for a reader who is not at the terminal of its process.

    Attributes:
        name: Its name.
        group: The heading of the help under which it stands.
        help: Its description.
        value: Its value, as in the TOML file; a secret is not in it.
        source: Its source: default, file, environment or flag.
        origin: The flag, the variable or the option by which it was given; empty for a default.
    """

    name: str
    group: str
    help: str
    value: str
    source: str
    origin: str


def describe_settings(settings: SettingsKind, sources: Mapping[str, str]) -> list[DescribedSetting]:
    """Returns every setting, by heading; secrets are not shown.

    Args:
        settings: The settings.
        sources: The source of each setting, as `load` returns it.
    """
    groups = {name: group for group, names in type(settings).GROUPS.items() for name in names}
    order = {name: number for number, name in enumerate(groups)}
    found = []

    for item in sorted(fields(settings), key=lambda one: order.get(one.name, -1)):
        source = sources.get(item.name, "default")
        value = _without_secrets(item.name, getattr(settings, item.name))
        found.append(
            DescribedSetting(
                name=item.name,
                group=groups.get(item.name, ""),
                help=item.metadata["help"],
                value=visible_line(_toml(value), max_characters=_MAX_LINE_CHARACTERS),
                source=source,
                origin="" if source == "default" else origin_of(item, source),
            )
        )

    return found


def is_secret(name: str, value: Any) -> bool:
    """Returns whether a value of a setting holds a secret: a token, a variable, or an address with a password."""
    return bool(_without_secrets(name, value) != value)


def _without_secrets(name: str, value: Any) -> Any:
    if name in SECRET_FIELDS and value:
        return HIDDEN

    if name in _ENVS_FIELDS:
        return tuple(f"{each.partition('=')[0]}={HIDDEN}" for each in value)

    if isinstance(value, str) and "://" in value:
        # The address of a database or a bucket may hold a password, or a key in its query.
        return _QUERY.sub(f"?{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", value))

    return value


def _read_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(
            field="config", value=path, allowed=f"a TOML file that can be read ({error})"
        ) from None


def _typed(item: Field[Any], value: Any) -> Any:
    """Returns a value of the environment or the file, in the type of its field."""
    default: Any = item.default

    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())

        if isinstance(default, bool):
            return _BOOLEANS[str(value).strip().lower()]

        if isinstance(default, str) and not isinstance(value, str):
            raise ValueError

        return type(default)(value)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise InvalidArgumentError(field=item.name, value=value, allowed=_allowed(item)) from None


def _allowed(item: Field[Any]) -> str:
    low, high = item.metadata["low"], item.metadata["high"]
    return _KINDS[type(item.default)] + ("" if low is None else f" from {low} to {high}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()

    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"

    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return str(value)
