"""Errors between the caller and a model: a branch of the error tree of its own.

Raised in the user's process by the providers, through the agent, to the caller. Messages of a server are bounded and
their control characters are escaped; keys never enter a message. A failure of the model's code is none of these: it
goes back to the model.

    ModelError
    ├── ModelAuthenticationError (PermissionError)   401, 403, or no key at all
    ├── ModelRateLimitError                          429: how long to wait, where the server said it
    ├── ModelOverloadedError                         5xx, or overloaded
    ├── ModelContextLengthError                      the conversation no longer fits
    ├── ModelRequestError                            another refusal of the request, such as an unknown model
    ├── ModelConnectionError (ConnectionError)       no connection, or no answer in time
    └── ModelAnswerError                             the answer broke off, or is not what the API promises
"""

from __future__ import annotations

from fumehood import FumehoodError
from fumehood.text import visible_line

_MAX_REASON_CHARACTERS = 600


class ModelError(FumehoodError):
    """The request to the model failed, or its answer was lost.

    Attributes:
        provider: The API, such as `openai-chat`.
        model: The model.
        reason: The message of the server or the SDK.
    """

    code = "model_error"
    what = "failed"
    way_out = "the message above is the provider's; the conversation is as it was before this request"

    def __init__(self, *, provider: str, model: str, reason: str) -> None:
        self.provider = provider
        self.model = model
        self.reason = visible_line(reason.strip(), max_characters=_MAX_REASON_CHARACTERS).rstrip(".! ")
        name = f"{visible_line(provider)}:{visible_line(model)}"
        shown = f": {self.reason}" if self.reason else ""
        super().__init__(f"model {name!r} {self.what}{shown}", hint=self.way_out)


class ModelAuthenticationError(ModelError, PermissionError):
    """The provider does not know the key, or the key may not use this model."""

    code = "model_authentication"
    what = "refused the key"
    way_out = "give `api_key`, or set OPENAI_API_KEY or ANTHROPIC_API_KEY; local servers take any"


class ModelRateLimitError(ModelError):
    """The provider refuses further requests or tokens for now, and the SDK's own retries are used up.

    Attributes:
        retry_after_seconds: When it may be tried again, where the provider said it.
    """

    code = "model_rate_limit"
    what = "asks for patience"
    way_out = (
        "wait, or give the provider more `max_retries`; the conversation is as it was before this request"
    )

    def __init__(
        self, *, provider: str, model: str, reason: str, retry_after_seconds: float | None = None
    ) -> None:
        self.retry_after_seconds = retry_after_seconds
        after = "" if retry_after_seconds is None else f" (try again after {retry_after_seconds:g} s)"
        super().__init__(provider=provider, model=model, reason=f"{reason.strip().rstrip('.! ')}{after}")


class ModelOverloadedError(ModelError):
    """The provider has trouble of its own, and the SDK's own retries are used up."""

    code = "model_overloaded"
    what = "is overloaded or out of order"
    way_out = "try again later; the conversation is as it was before this request"


class ModelContextLengthError(ModelError):
    """The conversation has become longer than the model can read."""

    code = "model_context_length"
    what = "cannot read a conversation of this length"
    way_out = (
        "begin a new one with `reset()`: variables and files of the sandbox stay; or lower `max_text_chars`"
    )


class ModelRequestError(ModelError):
    """The provider refused the request as it is.

    Attributes:
        status: The HTTP status, or None when there was none.
    """

    code = "model_request"
    what = "refused the request"
    way_out = (
        "check the model's name, `base_url` and options; a model without tool calls wants `fenced=True`, "
        "one without eyes `images=False`"
    )

    def __init__(self, *, provider: str, model: str, reason: str, status: int | None = None) -> None:
        self.status = status
        said = reason if status is None else f"HTTP {status}: {reason}"
        super().__init__(provider=provider, model=model, reason=said)


class ModelConnectionError(ModelError, ConnectionError):
    """The connection failed, or there was no answer in time."""

    code = "model_connection"
    what = "cannot be reached"
    way_out = "check `base_url` and the network; the conversation is as it was before this request"


class ModelAnswerError(ModelError):
    """The answer broke off in the middle, or is not what the API promises."""

    code = "model_answer"
    what = "gave an answer that cannot be used"
    way_out = "nothing of that answer was kept or run; ask again"
