"""Turns an image into the root of a template: its user, the Python for code, and the folders that sandboxes may write.

Runs in the host process, over layers that are in the store. Only jailed processes read the image's files and start its
Pythons.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fumehood.errors import ImageError
from fumehood.templates.given_files import MAX_COPIED_BYTES, MAX_ENTRIES
from fumehood.templates.images.bytecode import image_bytecode
from fumehood.templates.images.description import ImageConfig, image_path
from fumehood.templates.images.interpreters import (
    PROBE,
    Found,
    guest_packages,
    private_interpreter,
    read_probe,
)
from fumehood.templates.images.jailed import compiled_policy, image_ids, jailed
from fumehood.templates.images.layers import LayerInfo, LayerStore, layer_key
from fumehood.templates.images.steps import ImageProgram, StepRules, run_program
from fumehood.templates.images.workbench import Base
from fumehood.templates.recipe import Workshop
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH
from fumehood.values.image import ImageRoot
from fumehood.values.network import Network

USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PYTHONS = ("python3", "python", *(f"python3.{minor}" for minor in range(19, 8, -1)))
_PROBE_SECONDS = 60.0
_PROBE_LIMITS = {"as": 2 << 30, "nproc": 64, "fsize": 1 << 20}
_MOST_SAID = 1 << 16
_MEMORY_BYTES = 1 << 30
# Every sandbox has folders of its own there.
_OWN = (HOME_PATH, "/tmp", "/var/tmp", DATA_PATH, "/dev", "/proc", "/sys")  # noqa: S108 - in the image
_MOST_PYTHONS = 4
# Where the copies of volumes are in the home of a sandbox.
_VOLUMES = ".volumes/"


def make_root(
    config: ImageConfig, layers: Sequence[str], store: LayerStore, workshop: Workshop, files: str
) -> ImageRoot:
    """Returns the root of a template.

    Args:
        config: How programs of the image are started.
        layers: Names of its layers, the lowest first.
        store: The store that has the layers.
        workshop: The folder and template of the build.
        files: A folder, made if needed, for the files that each sandbox gets in its home.

    Raises:
        ImageError: The image names a user that it does not have.
        TemplateStoreError: The image has no usable Python, and a private one cannot be made.
    """
    folders = [store.path(layer) for layer in layers]
    path = config.envs.get("PATH") or USUAL_PATH
    found = survey(folders, workshop.template, order=_order(config, path), target=_target(config, files))
    user = found["user"]

    if "unknown" in user:
        raise ImageError(
            image=workshop.template,
            reason=f"its user {str(user['unknown'])[:80]!r} is not in its /etc/passwd",
        )

    python = _own_python(found, config, folders, workshop)
    private = "" if python is not None else private_interpreter(store, workshop.template, workshop.say)
    packages = (
        "" if python is None else guest_packages(python.version, store, workshop.template, workshop.say)
    )
    bytecode = "" if python is None else image_bytecode(python, layers, packages, store, workshop)
    outcomes = {str(path): str(outcome) for path, outcome in dict(found["writable"]).items()}
    workdir = _workdir(config, outcomes, workshop)
    links = _links(config, outcomes, workshop)
    names = _writable(config)
    return ImageRoot(
        store=store.folder,
        layers=(*layers, *_link_layer({path: names[path] for path in links}, store, workshop)),
        version=python.version if python is not None else _own_version(),
        python=python.path if python is not None else "",
        interpreter=private,
        packages=packages,
        bytecode=bytecode,
        envs=dict(config.envs),
        workdir=workdir,
        volumes=config.volumes,
        links=links,
        user=_user_name(str(user["name"])),
        shell=str(found["shell"]) or "/bin/sh",
    )


def base_of(root: ImageRoot) -> Base:
    """Returns the image from which a template's root was made, as the base of another build."""
    layers = root.layers

    names = _writable(ImageConfig(workdir=root.workdir, volumes=root.volumes))
    # Records of earlier versions have the working directory alone.
    links = {path: names[path] for path in root.links or (root.workdir,) if path in names}

    # The folders that sandboxes may write become those of the image again.
    if layers and layers[-1] == _link_key(links):
        layers = layers[:-1]

    config = ImageConfig(envs=dict(root.envs), workdir=root.workdir, volumes=root.volumes, user=root.user)
    return Base(layers=layers, config=config)


