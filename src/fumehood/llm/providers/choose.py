"""Chooses a provider by a model's name, such as `anthropic:claude-...`.

Only the part before the first colon is ours; no SDK is loaded before the first request, but a provider whose SDK is not
installed is refused at once.
"""

from __future__ import annotations

from fumehood import InvalidArgumentError
from fumehood.llm.providers.anthropic_messages import AnthropicMessages
from fumehood.llm.providers.base import Provider
from fumehood.llm.providers.fenced import FencedProvider
from fumehood.llm.providers.openai_chat import OpenAIChat
from fumehood.llm.providers.openai_responses import OpenAIResponses

# The part before the colon: the API.
_DIALECTS: dict[str, type[OpenAIResponses | OpenAIChat | AnthropicMessages]] = {
    "openai": OpenAIResponses,
    "openai-chat": OpenAIChat,
    "anthropic": AnthropicMessages,
}
_ALLOWED = '"openai:NAME" (Responses), "openai-chat:NAME" (Chat Completions), "anthropic:NAME" (Messages) or a Provider'


def choose_provider(
    model: str | Provider,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    images: bool = True,
    fenced: bool = False,
) -> Provider:
    """Return the provider that a caller has named.

    Args:
        model: Its name with the API before it, or the provider itself.
        base_url: Address of the server; only with a name.
        api_key: The key; only with a name.
        images: Whether the model can see; only with a name.
        fenced: Whether the model writes its code into its text, because it has no tool calls.

    Raises:
        InvalidArgumentError: The API is not known, or its SDK is not installed.
    """
    if isinstance(model, str):
        model = _by_name(model, base_url, api_key, images)
    elif not hasattr(model, "generate"):
        raise InvalidArgumentError(field="model", value=model, allowed=_ALLOWED)
    elif base_url is not None or api_key is not None or not images:
        raise InvalidArgumentError(
            field="model",
            value=model.name,
            allowed="a name beside `base_url`, `api_key` and `images`: a Provider has its own",
        )

    return FencedProvider(model) if fenced else model


def _by_name(model: str, base_url: str | None, api_key: str | None, images: bool) -> Provider:
    dialect, colon, name = model.partition(":")

    if dialect not in _DIALECTS or not colon or not name.strip():
        raise InvalidArgumentError(field="model", value=model, allowed=_ALLOWED)

    return _DIALECTS[dialect](name, base_url=base_url, api_key=api_key, images=images)
