"""The services of the handlers of a server: made once at its start, closed at its end.

Native routes and dialects alike find them at `app.state.services`; they use sandboxes only through `backend_for`, which
knows the owner of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import HTTPConnection

from fumehood.port.backend import Backend
from fumehood.server.admission import admit_caller
from fumehood.server.allowance import Allowance, CpuMeter, Spending
from fumehood.server.authenticator import Authenticator
from fumehood.server.batches import Batches
from fumehood.server.detached import DetachedRuns
from fumehood.server.drain import Drain
from fumehood.server.logins import ConsoleLogins
from fumehood.server.machine_report import MachineReport
from fumehood.server.metrics import ServerMetrics
from fumehood.server.port_rules import PortDialect
from fumehood.server.principal import Principal
from fumehood.server.queue import FairQueue
from fumehood.server.rate_limits import RateLimits
from fumehood.server.server_audit import ServerAudit
from fumehood.server.settings import ServerSettings
from fumehood.server.shares import SandboxShares
from fumehood.server.tenancy import Owners, TenantBackend
from fumehood.server.watching_backend import WatchingBackend
from fumehood.storage.blobs import Blobs
from fumehood.storage.database import Database
from fumehood.storage.files import StoredFiles
from fumehood.storage.idempotency import Idempotency
from fumehood.storage.keys import Keys
from fumehood.storage.logins import Login
from fumehood.storage.usage import UsageLedger


@dataclass(kw_only=True)
class AppServices(ABC):
    """The services that the handlers of every app use: the server's app and the host daemon's.

    Attributes:
        settings: The settings of the app.
        state: The state folder.
        backend: The real backend, with the sandboxes of all callers; handlers take `backend_for` instead.
        authenticator: Maps tokens to principals.
        queue: Admission of stateless runs.
        metrics: The metrics of the app.
        drain: Whether the app takes new work, and how much is under way.
        port_dialects: The dialects whose sandboxes have ports with host names.
        batches: Batches of stateless runs that outlive the connection that began them.
        detached: Executions that outlive the request that began them.
        sockets: How many sockets of the console each key has open.
        waits: How many sockets of each key wait for a connection from a sandbox.
    """

    settings: ServerSettings
    state: Path
    backend: Backend
    authenticator: Authenticator
    queue: FairQueue
    metrics: ServerMetrics
    drain: Drain = field(default_factory=Drain)
    port_dialects: list[PortDialect] = field(default_factory=list)
    batches: Batches = field(default_factory=Batches)
    detached: DetachedRuns = field(default_factory=DetachedRuns)
    sockets: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)

    @abstractmethod
    def backend_for(self, principal: Principal) -> Backend:
        """Returns the backend as this caller may see it."""

    async def logged_in(
        self, connection: HTTPConnection, *, is_use: bool = True
    ) -> tuple[Principal, Login] | None:
        """Returns the caller and the login of a request by its cookie; None without a cookie, or without logins here.

        Args:
            connection: The request.
            is_use: Whether this counts as a use of the login and as a request of its key.

        Raises:
            UnauthenticatedError: The cookie does not authenticate this request.
        """
        return None

    @abstractmethod
    def count_request(self, principal: Principal) -> None:
        """Counts a message of a caller's socket as a request of its key.

        Raises:
            RateLimitError: The key has made too many requests.
        """

    def is_busy(self) -> bool:
        """Returns whether code runs for a client, even if no request waits for it."""
        return False


@dataclass(kw_only=True)
class Services(AppServices):
    """The services of the handlers of a server.

    Attributes:
        database: Holds the stores below.
        keys: The keys.
        logins: Logins of browsers.
        rate_limits: Bounds wrong tokens per address, and requests per key.
        ledger: The usage of each key.
        idempotency: Stored answers for repeated requests.
        shares: Read-only views of sandboxes.
        stored_files: The files of dialects with uploads.
        blobs: The content of those files.
        at_end: Resources of dialects, closed when the server ends.
        via: The interface whose handlers use them: api, or the name of a dialect.
        audit: The audit record of the server itself.
        sources: The source of each setting by name; a setting that is missing here has its default.
        machine: The report on the server's machine.
    """

    database: Database
    keys: Keys
    logins: ConsoleLogins
    rate_limits: RateLimits
    ledger: UsageLedger
    idempotency: Idempotency
    shares: SandboxShares
    stored_files: StoredFiles
    blobs: Blobs
    audit: ServerAudit
    at_end: AsyncExitStack = field(default_factory=AsyncExitStack)
    via: str = "api"
    sources: Mapping[str, str] = field(default_factory=dict)
    machine: MachineReport = field(default_factory=MachineReport)
    owners: Owners = field(init=False)
    spending: Spending = field(init=False)

    def __post_init__(self) -> None:
        self.owners = Owners(self.backend)
        self.spending = Spending(self.ledger, self.metrics, CpuMeter(self.backend, self.ledger, self.metrics))

    def backend_for(self, principal: Principal) -> Backend:
        """Returns the backend as this caller may see it: its own sandboxes, within its limits."""
        admit_caller()
        return self.backend_within(Allowance(principal, self.spending, self.backend, self.settings))

    def backend_within(self, allowance: Allowance) -> Backend:
        """Returns the backend as the caller of an allowance may see it."""
        # Its decorator defines the verbs that the class does not.
        tenant = TenantBackend(  # type: ignore[abstract]
            self.backend, self.owners, allowance.principal, allowance, self.via, self.audit
        )

        if not allowance.principal.only_watches:
            return tenant

        may_execute = "execute" in allowance.principal.scopes
        return WatchingBackend(tenant, may_execute=may_execute)  # type: ignore[abstract]

    def spoken_by(self, dialect: str) -> Services:
        """Returns a copy of the services that records `dialect` as the interface of the code it runs."""
        services = copy(self)
        services.via = dialect
        return services

    async def logged_in(
        self, connection: HTTPConnection, *, is_use: bool = True
    ) -> tuple[Principal, Login] | None:
        """Returns the caller and the login that the cookie of a request belongs to; None without a valid one."""
        return await self.logins.principal_of(connection, is_use=is_use)

    def count_request(self, principal: Principal) -> None:
        """Counts a message of a caller's WebSocket as a request of its key."""
        self.rate_limits.count_request(principal)

    def is_busy(self) -> bool:
        """Returns whether code runs for a client; also for a dialect's WebSocket, which is not counted as a request."""
        return bool(self.spending.executions)


def services_of(connection: HTTPConnection) -> AppServices:
    """Returns the services of the app that answers this request."""
    services = connection.app.state.services
    assert isinstance(services, AppServices)
    return services


def stores_of(connection: HTTPConnection) -> Services:
    """Returns the services of a server, for handlers that need its database."""
    services = services_of(connection)
    assert isinstance(services, Services)
    return services
