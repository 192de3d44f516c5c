"""Hostile images: what their archives try, with the same archive and a trusting unpacker as the control."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import os
import socket
import stat
import tarfile
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from tests.image_layouts import Entry, Layout, busybox_layer, needs_program, tar_of

from fumehood import ImageError, InvalidArgumentError, Network, TemplateStoreError
from fumehood.templates.images import pull as pull_module
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.dockerfile import read_dockerfile
from fumehood.templates.images.layers import LayerStore, delete_tree
from fumehood.templates.images.pull import UnpackBounds, pull
from fumehood.templates.images.reference import read_reference
from fumehood.templates.images.registry import RegistrySource
from fumehood.templates.images.source import BuildSettings, DockerfileSource
from fumehood.templates.images.step_group import why_not
from fumehood.templates.images.workbench import StepLimits


class Target:
    """An image that is made of one archive, a folder outside that it wants to reach, and the store."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder / "layout")
        self.store = LayerStore(str(folder / "layers"))
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("secret")

    def pull(self, archive: bytes, bounds: UnpackBounds | None = None) -> None:
        self.layout.add([archive])

        with self.store.in_use():
            pull(
                read_reference(f"oci:{self.layout.folder}"),
                self.store,
                RegistryLogins({}),
                say=print,
                bounds=bounds,
            )

    def is_untouched(self) -> bool:
        """Nothing has come to the outside, and nothing is left in the store."""
        left = set(os.listdir(self.layout.folder.parent / "layers")) - {".lock"}
        return (
            os.listdir(self.outside) == ["secret"]
            and (self.outside / "secret").read_text() == "secret"
            and not left
        )


@pytest.fixture
def target(tmp_path) -> Target:
    return Target(tmp_path)


def unpack_trustingly(archive: bytes, folder: Path) -> None:
    """As programs did that have had a CVE for it."""
    folder.mkdir(parents=True)

    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        opened.extractall(folder, filter="fully_trusted")


def escapes(outside: Path) -> dict[str, bytes]:
    """Archives that write `escaped` into a folder, or link to `secret` in it: for a trusting unpacker."""
    up = f"../../{outside.name}"
    return {
        "dots": tar_of([Entry(f"{up}/escaped", b"x")]),
        "a link": tar_of([Entry("a", link=str(outside)), Entry("a/escaped", b"x")]),
        "a link through a link": tar_of(
            [Entry("a", link="b"), Entry("b", link=f"{up}"), Entry("a/escaped", b"x")]
        ),
        "a link in the place of a folder": tar_of(
            [Entry("a"), Entry("a/b"), Entry("a", link=str(outside)), Entry("a/escaped", b"x")]
        ),
        "a hard link outside": tar_of([Entry("h", hard_link=f"{up}/secret"), Entry("h", b"x")]),
        "a hard link through a link": tar_of(
            [Entry("a", link=str(outside)), Entry("h", hard_link="a/secret"), Entry("h", b"x")]
        ),
    }


@pytest.mark.parametrize("how", escapes(Path("outside")))
def test_no_archive_writes_outside_of_its_layer(target, how):
    """Names with dots, links and hard links that lead out are refused, and the host is as it was."""
    with pytest.raises(ImageError, match=r"leaves the image|leads through|does not have"):
        target.pull(escapes(target.outside)[how])

    assert target.is_untouched()


@pytest.mark.parametrize("how", ["dots", "a link", "a link through a link"])
def test_a_trusting_unpacker_would_write_outside(target, tmp_path, how):
    """The control: the same archives do reach the folder outside."""
    unpack_trustingly(escapes(target.outside)[how], tmp_path / "level" / "naive")
    assert (target.outside / "escaped").read_text() == "x"


