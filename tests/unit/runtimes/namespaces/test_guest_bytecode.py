"""The bytecode of guest code: what an interpreter takes in place of the sources, and what it never has."""

from __future__ import annotations

import base64
import compileall
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood.runtimes.namespaces import guest_bytecode

VERSION = sys.version_info[:3]
PLACE = "/opt/fumehood"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, Path], ...]:
    """A package of which Python keeps the bytecode, but for one module."""
    monkeypatch.setattr(sys, "pycache_prefix", None)
    package = tmp_path / "host" / "rose"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "petal.py").write_text("def place():\n    return (lambda: place.__code__.co_filename)()\n")
    (package / "note.txt").write_text("no code")
    assert compileall.compile_dir(package, quiet=1)
    (package / "thorn.py").write_text("sharp = True\n")
    return tuple((f"rose/{path.name}", path) for path in sorted(package.iterdir()) if path.is_file())


def test_an_interpreter_takes_it_in_place_of_the_source(
    kept: tuple[tuple[str, Path], ...], tmp_path: Path
) -> None:
    """It says where the guest has the source, as a source there would, and nothing of the host's folder."""
    made = guest_bytecode.guest_bytecode(kept, PLACE, VERSION)
    tag = sys.implementation.cache_tag
    assert sorted(made) == [f"{PLACE}/rose/__pycache__/{name}.{tag}.pyc" for name in ("__init__", "petal")]
    inside = tmp_path / "inside"

    for path, text in made.items():
        content = base64.b64decode(text)
        assert str(tmp_path).encode() not in content
        target = inside / path.removeprefix(f"{PLACE}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    # Other sources, which are not looked at: what runs is the bytecode.
    (inside / "rose" / "__init__.py").write_text("")
    (inside / "rose" / "petal.py").write_text("raise ImportError('compiled')")
    program = "import rose.petal; print(rose.petal.place())"
    command = [sys.executable, "-B", "-c", program]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(inside)}, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    # The interpreter names the file that it found, as it does with every bytecode.
    assert done.stdout.strip() == str(inside / "rose" / "petal.py"), done.stderr


def test_what_is_not_kept_is_left_to_the_jail(kept: tuple[tuple[str, Path], ...]) -> None:
    """So are an outdated one, and code for another Python: nothing is compiled here."""
    (source,) = (path for name, path in kept if name == "rose/petal.py")
    source.write_text("changed = True  # and of another size")
    made = guest_bytecode.guest_bytecode(kept, PLACE, VERSION)
    assert [Path(path).name.partition(".")[0] for path in made] == ["__init__"]
    assert guest_bytecode.guest_bytecode(kept, PLACE, (3, 9, 0)) == {}
