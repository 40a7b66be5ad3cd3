"""Models by reference, such as `anthropic/claude-sonnet-5`, and their prices."""

from __future__ import annotations

import builtins
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from watchkeeper._version import __version__
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import Cost, Model, Periods, PriceStatus, Rates, Usage, rates_on

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

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


@dataclass(frozen=True, slots=True)
class Modifier:
    """What an attribute of a request makes of list prices, where the price list has no rates for it."""

    name: str
    """As `records.usage.modifier` writes it: `speed=fast`."""
    provider: str
    models: str
    """How the names of the models begin to which it applies; several are separated by spaces, and empty is every
    model."""
    factor: float
    """Multiplies the prices of all kinds of tokens; searches are not affected."""
    source: str
    """Where the factor is published, and the day on which it was read there."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt for which the factor is published; None: of any length."""


_FAST = "platform.claude.com/docs/en/build-with-claude/fast-mode, 2026-11-28"
_PRIORITY = "openai.com/api-priority-processing, 2026-11-28"
_LONG_CONTEXT = 272_000

MODIFIERS = (
    Modifier("speed=fast", "anthropic", "claude-opus-4-6 claude-opus-4-7", 6.0, _FAST),
    Modifier("speed=fast", "anthropic", "claude-opus-4-8 claude-opus-5", 2.0, _FAST),
    Modifier("processing=batch", "anthropic", "claude-", 0.5,
             "platform.claude.com/docs/en/about-claude/pricing, 2026-11-28"),
    Modifier("inference_geo=us", "anthropic", "claude-", 1.1,
             "platform.claude.com/docs/en/manage-claude/data-residency, 2026-11-28"),
    Modifier("service_tier=priority", "openai", "gpt-5.5", 2.5, _PRIORITY, _LONG_CONTEXT),
    Modifier("service_tier=priority", "openai", "gpt-5-mini", 1.8, _PRIORITY, _LONG_CONTEXT),
    Modifier("service_tier=priority", "openai", "gpt-5", 2.0, _PRIORITY, _LONG_CONTEXT),
)  # fmt: skip
"""The first that fits applies. Rates of the price list for such a request (`PriceVariant` of genai-prices) go before
it. A modifier that neither has makes an amount an estimate."""

_SAME_TIERS = {"service_tier=fast": "service_tier=priority"}
"""OpenAI renamed priority processing to fast mode on 2026-07-30; both names are valid."""


def price(
    model_ref: str,
    usage: Usage,
    exact: bool = True,
    *,
    base_url: str | None = None,
    at: float | None = None,
    hour_writes: int = 0,
    modifiers: tuple[str, ...] = (),
    searches: int = 0,
    lists: PriceLists | None = None,
) -> Cost:
    """USD of one call, at the list prices of its day.

    Args:
        exact: `Reply.usage_exact`. The cost is `estimated` if the usage was, or if `base_url` is another
            server than the provider's own: a proxy may charge differently.
        at: the time of the call in seconds since 1970; None: now.
        hour_writes: how many of the tokens written to the cache are kept for an hour, which costs more.
        modifiers: attributes of the request that change its price, as `records.usage.modifiers_of` gives them. The
            cost is `estimated` if the effect of one of them is not known.
        searches: web searches that the provider made.
        lists: where prices are looked up; None: `listed_models`.
    """
    provider, _, name = model_ref.partition("/")
    if provider == "offline":
        return FREE
    look_up = lists or listed_models
    at = time.time() if at is None else at
    rates = rates_on(look_up(provider, name).periods, at, usage.prompt_tokens)
    if rates is None:
        return UNPRICED
    for each in modifiers:
        rates, known = _modified(rates, each, provider, name, at, usage.prompt_tokens, look_up)
        exact = exact and known
    micro_usd = (
        rates.input_usd * usage.input_tokens
        + rates.output_usd * usage.output_tokens
        + rates.cache_read_usd * usage.cache_read_tokens
        + rates.cache_write_usd * (usage.cache_write_tokens - hour_writes)
        + rates.hour_write_usd * hour_writes
    )
    searched_usd = searches * (rates.search_usd or 0.0)
    exact = exact and (not searches or rates.search_usd is not None) and _is_own_server(provider, base_url)
    return Cost(micro_usd / 1e6 + searched_usd, PriceStatus.EXACT if exact else PriceStatus.ESTIMATED)


