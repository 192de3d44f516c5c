"""Builds engines and backends from settings; the server's own wiring is in `server/assembly.py`.

Settings are read from the environment here and nowhere else, at the first use, never at import. The engine is imported
where one is made: a client of a server needs none, and `begin_start` is called before that.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import fumehood_jail
from fumehood.engine.settings import AUTOMATIC_RESERVE, EngineSettings
from fumehood.errors import FumehoodError, InvalidArgumentError, IsolationUnavailableError, SandboxStartError
from fumehood.portal import Portal, Turn, call, shared_portal
from fumehood.refusals import naming_arguments
from fumehood.setting_fields import load_environment
from fumehood.values.guest_paths import GUEST_PACKAGES_PATH
from fumehood.values.sandbox import IsolationLevel
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.client.connection import ServerAddress
    from fumehood.cluster.backend import ClusterBackend
    from fumehood.engine.backend import LocalBackend
    from fumehood.engine.kept_records import KeptRecords
    from fumehood.port.backend import Backend
    from fumehood.runtimes.namespaces.runtime import LinuxRuntime
    from fumehood.templates.images.credentials import RegistryLogins
    from fumehood.templates.store import TemplateStore
    from fumehood.values.security import SecurityEvent

# Enough for the largest number of sandboxes, and few enough for programs that close every possible descriptor.
_OPEN_FILES = 65_536
_DAY_SECONDS = 86_400


def read_settings() -> EngineSettings:
    """Reads the settings of the engine of this process from the environment.

    Raises:
        InvalidArgumentError: A variable holds no number, or one out of range.
    """
    return load_environment(EngineSettings, os.environ)


def make_backend(settings: EngineSettings, portal: Portal) -> LocalBackend:
    """Makes a new backend on the loop of `portal`, which closes it at its end."""
    backend = backend_on_loop(settings, portal.loop)
    portal.on_close(backend.aclose)
    return backend


def backend_on_loop(
    settings: EngineSettings,
    loop: asyncio.AbstractEventLoop,
    on_security_event: Callable[[SecurityEvent], None] = lambda _: None,
) -> LocalBackend:
    """Makes a new backend on a loop that runs, or will run; the caller closes it.

    Args:
        settings: The settings of its engine.
        loop: The loop.
        on_security_event: Called with the security events of all its sandboxes, on that loop.

    Raises:
        IsolationUnavailableError: This is another system than Linux.
    """
    require_linux()
    _require_outside()
    allow_open_files()

    from fumehood.audit.files import AuditFolder
    from fumehood.engine.admission import AdmissionRules
    from fumehood.engine.audit_records import AuditRecords
    from fumehood.engine.backend import LocalBackend
    from fumehood.engine.identity import make_part
    from fumehood.engine.provisioner import EngineConfig
    from fumehood.engine.supervisor import Supervisor
    from fumehood.runtimes.landlock.runtime import LandlockRuntime
    from fumehood.runtimes.namespaces.runtime import LinuxRuntime

    config = EngineConfig(
        runtime=_begun_runtime(loop) or LinuxRuntime(settings.template_memory_bytes),
        pool_size=settings.pool_size,
        store=template_store(),
        weaker=(LandlockRuntime(),),
        required_level=cast("IsolationLevel", settings.isolation),
        own_interpreters=settings.own_interpreters,
        preload=settings.preload,
    )
    reserve = settings.memory_reserve_bytes
    rules = AdmissionRules(
        max_sandboxes=settings.max_sandboxes,
        memory_reserve_bytes=None if reserve == AUTOMATIC_RESERVE else reserve,
        max_cpu_pressure=settings.max_cpu_pressure,
    )
    records = AuditRecords(AuditFolder(settings.audit_folder) if settings.audit_folder else None)
    records.on_security_event = on_security_event
    supervisor = Supervisor(config, rules, settings.host_id or make_part(), records, _kept_records(settings))
    return LocalBackend(supervisor, loop)


def _kept_records(settings: EngineSettings) -> KeptRecords | None:
    if settings.records != "keep":
        return None

    from fumehood.engine.kept_records import KeptRecords
    from fumehood.engine.record_index import RecordBounds

    bounds = RecordBounds(
        max_bytes=settings.records_bytes,
        max_count=settings.records_count,
        max_seconds=settings.records_days * _DAY_SECONDS,
    )
    return KeptRecords(settings.records_folder or os.path.join(_home(), "records"), bounds)


def require_linux() -> None:
    """Raises on any system other than Linux, where only sandboxes of a server can be used.

    Raises:
        IsolationUnavailableError: This system is not Linux.
    """
    if sys.platform != "linux":
        raise IsolationUnavailableError(
            layer="kernel",
            reason=f"sandboxes need Linux, and this is {sys.platform}",
            how_to_get_it='start a server in a container by eval "$(fumehood serve --print-docker | sh)", or name one '
            "in FUMEHOOD_URL and FUMEHOOD_API_KEY",
        )


def _require_outside() -> None:
    """Raises SandboxStartError in a sandbox, where the packages of the guest stand in place of those of the host."""
    if os.path.dirname(fumehood_jail.__path__[0]) == GUEST_PACKAGES_PATH:
        raise SandboxStartError(
            step="start",
            reason="this code runs in a sandbox already, and none can be made inside",
            hint="run the code itself here; a program that makes sandboxes is run outside, by `python FILE`",
        )


def cluster_on_loop(address: str, token_file: str, loop: asyncio.AbstractEventLoop) -> ClusterBackend:
    """Makes the backend of a cluster on a loop that runs; the caller starts and closes it.

    Args:
        address: The address of Ray's head, HOST:PORT.
        token_file: The file with the cluster's token.
        loop: The loop.

    Raises:
        InvalidArgumentError: The extra that brings Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise InvalidArgumentError(
            field="cluster", value=address, allowed="Ray, which is not installed", extra="cluster"
        )

    from fumehood.cluster.ray_settings import environment as ray_environment

    # Ray reads these variables at its import; the operator's own values are kept.
    for name, value in ray_environment(token_file).items():
        os.environ.setdefault(name, value)

    from fumehood.cluster.backend import ClusterBackend

    # Its decorator defines the verbs that the class does not.
    return ClusterBackend(address, loop)  # type: ignore[abstract]


