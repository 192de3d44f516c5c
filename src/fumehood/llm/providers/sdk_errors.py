"""Translates exceptions of the SDKs into errors of our tree.

Both SDKs are alike, so one function serves both: by their classes first, then by the status, and by the text of the
body where servers of the same API differ in their codes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

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
        """Raise exceptions of an SDK in the block as errors of ours."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def broke_off(self) -> ModelAnswerError:
        """Return the error of an answer without an end."""
        return self.unusable("the stream ended before the answer did")

    def unusable(self, reason: str) -> ModelAnswerError:
        """Return the error of an answer that is not what the API promises."""
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
    """Return the code and the text of an error's body, in any of the servers' forms."""
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
