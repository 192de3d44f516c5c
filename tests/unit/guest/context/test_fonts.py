"""Letters that matplotlib's own font lacks: drawn with the fonts of the system or of packages, or named once."""

from __future__ import annotations

from types import SimpleNamespace

from fumehood_guest.context import fonts

# A font of one letter, in a package as those with fonts are.
MAKE_PACKAGE = """
import os, sys
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

pen = TTGlyphPen(None)
pen.moveTo((100, 0)); pen.lineTo((100, 800)); pen.lineTo((900, 800)); pen.closePath()
font = FontBuilder(1000, isTTF=True)
font.setupGlyphOrder([".notdef", "middle"])
font.setupCharacterMap({{0x4E2D: "middle"}})
glyph = pen.glyph()
font.setupGlyf({{".notdef": glyph, "middle": glyph}})
font.setupHorizontalMetrics({{name: (1000, 0) for name in (".notdef", "middle")}})
font.setupHorizontalHeader(ascent=800, descent=-200)
font.setupNameTable({{"familyName": "One Letter", "styleName": "Regular"}})
font.setupOS2()
font.setupPost()
sys.path.append({packages!r})
folder = os.path.join({packages!r}, "cvttf_NotoSansCJK_Regular")
os.makedirs(folder)
open(os.path.join(folder, "__init__.py"), "w").write("raise ImportError('fonts are files')")
font.save(os.path.join(folder, "NotoSansCJKtc-Regular.otf"))
"""
PLT = "import matplotlib.pyplot as plt\n"


def test_letters_that_no_font_has_are_named_in_one_line(data_context):
    """All of them, instead of a warning with a file of ours for each; others stay as they are."""
    outcome = data_context.run(
        PLT + "import warnings\nplt.title('中文 標籤'); plt.gcf().canvas.mpl_connect('draw_event', "
        "lambda e: warnings.warn('of mine'))"
    )
    assert len(outcome.results) >= 1
    glyphs = [
        line for line in outcome.stderr.splitlines() if "of mine" not in line and "warnings.warn" not in line
    ]
    assert len(glyphs) == 1
    assert glyphs[0].startswith("UserWarning: no font here has 中文標籤, which are drawn as boxes; ")
    assert "of mine" in outcome.stderr


def test_fonts_of_packages_have_what_is_missing(data_context, tmp_path):
    """Behind whatever fonts a style asks for; the package is not imported."""
    made = data_context.run(MAKE_PACKAGE.format(packages=str(tmp_path)))
    assert made.error is None, made.traceback

    for style in ("", "plt.rcParams['font.family'] = ['serif']\n", "plt.style.use('seaborn-v0_8')\n"):
        outcome = data_context.run(f"{PLT}{style}plt.title('中 a');")
        assert outcome.error is None, outcome.traceback
        assert outcome.stderr == ""


def test_fonts_of_the_system_come_first():
    """The regular one of the first family that is there."""
    entries = [
        SimpleNamespace(name=name, style=style, weight=weight, fname=f"{name} {style} {weight}")
        for name, style, weight in (
            ("WenQuanYi Zen Hei", "normal", 400),
            ("Noto Sans CJK JP", "normal", 700),
            ("Noto Sans CJK JP", "italic", 400),
            ("Noto Sans CJK JP", "normal", 400),
            ("Noto Emoji", "normal", 400),
        )
    ]
    found = fonts._paths(SimpleNamespace(ttflist=entries))
    assert found[:2] == ["Noto Sans CJK JP normal 400", "Noto Emoji normal 400"]
