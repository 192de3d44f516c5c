"""All exceptions of fumehood: one tree, drawn here.

Used by all host code and by callers. Code that fails is none of these: it is `Execution.error`. Each class writes its
message from typed fields (what failed, with the value) and gives a hint (the way out); no call site composes prose.
`code` is stable and may cross a process border. Guest text enters a message only through `visible_line`. The log shows
`log_reason`, which holds words of our own only, and never a message.

    FumehoodError
    ├── InvalidArgumentError (ValueError)             refused before anything was done
    ├── SandboxError
    │   ├── SandboxStartError (RuntimeError)          no sandbox came to be
    │   │   ├── IsolationUnavailableError             a layer is missing: which, why, how to get it
    │   │   ├── TemplateError                         the template is unknown or broken
    │   │   └── CapacityError                         the machine, or the configured maximum, is full
    │   ├── ScreenshotError (LookupError)             there is no display, or no picture of it
    │   ├── LanguageUnavailableError (LookupError)    the template lacks what a language needs
    │   ├── SandboxNotFoundError (LookupError)        never lived here
    │   ├── SandboxClosedError (RuntimeError)         lived here and ended: killed, expired, idle, died, lost
    │   ├── SandboxPausedError (RuntimeError)         is frozen; resume it first
    │   ├── PortClosedError (ConnectionRefusedError)  nothing in the sandbox listens on this port
    │   ├── ProtocolViolationError (RuntimeError)     the guest broke the wire and was killed for it
    │   ├── WrongProcessError (RuntimeError)          held by a forked child of the process that made it
    │   ├── SandboxNotStartedError (RuntimeError)     an AsyncSandbox was used before it was entered
    │   ├── DownloadError                             not all that was asked for came to this machine
    │   ├── ForkError                                 it is as it was, and has no fork
    │   │   ├── ForkUnavailableError                  not at this level of isolation
    │   │   └── ForkDepthError                        forks of forks are nested too deeply
    │   ├── CheckpointError                           a checkpoint could not be made, or gone back to
    │   │   ├── CheckpointUnavailableError            not at this level of isolation
    │   │   ├── LanguageCheckpointError               contexts of this language have none
    │   │   ├── CheckpointNotFoundError (LookupError) no checkpoint has this id or name
    │   │   └── CheckpointLostError                   ended by code in the sandbox, or for lack of memory
    │   ├── SaveError                                 nothing was stored
    │   └── LoadError                                 no sandbox came of it
    │       ├── SavedStateDamagedError (ValueError)   not what was written, or no saved state
    │       └── SavedStateVersionError (ValueError)   a format that this version does not read
    ├── TemplateStoreError                            a named template could not be built, read or removed
    ├── ImageError                                    a container image could not be had, or is refused
    │   ├── ImageNotFoundError (LookupError)          no such image, tag or file
    │   ├── ImageAccessError                          the registry wants another login, or none helps
    │   ├── ImagePlatformError                        made for another kind of machine
    │   └── ImageDamagedError (ValueError)            not what its digest says, or broken off
    ├── ContextNotFoundError (LookupError)
    ├── ExecutionNotFoundError (LookupError)
    ├── RecordNotFoundError (LookupError)             of an ended sandbox: none is kept, or no longer
    ├── CommandError
    │   ├── CommandExitError                          a command ended with a code other than 0
    │   ├── CommandTimeoutError (TimeoutError)        a command ran out of time and was killed
    │   ├── CommandStartError (OSError)               it could not be started
    │   └── ProcessNotFoundError (ProcessLookupError)
    ├── FileError (OSError)
    │   ├── PathNotFoundError (FileNotFoundError)
    │   ├── PathExistsError (FileExistsError)
    │   ├── PathIsDirectoryError (IsADirectoryError)
    │   ├── PathNotDirectoryError (NotADirectoryError)
    │   ├── PathPermissionError (PermissionError)
    │   ├── DiskFullError                             bytes or inodes of the writable mounts are used up
    │   ├── PathNotTextError (ValueError)             its bytes are not UTF-8
    │   └── FileTooLargeError                         larger than the caller wants to hold
    └── ServiceError                                  a server refused, or could not be reached
        ├── UnauthenticatedError                      no token, or an unknown one
        ├── ForbiddenError                            the key is known, and may not do this
        ├── NetworkForbiddenError                     not allowed to this key or server
        ├── LimitForbiddenError                       higher than the key allows
        ├── QuotaError                                the key has used up its quota
        ├── RateLimitError                            too much in a short time
        ├── OverloadedError                           more than can be done or queued
        ├── ServerEndingError (ConnectionError)       the server begins nothing new
        ├── QueueTimeoutError (TimeoutError)          waited as long as it may, and was not begun
        ├── RequestTooLargeError                      the request is larger than the server takes
        ├── SlowReaderError                           a reader of a stream did not keep up
        ├── IdempotencyConflictError                  the key was used for something else, or just now
        ├── BatchNotFoundError (LookupError)          no batch has this id, or no longer
        ├── BatchLinesLostError (LookupError)         lines of a batch are no longer kept
        ├── BatchTakenOverError                       another reader follows the batch now
        ├── BadGatewayError (ConnectionError)         a server inside does not speak the protocol
        ├── NoHostNameError (LookupError)             ports have no host names here
        ├── HostUnavailableError (ConnectionError)    the host of the sandbox cannot be reached
        ├── HostVersionError                          the host daemon does not know what the server asks of it
        ├── StorageStartError                         the database or the blob store cannot be opened
        │   └── StorageVersionError                   the database is of a newer version
        ├── StorageError                              the database or the blob store failed
        ├── BlobNotFoundError (LookupError)           no stored content has this name
        └── KeyNotFoundError (LookupError)            no key has this id
"""

