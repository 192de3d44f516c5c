"""What a client of a server trusts, and that only TLS makes it read the machine's certificate authorities."""

from __future__ import annotations

import ssl

import pytest

from fumehood.client import connection
from fumehood.client.connection import ServerAddress


def test_a_context_for_no_tls_trusts_no_certificate():
    """It has no authority, and still asks for a certificate: a connection by TLS would fail."""
    context = connection._trust_in_none()
    assert context.cert_store_stats()["x509"] == 0
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(
    ("url", "has_tls"), [("http://fumehood", False), ("https://fumehood", True), ("http://https://", False)]
)
def test_authorities_are_for_tls(url: str, has_tls: bool):
    """By the scheme of the address alone."""
    assert ServerAddress(url=url).has_tls is has_tls
