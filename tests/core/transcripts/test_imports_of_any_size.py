"""What an import costs in memory and time does not grow with what was imported before."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Log, Store, work

from watchkeeper.store import database, imports
from watchkeeper.store import imports as rows
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts import importer as importing
from watchkeeper.transcripts import reading
from watchkeeper.transcripts.batch import Batch
from watchkeeper.transcripts.reading import Chunk, Counts, by_name
from watchkeeper.transcripts.records import Plan, Source

SOURCE = Source(Path("session.jsonl"))


def many_raw(logs: Path) -> tuple[Log, Path]:
    """A log with 200 lines that are kept raw."""
    log = work(turns=3)
    for number in range(200):
        log.add("mode", mode=f"{number}" * 50)
    return log, log.write(logs)


def test_what_is_kept_raw_of_a_rewritten_log_is_read_once_however_many_batches_it_has(
    store: Store, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path = many_raw(logs)
    store.run(path)
    kept, held, raw_kept = store.counts()["raw_records"], [], rows.raw_kept

    def watched(*arguments: object) -> Counter[int]:
        found = raw_kept(*arguments)  # type: ignore[arg-type]
        held.append(found.total())
        return found

    monkeypatch.setattr(rows, "raw_kept", watched)
    monkeypatch.setattr(importing, "BATCH_BYTES", 5_000)
    log.records.insert(0, {"type": "mode", "mode": "plan", "sessionId": log.session})
    log.records.append(dict(log.records[20]))  # once more than before, in another batch
    log.write(logs)
    report = store.run(path)
    assert (report.raw.total(), report.skipped["stored already"]) == (2, kept)
    assert store.counts()["raw_records"] == kept + 2
    assert held == [kept]


def test_a_batch_that_is_run_twice_finds_the_same_lines_kept(store, logs, monkeypatch):
    log, path = many_raw(logs)
    store.run(path)
    kept, apply, calls = store.counts()["raw_records"], reading.apply, Counter[str]()

    def twice(batch: Batch, connection: Connection, chunks: list[Chunk]) -> Counts:
        calls["applied"] += 1
        found = apply(batch, connection, chunks)
        if calls["applied"] == 2:
            raise ValueError("something that passes")
        return found

    monkeypatch.setattr(importing, "apply", twice)
    monkeypatch.setattr(importing, "BATCH_BYTES", 5_000)
    log.records.insert(0, {"type": "mode", "mode": "plan", "sessionId": log.session})
    log.write(logs)
    store.run(path)
    assert calls["applied"] > 5
    assert store.counts()["raw_records"] == kept + 1


def test_a_rewritten_log_whose_import_was_interrupted_doubles_nothing(store, logs, monkeypatch):
    log, path = many_raw(logs)
    store.run(path)
    before = store.counts()
    log.records.insert(0, {"type": "mode", "mode": "plan", "sessionId": log.session})
    log.write(logs)
    submit, calls = importing.Importer._submit, Counter[str]()

    def interrupted(self: importing.Importer, pending: importing._Pending) -> object:
        calls["batches"] += 1
        if calls["batches"] == 4:
            raise KeyboardInterrupt
        return submit(self, pending)

    with monkeypatch.context() as patch:
        patch.setattr(importing, "BATCH_BYTES", 5_000)
        patch.setattr(importing.Importer, "_submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.run(path)
    store.run(path)
    assert store.counts() == before | {"raw_records": before["raw_records"] + 1}


@pytest.mark.parametrize(
    "stored", [range(0), range(500, 505), range(0, 1_000, 2), range(-(2**40), 2**40, 2**33)]
)
def test_the_records_that_are_here_are_found_whether_few_or_many_lie_between_those_asked_for(
    tmp_path: Path, stored: range
) -> None:
    connection = database.open_writable(tmp_path / "w.db")
    cursor = connection.cursor()
    cursor.executemany(
        "INSERT INTO transcript_records VALUES (?, 'a', ?, 0)",
        [(digest, at) for at, digest in enumerate(stored, 1)],
    )
    for asked in (range(480, 600), range(0, 900, 3), range(500, 503), [2**62, 501, *range(100, 200)]):
        found = rows.find_records(cursor, list(asked))
        assert found == {digest: ("a", at, 0) for at, digest in enumerate(stored, 1) if digest in asked}
    connection.close()


def test_the_calls_that_wait_for_a_result_are_found_without_a_look_at_the_others(store, logs):
    store.run(work(turns=3).write(logs))
    asked: list[str] = []

    class Asked:
        def execute(self, sql: str, parameters: object) -> list[object]:
            asked.append(sql)
            return []

    rows.open_calls(Asked(), "x")
    plan = store.all(f"EXPLAIN QUERY PLAN {asked[0]}", "x")
    assert "USING INDEX tool_calls_open" in plan[0][3]


def test_a_batch_that_was_being_written_when_somebody_interrupted_is_counted(store, logs, monkeypatch):
    log = work()
    importer = importing.Importer(store.writer)
    wait, interruptions = Future.exception, iter([KeyboardInterrupt()])

    def waiting(future: Future[object]) -> BaseException | None:
        for interruption in interruptions:
            raise interruption
        return wait(future)

    monkeypatch.setattr(Future, "exception", waiting)
    with pytest.raises(KeyboardInterrupt):
        importer.run([log.write(logs)])
    importer.settle()
    importer.close()
    assert importer.report.lines == len(log.records)


def test_rows_are_the_same_however_many_one_statement_writes(open_store, logs, monkeypatch):
    work(turns=30).write(logs)
    found = []
    for at_once in (1_000_000, 1, 7):
        imports._many.cache_clear()
        monkeypatch.setattr(imports, "_ROWS_AT_ONCE", at_once)
        store = open_store(f"{at_once}")
        store.run(logs)
        found.append(
            [
                store.all(f"SELECT * FROM {name}")
                for name in ("messages", "tool_calls", "model_calls", "transcript_records")
            ]
        )
    imports._many.cache_clear()
    assert len(found[0][0]) > 60
    assert found[0] == found[1] == found[2]


def test_a_log_that_an_earlier_version_had_begun_is_read_on() -> None:
    """Earlier versions saved the state of a reader in another form."""
    claude = {
        "session": "s", "owner": "", "meta": {}, "branches": {"messages": 3, "prompts": {"": 0}}, "places": [None, {}, {}],
        "agents": {"tips": {}, "calls": {}, "joined": {}, "roles": {}},
        "plans": {"creating": {"c1": ["Read", ""]}, "updating": {}, "listing": {}, "called_at": {"c1": 1.7e9}},
    }  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "Task #7 created"}
    line = json.dumps({"type": "user", "uuid": "u9", "message": {"content": [result]}}).encode()
    plan = next(
        each for each in by_name("claude").reader(SOURCE, claude).feed(9, line) if isinstance(each, Plan)
    )
    assert (plan.at, plan.items[0].key, plan.items[0].title) == (1.7e9, "7", "Read")

    codex = {
        "session": "t0", "thread": "t1", "owner": "t1", "spawned": True, "provider": "openai", "model": "m", "began": 1.0,
        "usage": [[9, 0, 0, 1], None, False], "last": ["t1:k", "openai/m", [9, 1, 0, 0], 1.7e9, 10, True], "alone": None,
        "replay": [True, None, None, 1.0, False], "spawns": {"c2": ["Look", "explorer", ""]}, "failed": ["c2"], "turn": 4,
        "fresh": False, "places": [None, {}, {}], "planning": {}, "messages": 8, "asked": [0], "told": None,
    }  # fmt: skip
    output = {"type": "function_call_output", "call_id": "c2", "output": '{"agent_id": "t2"}'}
    line = json.dumps(
        {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": output}
    ).encode()
    message, ended, agent = by_name("codex").reader(SOURCE, codex).feed(9, line)
    assert (message.agent, ended.status) == ("t1", "error")
    assert (agent.key, agent.parent, agent.goal, agent.role) == ("t2", "t1", "Look", "explorer")
