"""Models by reference, such as `anthropic/claude-sonnet-5`, and their prices."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import Cost, Model, PriceStatus, Usage

if TYPE_CHECKING:
    from watchkeeper.models.failures import RetryPolicy
    from watchkeeper.records.ports import Clock

# --- What a call costs --------------------------------------------------------------------------------------
#
# By the public prices that genai-prices carries as data, without the network. A model without a known price
# is unpriced: its cost is None, never zero, and every sum over it says so.

DAY_SECONDS = 86_400

UNPRICED = Cost(None, PriceStatus.UNPRICED)
FREE = Cost(0.0, PriceStatus.EXACT)
"""The offline surveyor runs here: it costs nothing, and that is known exactly."""


def price(
    model_ref: str,
    usage: Usage,
    exact: bool = True,
    *,
    base_url: str | None = None,
    at: float | None = None,
    hour_writes: int = 0,
    price_list: _PriceList | None = None,
) -> Cost:
    """USD of one call, at the list prices of its day.

    Args:
        exact: `Reply.usage_exact`. The cost is `estimated` if the usage was, or if `base_url` is another
            server than the provider's own: a proxy may charge differently.
        at: the time of the call in seconds since 1970; None: now.
        hour_writes: how many of the tokens written to the cache are kept for an hour, which costs more.
        price_list: the rates of a provider's model on a day; None: by the price data, in this process.
    """
    provider, _, name = model_ref.partition("/")
    if provider == "offline":
        return FREE
    day = (time.time() if at is None else at) // DAY_SECONDS
    found = (price_list or _price_list)(provider, name, day)
    if not found:
        return UNPRICED
    rates = next((one for start, one in found if usage.prompt_tokens > start), found[-1][1])
    micro_usd = (
        rates.input_usd * usage.input_tokens
        + rates.output_usd * usage.output_tokens
        + rates.cache_read_usd * usage.cache_read_tokens
        + rates.cache_write_usd * (usage.cache_write_tokens - hour_writes)
        + rates.hour_write_usd * hour_writes
    )
    own_server = _is_own_server(provider, base_url)
    return Cost(micro_usd / 1e6, PriceStatus.EXACT if exact and own_server else PriceStatus.ESTIMATED)


class LoggedUsage(Protocol):
    """A model call as another program logged it (see `transcripts.records.ModelCall`)."""

    @property
    def model(self) -> str: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def cache_write_1h_tokens(self) -> int: ...
    @property
    def exact(self) -> bool: ...
    @property
    def at(self) -> float | None: ...
    @property
    def cost_usd(self) -> float | None: ...


def logged_price(call: LoggedUsage) -> Cost:
    """The cost of a logged call: the one that the program logged, else by the list prices of its day."""
    return _logged_price(call, _price_list)


def logged_price_apart(call: LoggedUsage) -> Cost:
    """As `logged_price`, for a process that runs all day: it does not load the price data, which take 20 MB. A process
    that ends reads the prices of a model in them, for `DAYS_APART` days at once."""
    return _logged_price(call, _price_list_apart)


def _logged_price(call: LoggedUsage, price_list: _PriceList) -> Cost:
    if call.cost_usd is not None and call.cost_usd > 0:
        return Cost(call.cost_usd, PriceStatus.EXACT if call.exact else PriceStatus.ESTIMATED)
    usage = Usage(call.input_tokens, call.output_tokens, call.cache_read_tokens, call.cache_write_tokens)
    hour_writes = call.cache_write_1h_tokens
    return price(call.model, usage, call.exact, at=call.at, hour_writes=hour_writes, price_list=price_list)


def is_priced(model_ref: str) -> bool:
    """Whether `price` knows this model: a budget in USD cannot be kept for one that it does not."""
    return price(model_ref, Usage()).usd is not None


@dataclass(frozen=True, slots=True)
class Rates:
    """List prices in USD per million tokens."""

    input_usd: float
    output_usd: float
    cache_read_usd: float
    cache_write_usd: float
    hour_write_usd: float

    def __str__(self) -> str:
        return f"${self.input_usd:g} in, ${self.output_usd:g} out per million tokens"


def rates(model_ref: str) -> Rates | None:
    """What a model's tokens cost today in a short prompt; None for a model without a price."""
    provider, _, name = model_ref.partition("/")
    if provider == "offline":
        return Rates(0.0, 0.0, 0.0, 0.0, 0.0)
    found = _price_list(provider, name, time.time() // DAY_SECONDS)
    return found[-1][1] if found else None


@lru_cache(maxsize=4096)
def _price_list(provider: str, name: str, day: float) -> tuple[tuple[float, Rates], ...]:
    """The rates on a day, each with the size of a prompt above which they hold, the largest first; empty for a
    model without a price.

    A look-up takes a fifth of a millisecond, and a gigabyte of logs holds a hundred thousand calls.
    """
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    if provider == "openai-chat":
        # A name with a slash is OpenRouter's; any other may be one of OpenAI's own.
        provider = "openrouter" if "/" in name else "openai"
    from genai_prices.types import PriceCalculation, TieredPrices

    def priced(**tokens: int) -> PriceCalculation:
        noon = datetime.fromtimestamp((day + 0.5) * DAY_SECONDS, UTC)
        return calc_price(Tokens(**tokens), name, provider_id=provider, genai_request_timestamp=noon)

    def rates_above(start: float) -> Rates:
        # One more token moves the whole prompt into this tier; the total includes what the cache serves.
        prompt = int(start) + 1
        million = 1_000_000 / prompt
        plain = float(priced(input_tokens=prompt).total_price)
        output = float(priced(input_tokens=prompt, output_tokens=1_000_000).total_price) - plain
        cached = (
            float(priced(input_tokens=prompt, **dict.fromkeys(kinds, prompt)).total_price)
            for kinds in (
                ("cache_read_tokens",),
                ("cache_write_tokens",),
                ("cache_write_tokens", "cache_write_1h_tokens"),
            )
        )
        usd = (plain * million, output, *(each * million for each in cached))
        return Rates(*(round(each, 6) for each in usd))

    try:
        prices = vars(priced(input_tokens=1).model_price).values() if name else ()
    except (LookupError, ValueError, OverflowError):  # no such model, or a day that no calendar has
        prices = ()
    starts = {float(tier.start) for one in prices if isinstance(one, TieredPrices) for tier in one.tiers}
    return (
        tuple((start, rates_above(start)) for start in sorted(starts | {0.0}, reverse=True)) if prices else ()
    )


_PriceList = Callable[[str, str, float], tuple[tuple[float, Rates], ...]]

DAYS_APART = 64
"""Days of prices that are read at once, for a model."""

_READ_PRICES = "import sys; from watchkeeper.models.registry import _print_prices; _print_prices(*sys.argv[1:3], int(sys.argv[3]))"


def _price_list_apart(provider: str, name: str, day: float) -> tuple[tuple[float, Rates], ...]:
    try:
        number = int(day)
        return _prices_apart(provider, name, number // DAYS_APART)[number % DAYS_APART]
    except (OSError, ValueError, OverflowError, subprocess.SubprocessError):
        return _price_list(provider, name, day)  # no process could be started: then here


@lru_cache(maxsize=64)
def _prices_apart(provider: str, name: str, group: int) -> list[tuple[tuple[float, Rates], ...]]:
    command = [sys.executable, "-P", "-c", _READ_PRICES, provider, name, str(group * DAYS_APART)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
    lists = [tuple((start, Rates(*usd)) for start, usd in one) for one in json.loads(done.stdout)]
    return [lists[place] for place in range(DAYS_APART)]


def _print_prices(provider: str, name: str, first: int) -> None:
    days = (_price_list(provider, name, float(day)) for day in range(first, first + DAYS_APART))
    print(json.dumps([[(start, astuple(one)) for start, one in each] for each in days]))


@cache
def context_window(model_ref: str) -> int | None:
    """Tokens of the model's window, where the price data knows it."""
    provider, _, name = model_ref.partition("/")
    if provider == "openai-chat":
        provider = "openrouter" if "/" in name else "openai"
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, model = get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    return model.context_window


def _is_own_server(provider: str, base_url: str | None) -> bool:
    if not base_url:
        return True
    host = urlsplit(base_url).hostname or ""
    own = f"{provider.removesuffix('-chat')}.com"
    return host == own or host.endswith(f".{own}")


SURVEYOR = "offline/surveyor"
"""Not a language model: a program that surveys a folder. It is used where it is named, and nowhere else."""

KNOWN = ("anthropic/<model>", "openai/<model>", "openai-chat/<model>", SURVEYOR)

PROVIDERS = frozenset({"anthropic", "openai", "openai-chat"})
"""Those of language models. Each has a table of the same name in the user's configuration."""

SUGGESTED = ("anthropic/claude-sonnet-5", "anthropic/claude-opus-5", "anthropic/claude-haiku-4-5")
"""Models that are offered to a user who named none. A test compares them with the price table."""

SUGGESTED_OPENAI = ("openai/gpt-5.5", "openai/gpt-5-mini")
"""The same, where there is a key for OpenAI."""


def provider_of(ref: str) -> str:
    """`openai` of `openai/gpt-5`."""
    return ref.strip().partition("/")[0]


def missing_key(ref: str, *, api_key_env: str | None = None, base_url: str | None = None) -> str | None:
    """The environment variable that should hold the key for `ref` and does not; None where nothing is missing,
    or no key is needed.

    `api_key_env` and `base_url` are the settings of the provider's table. Neither the network nor an SDK is
    used.
    """
    if provider_of(ref) == "anthropic":
        from watchkeeper.models import anthropic

        return anthropic.missing_key(ref, api_key_env=api_key_env, base_url=base_url)
    from watchkeeper.models import openai

    return openai.missing_key(ref, api_key_env=api_key_env, base_url=base_url)


def chosen_server(provider: str, configured: str | None) -> str | None:
    """The server that a provider's table names, else the environment; None: the provider's own."""
    variable = "ANTHROPIC_BASE_URL" if provider == "anthropic" else "OPENAI_BASE_URL"
    return (configured or os.environ.get(variable) or "").strip() or None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the user's own configuration may say about a model. Every default is a working one."""

    api_key: str | None = field(default=None, repr=False)
    """None: the SDK's own environment variables and profiles."""
    auth_token: str | None = field(default=None, repr=False)
    base_url: str | None = None
    """A server other than the provider's own; None: `ANTHROPIC_BASE_URL` or `OPENAI_BASE_URL`, or the
    provider's."""
    sends_key: bool = True
    """False: no key goes to the server, whatever the environment holds."""
    context_window: int | None = None
    """Tokens; None: what is known of the model, else the provider's default."""
    retries: RetryPolicy | None = None
    """None: `RetryPolicy()`."""
    prompt_cache: bool = True
    """Off for servers that refuse `cache_control`."""
    speed: float | None = 1.0
    """The surveyor's pace: 1 is a model's; None waits for nothing (`--speed max`)."""
    surveyor_window: int | None = None
    """Tokens of the surveyor's window, which decides the size of the pages that it asks for; None: its own.
    Where a session sets a limit of its own on contexts, that limit belongs here."""


def resolve(
    ref: str,
    *,
    config: ModelConfig | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> Model:
    """The model that `ref` names. Nothing is connected until it is called.

    Raises:
        BadInput: the provider or the model's name is missing or unknown; the line lists what is known.
    """
    config = config or ModelConfig()
    provider, slash, name = ref.strip().partition("/")
    if provider == "anthropic" and name:
        from watchkeeper.models.anthropic import AnthropicModel

        return AnthropicModel(
            name,
            api_key=config.api_key,
            auth_token=config.auth_token,
            base_url=config.base_url,
            context_window=config.context_window or context_window(ref),
            clock=clock,
            retries=config.retries,
            rng=rng,
            prompt_cache=config.prompt_cache,
            sends_key=config.sends_key,
        )
    if provider in ("openai", "openai-chat") and name:
        from watchkeeper.models.openai import ChatModel, ResponsesModel

        make = ResponsesModel if provider == "openai" else ChatModel
        return make(
            name,
            api_key=config.api_key,
            base_url=config.base_url,
            context_window=config.context_window or context_window(ref),
            clock=clock,
            retries=config.retries,
            rng=rng,
            sends_key=config.sends_key,
        )
    if (provider, name) == ("offline", "surveyor"):
        from watchkeeper.models.surveyor import DEFAULT_WINDOW, SurveyorModel

        window = config.surveyor_window or DEFAULT_WINDOW
        return SurveyorModel(speed=config.speed, clock=clock, context_window=window)
    vendor = next((vendor for prefix, vendor in _NAMES.items() if ref.strip().startswith(prefix)), None)
    hint = f"did you mean {vendor}/{ref.strip()}? " if vendor and not slash else ""
    raise BadInput(f"no model {ref!r}: {hint}known are {', '.join(KNOWN[:-1])} and {KNOWN[-1]}")


_NAMES = {"claude": "anthropic", "gpt-": "openai", "o3": "openai", "o4": "openai", "codex-": "openai"}
"""How the names of a vendor's models begin."""