def _link_key(links: Mapping[str, str]) -> str:
    """Returns the key of the layer with these links: a volume's copy has another name than a working directory's."""
    return layer_key(
        "link", "owned", *(f"{path}=" if name.startswith(_VOLUMES) else path for path, name in links.items())
    )


def survey(
    folders: Sequence[str], template: str, *, order: Mapping[str, Any], target: str | None = None
) -> dict[str, Any]:
    """Examines an image in a jailed process; `fumehood_guest.image.survey` describes the order and the answer."""
    ids = image_ids(template)

    if target is not None:
        owner = ids.uid_map[0][1]
        os.chown(target, owner, owner if ids.kind == "image" else -1)

    plan = {
        "task": "survey",
        "ids": ids.to_dict(),
        "layers": list(folders),
        "upper": None,
        "work": None,
        "files": {},
        "target": target,
        "seccomp": compiled_policy("image"),
        "rlimits": {
            "as": _MEMORY_BYTES,
            "core": 1,
            "fsize": MAX_COPIED_BYTES,
            "nofile": 8192,
            "nproc": 64,
        },
        "order": dict(order),
    }

    with jailed(plan) as process:
        answer = process.answer()

    if "failed" in answer or not isinstance(answer.get("user"), dict):
        raise ImageError(
            image=template,
            reason=f"it cannot be looked into: {answer.get('failed')}: {answer.get('detail')}",
            hint="`fumehood doctor` says what this machine lacks",
        )

    return answer


def _order(config: ImageConfig, path: str) -> dict[str, Any]:
    return {
        "user": config.user,
        "folders": [folder for folder in path.split(":") if folder.startswith("/")],
        "pythons": list(_PYTHONS),
        "writable": [
            {"path": path, "name": name, "is_made": path != image_path(config.workdir)}
            for path, name in _writable(config).items()
        ],
        "max_entries": MAX_ENTRIES - 10,
        "max_bytes": MAX_COPIED_BYTES,
    }


def _writable(config: ImageConfig) -> dict[str, str]:
    """Returns the folders that are copied for each sandbox, each with the path of its copy within the home.

    The size bounds apply to all copies together, so the order matters: the working directory first, then the volumes in
    the order of the configuration, each after the folders that contain it.
    """
    workdir = image_path(config.workdir)
    folders = {workdir: _copy_name(workdir)}

    for path in map(image_path, config.volumes):
        folders.setdefault(path, _VOLUMES + path.strip("/").replace("/", "-"))

    for path in folders:
        if path.startswith(f"{HOME_PATH}/"):
            folders[path] = path.removeprefix(f"{HOME_PATH}/")

    outer_first = sorted(folders, key=lambda path: path.count("/"))
    ordered = dict.fromkeys(
        outer for path in folders for outer in outer_first if path == outer or path.startswith(f"{outer}/")
    )
    return {path: folders[path] for path in ordered if not _is_given(path)}


def _is_given(path: str) -> bool:
    """Returns whether a path is the root, or is in a folder that every sandbox has its own of, other than its home."""
    return path == "/" or any(
        path == place or path.startswith(f"{place}/") for place in _OWN if place != HOME_PATH
    )


def _copy_name(workdir: str) -> str:
    """Returns the path of the working directory's copy, within the home of a sandbox."""
    normal = image_path(workdir)

    if normal.startswith(f"{HOME_PATH}/"):
        return normal.removeprefix(f"{HOME_PATH}/")

    return "." if normal == HOME_PATH else os.path.basename(normal)


def _target(config: ImageConfig, files: str) -> str | None:
    if not _writable(config):
        return None

    os.makedirs(files, exist_ok=True)
    os.chmod(files, 0o755)  # noqa: S103 - guests read it
    return files