from __future__ import annotations

import errno
import math
import os
from typing import ClassVar, Literal

from fumehood.bounds import limit_in_words, plain_number
from fumehood.text import errno_text, visible, visible_line

_ENDS_OF_COMMANDS = ("command_exit", "command_timeout")  # how something that ran has ended
EndReason = Literal["killed", "expired", "idle", "died", "host_closed", "lost", "adopted", "policy", "excess"]


def reason_of(error: BaseException) -> str:
    """Returns the reason of a failure for the log, without words of a guest or caller: the type of a foreign error."""
    return str(getattr(error, "log_reason", "")) or type(error).__name__


class FumehoodError(Exception):
    """The base class of all errors of fumehood.

    Attributes:
        code: Stable name of the kind of error, for programs and for other processes.
        message: The failure, with the value.
        hint: What the caller can do about it, or an empty string.
        outcome_unknown: True when it is unknown whether the operation was carried out; repeat it only if that does no
            harm.
    """

    code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, hint: str = "", outcome_unknown: bool = False, logged: str = ""
    ) -> None:
        # Values in it may be a guest's; each class bounds them, and no control character of theirs passes here.
        self.message = visible(message)
        super().__init__(self.message)
        self.hint = hint
        self.outcome_unknown = outcome_unknown
        self._logged = logged

    @property
    def log_reason(self) -> str:
        """The reason as the log may show it: our own words, or the code if the class gives none for the log.

        A message may hold output, code, commands and names that a guest or caller chose; the log never may.
        """
        # An error that came over HTTP has a message only.
        return visible_line(str(self.__dict__.get("_logged") or self.code), max_characters=300)

    @property
    def retry_safe(self) -> bool:
        """True when no part of the request was carried out, so that repeating it does nothing twice."""
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
    """An argument was refused before anything was done; as a value, `...` stands for one that is missing.

    `problem` describes a fault that is not in a value of the caller, for example in a default.
    """

    code = "invalid_argument"

    def __init__(
        self, *, field: str, value: object, allowed: str, extra: str = "", problem: str = ""
    ) -> None:
        # Part of the name may come from the caller.
        self.field = field = visible_line(field)
        self.allowed = allowed
        hint = f"pip install 'fumehood[{extra}]'" if extra else f"{field} takes {allowed}"
        shown = field if value is ... else f"{field}={visible_line(repr(value))}"
        why = f"needs {visible_line(allowed)}" if extra else "is missing" if value is ... else "is refused"
        super().__init__(visible_line(problem) if problem else f"{shown} {why}", hint=hint)


class SandboxError(FumehoodError):
    """A failure of the sandbox itself, and not of the code in it."""

    code = "sandbox_error"


