"""R inside the process of a context: the library libR, called from Python.

Runs in a context, or in the process that forks such contexts; one R a process. It is the only module beside the system
calls that uses ctypes: R has no separate program that another process could talk to and that a fork would copy.
Functions of R are called in the main thread alone, under `R_tryEval`, so that an error of R never jumps over Python
frames; callbacks from R never call R again.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import re
import shutil
import signal
import subprocess
from ctypes import c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any, Callable, Dict, List, Tuple

# What the script `R` would set; it starts R with them.
_SHARED = re.compile(r"^(R_(?:SHARE|INCLUDE|DOC)_DIR)=(\S+)$", re.MULTILINE)
_ARGUMENTS = (b"R", b"--quiet", b"--no-save", b"--no-restore", b"--no-readline", b"--vanilla")
_SIGNALS = ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGSEGV", "SIGILL", "SIGBUS")
# The size of `struct sigaction` with room to spare: it is kept and given back, and never looked into.
_SIGACTION_BYTES = 256
_LOOK_SECONDS = 10.0
_NAME = "libR.so"

Writer = Callable[[str, str], None]
Shower = Callable[[str, Dict[str, bytes]], None]
Reader = Callable[[str], str]


class NoLibraryError(Exception):
    """R cannot be loaded; the message says why."""


class LibR:
    """R in this process, with a function of R that runs cells.

    Args:
        home: The folder of R.
        program: R source that evaluates to a function, which takes and returns text.
    """

    def __init__(self, home: str, program: str) -> None:
        self.write: Writer = lambda _stream, _text: None
        self.show: Shower = lambda _kind, _formats: None
        self.read: Reader = lambda _prompt: ""
        self._decoders = _new_decoders()
        os.environ.update(environment_of(home))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._r = _load(os.path.join(home, "lib", _NAME))
        self._callbacks: List[Any] = []
        own = {name: self._action(getattr(signal, name)) for name in _SIGNALS}
        self._start()
        self._interrupt = self._action(signal.SIGINT)
        self._python_action = own["SIGINT"]

        for name, action in own.items():
            self._set_action(getattr(signal, name), action)

        self._pending = c_int.in_dll(self._r, "R_interrupts_pending")
        self._nil = c_void_p.in_dll(self._r, "R_NilValue").value
        self._global = c_void_p.in_dll(self._r, "R_GlobalEnv").value
        self._function = self._define(program)

    def call(self, *words: str) -> str:
        """Calls the R function; SIGINT does not interrupt it.

        Raises:
            RuntimeError: The R function has failed.
        """
        r = self._r
        call = r.Rf_protect(r.Rf_allocVector(_LANGSXP, len(words) + 1))
        r.SETCAR(call, self._function)
        rest = call

        for word in words:
            rest = r.CDR(rest)
            # Text of R holds no NUL.
            content = word.replace("\0", "").encode("utf-8", "replace")
            r.SETCAR(rest, r.Rf_ScalarString(r.Rf_mkCharLenCE(content, len(content), _UTF8)))

        failed = c_int(0)
        value = r.R_tryEvalSilent(call, self._global, ctypes.byref(failed))
        answer = "" if failed.value or not value else self._text(value)
        r.Rf_unprotect(1)

        if failed.value:
            raise RuntimeError("the function of R has failed")

        return answer

    def call_interruptible(self, *words: str) -> str:
        """Calls the R function like `call`, while SIGINT interrupts R and not Python."""
        self._python_action = self._action(signal.SIGINT)
        self._pending.value = 0
        self._set_action(signal.SIGINT, self._interrupt)
        try:
            return self.call(*words)
        finally:
            self._set_action(signal.SIGINT, self._python_action)
            # An interrupt that came too late must not reach the next cell.
            self._pending.value = 0

    def use_temporary_folder(self, path: str) -> None:
        """Makes an existing folder the temporary folder of R's session."""
        kept = ctypes.create_string_buffer(os.fsencode(path))
        self._callbacks.append(kept)
        c_void_p.in_dll(self._r, "R_TempDir").value = ctypes.addressof(kept)

    def _start(self) -> None:
        r = self._r
        arguments = (c_char_p * len(_ARGUMENTS))(*_ARGUMENTS)
        r.Rf_initialize_R(len(_ARGUMENTS), arguments)
        c_int.in_dll(r, "R_Interactive").value = 1

        for name in ("R_Outputfile", "R_Consolefile", "ptr_R_WriteConsole"):
            c_void_p.in_dll(r, name).value = None

        self._point("ptr_R_WriteConsoleEx", _WRITE(self._written))
        self._point("ptr_R_ReadConsole", _READ(self._asked))
        # Files are shown and edited by programs of their own, which need a terminal.
        r.setup_Rmainloop()

    def _point(self, name: str, callback: Any) -> None:
        self._callbacks.append(callback)
        c_void_p.in_dll(self._r, name).value = ctypes.cast(callback, c_void_p).value

    def _define(self, program: str) -> int:
        """Evaluates a program of R and calls the function it returns with our display function; returns the result."""
        r = self._r
        callback = _SHOW(self._shown)
        self._callbacks.append(callback)
        pointer = ctypes.cast(callback, c_void_p).value
        shower = r.Rf_protect(r.R_MakeExternalPtr(pointer, r.Rf_install(b"native symbol"), self._nil))
        failed = c_int(0)
        source = r.Rf_protect(r.Rf_mkString(program.encode()))
        parse = r.Rf_protect(r.Rf_lang3(r.Rf_install(b"str2expression"), source, self._nil))
        r.SETCDR(r.CDR(parse), self._nil)
        parsed = r.Rf_protect(r.R_tryEval(parse, self._global, ctypes.byref(failed)))
        made = r.Rf_protect(r.R_tryEval(r.VECTOR_ELT(parsed, 0), self._global, ctypes.byref(failed)))
        function = r.R_tryEval(r.Rf_protect(r.Rf_lang2(made, shower)), self._global, ctypes.byref(failed))
        r.R_PreserveObject(function)
        r.Rf_unprotect(6)

        if failed.value:
            raise NoLibraryError("R does not take our program")

        return int(function)

    def _text(self, value: int) -> str:
        return str(self._r.R_CHAR(self._r.STRING_ELT(value, 0)).decode("utf-8", "replace"))

    # -- called by R: an exception must not pass

    def _written(self, buffer: int, length: int, is_error: int) -> None:
        stream = "stderr" if is_error else "stdout"
        try:
            self.write(stream, self._decoders[stream].decode(ctypes.string_at(buffer, length)))
        except BaseException:
            return

    def _asked(self, prompt: bytes, buffer: int, size: int, _add_to_history: int) -> int:
        # A wait of Python ends by a handler of Python only.
        own = self._action(signal.SIGINT)
        self._set_action(signal.SIGINT, self._python_action)
        try:
            line = self.read(prompt.decode("utf-8", "replace")).encode("utf-8", "replace")
        except KeyboardInterrupt:
            self._pending.value = 1
            return 0
        except BaseException:
            return 0
        finally:
            self._set_action(signal.SIGINT, own)

        # With its end and a NUL.
        line = line[: size - 2] + b"\n\0"
        ctypes.memmove(buffer, line, len(line))
        return 1

    def _shown(self, kind: int, names: int, contents: int) -> int:
        try:
            r = self._r
            formats = {}

            for place in range(r.Rf_xlength(names)):
                name = r.R_CHAR(r.STRING_ELT(names, place)).decode("utf-8", "replace")
                content = r.VECTOR_ELT(contents, place)
                formats[name] = ctypes.string_at(r.RAW(content), r.Rf_xlength(content))

            self.show(self._text(kind), formats)
        except BaseException:
            return int(self._nil or 0)

        return int(self._nil or 0)

    # -- actions of signals, as the C library knows them

    def _action(self, number: int) -> Any:
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        self._libc.sigaction(number, None, action)
        return action

    def _set_action(self, number: int, action: Any) -> None:
        self._libc.sigaction(number, action, None)


