"""A network that exists is valid; one that says nothing allows nothing; secrets are not shown."""

from __future__ import annotations

import pickle

import pytest

from fumehood import InvalidArgumentError, Network
from fumehood.egress.policy import EgressPolicy, RefusedError
from fumehood.values.codec import read_value
from fumehood.values.domain_names import Target, read_address, read_authority
from fumehood.values.network import lists_only, read_network
from fumehood.values.plain_data import as_data


def admits(network: Network, text: str, *addresses: str) -> bool:
    policy, target = EgressPolicy(network), read_authority(text)
    try:
        policy.admit(target)

        for address in addresses or ([target.host] if target.address else []):
            policy.admit_address(target, read_address(address))
    except RefusedError:
        return False

    return True


@pytest.mark.parametrize(
    "rule",
    [
        *(
            "",
            "*",
            "*.",
            ".example.com",
            "*example.com",
            "a.*.com",
            "**.example.com",
            "http://example.com",
            "a/b",
        ),
        *(
            "example.com:0",
            "example.com:99999",
            "example.com:",
            "example.com:*",
            "exa mple.com",
            "a@b",
            "münchen.de",
        ),
        *(
            "10.1.2.3/16",
            "10.0.0.0/33",
            "0.0.0.0/0",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "0x7f.1",
            "127.1",
        ),
        *("::/0", "::", "::ffff:10.0.0.1", "64:ff9b::1", "2002::1", "ff02::1", "[::1", "[2001:db8::1]/32:x"),
        *("*.10.0.0.1", "*.0x7f", "a\0b"),
    ],
)
def test_n12_a_rule_that_cannot_be_read_is_refused(rule):
    """Not skipped: a denial that is skipped allows."""
    for network in ({"allow": [rule]}, {"deny": [rule]}):
        with pytest.raises(InvalidArgumentError):
            Network(**network)


@pytest.mark.parametrize("wrong", ["example.com", None, 7, [7], [None], {"a": 1}, [b"a.b"]])
def test_n12_rules_are_a_list_of_texts(wrong):
    """One text alone would be as many rules as it has letters."""
    with pytest.raises(InvalidArgumentError):
        Network(allow=wrong)


def test_n12_nothing_said_is_nothing_allowed():
    """Neither names nor addresses, public or not."""
    for network in (Network(), Network(deny=["a.com"]), read_network("none"), read_network(None)):
        assert network.level == "none"

        for target in ("example.com:443", "93.184.215.14:443", "127.0.0.1:80", "[::1]:80", "localhost:80"):
            assert not admits(network, target)


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        (
            "example.com",
            ["example.com:443", "EXAMPLE.COM.:80"],
            [
                "a.example.com:443",
                "notexample.com:443",
                "example.com.evil.com:443",
                "example.com:22",
                "com:443",
            ],
        ),
        (
            "*.example.org:443",
            ["a.example.org:443", "a.b.example.org:443"],
            ["example.org:443", "aexample.org:443", "a.example.org:80", "example.org.evil.com:443"],
        ),
        ("db.example.com:5432", ["db.example.com:5432"], ["db.example.com:443"]),
        (
            "10.1.0.0/16",
            ["10.1.2.3:80", "10.1.255.255:443"],
            ["10.2.0.1:80", "10.1.2.3:22", "example.com:80"],
        ),
        ("10.1.2.3:8080", ["10.1.2.3:8080"], ["10.1.2.3:80", "10.1.2.4:8080"]),
        ("[2001:db8::]/32:443", ["[2001:db8::5]:443"], ["[2001:db9::5]:443", "[2001:db8::5]:80"]),
        ("2001:db8::7", ["[2001:db8::7]:80"], ["[2001:db8::8]:80"]),
    ],
)
def test_n03_a_rule_means_what_it_says(rule, yes, no):
    """On borders of labels, in every case, for its ports alone."""
    network = Network(allow=[rule])
    assert [text for text in yes if not admits(network, text)] == []
    assert [text for text in no if admits(network, text)] == []


def test_n03_a_denial_wins():
    """Also over everything public, by name, by name below one, and by address."""
    network = Network(
        internet=True, allow=["a.evil.com"], deny=["*.evil.com", "evil.com", "1.2.3.0/24", "b.com:80"]
    )
    assert admits(network, "good.com:443", "8.8.8.8")
    assert not admits(network, "a.evil.com:443")
    assert not admits(network, "evil.com:443")
    assert not admits(network, "good.com:443", "8.8.8.8", "1.2.3.4")
    assert not admits(network, "1.2.3.4:443")
    assert admits(network, "b.com:443", "8.8.8.8")
    assert not admits(network, "b.com:80")


