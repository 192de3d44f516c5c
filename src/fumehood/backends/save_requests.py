"""What callers ask of a backend about saved states: frozen, checked when made, able to cross a process border.

Used on both sides of the port, as `requests`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fumehood.backends.checks import check_bool
from fumehood.backends.requests import SandboxSpec
from fumehood.models import SandboxInfo
from fumehood.saved_state import LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Make a sandbox of a saved state.

    Attributes:
        spec: What it should be. Its environment variables come over those of the saved state.
        keep_template: Whether it starts from the template that it was saved with, and not from that of `spec`.
        files_only: Whether it begins with the files alone: no variables, and no contexts but a fresh default one.
    """

    spec: SandboxSpec = field(default_factory=SandboxSpec)
    keep_template: bool = True
    files_only: bool = False

    def __post_init__(self) -> None:
        check_bool("keep_template", self.keep_template)
        check_bool("files_only", self.files_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A sandbox that was made of a saved state.

    Attributes:
        sandbox: The sandbox.
        report: What of the saved state is in it.
    """

    sandbox: SandboxInfo
    report: LoadReport
