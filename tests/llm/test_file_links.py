"""Links of answers: whatever a model writes, and wherever a stream cuts it, people get an address or a plain name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from fumehood import ArtifactStore, AsyncArtifactStore, AsyncSandbox, PublishedFile
from fumehood.llm.file_links import LinkRewriter, publisher_of, rewrite_links

URL = "https://files.example/k/x.csv?sig=a%2Bb&e=1"


def file(path: str, url: str | None = URL) -> PublishedFile:
    return PublishedFile(name=path.rpartition("/")[2], mime="text/csv", size_bytes=1, url=url, path=path)


FILES = [
    file("/mnt/data/x.csv"),
    file("/mnt/data/my plot (1).png", "https://files.example/k/plot.png"),
    file("/mnt/data/over.csv", None),
    file("/mnt/data/deep/x.csv", "https://files.example/k/deep.csv"),
    file("", "https://files.example/figure"),
]
PLOT = "https://files.example/k/plot.png"

CASES = {
    "See [the table](sandbox:/mnt/data/x.csv).": f"See [the table]({URL}).",
    "![fig](sandbox:/mnt/data/my plot (1).png) done": f"![fig]({PLOT}) done",
    "![fig](<sandbox:/mnt/data/my plot (1).png>)": f"![fig]({PLOT})",
    "![](sandbox:/mnt/data/my%20plot%20%281%29.png)": f"![]({PLOT})",
    '[t](sandbox:/mnt/data/x.csv "A title")': f'[t]({URL} "A title")',
    "[t]( SANDBOX:/mnt/data/x.csv )": f"[t]({URL})",
    "It is at sandbox:/mnt/data/x.csv.": f"It is at {URL}.",
    "sandbox:/mnt/data/x.csv": URL,
    "`sandbox:/mnt/data/x.csv`": f"`{URL}`",
    "<sandbox:/mnt/data/x.csv>": f"<{URL}>",
    '<a href="sandbox:/mnt/data/x.csv">x</a>': f'<a href="{URL}">x</a>',
    "at sandbox:/mnt/data/my plot (1).png, see": f"at {PLOT}, see",
    "[x]: sandbox:/mnt/data/x.csv\n": f"[x]: {URL}\n",
    "[![a](sandbox:/mnt/data/x.csv)](sandbox:/mnt/data/deep/x.csv)": (
        f"[![a]({URL})](https://files.example/k/deep.csv)"
    ),
    "(sandbox:/mnt/data/x.csv)": f"({URL})",
    "sandbox:/mnt/data/x.csv.gz": "x.csv.gz",
    "sandbox:/mnt/data/x.csv2": "x.csv2",
    "sandbox:///mnt/data/x.csv": URL,
    "[all](sandbox:/mnt/data/over.csv)": "all (over.csv)",
    "[over.csv](sandbox:/mnt/data/over.csv)": "over.csv",
    "[`over.csv`](sandbox:/mnt/data/over.csv)": "over.csv",
    "![](sandbox:/mnt/data/nothing.png)": "nothing.png",
    "[t](sandbox:/mnt/data/nothing.png) [u](sandbox:/etc/passwd)": "t (nothing.png) u (passwd)",
    "sandbox:/mnt/data/../../etc/shadow!": "shadow!",
    "[t](sandbox:)": "t (file)",
    "nothing to do [here](https://x.example/a_(b)) and [there] (x)": None,
    "mysandbox:/mnt/data/x.csv": None,
    "sandbox: a place to play, sandbox:x": None,
    "a[0](1) b[1] ![ ]( [[x]] ] ( ) sandb": None,
    "[never closed": None,
    "[t](sandbox:/mnt/data/never closed\nnext": "[t](never closed\nnext",
    "ends with sandbox:": None,
    "!": None,
    "": None,
}


@pytest.mark.parametrize("text", CASES)
def test_links(text):
    assert rewrite_links(text, FILES) == (text if CASES[text] is None else CASES[text])


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_stream_may_be_cut_anywhere(text, size):
    text = f"Before. {text}\nAfter [x](y) it."
    rewriter = LinkRewriter(FILES)
    pieces = [rewriter.feed(text[place : place + size]) for place in range(0, len(text), size)]
    assert "".join(pieces) + rewriter.finish() == rewrite_links(text, FILES)


def test_what_is_no_link_is_not_held_back():
    rewriter = LinkRewriter(FILES)
    assert rewriter.feed("The mean is 4.2, ") == "The mean is 4.2, "
    assert rewriter.feed("as [") == "as "
    assert rewriter.feed("1] says. ") == "[1] says. "


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[a" * 50_000, "sandbox:/" + "x" * 100_000, "[t](sandbox:" * 2_000]
)
def test_what_is_held_back_is_bounded(text):
    """An answer that never closes its links costs no more than its length, and comes out."""
    rewriter = LinkRewriter(FILES)
    shown = sum(len(rewriter.feed(text[place : place + 50])) for place in range(0, len(text), 50))
    rest = rewriter.finish()
    assert len(rest) < 5_000
    assert shown + len(rest) > 0


def test_a_file_that_is_published_meanwhile():
    rewriter = LinkRewriter()
    first = rewriter.feed("sandbox:/mnt/data/x.csv and ")
    rewriter.add(FILES)
    assert first + rewriter.feed("sandbox:/mnt/data/x.csv") + rewriter.finish() == f"x.csv and {URL}"


def test_an_address_cannot_leave_its_link():
    odd = [file("/mnt/data/x.csv", "https://x.example/a b)(<script>")]
    assert (
        rewrite_links("[t](sandbox:/mnt/data/x.csv)", odd) == "[t](https://x.example/a%20b%29%28%3Cscript%3E)"
    )


def test_names_have_no_controls():
    assert rewrite_links("sandbox:/mnt/data/a\x1b[2Jb", []) == "a?[2Jb"


def test_stores_are_publishers(tmp_path):
    """The synchronous one through its async version; a publisher of one's own passes as it is."""

    class Own:
        async def publish(
            self, sandbox: AsyncSandbox, paths: Iterable[str] | None = None
        ) -> Sequence[PublishedFile]:
            return []

    own = Own()
    assert publisher_of(own) is own
    assert publisher_of(None) is None
    assert isinstance(publisher_of(ArtifactStore(tmp_path)), AsyncArtifactStore)

    async def scene() -> None:
        publisher = publisher_of(ArtifactStore(tmp_path))

        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("open('/mnt/data/x.csv', 'w').write('1')")
            files = await publisher.publish(sandbox, ["/mnt/data/x.csv"])
            assert rewrite_links("[x](sandbox:/mnt/data/x.csv)", files) == f"[x]({files[0].url})"

    asyncio.run(scene())
