"""Everything that fumehood raises: one tree, drawn here.

Used by all host code and by callers. Code that fails is none of these: it is `Execution.error`. Each class writes its
message from typed fields (what failed, with the value) and gives a hint (the way out); no call site composes prose.
`code` is stable and may cross a process border. Guest text enters a message only by `visible_line`.

    FumehoodError
    ├── InvalidArgumentError (ValueError)             refused before anything was done
    ├── SandboxError
    │   ├── SandboxStartError (RuntimeError)          no sandbox came to be
    │   │   ├── IsolationUnavailableError             a layer is missing: which, why, how to get it
    │   │   ├── TemplateError                         the template is unknown or broken
    │   │   └── CapacityError                         the machine, or the configured maximum, is full
    │   ├── SandboxNotFoundError (LookupError)        never lived here
    │   ├── SandboxClosedError (RuntimeError)         lived here and ended: killed, expired, idle, died, lost
    │   ├── SandboxPausedError (RuntimeError)         is frozen; resume it first
    │   ├── PortClosedError (ConnectionRefusedError)  nothing in the sandbox listens on this port
    │   ├── ProtocolViolationError (RuntimeError)     the guest broke the wire and was killed for it
    │   ├── SandboxNotStartedError (RuntimeError)     an AsyncSandbox was used before it was entered
    │   └── WrongProcessError (RuntimeError)          held by a forked child of the process that made it
    ├── TemplateStoreError                            a named template could not be built, read or removed
    ├── ContextNotFoundError (LookupError)
    ├── CommandError
    │   ├── CommandExitError                          a command ended with a code other than 0
    │   ├── CommandTimeoutError (TimeoutError)        a command ran out of time and was killed
    │   ├── CommandStartError (OSError)               it could not be started
    │   └── ProcessNotFoundError (ProcessLookupError)
    └── FileError (OSError)
        ├── PathNotFoundError (FileNotFoundError)
        ├── PathExistsError (FileExistsError)
        ├── PathIsDirectoryError (IsADirectoryError)
        ├── PathNotDirectoryError (NotADirectoryError)
        ├── PathPermissionError (PermissionError)
        ├── PathNotTextError (ValueError)             its bytes are not UTF-8
        ├── FileTooLargeError                         larger than the caller wants to hold
        └── DiskFullError                             bytes or inodes of the writable mounts are used up
"""

from __future__ import annotations

import errno
import os
from typing import ClassVar, Literal

from fumehood.text import errno_text, visible, visible_line

_ENDS_OF_COMMANDS = ("command_exit", "command_timeout")  # how something that ran has ended
EndReason = Literal["killed", "expired", "idle", "died", "host_closed", "lost", "adopted", "policy", "excess"]


