"""Templates of Dockerfiles that a real buildah builds: `make test-images` installs it, and runs this."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_homes import make_home, remove_home, shared_interpreter
from tests.image_layouts import Layout, busybox_layer, needs_program

from fumehood import Sandbox, TemplateStoreError, build_template
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.port.backend import Backend
from fumehood.portal import Portal

from .launching import USER_ID, run_scene

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("EVERY_IMAGE"), reason="needs buildah, which `make test-images` installs"
    ),
    pytest.mark.timeout(300),
]
# What our own builder refuses by name.
_DOCKERFILE = """\
ARG BASE
FROM $BASE
ARG SECRET=none
RUN --mount=type=cache,target=/cache echo cached > /cache/file && cat /cache/file > /from-cache
RUN echo $SECRET > /secret
COPY note.txt /app/
WORKDIR /app
CMD ["sh"]
"""


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> Iterator[Path]:
    """A Dockerfile with a file beside it; buildah with a store of its own, which works within containers too."""
    needs_program("buildah")
    folder = tmp_path_factory.mktemp("buildah")
    home = make_home(folder / "home", shared_interpreter(tmp_path_factory))
    storage = folder / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n')
    Layout(folder / "layout").add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin"]})
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(_DOCKERFILE)
    (context / "note.txt").write_text("noted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUMEHOOD_HOME", str(home))
        patch.setenv("FUMEHOOD_POOL_SIZE", "0")
        patch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
        patch.setenv("BUILDAH_ISOLATION", "chroot")
        yield context

    remove_home(home)
    shutil.rmtree(folder / "graph", ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("place", [(), ("subordinate ids",)], ids=["one-id", "subordinate-ids"])
def test_an_ordinary_users_buildah_builds_a_template(context, tmp_path_factory, place):
    """With one id by what steps of ours do, where what takes others succeeds; the second build runs no step."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    make_home(folder / "home", shared_interpreter(tmp_path_factory))
    shutil.copytree(context, folder / "context")
    shutil.copytree(context.parent / "layout", folder / "layout")
    text = (
        (context / "Dockerfile")
        .read_text()
        .replace("COPY note", "RUN chown 7:7 /secret\nCOPY --chown=8:8 note")
    )
    (folder / "context" / "Dockerfile").write_text(text)

    for root, folders, names in os.walk(folder):
        for name in ("", *folders, *names):
            os.chown(os.path.join(root, name), USER_ID, USER_ID, follow_symlinks=False)

    folder.chmod(0o755)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Its own store, where its settings say.
            patch.delenv("CONTAINERS_STORAGE_CONF")
            patch.setenv("STORAGE_DRIVER", "vfs")
            seen = run_scene(
                "image_scenes.build_with_buildah",
                *(str(folder / "home"), str(folder / "context" / "Dockerfile"), f"oci:{folder}/layout:tiny"),
                ordinary=True,
                place=place,
            )
    finally:
        remove_home(folder)

    assert seen["said"] == "cached\nof a build\nnoted/home/user/app\n"
    assert seen["text"] == "42"
    assert any("Using cache" in line for line in seen["heard"])
    assert any("you have one user id" in line for line in seen["heard"]) == (not place)


@pytest.fixture(scope="module")
def backend(context) -> Iterator[Backend]:
    """An engine over the templates of these tests: that of the process may have been started over others."""
    portal = Portal()
    yield make_backend(EngineSettings(pool_size=0), portal)
    portal.close()


def _build(context: Path, **others: object) -> list[str]:
    """Builds, and returns what was said."""
    heard: list[str] = []
    arguments = {"BASE": f"oci:{context.parent}/layout:tiny"}
    build_template(
        "outside",
        dockerfile=str(context / "Dockerfile"),
        build_args=arguments,
        on_progress=heard.append,
        **others,
    )
    return heard


def test_what_buildah_builds_becomes_a_template(context, backend):
    """A step with a cache, which we refuse; again without a step, and after a change of what COPY takes."""
    heard = _build(context, builder="buildah")
    assert any("STEP 3/7: RUN --mount" in line for line in heard)

    with Sandbox("outside", backend=backend) as sandbox:
        assert sandbox.commands.run("cat /from-cache note.txt; pwd").stdout == "cached\nnoted/home/user/app\n"
        assert sandbox.run_code("6 * 7").text == "42"
        assert sandbox.get_info().isolation.missing == ()

    again = _build(context, builder=shutil.which("buildah"))
    assert any("Using cache" in line for line in again)
    assert again[-1].startswith("template 'outside' is up to date")
    (context / "note.txt").write_text("changed")
    _build(context, builder="buildah")

    with Sandbox("outside", backend=backend) as sandbox:
        assert sandbox.files.read("/app/note.txt") == "changed"


def test_what_buildah_refuses_is_an_error_with_its_words(context, backend):
    """A step that fails; the template that was there stays."""
    (context / "Dockerfile").write_text(f"{_DOCKERFILE}RUN echo of the step >&2; exit 3\n")

    with pytest.raises(TemplateStoreError, match=r"buildah ended with \d+: .*exit status 3"):
        _build(context, builder="buildah")

    with Sandbox("outside", backend=backend) as sandbox:
        assert sandbox.files.read("/from-cache") == "cached\n"
