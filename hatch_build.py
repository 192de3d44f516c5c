"""The hook of the build: the page of the console is built, and no wheel leaves without it.

The page (`src/fumehood/console/dist`) is not in the repository: it is built from `web/` with npm. A source archive
carries it, so that a wheel from there needs no npm. An editable install builds nothing: `make console` does.
FUMEHOOD_WITHOUT_CONSOLE=1 leaves the page out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_WITHOUT = "FUMEHOOD_WITHOUT_CONSOLE"
_DIST = Path("src", "fumehood", "console", "dist")
# Of all that `web/` holds, what the page is made from.
_SOURCES = (
    "src",
    "index.html",
    "share.html",
    "package.json",
    "package-lock.json",
    "vite.config.ts",
    "tsconfig.json",
    ".npmrc",
)
_NO_NPM = (
    "the console has to be built for a wheel, and there is no npm: install Node.js 20 or newer with npm, "
    f"build from a source archive, which has the page in it, or leave it out with {_WITHOUT}=1"
)


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the page where it is missing or older than its sources, and fails where none came of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before the files are collected."""
        if version == "editable":
            return

        root = Path(self.root)

        if os.environ.get(_WITHOUT) == "1":
            shutil.rmtree(root / _DIST, ignore_errors=True)
            return

        if (root / "web").is_dir() and not is_built(root):
            build(root)

        if not (root / _DIST / "index.html").is_file():
            raise RuntimeError(f"{_DIST}/index.html is missing: the wheel would have no console")


def is_built(root: Path) -> bool:
    """Returns whether the page is there, made from the sources as they are now."""
    note = _note(root)
    return (
        (root / _DIST / "index.html").is_file()
        and note.is_file()
        and note.read_text() == sources_digest(root)
    )


def build(root: Path) -> None:
    """Builds the page; what npm installs for that is left as it is where it fits.

    Raises:
        RuntimeError: There is no npm.
        subprocess.CalledProcessError: The build fails; its output says why.
    """
    npm = shutil.which("npm")

    if npm is None:
        raise RuntimeError(_NO_NPM)

    web = root / "web"
    lock = hashlib.sha256((web / "package-lock.json").read_bytes()).hexdigest()
    installed = web / "node_modules" / ".installed"

    if not installed.is_file() or installed.read_text() != lock:
        subprocess.run([npm, "ci", "--ignore-scripts", "--silent"], cwd=web, check=True)
        installed.write_text(lock)

    if is_built(root):
        return

    digest = sources_digest(root)
    subprocess.run([npm, "run", "--silent", "build"], cwd=web, check=True)
    _note(root).write_text(digest)


def sources_digest(root: Path) -> str:
    """Returns a digest of the names and contents of what the page is made from."""
    web = root / "web"
    digest = hashlib.sha256()

    for name in _SOURCES:
        top = web / name
        files = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]

        for path in files:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(web).as_posix()} {content}\n".encode())

    return digest.hexdigest()


def _note(root: Path) -> Path:
    # Beside the sources, since all that `dist` holds is in the wheel.
    return root / "web" / "node_modules" / ".built-from"


if __name__ == "__main__":
    build(Path(__file__).resolve().parent)