def _modified(
    rates: Rates, name: str, provider: str, model: str, at: float, prompt_tokens: int, look_up: PriceLists
) -> tuple[Rates, bool]:
    """The rates of a request with that modifier, and whether they are known to hold for it."""
    variants = look_up(provider, model).variants.get(name)
    listed = rates_on(variants, at, prompt_tokens) if variants else None
    if listed is not None:
        return listed, True
    same = _SAME_TIERS.get(name, name)
    for each in MODIFIERS:
        if (each.name, each.provider) != (same, provider.removesuffix("-chat")):
            continue
        if not any(model.startswith(begins) for begins in each.models.split() or ("",)):
            continue
        if each.longest_prompt is None or prompt_tokens <= each.longest_prompt:
            return rates.times(each.factor), True
    if variants and variants[-1][1]:  # listed since a later day: what holds then is the best guess
        return variants[-1][1][-1][1], False
    return rates, False


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
    @property
    def modifiers(self) -> tuple[str, ...]: ...
    @property
    def searches(self) -> int: ...


def logged_price(call: LoggedUsage, lists: PriceLists | None = None) -> Cost:
    """The cost of a logged call: the one that the program logged, else by the list prices of its day.

    It is unknown where the log does not count the prompt.
    """
    if call.cost_usd is not None and call.cost_usd > 0:
        return Cost(call.cost_usd, PriceStatus.EXACT if call.exact else PriceStatus.ESTIMATED)
    usage = Usage(call.input_tokens, call.output_tokens, call.cache_read_tokens, call.cache_write_tokens)
    if not call.exact and not usage.prompt_tokens:
        return UNPRICED  # every call has a prompt: the log does not count it
    return price(
        call.model, usage, call.exact, at=call.at, hour_writes=call.cache_write_1h_tokens,
        modifiers=call.modifiers, searches=call.searches, lists=lists,
    )  # fmt: skip


def imported_price(call: LoggedUsage) -> Cost:
    """As `logged_price`, by `remembered_prices`."""
    return logged_price(call, remembered_prices(listed_models))


def imported_price_apart(call: LoggedUsage) -> Cost:
    """As `imported_price`, for a process that runs all day: it does not load the price data, which take 20 MB."""
    return logged_price(call, remembered_prices(listed_models_apart))


def imported_window(model_ref: str) -> int | None:
    """As `context_window`, by `remembered_prices`."""
    return context_window(model_ref, remembered_prices(listed_models))


def imported_window_apart(model_ref: str) -> int | None:
    """As `imported_window`, for a process that runs all day."""
    return context_window(model_ref, remembered_prices(listed_models_apart))


def list_prices(model_refs: Iterable[str], lists: PriceLists | None = None) -> dict[str, Periods]:
    """The list prices of these models, empty for a model without one.

    `lists`: where they are looked up; None: the remembered ones, without loading the price data. A model that was not
    asked for before takes a second then.
    """
    look_up = lists or remembered_prices(listed_models_apart)
    found: dict[str, Periods] = {}
    for ref in model_refs:
        provider, _, name = ref.partition("/")
        found[ref] = look_up(provider, name).periods
    return found


def is_priced(model_ref: str) -> bool:
    """Whether `price` knows this model: a budget in USD cannot be kept for one that it does not."""
    return price(model_ref, Usage()).usd is not None


def rates(model_ref: str) -> Rates | None:
    """What a model's tokens cost today in a short prompt; None for a model without a price."""
    provider, _, name = model_ref.partition("/")
    if provider == "offline":
        return Rates(0.0, 0.0, 0.0, 0.0, 0.0)
    return rates_on(listed_models(provider, name).periods, time.time())


class ListedModel(NamedTuple):
    """What the price data say of a model; nothing of one that they do not know."""

    periods: Periods = ()
    """Its rates."""
    variants: dict[str, Periods] = {}  # noqa: RUF012 (a field's default, which is never changed)
    """Its rates for requests with a modifier (`speed=fast`), by the modifier; each since the day on which the list
    has them."""
    window: int | None = None
    """Tokens of its context window."""


PriceLists = Callable[[str, str], ListedModel]
"""A model, by its provider and name."""


