"""The steps of E2B's template builder as instructions of a Dockerfile, and its start command as one of ours.

Pure: it reads the body of a request and starts nothing. A build begins as at E2B, as the user `user` in its home;
unsupported features are refused by name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from fumehood.dialects.e2b.answers import NotOfferedError
from fumehood.dialects.e2b.messages import AnObject, ClientMessage, Flag, Texts, objects
from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import Text
from fumehood.values.guest_paths import HOME_PATH

# What a step's number is called, in logs and errors, when it is before the first one.
BASE_STEP = "base"
LAST_STEP = "finalize"
_MOST_STEPS = 500
# As E2B waits for a template; each of our sandboxes starts its command itself.
_READY_SECONDS = 300.0
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,5}", re.ASCII)
FILES_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
# Lines run in bash where an image has it, as at E2B, and else in what it has.
_SHELL = ("/bin/sh", "-c", 'if [ -x /bin/bash ]; then exec /bin/bash -c "$0"; else exec /bin/sh -c "$0"; fi')
_MAKE_USER = (
    "id -u {0} >/dev/null 2>&1 || useradd --create-home --shell /bin/bash {0} 2>/dev/null "
    "|| adduser -D {0} 2>/dev/null "
    '|| {{ echo "{0}:x:1000:1000::/home/{0}:/bin/sh" >> /etc/passwd && echo "{0}:x:1000:" >> /etc/group; }}; '
    "mkdir -p /home/{0} && chown {0} /home/{0}"
)
# The folders outside of the home that clients write as root, such as Harbor's environments. A sandbox here has no root,
# and each gets copies of these, which are its own.
_WRITABLE = ("/logs", "/tests", "/solution", "/installed-agent", "/etc/profile.d", "/var/lib/harbor")
# The checks that E2B's clients write for a port, a URL and a file (`wait_for_port` and others).
_PORT = re.compile(r'\[ -n "\$\(ss -Htuln sport = :(\d{1,5})\)" \]|ss -tuln \| grep :(\d{1,5})', re.ASCII)
_URL = re.compile(r'curl -s -o /dev/null -w "%\{http_code\}" (\S+|\'[^\']*\') \| grep -q "200"')
_FILE = re.compile(r"\[ -f (/\S+) \]")
_SLEEP = re.compile(r"sleep [0-9.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOrder:
    """A build that a client has requested.

    Attributes:
        image: The image that it begins with, or None.
        base: The template that it begins with, or None.
        instructions: The fields of `Instruction`, in order; the line of each is the number of its step.
        hashes: The hashes of the uploads that the instructions copy from.
        start: Command, check and seconds of the start command; the command is None if there is none.
        login: User and password for the image's registry, or None.
        force: Whether to run steps again whose results are stored.
        notes: Differences from E2B's behaviour, for the logs.
    """

    image: str | None
    base: str | None
    instructions: tuple[dict[str, Any], ...]
    hashes: frozenset[str]
    start: tuple[str | None, str, float]
    login: tuple[str, str] | None
    force: bool
    notes: tuple[str, ...]


class _Registry(ClientMessage):
    type: Text = "registry"
    username: Text = ""
    password: Text = ""


class _Step(ClientMessage):
    type: Text = ""
    args: Texts = ()
    files_hash: Text = ""
    force: Flag = False


class BuildBody(ClientMessage):
    """A build to start."""

    from_image: Text = ""
    from_template: Text = ""
    from_image_registry: Annotated[_Registry | None, AnObject] = None
    steps: Annotated[list[_Step], objects(_MOST_STEPS)] = Field(default_factory=list)
    start_cmd: Text = ""
    ready_cmd: Text = ""
    force: Flag = False


def read_build(body: BuildBody) -> BuildOrder:
    """Returns the build that a body describes.

    Raises:
        InvalidArgumentError: A field or a step is wrong.
        NotOfferedError: A step or a registry is of a kind that this server does not have.
    """
    image, base = body.from_image or None, body.from_template or None

    if (image is None) == (base is None):
        raise InvalidArgumentError(field="fromImage", value=image, allowed="either an image or a template")

    translation = _Translation(is_new=image is not None)
    notes = tuple(_notes(body))

    for number, step in enumerate(body.steps, 1):
        translation.add(number, step)

    translation.end()
    return BuildOrder(
        image=image,
        base=base,
        instructions=tuple(translation.instructions),
        hashes=frozenset(translation.hashes),
        start=_read_start(body.start_cmd, body.ready_cmd),
        login=_read_login(body.from_image_registry),
        force=body.force or any(step.force for step in body.steps),
        notes=notes,
    )


@dataclass(slots=True)
class _Translation:
    """The instructions so far, and the user for the next one."""

    is_new: bool
    instructions: list[dict[str, Any]] = field(default_factory=list)
    hashes: set[str] = field(default_factory=set)
    user: str = "user"

    def __post_init__(self) -> None:
        self._put(0, "SHELL", json.dumps(_SHELL), words=_SHELL)

        if self.is_new:
            self._make_user(0, self.user)
            self._put(0, "WORKDIR", HOME_PATH)

    def add(self, number: int, step: _Step) -> None:
        """Adds a step."""
        kind, arguments = step.type, step.args
        least = {"RUN": 1, "COPY": 2, "ENV": 2, "WORKDIR": 1, "USER": 1}.get(kind)

        if least is None:
            raise NotOfferedError(what=f"steps of the kind {kind[:40]!r} in templates")

        if len(arguments) < least or any("\0" in one for one in arguments):
            allowed = f"{least} texts or more without NUL"
            raise InvalidArgumentError(
                field=f"steps[{number - 1}].args", value=list(arguments), allowed=allowed
            )

        if kind == "RUN":
            self._as_user(number, arguments[1] if len(arguments) > 1 else "", "RUN", arguments[0])
        elif kind == "COPY":
            self._copy(number, arguments, step.files_hash)
        elif kind == "ENV":
            for name, value in zip(arguments[::2], arguments[1::2], strict=False):
                self._put(number, "ENV", f"{_name(name)}={_quoted(value)}")
        elif kind == "WORKDIR":
            path = shlex.quote(arguments[0])
            self._as_user(number, "root", "RUN", f"mkdir -p {path} && chown {self.user} {path}")
            self._put(number, "WORKDIR", arguments[0])
        else:
            self._make_user(number, arguments[0])

    def end(self) -> None:
        """Adds the writable folders of E2B's sandboxes, as optional volumes."""
        # Those of the image come first, and are as many as may be without these.
        self._put(0, "VOLUME", json.dumps(_WRITABLE), words=_WRITABLE, flags={"optional": "true"})

    def _copy(self, number: int, arguments: tuple[str, ...], files_hash: str) -> None:
        source, target, owner, mode = (*arguments, "", "")[:4]

        if not FILES_HASH.fullmatch(files_hash):
            raise InvalidArgumentError(field="filesHash", value=files_hash, allowed="64 hexadecimal digits")

        self.hashes.add(files_hash)
        flags = {"from": f"upload:{files_hash}", "chown": _user(owner or self.user)}

        if mode:
            flags["chmod"] = mode

        # Names with `$` are names.
        words = tuple(one.replace("$", "\\$") for one in (source, target))
        self._put(number, "COPY", f"{source} {target}", words=words, flags=flags)

    def _as_user(self, number: int, user: str, name: str, text: str) -> None:
        """Adds an instruction of another user, if one is named."""
        if user in ("", self.user):
            self._put(number, name, text)
            return

        self._put(number, "USER", _user(user))
        self._put(number, name, text)
        self._put(number, "USER", self.user)

    def _make_user(self, number: int, user: str) -> None:
        """Continues as a user, and creates the user if needed."""
        self._put(number, "USER", "root")

        if user not in ("root", "0"):
            self._put(number, "RUN", _MAKE_USER.format(_user(user)))

        self.user = user
        self._put(number, "USER", user)

    def _put(
        self,
        number: int,
        name: str,
        text: str,
        *,
        words: tuple[str, ...] | None = None,
        flags: dict[str, str] | None = None,
    ) -> None:
        self.instructions.append(
            {"line": number, "name": name, "flags": flags or {}, "text": text, "words": words}
        )


