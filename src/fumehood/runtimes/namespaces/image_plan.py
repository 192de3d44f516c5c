"""The plan of a base jail whose root is a container image.

The launcher carries the plan out. Sandboxes see the image's files as they are, and on top of them the parts that they
need: one user, a Python for code, our guest code, and mount points. The image's environment variables reach programs in
sandboxes; the template's own processes get none of them, because a library that `LD_PRELOAD` names would run in each of
them. If the template has a private Python, its processes also run no module, program or library of the image.
"""

from __future__ import annotations

import os
from typing import Any

from fumehood.runtimes.namespaces.plan import (
    DIRECTORIES,
    ETC_FILES,
    GIVEN_FILES,
    GUEST_PACKAGES,
    INTERPRETER_ROOT,
    LINKS,
    ca_bundle_copy,
    copies_of,
    guest_code,
    plain_environment,
)
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.image import ImageRoot

# Where the guest's packages are for an image's own Python.
IMAGE_PACKAGES = "/opt/fumehood-packages"
_PRIVATE_PYTHON = f"{INTERPRETER_ROOT}/bin/python3"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOLOGIN = "/sbin/nologin"


def image_root_plan(image: ImageRoot, uid: int, files: str | None) -> dict[str, Any]:
    """Returns the plan for `fumehood_jail.mounts.build_root`: the layers of an image, and the mounts over them."""
    binds = [
        (image.path(layer), place)
        for layer, place in ((image.interpreter, INTERPRETER_ROOT), (image.packages, IMAGE_PACKAGES))
        if layer
    ]

    if files is not None:
        binds.append((files, GIVEN_FILES))

    return {
        "uid": uid,
        "layers": [image.path(layer) for layer in image.layers],
        "directories": list(DIRECTORIES),
        "binds": binds,
        "hide": [],
        # The template's processes import from both, so that a module of the image would run in them.
        "cleared": [GUEST_PACKAGES],
        "covered": [HOME_PATH],
        "links": dict(LINKS),
        "copies": [ca_bundle_copy()],
        "code": copies_of(guest_code()),
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
    packages = [GUEST_PACKAGES, *([IMAGE_PACKAGES] if image.packages else [])]
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


def _passwd(image: ImageRoot) -> str:
    root = "" if image.user == "root" else f"root:x:0:0:root:/root:{_NOLOGIN}\n"
    return (
        f"{root}{image.user}:x:1000:1000:{image.user}:{HOME_PATH}:{image.shell}\n"
        f"nobody:x:65534:65534:nobody:/:{_NOLOGIN}\n"
    )
