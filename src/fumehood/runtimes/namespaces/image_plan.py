"""The plan of a base jail whose root is a container image.

The launcher carries the plan out. Sandboxes see the image's files as they are, and on top of them the parts that they
need: one user, a Python for code, our guest code, and mount points. The image's environment variables reach programs in
sandboxes; the template's own processes get none of them, because a library that `LD_PRELOAD` names would run in each of
them. If the template has a private Python, its processes also run no module, program or library of the image.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any

from fumehood.runtimes.namespaces.guest_bytecode import guest_bytecode
from fumehood.runtimes.namespaces.plan import (
    DIRECTORIES,
    ETC_FILES,
    GIVEN_FILES,
    GUEST_PACKAGES,
    INTERPRETER_ROOT,
    LINKS,
    ca_bundle_copy,
    copies_of,
    plain_environment,
)
from fumehood.templates.guest_code import guest_code
from fumehood.values.guest_paths import HOME_PATH, IMAGE_PACKAGES_PATH
from fumehood.values.image import BYTECODE_OF_GUEST, ImageRoot

_PRIVATE_PYTHON = f"{INTERPRETER_ROOT}/bin/python3"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOLOGIN = "/sbin/nologin"


def image_root_plan(image: ImageRoot, uid: int, files: str | None) -> dict[str, Any]:
    """Returns the plan for `fumehood_jail.mounts.build_root`: the layers of an image, and the mounts over them."""
    binds = [
        (folder, place)
        for folder, place in (
            (image.interpreter and image.path(image.interpreter), INTERPRETER_ROOT),
            (image.packages_folder, IMAGE_PACKAGES_PATH),
        )
        if folder
    ]

    if files is not None:
        binds.append((files, GIVEN_FILES))

    code = tuple(guest_code())
    return {
        "uid": uid,
        "layers": image.folders,
        "directories": list(DIRECTORIES),
        "binds": binds,
        "hide": [],
        # The template's processes import from both, so that a module of the image would run in them.
        "cleared": [GUEST_PACKAGES],
        "covered": [HOME_PATH],
        "links": dict(LINKS),
        "copies": [ca_bundle_copy()],
        "code": copies_of(code),
        "bytecode": _bytecode_of(image.path(image.bytecode))
        if image.bytecode
        else guest_bytecode(code, GUEST_PACKAGES, image.version)
        if image.interpreter
        else {},
        "files": {
            **ETC_FILES,
            # The private interpreter's loader would read the image's.
            "/etc/ld.so.preload": "",
            "/etc/passwd": _passwd(image),
            "/etc/group": f"root:x:0:\n{image.user}:x:1000:\nnogroup:x:65534:\n"
            if image.user != "root"
            else "root:x:1000:\nnogroup:x:65534:\n",
            "/etc/profile": f'export PATH="{image_path(image)}"\n',
        },
        "executables": [],
    }


def image_environment(image: ImageRoot) -> dict[str, str]:
    """Returns the environment variables of programs in sandboxes: the image's, overridden by our own."""
    return {
        **image.envs,
        **plain_environment(),
        "PATH": image_path(image),
        "USER": image.user,
        "LOGNAME": image.user,
        "SHELL": image.shell,
        **{name: image.envs[name] for name in ("LANG", "TZ") if name in image.envs},
    }


def template_environment(image: ImageRoot) -> dict[str, str]:
    """Returns the environment variables of jail init and zygote, without those of the image."""
    packages = [GUEST_PACKAGES, *([IMAGE_PACKAGES_PATH] if image.packages else [])]
    return {
        **plain_environment(),
        "PATH": _USUAL_PATH if runs_programs(image) else f"{INTERPRETER_ROOT}/bin",
        "PYTHONPATH": ":".join(packages),
        # It may name libraries to load, and the image has one where OpenSSL looks for it.
        "OPENSSL_CONF": os.devnull,
    }


def runs_programs(image: ImageRoot) -> bool:
    """Returns whether the template's own processes may run programs of the image: only with the image's own Python."""
    return bool(image.python)


def image_python(image: ImageRoot) -> str:
    """Returns the path of the interpreter in the image's root."""
    return image.python or _PRIVATE_PYTHON


def image_path(image: ImageRoot) -> str:
    """Returns the search path of programs: the guest's folder, the image's path, and last a private interpreter."""
    private = [] if image.python else [f"{INTERPRETER_ROOT}/bin"]
    return ":".join([f"{HOME_PATH}/.local/bin", image.envs.get("PATH") or _USUAL_PATH, *private])


@lru_cache(maxsize=8)
def _bytecode_of(layer: str) -> dict[str, str]:
    """Returns the bytecode of our guest code that an image's own Python has made: a layer never changes.

    The interpreter compares each file with a hash of the source, and compiles the source if another version of this
    program has made it.
    """
    try:
        with open(os.path.join(layer, BYTECODE_OF_GUEST), encoding="ascii") as file:
            found: dict[str, str] = json.load(file)
    except (OSError, ValueError):
        return {}

    return found


def _passwd(image: ImageRoot) -> str:
    root = "" if image.user == "root" else f"root:x:0:0:root:/root:{_NOLOGIN}\n"
    return (
        f"{root}{image.user}:x:1000:1000:{image.user}:{HOME_PATH}:{image.shell}\n"
        f"nobody:x:65534:65534:nobody:/:{_NOLOGIN}\n"
    )