class SandboxStartError(SandboxError, RuntimeError):
    """A sandbox could not be started.

    `logged` is what the log shows in place of a reason that holds words of a guest, of a caller or of a template.
    """

    code = "sandbox_start"

    def __init__(self, *, step: str, reason: str, hint: str = "", logged: str = "") -> None:
        self.step = step
        self.reason = reason
        super().__init__(
            f"the sandbox did not start: {step}: {visible_line(reason)}",
            hint=hint or "run `fumehood doctor` to see what this machine allows",
            logged=f"{step}: {logged or reason}",
        )


class ScreenshotError(SandboxError, LookupError):
    """No screenshot could be taken.

    Attributes:
        sandbox_id: The sandbox.
        reason: Why.
    """

    code = "no_screenshot"

    def __init__(self, *, sandbox_id: str, reason: str) -> None:
        self.sandbox_id = sandbox_id
        self.reason = reason
        super().__init__(
            f"sandbox {sandbox_id!r} has no screenshot: {visible_line(reason)}",
            hint="build its template with display=True, from an image or a machine with Xvfb",
        )


class LanguageUnavailableError(SandboxError, LookupError):
    """The template of the sandbox lacks what a language needs; nothing was run.

    Attributes:
        language: The language.
        template: The name of the template.
        reason: The missing component.
    """

    code = "language_unavailable"

    def __init__(self, *, language: str, template: str, reason: str, how_to_get_it: str = "") -> None:
        self.language = language
        self.template = template
        self.reason = reason
        super().__init__(
            f"the template {template!r} has no {visible_line(language)}: {visible_line(reason)}",
            hint=how_to_get_it or "make the sandbox from a template with this language",
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

    def __init__(self, *, template: str, reason: str, hint: str = "", logged: str = "") -> None:
        self.template = template
        super().__init__(
            step=f"template {visible_line(template)!r}",
            reason=reason,
            hint=hint or "the template 'default' is always there",
        )
        # Without the name, which a caller gives.
        self._logged = f"template: {logged or reason}"


class TemplateStoreError(FumehoodError):
    """A named template could not be built, read or removed; the store is as it was.

    Attributes:
        template: Its name.
        operation: build, read, carry or remove.
        reason: The reason of the failure; of a program that failed, its last lines.
    """

    code = "template_store"

    def __init__(self, *, template: str, operation: str, reason: str, hint: str = "") -> None:
        self.template = template
        self.operation = operation
        self.reason = reason
        super().__init__(
            f"cannot {visible_line(operation)} template {visible_line(template)!r}: {reason.rstrip('.! ')}",
            hint=hint or "`fumehood template list` shows which there are",
            logged=f"cannot {operation} it",
        )


class ImageError(FumehoodError):
    """A container image could not be fetched or unpacked, or is refused; nothing of it is left.

    Attributes:
        image: The reference, as the caller gave it.
        reason: The reason of the failure.
    """

    code = "image"

    def __init__(self, *, image: str, reason: str, hint: str = "") -> None:
        self.image = image
        self.reason = reason
        super().__init__(
            f"cannot use image {visible_line(image)!r}: {visible_line(reason, max_characters=1000).rstrip('.! ')}",
            hint=hint or "name another image, or one that was built anew",
        )


class ImageNotFoundError(ImageError, LookupError):
    """There is no image of this name and tag."""

    code = "image_not_found"


class ImageAccessError(ImageError):
    """The registry refuses this user."""

    code = "image_access"


class ImagePlatformError(ImageError):
    """The image has no variant for this machine's architecture."""

    code = "image_platform"


class ImageDamagedError(ImageError, ValueError):
    """Content of the image does not match its digest, or ends too early."""

    code = "image_damaged"


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
    "lost": ("its machine, or the engine there that kept it, was lost", "create a new one"),
    "excess": ("too many connections waited in it, or it held too many locks", "accept connections in time"),
    "policy": ("its security policy ended it", "`audit_log()` shows what it did, and which rule ended it"),
    "adopted": ("it has taken the place of the sandbox it was forked from", "use that one's id"),
}


