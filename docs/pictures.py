"""Draws the pictures of the pages from real runs: a chart, a tree of forks, the scorecard. `make pictures` runs it.

Runs in a checkout, with the extra `data` installed. It writes `docs/pictures` and nothing else; what is in a picture
comes from a sandbox of this machine or from `docs/scorecard.md`, and never from this file.
"""

from __future__ import annotations

import re
import time
from html import escape
from pathlib import Path

from fumehood import Sandbox, explore

_DOCS = Path(__file__).parent
_PICTURES = _DOCS / "pictures"
_DATA = _DOCS.parent / "examples" / "data" / "penguins.csv"
# Readable on white and on black: each picture brings its own background.
_PAPER, _INK, _PALE = "#ffffff", "#17323a", "#6b7f86"
_GOOD, _BAD, _UNKNOWN, _LINE = "#0f8a7a", "#c2410c", "#cbd5d8", "#9fb2b8"
_FONT = "font-family='ui-sans-serif, system-ui, Helvetica, Arial, sans-serif'"
_MONO = "font-family='ui-monospace, Menlo, Consolas, monospace'"

_CHART = """
import matplotlib.pyplot as plt
import pandas as pd

penguins = pd.read_csv("penguins.csv").dropna()
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), dpi=90, layout="constrained")

for species, rows in penguins.groupby("species"):
    left.scatter(rows.flipper_length_mm, rows.body_mass_g / 1000, s=9, alpha=0.7, label=species)

left.set(xlabel="flipper length (mm)", ylabel="body mass (kg)", title="Penguins")
left.legend(frameon=False)
mean = penguins.groupby("species").body_mass_g.mean() / 1000
right.bar(mean.index, mean, color=["C0", "C1", "C2"])
right.set(ylabel="body mass (kg)", title="Mean of each species")
"""

_START = "rows = [3, None, 5, 100, 4]"
_WAYS = (
    "rows = [row for row in rows if row]",
    "rows = sorted(row or 0 for row in rows)[:4]",
    "rows = [row / 0 for row in rows]",
)
_SCORE = "max(rows) - min(rows)"


def _text(x: float, y: float, text: str, *, size: int = 13, fill: str = _INK, more: str = _FONT) -> str:
    return f"<text x='{x}' y='{y}' font-size='{size}' fill='{fill}' {more}>{escape(text)}</text>"


def _svg(width: int, height: int, label: str, parts: list[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
        f"role='img' aria-label='{escape(label, quote=True)}'>\n"
        f"<rect width='{width}' height='{height}' rx='8' fill='{_PAPER}'/>\n"
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def charts() -> bytes:
    """The figure that a sandbox shows for `_CHART`."""
    with Sandbox() as sandbox:
        sandbox.upload(_DATA)
        execution = sandbox.run_code(_CHART)
        picture = next(result.png for result in execution.results if result.png)
        assert picture is not None, execution
        return picture


def tree() -> str:
    """Ways that were tried in forks of one sandbox: what each gave, which was kept, and how long all of it took."""
    with Sandbox() as sandbox:
        sandbox.run_code(_START)
        begun = time.perf_counter()

        with explore(sandbox, _WAYS) as branches:
            milliseconds = (time.perf_counter() - begun) * 1000
            scores = {
                branch.code: int(branch.sandbox.run_code(_SCORE).text or 0)
                for branch in branches
                if branch.execution.error is None
            }
            best = min(scores, key=lambda code: scores[code])
            outcomes = {
                branch.code: branch.execution.error.name
                if branch.execution.error
                else f"spread {scores[branch.code]}"
                for branch in branches
            }
            branches.keep(next(branch for branch in branches if branch.code == best))

        kept = sandbox.run_code("rows").text or ""

    parts = [
        _text(28, 118, "one sandbox", size=14),
        _text(28, 138, _START, size=12, fill=_PALE, more=_MONO),
        f"<circle cx='258' cy='114' r='7' fill='{_INK}'/>",
        _text(
            264,
            26,
            f"{len(_WAYS)} forks, each with all variables and files: made and run in {milliseconds:.0f} ms",
            fill=_PALE,
        ),
    ]

    for number, (code, outcome) in enumerate(outcomes.items()):
        y = 62 + 56 * number
        colour = _GOOD if code == best else _BAD if code not in scores else _PALE
        wide = 4 if code == best else 2
        end = "kept" if code == best else "ended"
        parts += [
            f"<path d='M258 114C300 114 296 {y} 338 {y}H770' fill='none' stroke='{colour}' stroke-width='{wide}'/>",
            f"<circle cx='338' cy='{y}' r='5' fill='{colour}'/>",
            f"<circle cx='770' cy='{y}' r='6' fill='{colour if code == best else _PAPER}' stroke='{colour}' stroke-width='2'/>",
            _text(352, y - 8, code, size=12, more=_MONO),
            _text(352, y + 18, f"{outcome}: {end}", size=12, fill=colour),
        ]

    parts.append(_text(28, 218, f"the sandbox goes on with rows = {kept}", size=12, fill=_GOOD, more=_MONO))
    return _svg(800, 236, "A sandbox is forked, and the best fork is kept", parts)


def scorecard() -> str:
    """The grades of `docs/scorecard.md` as bars: what holds, what does not, and what could not be tried."""
    text = (_DOCS / "scorecard.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (.+?) \| \*\*(\w)\*\* \| ([\d.]+)% \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE
    )
    assert rows, "docs/scorecard.md has no table of grades"
    parts = []

    for number, (name, grade, share, *counts) in enumerate(rows):
        y = 24 + 50 * number
        x, width = 330.0, 380
        total = sum(map(int, counts))
        parts += [
            _text(20, y + 17, name.replace("`", "")),
            _text(292, y + 19, grade, size=18, fill=_GOOD if grade == "A" else _BAD),
        ]

        for count, colour in zip(counts, (_GOOD, _BAD, _UNKNOWN), strict=True):
            wide = width * int(count) / total
            parts.append(f"<rect x='{x:.1f}' y='{y}' width='{wide:.1f}' height='24' fill='{colour}'/>")
            x += wide

        parts.append(_text(722, y + 17, f"{share}%"))

    y = 34 + 50 * len(rows)

    for x, name, colour in (
        (330, "attacks that were held", _GOOD),
        (500, "got through", _BAD),
        (600, "could not be tried", _UNKNOWN),
    ):
        parts += [
            f"<rect x='{x}' y='{y - 10}' width='11' height='11' fill='{colour}'/>",
            _text(x + 16, y, name, size=12, fill=_PALE),
        ]

    return _svg(
        800, y + 18, "Attacks on fumehood, bubblewrap and a plain subprocess: how many were held", parts
    )


if __name__ == "__main__":
    _PICTURES.mkdir(exist_ok=True)
    (_PICTURES / "charts.png").write_bytes(charts())
    (_PICTURES / "tree.svg").write_text(tree(), encoding="utf-8")
    (_PICTURES / "scorecard.svg").write_text(scorecard(), encoding="utf-8")
