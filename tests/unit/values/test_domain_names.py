"""N03, N04, N05: one spelling of each host and port, and whatever else looks like one is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.values.domain_names import TargetError, read_authority, read_host


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("example.com:443", "example.com:443"),
        ("EXAMPLE.Com.:443", "example.com:443"),
        ("xn--mnchen-3ya.de:80", "xn--mnchen-3ya.de:80"),
        ("_dmarc.a-b.c9:1", "_dmarc.a-b.c9:1"),
        ("192.0.2.7:65535", "192.0.2.7:65535"),
        ("[2001:DB8:0:0::1]:80", "[2001:db8::1]:80"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_what_is_plain_has_one_spelling(text, canonical):
    """Case, a dot at the end and long forms of IPv6 make no difference."""
    assert read_authority(text).authority == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", ":80", "example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:080"),
        *("example.com:+80", "example.com:8 0", "example.com:80:80", "example.com:https", "example.com:８０"),
        *("a..b:80", ".a:80", "-a.com:80", "a-.com:80", "a b:80", "a\tb:80", "a\0.com:80", "a\r\nb:80"),
        *(
            "user@example.com:80",
            "example.com\\@evil.com:80",
            "example.com#:80",
            "example.com%00:80",
            "a/b:80",
        ),
        *("*.example.com:80", "münchen.de:80", "ｅxample.com:80", "example。com:80", "exam\u00adple.com:80"),
        *("127.1:80", "127.0.1:80", "2130706433:80", "0x7f000001:80", "0x7f.0.0.1:80", "017700000001:80"),
        *("0177.0.0.1:80", "127.0.0.01:80", "127.0.0.1.:80", "127.0.0.256:80", "1.2.3.4.5:80", "a.0x1:80"),
        *("１２７.0.0.1:80", "127.0.0.1%eth0:80", "+127.0.0.1:80", "127.0.0.1 :80"),
        *("::1:80", "[::1:80", "::1]:80", "[::1]80", "[::1]:", "[::1%25lo]:80", "[fe80::1%eth0]:80", "[]:80"),
        *(
            "[::ffff:127.0.0.1]:80",
            "[::ffff:7f00:1]:80",
            "[127.0.0.1]:80",
            "[example.com]:80",
            "[::127.0.0.1]:80",
        ),
        f"{'a' * 64}.com:80",
        f"{'a.' * 126}abc:80",
    ],
)
def test_what_is_not_plain_is_refused(text):
    """Each has been read as something else by some other reader."""
    with pytest.raises(TargetError):
        read_authority(text)


@given(st.text(max_size=40))
def test_what_is_read_is_read_again_as_the_same(text):
    """A canonical host is its own canonical form: checking and dialling cannot differ."""
    try:
        host, address = read_host(text)
    except TargetError:
        return

    again = read_host(f"[{host}]" if ":" in host else host)
    assert again == (host, address)
