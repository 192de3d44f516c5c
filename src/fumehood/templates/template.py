"""A template: which Python environment a sandbox starts from, and what is already imported in it.

Plain data of the host process. A template names an environment of the host (a virtual environment or an
installation); nothing is copied or built: runtimes show it to the guest, read-only.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PRELOAD = ("numpy", "pandas", "matplotlib.pyplot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a sandbox starts from.

    Attributes:
        name: How `Sandbox(template=...)` refers to it.
        python: Path of the environment's interpreter; None is the environment that this process runs in.
        preload: Modules that are imported once, before any sandbox is made. Names that the environment does
        not have are
            left out and reported.
    """

    name: str = "default"
    python: str | None = None
    preload: tuple[str, ...] = DEFAULT_PRELOAD
