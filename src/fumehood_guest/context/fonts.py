"""Fonts for the letters that matplotlib's own font lacks: Chinese, Japanese, Korean, emoji and others.

Runs in a context, when a figure is first drawn. Matplotlib draws with the first font of a list that has a letter; this
module appends the fonts of the system and of font packages to the requested ones, so that a style sheet that names
other fonts does not remove them. No file is opened before matplotlib does.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import sys
import warnings
from contextlib import contextmanager
from typing import Any, Iterator, List, Set

# Families of the system that have the letters, the best first. Colours of Noto Color Emoji cannot be drawn.
_FAMILIES = (
    ("Noto Sans CJK", "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback"),
    ("Noto Emoji", "Symbola"),
)
# Packages of PyPI with such fonts, and their files: of each group the first that is there.
_PACKAGES = (
    (
        ("cvttf_NotoSansCJK_Regular", "NotoSansCJKtc-Regular.otf"),
        ("mplfonts", "fonts/NotoSansCJKsc-Regular.otf"),
        ("manimgx_fonts_cjk", "NotoSansCJK-VF.otf.ttc"),
    ),
    (("manimgx_fonts", "NotoEmoji*.ttf"),),
    # Scripts of which matplotlib's own font has nothing.
    (("manimgx_fonts", "NotoSans[A-Z]*.ttf"),),
)
_REGULAR = 400
_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_MAX_NAMED = 20


def add_fallback_fonts(module: Any) -> None:
    """Makes matplotlib use fallback fonts for characters that the fonts of a text lack.

    Args:
        module: `matplotlib.font_manager`.
    """
    manager = module.fontManager
    find = getattr(manager, "_find_fonts_by_props", None)

    if find is None:
        # Before 3.6 a text has one font.
        return

    others: List[str] = []
    known_to = 0

    def find_with_others(*args: Any, **options: Any) -> List[str]:
        nonlocal known_to

        # Searched again in each process: a sandbox may have installed packages that its template lacks.
        if known_to != os.getpid():
            known_to = os.getpid()
            others[:] = _paths(manager)

        found = find(*args, **options)
        return [*found, *(path for path in others if path not in found)]

    manager._find_fonts_by_props = find_with_others


@contextmanager
def missing_letters_named_once() -> Iterator[None]:
    """Context manager: combines matplotlib's warnings about letters that no font has into one line."""
    with warnings.catch_warnings(record=True) as caught:
        yield

    letters: List[str] = []

    for warning in caught:
        found = _MISSING.match(str(warning.message))

        if found is None:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            letters.append(chr(int(found.group(1))))

    if letters:
        named = "".join(dict.fromkeys(letters))
        more = " and others" if len(named) > _MAX_NAMED else ""
        sys.stderr.write(
            f"UserWarning: no font here has {named[:_MAX_NAMED]}{more}, which are drawn as boxes; the operator "
            "can install some, with fumehood[fonts] or fonts-noto-cjk\n"
        )


def _paths(manager: Any) -> List[str]:
    """Returns the files of fallback fonts: those of the system, else those of packages."""
    paths: List[str] = []

    for group, packages in enumerate(_PACKAGES):
        families = _FAMILIES[group] if group < len(_FAMILIES) else ()
        found = _of_system(manager, families) or _of_packages(packages)
        paths += [path for path in found if path not in paths]

    return paths


def _of_system(manager: Any, families: Any) -> List[str]:
    for family in families:
        for entry in manager.ttflist:
            if entry.name.startswith(family) and entry.style == "normal" and entry.weight == _REGULAR:
                return [entry.fname]

    return []


def _of_packages(packages: Any) -> List[str]:
    seen: Set[str] = set()

    for name, pattern in packages:
        # The package is not imported: only its files are needed.
        spec = importlib.util.find_spec(name)

        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            seen.update(glob.glob(os.path.join(glob.escape(folder), pattern)))

        if seen:
            break

    return sorted(seen)
