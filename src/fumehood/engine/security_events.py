"""Security events of one sandbox: counted, sent to callers, and handled by the rules that pause or kill it.

It is driven by other events and uses no timer. Where code in the sandbox controls the content, the event is marked as
advice. A guest can cause any number of events: all are counted and checked against the rules, few are kept.
`unusual_program` recognizes programs that model-written code seldom has a reason to start.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

from fumehood.cancellation import keep
from fumehood.engine.audit_trail import AuditTrail, event_bucket, shown
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.pause import pause_or_end
from fumehood.errors import EndReason, SandboxError
from fumehood.log import events
from fumehood.log.request_ids import logged_request
from fumehood.token_bucket import TokenBucket
from fumehood.values.limits import Limits
from fumehood.values.network import EgressRecord
from fumehood.values.security import (
    SecurityAction,
    SecurityEvent,
    SecurityKind,
    SecuritySettings,
    SecuritySeverity,
)

MAX_EVENTS = 1000
# The share of a limit at which a storm is reported, and below which the next one is reported again.
_STORM_SHARE = 0.5
_CALM_SHARE = 0.25
# Shorter executions have no time for a storm; more frequent requests would show nothing new.
_WORTH_A_LOOK_SECONDS = 0.25
_LOOK_APART_SECONDS = 1.0

Figures = Mapping[str, Any]


class Guarded(Protocol):
    """The operations of a sandbox that the monitor uses."""

    id: str
    limits: Limits

    def end(self, reason: EndReason) -> None:
        """Begins the end of the sandbox."""


class SecurityMonitor:
    """Reports security events of one sandbox.

    Args:
        sandbox: The sandbox.
        trail: Its audit record.
        pause: Pauses it.
        ask_figures: Asks the sandbox's init for the sandbox's resource usage.
    """

    def __init__(
        self,
        sandbox: Guarded,
        trail: AuditTrail,
        pause: Callable[[], Awaitable[object]],
        ask_figures: Callable[[], Awaitable[tuple[Any, bytes]]],
    ) -> None:
        # Called with each event, for a count over all sandboxes.
        self.on_event: Callable[[SecurityEvent], None] = lambda _: None
        # Called with each event, for followers of this sandbox.
        self.on_reported: Callable[[SecurityEvent], None] = lambda _: None
        self._sandbox = sandbox
        self._trail = trail
        self._pause = pause
        self._ask_figures = ask_figures
        self._settings = SecuritySettings()
        self._counts: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}
        self._events: deque[SecurityEvent] = deque(maxlen=MAX_EVENTS)
        self._made = 0
        self._news = asyncio.Event()
        self._is_over = False
        self._storms: set[SecurityKind] = set()
        self._looked_at = 0.0
        self._is_looking = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of events of each kind."""
        return dict(self._counts)

    @property
    def wants_telemetry(self) -> bool:
        """Whether telemetry of interpreters is requested."""
        return self._settings.telemetry

    def begin(self, settings: SecuritySettings, on_event: Callable[[SecurityEvent], None]) -> None:
        """Sets the rules when the sandbox is handed out."""
        self._settings = settings
        self.on_event = on_event

    async def follow(self) -> AsyncGenerator[SecurityEvent, None]:
        """Yields the kept events, then each new one, until the sandbox ends."""
        position = 0

        while True:
            while position < self._made:
                # A slow reader misses some.
                position = max(position, self._made - len(self._events))
                event = self._events[position - self._made]
                position += 1
                yield event

            if self._is_over:
                return

            self._news.clear()
            await self._news.wait()

    def note_refused_call(self, name: str, process_id: int | None) -> None:
        """Handles a system call that our policy has refused, as reported by the kernel."""
        self._trail.note_of_guest("refused_call", {"call": shown(name), "process": process_id})
        self.report("refused_call", f"the system call {shown(name)} was refused", process_id=process_id)

    def note_egress(self, record: EgressRecord) -> None:
        """Handles a decision of the proxy about a connection."""
        self._trail.note_egress(record)

        if record.verdict == "denied":
            # The task that serves connections was started by the request that has made the sandbox.
            with logged_request(""):
                events.EGRESS_REFUSED.log(
                    sandbox_id=self._sandbox.id,
                    kind=record.kind,
                    host=shown(record.name),
                    port=record.port,
                    rule=shown(record.rule),
                )

            target = f"{shown(record.name)}:{record.port}"
            self.report("egress_denied", f"{record.kind} to {target} was denied: {shown(record.rule)}")

    def note_limit(self, execution_id: str, limit: str) -> None:
        """Handles a limit that an execution has reached."""
        self._trail.note("limit", {"execution": execution_id, "limit": limit})
        self.report("limit_hit", f"an execution reached limits.{limit}", severity="info")

    def note_guessed_limit(self, limit: str) -> None:
        """Handles a limit that an execution has reached according to its own error."""
        self.report(
            "limit_hit", f"an execution seems to have reached limits.{limit}", severity="info", advice=True
        )

    def note_program(self, argv: Sequence[str], process_id: int) -> None:
        """Reports an `unusual_program` event if the program of a started command is one that sandboxes rarely need."""
        found = unusual_program(argv)

        if found is not None:
            self.report(
                "unusual_program",
                f"a command starts {shown(found.name)}",
                severity="info",
                process_id=process_id,
                advice=found.is_guess,
            )

    def note_telemetry(self, detail: str, process_id: int | None) -> None:
        """Handles telemetry of an interpreter in the sandbox, which code can suppress or fake."""
        self._trail.note_of_guest(
            "telemetry", {"detail": shown(detail), "process": process_id, "advice": True}
        )
        self.report("telemetry", shown(detail), severity="info", process_id=process_id, advice=True)

    def note_ran(self, seconds: float) -> None:
        """Handles the end of an execution: requests the sandbox's usage in the background after a long one."""
        if seconds >= _WORTH_A_LOOK_SECONDS and not self._is_looking:
            now = asyncio.get_running_loop().time()

            if now - self._looked_at >= _LOOK_APART_SECONDS:
                self._looked_at, self._is_looking = now, True
                keep(self._look())

    def note_figures(self, figures: Figures) -> None:
        """Checks the sandbox's usage against its limits, whenever it was requested."""
        limits = self._sandbox.limits
        processes, inodes = figures["processes"], figures["inodes_used"]
        self._note_share("process_storm", processes, limits.processes, "processes and threads")
        self._note_share("file_storm", inodes, limits.inodes, "files and directories")

    def report(
        self,
        kind: SecurityKind,
        detail: str,
        *,
        severity: SecuritySeverity = "warning",
        process_id: int | None = None,
        advice: bool = False,
    ) -> None:
        """Counts an event, reports it, and applies the rules."""
        if self._is_over or not self._trail.is_open:
            return

        self._counts[kind] += 1
        count = self._counts[kind]
        action = self._settings.action_at(kind, count)

        if action == "record" and not self._buckets.setdefault(kind, event_bucket()).take():
            return

        event = SecurityEvent(
            at=datetime.now(UTC),
            sandbox_id=self._sandbox.id,
            kind=kind,
            severity=severity,
            detail=detail,
            process_id=process_id,
            advice=advice,
            count=count,
            action=action,
        )
        self._events.append(event)
        self._made += 1
        self._news.set()
        self.on_event(event)
        self.on_reported(event)
        self._act(action, event)

    def end(self, reason: EndReason | None, breach: str) -> None:
        """Reports a protocol violation, writes the last audit entries, and ends all followers."""
        if breach:
            self.report("protocol_violation", f"the guest broke the wire: {shown(breach)}", severity="danger")

        self._trail.end(reason or "died", breach)
        self._is_over = True
        self._news.set()

    def _act(self, action: SecurityAction, event: SecurityEvent) -> None:
        if action == "record" or event.kind == "protocol_violation":
            # The sandbox has been killed for the violation already.
            return

        self._trail.note("policy", {"kind": event.kind, "count": event.count, "action": action})

        if action == "kill":
            self._sandbox.end("policy")
        else:
            keep(pause_or_end(self._pause, partial(self._sandbox.end, "policy")))

    async def _look(self) -> None:
        try:
            figures, _ = await self._ask_figures()
            self.note_figures(figures)
        except (InitError, InitGoneError, SandboxError):
            return
        finally:
            self._is_looking = False

    def _note_share(self, kind: SecurityKind, used: int, limit: int, what: str) -> None:
        if used < _CALM_SHARE * limit:
            self._storms.discard(kind)
        elif used >= _STORM_SHARE * limit and kind not in self._storms:
            self._storms.add(kind)
            self.report(kind, f"{used:,} of {limit:,} {what}")