class SandboxClosedError(SandboxError, RuntimeError):
    """The sandbox has ended.

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
            logged=f"it has ended: {why}",
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


class ExecutionNotFoundError(FumehoodError, LookupError):
    """No execution with this id runs in the sandbox, or is in its record."""

    code = "execution_not_found"

    def __init__(self, *, execution_id: str) -> None:
        self.execution_id = execution_id
        super().__init__(
            f"no execution has the id {visible_line(execution_id)!r} in this sandbox",
            hint="its record has the latest ones: older ones are dropped, and so is what ran silently",
        )


class RecordNotFoundError(FumehoodError, LookupError):
    """No record of a sandbox with this id is kept."""

    code = "record_not_found"

    def __init__(self, *, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        super().__init__(
            f"no record of an ended sandbox {visible_line(sandbox_id)!r} is kept",
            hint="a host keeps them only with `--records keep`, for a time, and the latest ones",
        )


class CommandError(FumehoodError):
    """A command of the sandbox failed."""

    code = "command_error"


class CommandExitError(CommandError):
    """A command ended with an exit code other than 0.

    Attributes:
        stdout: Its standard output, up to `limits.stdout_bytes`.
        stderr: Its standard error, up to `limits.stderr_bytes`.
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
    """An operation on a file of the sandbox failed.

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
        # Set last, because OSError drops it when it is made with one argument.
        self.errno = errno_value

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, {**self.__dict__, "errno": self.errno})

    @staticmethod
    def from_errno(*, path: str, operation: str, errno_value: int, hint: str = "") -> FileError:
        """Return the subclass for an errno of a call inside the guest; the text is fumehood's own."""
        kind = _FILE_ERRORS.get(errno_value, FileError)
        return kind(path=path, operation=operation, errno_value=errno_value, hint=hint)


class DownloadError(SandboxError):
    """Some of the requested files could not be written to this machine; the others were.

    Attributes:
        left_out: The path in the sandbox of each missing file, and the reason.
        count: How many files were requested.
    """

    code = "download_failed"

    def __init__(self, *, left_out: tuple[str, ...], count: int) -> None:
        self.left_out = left_out
        self.count = count
        first = visible_line(left_out[0]) if left_out else ""
        super().__init__(
            f"{len(left_out)} of {count} files were not downloaded; the first is {first}",
            hint="`overwrite=True` replaces files that are there, `max_bytes` allows more; `left_out` of this error "
            "names them all",
        )


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
    """The file is larger than the caller's maximum."""

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


class ServiceError(FumehoodError):
    """The server refused a request, or could not be reached; the cause is not a sandbox."""

    code = "service_error"


class UnauthenticatedError(ServiceError):
    """The request has no token, or one that this server does not know."""

    code = "unauthenticated"

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the request is not authenticated: {visible_line(reason)}",
            hint="send `Authorization: Bearer TOKEN`, from Python by `api_key=` or FUMEHOOD_API_KEY; `fumehood serve` "
            "says at its start where to find its token",
            logged=f"the request is not authenticated: {reason}",
        )


class ForbiddenError(ServiceError):
    """The key is known, and may not do this."""

    code = "forbidden"

    def __init__(self, *, reason: str, hint: str = "use a key with that scope") -> None:
        self.reason = reason
        message = f"this key may not do that: {visible_line(reason)}"
        super().__init__(message, hint=hint, logged=message)


class NetworkForbiddenError(ServiceError):
    """The server, or the key, does not allow a sandbox this network.

    Attributes:
        asked: The requested network, or the rule in it.
        allowed: The most that is allowed.
    """

    code = "network_forbidden"

    def __init__(self, *, asked: str, allowed: str) -> None:
        self.asked = asked
        self.allowed = allowed
        super().__init__(
            f"a sandbox may not be given the network {visible_line(asked)!r} here; allowed: {visible_line(allowed)}",
            hint="the server's owner can allow more: `max_network` and `private_networks` of the server, "
            "`max_network` of the key",
        )


class LimitForbiddenError(ServiceError):
    """The key does not allow a limit as high as requested.

    Attributes:
        limit: The name of the limit in `Limits`.
        wanted: The requested value; None: no bound at all.
        maximum: The allowed maximum.
    """

    code = "limit_forbidden"

    def __init__(self, *, limit: str, wanted: float | None, maximum: float) -> None:
        self.limit = limit
        self.wanted = wanted
        self.maximum = maximum
        super().__init__(
            f"this key allows at most {limit_in_words(limit, maximum)} of limits.{visible_line(limit)}, "
            f"not {'no bound' if wanted is None else limit_in_words(limit, wanted)}",
            hint=f"ask for at most {plain_number(maximum)}, or leave it out to get what the key allows",
        )


