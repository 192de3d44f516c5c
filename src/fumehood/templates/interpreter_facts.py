"""Finds the paths of an interpreter's environment: of this process, or of the interpreter that runs this file.

Imported by the host process, and run as a program by interpreters that templates name: standard library only, for
Python 3.9 and later, and no other module of fumehood. It imports no package of the environment.
"""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
from typing import Any


def read() -> dict[str, Any]:
    """Return the paths of the interpreter that runs this, as JSON can hold them."""
    return {
        "version": list(sys.version_info[:3]),
        "base_prefix": sys.base_prefix,
        "executable": os.path.realpath(sys.executable),
        "is_virtual": sys.prefix != sys.base_prefix,
        "site_packages": sysconfig.get_path("purelib"),
        "scripts": sysconfig.get_path("scripts"),
        "base_site_packages": site.getsitepackages([sys.base_prefix]),
        "sees_base": _sees_base(),
        "shared_library": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
    }


def _sees_base() -> bool:
    """Whether a virtual environment sees the packages of the installation as well."""
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            return "include-system-site-packages = true" in file.read().lower()
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read()))
