"""Tokens as the provider counts them, and their cost by the caller's prices.

Plain values of the user's process. Nothing is estimated: tokens that a provider did not count are unknown, and a model
without a price has no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_PER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """The tokens of one request, as the provider counted them.

    Attributes:
        input_tokens: Tokens that the model read, cached or not.
        output_tokens: Tokens that it wrote, thinking included.
        cached_tokens: Input tokens that came from the provider's cache.
        cache_write_tokens: Input tokens that were written to that cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a model, in your currency for each million tokens.

    Attributes:
        input: Tokens read.
        output: Tokens written.
        cached: Tokens read from the cache; None: not known.
        cache_write: Tokens put into the cache; None: not known.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None

    def cost(self, tokens: TokenUsage) -> float | None:
        """Return the cost of these tokens, or None when some of them have no price."""
        kinds = (
            (tokens.input_tokens - tokens.cached_tokens - tokens.cache_write_tokens, self.input),
            (tokens.output_tokens, self.output),
            (tokens.cached_tokens, self.cached),
            (tokens.cache_write_tokens, self.cache_write),
        )
        total = 0.0

        for count, price in kinds:
            if count and price is None:
                return None

            total += count * (price or 0.0)

        return total / _PER


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUsage:
    """The usage of a turn or a conversation.

    Attributes:
        requests: Requests to the model.
        uncounted_requests: The number of requests without a token count from the provider, such as interrupted ones.
        tokens: The sum over the counted requests.
        cost: The cost according to the price table; None when the model has no price in it or a request was not
            counted.
    """

    requests: int = 0
    uncounted_requests: int = 0
    tokens: TokenUsage = field(default_factory=TokenUsage)
    cost: float | None = None


class CostMeter:
    """Adds up requests.

    Args:
        model: Name of the model in the price table.
        prices: Prices of models, by name.
    """

    def __init__(self, model: str, prices: Mapping[str, Price]) -> None:
        self._price = prices.get(model)
        self._requests = 0
        self._uncounted = 0
        self._tokens = TokenUsage()

    def begin(self) -> None:
        """Count a request whose tokens are not known yet."""
        self._requests += 1
        self._uncounted += 1

    def count(self, tokens: TokenUsage | None) -> None:
        """Add the tokens that the provider counted for the latest request."""
        if tokens is not None:
            self._uncounted -= 1
            self._tokens += tokens

    def add(self, other: CostMeter) -> None:
        """Add the requests of another meter of the same model."""
        self._requests += other._requests
        self._uncounted += other._uncounted
        self._tokens += other._tokens

    @property
    def usage(self) -> AgentUsage:
        """The sum so far."""
        price = None if self._uncounted else self._price
        return AgentUsage(
            requests=self._requests,
            uncounted_requests=self._uncounted,
            tokens=self._tokens,
            cost=None if price is None else price.cost(self._tokens),
        )