@lru_cache(maxsize=4096)
def listed_models(provider: str, name: str) -> ListedModel:
    """A model as genai-prices has it. Loading it takes 0.03 s, and a model some milliseconds."""
    if not name:
        return ListedModel()
    if provider == "openai-chat":
        # A name with a slash is OpenRouter's; any other may be one of OpenAI's own.
        provider = "openrouter" if "/" in name else "openai"
    data_snapshot, types = _price_data()
    snapshot = data_snapshot.get_snapshot()
    try:
        _, model = snapshot.find_provider_model(name, None, provider, None)
    except (LookupError, ValueError):  # no such model
        return ListedModel()

    def priced(day: int, context: dict[str, str], **tokens: int) -> PriceCalculation:
        noon = datetime.fromtimestamp((day + 0.5) * DAY_SECONDS, UTC)
        found: PriceCalculation = snapshot.calc(
            types.Usage(**tokens), name, provider, None, noon, price_context=context or None
        )
        return found

    def rates_above(start: float, day: int, context: dict[str, str]) -> Rates:
        # One more token moves the whole prompt into this tier; the total includes what the cache serves.
        prompt = int(start) + 1
        million = 1_000_000 / prompt

        def total(**tokens: int) -> float:
            return float(priced(day, context, input_tokens=prompt, **tokens).total_price)

        plain = total()
        output = total(output_tokens=1_000_000) - plain
        cached = (
            total(**dict.fromkeys(kinds, prompt))
            for kinds in (
                ("cache_read_tokens",),
                ("cache_write_tokens",),
                ("cache_write_tokens", "cache_write_1h_tokens"),
            )
        )
        usd = (plain * million, output, *(each * million for each in cached))
        has_search = getattr(priced(day, context, input_tokens=1).model_price, "web_searches_kcount", None)
        search = None if has_search is None else round((total(web_searches=1_000) - plain) / 1_000, 9)
        fresh, out, read, short, hour = (round(each, 6) for each in usd)
        return Rates(fresh, out, read, short, hour, search)

    def tiers(day: int, context: dict[str, str]) -> tuple[tuple[float, Rates], ...]:
        try:
            prices = vars(priced(day, context, input_tokens=1).model_price).values()
        except (LookupError, ValueError):  # it had none on that day
            return ()
        starts = {
            float(tier.start) for one in prices if isinstance(one, types.TieredPrices) for tier in one.tiers
        }
        found = sorted(starts | {0.0}, reverse=True)
        return tuple((start, rates_above(start, day, context)) for start in found)

    changes = [] if isinstance(model.prices, types.ModelPrice) else [each.constraint for each in model.prices]
    days = {0, *_start_days(types, changes)}
    periods = tuple((day, tiers(day, {})) for day in sorted(days, reverse=True))
    variants = {}
    for variant in model.price_variants or ():
        if len(variant.when) != 1 or not any(vars(variant.prices).values()):
            continue
        ((field, value),) = variant.when.items()
        since = max(_start_days(types, [variant.constraint]), default=0)
        own = sorted({since, *(day for day in days if day > since)}, reverse=True)
        variants[f"{field}={value}"] = tuple((day, tiers(day, {field: value})) for day in own)
    return ListedModel(periods, variants, model.context_window)


def _start_days(types: Any, constraints: Iterable[Any]) -> list[int]:
    """The days (since 1970) from which prices with these constraints hold."""
    starts = [each.start_date for each in constraints if isinstance(each, types.StartDateConstraint)]
    return [(start - date(1970, 1, 1)).days for start in starts]


@cache
def _price_data() -> tuple[Any, Any]:
    """The modules `data_snapshot` and `types` of genai-prices.

    The package also loads pydantic, an HTTP client and asyncio, which take five times as long and serve only to
    fetch newer data. Unless the process has it already, a copy of what looks prices up is loaded without them.
    """
    folder = Path(getattr(find_spec("genai_prices"), "origin", "")).parent
    package, pydantic = ModuleType("genai_prices"), ModuleType("pydantic")
    vars(pydantic)["__getattr__"] = lambda name: lambda *args, **kwargs: None

    def import_(name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0) -> Any:
        if name == "pydantic":
            return pydantic
        if not level and not f"{name}.".startswith("genai_prices."):
            return __import__(name, globals, locals, names, level)
        if module := name.removeprefix("genai_prices").lstrip("."):
            return load(module)
        vars(package).update((each, load(each)) for each in names)
        return package

    def load(name: str) -> Any:
        alone = f"genai_prices_alone.{name}"
        if alone not in sys.modules:
            module = sys.modules[alone] = ModuleType(alone)
            vars(module)["__builtins__"] = vars(builtins) | {"__import__": import_}
            exec(SourceFileLoader(alone, str(folder / f"{name}.py")).get_code(alone) or "", vars(module))
        return sys.modules[alone]

    if "genai_prices" not in sys.modules:
        with suppress(Exception):  # a release that is made otherwise: then all of it
            load("data")
            return load("data_snapshot"), load("types")
    from genai_prices import data_snapshot, types

    return data_snapshot, types