# Programs that reach other machines, other processes, higher rights, or the host.
# fmt: off
_NAMES = frozenset((
    "bpftrace", "bpftool", "capsh", "chroot", "crictl", "ctr", "docker", "dmesg", "ftp", "gdb",
    "gdbserver", "insmod", "iptables", "kexec", "kubectl", "ltrace", "masscan", "mknod", "modprobe",
    "mount", "nc", "ncat", "netcat", "newgidmap", "newuidmap", "nft", "nmap", "nsenter", "perf",
    "pkexec", "podman", "ptrace", "rsh", "runc", "setcap", "socat", "ssh", "sshd", "strace", "su",
    "sudo", "tcpdump", "telnet", "tftp", "umount", "unshare", "xmrig",
))
# fmt: on
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_MAX_CHARACTERS = 4_000
# Where a command begins in a shell line: at the start, and behind separators and opening brackets.
_COMMAND = re.compile(r"(?:^|[;&|(\n`{]|\$\()[^\S\n]*+(?:exec\s+|env\s+|command\s+)?([\w./+-]{1,200})")


class UnusualProgram(NamedTuple):
    """A program that is seldom started."""

    name: str
    is_guess: bool


def unusual_program(argv: Sequence[str]) -> UnusualProgram | None:
    """Returns the first unusual program that a command starts, or whose name its shell line contains; else None."""
    program = _base(argv[0])

    if program in _NAMES:
        return UnusualProgram(program, is_guess=False)

    if program not in _SHELLS:
        return None

    line = next((argv[at + 1] for at in range(1, len(argv) - 1) if argv[at].endswith("c")), "")
    words = (_base(word) for word in _COMMAND.findall(line[:_MAX_CHARACTERS]))
    found = next((word for word in words if word in _NAMES), None)
    return None if found is None else UnusualProgram(found, is_guess=True)


def _base(path: str) -> str:
    return path[:_MAX_CHARACTERS].rpartition("/")[2]
