"""References become models; calls become money, or honestly do not."""

from __future__ import annotations

import pytest

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.models.registry import ModelConfig, context_window, is_priced, price, resolve
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import Cost, PriceStatus, Usage

USAGE = Usage(
    input_tokens=1_000_000, output_tokens=100_000, cache_read_tokens=2_000_000, cache_write_tokens=400_000
)
NOVEMBER_2026 = 1_795_000_000.0


def test_a_reference_names_a_model_with_the_window_that_is_known_of_it() -> None:
    model = resolve("anthropic/claude-haiku-4-5")
    assert isinstance(model, AnthropicModel)
    assert (model.ref, model.context_window) == ("anthropic/claude-haiku-4-5", 200_000)
    assert resolve("anthropic/claude-opus-4-7").context_window == 1_000_000


def test_an_unknown_model_gets_the_usual_window_and_configuration_wins() -> None:
    assert resolve("anthropic/qwen3-8b").context_window == 200_000
    assert resolve("anthropic/qwen3-8b", config=ModelConfig(context_window=8192)).context_window == 8192
    assert context_window("anthropic/qwen3-8b") is None


def test_the_surveyor_needs_no_configuration_and_takes_the_window_it_is_given() -> None:
    assert resolve("offline/surveyor").ref == "offline/surveyor"
    assert (
        resolve(" offline/surveyor ", config=ModelConfig(speed=None, surveyor_window=6000)).context_window
        == 6000
    )


def test_names_with_slashes_belong_to_the_server() -> None:
    assert resolve("anthropic/org/model:tag").ref == "anthropic/org/model:tag"


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "anthropic",
        "anthropic/",
        "openai",
        "openai-chat/",
        "gemini/g-9",
        "offline/",
        "offline/other",
        "/x",
    ],
)
def test_an_unknown_reference_says_in_one_line_what_is_known(ref: str) -> None:
    with pytest.raises(
        BadInput,
        match=r"known are anthropic/<model>, openai/<model>, openai-chat/<model> and offline/surveyor",
    ) as caught:
        resolve(ref)
    assert "\n" not in str(caught.value)


def test_a_bare_model_name_is_pointed_to_its_reference() -> None:
    with pytest.raises(BadInput, match=r"did you mean anthropic/claude-sonnet-5\?"):
        resolve("claude-sonnet-5")


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


def test_the_surveyor_is_free_and_that_is_exact() -> None:
    assert price("offline/surveyor", USAGE) == Cost(0.0, PriceStatus.EXACT)
    assert is_priced("offline/surveyor")


def test_no_call_of_a_priced_model_is_rounded_to_nothing() -> None:
    cost = price("anthropic/claude-haiku-4-5", Usage(input_tokens=1))
    assert cost.usd is not None
    assert cost.usd > 0