_LANGSXP = 6
_UTF8 = 1
_WRITE = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_int)
_READ = ctypes.CFUNCTYPE(c_int, c_char_p, c_void_p, c_int, c_int)
_SHOW = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p)
# Function of libR -> its result and its arguments.
_SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "Rf_initialize_R": (c_int, [c_int, c_void_p]),
    "setup_Rmainloop": (None, []),
    "Rf_protect": (c_void_p, [c_void_p]),
    "Rf_unprotect": (None, [c_int]),
    "Rf_allocVector": (c_void_p, [ctypes.c_uint, c_ssize_t]),
    "Rf_install": (c_void_p, [c_char_p]),
    "Rf_mkString": (c_void_p, [c_char_p]),
    "Rf_mkCharLenCE": (c_void_p, [c_char_p, c_int, c_int]),
    "Rf_ScalarString": (c_void_p, [c_void_p]),
    "Rf_lang2": (c_void_p, [c_void_p, c_void_p]),
    "Rf_lang3": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "Rf_xlength": (c_ssize_t, [c_void_p]),
    "CDR": (c_void_p, [c_void_p]),
    "SETCAR": (c_void_p, [c_void_p, c_void_p]),
    "SETCDR": (c_void_p, [c_void_p, c_void_p]),
    "STRING_ELT": (c_void_p, [c_void_p, c_ssize_t]),
    "VECTOR_ELT": (c_void_p, [c_void_p, c_ssize_t]),
    "R_CHAR": (c_char_p, [c_void_p]),
    "RAW": (c_void_p, [c_void_p]),
    "R_MakeExternalPtr": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "R_PreserveObject": (None, [c_void_p]),
    "R_tryEval": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "R_tryEvalSilent": (c_void_p, [c_void_p, c_void_p, c_void_p]),
}


def find_home() -> str:
    """Returns the home folder of the `R` found in the search path.

    Raises:
        NoLibraryError: R is not installed, or it cannot be loaded into a process.
    """
    program = shutil.which("R")

    if program is None:
        raise NoLibraryError("no program `R` is there")

    home = os.path.dirname(os.path.dirname(os.path.realpath(program)))

    # Elsewhere the program in the path is a copy, and not a link.
    if not os.path.isdir(os.path.join(home, "library")):
        try:
            asked = subprocess.run(
                (program, "RHOME"), capture_output=True, timeout=_LOOK_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoLibraryError(f"{program} does not run: {error}") from error

        home = os.fsdecode(asked.stdout).strip()

    if not os.path.isfile(os.path.join(home, "lib", _NAME)):
        raise NoLibraryError(f"{home} has no {_NAME}: its R was built without --enable-R-shlib")

    return home


def environment_of(home: str) -> Dict[str, str]:
    """Returns the variables that R is started with."""
    with open(os.path.join(home, "bin", "R"), encoding="utf-8", errors="replace") as file:
        shared = dict(_SHARED.findall(file.read()))

    return {
        **shared,
        "R_HOME": home,
        # A loop that is compiled to bytecode and calls nothing looks for no interrupt; at 2, `repeat {}` is none.
        "R_ENABLE_JIT": "2",
        # It would start a thread, which a fork does not copy.
        "CLI_NO_THREAD": "1",
    }


def _load(path: str) -> Any:
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NoLibraryError(f"{path} cannot be loaded: {error}") from error

    return library


def _new_decoders() -> Dict[str, Any]:
    return {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
