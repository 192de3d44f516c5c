"""`/run_code`: a source file, compiled if its language needs that, run once, in a sandbox of its own.

A program that fails gets a regular answer of the protocol; its output is only text in it.
"""

from __future__ import annotations

import base64
import math
import posixpath
import secrets
from collections.abc import Mapping
from typing import Any

from fumehood.bounds import MIB
from fumehood.dialects.fusion.bodies import RunCodeCall, memory_bytes
from fumehood.errors import CommandStartError
from fumehood.server.principal import Principal
from fumehood.server.programs import BoundedCommand, ProgramRun, ProgramSandbox, limits_within, workbench
from fumehood.server.services import Services
from fumehood.values.languages import (
    ABSENT,
    CONTEXT_LANGUAGES,
    LANGUAGES,
    PROGRAMS_SCRIPT,
    TOOL_ENVS,
    SourceLanguage,
    languages_of,
)

# Languages whose names in the protocol differ from ours.
_OTHERS: Mapping[str, str] = {
    "python_gpu": "python",
    "nodejs": "javascript",
    "R": "r",
    "D_ut": "d_unittest",
    "kotlin_script": "kotlin",
}
_ALIASES = {alias: language.name for language in CONTEXT_LANGUAGES.values() for alias in language.aliases}
_NAMES: Mapping[str, str] = {**{name: name for name in LANGUAGES}, **_ALIASES, **_OTHERS}
MAX_FETCHED_BYTES = 64 * MIB
_LEAST_SECONDS = 0.05
# verl waits for compile_timeout + run_timeout + 10 s, and tries again only after a 504: it must arrive in time.
_SPARE_SECONDS = 8.0
_LOOKING_SECONDS = 10.0


async def run_code(services: Services, principal: Principal, call: RunCodeCall) -> dict[str, Any]:
    """Runs a source file and returns the answer's body.

    Raises:
        FumehoodError: The code could not be run.
    """
    language = LANGUAGES.get(_NAMES.get(call.language, ""))
    longest = principal.policy.max_limits.get("wall_seconds", math.inf)
    # Clients always send both times, so they are cut and not refused.
    call = call.model_copy(
        update={
            "run_seconds": min(call.run_seconds, longest),
            "compile_seconds": min(call.compile_seconds, longest),
        }
    )
    compile_seconds = call.compile_seconds if language is not None and language.compile else 0.0
    spare = _SPARE_SECONDS + call.compile_seconds - compile_seconds

    async with workbench(
        services,
        principal,
        limits_within(principal, {"memory_bytes": memory_bytes(call)}),
        programs_seconds=compile_seconds + call.run_seconds,
        queue_seconds=min(services.settings.queue_seconds, spare),
    ) as bench:
        if language is None:
            return await _unknown(bench, call.language)

        try:
            return await _run(bench, language, call)
        except CommandStartError:
            return await _unknown(bench, call.language)


def error_answer(message: str) -> dict[str, Any]:
    """Returns the answer for an error outside of the program."""
    return _answer("SandboxError", message)


async def _run(bench: ProgramSandbox, language: SourceLanguage, call: RunCodeCall) -> dict[str, Any]:
    folder = f"/tmp/tmp{secrets.token_hex(4)}"  # noqa: S108 - inside a sandbox of its own
    source, program = await _write(bench, folder, language, call)
    compiled: ProgramRun | None = None
    run: ProgramRun | None = None

    if language.compile:
        compiled = await bench.run(
            BoundedCommand(
                argv=language.argv(language.compile, source, program),
                cwd=folder,
                envs=TOOL_ENVS,
                timeout_seconds=max(_LEAST_SECONDS, call.compile_seconds),
            )
        )

    if compiled is None or compiled.exit_code == 0:
        run = await bench.run(
            BoundedCommand(
                argv=language.argv(language.run, source, program, tuple(call.args)),
                cwd=folder,
                envs=TOOL_ENVS,
                stdin=call.stdin,
                timeout_seconds=max(_LEAST_SECONDS, call.run_seconds),
            )
        )

    is_well = all(step is None or step.exit_code == 0 for step in (compiled, run))
    files = await fetched(bench, folder, call.fetch_files)
    return _answer("Success" if is_well else "Failed", "", compiled, run, files)


async def _write(
    bench: ProgramSandbox, folder: str, language: SourceLanguage, call: RunCodeCall
) -> tuple[str, str]:
    await bench.make_dir(folder)

    for path, content in call.files.items():
        await bench.write(posixpath.join(folder, path), content)

    source = language.filename
    program = f"{folder}/program"

    # A file of the call must not be overwritten by its code; Java and tests need their names.
    if source in call.files:
        stem, dot, suffix = source.partition(".")
        source = source if language.name == "java" else f"{stem}_{secrets.token_hex(4)}{dot}{suffix}"

    await bench.write(f"{folder}/{source}", call.code.encode("utf-8", "surrogatepass"))
    return f"{folder}/{source}", program


async def fetched(bench: ProgramSandbox, folder: str, paths: list[str]) -> dict[str, str]:
    """Returns the requested files as base64; a missing or too large one is left out."""
    files: dict[str, str] = {}
    left = MAX_FETCHED_BYTES

    for path in paths:
        if path and (content := await bench.read(posixpath.join(folder, path), left)) is not None:
            files[path] = base64.b64encode(content).decode()
            left -= len(content)

    return files


async def _unknown(bench: ProgramSandbox, name: str) -> dict[str, Any]:
    looking = BoundedCommand(
        argv=("bash", "-c", PROGRAMS_SCRIPT),
        cwd="/",
        timeout_seconds=_LOOKING_SECONDS,
    )
    bench.is_failed = True
    spoken = set(languages_of(set((await bench.run(looking)).stdout.split())))
    names = ", ".join(name for name, ours in _NAMES.items() if ours in spoken)
    why = f" ({ABSENT[name]})" if name in ABSENT else ""
    return _answer("SandboxError", f"language {name!r} does not run here{why}; these do: {names}")


def _answer(
    status: str,
    message: str,
    compiled: ProgramRun | None = None,
    run: ProgramRun | None = None,
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "status": status,
        "message": message,
        "compile_result": None if compiled is None else _step(compiled),
        "run_result": None if run is None else _step(run),
        "executor_pod_name": None,
        "files": dict(files or {}),
    }


def _step(run: ProgramRun) -> dict[str, Any]:
    return {
        "status": "TimeLimitExceeded" if run.is_timed_out else "Finished",
        "execution_time": run.seconds,
        "return_code": run.exit_code,
        # Text, never null: clients concatenate the two.
        "stdout": run.stdout,
        "stderr": run.stderr,
    }
