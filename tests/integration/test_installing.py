"""Packages are installed by one call, and by one argument of a one-shot run, from a real index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.package_index import package_index

from fumehood import CommandExitError, InvalidArgumentError, Network, Sandbox, run_code
from fumehood.egress import route


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """An index that pip of this machine is set to; gives a network that reaches it."""
    with package_index(tmp_path) as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        # What pip said before is kept for a minute.
        monkeypatch.setattr(route, "_asked", None)
        # It is not public, so it is listed by its address as well.
        yield Network(presets=["pip"], allow=[address.split("/")[2]])


def test_what_is_installed_can_be_imported(index: Network) -> None:
    """At once, in the context that runs already; pip's last words are in the error of what is not there."""
    with Sandbox(network=index) as sandbox:
        assert sandbox.run_code("import bouquet").error is not None
        sandbox.install("bouquet>=1")
        assert sandbox.run_code("import bouquet; bouquet.roses").text == "12"

        with pytest.raises(CommandExitError, match="nothing_like_it"):
            sandbox.install(["bouquet", "nothing_like_it"])


def test_a_denial_of_the_network_is_named(index: Network) -> None:
    """pip alone says that there is no such version."""
    network = Network(presets=["pip"], deny=["127.0.0.2"])

    with Sandbox(network=network) as sandbox, pytest.raises(CommandExitError) as failed:
        sandbox.install("bouquet")

    assert "the sandbox's network denied 127.0.0.2:" in failed.value.hint


def test_a_run_names_its_libraries(index: Network) -> None:
    """They are there before the code begins."""
    assert run_code("import bouquet; bouquet.roses", libraries=["bouquet"], network=index).text == "12"


@pytest.mark.parametrize("package", ["--upgrade", "-r x", "", " bouquet", "a\nb", "bouquet\n", 7])
def test_an_option_is_no_package(package: str) -> None:
    """Before a sandbox starts."""
    with pytest.raises(InvalidArgumentError, match="packages"):
        run_code("1", libraries=[package])


def test_nothing_is_installed_without_a_network() -> None:
    """The error says how to get one."""
    with Sandbox() as sandbox, pytest.raises(InvalidArgumentError, match="it has no network") as refused:
        sandbox.install("bouquet")

    assert "Sandbox(network='pip')" in refused.value.hint
