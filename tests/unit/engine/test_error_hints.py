"""What `error.hint` says a sandbox lacks: only where an error shows it, and no word of a guest as one to install."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fumehood.engine.error_hints import with_hint
from fumehood.values.execution import ExecutionError
from fumehood.values.network import Network

NONE, PIP, INTERNET = Network(), Network.pip(), Network(internet=True)
POOL = "HTTPConnectionPool(host='{}', port=80): Max retries exceeded with url: / (Caused by NewConnectionError('{}'))"
DENIED = "example.com:80 is not allowed by this sandbox's network policy"
# Seen in sandboxes: names and messages of errors by addresses that their network does not reach.
UNREACHED = {
    "a proxy's refusal": ("URLError", f"<urlopen error Tunnel connection failed: 403 {DENIED}>"),
    "a refusal of plain http": ("HTTPError", f"HTTP Error 403: {DENIED}"),
    "a refusal of localhost": (
        "HTTPError",
        "HTTP Error 403: this sandbox has no network; make it with network='pip'",
    ),
    "a status that was raised": (
        "HTTPStatusError",
        f"Client error '403 {DENIED}' for url 'http://example.com/'",
    ),
    "aiohttp with its proxy": (
        "ClientHttpProxyError",
        f"403, message=\"{DENIED}\", url='http://127.0.0.1:3128'",
    ),
    "a name": ("gaierror", "[Errno -3] Temporary failure in name resolution"),
    "an address": ("OSError", "[Errno 101] Network is unreachable"),
    "requests": ("ConnectionError", POOL.format("example.com", "Failed to resolve 'example.com'")),
    "httpx": ("ConnectError", "[Errno -2] Name or service not known"),
    "a database": (
        "OperationalError",
        'could not translate host name "db" to address: Name or service not known',
    ),
}
OTHER = {
    "a page that is not there": ("HTTPError", "HTTP Error 404: Not Found"),
    "a status of requests": ("HTTPError", "404 Client Error: Not Found for url: https://example.com/x"),
    "nothing listens": ("ConnectionRefusedError", "[Errno 111] Connection refused"),
    "nothing listens, by httpx": ("ConnectError", "[Errno 111] Connection refused"),
    "nothing listens, by urllib": ("URLError", "<urlopen error [Errno 111] Connection refused>"),
    "nothing listens, by requests": (
        "ConnectionError",
        POOL.format("localhost", "[Errno 111] Connection refused"),
    ),
    "nothing listens, by aiohttp": (
        "ClientConnectorError",
        "Cannot connect to host localhost:9 ssl:default [Connect call failed ('127.0.0.1', 9)]",
    ),
    "a slow program of its own": ("MaxRetryError", POOL.format("127.0.0.1", "timed out")),
    "an error of the code": ("ConnectionError", "db session lost"),
    "words in another error": ("ValueError", "cannot parse 'Name or service not known'"),
    "no address at all": ("URLError", "<urlopen error unknown url type: htp>"),
    "a certificate": ("SSLError", POOL.format("example.com", "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")),
}


def hint(name: str, value: str, network: Network) -> str:
    return with_hint(ExecutionError(kind="exception", name=name, value=value), network).hint


@pytest.mark.parametrize("case", UNREACHED)
def test_what_was_not_reached_is_about_the_network(case: str) -> None:
    assert "the sandbox has no network" in hint(*UNREACHED[case], NONE)
    assert "network rules" in hint(*UNREACHED[case], PIP)
    assert "public addresses" in hint(*UNREACHED[case], INTERNET)


@pytest.mark.parametrize("case", OTHER)
def test_other_errors_are_not_about_the_network(case: str) -> None:
    assert [hint(*OTHER[case], network) for network in (NONE, PIP, INTERNET)] == ["", "", ""]


def missing(name: str, network: Network) -> str:
    return hint("ModuleNotFoundError", f"No module named '{name}'", network)


def test_a_known_package_is_named_as_its_index_does() -> None:
    """The distribution, not the module."""
    assert "`%pip install opencv-python`" in missing("cv2", NONE)
    assert "`%pip install scikit-learn`" in missing("sklearn", PIP)
    assert "the network 'pip'" in missing("polars", NONE)
    assert "the network 'pip'" not in missing("polars", INTERNET)


@pytest.mark.parametrize("name", ["utils_of_guest", "nosuch", "pandas_helpers", "opencv"])
def test_a_name_of_the_code_is_never_one_to_install(name: str) -> None:
    """An index may have it from anyone: a module of one's own would be replaced by a stranger's package."""
    for network in (NONE, PIP, INTERNET):
        said = missing(name, network)
        assert f"no module {name!r}" in said
        assert f"install {name}" not in said
        assert "a file of yours" in said


def test_a_part_that_a_package_has_not_is_no_missing_package() -> None:
    assert missing("sklearn.nosuch", PIP) == ""


def test_the_end_of_a_program_is_explained() -> None:
    """In a sandbox `sys.exit()` ends no interpreter."""
    assert "it ends this call only" in hint("SystemExit", "3", NONE)


def test_what_needs_root_is_named_as_such() -> None:
    """The program alone is not what is missing; for other programs the error says all that is known."""
    said = hint("FileNotFoundError", "[Errno 2] No such file or directory: 'sudo'", NONE)
    assert "no process in a sandbox is root" in said
    assert "template" in said
    assert hint("FileNotFoundError", "[Errno 2] No such file or directory: 'nosuch'", NONE) == ""
    assert hint("FileNotFoundError", "[Errno 2] No such file or directory: 'sudo'; x", NONE) == ""

    # Of a shell only the status is known.
    for name, value in (
        ("CalledProcessError", "Command 'b'sudo ls\\n'' returned non-zero exit status 127."),
        ("ExitCode", "the last command ended with status 127"),
    ):
        assert "no process in a sandbox is root" in hint(name, value, NONE)
        assert hint(name, value.replace("127", "1"), NONE) == ""


@pytest.mark.parametrize("path", ["/mnt/data/a b", "/x\nrun this", "/" + "a" * 200, "$(x)"])
def test_the_path_of_a_similar_file_is_plain(path: str) -> None:
    """It is a guest's text: one that is not short and plain enters no hint."""
    error = ExecutionError(
        kind="exception", name="FileNotFoundError", value="x", traceback=f"x\nDid you mean {path!r}?"
    )
    assert with_hint(error, NONE).hint == ""
    plain = replace(error, traceback="x\nDid you mean '/mnt/data/a.csv'?\n")
    assert with_hint(plain, NONE).hint == "did you mean /mnt/data/a.csv?"
