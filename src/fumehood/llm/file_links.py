"""Publishes files of a sandbox for users, and rewrites links in answers to published addresses.

Models write `sandbox:/mnt/data/x`, an address that cannot be opened: here it becomes the address under which the file
was published, or its plain name. The answer is text of a model that has read a guest's output: only its links are
parsed, and the part of a stream that is held back is bounded.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote, unquote

from fumehood import ArtifactStore, AsyncSandbox, PublishedFile, SignedFiles

_SCHEME = "sandbox:"
# The start of a possible link: a picture, a link, the end of a link's text, a bare address.
_START = re.compile(r"!?\[|\]\(|(?<![A-Za-z0-9_])sandbox:/", re.IGNORECASE | re.ASCII)
_INTO = re.compile(r"\(\s{0,8}<?\s{0,8}", re.ASCII)
_TITLE = re.compile(r"(?<!\s)\s++(?:\"[^\"\n]*+\"|'[^'\n]*+')\s*+$")
# The end of a bare address, and punctuation of a sentence behind it.
_END = re.compile(r"[\s<>\"'`|()\[\]{}\\]")
_GOES_ON = re.compile(r"[A-Za-z0-9_]|[./-][A-Za-z0-9_]", re.ASCII)
_TRAILING = ".,;:!?*_~"
# Longer texts and addresses are no links.
_MAX_TEXT_CHARACTERS = 1_000
_MAX_ADDRESS_CHARACTERS = 2_000
_MAX_NAME_CHARACTERS = 200


class Publisher(Protocol):
    """Publishes files of a sandbox, such as an `AsyncArtifactStore`."""

    async def publish(
        self, sandbox: AsyncSandbox, paths: Iterable[str] | None = None
    ) -> Sequence[PublishedFile]:
        """Publish these files; those that are left out have no `url`."""


class LinkedFile(Protocol):
    """A file with its path in the sandbox and its address, such as a `ToolFile` or a `PublishedFile`."""

    @property
    def path(self) -> str:
        """Its path in the sandbox."""

    @property
    def url(self) -> str | None:
        """Its public address, or None."""


def publisher_of(publisher: Publisher | ArtifactStore | SignedFiles | None) -> Publisher | None:
    """Return the asynchronous form of a publisher."""
    return publisher.async_impl if isinstance(publisher, ArtifactStore | SignedFiles) else publisher


def rewrite_links(text: str, files: Iterable[LinkedFile]) -> str:
    """Return an answer with each `sandbox:` link replaced by a public address or a plain name.

    Args:
        text: The answer, in Markdown or plain.
        files: The published files.
    """
    rewriter = LinkRewriter(files)
    return rewriter.feed(text) + rewriter.finish()


class LinkRewriter:
    """Rewrites the links of a streamed answer; a link may be cut anywhere.

    Args:
        files: The files published so far.
    """

    def __init__(self, files: Iterable[LinkedFile] = ()) -> None:
        self._addresses: dict[str, str | None] = {}
        self._held = ""
        # The character before the held text: it shows whether a word begins.
        self._before = ""
        self.add(files)

    def add(self, files: Iterable[LinkedFile]) -> None:
        """Add files that have been published meanwhile."""
        for file in files:
            if file.path:
                self._addresses[file.path] = (
                    None if file.url is None else quote(file.url, safe="%/:?#@!$&'*+,;=~")
                )

    def feed(self, text: str) -> str:
        """Return the text that can be shown after this piece."""
        self._held += text
        return self._release(is_end=False)

    def finish(self) -> str:
        """Return the rest."""
        return self._release(is_end=True)

    def _release(self, *, is_end: bool) -> str:
        # The character before is only for the search.
        text, start = self._before + self._held, len(self._before)
        done: list[str] = []
        place = start

        while (found := _START.search(text, place)) is not None:
            done.append(text[place : found.start()])
            step = _Link(text, found, self._addresses, is_end=is_end).rewritten()

            if step is None:
                self._keep(text, found.start())
                return "".join(done)

            done.append(step[0])
            place = step[1]

        cut = len(text) if is_end else max(place, _complete_length(text))
        done.append(text[place:cut])
        self._keep(text, cut)
        return "".join(done)

    def _keep(self, text: str, place: int) -> None:
        self._before = text[place - 1 : place]
        self._held = text[place:]


class _Link:
    """A possible link, from its possible start."""

    def __init__(
        self, text: str, found: re.Match[str], addresses: Mapping[str, str | None], *, is_end: bool
    ) -> None:
        self._text = text
        self._start = found.start()
        self._mark = found[0]
        self._addresses = addresses
        self._is_end = is_end

    def rewritten(self) -> tuple[str, int] | None:
        """Return its replacement, and the position behind it; None when more text is needed to decide."""
        match self._mark:
            case "![" | "[":
                return self._whole()
            case "](":
                return self._into(self._start + 1, words="]", is_whole=False)
            case _:
                return self._alone(self._start)

    def _whole(self) -> tuple[str, int] | None:
        opened = self._start + len(self._mark)
        # No further than a link's text may reach: otherwise a row of brackets would be searched to its end from each of
        # them.
        limit = min(len(self._text), opened + _MAX_TEXT_CHARACTERS + 1)
        ends = [self._text.find(mark, opened, limit) for mark in "[]\n"]
        end = min((place for place in ends if place >= 0), default=limit)

        if end - opened > _MAX_TEXT_CHARACTERS:
            return self._plain()

        if end + 1 >= len(self._text):
            return self._plain() if self._is_end or self._text[end : end + 1] in ("[", "\n") else None

        if self._text[end : end + 2] != "](":
            return self._plain()

        return self._into(end + 1, words=self._text[opened:end], is_whole=True)

    def _into(self, opening: int, *, words: str, is_whole: bool) -> tuple[str, int] | None:
        """Parse the part in parentheses, from `opening`."""
        into = _INTO.match(self._text, opening)
        assert into is not None, "it begins with a parenthesis"
        scheme = self._text[into.end() : into.end() + len(_SCHEME)].lower()

        if scheme != _SCHEME:
            may_come = (
                not self._is_end
                and _SCHEME.startswith(scheme)
                and into.end() + len(scheme) == len(self._text)
            )
            return None if may_come else self._plain()

        closing = self._closing(into.end())

        if closing is None:
            return None

        if closing < 0:
            return self._plain()

        title = _TITLE.search(self._text, into.end(), closing)
        inner = self._text[into.end() : closing if title is None else title.start()]
        inner = inner.strip().removesuffix(">").strip()
        path = self._path(inner[len(_SCHEME) :])
        url = self._addresses.get(path)

        if url is None:
            return self._named(words, path, is_whole=is_whole), closing + 1

        head = f"{self._mark}{words}]" if is_whole else words
        return f"{head}({url}{'' if title is None else title[0].rstrip()})", closing + 1

    def _named(self, words: str, path: str, *, is_whole: bool) -> str:
        name = _name(path)

        if not is_whole:
            return f"{words} ({name})"

        return name if words.strip("`* ") in ("", name) else f"{words} ({name})"

    def _closing(self, start: int) -> int | None:
        """Return where the parenthesis ends; None when that is not known yet, below 0 when it does not."""
        depth = 0
        end = min(len(self._text), start + _MAX_ADDRESS_CHARACTERS)

        for place in range(start, end):
            character = self._text[place]

            if character == "\n":
                return -1

            if character == ")" and depth == 0:
                return place

            depth += (character == "(") - (character == ")")

        is_over = self._is_end or end < len(self._text) or end - start >= _MAX_ADDRESS_CHARACTERS
        return -1 if is_over else None

    def _alone(self, start: int) -> tuple[str, int] | None:
        begin = start + len(_SCHEME)
        known = self._longest_known(begin)

        if known is None:
            return None

        if known:
            path, end = known
            return self._addresses[path] or _name(path), end

        ending = _END.search(self._text, begin, begin + _MAX_ADDRESS_CHARACTERS)

        if ending is None and not self._is_end and len(self._text) < begin + _MAX_ADDRESS_CHARACTERS:
            return None

        end = begin + _MAX_ADDRESS_CHARACTERS if ending is None else ending.start()
        address = self._text[begin:end]
        kept = address.rstrip(_TRAILING)
        path = self._path(kept)
        return self._addresses.get(path) or _name(path), begin + len(kept)

    def _longest_known(self, begin: int) -> tuple[str, int] | tuple[()] | None:
        """Return the longest published path here, spaces included; None when a longer one may still follow."""
        rest = self._text[begin : begin + _MAX_ADDRESS_CHARACTERS]
        best: tuple[str, int] | tuple[()] = ()

        for path in self._addresses:
            for form in (path, quote(path)):
                following = rest[len(form) : len(form) + 2]
                stands_here = form.startswith(rest) or rest.startswith(form)

                if stands_here and len(following) < 2 and not self._is_end:
                    return None

                # A longer name is another file.
                if (
                    rest.startswith(form)
                    and not _GOES_ON.match(following)
                    and (not best or begin + len(form) > best[1])
                ):
                    best = (path, begin + len(form))

        return best

    def _plain(self) -> tuple[str, int]:
        return self._mark, self._start + len(self._mark)

    def _path(self, written: str) -> str:
        for path in (written, unquote(written)):
            if path in self._addresses:
                return path

        return posixpath.normpath("/" + unquote(written).lstrip("/"))


def _name(path: str) -> str:
    last = posixpath.basename(path)[:_MAX_NAME_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in last) or "file"


def _complete_length(text: str) -> int:
    """Return how much of a text cannot become part of a link: its end may be the beginning of `sandbox:/`."""
    for length in range(min(len(_SCHEME), len(text)), 0, -1):
        if f"{_SCHEME}/".startswith(text[-length:].lower()):
            return len(text) - length

    return len(text) - text.endswith(("!", "]"))
