"""Importing again and again: only what is new, nothing twice, nothing lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.codex_rollout import Rollout, answered, compacted_by, spawned_tree, usage_record
from tests.core.transcripts.conftest import Log, Store, imported, work
from tests.core.transcripts.test_codex_compactions import compacted_by_hand
from tests.core.transcripts.test_imported_compactions import twice_compacted
from tests.core.transcripts.test_rewinds import rewound_twice, rolled_back

from watchkeeper.transcripts import files
from watchkeeper.transcripts import importer as importing
from watchkeeper.transcripts.session_importer import SessionImporter

OTHER = "0b0b0b0b-1111-4222-8333-444444444444"


CONTENTS = (
    "SELECT agent_id, seq, role, content, tokens, total_tokens, created_at FROM messages ORDER BY 1, 2",
    "SELECT agent_id, tool_use_id, name, status, turn, position, seq, result_seq, started_at, ended_at FROM tool_calls ORDER BY 1, 2",
    "SELECT agent_id, turn, input_tokens, output_tokens, cache_read_tokens, cost_usd, price_status, request_id FROM model_calls"
    " ORDER BY 1, 2",
    "SELECT id, input_tokens, output_tokens, cost_usd, model_calls, goal, title, status, last_active, forked_from FROM sessions"
    " ORDER BY 1",
    "SELECT id, name, parent_agent_id, turn, last_seq, output_tokens, cost_usd, model_calls, context_tokens, message_tokens,"
    " composition, view_version FROM agents ORDER BY 1",
    "SELECT agent_id, version, observations, verbatim_from, elided, reason, tokens FROM views ORDER BY 1, 2",
    "SELECT agent_id, trigger, high_water, messages_removed, tokens_before, tokens_after, view_before, view_after FROM compactions"
    " ORDER BY 1, id",
    "SELECT agent_id, text, tokens, first_seq, last_seq, citations, replaces FROM observations ORDER BY 1, id",
    "SELECT title, position, status, started_at, ended_at FROM tasks ORDER BY 1, 2",
    "SELECT session_id, kind, reason, data FROM raw_records ORDER BY 1, line",
)  # fmt: skip


def contents(store: Store) -> list[object]:
    """All that an import left, apart from numbers that say in which order it was written."""
    return [store.all(sql) for sql in CONTENTS]


def test_a_second_import_adds_nothing(store: Store, logs: Path) -> None:
    path = work().write(logs)
    store.run(path)
    before, counts = contents(store), store.counts()
    report = store.run(path)
    assert (report.files, report.unchanged, report.lines) == (0, 1, 0)
    os.utime(path)  # touched, and the same
    assert store.run(path).lines == 0
    assert (contents(store), store.counts()) == (before, counts)


def _partly_compacted() -> list[Log]:
    log = Log()
    log.user("one")
    log.user("two", uuid="kept")
    log.boundary(150_000, preservedSegment={"headUuid": "kept"})
    log.summary("One.")
    return [log]


def _used_by_a_compaction() -> list[Rollout]:
    log = answered(
        answered(Rollout().user("go").says("a"), "r1", 1_000, 600, 50).says("b"), "r2", 1_200, 1_000, 20
    )
    log.add("token_usage_record", usage_record("sum", 1_300, 1_200, 90))
    return [log.add("compacted", compacted_by("sum"))]


GROWING: dict[str, Callable[[], Sequence[Log | Rollout]]] = {
    "plain": lambda: [work()],
    "compacted twice": lambda: [twice_compacted()],
    "compacted in part": _partly_compacted,
    "rewound and compacted": lambda: [rewound_twice()],
    "Codex: compacted by hand": lambda: [compacted_by_hand()],
    "Codex: rolled back beyond a compaction": lambda: [rolled_back()],
    "Codex: usage of a compaction": _used_by_a_compaction,
    "Codex: a thread and its child": lambda: spawned_tree("stamped anew"),
}


@pytest.mark.parametrize("made", GROWING.values(), ids=GROWING)
def test_logs_that_grow_line_by_line_or_at_any_line_end_as_if_they_had_been_imported_at_once(
    open_store: Callable[[str], Store], logs: Path, made: Callable[[], Sequence[Log | Rollout]]
) -> None:
    paths = [log.write(logs) for log in made()]
    lines = [path.read_bytes().splitlines(keepends=True) for path in paths]
    whole, most = open_store("whole"), max(map(len, lines))
    whole.run(*paths)
    for name, cuts in (("each", range(1, most)), *((f"{cut}", [cut]) for cut in range(1, most))):
        store = open_store(name)
        for cut in (0.5, *cuts, most):  # first, half of the first line
            for path, each in zip(paths, lines, strict=True):
                path.write_bytes(each[0][:100] if cut == 0.5 else b"".join(each[:cut]))
            store.run(*paths)
        assert contents(store) == contents(whole), f"cut after {name}"


def test_only_the_new_lines_of_a_log_that_grew_are_read(store: Store, logs: Path) -> None:
    log = work()
    store.run(log.write(logs))
    log.user("And now?")
    report = store.run(log.write(logs))
    assert (report.read, report.lines, report.bytes_read) == (1, 1, len(log.lines[-1]) + 1)


def test_half_of_a_last_line_waits_for_its_end_and_a_whole_one_needs_no_newline(store, logs):
    log = work()
    path, data = log.write(logs), log.bytes
    path.write_bytes(data[:-40])
    report = store.run(path)
    assert (report.lines, report.waiting, report.raw.total()) == (len(log.lines), 1, 6)
    assert "1 unfinished last line waiting" in report.line()
    path.write_bytes(data[:-1])
    assert store.run(path).read == 1
    log.user("more")
    path.write_bytes(log.bytes)
    report = store.run(path)
    assert (report.read, report.lines) == (1, 1)


def test_a_rewritten_or_truncated_log_is_read_again_without_doubles_and_without_loss(store, logs):
    log, path = imported(store, logs, work())
    counts = store.counts()
    kept = log.records[4:]
    log.records = [{"type": "summary", "summary": "Mended", "leafUuid": "x"}, *kept]
    log.user("And now?")
    log.write(logs)
    report = store.run(path)
    assert (report.read, report.lines) == (2, len(log.records))
    assert store.counts() == counts | {
        "messages": counts["messages"] + 1,
        "transcript_records": counts["transcript_records"] + 1,
    }
    assert store.one("SELECT title FROM sessions") == "Mended"
    log.records = log.records[:6]
    log.user("Another way", uuid="another")
    log.write(logs)
    store.run(path)
    assert store.counts()["messages"] == counts["messages"] + 2


def test_an_import_killed_between_two_transactions_carries_on(store, open_store, logs, monkeypatch):
    monkeypatch.setattr(importing, "BATCH_BYTES", 2_000)
    whole = open_store("whole")
    for session in (Log().session, OTHER):
        work(session, turns=30).write(logs)
    whole.run(logs)

    class Killed(BaseException):
        pass

    written = 0

    def die(progress: importing.Progress) -> None:
        nonlocal written
        written += 1
        if written % 3 == 0:
            raise Killed

    for _ in range(200):
        try:
            store.run(logs, progress=die)
        except Killed:
            continue
        break
    store.run(logs)
    assert written > 6
    assert contents(store) == contents(whole)


def test_two_importers_of_one_log_take_turns(store, logs, monkeypatch):
    path = work(turns=20).write(logs)
    monkeypatch.setattr(importing, "BATCH_BYTES", 2_000)
    meddled = False

    def meddle(progress: importing.Progress) -> None:
        nonlocal meddled
        if not meddled:
            meddled = True
            store.run(path)

    store.run(path, progress=meddle)
    assert store.counts()["messages"] == 1 + 20 * 3
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (20, 400)


def test_what_is_not_understood_is_kept_counted_and_listed(store, logs):
    log = work(turns=0)
    odd = [b'{"type":"brand-new","x":1}', b'{"broken":', b"[1]", b"\xff\xfe", b"", b'{"type":"user","message":{}}', b"null",
           b'{"x":1}', log.lines[0], b'{"half']  # fmt: skip
    path = log.write(logs)
    path.write_bytes(log.bytes + b"\n".join(odd))
    report = store.run(path)
    assert dict(report.raw) == {
        ("brand-new", "unknown record type"): 1,
        ("?", "broken JSON"): 1,
        ("?", "not a JSON object"): 3,
        ("user", "a message without content"): 1,
        ("?", "a record without a type"): 1,
    }
    assert report.skipped == {"empty line": 1, "repeats a stored record": 1}
    assert (report.read, report.waiting, report.lines) == (1, 1, 1 + len(odd))
    kept = store.all("SELECT line, data FROM raw_records ORDER BY line")
    assert kept[:3] == [(2, '{"type":"brand-new","x":1}'), (3, '{"broken":'), (4, "[1]")]
    assert kept[3] == (5, "\\xff\\xfe")
    assert "1 records read; 7 kept but hidden" in report.line()
    assert store.one("SELECT lines, lines_raw, lines_skipped FROM transcript_files") == (len(odd), 7, 2)


def test_records_with_lone_surrogates_nulls_and_odd_numbers_are_read(store: Store, logs: Path) -> None:
    log = Log()
    log.user("fine")
    path = log.write(logs)
    more = [
        rb'{"type":"user","uuid":"s1","sessionId":"x","message":{"role":"user","content":"half \ud83d of it"}}',
        rb'{"type":"user","uuid":"s2","timestamp":"yesterday","message":{"role":"user","content":"nul \u0000 in it"}}',
        rb'{"type":"assistant","uuid":"s3","timestamp":-5,"message":{"id":"m","model":null,"role":"assistant","content":"x","usage":{"input_tokens":-1,"output_tokens":1e999,"cache_read_input_tokens":"many"}}}',
    ]
    path.write_bytes(log.bytes + b"\n".join(more) + b"\n")
    report = store.run(path)
    assert report.read == 4
    assert "half \ufffd of it" in store.one("SELECT content FROM messages WHERE seq = 2")
    assert store.one("SELECT input_tokens, output_tokens, price_status FROM model_calls")[:2] == (0, 0)


def test_a_huge_line_costs_bounded_memory_and_is_kept_in_part(store, logs, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 100_000)
    monkeypatch.setattr(files, "KEPT_OF_LONGEST", 1_000)
    log = work(turns=1)
    log.user("y" * 300_000)
    log.user("after it")
    report = store.run(log.write(logs))
    assert report.raw[("?", "larger than 64 MiB: only its beginning is kept")] == 1
    assert len(store.one("SELECT data FROM raw_records WHERE kind = '?'")) == 1_000
    assert "after it" in store.one("SELECT content FROM messages ORDER BY seq DESC LIMIT 1")
    assert store.run(logs).lines == 0


def test_clocks_that_jump_change_neither_order_nor_totals(store: Store, logs: Path) -> None:
    log = work()
    for place, record in enumerate(log.records):
        if place % 3 == 0:
            record["timestamp"] = "1999-01-01T00:00:00.000Z" if place % 2 else "2099-01-01T00:00:00.000Z"
    store.run(log.write(logs))
    said = store.said()
    assert said == [
        record["message"]["content"]
        for record in log.records
        if record["type"] in ("user", "assistant") and not record.get("isCompactSummary")
    ]
    assert store.one("SELECT created_at <= last_active FROM sessions") == 1


def test_folders_with_links_in_circles_and_closed_doors_are_read_as_far_as_they_go(store, logs, monkeypatch):
    log = work()
    log.write(logs / "a")
    (logs / "a" / "round").symlink_to(logs)
    (logs / "twice.jsonl").symlink_to(logs / "a" / f"{log.session}.jsonl")
    (logs / "nowhere.jsonl").symlink_to(logs / "gone.jsonl")
    (logs / "other.jsonl").write_text('{"payload": 1}\n')
    (logs / "notes.txt").write_text("not a log")
    shut = logs / "shut"
    shut.mkdir()
    scandir = os.scandir

    def refuse(path: Path) -> Any:
        if Path(path) == shut:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = store.run(logs)
    assert report.files == 1
    assert report.left == {str(shut): "permission denied", str(logs / "nowhere.jsonl"): "a broken link"}
    assert [Path(name).name for name in report.unknown] == ["other.jsonl"]
    assert "1 unsupported file; 2 unreadable" in report.line()


def test_a_name_that_is_no_utf8_is_no_obstacle(store: Store, logs: Path) -> None:
    folder = os.fsencode(logs) + b"/caf\xe9"
    os.mkdir(folder)
    with open(folder + f"/{Log().session}.jsonl".encode(), "wb") as file:
        file.write(work().bytes)
    assert store.run(logs).files == 1
    assert store.run(logs).unchanged == 1


def test_a_session_that_was_deleted_here_does_not_come_back(store: Store, logs: Path) -> None:
    log, path = imported(store, logs, work())
    store.writer.submit(
        lambda group: group.connection.execute("UPDATE sessions SET deleted_at = 5") and None
    ).result(10)
    log.user("More")
    log.write(logs)
    report = store.run(path)
    assert (report.deleted, report.lines) == (1, 0)
    assert "1 log of deleted sessions" in report.line()
    assert store.one("SELECT deleted_at FROM sessions") == 5
    child = Log(isSidechain=True, agentId="abc")
    child.user("Look", uuid="c0")
    child.write(logs, f"{log.session}/subagents/agent-abc.jsonl")
    assert store.run(logs).skipped == {"of a deleted session": 1}
    store.writer.submit(
        lambda group: group.connection.execute("UPDATE sessions SET deleted_at = NULL") and None
    ).result(10)
    assert store.run(logs).read == 1


def test_a_session_in_which_an_agent_of_a_run_works_is_not_imported_beside_the_run(store, logs):
    log = work()
    path = log.write(logs)
    drives = (
        "INSERT INTO agent_programs (agent_id, session_id, program, program_session, folder, opened_at) VALUES"
        " ('coder1', 'run00001', 'claude-code', ?, '/', 5)"
    )
    store.writer.submit(lambda group: group.connection.execute(drives, (log.session,)) and None).result(10)
    child = Log(isSidechain=True, agentId="abc")
    child.user("Look", uuid="c0")
    child.write(logs, f"{log.session}/subagents/agent-abc.jsonl")
    other = Log("0b0b0b0b-1111-4222-8333-444444444444")
    other.user("Mine")
    other.write(logs)
    report = store.run(logs)
    assert report.skipped == {"of a session that belongs to a run here": report.lines - 1}
    assert len(report.sessions) == report.read == 1
    assert store.one("SELECT count(*) FROM sessions") == store.one("SELECT count(*) FROM agents") == 1
    assert store.one("SELECT count(*) FROM model_calls") == store.one("SELECT count(*) FROM raw_records") == 0
    log.user("More")
    log.write(logs)
    assert store.run(path).skipped == {"of a session that belongs to a run here": 1}
    assert store.one("SELECT count(*) FROM transcript_files WHERE session_id IS NOT NULL") == 1


def test_one_log_that_cannot_be_stored_keeps_no_other_out(store, logs, monkeypatch):
    work().write(logs)
    bad = work(OTHER).write(logs)
    load = SessionImporter._load

    def fail(fold: SessionImporter, program: str, key: str, user_id: str) -> object:
        if key == OTHER:
            raise TypeError("boom")
        return load(fold, program, key, user_id)

    monkeypatch.setattr(SessionImporter, "_load", fail)
    report = store.run(logs)
    assert report.left == {str(bad): "its content could not be stored (TypeError: boom)"}
    assert store.one("SELECT count(*) FROM sessions") == 1
    monkeypatch.undo()
    assert store.run(logs).files == 1
    assert store.one("SELECT count(*) FROM sessions") == 2


@pytest.mark.parametrize("long", [True, False])
def test_a_log_that_was_renamed_is_the_log_that_it_was(store: Store, logs: Path, long: bool) -> None:
    log = work(turns=6 if long else 1)
    log.add("new-kind")
    path = log.write(logs)
    store.run(logs)
    before = store.counts()
    moved = logs / "elsewhere" / "renamed.jsonl"
    moved.parent.mkdir()
    path.rename(moved)
    report = store.run(logs)
    assert (report.read, report.raw.total()) == (0, 0)
    assert store.counts() == before
    log.user("more")
    log.add("new-kind")
    moved.write_bytes(log.bytes)
    report = store.run(logs)
    assert (report.read, report.raw.total()) == (1, 1)
    assert store.one("SELECT count(DISTINCT path) FROM raw_records") == 1


def test_a_copy_of_a_log_leaves_the_log_where_it_is(store: Store, logs: Path) -> None:
    log, path = imported(store, logs, work())
    log.write(logs, "copy.jsonl")
    store.run(logs)
    assert store.one("SELECT count(*) FROM transcript_files") == 2
    log.user("more")
    log.write(logs)
    assert store.run(path).read == 1
