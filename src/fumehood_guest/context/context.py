"""The context: a live interpreter that runs the host's requests one after the other.

Runs as a child of init, and is where hostile code lives; no other process trusts it. The loop reads a request, opens
the signal gate, lets the language run the code, closes the gate and replies. It must survive everything that user code
does short of ending the process, and it exits when the host closes the channel.
"""

from __future__ import annotations

import os
import resource
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NoReturn, Protocol, Tuple, Union

from fumehood_guest.context.bare_shell import BareShell
from fumehood_guest.context.bash import BashShell
from fumehood_guest.context.bootstrap import BorrowedEnvironment, take_descriptors, take_environment
from fumehood_guest.context.changes import Survey
from fumehood_guest.context.channel import FrameSocket
from fumehood_guest.context.checkpoint import Apart, Checkpoints
from fumehood_guest.context.driven import DrivenShell
from fumehood_guest.context.idle_wait import IdleWait
from fumehood_guest.context.introspection import Answerer, answer, empty_answer
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.replies import Replies
from fumehood_guest.context.signals import SignalGate
from fumehood_guest.context.standard_input import BorrowedInput, Inputs
from fumehood_guest.context.streams import Streams
from fumehood_guest.context.telemetry import Telemetry
from fumehood_guest.context.tools import HostTools
from fumehood_guest.context.whole_programs import WholeProgramShell
from fumehood_jail.syscalls import flush_c_stdio

if TYPE_CHECKING:
    # Contexts of other languages are forks of processes that never import IPython.
    from fumehood_guest.context.shell import PythonShell

_KIB = 1024
# EX_SOFTWARE of sysexits.h: the exit status of a context that can no longer answer.
_DAMAGED = 70
_ATTEMPTS = (1, 2, 3)
# Between two requests: how often the user's loop and handlers may fail before they wait for the next one, and how often
# the context's own loop until it exits.
_MAX_IDLE_FAULTS = 100
_MAX_FAULTS = 1_000
# Handlers of a comm message run like a cell without a history number.
_HANDLERS = {"allow_stdin": False, "silent": True, "store_history": False, "envs": {}}
_KERNEL_PREFIX = "kernel:"
_COMM_KINDS = frozenset(("comm_open", "comm_msg", "comm_close"))
# The languages whose code runs in this process.
_WITHIN = frozenset(("python", "r"))
_QUESTIONS = frozenset(("complete_request", "inspect_request", "is_complete_request", "variables_request"))


Shell = Union["PythonShell", BareShell]


class Language(Protocol):
    """The operations of a language that its context uses: to run code, and to report its errors."""

    answerer: Answerer

    @property
    def reply_count(self) -> int:
        """The number of the last cell with a history number."""

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs code; the caller passes an escaping exception to `report`."""

    def run_comm(self, header: Dict[str, Any], payload: bytes) -> None:
        """Runs the handlers of a comm message; the caller passes an escaping exception to `report`."""

    def report(self, error: BaseException | None = None) -> None:
        """Sends the error of the code that has just run, if it had one."""


def run_context(
    shell: Shell,
    channel_fd: int,
    stdout_fd: int,
    stderr_fd: int,
    *,
    context_id: str,
    language: str,
    cwd: str,
    envs: Mapping[str, str],
    program: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Turns the calling process into a context and serves the host until it closes the channel.

    Before: the process was forked from the zygote, is confined, and has a session of its own. After: it has ended.
    """
    # First, because a failure is reported on a descriptor that is moved next.
    os.chdir(cwd)
    channel = FrameSocket(take_descriptors(channel_fd, stdout_fd, stderr_fd))
    take_environment(envs)
    Context(channel, shell, language, program).serve()