def test_a_layer_that_grows_without_end_is_stopped(target):
    """A gzip bomb is stopped when it has grown beyond what real layers do; the control says how large it is."""
    bomb = tar_of([Entry("zeros", bytes(64 << 20))])
    assert len(gzip.compress(bomb, 1)) * 100 < len(bomb)

    with pytest.raises(ImageError, match=r"larger than .* bytes when it is unpacked"):
        target.pull(bomb, UnpackBounds(free_growth_bytes=1 << 20))

    assert target.is_untouched()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["index.json", "a layer"])
@pytest.mark.parametrize("how", ["fifo", "link"])
def test_a_layout_holds_regular_files_alone(target, name, how):
    """A FIFO in the place of a file would block the pull for ever, and a link would have it read another file."""
    target.layout.add([tar_of([Entry("a", b"x")])])
    manifest = json.loads(target.layout.path(target.layout.tags["latest"]["digest"]).read_bytes())
    path = (
        target.layout.folder / name
        if name == "index.json"
        else target.layout.path(manifest["layers"][0]["digest"])
    )
    kept = path.rename(target.outside.parent / "kept")

    if how == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(kept)

    with target.store.in_use(), pytest.raises(ImageError):
        pull(read_reference(f"oci:{target.layout.folder}"), target.store, RegistryLogins({}), say=print)

    # The control.
    path.unlink()
    kept.rename(path)

    with target.store.in_use():
        pull(read_reference(f"oci:{target.layout.folder}"), target.store, RegistryLogins({}), say=print)


class Dripping:
    """A registry that sends a byte now and then, within a head or a body, and never comes to an end."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return

            with sock, suppress(OSError):
                sock.recv(1 << 16)
                sock.sendall(self._head)

                while not self._is_over.wait(0.02):
                    sock.sendall(b"x")

    def close(self) -> None:
        self._is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _read_all(source: RegistrySource, digest: str) -> None:
    with source.open_blob(digest) as blob:
        while blob.read(100):
            pass


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n"]
)
def test_a_registry_that_drips_is_left(head):
    """Each byte comes within the time-out of a read; a manifest, and all content together, have a time of their own."""
    registry = Dripping(head)
    try:
        reference = read_reference(f"{registry.host}/a")
        source = RegistrySource(reference, None, seconds=(0.3, 0.3))

        with pytest.raises(ImageError, match=r"took longer than 0\.3 s for manifests latest"):
            source.read_manifest("latest")

        with pytest.raises(ImageError, match="took longer than"):
            _read_all(source, f"sha256:{'0' * 64}")
    finally:
        registry.close()


def test_a_tree_is_deleted_whatever_its_depth_and_modes(tmp_path):
    """No link in it is followed, and no function calls itself once for each folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o555)
    (tmp_path / "tree").mkdir()
    fd = os.open(tmp_path / "tree", os.O_RDONLY)

    for _ in range(1500):
        os.symlink(outside, "link", dir_fd=fd)
        os.mkdir("inner", dir_fd=fd)
        inner = os.open("inner", os.O_RDONLY, dir_fd=fd)
        os.chmod(fd, 0o500)
        os.close(fd)
        fd = inner

    os.close(fd)
    delete_tree(str(tmp_path / "tree"))
    delete_tree(str(tmp_path / "tree"))
    assert os.listdir(tmp_path) == ["outside"]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o555


def test_a_layer_with_a_million_entries_is_stopped(target):
    """Neither memory nor inodes of the host can be used up by empty files; the control has as many as are allowed."""
    archive = tar_of([Entry(f"d{number}/e", b"") for number in range(150)])

    with pytest.raises(ImageError, match="more than 100 entries"):
        target.pull(archive, UnpackBounds(max_entries=100))

    assert target.is_untouched()
    assert UnpackBounds().max_entries < 1_000_000
    target.pull(archive, UnpackBounds(max_entries=150))


def test_a_header_that_takes_all_memory_is_stopped(target, monkeypatch):
    """The unpacker has a bounded memory: an archive whose names fill it is refused, and the host goes on."""
    monkeypatch.setattr(pull_module, "_MEMORY_BYTES", 160 << 20)
    header = io.BytesIO()

    with tarfile.open(fileobj=header, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("x" * (40 << 20)))

    with pytest.raises(ImageError, match="takes too much memory"):
        target.pull(header.getvalue())

    assert target.is_untouched()


