"""The base class of providers over an official SDK: makes the client at first use, closes it once, streams an answer.

The SDKs are alike; a subclass translates the format of its API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Protocol

from fumehood.llm.providers.base import ModelRequest, Written
from fumehood.llm.providers.sdk_errors import Speaker, translated


class Answer(Protocol):
    """Assembles the events of a stream."""

    def add(self, event: Any) -> list[Written]:
        """Take an event; return the text and code in it."""

    def finish(self) -> Written:
        """Return the whole message."""


class SdkProvider(ABC):
    """A model behind an official SDK.

    Args:
        model: Its name.
        base_url: Address of the server; None: what the SDK takes.
        api_key: The key; None: the SDK's environment variable.
        images: Whether the model can see.
        options: More for each request.
        max_retries: How often the SDK repeats a request that found the server busy or unreachable.
        timeout: Seconds without a sign of the server after which a request has failed.
    """

    name: ClassVar[str]

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        images: bool = True,
        options: Mapping[str, object] | None = None,
        max_retries: int = 2,
        timeout: float = 600.0,
    ) -> None:
        self.model = model
        self._images = images
        self._options = dict(options or {})
        self._settings = {
            "base_url": base_url,
            "api_key": api_key,
            "max_retries": max_retries,
            "timeout": timeout,
        }
        self._client: Any = None

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        """Ask the model; described at `Provider`."""
        speaker = Speaker(self.name, self.model)
        asked = {"model": self.model, "stream": True, **self._asked(request), **self._options}

        with speaker.translating():
            if self._client is None:
                self._client = self._connect(self._settings)

            stream = await self._begin(self._client, asked)

        answer = self._answer(speaker, "" if request.tool is None else request.tool.name)

        async with stream, aclosing(translated(speaker, aiter(stream))) as events:
            async for event in events:
                for piece in answer.add(event):
                    yield piece

        yield answer.finish()

    async def close(self) -> None:
        """Close connections."""
        client, self._client = self._client, None

        if client is not None:
            await client.close()

    @abstractmethod
    def _connect(self, settings: dict[str, Any]) -> Any:
        """Returns the SDK's client."""

    @abstractmethod
    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        """Returns the request in the API's format, without the model and the stream flag."""

    @abstractmethod
    async def _begin(self, client: Any, asked: dict[str, Any]) -> Any:
        """Sends the request; returns the SDK's stream."""

    @abstractmethod
    def _answer(self, speaker: Speaker, tool: str) -> Answer:
        """Returns an assembler for the events of one answer."""
