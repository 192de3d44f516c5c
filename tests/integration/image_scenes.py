"""What an ordinary user does with images, in a process of its own (`launching.py`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def build_and_use(
    home: str, dockerfile: str, base: str, twice: bool, allow: Sequence[str] = ()
) -> dict[str, Any]:
    """Build a template from a Dockerfile, and use a sandbox of it."""
    os.environ.update({"FUMEHOOD_HOME": home, "FUMEHOOD_POOL_SIZE": "0"})
    from fumehood import Network, Sandbox, build_template

    heard: list[str] = []
    network = Network(allow=tuple(allow)) if allow else None
    given = {"BASE": base}
    build_template("own", dockerfile=dockerfile, build_args=given, on_progress=heard.append, network=network)
    again: list[str] = []

    if twice:
        build_template("own", dockerfile=dockerfile, build_args=given, on_progress=again.append)

    with Sandbox("own") as sandbox, Sandbox() as plain:
        sandbox.run_code("x = 41")
        mark = sandbox.checkpoint()
        sandbox.run_code("x = 0; open('/app/made', 'w').write('1')")
        sandbox.rollback(mark)

        with sandbox.fork() as fork:
            forked = fork.run_code("x + 1").text

        return {
            "heard": heard,
            "again": again,
            "text": sandbox.run_code("x").text,
            "forked": forked,
            "said": sandbox.commands.run("cat /app/file; cat /made; id -un; ls /app; pwd").stdout,
            "read": sandbox.files.read("/app/file"),
            "missing": [layer.name for layer in sandbox.get_info().isolation.missing],
            "missing_by_default": [layer.name for layer in plain.get_info().isolation.missing],
        }


def build_with_buildah(home: str, dockerfile: str, base: str) -> dict[str, Any]:
    """Have buildah build a template twice, with what it keeps beside the templates, and use a sandbox of it."""
    os.environ.update(
        {
            "FUMEHOOD_HOME": home,
            "FUMEHOOD_POOL_SIZE": "0",
            "HOME": home,
            "XDG_DATA_HOME": home,
            "TMPDIR": home,
        }
    )
    from fumehood import Sandbox, build_template

    heard: list[str] = []
    given = {"BASE": base, "SECRET": "of a build"}

    for _ in range(2):
        build_template(
            "outside", dockerfile=dockerfile, build_args=given, builder="buildah", on_progress=heard.append
        )

    with Sandbox("outside") as sandbox:
        said = sandbox.commands.run("cat /from-cache /secret note.txt; pwd").stdout
        return {"heard": heard, "said": said, "text": sandbox.run_code("6 * 7").text}