def test_the_unpacker_sees_nothing_of_the_host(target):
    """Its root is the layer: a path of the host leads into the image, where there is no such file."""
    archive = tar_of([Entry("proc"), Entry("proc/self", link="/etc"), Entry("proc/self/shadow", b"x")])

    with pytest.raises(ImageError, match="leads through 'self'"):
        target.pull(archive)

    target.pull(tar_of([Entry("etc"), Entry("etc/shadow", b"x"), Entry("link", link="/etc/shadow")]))
    assert not (target.outside / "shadow").exists()


# -- steps of a build


class Steps:
    """Builds from a small system, with no template made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layout = Layout(folder / "layout")
        self.store = LayerStore(str(folder / "layers"))
        self.heard: list[str] = []

    def run(self, line: str, *, network: Network | None = None, layer: bytes | None = None) -> str:
        """Run a step, and return what it wrote."""
        self.layout.add([layer or busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
        text = f"FROM oci:{self.layout.folder}:tiny\nRUN {line}\n"
        settings = BuildSettings(network=network or Network(), image=f"oci:{self.layout.folder}:tiny")
        source = DockerfileSource(
            read_dockerfile(text), "Dockerfile", self.store, RegistryLogins({}), settings
        )
        self.heard.clear()

        with self.store.in_use():
            source.prepare("tiny", self.heard.append)

        return "\n".join(one.removeprefix("  | ") for one in self.heard if one.startswith("  | "))


@pytest.fixture
def steps(tmp_path) -> Steps:
    return Steps(tmp_path)


def test_a_step_reaches_no_file_of_the_host(steps):
    """It sees its image, a small /dev, and its own processes; the control reads the same file outside."""
    secret = steps.folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    assert secret.read_text() == "secret"

    said = steps.run(
        f"cat {secret} /proc/1/root{secret} /proc/self/root{secret} 2>&1; ls /dev; ps | wc -l; "
        "cat /proc/1/environ /proc/1/mem 2>&1 | head -c 300; echo; grep -c . /proc/self/mounts"
    )
    assert "secret\n" not in said
    assert said.count("No such file") + said.count("Permission denied") >= 3
    assert {"null", "zero", "sda", "vda", "mem", "kvm"} & set(said.split()) == {"null", "zero"}


def test_a_step_gains_nothing_by_calls_of_root(steps):
    """Root of a step is nobody on the host: it mounts nothing, and makes no device."""
    said = steps.run(
        "mount -t tmpfs none /tmp 2>&1; mount -t proc none /proc 2>&1; mknod /dev/sda b 8 0 2>&1; "
        "cat /dev/sda 2>&1; echo x > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger; "
        "kill -9 1; echo still here; grep -E 'Seccomp:|NoNewPrivs' /proc/self/status"
    )
    assert said.count("permission denied") + said.count("ermitted") + said.count("No such") >= 3, said
    assert "still here" in said
    assert said.endswith("NoNewPrivs:\\t1\nSeccomp:\\t2")


@pytest.mark.parametrize("network", [Network(), Network(internet=True)], ids=["none", "internet"])
def test_a_step_reaches_no_server_of_the_host(steps, network):
    """Neither directly nor through the proxy; the control reaches it, and a rule that names it lets a step."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        url = f"http://127.0.0.1:{port}/"
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
                assert answer.read() == b"greeting"

            said = steps.run(
                f"wget -q -O - {url} 2>&1; no_proxy= NO_PROXY= wget -q -O - {url} 2>&1; true", network=network
            )
            assert "greeting" not in said
            assert said

            if network.internet:
                named = Network(allow=[f"127.0.0.1:{port}"])
                line = f"no_proxy= NO_PROXY= wget -q -O - {url} 2>&1; true"
                assert steps.run(line, network=named) == "greeting"
        finally:
            server.shutdown()


