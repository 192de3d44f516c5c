"""Headers between a client and a server inside a sandbox: which of them pass, each way.

Pure functions. The response of a guest is hostile: headers that apply to the whole origin of this server, that frame a
message or that only this server may set are removed, and a redirect leads back to the guest. The token of the caller is
never passed in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

from starlette.requests import HTTPConnection

from fumehood.errors import InvalidArgumentError

# RFC 9110, 7.6.1: headers of one connection only.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SECRETS = frozenset({"authorization", "x-api-key", "x-access-token", "e2b-traffic-access-token"})
# Set by this server; a value from a client cannot be trusted.
_FORWARDED = frozenset({"x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"})
# Headers that a browser applies to more than the page: to its host, its subdomains, or the network.
_FOR_ORIGINS = frozenset(
    {
        "accept-ch",
        "alt-svc",
        "clear-site-data",
        "critical-ch",
        "expect-ct",
        "nel",
        "origin-agent-cluster",
        "public-key-pins",
        "report-to",
        "secure-session-registration",
        "sec-session-registration",
        "service-worker-allowed",
        # Set-Cookie2 (RFC 2965), whose cookies would be for the whole domain as well.
        "set-cookie2",
        "set-login",
        "strict-transport-security",
        "use-as-dictionary",
    }
)
# Headers that only this server may set in its own origin. A password prompt would ask for our token.
_OURS = frozenset(
    {
        "set-cookie",
        "cross-origin-resource-policy",
        "x-content-type-options",
        "x-request-id",
        "www-authenticate",
    }
)
# Guest pages in the server's own origin: scripts run, but in an opaque origin without rights.
_SANDBOX_POLICY = (
    "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads allow-pointer-lock"
)
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ESCAPED_DOT = re.compile("%2e", re.IGNORECASE)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WITHOUT_BODY = (204, 304)
Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTarget:
    """The target of a request for a port, and how it was addressed.

    Attributes:
        sandbox_id: The sandbox.
        port: The port of its loopback.
        path: Path and query for the server inside, as they were sent.
        prefix: The part of the outer path that is removed for the server inside.
        own_origin: True when the sandbox has a host name of its own, so that its pages and cookies are apart
            from the server's.
        keep_credentials: True when headers with credentials are meant for the server inside, because this server needed
            none of them for this request.
        host: The Host header for the server inside; empty for `localhost` and the port.
    """

    sandbox_id: str
    port: int
    path: str
    prefix: str = ""
    own_origin: bool = False
    keep_credentials: bool = False
    host: str = ""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            # A path without a leading slash would become part of the host name before it.
            raise InvalidArgumentError(field="path", value=self.path, allowed="a path that begins with /")

        if "#" in self.path:
            # A fragment is no part of a request target (RFC 9112, section 3.2).
            raise InvalidArgumentError(field="path", value=self.path, allowed="a path without a fragment")


def inner_headers(connection: HTTPConnection, target: PortTarget) -> list[tuple[str, str]]:
    """Returns the headers that are passed to the server inside."""
    named = {word.strip().lower() for word in connection.headers.get("connection", "").split(",")}
    dropped = _HOP_BY_HOP | (named - {"content-length"}) | _FORWARDED | {"host"}

    if not target.keep_credentials:
        dropped |= _SECRETS

    if not (target.keep_credentials and target.own_origin):
        # In our own origin a guest can have no cookies: those of a browser are ours.
        dropped |= {"cookie"}

    headers = [(name, value) for name, value in connection.headers.items() if name.lower() not in dropped]
    outer = connection.url
    return [
        # Development servers refuse host names that they do not know.
        ("host", target.host.replace("${PORT}", str(target.port)) or f"localhost:{target.port}"),
        *headers,
        ("x-forwarded-host", outer.netloc),
        ("x-forwarded-proto", outer.scheme),
        ("x-forwarded-prefix", target.prefix),
    ]


def outer_headers(
    status: int, headers: Iterable[Header], connection: HTTPConnection, target: PortTarget
) -> list[Header]:
    """Returns the headers of an answer as the client receives them."""
    given = [(name, value) for name, value in headers if not _CONTROLS.search(value)]
    named = {
        word.strip().lower()
        for name, value in given
        if name == b"connection"
        for word in value.decode("latin-1").split(",")
    }
    dropped = _HOP_BY_HOP | named | _FOR_ORIGINS | {"x-request-id"}

    if status in _WITHOUT_BODY or any(name == b"transfer-encoding" for name, _ in given):
        # With two lengths the client might use the other one.
        dropped |= {"content-length"}

    if target.own_origin:
        return [
            header
            for header in given
            if header[0].decode("latin-1") not in dropped and not _is_for_all(*header)
        ]

    if is_page := connection.headers.get("origin") == "null":
        dropped |= {"access-control-allow-origin", "access-control-allow-credentials"}

    kept = [header for header in given if header[0].decode("latin-1") not in dropped | _OURS]
    kept = [(name, value) for name, value in _led_back(kept, connection, target)]
    kept.append((b"content-security-policy", _SANDBOX_POLICY.encode()))
    kept.append((b"cross-origin-resource-policy", b"cross-origin"))

    if is_page:
        # A request of a page of this very sandbox, whose origin is opaque by the policy.
        kept.append((b"access-control-allow-origin", b"null"))

    return kept


def _is_for_all(name: bytes, value: bytes) -> bool:
    """Returns whether a cookie is for the whole domain: it would reach sandboxes of other callers."""
    return name == b"set-cookie" and b"domain" in value.lower()


def _led_back(headers: Iterable[Header], connection: HTTPConnection, target: PortTarget) -> Iterable[Header]:
    """Returns the headers, with redirects rewritten so that they lead to the guest and never to the server's routes."""
    for name, value in headers:
        if name != b"location":
            yield name, value
        elif (location := _location(value.decode("latin-1"), connection, target)) is not None:
            yield name, location.encode("latin-1")


def _location(text: str, connection: HTTPConnection, target: PortTarget) -> str | None:
    """Returns the target of a redirect, as a client understands it; None when it leads nowhere."""
    # Browsers read backslashes as slashes, leave tabs out, and take escaped dots for dots.
    text = _ESCAPED_DOT.sub(".", text.replace("\\", "/").replace("\t", "").strip())

    try:
        found = urlsplit(urljoin(f"http://localhost:{target.port}{target.path}", text))
        is_inner = _is_inner(found, connection, target)
    except ValueError:
        return None

    if found.scheme not in ("http", "https"):
        return None

    if not is_inner:
        return text

    path = "/" + found.path.lstrip("/")

    if not path.startswith(f"{target.prefix}/"):
        path = target.prefix + path

    return urlunsplit(("", "", path, found.query, found.fragment))


def _is_inner(found: SplitResult, connection: HTTPConnection, target: PortTarget) -> bool:
    """Returns whether an address is one of the server inside, or of this server, which the guest may only name."""
    outer = connection.url
    default = 443 if found.scheme == "https" else 80
    is_port_ours = (found.port or default) in (
        target.port,
        outer.port or (443 if outer.scheme == "https" else 80),
    )
    return found.hostname == outer.hostname or (found.hostname in _LOOPBACK and is_port_ours)
