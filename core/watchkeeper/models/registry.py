"""From a reference such as `anthropic/claude-sonnet-5` to a model that can be called."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.models.retries import RetryPolicy
from watchkeeper.records.clock import Clock
from watchkeeper.records.errors import BadInput
from watchkeeper.records.model import Model

SURVEYOR = "offline/surveyor"
"""Not a language model: a program that surveys a folder. It is used where it is named, and nowhere else."""

KNOWN = ("anthropic/<model>", SURVEYOR)

SUGGESTED = ("anthropic/claude-sonnet-5", "anthropic/claude-opus-5", "anthropic/claude-haiku-4-5")
"""Models that are offered to a user who named none. A test compares them with the price table."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the user's own configuration may say about models. Every default is a working one."""

    api_key: str | None = field(default=None, repr=False)
    """None: the SDK's own environment variables and profiles."""
    auth_token: str | None = field(default=None, repr=False)
    base_url: str | None = None
    """A Messages API server other than Anthropic's; None: `ANTHROPIC_BASE_URL`, or Anthropic's."""
    sends_key: bool = True
    """False: no key goes to the server, whatever the environment holds."""
    context_window: int | None = None
    """Tokens; None: what is known of the model, else 200,000."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)
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
        from watchkeeper.models.prices import context_window

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
    if (provider, name) == ("offline", "surveyor"):
        return _surveyor(config, clock)
    hint = f"did you mean anthropic/{ref.strip()}? " if not slash and ref.strip().startswith("claude") else ""
    raise BadInput(f"no model {ref!r}: {hint}known are {' and '.join(KNOWN)}")


def _surveyor(config: ModelConfig, clock: Clock | None) -> Model:
    from watchkeeper.models import surveyor

    options: dict[str, Any] = {"speed": config.speed}
    if clock is not None:
        options["clock"] = clock
    if config.surveyor_window is not None:
        options["context_window"] = config.surveyor_window
    model: Model = surveyor.SurveyorModel(**options)
    return model
