"""Tracing: one process makes another carry out system calls, and lets it do nothing else in between.

Runs in the host process, in one thread from the first call to the last: the kernel ties a tracer to its thread. The
process that is held belongs to user code and is hostile. It runs one instruction at a time, the one with which it
entered the kernel, and each time with freshly written registers: a process that shares its memory may have replaced
that instruction, but can never have a second one run. Where the kernel reports it, the process is killed if that
instruction made no call. Where it does not (arm64), the caller must check by the result that the requested call was
carried out.
"""

from __future__ import annotations

import copy
import errno
import os
import signal
import struct
from contextlib import suppress

from fumehood_jail import call_numbers, syscalls

# include/uapi/linux/ptrace.h
_PTRACE_POKEDATA = 5
_PTRACE_SINGLESTEP = 9
_PTRACE_DETACH = 17
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_PTRACE_O_EXITKILL = 0x00100000
_PTRACE_O_TRACEFORK = 0x00000002
_PTRACE_O_TRACEVFORK = 0x00000004
_PTRACE_EVENT_FORK = 1
_PTRACE_EVENT_VFORK = 2
_PTRACE_EVENT_STOP = 128
# include/uapi/linux/wait.h
_WALL = 0x40000000
# All signals are blocked while the process is held, except the one by which it stops for its tracer.
_ALL_BUT_TRAPS = (1 << 64) - 1 & ~(1 << signal.SIGTRAP - 1)
# The number of other stops to tolerate: signals may still arrive in between.
_MAX_STOPS = 64
# include/linux/errno.h: results of an interrupted call that the kernel will restart.
_RESTARTS = (-512, -513, -514, -516)
_MAX_ERRNO = 4095
_WORD = 1 << 64
_WORD_BYTES = 8
# Below the stop codes that the kernel itself produces.
_MAX_SIGNAL = (1 << 8) - 1
_INTERRUPTED = signal.SIGTRAP | _PTRACE_EVENT_STOP << 8
# Its children are traced from their start, and it stops when it makes one.
_OPTIONS = _PTRACE_O_EXITKILL | _PTRACE_O_TRACEFORK | _PTRACE_O_TRACEVFORK
_FORK_STOPS = tuple(signal.SIGTRAP | event << 8 for event in (_PTRACE_EVENT_FORK, _PTRACE_EVENT_VFORK))
# The area right below the stack pointer belongs to the running function (System V ABI: the red zone).
_BELOW_STACK_BYTES = 1024
_STACK_ALIGNMENT = 16


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD >> 1 else word


class _X86:
    """The fields of struct user_regs_struct for a system call (arch/x86/include/asm/user_64.h)."""

    layout = struct.Struct("=27Q")
    arguments = (14, 13, 12, 7, 9, 8)
    number = result = 10
    # The call by which it entered the kernel, used for restarts; -1 for none, which no call can leave there.
    restarts = 15
    pointer = 16
    stack = 19
    instruction_bytes = 2
    # Whether a process interrupted in a call has its instruction pointer behind the call instruction.
    stands_behind = True

    @staticmethod
    def is_in(values: tuple[int, ...], number: int) -> bool:
        """Returns whether a process was interrupted in this system call, so that the kernel would restart it."""
        return values[_X86.restarts] == number and _signed(values[_X86.result]) in _RESTARTS

    @staticmethod
    def has_made(values: tuple[int, ...], number: int) -> bool:
        """Whether a process that has stopped behind its instruction made this call by it."""
        return values[_X86.restarts] == number


class _Arm64:
    """The fields of struct user_pt_regs for a system call (arch/arm64/include/uapi/asm/ptrace.h)."""

    layout = struct.Struct("=34Q")
    arguments = (0, 1, 2, 3, 4, 5)
    number = 8
    result = 0
    restarts = None
    pointer = 32
    stack = 31
    instruction_bytes = 4
    stands_behind = False

    @staticmethod
    def is_in(values: tuple[int, ...], number: int) -> bool:
        """Whether a process was interrupted in this call; whether the kernel will restart it is not visible here."""
        return values[_Arm64.number] == number

    @staticmethod
    def has_made(values: tuple[int, ...], number: int) -> bool:
        """Returns True: the registers do not show whether another instruction left them so."""
        return True