def allow_open_files() -> None:
    """Raises the soft limit of open files as far as this process may: each sandbox takes about ten of them here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)

    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def template_store() -> TemplateStore:
    """Returns the store of this user's templates: in FUMEHOOD_HOME, or where user data lies by XDG_DATA_HOME.

    Raises:
        InvalidArgumentError: FUMEHOOD_HOME is no absolute path.
    """
    from fumehood.templates.store import TemplateStore

    return TemplateStore(os.path.join(_home(), "templates"))


def registry_logins() -> RegistryLogins:
    """Returns the logins of this user at registries of container images."""
    from fumehood.templates.images.credentials import RegistryLogins

    return RegistryLogins(dict(os.environ))


def artifacts_location() -> str:
    """Returns where files of sandboxes are published: FUMEHOOD_ARTIFACTS, or a folder beside the templates.

    Raises:
        InvalidArgumentError: FUMEHOOD_HOME is no absolute path.
    """
    return os.environ.get("FUMEHOOD_ARTIFACTS") or os.path.join(_home(), "artifacts")


def _home() -> str:
    home = os.environ.get("FUMEHOOD_HOME")

    if home is None:
        # Relative paths are to be ignored (XDG Base Directory Specification).
        given = os.environ.get("XDG_DATA_HOME", "")
        data = given if os.path.isabs(given) else os.path.expanduser("~/.local/share")
        home = os.path.join(data, "fumehood")

    if not os.path.isabs(home):
        # Without a home directory it was not given: this user has no entry in /etc/passwd, and HOME is not set.
        value = os.environ.get("FUMEHOOD_HOME", ...)
        raise InvalidArgumentError(
            field="FUMEHOOD_HOME", value=value, allowed="the absolute path of a folder"
        )

    return home


_lock = threading.Lock()
_backend: LocalBackend | None = None
# The runtime that `begin_start` has made, for the engine that will be made.
_begun: LinuxRuntime | None = None
_remote: dict[tuple[str, str], Backend] = {}
_inherited: list[Backend] = []


def local_backend(*, has_pool: bool = True) -> LocalBackend:
    """Returns the backend of this process, made at the first call.

    Args:
        has_pool: Whether it keeps sandboxes ready, if this call makes it.
    """
    global _backend

    with _lock:
        if _backend is None:
            settings = read_settings()
            settings = settings if has_pool else replace(settings, pool_size=0)
            _backend = make_backend(settings, shared_portal())

        return _backend


def begin_start(template: Template) -> None:
    """Starts the processes of a template for a sandbox that will be made here, and returns while they import.

    They import their modules while this process imports the engine, which takes about as long. A command that makes
    only one sandbox calls this first. A failure is reported when the sandbox is made.
    """
    global _begun
    settings = read_settings()

    # With own interpreters, the engine starts another template than this.
    if sys.platform != "linux" or settings.own_interpreters or _backend is not None:
        return

    from fumehood.runtimes.namespaces.runtime import LinuxRuntime

    allow_open_files()
    runtime = LinuxRuntime(settings.template_memory_bytes)

    with suppress(FumehoodError, OSError):
        call(runtime.begin, template)
        shared_portal().on_close(runtime.end_begun)
        _begun = runtime


def _begun_runtime(loop: asyncio.AbstractEventLoop) -> LinuxRuntime | None:
    """Returns the runtime that `begin_start` has made, once, if it belongs to this loop."""
    global _begun

    if _begun is None or shared_portal().loop is not loop:
        return None

    runtime, _begun = _begun, None
    return runtime


def server_address() -> str | None:
    """Returns the address of the server that the environment names; None if it names none."""
    return os.environ.get("FUMEHOOD_URL") or None


def has_server() -> bool:
    """Returns whether the environment names a server."""
    return server_address() is not None


def chosen_backend(*, has_pool: bool = True) -> Backend:
    """Returns the backend that the environment names: the server of FUMEHOOD_URL, else the one of this process.

    Args:
        has_pool: See `local_backend`.
    """
    return remote_backend(None, None) if has_server() else local_backend(has_pool=has_pool)


def remote_backend(url: str | None, api_key: str | None) -> Backend:
    """Returns the backend of a server, one for each address and key.

    Args:
        url: Its address; None: FUMEHOOD_URL.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.

    Raises:
        InvalidArgumentError: There is no address, or the extra that speaks HTTP is not installed.
    """
    with _named_server(url, api_key) as key, _lock:
        if key not in _remote:
            _remote[key] = _connect(*key)

        return _remote[key]


def ask_server(url: str | None, api_key: str | None, method: str, path: str, **options: Any) -> Any:
    """Sends a request to a server that does not concern a sandbox, such as for its keys, and returns the answer.

    Args:
        url: Its address; None: FUMEHOOD_URL.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
        method: The HTTP method.
        path: The path of the resource.
        options: Further arguments of the HTTP client, such as `json` and `params`.

    Raises:
        InvalidArgumentError: There is no address, or the extra that speaks HTTP is not installed.
    """
    with _named_server(url, api_key) as key:
        address = _address(*key)

    from fumehood.client.connection import HttpConnection

    async def asked() -> Any:
        connection = HttpConnection(address)
        try:
            return await connection.ask(method, path, **options)
        finally:
            await connection.aclose()

    return call(asked)


def server_lines(
    url: str | None, api_key: str | None, method: str, path: str, **options: Any
) -> Iterator[dict[str, Any]]:
    """Sends such a request as `ask_server` does, and yields the lines of the answer."""
    with _named_server(url, api_key) as key:
        address = _address(*key)

    from fumehood.client.connection import HttpConnection

    async def lines() -> AsyncGenerator[dict[str, Any], None]:
        connection = HttpConnection(address)
        try:
            async with aclosing(connection.lines(method, path, **options)) as received:
                async for line in received:
                    yield line
        finally:
            await connection.aclose()

    return Turn().iterate(lines())


@contextmanager
def _named_server(url: str | None, api_key: str | None) -> Iterator[tuple[str, str]]:
    """Yields the address and the token of a server; errors in the block name them as the user has given them."""
    given, url = url, url or os.environ.get("FUMEHOOD_URL", "")

    if not isinstance(url, str) or not url:
        raise InvalidArgumentError(
            field="url",
            value=given or ...,
            allowed="the address of a server, as `fumehood serve` prints it; FUMEHOOD_URL may name it",
        )

    token = api_key or os.environ.get("FUMEHOOD_API_KEY", "")
    given_as = {} if given else {"url": "FUMEHOOD_URL"}
    given_as |= {} if api_key else {"api_key": "FUMEHOOD_API_KEY"}

    if not isinstance(token, str):
        raise InvalidArgumentError(
            field="api_key", value="(not shown)", allowed="the token of a server, as text"
        )

    with naming_arguments(given_as):
        # Read from a file, it ends with a line break.
        yield url, token.strip()


def _address(url: str, api_key: str) -> ServerAddress:
    try:
        from fumehood.client.connection import ServerAddress
    except ModuleNotFoundError as missing:
        raise InvalidArgumentError(
            field="url", value=url, allowed=f"{missing.name}, which is not installed", extra="client"
        ) from None

    return ServerAddress(url=url, token=api_key)


def _connect(url: str, api_key: str) -> Backend:
    address = _address(url, api_key)
    from fumehood.client.backend import HttpBackend

    portal = shared_portal()
    backend = HttpBackend(address, portal.loop)
    portal.on_close(backend.aclose)
    return backend


def _forget_in_child() -> None:
    """Releases the parent's engine in a forked child, which starts one of its own."""
    global _backend, _begun, _lock, _remote
    _lock = threading.Lock()
    _backend = _begun = None
    # Not closed, because the connections belong to the parent.
    _inherited.extend(_remote.values())
    _remote = {}


os.register_at_fork(after_in_child=_forget_in_child)