class FumehoodError(Exception):
    """Root of everything that fumehood raises.

    Attributes:
        code: Stable name of the kind of error, for programs and for other processes.
        message: What failed, with the value.
        hint: The way out, or an empty string.
        outcome_unknown: True when the act may or may not have happened; repeat it only if that does no harm.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", outcome_unknown: bool = False) -> None:
        # Values in it may be a guest's; each class bounds them, and no control character of theirs passes here.
        self.message = visible(message)
        super().__init__(self.message)
        self.hint = hint
        self.outcome_unknown = outcome_unknown

    @property
    def retry_safe(self) -> bool:
        """True when nothing of what was asked for has been done: to ask again does nothing twice."""
        return not self.outcome_unknown and self.code not in _ENDS_OF_COMMANDS

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[FumehoodError], args: tuple[object, ...], state: dict[str, object]) -> FumehoodError:
    """Rebuild an error that crossed a process border, without running its constructor again."""
    error = kind.__new__(kind, *args)
    error.args = args

    for name, value in state.items():
        setattr(error, name, value)

    return error


class InvalidArgumentError(FumehoodError, ValueError):
    """An argument was refused before anything was done; as a value, `...` stands for one that is missing."""

    code = "invalid_argument"

    def __init__(self, *, field: str, value: object, allowed: str, extra: str = "") -> None:
        # A name within it may be one that the caller has made up.
        self.field = field = visible_line(field)
        self.allowed = allowed
        hint = f"pip install 'fumehood[{extra}]'" if extra else f"{field} takes {allowed}"
        shown = field if value is ... else f"{field}={visible_line(repr(value))}"
        why = f"needs {visible_line(allowed)}" if extra else "is missing" if value is ... else "is refused"
        super().__init__(f"{shown} {why}", hint=hint)


class SandboxError(FumehoodError):
    """The sandbox failed, not the code in it."""

    code = "sandbox_error"


class SandboxStartError(SandboxError, RuntimeError):
    """No sandbox came to be."""

    code = "sandbox_start"

    def __init__(self, *, step: str, reason: str, hint: str = "") -> None:
        self.step = step
        self.reason = reason
        super().__init__(
            f"the sandbox did not start: {step}: {visible_line(reason)}",
            hint=hint or "run `fumehood doctor` to see what this machine allows",
        )


class IsolationUnavailableError(SandboxStartError):
    """A layer of isolation is missing on this machine, and the sandbox may not start without it."""

    code = "isolation_unavailable"

    def __init__(self, *, layer: str, reason: str, how_to_get_it: str) -> None:
        self.layer = layer
        super().__init__(
            step=f"isolation layer {layer!r} is not available", reason=reason, hint=how_to_get_it
        )


class TemplateError(SandboxStartError):
    """The template is unknown, or cannot be used."""

    code = "template"

    def __init__(self, *, template: str, reason: str, hint: str = "") -> None:
        self.template = template
        super().__init__(
            step=f"template {visible_line(template)!r}",
            reason=reason,
            hint=hint or "the template 'default' is always there",
        )


class TemplateStoreError(FumehoodError):
    """A named template could not be built, read or removed; what was there before still is.

    Attributes:
        template: Its name.
        operation: build, read or remove.
        reason: What went wrong; of a program that failed, its last lines.
    """

    code = "template_store"

    def __init__(self, *, template: str, operation: str, reason: str, hint: str = "") -> None:
        self.template = template
        self.operation = operation
        self.reason = reason
        super().__init__(
            f"cannot {visible_line(operation)} template {visible_line(template)!r}: {reason.rstrip('.! ')}",
            hint=hint or "`fumehood template list` shows which there are",
        )


class CapacityError(SandboxStartError):
    """There is no room for another sandbox."""

    code = "capacity"

    def __init__(self, *, resource: str, used: int, maximum: int) -> None:
        self.resource = resource
        self.used = used
        self.maximum = maximum
        super().__init__(
            step="there is no room for another sandbox",
            reason=f"{used} of {maximum} {resource} are in use",
            hint="kill sandboxes that you no longer need, or allow more",
        )


class SandboxNotFoundError(SandboxError, LookupError):
    """No sandbox with this id ever lived here."""

    code = "sandbox_not_found"

    def __init__(self, *, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        super().__init__(
            f"no sandbox has the id {visible_line(sandbox_id)!r}",
            hint="`Sandbox.list()` shows the living ones; without a server, only the process that made one knows it",
        )


_ENDED: dict[EndReason, tuple[str, str]] = {
    "killed": ("it was killed", "create a new one"),
    "expired": ("its time ran out", "create it with a longer `timeout`, or call `set_timeout` in time"),
    "idle": ("it was idle for longer than `idle_timeout`", "create it with a longer `idle_timeout`"),
    "died": ("its first process died", "create a new one; `limits.memory_bytes` may have been too small"),
    "host_closed": ("the engine that kept it was closed", "create a new one"),
    "lost": ("the engine that kept it has ended, and another has taken its place", "create a new one"),
    "excess": ("too many connections waited in it, or it held too many locks", "accept connections in time"),
    "policy": ("its security policy ended it", "`audit_log()` shows what it did, and which rule ended it"),
    "adopted": ("it has taken the place of the sandbox it was forked from", "use that one's id"),
}


class SandboxClosedError(SandboxError, RuntimeError):
    """The sandbox lived here and has ended.

    Attributes:
        reason: killed, expired, idle, died, host_closed, lost, adopted, policy or excess.
    """

    code = "sandbox_closed"

    def __init__(self, *, sandbox_id: str, reason: EndReason, outcome_unknown: bool = False) -> None:
        self.sandbox_id = sandbox_id
        self.reason = reason
        why, hint = _ENDED[reason]
        super().__init__(
            f"sandbox {visible_line(sandbox_id)!r} has ended: {why}",
            hint=hint,
            outcome_unknown=outcome_unknown,
        )


class SandboxPausedError(SandboxError, RuntimeError):
    """The sandbox is paused: nothing in it runs, so nothing in it can answer."""

    code = "sandbox_paused"

    def __init__(self, *, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        super().__init__(
            f"sandbox {visible_line(sandbox_id)!r} is paused",
            hint="call `resume()`, or create it with `auto_resume=True`",
        )


class PortClosedError(SandboxError, ConnectionRefusedError):
    """Nothing inside the sandbox listens on this port of its loopback."""

    code = "port_closed"

    def __init__(self, *, sandbox_id: str, port: int) -> None:
        self.sandbox_id = sandbox_id
        self.port = port
        super().__init__(
            f"nothing listens on port {port} of sandbox {visible_line(sandbox_id)!r}",
            hint="start the server first, on 127.0.0.1 or 0.0.0.0, and wait until it listens",
        )


class ProtocolViolationError(SandboxError, RuntimeError):
    """The guest sent something that the wire does not allow, and was killed for it."""

    code = "protocol_violation"

    def __init__(self, *, sandbox_id: str, rule: str, detail: str = "") -> None:
        self.sandbox_id = sandbox_id
        self.rule = rule
        self.detail = visible_line(detail)
        shown = f": {self.detail}" if detail else ""
        super().__init__(
            f"the guest of sandbox {visible_line(sandbox_id)!r} broke the wire ({rule}){shown}",
            hint="its code tried to speak to the host directly; the sandbox is gone, create a new one",
            outcome_unknown=True,
        )


class WrongProcessError(SandboxError, RuntimeError):
    """A forked child used a sandbox of its parent."""

    code = "wrong_process"

    def __init__(self, *, sandbox_id: str, owner_pid: int) -> None:
        self.sandbox_id = sandbox_id
        self.owner_pid = owner_pid
        super().__init__(
            f"sandbox {visible_line(sandbox_id)!r} belongs to process {owner_pid}, not to {os.getpid()}",
            hint="create another sandbox in the child",
        )


class SandboxNotStartedError(SandboxError, RuntimeError):
    """An `AsyncSandbox` was used before it was started."""

    code = "sandbox_not_started"

    def __init__(self) -> None:
        super().__init__(
            "this AsyncSandbox has not been started",
            hint="write `async with AsyncSandbox() as sandbox:` or `sandbox = await AsyncSandbox.create()`",
        )


class ContextNotFoundError(FumehoodError, LookupError):
    """No context with this id lives in the sandbox."""

    code = "context_not_found"

    def __init__(self, *, context_id: str) -> None:
        self.context_id = context_id
        super().__init__(
            f"no context has the id {visible_line(context_id)!r} in this sandbox",
            hint="`list_code_contexts()` shows the living ones, `create_code_context()` makes one",
        )


class CommandError(FumehoodError):
    """A command of the sandbox failed."""

    code = "command_error"


class CommandExitError(CommandError):
    """A command ended with an exit code other than 0.

    Attributes:
        stdout: What it wrote, up to `limits.stdout_bytes`.
        stderr: What it wrote, up to `limits.stderr_bytes`.
        exit_code: Its code; 128 plus the signal's number when a signal ended it.
        is_truncated: Whether it wrote more than is kept.
    """

    code = "command_exit"

    def __init__(
        self, *, command: str, exit_code: int, stdout: str = "", stderr: str = "", is_truncated: bool = False
    ) -> None:
        self.command = command
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.is_truncated = is_truncated
        last = [visible_line(line) for line in (stderr.strip() or stdout.strip())[-4000:].split("\n")[-5:]]
        shown = ": " + "\n".join(last) if any(last) else ""
        super().__init__(
            f"command {visible_line(command)!r} ended with code {exit_code}{shown}",
            hint="`stdout` and `stderr` of this error hold what it wrote",
        )


class CommandTimeoutError(CommandError, TimeoutError):
    """A command ran out of time and was killed."""

    code = "command_timeout"

    def __init__(
        self, *, command: str, timeout_seconds: float | None, stdout: str = "", stderr: str = ""
    ) -> None:
        self.command = command
        self.timeout_seconds = timeout_seconds
        self.stdout = stdout
        self.stderr = stderr
        shown = "" if timeout_seconds is None else f" of {timeout_seconds:g} s"
        super().__init__(
            f"command {visible_line(command)!r} was killed: its time{shown} ran out",
            hint="give a longer `timeout`, or `background=True`",
        )


class CommandStartError(CommandError, OSError):
    """A command could not be started."""

    code = "command_start"

    def __init__(self, *, command: str, errno_value: int) -> None:
        self.command = command
        super().__init__(
            f"command {visible_line(command)!r} did not start: {errno_text(errno_value)}",
            hint="check that the program and `cwd` exist inside the sandbox",
        )
        self.errno = errno_value

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class ProcessNotFoundError(CommandError, ProcessLookupError):
    """No process that was started through the API has this pid."""

    code = "process_not_found"

    def __init__(self, *, pid: int) -> None:
        self.pid = pid
        super().__init__(
            f"no running command has the pid {pid}", hint="`commands.list()` shows those that run"
        )


class FileError(FumehoodError, OSError):
    """A file of the sandbox could not be used as asked.

    Attributes:
        path: The path inside the sandbox, as it was given.
        operation: The verb that failed, such as read or write.
    """

    code = "file_error"
    default_hint: ClassVar[str] = ""

    def __init__(self, *, path: str, operation: str, errno_value: int, hint: str = "") -> None:
        self.path = path
        self.operation = operation
        super().__init__(
            f"cannot {operation} {visible_line(path)!r}: {errno_text(errno_value)}",
            hint=hint or self.default_hint,
        )
        # Last: OSError forgets it when it is made with one argument.
        self.errno = errno_value

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, {**self.__dict__, "errno": self.errno})

    @staticmethod
    def from_errno(*, path: str, operation: str, errno_value: int, hint: str = "") -> FileError:
        """Return the leaf that fits the number a call inside the guest failed with; the text is ours."""
        kind = _FILE_ERRORS.get(errno_value, FileError)
        return kind(path=path, operation=operation, errno_value=errno_value, hint=hint)


class PathNotFoundError(FileError, FileNotFoundError):
    """Nothing is at this path."""

    code = "path_not_found"
    default_hint = "relative paths start at /home/user; `files.list()` shows what is there"


class PathExistsError(FileError, FileExistsError):
    """Something is already at this path."""

    code = "path_exists"
    default_hint = "remove it first, or choose another name"


class PathIsDirectoryError(FileError, IsADirectoryError):
    """A directory is where a file is needed."""

    code = "path_is_directory"
    default_hint = "name a file in it"


class PathNotDirectoryError(FileError, NotADirectoryError):
    """Something other than a directory is where a directory is needed."""

    code = "path_not_directory"
    default_hint = "name a directory"


class PathPermissionError(FileError, PermissionError):
    """The sandbox's user may not do this here."""

    code = "path_permission"
    default_hint = "only /home/user, /tmp, /mnt/data and /dev/shm are writable"


class DiskFullError(FileError):
    """The bytes or the inodes of the writable mounts are used up."""

    code = "disk_full"
    default_hint = "remove files, or create the sandbox with larger `disk_bytes` or `inodes`"


class PathNotTextError(FileError, ValueError):
    """The file is not text in UTF-8."""

    code = "path_not_text"
    default_hint = 'read it with format="bytes"'


class FileTooLargeError(FileError):
    """The file is larger than the caller wants to hold."""

    code = "file_too_large"
    default_hint = 'read it with format="stream", or give a larger `max_bytes`'


# errno(3); any other number is a plain FileError.
_FILE_ERRORS: dict[int, type[FileError]] = {
    errno.ENOENT: PathNotFoundError,
    errno.EEXIST: PathExistsError,
    errno.EISDIR: PathIsDirectoryError,
    errno.ENOTDIR: PathNotDirectoryError,
    errno.EACCES: PathPermissionError,
    errno.EPERM: PathPermissionError,
    errno.EROFS: PathPermissionError,
    errno.ENOSPC: DiskFullError,
    errno.EDQUOT: DiskFullError,
}
