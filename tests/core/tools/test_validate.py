"""Checking a tool's input against its schema, however odd either is."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.agents.memory_tools import RecallTool, memory_tools
from watchkeeper.agents.session_tools import PlanTools, artifact_tools
from watchkeeper.agents.tools.contract import validate_arguments
from watchkeeper.agents.tools.workers import WorkerPool, builtin_tools

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
        ({}, "`name` is missing. Available: name (required), count, tags"),
        ({"name": "c"}, "`name`: 'c' is not one of"),
        ({"name": "a", "count": 0}, "`count`: 0 is less than"),
        ({"name": "a", "count": True}, "`count`: True is not of type 'integer'"),
        ({"name": "a", "tags": ["x", 1]}, "`tags[1]`: 1 is not of type"),
        ({"name": "a", "more": 1}, "`more` is unknown. Available: name (required), count, tags"),
        ({"name": "a", "tag": []}, "`tag` is unknown (did you mean `tags`?)"),
        ({"nam": "a", "size": 1}, "`nam` is unknown (did you mean `name`?); `size` is unknown. Available"),
        ({"more": 1}, "`more` is unknown; `name` is missing. Available"),
        ({"name": "a", "x" * 100_000 + "\n": 1}, "is unknown. Available"),
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


def test_a_wrong_name_deep_in_the_input_is_named_with_its_place() -> None:
    item = {"type": "object", "properties": {"role": {}}, "required": ["role"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"tasks": {"type": "array", "items": item}}}
    fault = validate_arguments(schema, {"tasks": [{"role": 1}, {"role": 1, "rolle": 2, "depends": 3}]})
    assert fault == "`tasks[1].rolle` is unknown; `tasks[1].depends` is unknown. Available: role (required)"


def test_every_tool_of_an_agent_names_a_wrong_property(pool: WorkerPool) -> None:
    stored = [*PlanTools(lambda: "id", {}).tools(), *artifact_tools(), *memory_tools()]
    specs = (
        [tool.spec for tool in builtin_tools(pool).values()]
        + [tool.spec for tool in stored]
        + [RecallTool.spec]
    )
    for spec in specs:
        fault = validate_arguments(spec.input_schema, {"zzz": 1}) or ""
        assert fault.startswith("`zzz` is unknown"), spec.name
        assert all(name in fault for name in list(spec.input_schema["properties"])[:9]), spec.name
    files = [spec for spec in specs if spec.name in ("read", "write", "edit", "save_artifact")]
    assert len(files) == 4
    assert all("file_path" in spec.input_schema["properties"] for spec in files)
    for spec in files:
        fault = validate_arguments(spec.input_schema, {"path": "a", "name": "a"}) or ""
        assert "`path` is unknown (did you mean `file_path`?)" in fault
    assert any("killed, along with the shell, after 60 s" in spec.description for spec in specs)


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
