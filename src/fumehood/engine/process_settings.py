"""The settings that every process with an engine behind a socket has: the server's and the host daemon's.

Beside those of the engine, they say how the process logs and how it ends. Frozen data; the engine never reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.engine.settings import EngineSettings
from fumehood.setting_fields import check_log_format, check_log_level, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings(EngineSettings):
    """The settings of a process that serves requests with an engine; `help` of each field describes it."""

    drain_seconds: float = setting(
        "how long requests under way may go on when the process ends", 10.0, 0, 3600
    )
    log_level: str = setting("least level of the log: debug, info, warning or error", "info")
    log_format: str = setting("how lines of the log are written: console or json", "console")
    slow_request_seconds: float = setting(
        "how long an answer may take to begin until it is logged as slow; 0: any time", 30.0, 0, 86_400
    )

    def __post_init__(self) -> None:
        # Not by `super()`: a dataclass with slots is another class than the one that it is written in.
        EngineSettings.__post_init__(self)
        check_log_level(self.log_level)
        check_log_format(self.log_format)
