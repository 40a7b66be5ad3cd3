"""What must be true of a run that was killed: it ended as the run that nobody killed, and its file adds
up."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import scenario

from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.place import Place

Read = Callable[..., list[Any]]


@dataclass
class Outcome:
    """The end state of one run, without what may differ between two runs (ids, times, the moments of
    compactions)."""

    tasks: list[Any]
    outputs: list[Any]
    facts: list[Any]
    commands: list[Any]
    inbox: Counter[str]
    transcripts: dict[str, list[Any]]
    """`task/attempt` → its messages."""
    interrupted: set[str]
    """Of `transcripts`: those which tell of a call whose outcome is unknown, and so differ."""
    stopped: set[str]
    """Of `transcripts`: those of agents that were stopped since their inputs changed. A kill may stop them sooner."""
    effects: Counter[str]
    unknown_effects: set[str]
    """Effects whose call is marked `unknown` in the log of events."""
    problems: list[str] = field(default_factory=list)


@contextmanager
def reading(place: Place) -> Iterator[Read]:
    """Read a database. What only a file can be asked is answered for a server as if all were well there."""
    file = isinstance(place, Path)
    connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True) if file else database.open_readonly(place)

    def read(sql: str, *parameters: Any) -> list[Any]:
        if sql.startswith("PRAGMA") and not file:
            return [("ok",)] if "integrity" in sql else []
        return connection.execute(sql, parameters).fetchall()

    with closing(connection):
        yield read


def look(place: Place, folder: Path) -> Outcome:
    """Read the end state, and the log of effects in the folder; check what must hold of any database."""
    with reading(place) as read:
        return _look(read, folder / scenario.LOG)


def _look(read: Read, log: Path) -> Outcome:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    label_of = {int(call): label for label, call in lines}
    unknown = {
        json.loads(row[0])["call"] for row in read("SELECT data FROM events WHERE kind = 'tool.unknown'")
    }
    agents = read("SELECT a.id, t.name, a.attempt, a.status FROM agents a JOIN tasks t ON t.id = a.task_id")
    marked = {
        row[0]
        for row in read("SELECT DISTINCT agent_id FROM messages WHERE content LIKE '%outcome unknown%'")
    }
    return Outcome(
        tasks=read("SELECT name, status, attempt, result FROM tasks ORDER BY name"),
        outputs=read("SELECT name, digest FROM outputs WHERE kind != 'tool_output' ORDER BY name, digest"),
        facts=read("SELECT text, scope, kind FROM facts ORDER BY text"),
        commands=read(
            "SELECT dedupe_key, CASE WHEN dedupe_key = 'compactearly' AND status != 'queued' THEN 'settled' ELSE status END"
            " FROM commands ORDER BY 1"
        ),
        inbox=Counter(
            f"{kind} {json.loads(payload).get('task')}"
            for kind, payload in read("SELECT kind, payload FROM inbox")
        ),
        transcripts={f"{name}/{attempt}": _transcript(read, agent) for agent, name, attempt, _ in agents},
        interrupted={f"{name}/{attempt}" for agent, name, attempt, _ in agents if agent in marked},
        stopped={f"{name}/{attempt}" for _, name, attempt, status in agents if status == "cancelled"},
        effects=Counter(label for label, _ in lines),
        unknown_effects={label_of[call] for call in unknown if call in label_of},
        problems=list(problems_of(read)),
    )


def _transcript(read: Read, agent: str) -> list[Any]:
    """The messages, without what may differ between two runs."""
    ids = frozenset(
        row[0]
        for table in ("sessions", "agents", "tasks", "plans")
        for row in read(f"SELECT id FROM {table}")
    )
    rows = read("SELECT role, content FROM messages WHERE agent_id = ? ORDER BY seq", agent)
    return [(role, _without_ids(content, ids)) for role, content in rows]


def _without_ids(text: str, ids: frozenset[str]) -> str:
    """Without ids, which are random, and without what an assignment says of the session's facts: which of
    them are known already, when a task is given out, is a matter of how fast the others are."""
    text = re.sub(r"artifact://sha256/[0-9a-f]{64}", "artifact://…", text)
    text = re.sub(r'memory_delta_ref\\": (null|\\"artifact://…\\")', "memory_delta_ref…", text)
    text = re.sub(r"What this session knows so far:(?:\\n- .*?)+(?=\\n\\n)", "…", text)
    # PostgreSQL gives out numbers in blocks, so those of a host that died are skipped.
    text = re.sub(r"stored as fact \d+", "stored as fact …", text)
    return re.sub(
        r"(?<![a-z0-9])[a-z2-9]{8}(?![a-z0-9])", lambda found: "…" if found[0] in ids else found[0], text
    )


def problems_of(read: Read) -> Iterator[str]:
    """What does not hold of a file whose one session has ended, whatever was done in it."""
    if read("PRAGMA integrity_check") != [("ok",)]:
        yield "the file is damaged"
    if read("PRAGMA foreign_key_check"):
        yield "a row refers to one that is not there"
    sessions = read(
        "SELECT id, status, event_seq, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,"
        " model_calls, retries"
        " FROM sessions"
    )
    if len(sessions) != 1:
        yield f"{len(sessions)} sessions"
    for session, status, last, *totals in sessions:
        if status != "done":
            yield f"the session is {status}"
        seqs = [row[0] for row in read("SELECT seq FROM events WHERE session_id = ? ORDER BY seq", session)]
        if seqs != list(range(1, last + 1)):
            yield "a gap in the events"
        for table in ("model_calls", "agents"):
            calls = "count(*)" if table == "model_calls" else "sum(model_calls)"
            counted = read(
                "SELECT sum(input_tokens), sum(output_tokens), sum(cache_read_tokens),"
                f" sum(cache_write_tokens), {calls},"
                f" sum(retries) FROM {table} WHERE session_id = ?",
                session,
            )[0]
            if [value or 0 for value in counted] != totals:
                yield f"totals of the session are {totals}, of its {table} {counted}"
    for agent, tokens, last, view in read("SELECT id, message_tokens, last_seq, view_version FROM agents"):
        rows = read("SELECT seq, tokens, total_tokens FROM messages WHERE agent_id = ? ORDER BY seq", agent)
        if [row[0] for row in rows] != list(range(1, last + 1)) or sum(row[1] for row in rows) != tokens:
            yield f"messages or totals of {agent} do not add up"
        if rows and rows[-1][2] != tokens:
            yield f"running totals of {agent} do not add up"
        if not read("SELECT 1 FROM views WHERE agent_id = ? AND version = ?", agent, view):
            yield f"the view of {agent} is not there"
    if read(
        "SELECT 1 FROM compactions WHERE status NOT IN ('applied', 'rejected', 'abandoned', 'skipped', 'prepared')"
    ):
        yield "a compaction is still running"
    if read("SELECT 1 FROM compactions WHERE status = 'prepared' AND trigger != 'observer'"):
        yield "a compaction was never landed"
    passes = read("SELECT count(*) FROM compactions WHERE trigger = 'manual' AND status = 'applied'")[0][0]
    if passes > read("SELECT count(*) FROM commands WHERE kind = 'compact' AND status = 'applied'")[0][0]:
        yield "a compaction by command was applied twice"
    if read("SELECT 1 FROM inbox WHERE delivered_seq IS NULL AND kind != 'nudge'"):
        yield "news was never delivered"
    if read("SELECT 1 FROM tool_calls WHERE status IN ('pending', 'running')"):
        yield "a call never ended"
    # An agent that was stopped takes no further step, so nothing is delivered to it.
    if read(
        "SELECT 1 FROM tool_calls c JOIN agents a ON a.id = c.agent_id"
        " WHERE c.result_seq IS NULL AND c.status != 'cancelled' AND a.status != 'cancelled'"
    ):
        yield "a result was never delivered"
    if read("SELECT 1 FROM agents WHERE task_id IS NOT NULL GROUP BY task_id, attempt HAVING count(*) > 1"):
        yield "an attempt was given to two agents"
    done = [
        json.loads(data).get("agent") for (data,) in read("SELECT data FROM events WHERE kind = 'task.done'")
    ]
    if len(done) != len(set(done)):
        yield "a finished attempt ran twice"


def judge(reference: Outcome, place: Place, folder: Path) -> list[str]:
    """What is wrong with the end of a run that was killed; nothing, if all is well."""
    ended = look(place, folder)
    problems = list(ended.problems)
    for name in ("tasks", "outputs", "facts", "commands", "inbox"):
        mine, theirs = getattr(ended, name), getattr(reference, name)
        if mine != theirs:
            problems.append(f"its {name} differ: {mine} instead of {theirs}"[:600])
    if set(ended.transcripts) != set(reference.transcripts):
        problems.append(f"attempts {sorted(ended.transcripts)}")
    for key, messages in reference.transcripts.items():
        other = ended.transcripts.get(key) or []
        if key in ended.stopped and key in reference.stopped:
            both = min(len(other), len(messages))
            other, messages = other[:both], messages[:both]
        if key not in ended.interrupted and other != messages:
            pairs = [(mine, theirs) for mine, theirs in zip(other, messages, strict=False) if mine != theirs]
            problems.append(
                f"messages of {key} differ: {len(other)} and {len(messages)}; {str(pairs[:1])[:600]}"
            )
    for label in scenario.EFFECTS:
        count = ended.effects[label]
        if count == 0:
            problems.append(f"effect {label} was lost")
        elif count > 1 and not (label in scenario.REPEATABLE and label in ended.unknown_effects):
            problems.append(f"effect {label} was had {count} times, silently")
    if extra := set(ended.effects) - set(scenario.EFFECTS):
        problems.append(f"effects that nobody asked for: {extra}")
    return problems
