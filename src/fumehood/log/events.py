"""Every line that fumehood logs: its name, level, logger, fields and meaning, declared once.

`docs/guides/logging.md` shows this table, and tests hold page and calls to it. Fields are ids, names, numbers and
reasons in our own words; none may hold code, output, a secret, a value of the environment or the content of a file.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from fumehood.log.formats import pairs

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
ROOT = "fumehood"
EVENTS: dict[str, LogEvent] = {}

# A program that imports us sees nothing of the log unless it configures logging (docs.python.org, Logging HOWTO).
logging.getLogger(ROOT).addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A kind of line.

    Attributes:
        name: Its stable name, for programs that read the log.
        level: Its level, as a number of `logging`.
        package: The folder of fumehood whose logger writes it.
        text: A description of the event.
        fields: The names of its values; None is left out.
        meaning: When it is logged, and the meaning of its fields, for the guide.
        max_in_window: How many lines are written in a window of `repeats`, although it is no warning; None: all.
    """

    name: str
    level: int
    package: str
    text: str
    fields: tuple[str, ...]
    meaning: str
    max_in_window: int | None = None
    logger: logging.Logger = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logger", logging.getLogger(f"{ROOT}.{self.package}"))
        EVENTS[self.name] = self

    def log(self, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Logs one line; nothing is formatted unless a handler takes it.

        Args:
            exc_info: An exception whose traceback goes with it.
            fields: Its values, by the names that are declared.
        """
        if self.logger.isEnabledFor(self.level):
            extra = {
                "event": self.name,
                "text": self.text,
                "fields": fields,
                "max_in_window": self.max_in_window,
            }
            message = _Message(self.text, fields)
            self.logger.log(self.level, message, exc_info=exc_info, extra=extra, stacklevel=2)


@dataclass(frozen=True, slots=True)
class _Message:
    """The message of a record, for formatters of other programs: the words, then the fields."""

    text: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        shown = pairs(self.fields)
        return f"{self.text}: {shown}" if shown else self.text


# The process.
SERVER_STARTED = LogEvent(
    "server.started",
    INFO,
    "server",
    "the server listens",
    ("address", "token_file", "version", "pid", "settings"),
    "The server takes requests; its settings: in JSON lines all, with secrets as `***`; in text those that differ from "
    "the default, without secrets.",
)
HOST_STARTED = LogEvent(
    "host.started",
    INFO,
    "daemon",
    "the host listens",
    ("address", "version", "pid", "settings"),
    "The host daemon takes requests; its settings: in JSON lines all; in text those that differ from the default.",
)
SERVER_ENDING = LogEvent(
    "server.ending",
    INFO,
    "server",
    "ending",
    ("drain_seconds",),
    "A signal has ended the process: nothing new is begun, what is under way may go on for so long.",
)
SERVER_CUT_OFF = LogEvent(
    "server.cut_off",
    WARNING,
    "server",
    "requests under way have been cut off",
    ("reason",),
    "They took longer than `drain_seconds`, or a second signal came.",
)
SERVER_ENDED = LogEvent(
    "server.ended",
    INFO,
    "server",
    "ended",
    ("exit_code",),
    "The last line of a server or a host daemon.",
)
DIALECT_MISSING = LogEvent(
    "dialect.missing",
    WARNING,
    "server",
    "a dialect is not installed",
    ("dialect", "extra"),
    "It is among the dialects that are spoken, and its folder or its extra is not there.",
)
TRACES_OFF = LogEvent(
    "traces.off",
    WARNING,
    "server",
    "no traces are sent",
    ("reason", "extra"),
    "A collector is named, and the extra that sends traces is not installed.",
)
HOST_UNREACHABLE = LogEvent(
    "host.unreachable",
    WARNING,
    "server",
    "not ready until `fumehood host` listens",
    ("socket", "reason"),
    "At the start of a server: it is not ready until `fumehood host` listens there.",
)
SANDBOXES_LOST = LogEvent(
    "sandboxes.lost",
    WARNING,
    "daemon",
    "sandboxes were ended that may be restored on another machine",
    ("count", "reason"),
    'Those with `on_host_loss="restore"`, on a machine that is cut off from its cluster or was.',
)
PEER_REFUSED = LogEvent(
    "peer.refused",
    WARNING,
    "daemon",
    "a connection of another user was refused",
    (),
    "A process of another user has opened the socket of the host daemon.",
)
LOG_REPEATS = LogEvent(
    "log.repeats",
    WARNING,
    "server",
    "more records of one cause were left out",
    ("left_out", "place", "window_seconds"),
    "Five warnings or errors of one cause are written in half a minute, and 60 lines of `request.anonymous`; this line "
    "counts the others, at their level and by their logger.",
)

# Requests.
_REQUEST = ("method", "route", "status", "duration_seconds", "address", "key_id", "sandbox_id")
REQUEST_SERVED = LogEvent(
    "request.served",
    INFO,
    "server",
    "request",
    _REQUEST,
    "The access log: one line for each request when its answer has ended. `route` is the pattern of the path, never "
    "the path itself; status 101 is a WebSocket, 499 a client that has left. `address` is the client's; behind a proxy "
    "that is not trusted it is the proxy's.",
)
REQUEST_ANONYMOUS = LogEvent(
    "request.anonymous",
    INFO,
    "server",
    "request of an unknown caller",
    _REQUEST,
    "The same where no key was recognised: refused ones, logins, public ports. At most 60 in half a minute are "
    "written, and `log.repeats` counts the others, so that a caller without a key cannot fill a disk.",
    max_in_window=60,
)
PROBE_SERVED = LogEvent(
    "probe.served",
    DEBUG,
    "server",
    "probe",
    _REQUEST,
    "The same for `/healthz`, `/readyz` and `/metrics`.",
)
REQUEST_SLOW = LogEvent(
    "request.slow",
    WARNING,
    "server",
    "a request was slow",
    (*_REQUEST, "threshold_seconds"),
    "The answer began later than `slow_request_seconds` after the request.",
)
REQUEST_FAILED = LogEvent(
    "request.failed",
    ERROR,
    "server",
    "a request failed",
    ("method", "route"),
    "A fault of the server, answered with status 500; the line has a traceback.",
)
REQUEST_REFUSED = LogEvent(
    "request.refused",
    WARNING,
    "server",
    "a request was refused",
    ("method", "status", "reason"),
    "Before any route saw it: a Host or an Origin that is not allowed, a body that is too large, or a server that "
    "ends.",
)
ANSWER_BROKEN_OFF = LogEvent(
    "answer.broken_off",
    DEBUG,
    "server",
    "an answer was broken off",
    ("reason",),
    "The connection was reset, because the rest of an answer could not be sent.",
)
KEY_USED = LogEvent(
    "key.used",
    DEBUG,
    "server",
    "a key was used",
    ("key_id",),
    "A token was recognised; `owner` is the token of the server. Each `request.served` names the key as well.",
)
KEY_REFUSED = LogEvent(
    "key.refused",
    WARNING,
    "server",
    "a key was refused",
    ("key_id", "reason"),
    "No token, one that is not known, has expired or was revoked, or one without the scope that is needed.",
)
RATE_LIMITED = LogEvent(
    "rate.limited",
    WARNING,
    "server",
    "a request was refused: too many in a short time",
    ("limit", "maximum", "address"),
    "Which rate, how much of it is allowed in a minute, and the client's address, of IPv6 its network; behind a "
    "proxy that is not trusted it is the proxy's.",
)
KEY_CHANGED = LogEvent(
    "key.changed",
    INFO,
    "server",
    "a key was changed",
    ("key_id", "by", "fields"),
    "`by` is `owner` or the id of the key that asked; `fields` are the names of what was given: `name`, "
    "`scopes`, `policy.FIELD`.",
)
KEY_REVOKED = LogEvent(
    "key.revoked",
    INFO,
    "server",
    "a key was revoked",
    ("key_id", "by", "sandboxes_ended"),
    "`sandboxes_ended` is 0 too where they were to be kept.",
)
LOGIN_BEGUN = LogEvent(
    "login.begun",
    INFO,
    "server",
    "a browser has logged in",
    ("key_id", "login_id", "means"),
    "`means` is `token` or `code`.",
)
LOGIN_ENDED = LogEvent(
    "login.ended",
    INFO,
    "server",
    "logins were ended by their holder",
    ("key_id", "count"),
    "`count` is 0 where they had ended already.",
)
SHARE_MADE = LogEvent(
    "share.made",
    INFO,
    "server",
    "a sandbox was shared",
    ("key_id", "share_id", "sandbox_id", "shows", "seconds"),
    "`shows` are the parts that are shown; `seconds` is after how long it ends by itself.",
)
SHARE_OPENED = LogEvent(
    "share.opened",
    INFO,
    "server",
    "a share was opened with its address",
    ("share_id", "sandbox_id", "openings"),
    "`openings` is how often it was, with this time.",
)
SHARE_REVOKED = LogEvent(
    "share.revoked",
    INFO,
    "server",
    "a share was revoked",
    ("share_id", "by", "count"),
    "`by` is `owner` or the id of the key that asked; `count` is 0 where it had ended already.",
)
VOLUME_NOT_STORED = LogEvent(
    "volume.not_stored",
    WARNING,
    "server",
    "changes of a volume are not stored",
    ("volume_id", "sandbox_id", "reason"),
    "Some or all of them; they are tried again every few seconds, and the line comes again when the reason changes.",
)
TEMPLATE_BUILT = LogEvent(
    "template.built",
    INFO,
    "server",
    "a template was built over HTTP",
    ("template", "size_bytes", "duration_seconds"),
    "Also when nothing had changed and nothing was done.",
)
TEMPLATE_REMOVED = LogEvent(
    "template.removed",
    INFO,
    "server",
    "a template was removed over HTTP",
    ("template", "is_deleted"),
    "`is_deleted` is false while a process uses it: its files are deleted later.",
)
QUOTA_REFUSED = LogEvent(
    "quota.refused",
    WARNING,
    "server",
    "a quota is used up",
    ("key_id", "quota", "used", "maximum"),
    "A key has used what its policy allows.",
)
QUEUE_OVERLOADED = LogEvent(
    "queue.overloaded",
    WARNING,
    "server",
    "a run was refused by the queue",
    ("key_id", "reason", "waiting", "running", "capacity"),
    "Stateless runs: the queue is full, the wait would be too long, or another key needed the place (an eviction).",
)
QUEUE_TIMED_OUT = LogEvent(
    "queue.timed_out",
    WARNING,
    "server",
    "a run waited too long",
    ("key_id", "waited_seconds", "waiting"),
    "A stateless run was not begun within `queue_seconds`.",
)
ANSWER_NOT_KEPT = LogEvent(
    "answer.not_kept",
    ERROR,
    "server",
    "an idempotent answer was not kept",
    ("reason",),
    "A request was done; sent again with its `Idempotency-Key`, it will not get the same answer.",
)
INTERPRETER_NOT_INSIDE = LogEvent(
    "interpreter.not_inside",
    WARNING,
    "server",
    "a sandbox has no interpreter inside",
    ("sandbox_id", "reason"),
    "Its port 49999 is a program's own, or it has no network namespace: programs in it do not reach the interpreter.",
)
FILE_NOT_REMOVED = LogEvent(
    "file.not_removed",
    WARNING,
    "server",
    "an expired file could not be removed",
    ("reason",),
    "It is tried again in the next round.",
)
FILES_REMOVED = LogEvent(
    "files.removed",
    INFO,
    "server",
    "expired files were removed",
    ("count",),
    "Uploaded files whose time was over.",
)
HOUSEKEEPING_FAILED = LogEvent(
    "housekeeping.failed",
    WARNING,
    "server",
    "housekeeping failed",
    ("reason",),
    "It is tried again in the next round.",
)
KERNEL_REQUEST_FAILED = LogEvent(
    "kernel.request_failed",
    ERROR,
    "dialects",
    "a request of a kernel failed",
    ("kernel_id",),
    "A fault of the Jupyter dialect; the line has a traceback.",
)
KERNEL_INPUT_REFUSED = LogEvent(
    "kernel.input_refused",
    INFO,
    "dialects",
    "the input for a kernel was not taken",
    ("kernel_id", "reason"),
    "The code did not wait for it any more.",
)
KERNEL_MESSAGE_REFUSED = LogEvent(
    "kernel.message_refused",
    WARNING,
    "dialects",
    "a message to a kernel was refused",
    ("kernel_id", "reason"),
    "Its signature or its form is wrong. Only a kernel that is a process of its own (`fumehood kernel start`) logs it.",
)
KERNEL_UNSEEN = LogEvent(
    "kernel.unseen",
    INFO,
    "dialects",
    "a kernel could not be looked at",
    ("kernel_id", "reason"),
    "It is looked at again.",
)

# The storage of a server.
STORAGE_FAILED = LogEvent(
    "storage.failed",
    ERROR,
    "storage",
    "the storage failed",
    ("location", "operation", "reason"),
    "What a `storage` error leaves out: where, and what the database, the bucket or the disk said.",
)
STORAGE_RETRIED = LogEvent(
    "storage.retried",
    WARNING,
    "storage",
    "what could not be stored is tried again",
    ("reason", "retry_after_seconds"),
    "Usage and last uses of keys are kept in memory meanwhile.",
)
DATABASE_PUT_ASIDE = LogEvent(
    "database.put_aside",
    ERROR,
    "storage",
    "the database is broken; it was moved away, and a new one is made",
    ("location", "moved_to", "reason"),
    "At the start of a server.",
)
RECORD_NOT_KEPT = LogEvent(
    "record.not_kept",
    ERROR,
    "engine",
    "the record of a sandbox that has ended could not be kept",
    ("sandbox_id", "reason"),
    "Only with `--records keep`.",
)
RECORD_NOT_READ = LogEvent(
    "record.not_read",
    ERROR,
    "engine",
    "a kept record cannot be read",
    ("sandbox_id", "reason"),
    "Its file was changed or damaged.",
)
RECORD_NOT_REMOVED = LogEvent(
    "record.not_removed",
    ERROR,
    "engine",
    "a kept record could not be removed",
    ("sandbox_id", "reason"),
    "Its file lies in the folder still, and is listed again after a restart.",
)
AUDIT_FILE_LATE = LogEvent(
    "audit.file_late",
    ERROR,
    "audit",
    "an audit file cannot be written for now",
    ("path", "reason"),
    "Its entries are kept in memory until it can.",
)
AUDIT_FILE_ENDED = LogEvent(
    "audit.file_ended",
    ERROR,
    "audit",
    "an audit file ends here: too much of it could not be written",
    ("path", "reason"),
    "The record itself goes on in memory.",
)

# Callers of the library.
TOOL_FAILED = LogEvent(
    "tool.failed",
    WARNING,
    "api",
    "a tool failed",
    ("tool",),
    "A function of the caller's has raised; the code hears the name of the exception, the line has its traceback.",
)
TOOL_TIMED_OUT = LogEvent(
    "tool.timed_out",
    WARNING,
    "api",
    "a tool took too long",
    ("tool", "timeout_seconds"),
    "The code goes on with an error.",
)
TOOL_GAVE_NO_JSON = LogEvent(
    "tool.gave_no_json",
    WARNING,
    "api",
    "a tool gave no JSON",
    ("tool", "reason"),
    "Its value cannot be sent to the sandbox.",
)
TOOL_GOES_ON = LogEvent(
    "tool.goes_on",
    WARNING,
    "api",
    "a tool goes on although its execution has ended",
    ("task",),
    "It was cancelled, and has not ended within a second.",
)
CALLBACK_FAILED = LogEvent(
    "callback.failed",
    ERROR,
    "api",
    "a callback failed",
    ("callback",),
    "A callback that no call waits for has raised; the line has its traceback.",
)
SECURITY_EVENTS_OVER = LogEvent(
    "security_events.over",
    DEBUG,
    "api",
    "no more security events come",
    ("sandbox_id", "reason"),
    "The sandbox has ended, or its server cannot be reached.",
)
STDOUT_FAILED = LogEvent(
    "stdout.failed",
    ERROR,
    "mcp",
    "standard output takes no more",
    ("reason",),
    "`fumehood mcp`: its client cannot be answered any more.",
)

# The engine.
ENGINE_STARTED = LogEvent(
    "engine.started",
    INFO,
    "engine",
    "the engine is there",
    (
        "host_id",
        "isolation_levels",
        "required_level",
        "pool_size",
        "preload",
        "max_sandboxes",
        "memory_reserve_bytes",
        "max_cpu_pressure",
        "own_interpreters",
    ),
    "Its effective settings. Templates start with the first sandbox.",
)
ENGINE_ENDED = LogEvent(
    "engine.ended",
    INFO,
    "engine",
    "the engine has ended",
    ("host_id",),
    "All sandboxes and the processes of all templates have ended.",
)
TEMPLATE_STARTED = LogEvent(
    "template.started",
    INFO,
    "engine",
    "a template has started",
    ("template", "isolation_level", "own_interpreter", "left_out", "duration_seconds"),
    "Its processes are ready to make sandboxes; `left_out` counts modules that are not preloaded.",
)
TEMPLATE_FAILED = LogEvent(
    "template.failed",
    ERROR,
    "engine",
    "a template did not start",
    ("template", "isolation_level", "reason", "duration_seconds"),
    "The next call tries again.",
)
TEMPLATE_ENDED = LogEvent(
    "template.ended",
    INFO,
    "engine",
    "a template has ended",
    ("template", "isolation_level"),
    "The engine was closed.",
)
TEMPLATE_DIED = LogEvent(
    "template.died",
    WARNING,
    "engine",
    "the processes of a template have died",
    ("template", "isolation_level"),
    "Its sandboxes end with them; the next call starts it anew.",
)
RUNTIME_CHOSEN = LogEvent(
    "runtime.chosen",
    INFO,
    "engine",
    "a way to isolate sandboxes is possible here",
    ("isolation_level", "layers"),
    "Before the first sandbox that is made this way; `layers` has the state of each layer.",
)
ISOLATION_WEAKER = LogEvent(
    "isolation.weaker",
    WARNING,
    "engine",
    "layers of isolation are missing or weaker here",
    ("isolation_level", "layers", "way_out"),
    "With the first sandbox; `layers` has the state and the reason of each of these layers.",
)
RUNTIME_GIVEN_UP = LogEvent(
    "runtime.given_up",
    WARNING,
    "engine",
    "a way to isolate sandboxes is not possible here",
    ("isolation_level", "layer", "reason"),
    "It is not tried again; weaker ones serve callers that have asked for less.",
)
ISOLATION_REFUSED = LogEvent(
    "isolation.refused",
    WARNING,
    "engine",
    "a sandbox was refused: it would be isolated too weakly",
    ("required_level", "layer", "reason"),
    "This machine cannot do what the caller or the operator wants.",
)
POOL_NOT_FILLED = LogEvent(
    "pool.not_filled",
    WARNING,
    "engine",
    "a pool cannot be filled",
    ("template", "ready", "size", "reason"),
    "Sandboxes are made when they are asked for, which takes longer; it is tried again after the next one.",
)
ADMISSION_REFUSED = LogEvent(
    "admission.refused",
    WARNING,
    "engine",
    "a sandbox was refused: the host is full",
    ("owner", "resource", "used", "maximum"),
    "The caller gets a `capacity` error.",
)
HOST_EXHAUSTED = LogEvent(
    "host.exhausted",
    WARNING,
    "engine",
    "the host has run out of something",
    ("reason", "errno"),
    "Files, processes, memory or disk; the caller gets an `overloaded` error.",
)
HOST_FAULT = LogEvent(
    "host.fault",
    ERROR,
    "engine",
    "the host could not go on",
    ("reason", "errno"),
    "A fault of the operating system that a call ran into; the line has a traceback.",
)

# The node agent of a machine in a cluster.
PART_STARTED = LogEvent(
    "part.started",
    INFO,
    "node_agent",
    "a part of this machine was started",
    ("part", "pid"),
    "host, ray or server.",
)
PART_ENDED = LogEvent(
    "part.ended",
    WARNING,
    "node_agent",
    "a part of this machine has ended",
    ("part", "exit_code"),
    "It is started again, after a pause if it ended soon. `PART.log` beside says why it ended.",
)

# Machines of a cluster, as a server of it sees them.
CLUSTER_UNREACHABLE = LogEvent(
    "cluster.unreachable",
    WARNING,
    "cluster",
    "Ray does not answer",
    ("address", "reason"),
    "The machines that are known go on working; changes of the cluster are not seen until Ray answers again.",
)
MACHINE_JOINED = LogEvent(
    "machine.joined",
    INFO,
    "cluster",
    "a machine is there",
    ("host_id",),
    "It gets sandboxes as soon as it has reported.",
)
MACHINE_GONE = LogEvent(
    "machine.gone",
    WARNING,
    "cluster",
    "a machine has left the cluster, or died",
    ("host_id", "calls"),
    "`calls` were under way: their callers get `host_unavailable` with an unknown outcome.",
)
MACHINE_SILENT = LogEvent(
    "machine.silent",
    WARNING,
    "cluster",
    "a machine does not answer",
    ("host_id", "seconds", "calls"),
    "`calls` were under way and are given up: their callers get `host_unavailable` with an unknown outcome.",
)
MACHINE_VERSION = LogEvent(
    "machine.version",
    WARNING,
    "cluster",
    "a machine has another version of fumehood",
    ("host_id", "version", "missing"),
    "What its host daemon does not know yet is `missing`: the server does without, or refuses with `host_version`.",
)
TEMPLATE_CARRIED = LogEvent(
    "template.carried",
    INFO,
    "cluster",
    "a template was sent to a machine that lacked it",
    ("template", "host_id", "source", "seconds"),
    "`source` is the machine it came from.",
)
TEMPLATE_NOT_CARRIED = LogEvent(
    "template.not_carried",
    WARNING,
    "cluster",
    "a template could not be sent to a machine that lacks it",
    ("template", "host_id", "source", "reason"),
    "Its sandboxes are made on the machines that have it.",
)
MACHINE_LEFT_OUT = LogEvent(
    "machine.left_out",
    WARNING,
    "cluster",
    "a list of sandboxes lacks those of a machine",
    ("host_id", "reason"),
    "The machine did not answer.",
)
CANCEL_FAILED = LogEvent(
    "call.not_cancelled",
    DEBUG,
    "cluster",
    "a call to an adapter could not be cancelled",
    ("reason",),
    "It has ended, or its adapter has.",
)

# Sandboxes.
SANDBOX_CREATED = LogEvent(
    "sandbox.created",
    INFO,
    "engine",
    "a sandbox was handed out",
    ("sandbox_id", "template", "isolation_level", "owner", "parent_id", "duration_seconds"),
    "`owner` is the key of a server, `parent_id` the sandbox that it was forked from.",
)
SANDBOX_NOT_CREATED = LogEvent(
    "sandbox.not_created",
    WARNING,
    "engine",
    "a sandbox could not be made",
    ("template", "owner", "code", "reason"),
    "For another reason than those that have events of their own.",
)
SANDBOX_ENDED = LogEvent(
    "sandbox.ended",
    INFO,
    "engine",
    "a sandbox has ended",
    ("sandbox_id", "template", "owner", "reason", "lifetime_seconds"),
    "As it should: `reason` is killed, expired (its timeout), idle, or host_closed.",
)
SANDBOX_FAILED = LogEvent(
    "sandbox.failed",
    WARNING,
    "engine",
    "a sandbox has failed",
    ("sandbox_id", "template", "owner", "reason", "rule", "lifetime_seconds"),
    "`reason` is protocol_violation (`rule` says which; its audit record says more), out_of_memory, policy, excess, or "
    "died: its first process, for an unknown reason or with the template's.",
)
SANDBOX_WASTED = LogEvent(
    "sandbox.wasted",
    WARNING,
    "engine",
    "a sandbox has failed before it was handed out",
    ("sandbox_id", "reason", "rule"),
    "In the pool, or while it was made.",
)
SANDBOX_ADOPTED = LogEvent(
    "sandbox.adopted",
    INFO,
    "engine",
    "a fork has taken the place of its parent",
    ("sandbox_id", "child_id"),
    "It has the id of the parent from now on.",
)
EXECUTION_STOPPED = LogEvent(
    "execution.stopped",
    INFO,
    "engine",
    "code was stopped",
    ("sandbox_id", "context_id", "execution_id", "reason", "state_lost"),
    "`reason` is the kind of the error: time_limit, cpu_limit, out_of_memory, interrupted or context_died. "
    "An exception of the code itself is no event.",
)
FORK_FAILED = LogEvent(
    "fork.failed",
    WARNING,
    "engine",
    "a fork failed",
    ("sandbox_id", "code", "reason"),
    "The sandbox is as it was.",
)
CHECKPOINT_FAILED = LogEvent(
    "checkpoint.failed",
    WARNING,
    "engine",
    "a checkpoint could not be made or gone back to",
    ("sandbox_id", "code", "reason"),
    "Also that of a transactional execution.",
)
CHECKPOINT_EVICTED = LogEvent(
    "checkpoint.evicted",
    INFO,
    "engine",
    "the oldest checkpoint was dropped",
    ("sandbox_id", "checkpoint_id"),
    "The sandbox has as many as it may have.",
)
EGRESS_REFUSED = LogEvent(
    "egress.refused",
    WARNING,
    "engine",
    "a connection out of a sandbox was refused",
    ("sandbox_id", "kind", "host", "port", "rule"),
    "Code in the sandbox has chosen the host; all of them are in the egress log of the sandbox.",
)

# Templates.
MODULE_LEFT_OUT = LogEvent(
    "template.module_left_out",
    WARNING,
    "runtimes",
    "a template does not preload a module",
    ("template", "module", "cause"),
    "`cause` is missing, threads (its import leaves some) or error.",
)