def _own_python(
    found: Mapping[str, Any], config: ImageConfig, folders: Sequence[str], workshop: Workshop
) -> Found | None:
    """Runs the Pythons of an image, in jails, and returns the first that can run guest code; None if none can."""
    if os.geteuid() != 0:
        # A template's own processes have rights over the mounts of their base jail, and would have them, as code of the
        # image, over files of this user: as root they are another user, that owns none.
        workshop.say(
            "code runs in a private Python: as an ordinary user, an image's own is not trusted with that"
        )
        return None

    for path in [str(one) for one in found.get("pythons", ())][:_MOST_PYTHONS]:
        said = bytearray()

        def hear(data: bytes, said: bytearray = said) -> None:
            said.extend(data[: _MOST_SAID - len(said)])

        # Without the image's environment variables, like the template's own processes.
        program = ImageProgram(argv=[path, "-I", "-c", PROBE], envs={"PATH": USUAL_PATH, "LANG": "C.UTF-8"})
        rules = StepRules(
            ids=image_ids(workshop.template), network=Network(), seconds=_PROBE_SECONDS, limits=_PROBE_LIMITS
        )
        run_program(folders, None, program, rules, hear)
        answer = read_probe(path, bytes(said))

        if isinstance(answer, Found):
            workshop.say(f"code runs in the image's own Python {'.'.join(map(str, answer.version))}, {path}")
            return answer

        workshop.say(f"not for code: {answer}")

    return None


def _own_version() -> tuple[int, int, int]:
    major, minor, micro = sys.version_info[:3]
    return major, minor, micro


def _workdir(config: ImageConfig, outcomes: Mapping[str, str], workshop: Workshop) -> str:
    """Returns the folder in which code and commands start.

    Raises:
        ImageError: The folder is in the home, and is too large for a copy in each sandbox.
    """
    workdir = image_path(config.workdir)
    outcome = outcomes.get(workdir, "none")

    if outcome == "large" and _is_in_home(workdir):
        # The home of each sandbox is its own, and covers the image's.
        raise ImageError(
            image=workshop.template,
            reason=f"{workdir} holds more than a sandbox can have a copy of ({MAX_ENTRIES} entries, 32 MiB)",
            hint="keep what is large outside of the home: with WORKDIR /app, or a NODE_PATH that leads there",
        )

    return workdir if outcome in ("copied", "inside", "large") else HOME_PATH


def _links(config: ImageConfig, outcomes: Mapping[str, str], workshop: Workshop) -> tuple[str, ...]:
    """Returns the folders of the image to be replaced by links to their copies in the home."""
    for path, outcome in outcomes.items():
        if outcome == "large":
            workshop.say(
                f"{path} holds more than a sandbox can have a copy of ({MAX_ENTRIES} entries, 32 MiB): it is read-only"
            )

    return tuple(path for path, outcome in outcomes.items() if outcome == "copied" and not _is_in_home(path))


def _is_in_home(path: str) -> bool:
    return path == HOME_PATH or path.startswith(f"{HOME_PATH}/")


def _link_layer(links: Mapping[str, str], store: LayerStore, workshop: Workshop) -> tuple[str, ...]:
    """Returns the key of the layer that replaces folders by links to their copies in the home; empty without links."""
    if not links:
        return ()

    key = _link_key(links)

    if store.info(key) is None:
        ids = image_ids(workshop.template)
        owner = ids.uid_map[0][1]

        with store.making(owner) as made:
            for path, name in links.items():
                _link(path, name, made.content, owner, owner if ids.kind == "image" else -1)

            made.keep(key, LayerInfo(made_by=f"writable {' '.join(links)}", size_bytes=0, entries=len(links)))

    return (key,)


def _link(path: str, name: str, content: str, uid: int, gid: int) -> None:
    """Makes one link in a layer, without following another link.

    Raises:
        ImageError: A parent folder of the link is itself a link.
    """
    folder = content

    # They cover those of the image: what has no owner in the base jail could not be written to there.
    for part in path.strip("/").split("/")[:-1]:
        folder = os.path.join(folder, part)

        if os.path.islink(folder):
            raise ImageError(
                image=path,
                reason=f"{path} lies in a folder that sandboxes may write already",
                hint="name the outer folder alone as VOLUME",
            )

        if not os.path.isdir(folder):
            os.mkdir(folder, 0o755)
            os.chown(folder, uid, gid)

    os.symlink(f"{HOME_PATH}/{name}", os.path.join(content, path.lstrip("/")))


def _user_name(name: str) -> str:
    is_plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    return name if is_plain and len(name) <= 32 and name != "nobody" else "user"
