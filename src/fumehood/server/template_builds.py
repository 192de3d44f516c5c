"""Builds of named templates for the server: each one in a process of its own, which reports its steps line by line.

Installing takes minutes and runs code of packages, which must not run in the server's process or keep its loop waiting.
The child process calls `build_template`, as the command line does; it never listens on the network. It is ended by a
signal when the client has gone, and the builder then leaves an older template of the name as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from fumehood.errors import FumehoodError, InvalidArgumentError, TemplateStoreError
from fumehood.templates.store import TemplateInfo
from fumehood.values.network import Network
from fumehood.values.plain_data import as_data

# The builder ends its programs by SIGKILL and deletes the unfinished environment.
_CLEAN_UP_SECONDS = 30.0
_MAX_LINE_BYTES = 1 << 20
_KEPT_CHARACTERS = 2000


async def build_lines(arguments: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
    """Builds a template and yields a line for each step, and the template as the last line.

    Args:
        arguments: The arguments of `build_template`, as JSON data.

    Raises:
        TemplateStoreError: A step failed; the store is unchanged.
        InvalidArgumentError: An argument cannot work; nothing was done.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # Without the folder that the server was started in: what lies there is not the server's.
        "-P",
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
        # Ctrl-C of the server's terminal reaches the server alone, which then ends its streams.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        process.stdin.write(json.dumps(dict(arguments)).encode())
        process.stdin.close()
        is_finished = False

        async for text in process.stdout:
            line = json.loads(text)

            if line["type"] == "refused":
                raise _error_of(line)

            is_finished = line["type"] == "finished"
            yield line

        if not is_finished:
            await process.wait()
            words = (await errors).decode(errors="replace").strip()[-_KEPT_CHARACTERS:]
            reason = f"the process that built it ended with {process.returncode}: {words or 'without a word'}"
            raise TemplateStoreError(template=str(arguments["name"]), operation="build", reason=reason)
    finally:
        await _end(process)
        await errors


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process of a build, and waits for it to clean up."""
    if process.returncode is not None:
        return

    try:
        process.terminate()

        async with asyncio.timeout(_CLEAN_UP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    except ProcessLookupError:
        await process.wait()


def _error_of(line: Mapping[str, Any]) -> FumehoodError:
    if "field" in line:
        return InvalidArgumentError(field=line["field"], value=line["value"], allowed=line["allowed"])

    return TemplateStoreError(
        template=line["template"], operation="build", reason=line["reason"], hint=line["hint"]
    )


def _build(arguments: Mapping[str, Any]) -> None:
    """Builds a template in this process, and writes its steps as lines of JSON."""
    try:
        info = _carry_out(arguments, lambda step: _write(type="step", text=step))
    except InvalidArgumentError as error:
        # The message has the value as it may be shown; the error keeps the field and what is allowed.
        _write(type="refused", field=error.field, value=arguments.get(error.field), allowed=error.allowed)
    except TemplateStoreError as error:
        _write(type="refused", template=error.template, reason=error.reason, hint=error.hint)
    except FumehoodError as error:
        _write(type="refused", template=arguments["name"], reason=error.message, hint=error.hint)
    else:
        _write(type="finished", template=as_data(info))


def _carry_out(arguments: Mapping[str, Any], say: Callable[[str], None]) -> TemplateInfo:
    """Builds the template of an order: of the native API, with the Dockerfile as text, or of E2B's API."""
    # Imported late: the server's own process builds nothing.
    from fumehood.api.templates import build_image_template, build_template, template_to_build_upon
    from fumehood.templates.images.credentials import RegistryLogins
    from fumehood.templates.images.dockerfile import Instruction
    from fumehood.templates.images.source import ImageOrder
    from fumehood.values.start_command import read_start

    if "instructions" in arguments:
        upon, command = template_to_build_upon(arguments["base"]) if arguments["base"] else (None, None)
        order = ImageOrder(
            image=arguments["image"],
            template=upon,
            instructions=tuple(Instruction(**one) for one in arguments["instructions"]),
            uploads=arguments["uploads"],
            network=Network(internet=True),
            limits=arguments["limits"],
        )
        logins = RegistryLogins({"DOCKER_AUTH_CONFIG": arguments["logins"]}) if arguments["logins"] else None
        return build_image_template(
            arguments["name"],
            order,
            start=read_start(*arguments["start"]) or command,
            logins=logins,
            force=arguments["force"],
            say=say,
        )

    text = arguments.get("dockerfile")

    if text is None:
        return build_template(**arguments, on_progress=say)

    # A folder of its own: the context of a build at a server is empty.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "Dockerfile")

        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

        return build_template(**{**arguments, "dockerfile": path}, on_progress=say)


def _write(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # As Ctrl-C: the builder cleans up, and ends the programs that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _build(json.load(sys.stdin))
