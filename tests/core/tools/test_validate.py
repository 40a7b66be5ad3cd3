"""Checking a tool's input against its schema, however odd either is."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.agents.tools.contract import validate_arguments

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "enum": ["a", "b"]},
        "count": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "a"}, None),
        ({"name": "b", "count": 2, "tags": ["x"]}, None),
        ({}, "'name' is a required property"),
        ({"name": "c"}, "`name`: 'c' is not one of"),
        ({"name": "a", "count": 0}, "`count`: 0 is less than"),
        ({"name": "a", "count": True}, "`count`: True is not of type 'integer'"),
        ({"name": "a", "tags": ["x", 1]}, "`tags[1]`: 1 is not of type"),
        ({"name": "a", "more": 1}, "Additional properties are not allowed"),
        ([], "must be an object"),
        ("text", "must be an object"),
        (None, "must be an object"),
        ({"name": "x" * 100_000}, "`name`: 'xxx"),
    ],
)
def test_a_fault_is_told_in_one_line(arguments: Any, said: str | None) -> None:
    fault = validate_arguments(SCHEMA, arguments)
    if said is None:
        assert fault is None
    else:
        assert fault is not None
        assert said in fault
        assert "\n" not in fault
        assert len(fault) < 400


def test_an_input_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    assert validate_arguments(SCHEMA, {"name": deep}) == "the input is nested too deeply"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "nonsense"},
        {"type": 5},
        {"properties": []},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#"},
        {"required": 3},
        {"properties": {"a": {"pattern": "(a+)+$"}}},
    ],
)
def test_a_bad_schema_finds_no_fault_and_takes_no_time(schema: dict[str, Any]) -> None:
    assert validate_arguments(schema, {"a": "a" * 40 + "!"}) is None
