"""The settings of an engine, wherever it runs: in a user's process, in a server, or in a host daemon.

Pure data. Each setting is declared here alone; settings of a server and of a host daemon have these among their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.bounds import MIB, TEMPLATE_MEMORY_BYTES, TIB
from fumehood.engine.identity import check_host_id
from fumehood.errors import InvalidArgumentError
from fumehood.setting_fields import check_bounds, setting
from fumehood.values.sandbox import DEFAULT_ISOLATION, check_isolation
from fumehood.values.template import DEFAULT_PRELOAD, check_preload

# As `memory_reserve_bytes`: the host chooses the reserve.
AUTOMATIC_RESERVE = -1
RECORDS = ("keep", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings of an engine; `help` of each field describes it."""

    host_id: str = setting(
        "name of this host, six lower-case letters and digits; empty: made at the first start and kept", ""
    )
    pool_size: int = setting("sandboxes of each template that are kept ready", 2, 0, 1000)
    preload: tuple[str, ...] = setting(
        "modules that the default template imports once, before any sandbox; empty: none", DEFAULT_PRELOAD
    )
    max_sandboxes: int = setting("sandboxes that may live at once", 1000, 1, 60_000)
    memory_reserve_bytes: int = setting(
        "memory that stays free: below it no sandbox is made; -1: 3 % of it, and 256 MiB at least",
        AUTOMATIC_RESERVE,
        AUTOMATIC_RESERVE,
        TIB,
    )
    max_cpu_pressure: int = setting(
        "percentage of time in which tasks may wait for a processor before no sandbox is made; 101: any",
        95,
        1,
        101,
    )
    isolation: str = setting(
        "isolation that a sandbox must reach whose caller names no level: landlock-only or namespaces",
        DEFAULT_ISOLATION,
    )
    audit_folder: str = setting(
        "folder in which the audit record of each sandbox is kept as a file; empty: in memory alone", ""
    )
    records: str = setting(
        "whether the records of sandboxes (code, outputs, audit) are kept after their end: keep or off", "off"
    )
    records_folder: str = setting("folder for those records; empty: in the state folder", "")
    records_bytes: int = setting("how much they may take together; the oldest go first", 1 << 30, MIB, TIB)
    records_count: int = setting("how many are kept", 1000, 1, 100_000)
    records_days: float = setting("how many days each is kept", 7.0, 0.001, 3650)
    template_memory_bytes: int = setting(
        "memory that the own processes of a template may take in which an image's Python runs",
        TEMPLATE_MEMORY_BYTES,
        64 * MIB,
        TIB,
    )
    own_interpreters: bool = setting(
        "whether each sandbox of every template has an interpreter of its own, and so its own addresses",
        False,
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_preload(self.preload)
        check_isolation("isolation", self.isolation)

        if self.records not in RECORDS:
            raise InvalidArgumentError(field="records", value=self.records, allowed=" or ".join(RECORDS))

        if self.host_id:
            check_host_id("host_id", self.host_id)
