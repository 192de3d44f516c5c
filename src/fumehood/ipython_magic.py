"""`%load_ext fumehood`: cells of a notebook on this machine that run in a sandbox, `%%fumehood`.

Runs in the process of the notebook's kernel, over the public `Sandbox` only. Output of a sandbox is shown without
anything that could run in the page, and variables are copied out as JSON or as a table: no data from a guest is
unpickled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pickle import dumps
from typing import Any, TextIO

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from fumehood.api.sandbox import Sandbox
from fumehood.api.silent_runs import run_silently
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.text import visible
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.network import read_network
from fumehood.values.results import read_json

# A file in the sandbox, which exists between the writing and the reading.
_VARIABLES_PATH = f"{HOME_PATH}/.fumehood-variables"
# Runs in the context of the cells: reads the values from the file.
_TAKE_IN = f"globals().update(__import__('pickle').load(open({_VARIABLES_PATH!r}, 'rb')))"
# Runs in the context of the cells: writes a variable as JSON, and leaves no name behind.
_TELL = (
    "print(__import__('json').dumps((lambda v: {{'table': __import__('json').loads(v.to_json(orient='split', "
    "date_format='iso'))}} if type(v).__module__.startswith('pandas') and hasattr(v, 'columns') else "
    "{{'value': v.tolist() if hasattr(v, 'tolist') else v}})({name})))"
)
_NO_VALUE = "holds something else"
_TOO_LARGE = "is larger than the output of a cell may be"


@magics_class
class FumehoodMagics(Magics):
    """The magics of one kernel; its cells share one sandbox, which is started by the first."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._sandbox: Sandbox | None = None

    @magic_arguments()
    @argument("-i", "--in", dest="given", action="append", default=[], help="variables that go in: a,b")
    @argument("-o", "--out", dest="wanted", action="append", default=[], help="variables that come out: a,b")
    @argument("-t", "--timeout", type=float, help="seconds that the cell may take")
    @argument("-l", "--language", default="python", help="python, bash, javascript, typescript")
    @argument(
        "--network",
        action="append",
        help="what the sandbox may reach: pip, internet, a rule; may be repeated",
    )
    @argument("--new", action="store_true", help="begin with a fresh sandbox")
    @cell_magic
    def fumehood(self, line: str, cell: str) -> None:
        """Run the cell in a sandbox; variables stay there for later cells."""
        options = parse_argstring(self.fumehood, line)

        if options.new:
            self.close()

        sandbox = self._begun()

        if options.network is not None:
            sandbox.set_network(read_network(options.network))

        self._bring_in(sandbox, _names(options.given))
        execution = sandbox.run_code(
            cell,
            language=options.language,
            timeout=options.timeout,
            on_stdout=lambda text: _write(sys.stdout, text),
            on_stderr=lambda text: _write(sys.stderr, text),
            on_result=display,
        )

        if execution.error is not None:
            _write(sys.stderr, f"{execution.error}\n")
            return

        self._bring_out(sandbox, _names(options.wanted))

    @line_magic
    def fumehood_sandbox(self, line: str) -> Sandbox:
        """Return the sandbox of the cells, for its files, checkpoints and other verbs."""
        return self._begun()

    @line_magic
    def fumehood_reset(self, line: str) -> None:
        """Kill the sandbox of the cells; the next cell starts a fresh one."""
        self.close()

    def close(self) -> None:
        """Kill the sandbox, if there is one."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            sandbox.kill()

    def _begun(self) -> Sandbox:
        if self._sandbox is None or not self._sandbox.is_running():
            self._sandbox = Sandbox()

        return self._sandbox

    def _bring_in(self, sandbox: Sandbox, names: Sequence[str]) -> None:
        if not names:
            return

        missing = [name for name in names if name not in self.shell.user_ns]

        if missing:
            raise InvalidArgumentError(
                field="--in", value=missing[0], allowed="names of variables of this notebook"
            )

        try:
            content = dumps({name: self.shell.user_ns[name] for name in names})
        except Exception as error:  # noqa: BLE001 - a class may raise anything when it is pickled
            allowed = f"variables that can be pickled ({error})"
            raise InvalidArgumentError(field="--in", value=",".join(names), allowed=allowed) from None

        sandbox.files.write(_VARIABLES_PATH, content)
        taken = run_silently(sandbox, _TAKE_IN)
        sandbox.files.remove(_VARIABLES_PATH)

        if taken.error is not None:
            allowed = f"variables that the sandbox can read ({visible(taken.error.value)})"
            raise InvalidArgumentError(field="--in", value=",".join(names), allowed=allowed)

    def _bring_out(self, sandbox: Sandbox, names: Sequence[str]) -> None:
        values = {name: _value_of(sandbox, name) for name in names}
        self.shell.push(values)


def _value_of(sandbox: Sandbox, name: str) -> Any:
    """Return a variable of the sandbox: a pandas table as such, if pandas is installed here, else its JSON value."""
    reply = run_silently(sandbox, _TELL.format(name=name))
    held = read_json("".join(reply.logs.stdout).encode()) if reply.error is None else None

    if not isinstance(held, dict) or not held.keys() & {"table", "value"}:
        why = _TOO_LARGE if reply.truncated.stdout_bytes else reply.error.value if reply.error else _NO_VALUE
        allowed = (
            f"names of variables of the sandbox that come out as JSON or as a table; {name} {visible(why)}"
        )
        raise InvalidArgumentError(field="--out", value=name, allowed=allowed)

    return _frame(held["table"]) if "table" in held else held["value"]


def _write(stream: TextIO, text: str) -> None:
    stream.write(visible(text))
    stream.flush()


def _frame(table: Any) -> Any:
    try:
        import pandas as pd
    except ImportError:
        return table

    try:
        return pd.DataFrame(table["data"], index=table["index"], columns=table["columns"])
    except (KeyError, TypeError, ValueError) as error:
        # The content comes from the guest, and may be anything.
        raise InvalidArgumentError(
            field="--out", value="table", allowed=f"a table ({visible(str(error))})"
        ) from None


def _names(given: Sequence[str]) -> list[str]:
    """Return the names of lists such as `a,b`.

    Raises:
        InvalidArgumentError: A name is not that of a variable.
    """
    names = [name.strip() for words in given for name in words.split(",") if name.strip()]

    for name in names:
        if not name.isidentifier():
            raise InvalidArgumentError(
                field="variable", value=name, allowed="names of variables, as in -i a,b"
            )

    return names


def _show_error(
    shell: InteractiveShell, kind: type, error: BaseException, where: Any, tb_offset: int | None = None
) -> None:
    """Show a fumehood error as its message and hint: frames of this module do not help the notebook's user."""
    _write(sys.stderr, f"{type(error).__name__}: {error}\n")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics to a kernel: `%load_ext fumehood`."""
    magics = FumehoodMagics(shell)
    shell.register_magics(magics)
    shell.set_custom_exc((FumehoodError,), _show_error)