class QuotaError(ServiceError):
    """The key has used up its quota.

    Attributes:
        quota: The name of the quota.
        retry_after_seconds: When it may try again, or None if time does not help.
    """

    code = "quota"

    def __init__(self, *, quota: str, used: float, maximum: float, retry_after_seconds: float | None) -> None:
        self.quota = quota
        self.used = used
        self.maximum = maximum
        self.retry_after_seconds = retry_after_seconds
        super().__init__(
            f"this key has used {plain_number(used)} of {plain_number(maximum)} {visible_line(quota)}",
            hint="ask the server's owner for more"
            if retry_after_seconds is None
            else "wait, or ask the server's owner for more",
        )


class RateLimitError(ServiceError):
    """A rate limit was exceeded; the request was not carried out.

    Attributes:
        limit: The name of the rate limit.
        maximum: How many are allowed in a minute.
        retry_after_seconds: When to try again.
    """

    code = "rate_limited"

    def __init__(self, *, limit: str, maximum: int, retry_after_seconds: float) -> None:
        self.limit = limit
        self.maximum = maximum
        self.retry_after_seconds = retry_after_seconds
        super().__init__(
            f"too many {visible_line(limit)}: the server takes {maximum:,} in a minute",
            hint=f"nothing was done; try again in {max(1, math.ceil(retry_after_seconds))} s",
        )


class OverloadedError(ServiceError):
    """The server has more requests than it can run or queue; unless the outcome is unknown, nothing was done.

    Attributes:
        retry_after_seconds: When to try again.
    """

    code = "overloaded"

    def __init__(self, *, reason: str, retry_after_seconds: float, outcome_unknown: bool = False) -> None:
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        was_begun = "it may have been begun" if outcome_unknown else "nothing was done"
        super().__init__(
            f"the server is full: {visible_line(reason)}",
            hint=f"{was_begun}; try again in {retry_after_seconds:g} s",
            outcome_unknown=outcome_unknown,
        )


class ServerEndingError(ServiceError, ConnectionError):
    """The server is shutting down: it begins no new work, and cuts off work that takes too long.

    Attributes:
        retry_after_seconds: When to try again, at another server or at the one that comes after it.
    """

    code = "server_ending"

    def __init__(self, *, retry_after_seconds: float, outcome_unknown: bool) -> None:
        self.retry_after_seconds = retry_after_seconds
        was_begun = "it was cut off" if outcome_unknown else "nothing was done"
        super().__init__(
            f"the server is ending: {was_begun}",
            hint=f"try again in {retry_after_seconds:g} s",
            outcome_unknown=outcome_unknown,
        )


class QueueTimeoutError(ServiceError, TimeoutError):
    """The request waited in the queue for as long as it may, and was not begun."""

    code = "queue_timeout"

    def __init__(self, *, waited_seconds: float) -> None:
        self.waited_seconds = waited_seconds
        super().__init__(
            f"the request waited {waited_seconds:.1f} s and was not begun",
            hint="nothing was done; allow a longer `queue_timeout_seconds`, or send fewer at once",
        )


class RequestTooLargeError(ServiceError):
    """The request is larger than the server takes."""

    code = "request_too_large"

    def __init__(self, *, what: str, maximum: int) -> None:
        self.what = what
        self.maximum = maximum
        super().__init__(
            f"the {visible_line(what)} is larger than {maximum:,} bytes",
            hint="send less, or ask the server's owner to allow more",
        )


class SlowReaderError(ServiceError):
    """A stream was ended because its reader was too slow; the execution that it followed was ended as well."""

    code = "slow_reader"

    def __init__(self, *, maximum: int) -> None:
        self.maximum = maximum
        super().__init__(
            f"more than {maximum:,} bytes waited for the reader of this stream",
            hint="read faster, or have the code show less",
            outcome_unknown=True,
        )