_REGISTERS = _Arm64 if call_numbers.MACHINE == "aarch64" else _X86


class HeldProcess:
    """A traced process that is blocked in a system call, and is made to carry out others in its place.

    The caller checks that it is blocked where expected, and in the end releases or kills it. Every method raises
    `ProcessLookupError` when the process has ended.

    Args:
        pid: Its number.

    Raises:
        OSError: The kernel does not let this process trace it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: tuple[int, ...] = ()
        self._entry = 0
        self._mask = 0
        self._has_ended = False
        syscalls.ptrace(_PTRACE_SEIZE, pid, _OPTIONS)

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._pid

    def is_stopped_in(self, name: str) -> bool:
        """Interrupts the call in which it is blocked; from now on it makes only the calls requested here.

        Args:
            name: The call's name.

        Returns:
            Whether it is in that call. If not, for example inside a signal handler or stopped by a signal, it is
            detached unchanged.
        """
        syscalls.ptrace(_PTRACE_INTERRUPT, self._pid)
        stopped_by = self._wait()
        self._before = self._read()

        # A process stopped by a signal stays stopped until it receives SIGCONT, which its sender could no longer
        # deliver after a migration.
        if stopped_by != _INTERRUPTED or not _REGISTERS.is_in(self._before, call_numbers.HERE[name]):
            given_on = 0 if stopped_by > _MAX_SIGNAL or stopped_by == signal.SIGTRAP else stopped_by
            syscalls.ptrace(_PTRACE_DETACH, self._pid, given_on)
            return False

        self._mask = syscalls.ptrace_signal_mask(self._pid)
        syscalls.ptrace_signal_mask(self._pid, _ALL_BUT_TRAPS)
        at = self._before[_REGISTERS.pointer]
        self._entry = at - _REGISTERS.instruction_bytes if _REGISTERS.stands_behind else at
        return True

    def call(self, name: str, arguments: tuple[int, ...]) -> int:
        """Makes it carry out a system call.

        Args:
            name: The call's name.
            arguments: All six, as they lie in registers.

        Returns:
            The kernel's result.

        Raises:
            OSError: With the errno of the kernel, or EINTR when signals kept interrupting it.
            ProcessLookupError: The process executed another instruction, as far as can be detected, and was killed.
        """
        return self._make(name, arguments)[0]

    def fork(self, flags: int) -> HeldProcess:
        """Makes it fork; `forked` must be called before any other request.

        Args:
            flags: Flags of clone(2), and SIGCHLD. With CLONE_VFORK this process continues when the child has ended.

        Returns:
            The child, which is held at the same place.

        Raises:
            OSError: The same errors as those of `call`.
        """
        _, child = self._make("clone", (flags, *(0,) * 5))

        if child is None:
            self.end()
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} made no process, and has ended")

        return child

    def forked(self) -> int:
        """Lets the process complete the call of `fork`; returns the child's pid in the process's own namespace."""
        stopped_by = self._step()
        values = self._read()

        if values[_REGISTERS.pointer] != self._entry + _REGISTERS.instruction_bytes:
            self.end()
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} went elsewhere, and has ended")

        # A stop for another reason came first, and the trap of this step is pending: once it is released, that would
        # end it. A call without effect takes it.
        if stopped_by != signal.SIGTRAP:
            self.call("prctl", (syscalls.PR_GET_NO_NEW_PRIVS, *(0,) * 5))

        return _signed(values[_REGISTERS.result])

    def leave(self) -> None:
        """Makes the process call exit_group: the tracer may not be allowed to kill it."""
        with suppress(ProcessLookupError):
            self.call("exit_group", (0,) * 6)
            # It executed something else, so it is killed; another process may be waiting for its end.
            self.end()

    def lay(self, content: bytes) -> int:
        """Writes `content` below its stack pointer, beyond the red zone; returns the address."""
        start = (self._before[_REGISTERS.stack] - _BELOW_STACK_BYTES - len(content)) & ~(_STACK_ALIGNMENT - 1)

        for offset in range(0, len(content), _WORD_BYTES):
            (word,) = struct.unpack("=Q", content[offset : offset + _WORD_BYTES].ljust(_WORD_BYTES, b"\0"))
            syscalls.ptrace(_PTRACE_POKEDATA, self._pid, word, start + offset)

        return start

    def let_go(self, result: int) -> None:
        """Releases it, with `result` as the result of the call in which it was blocked."""
        values = list(self._before)
        values[_REGISTERS.result] = result % _WORD
        values[_REGISTERS.pointer] = self._entry + _REGISTERS.instruction_bytes
        self._put(values)
        syscalls.ptrace_signal_mask(self._pid, self._mask)
        syscalls.ptrace(_PTRACE_DETACH, self._pid)

    def end(self) -> None:
        """Kills and reaps it: until then its end is reported to no other process."""
        try:
            while not self._has_ended:
                # Until this process has reaped it, its pid cannot be reused.
                os.kill(self._pid, signal.SIGKILL)
                self._wait()
        except ProcessLookupError:
            return

    def _make(self, name: str, arguments: tuple[int, ...]) -> tuple[int, HeldProcess | None]:
        """Makes it carry out a call; returns the kernel's result, or the child it made while still in the call."""
        for _ in range(_MAX_STOPS):
            # Written each time: a self-repeating instruction has changed the registers and not advanced.
            number = call_numbers.HERE[name]
            self._write(number, arguments)
            stopped_by = self._step()

            if stopped_by in _FORK_STOPS:
                return 0, self._forked()

            result = self._result(number)

            if result is None:
                continue

            if -_MAX_ERRNO <= result < 0:
                raise OSError(-result, f"{name}: {os.strerror(-result)}")

            return result, None

        raise InterruptedError(errno.EINTR, f"{name}: signals keep coming")

    def _step(self) -> int:
        syscalls.ptrace(_PTRACE_SINGLESTEP, self._pid)
        return self._wait()

    def _forked(self) -> HeldProcess:
        """Takes hold of the child that it has just made, stopped by the kernel before its first instruction."""
        child = copy.copy(self)
        child._pid = syscalls.ptrace_event_message(self._pid)
        child._wait()
        return child

    def _result(self, number: int) -> int | None:
        """Returns the result of its call; None as long as the call is not complete.

        Only the registers count. The kernel may report another stop behind a completed call before that of the step,
        as after SIGCONT; such a call must not be made again. The pending trap then stops the next one before its start.
        """
        values = self._read()
        signed = _signed(values[_REGISTERS.result])
        pointer = values[_REGISTERS.pointer]
        is_behind = pointer == self._entry + _REGISTERS.instruction_bytes

        if not is_behind and pointer != self._entry:
            self.end()
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} went elsewhere, and has ended")

        if is_behind and not _REGISTERS.has_made(values, number):
            self.end()
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} made no call, and has ended")

        return signed if is_behind and signed not in _RESTARTS else None

    def _write(self, number: int, arguments: tuple[int, ...]) -> None:
        values = list(self._before)

        for place, value in zip(_REGISTERS.arguments, arguments, strict=True):
            values[place] = value

        values[_REGISTERS.number] = number
        values[_REGISTERS.pointer] = self._entry
        self._put(values)

    def _put(self, values: list[int]) -> None:
        if _REGISTERS.restarts is not None:
            values[_REGISTERS.restarts] = _WORD - 1

        syscalls.ptrace_registers(self._pid, _REGISTERS.layout.pack(*values), writes=True)

    def _read(self) -> tuple[int, ...]:
        return _REGISTERS.layout.unpack(syscalls.ptrace_registers(self._pid, bytes(_REGISTERS.layout.size)))

    def _wait(self) -> int:
        """Waits until it stops; returns the signal, or a larger code where the kernel itself stopped it."""
        try:
            _, status = os.waitpid(self._pid, _WALL)
        except ChildProcessError:
            status = 0

        if not os.WIFSTOPPED(status):
            self._has_ended = True
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} has ended")

        return status >> 8
