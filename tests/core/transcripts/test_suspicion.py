"""The quick look for secrets says yes wherever the thorough one does."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.redaction import corpus
from hypothesis import given
from hypothesis import strategies as st
from tests.core.transcripts.conftest import Log, call

from watchkeeper.records.redact import Redactor
from watchkeeper.records.secret_search import TELLING
from watchkeeper.records.secret_shapes import any_of, groups_in
from watchkeeper.transcripts.files import Line
from watchkeeper.transcripts.reading import search_lines

REDACTOR = Redactor(
    {
        "MY_TOKEN": "p.+w(o)rd[x]-#&~ |123",
        "OTHER_SECRET": "ünïcödé-säcret\\d",
        "LONG_KEY": "line one of it is here\nand line two as well",
    }
)

SUSPECTS = REDACTOR.suspects


@given(st.binary(max_size=60), st.sampled_from(REDACTOR.hints), st.binary(max_size=60))
def test_whatever_holds_a_hint_is_suspected(before: bytes, hint: bytes, after: bytes) -> None:
    assert SUSPECTS(before + hint + after)


PLANTED = corpus(seed=11, each=2)[0]
GROUPS = groups_in(TELLING, rare=("places", "commands", "files"))


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(PLANTED)), max_size=40), st.integers(0, 40_000)
)
def test_lines_that_are_asked_of_together_are_suspected_as_one_by_one(lines, length):
    data = [line if isinstance(line, bytes) else line.text.replace("\n", "\\n").encode() for line in lines]
    data.append(b"x" * length)
    given_lines = [Line(line.replace(b"\n", b" "), number, len(line)) for number, line in enumerate(data)]
    searched = list(search_lines(given_lines, SUSPECTS))
    assert searched == [(line, SUSPECTS(line.data)) for line in given_lines]


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from([one.text for one in PLANTED])), max_size=4))
def test_one_pass_finds_the_groups_that_a_search_for_each_finds(parts: list[str]) -> None:
    data = "".join(parts).encode("utf-8", "replace")
    assert set(GROUPS(data)) == {name for name, patterns in TELLING.items() if any_of(patterns)(data)}


def test_whatever_is_taken_out_of_a_line_is_suspected_in_it() -> None:
    plain = Redactor({})
    for one in PLANTED:
        if plain.text(one.text) != one.text:
            assert plain.suspects(one.text.encode()), one


SECRET = "ghp_" + "R7kQ2mXw9ZtV4bN8cLs3Hd6Yf1Ga5Jp0Eu2T"


def _put(record: dict[str, Any], secret: str, *path: str | int) -> None:
    inside: Any = record
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = secret


@pytest.mark.parametrize(
    "path",
    [
        ("message", "content", 0, "content"),
        ("message", "content", 0, "note"),
        ("message", "content"),
        ("message", "note"),
        ("gitBranch",),
        ("toolUseResult",),
        *(
            ("toolUseResult", name)
            for name in (
                "stdout", "prompt", "description", "name", "agentId", "status", "success", "task", "agents", "retrieval_status",
            )
        ),
        ("toolUseResult", "task", "description"),
        ("toolUseResult", "task", "task_id"),
        ("toolUseResult", "agents", "a2", "description"),
        ("toolUseResult", "structuredPatch", 0, "lines"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kept_raw", [False, True])
def test_no_secret_is_stored_wherever_in_a_result_it_stands(path, kept_raw, store, logs):
    log = Log()
    log.user("Look")
    log.reply(call("Task", "t1", prompt="Look for it", description="look"), id="m1")
    record = log.result(
        "t1",
        "Found it.",
        toolUseResult={
            "stdout": "x" * 400,
            "retrieval_status": "done",
            "task": {"task_type": "local_agent", "task_id": "a1", "status": "completed"},
            "agents": {"a2": {"status": "completed"}},
            "structuredPatch": [{"lines": []}],
        },
    )
    _put(record, f"it is {SECRET} now" if path[-1] != "agentId" else SECRET, *path)
    if kept_raw:
        record["message"] = None if path[0] != "message" else record["message"] | {"content": None}
        if path[:2] == ("message", "content"):
            record["message"]["content"] = {"note": SECRET}
    log.write(logs)
    report = store.run(logs)
    assert report.lines == len(log.records)
    assert store.counts()["raw_records"] == int(kept_raw)
    written = [str(row) for name in store.counts() for row in store.all(f"SELECT * FROM {name}")]
    assert not [row for row in written if SECRET in row]
    assert not kept_raw or "[redacted:" in store.one("SELECT data FROM raw_records")
