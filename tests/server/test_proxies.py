"""A server behind nginx and Caddy, with TLS, by the very configurations that the guide shows.

Each configuration is read from the guide; only the addresses to listen on, the domain and the paths of certificates are
replaced. Names below the domain lead to this machine, and its certificate is trusted, for as long as a test runs.
"""

from __future__ import annotations

import datetime
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.tied import tied

from fumehood import Sandbox
from fumehood.assemble import remote_backend
from fumehood.port.backend import Backend
from fumehood.portal import call

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "behind-a-proxy.md"
_GUIDES_DOMAIN = "sandboxes.example.org"
# Clients with resolvers of their own, as E2B's, lead names below it to this machine.
_DOMAIN = "sandboxes.localhost"
_FORGED = "203.0.113.77"
_CERTIFICATES = "/etc/ssl/fumehood"
_START_SECONDS = 30
_PROGRAM_SECONDS = 120
_E2B_PROGRAM = """
from e2b_code_interpreter import Sandbox

with Sandbox.create(timeout=60) as sandbox:
    heard = []
    execution = sandbox.run_code("print('e2b'); 1 + 1", on_stdout=lambda message: heard.append(message.line))
    assert execution.error is None, execution.error
    print("".join(heard), execution.text, sandbox.commands.run("echo there").stdout)
    sandbox.files.write("/home/user/a.txt", "text")
    print(sandbox.files.read("/home/user/a.txt"))
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a certificate."""
    pytest.importorskip("cryptography", reason="needs the extra `egress`")
    folder = tmp_path_factory.mktemp("certificates")
    _make_certificate(folder)
    return folder


@pytest.fixture(
    params=[
        pytest.param(
            "nginx",
            marks=pytest.mark.skipif(not shutil.which("nginx"), reason="needs the program nginx"),
        ),
        pytest.param(
            "caddy",
            marks=pytest.mark.skipif(not shutil.which("caddy"), reason="needs the program caddy"),
        ),
    ]
)
def proxied(request, start_server, certificates, tmp_path, monkeypatch) -> Iterator[tuple[str, str]]:
    """The address of a server behind a proxy, and the token of its owner."""
    server = start_server(domain=_DOMAIN, allowed_hosts=_DOMAIN, trusted_proxies="127.0.0.1", pool_size=1)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "authority.pem"))
    resolve = socket.getaddrinfo

    def lead_here(host, *others, **more):
        name = host.decode() if isinstance(host, bytes) else host
        return resolve("127.0.0.1" if name and name.endswith(_DOMAIN) else host, *others, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lead_here)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    text = _shown(request.param).replace("127.0.0.1:8765", urlsplit(server.url).netloc)
    text = text.replace(_CERTIFICATES, str(certificates)).replace(_GUIDES_DOMAIN, _DOMAIN)
    process = (_start_nginx if request.param == "nginx" else _start_caddy)(text, port, tmp_path)
    try:
        _wait_until_open(process, port)
        yield f"https://{_DOMAIN}:{port}", server.token
    finally:
        process.terminate()
        process.communicate(timeout=_START_SECONDS)

    assert _FORGED not in "".join(server.said)


def test_all_ways_in_lead_through_the_proxy(proxied, monkeypatch):
    """A request, a stream in time, a large upload, a port by host name and by a tunnel, E2B's SDK."""
    url, token = proxied
    monkeypatch.setenv("E2B_API_URL", url)
    monkeypatch.setenv("E2B_SANDBOX_URL", url)
    monkeypatch.setenv("E2B_API_KEY", token)
    headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": _FORGED}

    with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        done = client.post("/v1/execute", json={"code": "6 * 7"})
        assert done.status_code == 200
        assert '"42"' in done.text

    backend = remote_backend(url, token)

    with Sandbox(backend=backend) as sandbox:
        _check_stream(sandbox)
        sandbox.files.write("large", b"x" * (3 << 20))
        assert sandbox.files.get_info("large").size_bytes == 3 << 20
        _check_ports(sandbox, backend, url, token)

    _check_e2b()


