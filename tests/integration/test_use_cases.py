"""The cases that fumehood was made for, each as its example shows it, run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.integration import storage_programs

from fumehood import Sandbox

FOLDER = Path(__file__).parents[2] / "examples" / "mission"
PARTS = {"scripted_model", "packages"}

# What an example prints when it did what it shows.
EXPECTED = {
    "csv_statistics": [
        "Adelie       151  3700.7  3700.0  458.6",
        "counted again: Adelie 151 3700.7 3700.0 458.6",
    ],
    "flask_server": ["outside: 200 Hello, World!\n", '"GET / HTTP/1.1" 200'],
    "integral": ["answer:  The integral is 41.666667.", "by hand: 5**3 / 3 = 41.666667"],
    "plot_to_blob": ["[the plot](file:///", "fetched: /mnt/data/penguins.png image/png", "bytes, PNG"],
    "repair": [
        "sandbox: UnicodeDecodeError",
        "sandbox: TypeError",
        "sandbox: done",
        "21.25",
        "cells:   3 answered",
    ],
    "scrape_titles": [
        "Beaker & burner: a love story",
        "allowed news.example",
        "denied collector.example",
        "the collector is out of reach",
    ],
}


def run(name: str, folder: Path, envs: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "FUMEHOOD_ARTIFACTS"}
        | {"PYTHONWARNINGS": "error"}
        | dict(envs or {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_each_example_is_expected_to_say_something():
    assert {path.stem for path in FOLDER.glob("*.py")} - PARTS == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_case(name, tmp_path):
    shown = run(name, tmp_path)

    for text in EXPECTED[name]:
        assert text in shown, shown


def test_a_plot_to_a_bucket(tmp_path):
    """The address is a signed one, which anybody can open who has it."""
    with storage_programs.s3() as place:
        shown = run(
            "plot_to_blob",
            tmp_path,
            {
                "FUMEHOOD_ARTIFACTS": place.location,
                "AWS_ENDPOINT_URL": place.address,
                "AWS_ACCESS_KEY_ID": place.options["access_key_id"],
                "AWS_SECRET_ACCESS_KEY": place.options["secret_access_key"],
                "AWS_REGION": place.options["region"],
            },
        )
        found = re.search(r"\((http\S+)\)", shown)
        assert found is not None, shown
        assert "X-Amz-Signature=" in found[1]

        with urllib.request.urlopen(found[1], timeout=30) as reply:
            assert reply.read().startswith(b"\x89PNG\r\n")

    assert "image/png" in shown
    assert not (tmp_path / "artifacts").exists()


def test_a_package_that_is_missing_is_named_with_the_ways_to_get_it(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from packages import require

    with Sandbox() as sandbox:
        require(sandbox, {"flask": "flask"})

        with pytest.raises(
            SystemExit, match=r"(?s)not_a_module: not in .* pip install not-a-package, .*template"
        ):
            require(sandbox, {"flask": "flask", "not_a_module": "not-a-package"})
