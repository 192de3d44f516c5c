"""The route of the dialect: `POST /replit`, with the code as JSON and the answer as plain text.

A call is `main.py` beside its files, run by `python3`, in a sandbox of its own; settings of the server name another
file, command, environment and template, as Replit's `evalctl` does. Standard output and standard error are
one text, in the order in which they were written. The client ignores the status, so every error is in the text as well.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from fumehood.errors import FumehoodError
from fumehood.server.auth import principal_of
from fumehood.server.json_bodies import (
    Allowed,
    AnyText,
    DialectBody,
    NothingIsFalse,
    Text,
    read_body,
    refused,
    required,
)
from fumehood.server.principal import Principal
from fumehood.server.problems import headers_of, status_of
from fumehood.server.programs import BoundedCommand, limits_within, workbench
from fumehood.server.responses import unless_gone
from fumehood.server.services import Services
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.limits import Limits

_MAX_FILES = 1000


def _no_tracing(value: bool, info: ValidationInfo) -> bool:
    if value:
        raise refused(info.field_name, True, "false: in a sandbox no program may trace another")

    return value


def _texts_by_path(given: Any) -> dict[str, str]:
    files = given or {}

    if not isinstance(files, dict) or len(files) > _MAX_FILES:
        raise refused("files", type(files).__name__, f"at most {_MAX_FILES} texts by path")

    for path, text in files.items():
        if not isinstance(text, str):
            raise refused(f"files[{path!r}]", text, "text")

    return files


_Flag = Annotated[bool, NothingIsFalse, Allowed("true or false")]


class CodeExecCall(DialectBody):
    """A call of code-exec."""

    strace: Annotated[_Flag, AfterValidator(_no_tracing)] = False
    code: Text = required()
    files: Annotated[dict[AnyText, AnyText], BeforeValidator(_texts_by_path)] = Field(default_factory=dict)
    is_interpreted: _Flag = Field(default=False, alias="interpreter_mode")


_KILLED = 137
_INTERPRETER = "/tmp/interpreter.py"  # noqa: S108 - inside a sandbox of its own
# Runs in the sandbox. Each statement is compiled as the prompt does it, so that values of expressions are shown.
_INTERPRETER_CODE = """\
import ast, sys
text = open("main.py", encoding="utf-8").read()
space = sys.modules["__main__"].__dict__
space.update(__file__="main.py")
sys.path[0] = ""
sys.argv = ["main.py"]
flags = 0
import __future__, traceback
try:
    tree = compile(text, "main.py", "exec", ast.PyCF_ONLY_AST, True)
except (SyntaxError, ValueError) as error:
    traceback.print_exception(type(error), error, None)
    raise SystemExit(1)
for node in tree.body:
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        for name in node.names:
            flags |= getattr(__future__, name.name).compiler_flag
def show(node):
    exec(compile(ast.Interactive([node]), "main.py", "single", flags, True), space)
for node in tree.body:
    try:
        show(node)
    except Exception as error:
        frames = error.__traceback__.tb_next
        traceback.print_exception(type(error), error, frames and frames.tb_next)
        raise SystemExit(1)
"""


async def run_code_exec(services: Services, principal: Principal, call: CodeExecCall) -> str:
    """Runs code and returns its output.

    Raises:
        FumehoodError: The code could not be run.
    """
    seconds = limits_within(principal, wall_seconds=Limits().wall_seconds).wall_seconds
    settings = services.settings
    filename, command = settings.replit_filename, settings.replit_run_command

    if call.is_interpreted and command:
        raise refused("interpreter_mode", True, "false: this server runs another program than Python")

    async with workbench(
        services,
        principal,
        limits_within(principal),
        programs_seconds=seconds,
        template=settings.replit_template,
    ) as bench:
        for path, text in call.files.items():
            await bench.write(f"{HOME_PATH}/{path}", text.encode("utf-8", "replace"))

        await bench.write(f"{HOME_PATH}/{filename}", call.code.encode("utf-8", "replace"))
        program = shlex.quote(filename)

        if call.is_interpreted:
            await bench.write(_INTERPRETER, _INTERPRETER_CODE.encode())
            program = _INTERPRETER

        run = await bench.run(
            BoundedCommand(
                argv=("sh", "-c", f"exec 2>&1; {command or f'exec python3 -u {program}'}"),
                cwd=HOME_PATH,
                envs=dict(text.split("=", 1) for text in settings.replit_envs),
                timeout_seconds=seconds,
            )
        )

    if run.is_timed_out:
        return f"{run.stdout}\nTimeLimitExceeded: the code ran longer than {seconds:g} s\n"

    # A killed program cannot report that itself, and the answer has no field for it.
    if run.exit_code == _KILLED:
        return f"{run.stdout}\nKilled: the code was ended, as a rule because it used too much memory\n"

    return run.stdout


_PATHS = ("/replit", "/replit/")


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of code-exec's API."""

    async def code_exec(request: Request) -> Response:
        try:
            principal = await principal_of(request)
            principal.require("execute")
            call = read_body(CodeExecCall, await request.body())
            text = await unless_gone(request, run_code_exec(services, principal, call))
            return PlainTextResponse(text)
        except FumehoodError as error:
            said = f"{error.message}\n" + (f"hint: {error.hint}\n" if error.hint else "")
            return PlainTextResponse(said, status_of(error), headers=headers_of(error))

    return [Route(path, code_exec, methods=["POST"]) for path in _PATHS]