def _user(name: str) -> str:
    if not _USER.fullmatch(name):
        raise InvalidArgumentError(field="user", value=name, allowed="a user's name or number")

    return name


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,254}", name, re.ASCII):
        raise InvalidArgumentError(field="args", value=name, allowed="a variable's name")

    return name


def _quoted(value: str) -> str:
    """Returns a value of ENV, in which variables are replaced as in a shell."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_start(command: str, ready: str) -> tuple[str | None, str, float]:
    """Returns a start command; a ready check that E2B's SDK generates becomes the equivalent one of ours."""
    if not command and not ready:
        return None, "", _READY_SECONDS

    return command or ":", _check(ready.strip()), _READY_SECONDS


def _check(ready: str) -> str:
    if not ready or _SLEEP.fullmatch(ready):
        return ""

    if found := _PORT.fullmatch(ready):
        return f"port:{found[1] or found[2]}"

    if (found := _URL.fullmatch(ready)) and _is_local(url := found[1].strip("'")):
        return f"url:{url}"

    if found := _FILE.fullmatch(ready):
        return f"file:{found[1]}"

    return f"command:{ready}"


def _is_local(url: str) -> bool:
    try:
        return urlsplit(url).scheme == "http" and urlsplit(url).hostname in ("localhost", "127.0.0.1")
    except ValueError:
        return False


def _read_login(registry: _Registry | None) -> tuple[str, str] | None:
    if registry is None:
        return None

    if registry.type != "registry":
        raise NotOfferedError(
            what="logins of clouds for registries", instead="give a user name and a password, or a token"
        )

    return registry.username, registry.password


def _notes(body: BuildBody) -> Iterator[str]:
    if _SLEEP.fullmatch(body.ready_cmd.strip()):
        yield "no time is waited for: sandboxes start the command themselves, and are handed out once it has started"