class IdempotencyConflictError(ServiceError):
    """An idempotency key was used again, for another request or while the first one is still under way."""

    code = "idempotency_conflict"

    def __init__(self, *, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(
            f"idempotency key {visible_line(key)!r}: {visible_line(reason)}",
            hint="send a new key for a new request",
        )


class BatchNotFoundError(ServiceError, LookupError):
    """No resumable batch has this id, or it has ended: its reader stayed away too long, or the server was restarted."""

    code = "batch_not_found"

    def __init__(self, *, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(
            f"there is no batch {visible_line(batch_id)!r}",
            hint="send the items that have no answer yet as a new batch",
        )


class BatchLinesLostError(ServiceError, LookupError):
    """A reader has requested lines of a batch that are no longer kept, or that do not exist yet."""

    code = "batch_lines_lost"

    def __init__(self, *, batch_id: str, cursor: int, first: int, last: int) -> None:
        self.batch_id = batch_id
        self.cursor = cursor
        self.first = first
        self.last = last
        super().__init__(
            f"batch {visible_line(batch_id)!r} cannot be read from cursor {cursor} on: "
            f"it can from {first} to {last}",
            hint="items without an answer may have run; send them again only if that does no harm",
        )


class BatchTakenOverError(ServiceError):
    """Another reader follows the batch now, and gets all further lines."""

    code = "batch_taken_over"

    def __init__(self, *, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(
            f"another reader follows batch {visible_line(batch_id)!r} now",
            hint="read a batch by one connection at a time",
        )


class BadGatewayError(ServiceError, ConnectionError):
    """The server inside the sandbox does not speak the requested protocol."""

    code = "bad_gateway"

    def __init__(self, *, port: int, reason: str) -> None:
        self.port = port
        self.reason = visible_line(reason)
        super().__init__(
            f"what listens on port {port} did not answer as a web server does: {self.reason}",
            hint="check the server inside; what it printed may say why",
        )


class NoHostNameError(ServiceError, LookupError):
    """The server has no domain under which ports have host names."""

    code = "no_host_name"

    def __init__(self, *, port: int) -> None:
        self.port = port
        super().__init__(
            f"port {port} has no host name at this server",
            hint="use `get_url()`, or start the server with `--domain`",
        )


class HostUnavailableError(ServiceError, ConnectionError):
    """The host that keeps the sandbox cannot be reached, or was lost in the middle of a call."""

    code = "host_unavailable"

    def __init__(self, *, host: str, reason: str, outcome_unknown: bool) -> None:
        self.host = host
        self.reason = reason
        super().__init__(
            f"{visible_line(host)} does not answer: {visible_line(reason)}",
            hint="check that it runs and that its address is right",
            outcome_unknown=outcome_unknown,
            logged=f"{host} does not answer: {reason}",
        )


class HostVersionError(ServiceError):
    """The host daemon of a sandbox is of another version, and does not know what the server asks of it.

    Nothing was begun.

    Attributes:
        asked: The route or the field that it does not know.
        host_version: The version of the host daemon.
        server_version: The version of the server.
    """

    code = "host_version"

    def __init__(self, *, asked: str, host_version: str, server_version: str) -> None:
        self.asked = asked
        self.host_version = host_version
        self.server_version = server_version
        super().__init__(
            f"the host of the sandboxes, fumehood {visible_line(host_version)}, does not know {visible_line(asked)}, "
            f"which this server, fumehood {visible_line(server_version)}, asks of it",
            hint="install the version of the server on that machine and restart its `fumehood host`; "
            "`fumehood cluster status` shows the versions",
            logged="the host daemon is of another version",
        )


class StorageStartError(ServiceError):
    """The database or the blob store could not be opened at the server's start."""

    code = "storage_start"

    def __init__(self, *, location: str, reason: str, hint: str = "") -> None:
        self.location = location
        self.reason = reason
        super().__init__(
            f"cannot open {visible_line(location)}: {visible_line(reason)}",
            hint=hint or "check its address and its permissions, and that the service behind it runs",
        )


class StorageVersionError(StorageStartError):
    """The database was made by a newer fumehood; it was left as it is.

    Attributes:
        found: The revision that it has.
        known: The newest revision that this version knows.
    """

    code = "storage_version"

    def __init__(self, *, location: str, found: str, known: str) -> None:
        self.found = found
        self.known = known
        super().__init__(
            location=location,
            reason=f"its revision {found!r} is newer than {known!r}, the newest that this version knows",
            hint="start the newer fumehood again, or name another database; this one was left untouched",
        )


class StorageError(ServiceError):
    """The database or the blob store failed in the middle of its work.

    Attributes:
        operation: The operation that failed.
        reason: The message of the store. It is logged and not part of `message`, which a server shows to its callers,
            because it may name machines and paths.
    """

    code = "storage"

    def __init__(self, *, operation: str, reason: str, outcome_unknown: bool = False) -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(
            f"the storage failed while {visible_line(operation)}",
            hint="try again; the server's log says why",
            outcome_unknown=outcome_unknown,
            logged=f"the storage failed while {operation}",
        )


class BlobNotFoundError(ServiceError, LookupError):
    """No stored content has this name."""

    code = "blob_not_found"

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(
            f"no stored content has the name {visible_line(name)!r}",
            hint="it was removed, or its time ran out; upload it again",
        )


class KeyNotFoundError(ServiceError, LookupError):
    """No key has this id."""

    code = "key_not_found"

    def __init__(self, *, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(
            f"no key has the id {visible_line(key_id)!r}", hint="`GET /v1/keys` lists those that exist"
        )


_NO_ROOM = (
    "free memory or disk in the sandbox, kill sandboxes that you no longer need, or ask for fewer forks"
)


class ForkError(SandboxError):
    """A sandbox could not be forked; it is as it was, and no fork of this call is left.

    Attributes:
        step: The step that failed.
        reason: The reason of the failure; `logged` replaces it in the log if it holds words of a guest.
    """

    code = "fork_failed"

    def __init__(self, *, step: str, reason: str, hint: str = "", logged: str = "") -> None:
        self.step = step
        self.reason = reason
        super().__init__(
            f"the sandbox was not forked: {visible_line(step)}: {visible_line(reason)}",
            hint=hint or "the sandbox is as it was; try again, or go on without a fork",
            logged=f"{step}: {logged or reason}",
        )

    @staticmethod
    def from_errno(step: str, number: int) -> ForkError:
        """Return the error for the errno of a failed call."""
        no_room = number in (errno.ENOMEM, errno.ENOSPC, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
        return ForkError(
            step=step,
            reason=os.strerror(number) if number else "refused",
            hint=_NO_ROOM if no_room else "",
        )


class ForkUnavailableError(ForkError):
    """Sandboxes of this level of isolation cannot be forked; nothing was begun.

    Attributes:
        level: The level of isolation of the sandbox.
    """

    code = "fork_unavailable"

    def __init__(self, *, level: str) -> None:
        self.level = level
        super().__init__(
            step="look at what it is",
            reason=f"a sandbox of the isolation level {level!r} has no forks",
            hint="make the sandbox without isolation='landlock-only', where `fumehood doctor` finds namespaces; or "
            "start another one, and give it the files",
        )


class ForkDepthError(ForkError):
    """The sandbox is a fork of a fork too many times: each fork is nested in its parent.

    Attributes:
        generation: How many forks lie between this sandbox and one that was made directly.
        maximum: How many there may be.
    """

    code = "fork_too_deep"

    def __init__(self, *, generation: int, maximum: int) -> None:
        self.generation = generation
        self.maximum = maximum
        super().__init__(
            step="a fork of a fork",
            reason=f"it is of generation {generation}, and no more than {maximum} are possible",
            hint="fork from one of an earlier generation, or start again in a sandbox that is no fork",
        )


_NEEDS_NAMESPACES = (
    "make the sandbox without isolation='landlock-only', where `fumehood doctor` finds namespaces; transactions, "
    "reported changes and judged programs need them too"
)
_NO_ROOM_FOR_CHECKPOINT = "free memory or disk in the sandbox, drop checkpoints, or give it larger limits"


class CheckpointError(SandboxError):
    """A checkpoint could not be made or restored; the sandbox is as it was.

    `logged` is what the log shows in place of a reason that holds words of a guest or caller.
    """

    code = "checkpoint"
    opening: ClassVar[str] = "the checkpoint failed: "

    def __init__(self, *, reason: str, hint: str = "", logged: str = "") -> None:
        self.reason = reason
        super().__init__(f"{self.opening}{visible_line(reason)}", hint=hint, logged=logged or reason)

    @staticmethod
    def from_errno(number: int, what: str = "") -> CheckpointError:
        """Return the error for the errno of a call that failed inside the guest."""
        name = os.strerror(number) if number else "refused"
        no_room = number in (errno.ENOMEM, errno.ENOSPC, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
        reason = f"{what}: {name}" if what not in ("", name) else name
        return CheckpointError(reason=reason, hint=_NO_ROOM_FOR_CHECKPOINT if no_room else "", logged=name)


class CheckpointUnavailableError(CheckpointError):
    """Sandboxes of this isolation level support no checkpoints, forks or transactions; nothing was started.

    Attributes:
        level: The level of isolation of the sandbox.
    """

    code = "checkpoint_unavailable"

    def __init__(self, *, level: str) -> None:
        self.level = level
        super().__init__(
            reason=f"a sandbox of the isolation level {level!r} has none", hint=_NEEDS_NAMESPACES
        )


class LanguageCheckpointError(CheckpointError):
    """Contexts of this language support no checkpoints, forks or transactions; nothing was started.

    Attributes:
        context_id: The context.
        language: The language.
    """

    code = "language_checkpoint"

    def __init__(self, *, context_id: str, language: str, reason: str, allowed: str) -> None:
        self.context_id = context_id
        self.language = language
        super().__init__(
            reason=f"the context {visible_line(context_id)!r} speaks {language}: {reason}",
            hint=f"contexts of {allowed} can be kept; the files of the sandbox are kept with them",
            logged=f"the context speaks {language}: {reason}",
        )


class CheckpointNotFoundError(CheckpointError, LookupError):
    """No checkpoint has this id or name."""

    code = "checkpoint_not_found"
    # A rollback, a fork or a comparison names it, and none of them is a checkpoint.
    opening = ""

    def __init__(self, *, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            reason=f"there is no checkpoint {checkpoint_id!r}",
            hint="`list_checkpoints()` shows which there are: a fork has none of its parent's, and the oldest is "
            "dropped when there are too many",
            logged="there is no such checkpoint",
        )


class CheckpointLostError(CheckpointError):
    """A checkpoint is gone: code in the sandbox, or a lack of memory, has ended its process."""

    code = "checkpoint_lost"

    def __init__(self, *, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            reason=f"{checkpoint_id!r} has ended: code in the sandbox has killed it, or memory ran out",
            hint="the sandbox is as it was; go back to another checkpoint, or go on",
            logged="it has ended: code in the sandbox has killed it, or memory ran out",
        )


_MAX_CHARACTERS = 500


class SaveError(SandboxError):
    """A sandbox could not be saved; it is as it was, and nothing was stored."""

    code = "save"

    def __init__(self, *, reason: str, hint: str = "") -> None:
        self.reason = reason[:_MAX_CHARACTERS]
        super().__init__(f"the sandbox cannot be saved: {visible_line(self.reason)}", hint=hint)


class LoadError(SandboxError):
    """A saved state could not be loaded; no new sandbox is left."""

    code = "load"

    def __init__(self, *, reason: str, hint: str = "") -> None:
        self.reason = reason[:_MAX_CHARACTERS]
        super().__init__(f"the saved state cannot be loaded: {visible_line(self.reason)}", hint=hint)


class SavedStateDamagedError(LoadError, ValueError):
    """A saved state was changed or cut off after it was written, or is not a saved state at all."""

    code = "saved_state_damaged"

    def __init__(self, *, part: str, reason: str) -> None:
        self.part = part[:_MAX_CHARACTERS]
        super().__init__(
            reason=f"{self.part}: {reason}",
            hint="it was damaged or changed since it was saved: use another copy",
        )


class SavedStateVersionError(LoadError, ValueError):
    """A saved state has a format that this version of fumehood does not read."""

    code = "saved_state_version"

    def __init__(self, *, found: str, known: str) -> None:
        self.found = found[:_MAX_CHARACTERS]
        self.known = known
        super().__init__(
            reason=f"it has {self.found}, and this version of fumehood reads {known}",
            hint="load it with a newer fumehood, or save it again with this one",
        )
