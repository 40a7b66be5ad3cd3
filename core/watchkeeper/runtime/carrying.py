"""Carrying a session on in a new one: its plan, its facts and what it saw last go along, with what they rest
on.

Pointers to messages do not cross sessions (`read_back` refuses another session's agents, so that no agent
reads what it should not). So each message that is cited goes along as an artifact, which any session may
read, and facts cite that. Everything is written in the transaction that makes the new session: a crash leaves
both, or neither.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from watchkeeper.memory.recall.session import said_in
from watchkeeper.records.states import TASK_ENDED, TaskStatus
from watchkeeper.runtime.briefing import Brief, CarriedFact, CarriedTask, Seen, whole_text
from watchkeeper.store import artifacts, database, facts, memory, plans, sessions
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.encoding import decode, plain
from watchkeeper.store.transaction import Transaction

BRIEF = "carried-on"
"""The name under which a session finds what it carries on: `carried-on.json`, and `carried-on.md` to read."""
KIND = "carried"

MOST_FACTS = 1_000
MOST_TASKS = 500
MOST_EVIDENCE = 500
EVIDENCE_CHARACTERS = 20_000
RESULT_CHARACTERS = 4_000
OBSERVATION_CHARACTERS = 6_000
LAST_WORDS_CHARACTERS = 4_000
GOAL_CHARACTERS = 4_000
"""Of the goal of another program's session, which may be a whole document that its user pasted."""

_POINTER = re.compile(r"message://([^/\s]+)/(\d+)(?:-(\d+))?\Z")

# What was taken back is elided with no tokens left: `[seq, head, tail, pointer, tokens]`.
_LAST_SAID = (
    "SELECT seq, content FROM messages WHERE agent_id = ? AND role = 'assistant' AND seq NOT IN"
    " (SELECT json_extract(e.value, '$[0]') FROM agents a JOIN views v ON v.agent_id = a.id AND v.version ="
    " a.view_version,"
    " json_each(v.elided) e WHERE a.id = ? AND json_extract(e.value, '$[4]') = 0) ORDER BY seq DESC LIMIT 20"
)

Redact = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Carried:
    """What one session hands to another. `write` puts it into the new session's first transaction."""

    session_id: str
    goal: str
    workspace: str
    brief: Brief
    """Cites messages of the old session; `write` makes artifacts of them."""
    evidence: dict[str, str] = field(default_factory=dict)
    """`message://…` → the text that stands there, with where that is."""

    def write(self, tx: Transaction) -> None:
        """Facts, evidence and the brief, as rows of the new session (scope session, kind as it was)."""
        refs = {
            pointer: artifacts.put(tx, text.encode("utf-8", "replace"))
            for pointer, text in self.evidence.items()
        }
        brief = self.brief.pointing(refs)
        workspace = tx.one("SELECT workspace FROM sessions WHERE id = ?", (tx.session_id,))[0]
        for fact in brief.facts:
            facts.add_fact(
                tx,
                agent_id=None,
                workspace=workspace,
                scope="session",
                kind=fact.kind,
                text=fact.text,
                sources=fact.sources,
                confidence=fact.confidence,
                pinned=fact.pinned,
                also=True,  # they held beside each other, and none takes the place of what is known here
            )
        text = whole_text(brief).encode("utf-8", "replace")
        ref = artifacts.save_output(
            tx,
            name=f"{BRIEF}.md",
            data=text,
            media_type="text/markdown",
            agent_id=None,
            task_id=None,
            kind=KIND,
        )
        same_goal = tx.one("SELECT goal FROM sessions WHERE id = ?", (tx.session_id,))[0] == self.goal
        data = replace(brief, whole=ref, same_goal=same_goal).dumped().encode("utf-8", "replace")
        artifacts.save_output(
            tx,
            name=f"{BRIEF}.json",
            data=data,
            media_type="application/json",
            agent_id=None,
            task_id=None,
            kind=KIND,
        )
        tx.event(
            "session.carried",
            session=self.session_id,
            tasks=len(brief.tasks),
            facts=len(brief.facts),
            brief=ref,
        )


