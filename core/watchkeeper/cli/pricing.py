"""What imported model calls cost: list prices of the day of the call, looked up once for each model, day and
tier.

`models.prices.price` takes a fifth of a millisecond a call, and a gigabyte of log holds a hundred thousand of
them. Within a tier a cost is a sum of products, so that its rates are asked once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from watchkeeper.records.model import Cost, PriceStatus
from watchkeeper.transcripts.records import ModelCall

_DAY_SECONDS = 86_400
_UNPRICED = Cost(None, PriceStatus.UNPRICED)


class _Rates(NamedTuple):
    """Dollars a token."""

    input: float
    output: float
    read: float
    written: float
    written_1h: float


def list_pricing() -> Callable[[ModelCall], Cost]:
    """A pricing function by public list prices, both kinds of cache writes told apart. No network."""
    known: dict[tuple[str, int | None], tuple[tuple[float, ...], dict[int, _Rates]] | None] = {}

    def price(call: ModelCall) -> Cost:
        _, _, model, fresh, output, read, written, hour, exact, _, at, _, _, told, *_ = call
        status = PriceStatus.EXACT if exact else PriceStatus.ESTIMATED
        if told is not None and told > 0:
            return Cost(told, status)
        day = None if at is None else int(at // _DAY_SECONDS)
        try:
            found = known[model, day]
        except KeyError:
            starts = _tiers(call)
            found = known[model, day] = None if starts is None else (starts, {})
        if found is None:
            return _UNPRICED
        prompt = fresh + read + written
        tier = bisect_left(found[0], prompt)
        rates = found[1].get(tier)
        if rates is None:
            rates = found[1][tier] = _rates(call, max(1, prompt))
        a, b, c, d, e = rates
        return Cost(a * fresh + b * output + c * read + d * (written - hour) + e * hour, status)

    return price


def _when(call: ModelCall) -> datetime | None:
    return None if call.at is None else datetime.fromtimestamp(call.at, UTC)


def _tiers(call: ModelCall) -> tuple[float, ...] | None:
    """Prompt sizes above which the model's prices change; None where nobody knows the model."""
    provider, _, name = call.model.partition("/")
    if not name:
        return None
    from genai_prices import Usage, calc_price
    from genai_prices.types import TieredPrices

    try:
        found = calc_price(
            Usage(input_tokens=1), name, provider_id=provider, genai_request_timestamp=_when(call)
        )
    except (LookupError, ValueError, OverflowError):
        return None
    prices = [price for price in vars(found.model_price).values() if isinstance(price, TieredPrices)]
    return tuple(sorted({float(tier.start) for price in prices for tier in price.tiers}))


def _rates(call: ModelCall, prompt: int) -> _Rates:
    """What one token of each kind costs in a call with a prompt of that size."""
    from genai_prices import Usage, calc_price

    provider, _, name = call.model.partition("/")

    def usd(**tokens: int) -> float:
        usage = Usage(input_tokens=prompt, **tokens)
        return float(
            calc_price(usage, name, provider_id=provider, genai_request_timestamp=_when(call)).total_price
        )

    plain = usd()
    return _Rates(
        plain / prompt,
        (usd(output_tokens=1_000_000) - plain) / 1_000_000,
        usd(cache_read_tokens=prompt) / prompt,
        usd(cache_write_tokens=prompt) / prompt,
        usd(cache_write_tokens=prompt, cache_write_1h_tokens=prompt) / prompt,
    )
