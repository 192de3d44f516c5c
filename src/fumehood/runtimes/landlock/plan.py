"""The plan of a template without namespaces: which files of the host its sandboxes may read.

Guests have no root of their own there: they see the paths of the host, and Landlock lets them open the system, the
template and one private folder. They can read exactly what is listed here; the home of a user, a workspace or a socket
of the host must never be on the list.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fumehood.errors import TemplateError
from fumehood.runtimes.language_files import language_files
from fumehood.templates.environment import Environment
from fumehood.templates.guest_code import guest_code
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.template import Template

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# The files of /etc that programs ask for; none of them holds a secret on any distribution.
_ETC = (
    "bash.bashrc",
    "fonts",
    "group",
    "hostname",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "profile",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
# The parts of a Python installation, whose folder may contain other things.
_OF_PYTHON = ("bin", "include", "lib", "lib64", "libexec", "pyvenv.cfg", "share")
_TOO_MUCH = ("/", "/home", "/root", "/tmp", "/var", "/opt", "/srv", "/mnt", "/etc")  # noqa: S108
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def template_python(template: Template) -> str:
    """Returns the interpreter path as the template names it: by this name the interpreter finds its packages."""
    return os.path.abspath(template.python or sys.executable)


def readable_paths(template: Template, environment: Environment, code_folder: str) -> list[str]:
    """Returns the paths that guests of a template may read.

    Raises:
        TemplateError: The template's interpreter is in a folder that also contains other files.
    """
    prefixes = {os.path.dirname(os.path.dirname(template_python(template))), environment.base_prefix}
    paths = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *language_files(), code_folder]

    for prefix in sorted(prefixes):
        if os.path.realpath(prefix) in _TOO_MUCH:
            raise TemplateError(
                template=template.name,
                reason=f"its interpreter belongs to {prefix!r}, where other files lie as well",
                hint="give it a virtual environment in a folder of its own",
            )

        paths.extend(os.path.join(prefix, name) for name in _OF_PYTHON)

    if environment.site_packages is not None:
        paths.append(environment.site_packages)

    if template.files is not None:
        paths.append(template.files)

    return paths


def plain_environment(template: Template) -> dict[str, str]:
    """Returns the variables that every process in a sandbox starts with; init adds the paths of the private folders."""
    programs = os.path.dirname(template_python(template))
    return {
        "HOME": HOME_PATH,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": "/tmp",  # noqa: S108
        "PATH": f"{programs}:{_PATH}",
        "PIP_USER": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # The system-wide configuration cannot be read here.
        "GIT_CONFIG_NOSYSTEM": "1",
        **template.envs,
    }


def copy_guest_code(folder: str) -> None:
    """Copies our guest code: a copy cannot change under a running template, nor expose the files beside it."""
    for name, path in guest_code():
        target = Path(folder, name)
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
