"""What `fumehood doctor` says of layers, and of the environment that sandboxes are made from."""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

import pytest

from fumehood.cli import doctor
from fumehood.cli.doctor_report import WARM_RUNS, full_report, short_report
from fumehood_jail.advice import SET_AS_ROOT


def test_packages_that_are_compiled_at_each_start_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that compiles them once; what is not installed is left to the row `preload`."""
    (tmp_path / "bare").mkdir()
    source = tmp_path / "bare" / "__init__.py"
    source.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    row = doctor._bytecode(("bare.part", "not_there"))
    assert row["state"] == "missing"
    assert row["need"] == "advice"
    assert row["why"] == "bare: compiled at each start of a template, which takes seconds"
    assert row["how_to_get_it"].startswith(f"{sys.executable} -m compileall -q ")

    py_compile.compile(str(source))
    row = doctor._bytecode(("bare.part", "not_there"))
    assert row["state"] == "there"
    assert row["why"] == "IPython, bare: compiled once"


def layer(name: str, state: str = "there", need: str = "required", **others: str) -> dict[str, str]:
    why = others.get("why", f"{name} was tried")
    way_out = "" if state == "there" else others.get("way_out", f"Get {name}.")
    return {
        "name": name,
        "state": state,
        "need": need,
        "why": why,
        "how_to_get_it": way_out,
        "cause": others.get("cause", ""),
    }


NAMESPACES = [layer(f"{kind} namespace") for kind in ("user", "pid", "net")]
FIRST = layer("first sandbox", why="level namespaces: started in 1.0 s")
WARM = layer(WARM_RUNS, "missing", "advice")


def setting(name: str) -> dict[str, str]:
    return layer(name, "missing", "advice", why=f"{name} is 0", way_out=f"{SET_AS_ROOT}{name}=1.")


def test_where_all_is_well_two_lines_say_so() -> None:
    """Processes that keep sandboxes ready are no layer, and named by the whole table alone."""
    layers = [layer("kernel"), *NAMESPACES, FIRST, WARM]
    assert short_report(layers).splitlines() == [
        "Sandboxes can start here (level namespaces: started in 1.0 s). Nothing is missing.",
        "`fumehood doctor --all` shows every layer.",
    ]
    assert "warm runs      missing  advice    warm runs was tried" in full_report(layers).splitlines()


def test_what_is_weaker_is_named_with_its_reason_and_way_out() -> None:
    """Settings of the host are one row, and one command."""
    landlock = layer("landlock", "degraded", "wanted")
    layers = [*NAMESPACES, landlock, setting("fs.one"), setting("kernel.two"), FIRST]
    assert short_report(layers).splitlines() == [
        "landlock       degraded  wanted  landlock was tried",
        "                                 -> Get landlock.",
        "host settings  weaker    advice  fs.one is 0, kernel.two is 0",
        "                                 -> As root: sysctl -w fs.one=1 kernel.two=1",
        "",
        "Sandboxes can start here (level namespaces: started in 1.0 s). "
        "What stands above would make them stronger or faster.",
        "`fumehood doctor --all` shows every layer.",
    ]


def test_namespaces_that_are_there_are_one_row() -> None:
    """One that is missing has its own; the kernel's refusal of all is one row with what follows from it."""
    joined = "namespaces     there  required  user, pid, net: a child has lived in a new one of each"
    assert full_report([*NAMESPACES, FIRST]).splitlines()[0] == joined

    uts = layer("uts namespace", "missing")
    rows = full_report([*NAMESPACES, uts]).splitlines()
    assert rows[0].startswith("namespaces     there    required  user, pid, net: ")
    assert rows[1] == "uts namespace  missing  required  uts namespace was tried"

    user = layer("user namespace", "missing")
    follow = [layer(name, "missing", cause="user namespace") for name in ("pid namespace", "proc")]
    assert (
        full_report([user, *follow]).splitlines()
        == short_report([user, *follow]).splitlines()[:-1]
        == [
            "user namespace  missing  required  user namespace was tried; and so: pid namespace, proc",
            "                                   -> Get user namespace.",
            "",
            "No sandbox can start here without: user namespace. Run `fumehood doctor` again after each change.",
        ]
    )
