"""`/exec`: one source file in a sandbox of its own, whose files outlive it.

A run that fails gets a regular answer with status 200, and registers no files.
"""

from __future__ import annotations

from typing import Any

from fumehood.dialects.librechat.bodies import ExecCall
from fumehood.dialects.librechat.stored_files import Shelf, new_session_id
from fumehood.dialects.librechat.workspace import RunOutputs, Workspace
from fumehood.errors import CommandStartError
from fumehood.server.json_bodies import refused
from fumehood.server.principal import Principal
from fumehood.server.programs import BoundedCommand, ProgramRun, ProgramSandbox, limits_within, workbench
from fumehood.server.services import Services
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.languages import LANGUAGES, PROGRAMS_SCRIPT, TOOL_ENVS, SourceLanguage, languages_of
from fumehood.values.limits import Limits

_FOLDER = "/tmp/code"  # noqa: S108 - inside a sandbox of its own
_COMPILE_SECONDS = 30.0
_LOOKING_SECONDS = 10.0
# Helpers that an earlier run has left in /mnt/data can be imported; Python's cache of them is no file of the user.
RUN_ENVS = {
    **TOOL_ENVS,
    "PYTHONPATH": DATA_PATH,
    "PYTHONDONTWRITEBYTECODE": "1",
    "LIBRECHAT_CODE_DATA_DIR": DATA_PATH,
    "MPLBACKEND": "Agg",
}
OUT_OF_TIME = "Time limit exceeded"
_KILLED = 137


async def run_exec(services: Services, principal: Principal, call: ExecCall) -> dict[str, Any]:
    """Runs code and returns the answer's body.

    Raises:
        FumehoodError: The code could not be run.
    """
    language = LANGUAGES[call.language]
    workspace = Workspace(Shelf(services, principal.key_id), new_session_id())
    files = await workspace.find(call.files, call.session_id)
    limits = limits_within(principal, {"wall_seconds": call.seconds}, wall_seconds=Limits().wall_seconds)
    seconds = limits.wall_seconds + (_COMPILE_SECONDS if language.compile else 0)

    async with workbench(services, principal, limits, programs_seconds=seconds) as bench:
        await workspace.put_in(bench, files)

        try:
            step, run = await _run(bench, language, call, limits.wall_seconds)
        except CommandStartError:
            spoken = ", ".join(await _spoken(bench))
            raise refused("lang", call.language, f"a language whose programs are here: {spoken}") from None

        outcome = await workspace.take_out(bench) if run.exit_code == 0 else RunOutputs()

    return _answer(workspace.session_id, call, step, run, outcome)


async def _run(
    bench: ProgramSandbox, language: SourceLanguage, call: ExecCall, seconds: float
) -> tuple[str, ProgramRun]:
    source, program = f"{_FOLDER}/{language.filename}", f"{_FOLDER}/program"
    await bench.write(source, call.code.encode("utf-8", "surrogatepass"))

    if language.compile:
        argv = language.argv(language.compile, source, program)
        compiled = await bench.run(
            BoundedCommand(argv=argv, cwd=DATA_PATH, envs=RUN_ENVS, timeout_seconds=_COMPILE_SECONDS)
        )

        if compiled.exit_code != 0:
            return "compile", compiled

    argv = language.argv(language.run, source, program, tuple(call.args))
    return "run", await bench.run(
        BoundedCommand(argv=argv, cwd=DATA_PATH, envs=RUN_ENVS, timeout_seconds=seconds)
    )


async def _spoken(bench: ProgramSandbox) -> list[str]:
    bench.is_failed = True
    looking = BoundedCommand(
        argv=("bash", "-c", PROGRAMS_SCRIPT), cwd=DATA_PATH, timeout_seconds=_LOOKING_SECONDS
    )
    return languages_of(set((await bench.run(looking)).stdout.split()))


def _answer(
    session_id: str, call: ExecCall, step: str, run: ProgramRun, outcome: RunOutputs
) -> dict[str, Any]:
    message = OUT_OF_TIME if run.is_timed_out else ("Out of memory" if run.exit_code == _KILLED else None)
    stderr = run.stderr

    # The clients show only the two streams.
    if message is not None:
        stderr = f"{stderr.rstrip()}\n{message}\n".lstrip()

    signal = "SIGKILL" if message else None
    status = "TO" if run.is_timed_out else (None if run.exit_code == 0 else "RE")
    step_words = {
        "stdout": run.stdout,
        "stderr": stderr,
        "output": run.stdout + stderr,
        "code": run.exit_code,
        "signal": signal,
        "message": message,
        "status": status,
        "wall_time": round(run.seconds * 1000),
    }
    words = {name: step_words[name] for name in ("code", "signal", "message", "status", "wall_time")}
    return {
        "session_id": session_id,
        "storage_session_id": session_id,
        "language": call.language,
        "stdout": run.stdout,
        "stderr": stderr,
        step: step_words,
        **words,
        **outcome.words(),
    }
