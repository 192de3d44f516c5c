"""PythonShell: IPython, adapted for a context without a terminal.

Made once, in the zygote, and warmed up there, so that a fork has nothing left to load; attached to a channel in each
context. It keeps IPython's language (magics, top-level await, display, history) and replaces its interface to the
outside: output, error formatting, commands. It must start no thread and open no file.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import types
from contextlib import nullcontext
from typing import Any, ContextManager, Coroutine, Dict, List, NoReturn, Optional, Tuple

from IPython.core.autocall import ExitAutocall
from IPython.core.history import HistoryManager
from IPython.core.profiledir import ProfileDir
from traitlets import Type, observe
from traitlets.config import Config

from fumehood_guest.context.comms import Comms
from fumehood_guest.context.connected_shell import ConnectedShell
from fumehood_guest.context.display import DisplayFunctions, ResultHook, ValueFormatter
from fumehood_guest.context.event_loop import BackgroundLoop
from fumehood_guest.context.fast_traits import QuickBool, QuickInteger, QuickResult, QuickUnicode
from fumehood_guest.context.figures import Figures, SavedPictures, set_renderers
from fumehood_guest.context.introspection import PythonAnswerer
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.restore import Repairs
from fumehood_guest.context.shell_commands import UserSite, run_command
from fumehood_guest.context.streams import Streams
from fumehood_guest.context.syntax import Compiler, SingleLines, Syntax
from fumehood_guest.context.tables import register_tables
from fumehood_guest.context.tracebacks import exception_name, exception_value, format_exception

_NO_COPY = nullcontext()
# The cell of `fumehood run -m`, in a form that IPython reads in records and notebooks, and what runs in its place.
_PROGRAM_MODULE = re.compile(r"%run -m ([\w.]+)(?: .*)?\n", re.DOTALL)
_RUN_MODULE = "__import__('fumehood_guest.context.program', fromlist=['run_module']).run_module({!r})\n"
_PROFILE = os.path.join("~", ".ipython", "profile_default")

ExceptionInfo = Tuple[Any, Any, Any]


class _Profile(ProfileDir):  # type: ignore[misc]
    """A profile that need not exist on disk."""

    @observe("location")  # type: ignore[untyped-decorator]
    def _location_changed(self, _change: Any) -> None:
        """Does nothing: no folder is created."""


class _Exit(ExitAutocall):  # type: ignore[misc]
    """`exit` and `quit`: end the cell, as sys.exit() does, and not the context."""

    def __call__(self, code: Any = None) -> NoReturn:
        """Raises SystemExit."""
        raise SystemExit(*(() if code is None else (code,)))


class _History(HistoryManager):  # type: ignore[misc]
    """The inputs and outputs so far."""

    _i00 = QuickUnicode("")
    _i = QuickUnicode("")
    _ii = QuickUnicode("")
    _iii = QuickUnicode("")


# `%config` looks the class up by this name.
_History.__name__ = HistoryManager.__name__


class PythonShell(ConnectedShell):
    """The IPython of a context."""

    execution_count = QuickInteger(1)
    last_execution_succeeded = QuickBool(True)
    last_execution_result = QuickResult()
    compiler_class = Type(Compiler)
    display_pub_class = Type(DisplayFunctions)
    displayhook_class = Type(ResultHook)

    repairs: Repairs

    # -- in the zygote

    @classmethod
    def make(cls) -> PythonShell:
        """Makes and returns the shell; a process has only one."""
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.display_page = True
        config.InteractiveShell.warn_venv = False
        # Jedi reads the sources of packages for seconds, and starts processes.
        config.Completer.use_jedi = False
        profile = _Profile(location=os.path.expanduser(_PROFILE))
        shell: PythonShell = cls.instance(config=config, profile_dir=profile, user_module=_main_module())
        return shell

    def __init__(self, **options: Any) -> None:
        self._failure: Optional[Tuple[str, str, List[str]]] = None
        syntax = Syntax()
        super().__init__(input_transformer_manager=syntax, **options)
        self.compile.syntax = syntax
        self._single_lines = SingleLines(self.prefilter_manager)
        self.loop_runner = self._run_coroutine
        self.figures = Figures(self)
        self.saved_pictures = SavedPictures(self)
        self.comms = Comms(self)
        self.answerer = PythonAnswerer(self)
        self.user_site = UserSite()
        register_tables(self.display_formatter)
        set_renderers()
        self.register_magic_function(self._pip, magic_name="pip")

    def init_ipython_dir(self, ipython_dir: Optional[str]) -> None:
        """Sets the folder's name; it is created by the first write."""
        self.set_trait("ipython_dir", os.path.dirname(os.path.expanduser(_PROFILE)))

    @observe("ipython_dir")  # type: ignore[untyped-decorator]
    def _ipython_dir_changed(self, _change: Any) -> None:
        """Does nothing: no folder is created."""

    def init_virtualenv(self) -> None:
        """Does nothing: the interpreter's own packages are those of the template."""

    def init_display_formatter(self) -> None:
        """Makes the formatter of values."""
        self.display_formatter = ValueFormatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_history(self) -> None:
        """Makes the history."""
        self.history_manager = _History(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def init_user_ns(self) -> None:
        """Fills the user's namespace."""
        self.exiter = _Exit(self)
        super().init_user_ns()

    # -- in a context

    def attach(self, outlet: Outlet, streams: Streams, background: BackgroundLoop) -> None:
        """Connects the shell with the outlet of its context."""
        self.outlet = outlet
        self.streams = streams
        self.background = background
        self._follow_home()
        sys.stdout = streams.stdout
        sys.stderr = streams.stderr
        sys.modules["__main__"] = self.user_module
        threading.excepthook = self._show_end_of_thread

    def _follow_home(self) -> None:
        """Sets the path of IPython's profile anew if the home directory differs from that of the zygote."""
        location = os.path.expanduser(_PROFILE)

        if self.profile_dir.location != location:
            self.profile_dir.location = location

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.background.run(coroutine)

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs one cell and sends its output; an error of it is kept for `report`."""
        self._begin_work(source)
        try:
            self.run_cell(source, store_history=execution.store_history, silent=execution.flags["silent"])
            self.figures.show_open()
        finally:
            self.background.take_back()

    def run_comm(self, header: Dict[str, Any], payload: bytes) -> None:
        """Runs the user's handlers of one comm message, and sends their output."""
        self._begin_work("")
        try:
            self.comms.deliver(header, payload)
            self.figures.show_open()
        finally:
            self.background.take_back()

    def _begin_work(self, source: str) -> None:
        self.running_source = source
        self._failure = None
        self.displayhook.exec_result = None
        self.displayhook.is_showing = False
        self.user_site.refresh()
        self.background.lend()

    def report(self, error: Optional[BaseException] = None) -> None:
        """Sends the cell's error, if there is one; `error` is an exception that escaped from `run_source`."""
        if error is not None:
            self._note_failure(error)

        if self._failure is not None:
            name, value, lines = self._failure
            self._failure = None
            self.outlet.error(name, value, lines)

    @property
    def reply_count(self) -> int:
        """The number of the last cell with a history number."""
        count: int = self.execution_count
        return max(0, count - 1)

    # -- IPython's execution

    def transform_cell(self, raw_cell: str) -> str:
        """Translates IPython's syntax into Python as IPython does, with a shortcut for plain assignments."""
        if self.compile.next_name and (found := _PROGRAM_MODULE.fullmatch(raw_cell)):
            return _RUN_MODULE.format(found[1])

        cell: str = self.input_transformer_manager.transform_cell(raw_cell)

        if len(cell.splitlines()) == 1:
            cell = self._prefiltered(cell.rstrip("\n")) + "\n"

        if self.input_transformers_post:
            lines = cell.splitlines(keepends=True)

            for transform in self.input_transformers_post:
                lines = transform(lines)

            cell = "".join(lines)

        return cell

    def _prefiltered(self, line: str) -> str:
        manager = self.prefilter_manager

        if self._single_lines.leave_alone(line, self.user_ns, manager):
            self._last_input_line = line
            return line

        with self.builtin_trap:
            filtered: str = manager.prefilter_lines(line)
            return filtered

    def should_run_async(self, raw_cell: str, **options: Any) -> bool:
        """Whether a cell awaits something; requires one of the two keywords."""
        source = options.get("transformed_cell") or raw_cell

        if "await" not in source and "async" not in source:
            return False

        return bool(super().should_run_async(raw_cell, **options))

    def _tee(self, channel: str) -> ContextManager[None]:
        """Does nothing: IPython would keep a copy of all output."""
        return _NO_COPY

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Executes a compiled statement; returns whether it failed."""
        hook, sys.excepthook = sys.excepthook, self.excepthook
        self.sys_excepthook = hook
        try:
            try:
                if async_:
                    await eval(code_obj, self.user_global_ns, self.user_ns)  # noqa: S307
                else:
                    exec(code_obj, self.user_global_ns, self.user_ns)
            finally:
                sys.excepthook = hook
        except BaseException as error:
            if self.outlet.is_detached:
                self.leave_fork(error)

            if result is not None:
                result.error_in_exec = error

            if isinstance(error, self.custom_exceptions):
                self.CustomTB(type(error), error, error.__traceback__)
            else:
                self.showtraceback(running_compiled_code=True)

            return True

        return False

    runcode = run_code

    def leave_fork(self, error: Optional[BaseException] = None) -> NoReturn:
        """Exits a process that the user's code has forked, at the end of its cell."""
        status = 0
        try:
            if isinstance(error, SystemExit):
                status = _exit_status(error)
            elif error is not None:
                status = 1
                sys.stderr.write("\n".join(self._format(error)) + "\n")

            self.streams.flush()
        finally:
            os._exit(status)

    # -- errors

    def showtraceback(
        self,
        exc_tuple: Optional[ExceptionInfo] = None,
        filename: Optional[str] = None,
        tb_offset: Optional[int] = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Keeps the error that ends the cell; writes any other to stderr."""
        try:
            _, error, tb = self._get_exc_info(exc_tuple)
        except ValueError:
            sys.stderr.write("No traceback available to show.\n")
            return

        if self._ends_cell(error):
            self._note_failure(error, tb)
        else:
            self.show_stray(error)

    def showsyntaxerror(self, filename: Optional[str] = None, running_compiled_code: bool = False) -> None:
        """Like `showtraceback`."""
        self.showtraceback()

    def show_usage_error(self, exc: BaseException) -> None:
        """Like `showtraceback`: the wrong use of a magic fails the cell."""
        self.showtraceback((type(exc), exc, None))

    def show_stray(self, error: BaseException) -> None:
        """Writes an error that belongs to no cell to stderr."""
        sys.stderr.write("\n".join(self._format(error)) + "\n")

    def _show_end_of_thread(self, end: Any) -> None:
        """Writes the error that has ended a thread to stderr, from the first line of the user's code on."""
        if end.exc_type is SystemExit:
            return

        name = threading.get_ident() if end.thread is None else end.thread.name
        tb = end.exc_traceback

        while tb is not None and tb.tb_frame.f_code.co_filename == threading.__file__:
            tb = tb.tb_next

        error = end.exc_type() if end.exc_value is None else end.exc_value
        lines = format_exception(error, tb, self.compile._filename_map.get)
        sys.stderr.write("\n".join([f"Exception in thread {name}:", *lines]) + "\n")

    def _ends_cell(self, error: BaseException) -> bool:
        result = self.displayhook.exec_result
        return (
            result is None
            or self.displayhook.is_showing
            or error is result.error_in_exec
            or error is result.error_before_exec
        )

    def _note_failure(self, error: BaseException, tb: Any = None) -> None:
        self._failure = (exception_name(type(error)), exception_value(error), self._format(error, tb))

    def _format(self, error: BaseException, tb: Any = None) -> List[str]:
        return format_exception(error, tb or error.__traceback__, self.compile._filename_map.get)

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> Dict[str, Any]:
        """Returns what the history keeps of an error; IPython would render its own traceback."""
        return {
            "ename": exception_name(type(exception)),
            "evalue": exception_value(exception),
            "traceback": [],
        }

    # -- the world

    def system(self, cmd: str) -> None:
        """Runs `!cmd`."""
        command = self.var_expand(cmd, depth=1)
        self.streams.flush()
        status = run_command(command)
        self.user_ns["_exit_code"] = status
        self.user_site.refresh()

        if status != 0 and getattr(self, "system_raise_on_error", False):
            from subprocess import CalledProcessError

            raise CalledProcessError(status, cmd)

    system_piped = system
    system_raw = system

    def _pip(self, line: str) -> None:
        """Runs pip; installed packages can be imported at once, so its note about a restart is left out."""
        self.system(f"pip {line}")

    def enable_gui(self, gui: Optional[str] = None) -> None:
        """Does nothing: there is no display."""

    def enable_matplotlib(self, gui: Optional[str] = None) -> Tuple[str, str]:
        """Does nothing: figures are shown anyway."""
        return "inline", "inline"

    def ask_exit(self) -> NoReturn:
        """Ends the cell."""
        raise SystemExit


def _main_module() -> types.ModuleType:
    return types.ModuleType("__main__", doc="The namespace of the cells.")


def _exit_status(error: SystemExit) -> int:
    if error.code is None:
        return 0

    if isinstance(error.code, int):
        return error.code & 0xFF

    sys.stderr.write(f"{error.code}\n")
    return 1
