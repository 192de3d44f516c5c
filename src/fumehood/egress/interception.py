"""A certificate authority for one sandbox, which signs for the destinations of secrets; only that sandbox trusts it.

Its key never leaves this memory and lives as long as the sandbox; the sandbox gets only the certificate. TLS is
terminated here only for destinations that were named with a secret.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections import OrderedDict
from typing import TYPE_CHECKING

from fumehood.errors import InvalidArgumentError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_DAYS = 365
_MAX_CONTEXTS = 100


class Authority:
    """The authority of one sandbox.

    Raises:
        InvalidArgumentError: The extra that makes certificates is not installed.
    """

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ModuleNotFoundError:
            raise InvalidArgumentError(
                field="network.secrets",
                value="a secret for https",
                allowed="cryptography, which is not installed",
                extra="egress",
            ) from None

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _certify("fumehood sandbox", self._key, None, self._key)
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def certificate(self) -> bytes:
        """The certificate, which is public, as PEM."""
        return _pem(self._certificate)

    def context_for(self, name: str) -> ssl.SSLContext:
        """Returns a TLS context with a certificate for a host."""
        if name not in self._contexts:
            self._contexts[name] = self._make_context(name)

            while len(self._contexts) > _MAX_CONTEXTS:
                self._contexts.popitem(last=False)

        return self._contexts[name]

    def _make_context(self, name: str) -> ssl.SSLContext:
        from cryptography.hazmat.primitives import serialization

        leaf = _certify(name, self._leaf_key, self._certificate, self._key)
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # OpenSSL reads keys only from files; this one is in memory and is gone with its descriptor.
        memory = os.memfd_create("fumehood-leaf", os.MFD_CLOEXEC)
        try:
            os.write(memory, _pem(leaf) + key)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)

        return context


def make_trust() -> ssl.SSLContext:
    """Returns a context with the certificates that this machine trusts, for the proxy's own TLS; reads files."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def system_certificates() -> bytes:
    """Returns the certificates that this machine trusts, as PEM, to be trusted beside a sandbox's authority."""
    places = ssl.get_default_verify_paths()

    for path in (places.cafile, places.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt"):
        try:
            with open(path or "", "rb") as file:
                return file.read()
        except OSError:
            continue

    return b""


def _certify(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    # A common name holds 64 characters; clients use the alternative names.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    is_authority = issuer is None
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True)
        .add_extension(usage, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    )

    if not is_authority:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(name)]), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)

    return builder.sign(signer, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