def brief_of(reads: Any, session_id: str) -> Brief | None:
    """What a session carries on, or None where it began from nothing."""
    # Agents may save artifacts under any name, but not of this kind.
    row = reads.one(
        "SELECT digest FROM outputs WHERE session_id = ? AND name = ? AND kind = ?",
        (session_id, f"{BRIEF}.json", KIND),
    )
    data = artifacts.get(reads, artifacts.ref_of(row[0])) if row else None
    return Brief.loaded(data.decode()) if data else None


def carry(database_path: Path, name: str, *, redact: Redact = lambda value: value) -> Carried:
    """Read what the session `name` (an id, a unique beginning, or `last`) hands on, own or imported, running
    or not.

    `redact` takes secrets out: other programs' logs may hold some.

    Raises:
        NotFound: no such session.
        BadInput: several are meant.
    """
    connection = database.open_readonly(database_path)
    try:
        session_id = sessions.find(connection, name)
        return _Reader(connection, session_id, redact).read()
    finally:
        connection.close()


class _Reader:
    """Reads one session, within bounds."""

    def __init__(self, connection: Any, session_id: str, redact: Redact) -> None:
        connection.row_factory = sqlite3.Row
        self._connection = connection
        self._session_id = session_id
        self._redact = redact
        self._evidence: dict[str, str] = {}

    def one(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        return self._connection.execute(sql, parameters).fetchone()

    def all(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        rows: list[Any] = self._connection.execute(sql, parameters).fetchall()
        return rows

    def read(self) -> Carried:
        self._connection.execute("BEGIN")  # one moment, even of a session that runs
        row = self.one(
            "SELECT goal, workspace, origin, status, status_reason, planner_agent_id FROM sessions WHERE id"
            " = ?",
            (self._session_id,),
        )
        # Of any other session, nobody knows whose instructions it holds: they are carried as facts.
        own = row["origin"] in sessions.OWN_ORIGINS
        lead = row["planner_agent_id"] or self._first_agent()
        tasks = self._tasks()
        seen = self._seen(lead, tasks)
        brief = Brief(
            session_id=self._session_id,
            origin=row["origin"],
            goal=self._text(row["goal"], 4_000),
            status=row["status"],
            reason=self._text(row["status_reason"], 1_000),
            tasks=tuple(tasks),
            facts=tuple(self._facts(trusted=own)),
            seen=tuple(seen),
            last_words=self._last_words(lead),
            trusted=own,
        )
        goal = plain(str(self._redact(row["goal"])))
        if not own and len(goal) > GOAL_CHARACTERS:
            goal = goal[: GOAL_CHARACTERS - 1] + "…"
        return Carried(self._session_id, goal, row["workspace"], brief, self._evidence)

    def _first_agent(self) -> str | None:
        row = self.one(
            "SELECT id FROM agents WHERE session_id = ? ORDER BY rowid LIMIT 1", (self._session_id,)
        )
        return row[0] if row else None

    def _tasks(self) -> list[CarriedTask]:
        found = plans.load_tasks(self, self._session_id)
        names = {task.id: task.name for task in found}
        # Where there are too many, the open ones and the last of the others are told.
        open_ones = [task for task in found if task.status not in TASK_ENDED]
        ended = [task for task in found if task.status in TASK_ENDED][-max(0, MOST_TASKS - len(open_ones)) :]
        chosen = {task.id for task in (*open_ones[:MOST_TASKS], *ended)}
        return [
            CarriedTask(
                name=self._text(task.name, 120),
                title=self._text(task.title, 400),
                status=task.status,
                reason=self._text(task.status_reason, 400),
                instructions=self._text(task.instructions, RESULT_CHARACTERS),
                result=self._text(task.result, RESULT_CHARACTERS),
                error=self._text(task.error, 1_000),
                needs=tuple(self._text(names.get(need, need), 120) for need in task.depends_on),
                refs=tuple(ref for ref in task.artifact_refs if artifacts.digest_of(ref))[:20],
                agent_id=task.assigned_agent,
            )
            for task in found
            if task.id in chosen
        ]

    def _facts(self, *, trusted: bool) -> list[CarriedFact]:
        """Those that every agent of the session could recall, and that nothing replaced; the newest, in
        order."""
        rows = self.all(
            "SELECT kind, text, sources, confidence, pinned FROM facts WHERE session_id = ? AND"
            " superseded_by IS NULL"
            " AND scope <> 'agent' ORDER BY id DESC LIMIT ?",
            (self._session_id, MOST_FACTS),
        )
        found = [
            CarriedFact(
                kind=row["kind"] if row["kind"] in facts.KINDS else "fact",
                text=self._text(row["text"], 2_000),
                sources=tuple(self._cite(source) for source in decode(row["sources"])[:10]),
                confidence=float(row["confidence"]),
                pinned=bool(row["pinned"]) and trusted,
            )
            for row in rows
        ]
        return found[::-1]

    def _seen(self, lead: str | None, tasks: list[CarriedTask]) -> list[Seen]:
        """The observations in the contexts of the lead, and of agents whose tasks are not done."""
        unfinished = [task.agent_id for task in tasks if task.status is not TaskStatus.DONE and task.agent_id]
        found: list[Seen] = []
        for agent_id in dict.fromkeys([lead, *unfinished[:20]]):
            row = self.one("SELECT id, name, view_version FROM agents WHERE id = ?", (agent_id,))
            view = memory.load_view(self, row["id"], row["view_version"]) if row else None
            for one in view.observations[-3:] if view else ():
                cited = (
                    one.citations if len(one.citations) <= 12 else (*one.citations[:6], *one.citations[-6:])
                )
                sources = tuple(self._cite(f"message://{agent_id}/{seq}") for seq in cited)
                found.append(
                    Seen(
                        self._text(row["name"], 80),
                        self._text(one.text, OBSERVATION_CHARACTERS, lines=True),
                        sources,
                    )
                )
        return found

    def _last_words(self, lead: str | None) -> Seen | None:
        """The last text that the lead said, for there it says where it stands; nothing that was taken
        back."""
        rows = self.all(_LAST_SAID, (lead, lead))
        for row in rows:
            content = decode(row["content"])
            blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
            text = "\n".join(
                str(block.get("text", "")) for block in blocks if block.get("type") == "text"
            ).strip()
            if text:
                return Seen(
                    "",
                    self._text(text, LAST_WORDS_CHARACTERS, lines=True),
                    (self._cite(f"message://{lead}/{row['seq']}"),),
                )
        return None

    def _cite(self, pointer: str) -> str:
        """The pointer, whose message now goes along; as it is where it points at something else, or too much
        is cited."""
        match = _POINTER.match(pointer)
        if match is None or pointer in self._evidence or len(self._evidence) >= MOST_EVIDENCE:
            return pointer
        agent_id, first, last = match[1], int(match[2]), int(match[3] or match[2])
        agent = self.one(
            "SELECT name FROM agents WHERE id = ? AND session_id = ?", (agent_id, self._session_id)
        )
        if agent is None:
            return pointer
        parts, size = [], 0
        for message in memory.load_messages(self, agent_id, first, min(last, first + 40)):
            when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(message.created_at))
            said = said_in(self._redact(message.content))[: EVIDENCE_CHARACTERS - size]
            parts.append(f"{agent['name']} #{message.seq}, {message.role}, {when} UTC:\n{said}")
            size += len(said)
            if size >= EVIDENCE_CHARACTERS:
                break
        if parts:
            self._evidence[pointer] = f"From session {self._session_id}, {pointer}\n\n" + "\n\n".join(parts)
        return pointer

    def _text(self, text: str | None, limit: int, *, lines: bool = False) -> str:
        clean = plain(str(self._redact(text or "")))
        clean = clean.strip() if lines else " ".join(clean.split())
        return clean if len(clean) <= limit else clean[: limit - 1] + "…"
