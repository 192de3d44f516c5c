"""`fumehood host` as it was before it had abilities: without groups of runs, leases and `on_host_loss`.

Stands for the daemon of an earlier version in tests: the same program, without the routes, fields and figures that came
later.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from fumehood.server.schemas import sandboxes

_FIGURES = ("capacity", "templates", "built_at", "owners")


class OlderSandbox(sandboxes.HostSandbox):
    """The options of a new sandbox, without the later ones."""

    on_host_loss: ClassVar[str] = "raise"  # type: ignore[misc]


def main() -> int:
    """Run the command with the words of this process."""
    sandboxes.HostSandbox = OlderSandbox  # type: ignore[misc]
    # Late: its routes take the options as they are then.
    from fumehood.cli.start import main as run_command
    from fumehood.daemon import app

    figures = app.HostServices.figures

    async def older(self: app.HostServices) -> dict[str, Any]:
        return {name: item for name, item in (await figures(self)).items() if name in _FIGURES}

    app.HostServices.figures = older  # type: ignore[method-assign]
    later = [route for route in app._cluster_router.routes if "/runs" in getattr(route, "path", "")]

    for route in later:
        app._cluster_router.routes.remove(route)

    sys.argv = ["fumehood", "host", *sys.argv[1:]]
    return run_command()


if __name__ == "__main__":
    sys.exit(main())