@lru_cache(maxsize=64)
def listed_models_apart(provider: str, name: str) -> ListedModel:
    """As `listed_models`, read by a process that ends."""
    import msgspec  # late: most commands ask for no price

    read = "import sys; from watchkeeper.models.registry import _print_model; _print_model(*sys.argv[1:])"
    command = [sys.executable, "-P", "-c", read, provider, name]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
        return msgspec.json.decode(done.stdout, type=ListedModel)
    except (OSError, ValueError, subprocess.SubprocessError, msgspec.MsgspecError):
        return listed_models(provider, name)  # no process could be started: then here


def _print_model(provider: str, name: str) -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(listed_models(provider, name)))


class RememberedPrices:
    """Prices of models that were asked for before, in a file, so that an import need not load the library.

    What limits a run's spending does not read it: the file is as easy to change as any other of the user's.

    Args:
        path: is written when another model is asked for. One that cannot be read or written is passed over.
        made_of: names the version of the price data. Prices made of another one are not used.
        look_up: where the others are looked up.
    """

    MOST_MODELS = 500

    def __init__(self, path: Path, made_of: str, look_up: PriceLists) -> None:
        import msgspec

        self._look_up = look_up
        self._path = path
        self._made_of = made_of
        self._known: dict[str, ListedModel] = {}
        with suppress(OSError, msgspec.MsgspecError):
            found_of, known = msgspec.json.decode(path.read_bytes(), type=tuple[str, dict[str, ListedModel]])
            self._known = known if found_of == made_of else {}

    def __call__(self, provider: str, name: str) -> ListedModel:
        """What the price data say of a model."""
        key = f"{provider}/{name}"
        found = self._known.get(key)
        if found is None:
            found = self._look_up(provider, name)
            if len(self._known) < self.MOST_MODELS and len(key) <= 200:
                self._known[key] = found
                self._save()
        return found

    def _save(self) -> None:
        import msgspec

        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError, msgspec.MsgspecError):
            for folder in reversed((self._path.parent, *self._path.parent.parents)):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            part.write_bytes(msgspec.json.encode((self._made_of, self._known)))
            part.replace(self._path)


@cache
def remembered_prices(look_up: PriceLists) -> PriceLists:
    """`RememberedPrices` in the user's cache folder; where there can be none, `look_up`."""
    from platformdirs import user_cache_path

    try:
        data = Path(getattr(find_spec("genai_prices"), "origin", "")).with_name("data.py")
        found = data.stat()
        path = user_cache_path("watchkeeper", appauthor=False) / "prices.json"
    except (OSError, ValueError, RuntimeError):
        return look_up
    return RememberedPrices(path, f"{__version__} {data} {found.st_size} {found.st_mtime_ns}", look_up)


def context_window(model_ref: str, lists: PriceLists | None = None) -> int | None:
    """Tokens of the model's window, where the price data knows it."""
    provider, _, name = model_ref.partition("/")
    return (lists or listed_models)(provider, name).window


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
    notice: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    """Takes a line for people about a part of the requests that the server refused and that is left out."""
    surveyor_window: int | None = None
    """Tokens of the surveyor's window; None: its own. Where a session sets a limit of its own on contexts, that limit
    belongs here."""


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
            notice=config.notice,
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
            notice=config.notice,
        )
    if (provider, name) == ("offline", "surveyor"):
        from watchkeeper.models.surveyor import DEFAULT_WINDOW, SurveyorModel

        window = config.surveyor_window or DEFAULT_WINDOW
        return SurveyorModel(speed=config.speed, clock=clock, context_window=window)
    vendor = next((vendor for prefix, vendor in _NAMES.items() if ref.strip().startswith(prefix)), None)
    hint = f"did you mean {vendor}/{ref.strip()}? " if vendor and not slash else ""
    raise BadInput(f"unknown model {ref!r}; {hint}use {', '.join(KNOWN[:-1])} or {KNOWN[-1]}")


_NAMES = {"claude": "anthropic", "gpt-": "openai", "o3": "openai", "o4": "openai", "codex-": "openai"}
"""How the names of a vendor's models begin."""