NOT_PUBLIC = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),
    *("169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "168.63.129.16"),
    *("::", "::1", "64:ff9b::808:808", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:10::1"),
    *(
        "2001:db8::1",
        "2002:a00:1::",
        "2002:808:808::1",
        "3fff::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
    ),
    *("ff02::1", "::a00:1"),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_n06_n09_addresses_that_are_not_public_are_not_reached(address):
    """Neither behind an allowed name, nor beside a public address, nor as such, nor under everything public."""
    target = f"[{address}]:443" if ":" in address else f"{address}:443"

    for network in (Network(internet=True), Network(allow=["api.example.com"])):
        assert not admits(network, "api.example.com:443", address)
        assert not admits(network, "api.example.com:443", "8.8.8.8", address)
        assert not admits(network, target, address)


def test_n06_a_mapped_address_is_no_address_of_anybody():
    """As the resolver could give it, past the reader."""
    import ipaddress

    policy, target = (
        EgressPolicy(Network(internet=True, allow=["127.0.0.1:443"])),
        Target("a.example.com", 443),
    )

    for text in ("::ffff:127.0.0.1", "::ffff:8.8.8.8"):
        with pytest.raises(RefusedError):
            policy.admit_address(target, ipaddress.ip_address(text))


def test_n09_private_networks_are_listed_and_neighbours_one_by_one():
    """A network that holds the loopback or a metadata service does not list them."""
    wide = Network(allow=["a.com", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16"])
    assert admits(wide, "a.com:443", "10.9.8.7")
    assert not admits(wide, "a.com:443", "127.0.0.1")
    assert not admits(wide, "a.com:443", "169.254.169.254")

    one = Network(allow=["a.com", "127.0.0.1", "169.254.169.254:80"])
    assert admits(one, "a.com:443", "127.0.0.1")
    assert admits(one, "169.254.169.254:80")
    assert not admits(one, "a.com:443", "169.254.169.254")


def test_n05_everything_public_is_the_web():
    """No other ports, no names that mean something at home."""
    network = Network(internet=True)
    assert admits(network, "example.com:443", "8.8.8.8", "2606:4700::1111")
    assert admits(network, "8.8.8.8:80")

    for text in (
        "example.com:22",
        "example.com:25",
        "8.8.8.8:53",
        "localhost:80",
        "printer.local:80",
        "db:443",
    ):
        assert not admits(network, text)

    assert not admits(network, "metadata.google.internal:80")


def test_hosts_are_addresses_of_names():
    """They are read like any other, and need to be allowed like any other."""
    network = Network(allow=["news.example"], hosts={"NEWS.example.": "10.0.0.1"})
    assert dict(network.hosts) == {"news.example": "10.0.0.1"}
    assert str(EgressPolicy(network).known_address("news.example")) == "10.0.0.1"

    for wrong in (
        {"a b": "10.0.0.1"},
        {"a": "b"},
        {"a": "::ffff:1.2.3.4"},
        {"10.0.0.1": "10.0.0.2"},
        {"a": 7},
    ):
        with pytest.raises(InvalidArgumentError):
            Network(hosts=wrong)


def test_n14_secrets_are_not_shown():
    """Not in the text, not in what is shown of a sandbox, not in an error; what was shown can be given back."""
    network = Network(
        allow=["api.example.com"], secrets={"api.example.com": {"Authorization": "Bearer hush"}}
    )
    assert "hush" not in repr(network)
    shown = network.without_secrets()
    assert "hush" not in str(as_data(shown))
    assert shown.with_secrets_of(network) == network

    with pytest.raises(InvalidArgumentError) as caught:
        Network(secrets={"api.example.com": {"Authorization": "Bearer hush\r\nX: y"}})

    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "secrets",
    [
        {"10.0.0.1": {"A": "b"}},
        {"https://a.com": {"A": "b"}},
        {"*.a.com": {"A": "b"}},
        {"a.com": {}},
        {"a.com": {"Host": "b"}},
        {"a.com": {"Transfer-Encoding": "chunked"}},
        {"a.com": {"A b": "c"}},
        {"a.com": {"A": "b\nc"}},
        {"a.com": {"A": "ü"}},
        {"a.com": "b"},
    ],
)
def test_n14_a_secret_goes_to_one_host_in_one_header(secrets):
    """No star, no address, nothing that says where a request goes or ends."""
    with pytest.raises(InvalidArgumentError):
        Network(secrets=secrets)


def test_a_network_crosses_process_borders():
    """As data, and between processes of the same program."""
    network = Network(
        allow=["a.com", "10.0.0.0/8:5432"],
        deny=["b.com"],
        presets=["pip"],
        hosts={"a.com": "10.0.0.1"},
        secrets={"a.com": {"X-Key": "v"}},
        max_bytes=5,
    )
    assert read_value(Network, as_data(network)) == network
    assert [rule.text for rule in network.not_public()] == ["10.0.0.0/8:5432"]
    assert Network.pip() == Network(presets=["pip"])
    assert pickle.loads(pickle.dumps(network)) == network


def test_what_a_server_lets_be_listed():
    """Rules for addresses that are not public, each within one of those that are allowed."""
    asked = Network(allow=["a.com", "8.8.8.8", "10.1.0.0/16:5432", "10.2.0.7"])
    assert lists_only(asked, []) == "10.1.0.0/16:5432"
    assert lists_only(asked, ["10.1.0.0/16"]) == "10.2.0.7"
    assert lists_only(asked, ["10.0.0.0/8"]) is None
    assert lists_only(asked, ["10.0.0.0/8:5432"]) == "10.2.0.7"
    assert lists_only(Network(allow=["10.0.0.0/8"]), ["10.1.0.0/16"]) == "10.0.0.0/8"