class Context:
    """The parts of a context, and its loop."""

    def __init__(
        self, channel: FrameSocket, shell: Shell, language: str, program: Mapping[str, Any] | None = None
    ) -> None:
        self._channel = channel
        self._shell = shell
        self._outlet = Outlet(channel)
        self._streams = Streams(self._outlet)
        self._gate = SignalGate(channel.is_readable)
        self._background, self._attach = self._connect(shell, channel.fileno())
        self._replies = Replies(channel, self._gate, self._leave)
        self._inputs = Inputs(self._outlet, self._streams, self._replies)
        self._tools = HostTools(self._outlet, self._streams, self._replies, lambda: shell.user_ns)
        self._checkpoints = Checkpoints(channel, self._background)
        self._telemetry = Telemetry()
        self._exit = os._exit
        self._faults = 0
        self._getrusage = resource.getrusage
        self._flush_c_stdio = flush_c_stdio
        self._language: Language
        self._repairs = shell.repairs
        self._spoken = language
        self._program = program

    def _connect(self, shell: Shell, channel_fd: int) -> Tuple[IdleWait, Callable[[], None]]:
        """Returns the object that waits between cells, and the one that connects the shell with this context."""
        if isinstance(shell, BareShell):
            return IdleWait(channel_fd), partial(shell.take_streams, self._streams)

        # Imported late, and long before in the zygote: other languages need no asyncio.
        from fumehood_guest.context.event_loop import BackgroundLoop

        background = BackgroundLoop(channel_fd)
        return background, partial(shell.attach, self._outlet, self._streams, background)

    def serve(self) -> NoReturn:
        """Reports that it is ready, then runs the host's requests."""
        self._gate.start()
        self._attach()
        self._repairs.attach(self._streams)
        self._inputs.install()
        self._background.install()
        os.register_at_fork(before=self._streams.send_pending, after_in_child=self._become_fork)

        if self._spoken == "python" and not isinstance(self._shell, BareShell):
            self._language = self._shell
        else:
            # A child inherits the mask: it must not be started with signals blocked.
            with self._gate.opened():
                self._language = self._other_language()

        self._outlet.ready()

        while True:
            try:
                try:
                    self._serve_one()
                finally:
                    self._gate.close()
            except BaseException:
                self._gate.close()
                self._faults += 1  # a handler of the user hit the loop itself

            if self._faults > _MAX_FAULTS:
                self._exit(_DAMAGED)

    def _other_language(self) -> Language:
        if self._program is not None:
            return WholeProgramShell(self._program, self._outlet, self._gate)

        if self._spoken == "bash":
            return BashShell(self._outlet, self._gate)

        if self._spoken == "r":
            # Imported late: nothing else loads R.
            from fumehood_guest.context.r import RShell

            return RShell(self._outlet, self._streams, self._gate)

        if self._spoken.startswith(_KERNEL_PREFIX):
            # Imported late, as above.
            from fumehood_guest.context.kernel import KernelShell

            return KernelShell(self._spoken, self._outlet, self._streams, self._gate)

        return DrivenShell(self._spoken, self._outlet, self._gate)

    def _serve_one(self) -> None:
        self._gate.close()
        self._checkpoints.reap()

        if not self._channel.is_readable() and not self._idle():
            return

        frame = self._channel.receive()

        if frame is None:
            return

        header, payload = frame

        self._faults = 0

        kind = header["type"]

        if kind == "execute_request":
            execution = GuestExecution(header)
            source = execution.take_stdin(payload).decode("utf-8", "replace")
            self._execute(execution, lambda: self._language.run_source(source, execution))
        elif kind in _COMM_KINDS:
            execution = GuestExecution({**header, **_HANDLERS})
            self._execute(execution, lambda: self._language.run_comm(header, payload))
        elif kind in _QUESTIONS:
            self._answer(header, payload.decode("utf-8", "replace"))
        elif kind == "checkpoint_request":
            self._make_checkpoint(header["id"])
        elif kind == "shutdown_request":
            self._leave()

    def _make_checkpoint(self, request_id: str) -> None:
        """Forks a checkpoint, and waits until the host lets this context proceed: nothing may change meanwhile."""
        self._insist(self._streams.send_pending)
        self._insist(self._flush_c)
        self._insist(self._replies.let_go)
        bash = self._language if isinstance(self._language, BashShell) else None
        try:
            apart = Apart() if bash is None else bash.write_down()
            is_made_anew = self._checkpoints.make(self._channel.take_fd(), apart, self._look)
        except OSError as error:
            self._channel.send({"type": "checkpoint_reply", "id": request_id, "errno": error.errno or 0})
            return

        if is_made_anew:
            if bash is not None:
                # As at its first start: a child inherits the mask.
                with self._gate.opened():
                    bash.go_on()

            self._outlet.ready()
            return

        self._channel.send({"type": "checkpoint_reply", "id": request_id, "errno": 0})
        self._checkpoints.wait_for_leave()
        self._gate.forget_broken_lease()
        self._checkpoints.reap()

    def _look(self, name: str, marks: bool) -> Tuple[int, bytes]:
        """Returns, in a checkpoint, its variables: all of them, or the named one in detail; for Python only."""
        question = {"type": "variables_request", "marks": marks}
        header, payload = answer(self._language.answerer, question, name)
        return header["count"], payload

    def _idle(self) -> bool:
        """Waits for the host; returns whether it has sent something."""
        try:
            # Handlers that raise again and again, as that of a short timer does, raise once more when there is work.
            if self._faults > _MAX_IDLE_FAULTS:
                with self._gate.opened_unheard():
                    self._background.wait()

            # What is pending raises here.
            self._gate.open_for_wait()
            self._background.wait()
        except BaseException as error:
            self._gate.close()
            self._faults += 1

            if self._faults > _MAX_IDLE_FAULTS:
                self._background.abandon()

            self._shell.show_stray(error)
        finally:
            self._gate.close()

        # User code may have stopped the loop.
        return self._channel.is_readable()

    def _execute(self, execution: GuestExecution, work: Callable[[], None]) -> None:
        before = self._spent()
        self._outlet.begin(execution)

        if execution.after_interrupt:
            self._insist(self._gate.forget_interrupt)

        borrowed = BorrowedEnvironment(execution.envs)
        # Languages that run in processes of their own have an input of their own.
        standard_input = BorrowedInput(execution.stdin if self._spoken in _WITHIN else None)

        if execution.hears_replies:
            self._insist(self._replies.begin)
            self._insist(lambda: self._tools.lend(execution))

        survey = self._survey() if execution.tells_changes else None

        if execution.tells_telemetry:
            self._telemetry.begin()

        error = self._run(work, borrowed, standard_input)
        # Telemetry ends with the cell, also in a fork of it.
        heard = self._telemetry.end() if execution.tells_telemetry else b""

        if self._outlet.is_detached:
            self._shell.leave_fork(error)

        if execution.hears_replies:
            self._insist(self._replies.end)
            self._insist(self._tools.take_back)

        self._insist(self._repairs.apply)
        self._insist(self._streams.send_pending)
        self._insist(self._flush_c)
        self._insist(lambda: self._language.report(error))
        self._insist(borrowed.give_back)
        self._insist(standard_input.give_back)

        if survey is not None:
            self._insist(lambda: self._tell_changes(survey))

        if heard:
            self._insist(lambda: self._outlet.telemetry(heard))

        self._insist(lambda: self._outlet.reply(self._language.reply_count, self._usage_since(before)))

    def _survey(self) -> Survey | None:
        """Surveys the namespace.

        Returns None if that fails: another thread changes the namespace, memory runs out, or user code interferes.
        """
        try:
            return Survey(self._shell.user_ns, self._shell.user_ns_hidden)
        except BaseException:
            return None

    def _tell_changes(self, survey: Survey) -> None:
        try:
            changes = survey.encoded()
        except BaseException:
            return  # unknown changes are not reported

        self._outlet.changes(changes)

    def _answer(self, question: Dict[str, Any], code: str) -> None:
        """Answers a question about code. Examining objects runs user code, which may do anything."""
        if question.get("after_interrupt", False):
            self._insist(self._gate.forget_interrupt)

        reply = empty_answer(question)
        try:
            try:
                self._gate.open_for_cell()
                reply = answer(self._language.answerer, question, code)
            finally:
                self._gate.close_after_cell()
        except BaseException:
            self._gate.close_after_cell()
            # The caller does not need the reason why an object cannot be examined.
            reply = empty_answer(question)

        if self._outlet.is_detached:
            self._shell.leave_fork()

        header, payload = reply
        self._insist(self._streams.send_pending)
        self._insist(lambda: self._channel.send({**header, "id": question["id"]}, payload))

    def _insist(self, step: Callable[[], None]) -> None:
        """Retries a step that the reply needs, since a user's handler may interrupt it from another thread."""
        for _ in _ATTEMPTS:
            try:
                step()
            except BaseException:  # noqa: S112
                continue

            return

        # Damaged beyond repair: exiting reports it at once.
        self._exit(_DAMAGED)

    def _flush_c(self) -> None:
        try:
            self._flush_c_stdio()
        except OSError:
            return  # user code has closed the descriptor

    def _run(
        self, work: Callable[[], None], borrowed: BorrowedEnvironment, standard_input: BorrowedInput
    ) -> BaseException | None:
        """Runs code with the gate open; returns the exception that escaped, if any."""
        self._inputs.is_cell_running = True
        try:
            try:
                borrowed.take()
                standard_input.take()
                self._gate.open_for_cell()
                work()
            finally:
                self._gate.close_after_cell()
        except BaseException as error:
            # Again, where a handler has hit the first instruction of it.
            self._gate.close_after_cell()
            return error
        finally:
            self._inputs.is_cell_running = False

        return None

    def _become_fork(self) -> None:
        """Turns a child that user code forks into an ordinary program: no channel, plain text on fds 1 and 2."""
        if self._checkpoints.is_forking:
            return

        self._outlet.detach()
        self._streams.detach()
        self._replies.detach()

    def _leave(self) -> NoReturn:
        self._exit(0)
        raise AssertionError("unreachable")

    def _spent(self) -> Tuple[float, float, int]:
        """Returns user and system CPU seconds and the peak memory."""
        own = self._getrusage(resource.RUSAGE_SELF)
        children = self._getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime, own.ru_maxrss * _KIB

    def _usage_since(self, before: Tuple[float, float, int]) -> Dict[str, Any]:
        user_seconds, system_seconds, peak_memory_bytes = self._spent()
        return {
            "user_cpu_seconds": max(0.0, user_seconds - before[0]),
            "system_cpu_seconds": max(0.0, system_seconds - before[1]),
            "peak_memory_bytes": peak_memory_bytes,
        }