class _Greeting(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"greeting")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", ["proc", "dev", "sys", "etc", "var", "run"])
def test_links_in_the_place_of_system_folders_lead_nowhere(steps, name):
    """Where the jail mounts and makes folders, a link of the image leads into the image, never to the host."""
    outside = steps.folder / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    hostile = busybox_layer() if name != "etc" else tar_of(
        [Entry("bin"), Entry("bin/sh", Path(needs_program("busybox")).read_bytes())]
    )  # fmt: skip
    steps.layout.add([hostile], tag="tiny")
    link = tar_of([Entry(name, link=str(outside))])

    try:
        steps.run("echo ran", layer=_joined(hostile, link))
    except TemplateStoreError:
        pass

    assert os.listdir(outside) == []


@pytest.mark.parametrize(
    ("name", "link"), [("sys", ".."), ("var", ".."), ("etc", "/..{outside}"), ("proc", "../..")]
)
def test_a_link_above_the_root_opens_no_way_to_the_host(steps, name, link):
    """The old root lies on the new one for a moment, and `..` at the top leads to it: such an image is refused."""
    outside = steps.folder / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    secret = steps.folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    # Control: without such a link a step runs, and the folder above its root is its root.
    assert steps.run(f"echo ran; cat /..{secret} 2>&1; ls /../sys").startswith("ran\n")
    assert "secret\n" not in "\n".join(steps.heard)
    hostile = tar_of([Entry(name, link=link.format(outside=outside))])

    with pytest.raises(TemplateStoreError):
        steps.run(f"echo ran; cat /..{secret}", layer=_joined(busybox_layer(), hostile))

    assert "secret" not in "\n".join(one for one in steps.heard if one.startswith("  | "))
    assert os.listdir(outside) == []


def test_a_sparse_file_fills_no_disk(target):
    """Its zeros are in no byte of the archive, so that no bound of the archive counts them."""
    written = io.BytesIO()

    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo("large")
        entry.size = 512
        entry.pax_headers = {
            "GNU.sparse.size": str(1 << 50),
            "GNU.sparse.numblocks": "1",
            "GNU.sparse.map": "0,512",
        }
        archive.addfile(entry, io.BytesIO(bytes(512)))

    with pytest.raises(ImageError, match="sparse"):
        target.pull(written.getvalue())

    assert target.is_untouched()


@pytest.mark.parametrize("grows", ["another", "heads", "entries", "nothing"])
def test_an_upload_is_bounded_as_it_is_unpacked(steps, grows):
    """Also by what no COPY names: a few kilobytes that are packed would be unpacked for hours."""
    written = io.BytesIO()

    with tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as archive:
        if grows == "heads":
            entry = tarfile.TarInfo("other")
            entry.pax_headers = {"comment": "x" * (24 << 20)}
            archive.addfile(entry)

        for number in range(3000 if grows == "entries" else 1):
            entry = tarfile.TarInfo(f"other{number}")
            entry.size = 24 << 20 if grows == "another" else 1
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))

        archive.addfile(tarfile.TarInfo("wanted"))

    upload = steps.folder / "upload"
    upload.write_bytes(written.getvalue())
    assert upload.stat().st_size < 1 << 20
    image = f"oci:{steps.layout.folder}:tiny"
    steps.layout.add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
    dockerfile = read_dockerfile(f"FROM {image}\nCOPY --from=upload:one wanted /wanted\n", "Dockerfile")
    limits = StepLimits(max_bytes=8 << 20, max_entries=2000)
    settings = BuildSettings(limits=limits, image=image, uploads={"one": str(upload)})
    source = DockerfileSource(dockerfile, "Dockerfile", steps.store, RegistryLogins({}), settings)

    with steps.store.in_use():
        if grows == "nothing":
            # The control.
            source.prepare("tiny", steps.heard.append)
            return

        with pytest.raises(TemplateStoreError, match="bounds: it has more than"):
            source.prepare("tiny", steps.heard.append)