def _check_e2b() -> None:
    """In a process of its own: that client reads authorities and addresses once in a process."""
    done = subprocess.run(
        [sys.executable, "-c", _E2B_PROGRAM], capture_output=True, text=True, timeout=_PROGRAM_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["e2b", "2", "there", "text"]


def _check_stream(sandbox: Sandbox) -> None:
    """The code waits for an answer to what it has written: it goes on only if output comes at once."""
    answers = []
    execution = sandbox.run_code(
        "print('first', flush=True); name = input('who? '); print('hello', name)",
        on_stdout=answers.append,
        on_input=lambda _question: "Ada" if "first" in "".join(map(str, answers)) else "too early",
    )
    assert "hello Ada" in "".join(execution.logs.stdout)


def _check_ports(sandbox: Sandbox, backend: Backend, url: str, token: str) -> None:
    """A web server inside answers by its host name, and a WebSocket carries a tunnel to it."""
    sandbox.run_code(
        "import http.server, threading\n"
        "class Hello(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'inside')\n"
        "    def log_message(self, *_): pass\n"
        "served = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Hello)\n"
        "threading.Thread(target=served.serve_forever, daemon=True).start()"
    )
    name = f"8000-{sandbox.id}.{_DOMAIN}:{urlsplit(url).port}"
    assert httpx2.get(f"https://{name}/", timeout=30).status_code in (401, 403)
    assert httpx2.get(f"https://{name}/", headers={"X-API-Key": token}, timeout=30).text == "inside"

    tunnel = call(backend.open_port, sandbox.id, 8000)
    call(tunnel.write, b"GET / HTTP/1.0\r\n\r\n")
    received = b""

    while piece := call(tunnel.read):
        received += piece

    call(tunnel.close)
    assert received.endswith(b"inside")


def _shown(program: str) -> str:
    """Returns the configuration that the guide shows for a program."""
    heading = {"nginx": "\n## nginx\n", "caddy": "\n## Caddy\n"}[program]
    section = _GUIDE.read_text(encoding="utf-8").partition(heading)[2]
    found = re.search(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def _start_nginx(text: str, port: int, folder: Path) -> subprocess.Popen[str]:
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    around = f"daemon off; pid {folder}/nginx.pid; error_log stderr warn; user root;\nevents {{}}\n"
    file = folder / "nginx.conf"
    file.write_text(f"{around}http {{ access_log off;\n{paths}{text}}}\n", encoding="utf-8")
    argv = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(file)]
    return subprocess.Popen(tied(argv), stderr=subprocess.PIPE, text=True)


def _start_caddy(text: str, port: int, folder: Path) -> subprocess.Popen[str]:
    file = folder / "Caddyfile"
    options = f"{{\n    admin off\n    auto_https disable_redirects\n    https_port {port}\n}}\n"
    file.write_text(options + text, encoding="utf-8")
    envs = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    argv = [str(shutil.which("caddy")), "run", "--config", str(file), "--adapter", "caddyfile"]
    return subprocess.Popen(tied(argv), stderr=subprocess.PIPE, text=True, env=envs)


def _wait_until_open(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS

    while True:
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError("the proxy did not start:\n" + process.stderr.read())

        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise

            time.sleep(0.02)
        else:
            return


def _make_certificate(folder: Path) -> None:
    """Writes a certificate for the domain and its wildcard, its key, and the authority that has signed it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name, name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("test authority", _DOMAIN)
    )
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(_DOMAIN), x509.DNSName(f"*.{_DOMAIN}")])
    encoding = serialization.Encoding.PEM

    for file, subject, own_key, extension in (
        ("authority.pem", authority_name, authority_key, x509.BasicConstraints(ca=True, path_length=0)),
        ("fullchain.pem", name, key, names),
    ):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(own_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, file == "authority.pem")
            .sign(authority_key, hashes.SHA256())
        )
        (folder / file).write_bytes(certificate.public_bytes(encoding))

    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "privkey.pem").write_bytes(secret)
