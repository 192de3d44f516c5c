"""Prepares a network policy for the proxy: looks presets up, reads secrets, makes a certificate authority.

Runs in the host process, on the engine's loop, before a sandbox is handed out; a policy that cannot be carried out is
refused then, and not at the first connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from fumehood.egress.gateway import Route
from fumehood.egress.interception import Authority, make_trust, system_certificates
from fumehood.egress.policy import Policy, RefusedError
from fumehood.egress.presets import pip_settings
from fumehood.errors import InvalidArgumentError
from fumehood.values.domain_names import Target
from fumehood.values.network import Network, SecretPlace, read_secret_place

# The path in the sandbox to which environment variables point.
BUNDLE_PATH = "/home/user/.fumehood/certificates.pem"
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
        before: The route so far in the same sandbox: its authority is kept, and secrets that come without a value
            keep theirs.

    Raises:
        InvalidArgumentError: It cannot be carried out here.
    """
    if before is not None:
        network = network.with_secrets_of(before.network)

    rules: tuple[str, ...] = ()
    envs: dict[str, str] = {}

    if "pip" in network.presets:
        settings = await pip_settings()
        rules = settings.rules
        envs.update(settings.envs)

    secrets = _secrets(network, Policy(network, rules))
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


def _secrets(network: Network, policy: Policy) -> dict[SecretPlace, Mapping[str, str]]:
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