def _joined(*archives: bytes) -> bytes:
    """One archive with the entries of several."""
    written = io.BytesIO()

    with tarfile.open(fileobj=written, mode="w") as joined:
        for archive in archives:
            with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
                for entry in opened:
                    joined.addfile(entry, opened.extractfile(entry) if entry.isreg() else None)

    return written.getvalue()


def test_a_step_that_writes_or_runs_without_end_is_stopped(steps):
    """Time and space of a step are bounded, and nothing of it stays."""
    image = f"oci:{steps.layout.folder}:tiny"
    text = f"FROM {image}\nRUN sleep 1000\n"
    steps.layout.add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
    settings = BuildSettings(limits=StepLimits(seconds=1.0), image=image)
    source = DockerfileSource(read_dockerfile(text), "Dockerfile", steps.store, RegistryLogins({}), settings)

    with steps.store.in_use(), pytest.raises(TemplateStoreError, match="ran longer than 1 s"):
        source.prepare("tiny", steps.heard.append)

    assert not any(name.startswith(".new-") for name in os.listdir(steps.store.folder))


@pytest.mark.parametrize(
    "text",
    ["FROM {image}", "ARG BASE={image}\nFROM $BASE", "FROM scratch\nCOPY --from={image} /bin /bin"],
)
def test_a_dockerfile_names_no_image_of_this_machine(steps, text):
    """A stranger's would read an archive of its user; the control is the same image, which the caller names."""
    image = f"oci:{steps.layout.folder}:tiny"
    steps.layout.add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
    dockerfile = read_dockerfile(f"{text.format(image=image)}\n", "Dockerfile")

    def prepare(settings: BuildSettings) -> None:
        source = DockerfileSource(dockerfile, "Dockerfile", steps.store, RegistryLogins({}), settings)

        with steps.store.in_use():
            source.prepare("tiny", steps.heard.append)

    with pytest.raises(InvalidArgumentError, match="image of a registry"):
        prepare(BuildSettings())

    assert not any("pulling" in line for line in steps.heard)
    prepare(BuildSettings(arguments={"BASE": image}))
    prepare(BuildSettings(image=image))


def test_a_file_of_a_step_is_bounded_at_once(steps):
    """The look at what was written comes every ten seconds, in which a disk may be full."""
    image = f"oci:{steps.layout.folder}:tiny"
    steps.layout.add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
    text = f"FROM {image}\nRUN busybox dd if=/dev/zero of=/large bs=1M count=64\n"
    settings = BuildSettings(limits=StepLimits(max_bytes=8 << 20), image=image)
    source = DockerfileSource(
        read_dockerfile(text, "Dockerfile"), "Dockerfile", steps.store, RegistryLogins({}), settings
    )

    with steps.store.in_use(), pytest.raises(TemplateStoreError, match="ended with"):
        source.prepare("tiny", steps.heard.append)


def test_the_memory_of_a_step_is_bounded(steps):
    """By a control group, for all of its programs together; where there is none, the build says so."""
    image = f"oci:{steps.layout.folder}:tiny"
    steps.layout.add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
    line = "RUN busybox dd if=/dev/zero of=/dev/null bs=96M count=1"
    dockerfile = read_dockerfile(f"FROM {image}\n{line}\n", "Dockerfile")

    def prepare(memory_bytes: int) -> None:
        settings = BuildSettings(limits=StepLimits(memory_bytes=memory_bytes), image=image)
        DockerfileSource(dockerfile, "Dockerfile", steps.store, RegistryLogins({}), settings).prepare(
            "tiny", steps.heard.append
        )

    with steps.store.in_use():
        if why_not():
            prepare(64 << 20)
            assert any("has no bound here" in line for line in steps.heard)
            return

        with pytest.raises(TemplateStoreError, match=r"took more than 0\.0625 GiB of memory"):
            prepare(64 << 20)

        # The control.
        prepare(256 << 20)
