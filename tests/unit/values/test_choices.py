"""What callers may write for limits and networks in place of the values themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fumehood import InvalidArgumentError, Limits, Network, Sandbox, run_code
from fumehood.bounds import BOUNDS, GIB, MIB
from fumehood.cli.options import read_network_words
from fumehood.values.limits import LimitFields, read_limits
from fumehood.values.network import read_network


@pytest.mark.parametrize(
    ("size", "count"), [("2G", 2 * GIB), ("512m", 512 * MIB), ("1.5 GiB", 3 * GIB // 2), (2 * GIB, 2 * GIB)]
)
def test_sizes_are_text_or_bytes(size, count):
    """`memory` and `disk` take a size with its unit."""
    assert Limits(memory=size).memory_bytes == count
    assert Limits(disk=size).disk_bytes == count


@pytest.mark.parametrize("size", ["", "2", "2X", "-2G", "1e9", "٢G", "9" * 40, True, 2.5, "1K", "99999T"])
def test_other_sizes_are_refused(size):
    """What is no size, or none that is allowed, is named."""
    with pytest.raises(InvalidArgumentError, match=r"limits\.memory"):
        Limits(memory=size)


def test_one_limit_is_said_once():
    """Both names of a limit together are refused, and a limit that exists can be changed."""
    with pytest.raises(InvalidArgumentError, match=r"limits\.memory='2G' is refused"):
        Limits(memory="2G", memory_bytes=GIB // 2)

    limits = Limits(memory="2G")
    assert replace(limits, memory_bytes=GIB // 2).memory_bytes == GIB // 2
    assert replace(limits, processes=9).memory_bytes == 2 * GIB
    assert limits == Limits(memory_bytes=2 * GIB)


def test_limits_are_read_from_a_mapping():
    """Names are those of `Limits`; another one is answered with the one that was meant."""
    assert read_limits({"memory": "2G", "wall_seconds": 5}) == Limits(memory_bytes=2 * GIB, wall_seconds=5)
    assert read_limits(None) == Limits()

    with pytest.raises(InvalidArgumentError, match="limits='memry' is refused") as refused:
        read_limits({"memry": "2G"})

    assert "did you mean 'memory'?" in refused.value.hint

    with pytest.raises(InvalidArgumentError, match="limits='2G' is refused"):
        read_limits("2G")


def test_limits_are_named_one_by_one():
    """As arguments of `Sandbox`: they replace what `limits` says, and another name is refused as Python does."""
    given = Limits(memory="1G", processes=9)
    assert read_limits(given, {"memory": "2G"}) == Limits(memory="2G", processes=9)
    assert read_limits(given, {"memory_bytes": 2 * GIB}) == Limits(memory="2G", processes=9)
    assert read_limits({"disk": "1G"}, {"cpu_cores": 1}) == Limits(disk="1G", cpu_cores=1)
    assert set(LimitFields.__annotations__) == {*BOUNDS, "memory", "disk"}

    with pytest.raises(TypeError, match=r"unexpected keyword argument 'memroy'.*did you mean 'memory'\?"):
        Sandbox(memroy="2G")

    with pytest.raises(TypeError, match=r"unexpected keyword argument 'image'.*'2G'$"):
        run_code("1", image="python")

    with pytest.raises(InvalidArgumentError, match=r"limits\.memory='2X' is refused"):
        Sandbox(memory="2X")

    with pytest.raises(InvalidArgumentError) as refused:
        Limits(memory_bytes="2G")

    assert refused.value.hint.endswith("; memory='2G' takes a size")


def test_networks_are_words_and_lists():
    """One word, or a list of words and rules."""
    assert read_network("pip") == Network.pip()
    assert read_network(["api.example.com", "pip"]) == Network(allow=["api.example.com"], presets=["pip"])
    assert read_network([]) == read_network(["none"]) == Network()
    assert read_network(("internet",)) == Network(internet=True)
    assert [read_network(word).level for word in ("none", "pip", ["example.com"], "internet")] == [
        "none",
        "pip",
        "listed",
        "internet",
    ]


@pytest.mark.parametrize(
    ("word", "meant"), [("pipp", "pip"), ("interent", "internet"), ("Internet", "internet")]
)
def test_a_mistyped_network_is_asked_about(word, meant):
    """By Python, alone or in a list, and by the command line: a name without a dot would be a host otherwise."""
    for read in (
        lambda: read_network(word),
        lambda: read_network([word]),
        lambda: read_network_words([word]),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            read()

        assert refused.value.hint.endswith(f"; did you mean {meant!r}?")


def test_the_command_line_takes_hosts_without_a_dot_only_with_a_port():
    """So `--network pipp` is not taken for a host."""
    words = ["localhost", "wiki:80", "::1", "api.example.com"]
    assert list(read_network_words(words).allow) == words

    with pytest.raises(InvalidArgumentError, match="--network='wiki' is refused"):
        read_network_words(["wiki"])


@pytest.mark.parametrize("word", ["packages", "all", 7, True, ["http://example.com"], [7], {"allow": []}])
def test_other_networks_are_refused(word):
    """What is no network is refused."""
    with pytest.raises(InvalidArgumentError, match="network"):
        read_network(word)
