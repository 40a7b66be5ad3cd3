"""Budgets of the property tests: small by default, thousands with `WATCHKEEPER_HYPOTHESIS=thorough`."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.tokens import TokenCounter, default_counter

# Beside what all tests pass over: these profiles stay loaded for the rooms that are collected after this one.
_SLACK = [*settings.default.suppress_health_check, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "quick", max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=_SLACK
)
settings.register_profile(
    "thorough", max_examples=3_000, stateful_step_count=50, deadline=None, suppress_health_check=_SLACK
)
settings.load_profile(os.environ.get("WATCHKEEPER_HYPOTHESIS", "quick"))


@pytest.fixture
def counter() -> TokenCounter:
    return default_counter()


@pytest.fixture
def state(counter: TokenCounter) -> ContextState:
    """A context of 1,000 tokens, of which 900 may be used."""
    return ContextState(ContextLimits(1_000, 100), counter, agent_id="explorer")
