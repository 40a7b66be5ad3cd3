"""What a model is given of a context is shared with every later request, and nobody can change it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from watchkeeper.memory.content import FrozenDict, FrozenList, frozen
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.tokens import TokenCounter

VALUE = {
    "role": "user",
    "content": [{"type": "tool_use", "id": "c1", "input": {"path": ["a", 1, None, 2.5, True]}}],
}


def changes_of(kind: type) -> dict[str, Callable[[Any], object]]:
    """Every method of a mutable container that changes it, found by trying each on an ordinary one."""
    tries: list[tuple[Any, ...]] = [(), ("a",), (0,), ("a", 1), (0, 1), ({"b": 2},), ([3],), (2,)]
    found: dict[str, Callable[[Any], object]] = {}
    for name in dir(kind):
        if name in ("__init__", "__class__", "__setattr__", "__delattr__"):
            continue
        for arguments in tries:
            value: Any = {"a": 1, "c": 3} if kind is dict else [5, 0, "a"]
            before = copy.deepcopy(value)
            try:
                getattr(value, name)(*arguments)
            except Exception:
                continue
            if value != before:
                found[name] = lambda target, name=name, arguments=arguments: getattr(target, name)(*arguments)
    return found


@pytest.mark.parametrize("kind", [dict, list])
def test_no_method_that_changes_a_container_changes_a_frozen_one(kind: type) -> None:
    whole = {"a": 1, "c": 3} if kind is dict else [5, 0, "a"]
    changes = changes_of(kind)
    assert len(changes) >= 8
    for name, change in changes.items():
        value = frozen(whole)
        with pytest.raises(TypeError, match="read-only"):
            change(value)
        assert value == whole, name


def test_a_frozen_value_is_the_same_json() -> None:
    value = frozen(VALUE)
    assert value == VALUE
    assert json.dumps(value) == json.dumps(VALUE)
    assert isinstance(value, dict)
    assert isinstance(value["content"], list)
    assert type(value["content"][0]["input"]) is FrozenDict
    assert type(value["content"][0]["input"]["path"]) is FrozenList


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_of_a_frozen_value_is_an_ordinary_one(duplicate: Callable[[Any], Any]) -> None:
    made = duplicate(frozen(VALUE))
    assert made == VALUE
    made["content"][0]["input"]["path"].append("more")
    assert type(made) is dict
    assert type(made["content"]) is list


def test_shallow_copies_can_be_changed_at_their_top() -> None:
    value = frozen(VALUE)
    for made in (copy.copy(value), dict(value), {**value, "x": 1}, value | {"x": 1}):
        made["role"] = "assistant"
    for items in (
        copy.copy(value["content"]),
        list(value["content"]),
        value["content"][:],
        value["content"] + [],
    ):
        items.append(1)
    assert value == VALUE


def test_what_is_frozen_already_is_shared() -> None:
    value = frozen(VALUE)
    assert frozen(value) is value
    assert frozen({"one": value})["one"] is value


def test_a_later_request_shares_the_messages_of_an_earlier_one(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(max_tokens=20_000, reserve_tokens=1_000), counter)
    state.append("user", "go", at=0.0)
    for number in range(20):
        state.append("assistant", [{"type": "text", "text": f"message {number}"}], at=0.0)
        state.append("user", [{"type": "text", "text": f"answer {number}"}], at=0.0)
    before = state.rendered()
    state.append("assistant", "more", at=0.0)
    after = state.rendered()
    assert len(after) == len(before) + 1
    assert all(new is old for new, old in zip(after, before, strict=False))
    assert state.render() == after
    assert not any(new is old for new, old in zip(state.render(), after, strict=True))


def test_what_was_restored_is_frozen_too(counter: TokenCounter) -> None:
    limits = ContextLimits(max_tokens=20_000, reserve_tokens=1_000)
    state = ContextState(limits, counter)
    state.append("user", "go", at=0.0)
    change = state.append(
        "assistant", [{"type": "tool_use", "id": "c1", "name": "grep", "input": {"path": "a"}}], at=0.0
    )
    messages = [*state.messages[:1], *change.messages]
    again = ContextState.restore(
        limits,
        counter,
        agent_id="agent",
        messages=copy.deepcopy(messages),
        views=state.views,
        current=state.view.version,
    )
    with pytest.raises(TypeError, match="read-only"):
        again.rendered()[1]["content"][0]["input"]["path"] = "b"
    assert again.rendered() == state.rendered()
