"""Tracing: one process makes another carry out system calls, and lets it do nothing else in between.

Runs in the host process, in one thread from the first call to the last: the kernel knows a tracer by its thread. The
process that is held belongs to user code and is hostile. It is run for one instruction at a time, the one with which
it came into the kernel, and each time with freshly written registers: what shares its memory may have put another
instruction there, but never a second one. Where the kernel tells, it is ended if that one made no call. Where it does
not (arm64), the caller has to check by the result that it carried out what was asked for.
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
# Signals wait while it is held: all but that by which it is seen to stop.
_ALL_BUT_TRAPS = (1 << 64) - 1 & ~(1 << signal.SIGTRAP - 1)
# So often one that somebody sends may come in between all the same.
_MAX_STOPS = 64
# include/linux/errno.h: a call that was interrupted will be made again.
_RESTARTS = (-512, -513, -514, -516)
_MAX_ERRNO = 4095
_WORD = 1 << 64
_WORD_BYTES = 8
# Less than what the kernel itself stops it for.
_MAX_SIGNAL = (1 << 8) - 1
_INTERRUPTED = signal.SIGTRAP | _PTRACE_EVENT_STOP << 8
# Those whom it makes are held from their start, and it stops for that.
_OPTIONS = _PTRACE_O_EXITKILL | _PTRACE_O_TRACEFORK | _PTRACE_O_TRACEVFORK
_FORK_STOPS = tuple(signal.SIGTRAP | event << 8 for event in (_PTRACE_EVENT_FORK, _PTRACE_EVENT_VFORK))
# What lies right below the stack is its function's own (System V ABI: the red zone).
_BELOW_STACK_BYTES = 1024
_STACK_ALIGNMENT = 16


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD >> 1 else word


class _X86:
    """Where struct user_regs_struct has what a system call needs (arch/x86/include/asm/user_64.h)."""

    layout = struct.Struct("=27Q")
    arguments = (14, 13, 12, 7, 9, 8)
    number = result = 10
    # By which call it came into the kernel, to be made again if need be; by none: -1, which no call can leave there.
    restarts = 15
    pointer = 16
    stack = 19
    instruction_bytes = 2
    # Whether a process that was interrupted in a call stands behind the instruction that made it.
    stands_behind = True

    @staticmethod
    def is_in(values: tuple[int, ...], number: int) -> bool:
        """Whether a process has been interrupted in this call."""
        return values[_X86.restarts] == number and _signed(values[_X86.result]) in _RESTARTS

    @staticmethod
    def has_made(values: tuple[int, ...], number: int) -> bool:
        """Whether a process that has stopped behind its instruction has made this call by it."""
        return values[_X86.restarts] == number


class _Arm64:
    """The same of struct user_pt_regs (arch/arm64/include/uapi/asm/ptrace.h)."""

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
        """Whether a process has been interrupted in this call; that it will be made again is not told."""
        return values[_Arm64.number] == number

    @staticmethod
    def has_made(values: tuple[int, ...], number: int) -> bool:
        """Nobody tells: any other instruction could have left them so."""
        return True


_REGISTERS = _Arm64 if call_numbers.MACHINE == "aarch64" else _X86


class HeldProcess:
    """A process that waits in a system call, and carries out others in its place.

    Whoever holds it finds it where it is to wait, and lets it go or ends it. All that it does raises
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
        """Its number."""
        return self._pid

    def is_stopped_in(self, name: str) -> bool:
        """Interrupts the call in which it waits: from now on it makes those that it is told to.

        Args:
            name: The call's.

        Returns:
            Whether it is in there; else, say in what a signal has it do, or stopped by one, it is left as it was.
        """
        syscalls.ptrace(_PTRACE_INTERRUPT, self._pid)
        stopped_by = self._wait()
        self._before = self._read()

        # What somebody has stopped stays so until they let it go on, and afterwards they may not reach it any more.
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
        """Has it make a system call.

        Args:
            name: Its name.
            arguments: All six, as they lie in registers.

        Returns:
            What the kernel returned.

        Raises:
            OSError: With the errno of the kernel, or EINTR when signals kept coming in between.
            ProcessLookupError: It was something else that it carried out, as far as can be told, and it has ended.
        """
        return self._make(name, arguments)[0]

    def fork(self, flags: int) -> HeldProcess:
        """Has it make another process; `forked` is to be called before anything else is asked of it.

        Args:
            flags: Those of clone(2), and SIGCHLD. With CLONE_VFORK this one goes on when the other one has ended.

        Returns:
            The other one, which is held where this one is.

        Raises:
            OSError: As of `call`.
        """
        _, child = self._make("clone", (flags, *(0,) * 5))

        if child is None:
            self.end()
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} made nobody, and has ended")

        return child

    def forked(self) -> int:
        """Lets it come to the end of the call of `fork`; returns the number of its child, as it sees it."""
        self._step()
        values = self._read()

        if values[_REGISTERS.pointer] != self._entry + _REGISTERS.instruction_bytes:
            self.end()
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} went elsewhere, and has ended")

        return _signed(values[_REGISTERS.result])

    def leave(self) -> None:
        """Makes it end itself: what may hold it may not always end it."""
        with suppress(ProcessLookupError):
            self.call("exit_group", (0,) * 6)
            # It was something else that it carried out; and somebody may wait for its end.
            self.end()

    def lay(self, content: bytes) -> int:
        """Writes below its stack, where a function that it has called would do so; returns where."""
        start = (self._before[_REGISTERS.stack] - _BELOW_STACK_BYTES - len(content)) & ~(_STACK_ALIGNMENT - 1)

        for offset in range(0, len(content), _WORD_BYTES):
            (word,) = struct.unpack("=Q", content[offset : offset + _WORD_BYTES].ljust(_WORD_BYTES, b"\0"))
            syscalls.ptrace(_PTRACE_POKEDATA, self._pid, word, start + offset)

        return start

    def let_go(self, result: int) -> None:
        """Lets it run on, with this as the result of the call in which it waited."""
        values = list(self._before)
        values[_REGISTERS.result] = result % _WORD
        values[_REGISTERS.pointer] = self._entry + _REGISTERS.instruction_bytes
        self._put(values)
        syscalls.ptrace_signal_mask(self._pid, self._mask)
        syscalls.ptrace(_PTRACE_DETACH, self._pid)

    def end(self) -> None:
        """Ends it, and takes note of that: before, nobody else would hear of its end."""
        try:
            while not self._has_ended:
                # Until this process has taken note of its end nobody else has its number.
                os.kill(self._pid, signal.SIGKILL)
                self._wait()
        except ProcessLookupError:
            return

    def _make(self, name: str, arguments: tuple[int, ...]) -> tuple[int, HeldProcess | None]:
        """Has it make a call; returns what the kernel returned, or whom it made, while it is still in the call."""
        for _ in range(_MAX_STOPS):
            # Each time: an instruction that repeats itself has changed them, and stands where it stood.
            number = call_numbers.HERE[name]
            self._write(number, arguments)
            stopped_by = self._step()

            if stopped_by in _FORK_STOPS:
                return 0, self._forked()

            result = self._result(stopped_by, number)

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
        """Takes hold of the process it has just made, stopped by the kernel before its first instruction."""
        child = copy.copy(self)
        child._pid = syscalls.ptrace_event_message(self._pid)
        child._wait()
        return child

    def _result(self, stopped_by: int, number: int) -> int | None:
        """What its call returned; None as long as it has not been made to its end."""
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

        return signed if stopped_by == signal.SIGTRAP and is_behind and signed not in _RESTARTS else None

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
        """Waits until it stops; returns by what: a signal, or more than that where the kernel stops it of itself."""
        try:
            _, status = os.waitpid(self._pid, _WALL)
        except ChildProcessError:
            status = 0

        if not os.WIFSTOPPED(status):
            self._has_ended = True
            raise ProcessLookupError(errno.ESRCH, f"process {self._pid} has ended")

        return status >> 8
