"""The base class of providers over an official SDK, and the translation of the SDKs' exceptions into our errors.

The SDKs are alike, so one class makes the client at first use, closes it once and streams an answer; a subclass
translates the format of its API. Exceptions are translated by their classes first, then by the status, and by the text
of the body where servers of the same API differ in their codes.
"""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from fumehood import InvalidArgumentError
from fumehood.llm.model_errors import (
    ModelAnswerError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextLengthError,
    ModelError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRequestError,
)
from fumehood.llm.providers.base import ModelRequest, Written

_T = TypeVar("_T")

# The messages of OpenAI, Anthropic, llama.cpp, vLLM and Ollama about a conversation that is too long.
_TOO_LONG = (
    "context_length_exceeded",
    "exceed_context_size",
    "context length",
    "context size",
    "context window",
    "prompt is too long",
    "too many tokens",
)


class Speaker:
    """Makes the errors of one request.

    Args:
        provider: The API.
        model: The model's name.
    """

    def __init__(self, provider: str, model: str) -> None:
        self.provider = provider
        self.model = model
        self.has_begun = False

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Translate exceptions of an SDK in the block into fumehood errors."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def broke_off(self) -> ModelAnswerError:
        """Return the error for an answer that broke off before its end."""
        return self.unusable("the stream ended before the answer did")

    def unusable(self, reason: str) -> ModelAnswerError:
        """Return the error for an answer that violates the API."""
        return ModelAnswerError(provider=self.provider, model=self.model, reason=reason)

    def said(self, code: str, reason: str, *, status: int | None = None) -> ModelError:
        """Return the error for a server's message in a body or in the middle of a stream."""
        words = f"{code} {reason}".lower()
        if status in (401, 403) or "authentication_error" in words or "invalid_api_key" in words:
            return ModelAuthenticationError(provider=self.provider, model=self.model, reason=reason)

        # Before the next check: rate limits mention tokens as well.
        if status == 429 or "rate_limit" in words:
            return ModelRateLimitError(provider=self.provider, model=self.model, reason=reason)

        if any(phrase in words for phrase in _TOO_LONG):
            return ModelContextLengthError(provider=self.provider, model=self.model, reason=reason)

        if (
            (status or 0) >= 500
            or status == 408
            or any(word in words for word in ("overloaded", "server_error", "api_error"))
        ):
            return ModelOverloadedError(provider=self.provider, model=self.model, reason=reason)

        return ModelRequestError(provider=self.provider, model=self.model, reason=reason, status=status)

    def _translate(self, error: Exception) -> Exception:
        sdk = type(error).__module__.partition(".")[0]
        names = {kind.__name__ for kind in type(error).__mro__}
        reason = str(getattr(error, "message", "") or error)

        # One of the SDKs passes transport errors through in the middle of a stream.
        if "APIConnectionError" in names or sdk in ("httpx2", "httpx"):
            cause = f"{reason} ({error.__cause__})" if error.__cause__ is not None else reason

            if self.has_begun:
                return self.unusable(f"the connection was lost in the middle: {cause}")

            return ModelConnectionError(provider=self.provider, model=self.model, reason=cause)

        if isinstance(error, ValueError) and sdk in ("json", "pydantic_core", "builtins", "jiter"):
            return self.unusable(f"it cannot be read: {error}")

        # Raised before any request, without a key.
        has_no_key = isinstance(error, TypeError) and "authentication method" in reason

        if sdk not in ("openai", "anthropic") and not has_no_key:
            return error

        if "APIError" not in names:
            return ModelAuthenticationError(provider=self.provider, model=self.model, reason=reason)

        return self._translate_status(error, reason)

    def _translate_status(self, error: Exception, reason: str) -> ModelError:
        status = getattr(error, "status_code", None)
        code, words = _body(getattr(error, "body", None))
        # An error in the middle of a stream comes with the status of the stream, which is no failure.
        failed = status if isinstance(status, int) and status >= 400 else None
        ours = self.said(code, words or reason, status=failed)

        if isinstance(ours, ModelRateLimitError):
            after = _retry_after(getattr(error, "response", None))
            return ModelRateLimitError(
                provider=self.provider, model=self.model, reason=words or reason, retry_after_seconds=after
            )

        return ours


async def translated(speaker: Speaker, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """Yield the items of an SDK's stream, with its errors translated."""
    while True:
        with speaker.translating():
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return

        speaker.has_begun = True
        yield item


def _body(body: object) -> tuple[str, str]:
    """Return the error code and the message from the body of an error response; empty where it has none."""
    if not isinstance(body, Mapping):
        return "", ""

    inner = body.get("error")
    fields: Mapping[str, object] = inner if isinstance(inner, Mapping) else body
    code = " ".join(str(fields.get(name) or "") for name in ("type", "code"))
    message = fields.get("message")
    return code, message if isinstance(message, str) else ""


def _retry_after(response: object) -> float | None:
    headers = getattr(response, "headers", None)

    if headers is None:
        return None

    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") / unit
        except ValueError:
            continue

        if math.isfinite(seconds) and seconds >= 0:
            return seconds

    return None


class StreamedAnswer(Protocol):
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

    Raises:
        InvalidArgumentError: The SDK is not installed.
    """

    name: ClassVar[str]
    # The SDK's package, which is also the name of our extra.
    sdk: ClassVar[str]

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
        # It is loaded at the first request; that it is missing is reported at once.
        if importlib.util.find_spec(self.sdk) is None:
            raise InvalidArgumentError(
                field="model",
                value=f"{self.name}:{model}",
                allowed=f"{self.sdk}, which is not installed",
                extra=self.sdk,
            )

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
    def _answer(self, speaker: Speaker, tool: str) -> StreamedAnswer:
        """Returns an assembler for the events of one answer."""
