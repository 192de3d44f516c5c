"""Prepares a network policy for the proxy: looks presets up, reads secrets, makes a certificate authority.

It runs before a sandbox is handed out; a policy that cannot be carried out is refused then, and not at the first
connection. A preset is a bundle of rules that the host knows, such as the package index of its pip: read by pip itself
from the host's own configuration, whose credentials stay here.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from fumehood.egress.gateway import Route
from fumehood.egress.interception import Authority, make_trust, system_certificates
from fumehood.egress.policy import EgressPolicy, RefusedError
from fumehood.errors import InvalidArgumentError
from fumehood.pip_configuration import ask_pip, read_pip_configuration
from fumehood.values.domain_names import Target, TargetError, read_authority
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.network import Network, SecretPlace, read_secret_place

_PYPI = "https://pypi.org/simple"
# The host of the files that an index's pages link to, where it is another one.
_FILES_OF = {"pypi.org": "files.pythonhosted.org"}
_PORTS = {"https": 443, "http": 80}

# Long enough for many sandboxes, short enough for a change of the settings.
_KEPT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The package indexes of this machine, from the configuration of pip.

    Attributes:
        rules: The rules that allow them.
        envs: The environment variables for pip inside; no credentials.
    """

    rules: tuple[str, ...]
    envs: Mapping[str, str] = field(default_factory=dict)


_asked: tuple[float, PipSettings] | None = None


async def pip_settings() -> PipSettings:
    """Returns the settings of this machine's pip, read now or a moment ago.

    Raises:
        InvalidArgumentError: pip cannot be run, or names an index that is no URL.
    """
    global _asked

    if _asked is None or time.monotonic() - _asked[0] > _KEPT_SECONDS:
        settings = read_pip_settings(await asyncio.to_thread(_ask_pip))
        _asked = (time.monotonic(), settings)

    return _asked[1]


def read_pip_settings(said: str) -> PipSettings:
    """Returns the package indexes in the output of `pip config list`.

    Args:
        said: Lines such as `global.index-url='https://...'`.

    Raises:
        InvalidArgumentError: An index is no URL.
    """
    found = read_pip_configuration(said)
    main = found.get("index-url", _PYPI)
    extra = found.get("extra-index-url", "").split()
    parts = [_split("index-url", main), *(_split("extra-index-url", address) for address in extra)]
    rules: list[str] = []

    for part in parts:
        rules.append(f"{_host(part)}:{part.port or _PORTS[part.scheme]}")

        if part.hostname in _FILES_OF:
            rules.append(f"{_FILES_OF[part.hostname]}:443")

    envs = {"PIP_INDEX_URL": _without_credentials(parts[0])}

    if extra:
        envs["PIP_EXTRA_INDEX_URL"] = " ".join(map(_without_credentials, parts[1:]))

    if "trusted-host" in found:
        envs["PIP_TRUSTED_HOST"] = " ".join(found["trusted-host"].split())

    return PipSettings(tuple(dict.fromkeys(rules)), envs)


def _ask_pip() -> str:
    try:
        return ask_pip()
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidArgumentError(
            field="network",
            value="pip",
            allowed=f"'pip' where the host has a pip to ask ({type(error).__name__}); or name the index's hosts",
        ) from None


def _split(setting: str, address: str) -> SplitResult:
    parts = urlsplit(address)
    try:
        if parts.scheme not in _PORTS or "\\" in address:
            raise TargetError

        read_authority(_host(parts), parts.port or _PORTS[parts.scheme])
    except (TargetError, ValueError):
        raise InvalidArgumentError(
            field="network",
            value="pip",
            # The URL itself is not shown: it may hold a password.
            allowed=f"'pip' where the {setting} of the host's own pip has http or https addresses alone; "
            "name the hosts of the index that you want instead",
        ) from None

    return parts


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _without_credentials(parts: SplitResult) -> str:
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=f"{_host(parts)}{port}").geturl()


# The path in the sandbox to which environment variables point.
BUNDLE_PATH = f"{HOME_PATH}/.fumehood/certificates.pem"
_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
)


async def prepare_route(network: Network, before: Route | None = None) -> Route:
    """Returns the route of a network policy.

    Args:
        network: The policy of the owner.
        before: The route so far in the same sandbox: its authority is kept, and secrets without a value keep their
            present one.

    Raises:
        InvalidArgumentError: The network cannot be enforced here.
    """
    if before is not None:
        network = network.with_secrets_of(before.network)

    rules: tuple[str, ...] = ()
    envs: dict[str, str] = {}

    if "pip" in network.presets:
        settings = await pip_settings()
        rules = settings.rules
        envs.update(settings.envs)

    secrets = _secrets(network, EgressPolicy(network, rules))
    authority = before.authority if before is not None else None
    bundle: bytes | None = None
    trust: ssl.SSLContext | None = None

    if any(place.scheme == "https" for place in secrets):
        authority = authority or Authority()
        # Reading all certificates of a machine takes long enough to delay other tasks.
        trust, ours = await asyncio.gather(
            asyncio.to_thread(make_trust), asyncio.to_thread(system_certificates)
        )
        bundle = ours + b"\n" + authority.certificate
        envs.update(dict.fromkeys(_BUNDLE_VARIABLES, BUNDLE_PATH))

    return Route(
        network=network,
        more_rules=rules,
        secrets=secrets,
        authority=authority,
        trust=trust,
        envs=envs,
        bundle=bundle,
    )


def _secrets(network: Network, policy: EgressPolicy) -> dict[SecretPlace, Mapping[str, str]]:
    found: dict[SecretPlace, Mapping[str, str]] = {}

    for text, headers in network.secrets.items():
        place = read_secret_place(text)

        if not all(headers.values()):
            allowed = "a value for each header; what is shown of a sandbox has none"
            raise InvalidArgumentError(field=f"network.secrets[{text!r}]", value="", allowed=allowed)

        try:
            policy.admit(Target(place.name, place.port))
        except RefusedError as refusal:
            raise InvalidArgumentError(
                field="network.secrets",
                value=text,
                allowed=f"places that `allow` lists too: {refusal.reason}",
            ) from None

        found[place] = headers

    return found
