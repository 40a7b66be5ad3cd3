"""References become models; calls become money, or honestly do not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from genai_prices import Usage as Tokens
from genai_prices import calc_price

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.models.registry import (
    MODIFIERS,
    ListedModel,
    ModelConfig,
    RememberedPrices,
    context_window,
    is_priced,
    list_prices,
    listed_models,
    listed_models_apart,
    price,
    resolve,
)
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import (
    Cost,
    CostClasses,
    PriceStatus,
    Rates,
    Usage,
    cost_classes,
    rates_on,
)

USAGE = Usage(
    input_tokens=1_000_000, output_tokens=100_000, cache_read_tokens=2_000_000, cache_write_tokens=400_000
)
NOVEMBER_2026 = 1_795_000_000.0


@pytest.mark.parametrize(
    ("ref", "config", "window"),
    [
        ("anthropic/claude-haiku-4-5", None, 200_000),
        ("anthropic/claude-opus-4-7", None, 1_000_000),
        ("anthropic/qwen3-8b", None, 200_000),  # not known: the usual one
        ("anthropic/qwen3-8b", ModelConfig(context_window=8192), 8192),
        ("anthropic/org/model:tag", None, 200_000),  # a name with slashes belongs to the server
        (" offline/surveyor ", ModelConfig(speed=None, surveyor_window=6000), 6000),
    ],
)
def test_a_reference_names_a_model_with_the_window_that_is_known_of_it(ref, config, window):
    model = resolve(ref, config=config)
    assert (model.ref, model.context_window) == (ref.strip(), window)
    assert isinstance(model, AnthropicModel) == ref.startswith("anthropic/")
    assert context_window("anthropic/qwen3-8b") is None


def test_the_surveyor_is_free_exactly_and_no_call_of_a_priced_model_is_rounded_to_nothing():
    assert price("offline/surveyor", USAGE) == Cost(0.0, PriceStatus.EXACT)
    assert is_priced("offline/surveyor")
    assert (price("anthropic/claude-haiku-4-5", Usage(input_tokens=1)).usd or 0.0) > 0


UNKNOWN = [
    "", "anthropic", "anthropic/", "openai", "openai-chat/", "gemini/g-9", "offline/", "offline/other", "/x",
]  # fmt: skip


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        *((ref, "use anthropic/<model>, openai/<model>, openai-chat/<model> or offline/surveyor") for ref in UNKNOWN),
        ("claude-sonnet-5", r"did you mean anthropic/claude-sonnet-5\?"),
    ],
)  # fmt: skip
def test_an_unknown_reference_says_in_one_line_what_is_known_or_may_be_meant(ref, says):
    with pytest.raises(BadInput, match=says) as caught:
        resolve(ref)
    assert "\n" not in str(caught.value)


def test_a_configuration_can_be_printed_without_its_keys() -> None:
    assert "secret" not in repr(ModelConfig(api_key="secret", auth_token="secret"))


def test_cache_reads_and_writes_are_priced_as_such() -> None:
    cost = price("anthropic/claude-sonnet-4-6", USAGE, at=NOVEMBER_2026)
    assert cost.usd == pytest.approx(1.0 * 3 + 0.1 * 15 + 2.0 * 0.3 + 0.4 * 3.75)
    assert cost.status is PriceStatus.EXACT


def test_a_figure_is_labelled_by_what_it_rests_on() -> None:
    ref = "anthropic/claude-sonnet-4-6"
    assert price(ref, USAGE, False).status is PriceStatus.ESTIMATED
    assert price(ref, USAGE, True, base_url="http://127.0.0.1:4000").status is PriceStatus.ESTIMATED
    assert price(ref, USAGE, True, base_url="https://api.anthropic.com").status is PriceStatus.EXACT
    assert (
        price(ref, USAGE, True, base_url="https://api.anthropic.com.evil.test").status
        is PriceStatus.ESTIMATED
    )


@pytest.mark.parametrize(
    "ref", ["anthropic/claude-sonnet-99", "anthropic/qwen3", "anthropic/", "nowhere/m", "", "x"]
)
def test_a_model_without_a_price_is_unpriced_and_never_free(ref: str) -> None:
    assert price(ref, USAGE) == Cost(None, PriceStatus.UNPRICED)
    assert not is_priced(ref)


@pytest.mark.parametrize("name", ["claude-opus-4-6", "gpt-5.6-sol", "o3", "claude-haiku-4-5"])
@pytest.mark.parametrize(
    "day", ["2025-06-09", "2025-06-10", "2026-03-12", "2026-03-13", "2026-08-20", "2026-08-21", "2026-11-01"]
)
def test_a_call_costs_what_the_list_of_its_day_says(name: str, day: str) -> None:
    provider = "anthropic" if name.startswith("claude") else "openai"
    at = datetime.fromisoformat(f"{day}T23:59:00Z")
    listed = calc_price(
        Tokens(input_tokens=300_000, output_tokens=1_000, cache_read_tokens=250_000),
        name, provider_id=provider, genai_request_timestamp=at.astimezone(UTC),
    )  # fmt: skip
    usage = Usage(input_tokens=50_000, output_tokens=1_000, cache_read_tokens=250_000)
    found = price(f"{provider}/{name}", usage, at=at.timestamp()).usd
    assert found == pytest.approx(float(listed.total_price))


def test_remembered_prices_are_the_listed_ones_and_are_not_looked_up_again(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "prices.json"
    asked = ["claude-opus-4-6", "claude-sonnet-4-6", "no such model"]
    listed = [listed_models("anthropic", name) for name in asked]
    first = RememberedPrices(path, "1", listed_models)
    assert [first("anthropic", name) for name in asked] == listed

    looked_up = []

    def look_up(provider: str, name: str) -> ListedModel:
        looked_up.append(name)
        return ListedModel()

    again = RememberedPrices(path, "1", look_up)
    assert [again("anthropic", name) for name in asked] == listed
    assert looked_up == []
    assert (
        RememberedPrices(path, "2", look_up)("anthropic", asked[0]) == ListedModel()
    )  # of another version of the price data
    for damaged in (b"", b"[]", b'["1",{"anthropic/claude-opus-4-6":[[0,[[0.0,"free"]]]]}]', b"\xff"):
        path.write_bytes(damaged)
        assert RememberedPrices(path, "1", look_up)("anthropic", asked[0]) == ListedModel()
    assert looked_up == [asked[0]] * 5


def test_prices_that_another_process_reads_are_the_listed_ones() -> None:
    for name in ("claude-opus-4-6", "no such model", "a\0name"):
        assert listed_models_apart("anthropic", name) == listed_models("anthropic", name)


def test_prices_that_cannot_be_remembered_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    prices = RememberedPrices(tmp_path / "cache" / "prices.json", "1", listed_models)
    assert prices("anthropic", "claude-opus-4-6") == listed_models("anthropic", "claude-opus-4-6")


@pytest.mark.parametrize(
    "model", ["anthropic/claude-sonnet-4-5", "openai/gpt-5", "anthropic/claude-opus-4-6"]
)
@pytest.mark.parametrize("prompt", [1_000, 90_000])
@pytest.mark.parametrize("hour", [0.0, 0.3, 1.0])
def test_the_cost_of_a_call_is_divided_among_the_classes_of_its_tokens(model, prompt, hour):
    day = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    usage = Usage(prompt, 2_000, cache_read_tokens=3 * prompt, cache_write_tokens=prompt)
    whole = price(model, usage, at=day, hour_writes=int(hour * prompt)).usd
    assert whole
    rates = rates_on(listed_models(*model.split("/")).periods, day, usage.prompt_tokens)
    parts = cost_classes(rates, usage, whole)
    assert sum(parts) == pytest.approx(whole)
    assert parts.other == 0
    hour_writes = int(hour * prompt)
    # Each class costs what the call would cost more than the same call without it, within one tier of the price.
    for part, kind in zip(
        parts, ("input_tokens", "cache_read_tokens", "", "", "output_tokens"), strict=False
    ):
        if kind and usage.prompt_tokens < 100_000:
            less = price(model, replace(usage, **{kind: 0}), at=day, hour_writes=hour_writes).usd or 0.0
            assert part == pytest.approx(whole - less)
    if rates is not None and rates.hour_write_usd > rates.cache_write_usd:
        assert parts.cache_write_1h == pytest.approx(rates.hour_write_usd * hour_writes / 1e6)
        assert parts.cache_write_5m == pytest.approx(rates.cache_write_usd * (prompt - hour_writes) / 1e6)


def test_what_list_prices_do_not_explain_of_a_cost_is_a_part_of_its_own() -> None:
    usage = Usage(1_000, 1_000, cache_read_tokens=1_000)
    day = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    whole = price("anthropic/claude-sonnet-4-5", usage, at=day).usd or 0.0
    (periods,) = list_prices(["anthropic/claude-sonnet-4-5"], listed_models).values()
    rates = rates_on(periods, day)
    at_list = cost_classes(rates, usage, whole)
    for stated in (2 * whole, whole / 2):
        assert cost_classes(rates, usage, stated) == pytest.approx((*at_list[:-1], stated - whole))
    assert cost_classes(None, usage, 1.0) == CostClasses(other=1.0)
    assert cost_classes(rates, usage, 0.0) == CostClasses()


CALL = Usage(1_000, 2_000, cache_read_tokens=50_000, cache_write_tokens=10_000)


@pytest.mark.parametrize(
    ("model", "day", "modifiers", "factor", "known"),
    [
        ("anthropic/claude-opus-4-6", "2026-05-06", ("speed=fast",), 6.0, True),
        ("anthropic/claude-opus-4-7", "2026-06-06", ("speed=fast",), 6.0, True),
        ("anthropic/claude-opus-4-8", "2026-10-06", ("speed=fast",), 2.0, True),
        ("anthropic/claude-opus-5", "2026-10-06", ("speed=fast", "inference_geo=us"), 2.2, True),
        ("anthropic/claude-opus-4-8", "2026-10-06", ("inference_geo=us",), 1.1, True),
        ("anthropic/claude-opus-4-8", "2026-10-06", ("inference_geo=mars",), 1.0, False),
        ("anthropic/claude-sonnet-5", "2026-10-06", ("speed=fast",), 1.0, False),
        ("anthropic/claude-sonnet-4-5", "2026-01-06", ("processing=batch",), 0.5, True),
        ("anthropic/claude-opus-5", "2026-11-06", ("processing=batch",), 0.5, True),
        ("anthropic/claude-opus-5", "2026-11-06", ("service_tier=priority",), 1.0, False),
        ("anthropic/claude-opus-5", "2026-11-06", ("tool=code_execution_requests",), 1.0, False),
        ("openai/gpt-5.5", "2026-10-06", ("service_tier=priority",), 2.5, True),
        ("openai/gpt-5.5", "2026-10-06", ("service_tier=fast",), 2.5, True),
        ("openai/gpt-5.6-sol", "2026-10-06", ("service_tier=priority",), 2.0, True),
        ("openai/gpt-5.5", "2026-11-06", ("service_tier=flex",), 0.5, True),
        ("openai/gpt-5.5", "2026-09-06", ("service_tier=flex",), 0.5, False),  # listed since October
        ("openai/gpt-5.5", "2026-11-06", ("service_tier=scale",), 1.0, False),
    ],
)  # fmt: skip
def test_what_changes_a_calls_price_multiplies_it_or_makes_it_an_estimate(
    model, day, modifiers, factor, known
):
    at = datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
    standard, found = price(model, CALL, at=at), price(model, CALL, at=at, modifiers=modifiers)
    assert found.usd == pytest.approx(factor * (standard.usd or 0.0))
    assert standard.status is PriceStatus.EXACT
    assert found.status is (PriceStatus.EXACT if known else PriceStatus.ESTIMATED)


def test_searches_have_a_price_of_their_own_and_one_that_is_not_listed_makes_an_estimate():
    at = datetime(2026, 10, 6, tzinfo=UTC).timestamp()
    for model, modifiers in (("anthropic/claude-sonnet-5", ()), ("anthropic/claude-opus-5", ("speed=fast",))):
        without, found = (price(model, CALL, at=at, modifiers=modifiers, searches=n) for n in (0, 3))
        assert found == Cost(pytest.approx((without.usd or 0.0) + 0.03), PriceStatus.EXACT)
    unlisted = ListedModel(((0, ((0.0, Rates(1.0, 1.0, 1.0, 1.0, 1.0)),)),))
    found = price("anthropic/x", Usage(1_000_000), at=at, searches=3, lists=lambda *_: unlisted)
    assert found == Cost(1.0, PriceStatus.ESTIMATED)


def test_every_modifier_names_where_its_factor_is_published_and_when_it_was_read():
    for each in MODIFIERS:
        site, _, day = each.source.rpartition(", ")
        assert "." in site
        assert datetime.fromisoformat(day) <= datetime(2026, 11, 28)
        assert each.factor > 0
