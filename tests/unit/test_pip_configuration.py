"""What pip is configured with, read from its own words and translated for uv."""

from __future__ import annotations

import pytest

from fumehood.pip_configuration import as_uv_envs, has_no_index, read_pip_configuration


def test_the_environment_goes_before_the_command_and_that_before_all_commands() -> None:
    said = (
        "global.index-url='a'\ninstall.index-url='b'\n:env:.index-url='c'\nlist.index-url='d'\nno setting\n"
    )
    assert read_pip_configuration(said) == {"index-url": "c"}
    assert read_pip_configuration(said.replace(":env:", "freeze")) == {"index-url": "b"}


def test_uv_gets_what_chooses_the_packages_and_no_more() -> None:
    settings = {
        "index-url": "https://user:secret@index.example/simple",
        "extra-index-url": "https://one.example/simple\nhttps://two.example/simple",
        "find-links": "/wheels https://three.example/links",
        "constraint": "/etc/constraints.txt",
        "trusted-host": "one.example",
        "cert": "/etc/certificates.pem",
        "timeout": "60",
        "quiet": "1",
    }
    assert as_uv_envs(settings) == {
        "UV_DEFAULT_INDEX": "https://user:secret@index.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/wheels,https://three.example/links",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_INSECURE_HOST": "one.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/etc/certificates.pem",
        "UV_HTTP_TIMEOUT": "60",
    }
    assert as_uv_envs({"quiet": "1"}) == {}


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("false", False), ("", False)])
def test_an_installation_without_an_index(value: str, expected: bool) -> None:
    assert has_no_index({"no-index": value}) is expected
    assert not has_no_index({})
