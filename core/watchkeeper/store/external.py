"""Sessions that a person started in another terminal: what each does now, and the questions that it waits with.

`interop.hook_spool` writes the rows. The dashboard and the command line read them with `load_external` and answer a
question with `answer_question`, which hands the answer to the hook that waits (`interop.hooks`, `answer.sh`).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import NotFound
from watchkeeper.store.driver import Connection, decode, encode
from watchkeeper.store.place import Place, folder_beside
from watchkeeper.store.writer import Group, Writer

SILENT_SECONDS = 300.0
"""A session that is busy and told nothing for so long, neither by a hook nor in its log, is silent."""
KEPT_SECONDS = 7 * 86_400.0
"""How long rows of ended sessions stay."""
NO_HOOK = (
    "no hook waits for an answer: `wk hooks install claude --answer`, and answer in the terminal this time"
)
CHOICES = "AskUserQuestion"
"""The tool with which Claude Code asks multiple-choice questions."""


def hooks_folder(database: Place) -> Path:
    """Where the hooks of one database write, and where answers are handed to them. Only databases in files have
    any."""
    if not isinstance(database, Path):
        return folder_beside(database) / "hooks"
    resolved = database.expanduser().resolve()
    return resolved.with_name(resolved.name + "-hooks")


@dataclass(frozen=True, slots=True)
class ExternalSession:
    """One session in another terminal. All text is hostile."""

    program: str
    program_session: str
    session_id: str
    """The imported session, once its log was imported: one session, never two."""
    imported: bool
    """Whether `sessions` has it."""
    pid: int | None
    folder: str
    transcript: str
    status: str
    """`idle`, `busy`, `waiting`, `compacting`, `failed` or `ended`."""
    reason: str
    """What it waits for, why it failed or ended."""
    changed_at: float
    last_active: float
    """Of hooks and log together."""
    compactions: tuple[dict[str, Any], ...] = ()
    """The last ones: `trigger`, `at`, `ended_at` (None: in progress), `path` and `bytes`: the log before it, whose first
    `bytes` hold everything that is about to be dropped."""
    last_message: str = ""

    def is_silent(self, now: float) -> bool:
        """Whether it should work, and neither a hook nor its log told of anything for long."""
        return self.status == "busy" and now - self.last_active > SILENT_SECONDS


@dataclass(frozen=True, slots=True)
class ExternalQuestion:
    """A permission question of a session in another terminal. All text is hostile."""

    id: str
    program: str
    program_session: str
    session_id: str
    pid: int
    agent: str
    tool: str
    input: dict[str, Any]
    """Redacted: an approval runs what the program itself has."""
    status: str
    """`waiting`, `sent`, `answered` or `ended`."""
    answer: dict[str, Any]
    decided_by: str
    outcome: str
    """Of an answered one, by the log: `allowed` or `denied`."""
    asked_at: float

    @property
    def choices(self) -> tuple[dict[str, Any], ...]:
        """The program's own multiple-choice questions: `question`, `options` (each with `label`), `multiSelect`."""
        found = self.input.get("questions") if self.tool == CHOICES else None
        return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()


@dataclass(frozen=True, slots=True)
class External:
    """What other terminals do: for the fleet screen, the attention line and `wk hooks status`."""

    sessions: tuple[ExternalSession, ...] = ()
    questions: tuple[ExternalQuestion, ...] = ()
    """Those that wait or were sent, the oldest first; with `session_id` of the session that they belong to."""


_SESSION = (
    "SELECT e.program, e.program_session, e.imported_as, s.id IS NOT NULL, e.pid, e.folder, e.transcript, e.status, e.reason,"
    " e.changed_at, CASE WHEN coalesce(s.last_active, 0) > e.changed_at THEN s.last_active ELSE e.changed_at END, e.details"
    " FROM external_sessions e LEFT JOIN sessions s ON s.id = e.imported_as AND s.deleted_at IS NULL"
)
_QUESTION = (
    "SELECT q.id, q.program, q.program_session, coalesce(e.imported_as, ''), q.pid, q.agent, q.tool, q.input, q.status, q.answer,"
    " q.decided_by, q.outcome, q.asked_at FROM external_questions q LEFT JOIN external_sessions e ON e.program = q.program AND"
    " e.program_session = q.program_session"
)


def load_external(connection: Connection, *, ended_since: float = float("inf")) -> External:
    """The live sessions, those that ended since a time, and the open questions."""
    rows = connection.execute(
        f"{_SESSION} WHERE e.status <> 'ended' OR e.changed_at >= ? ORDER BY e.changed_at DESC LIMIT 500",
        (ended_since,),
    )
    questions = connection.execute(
        f"{_QUESTION} WHERE q.status IN ('waiting', 'sent') ORDER BY q.asked_at, q.id LIMIT 200"
    )
    return External(tuple(map(_session, rows.fetchall())), tuple(map(_question, questions.fetchall())))


def _session(row: Sequence[Any]) -> ExternalSession:
    details = _object(row[11])
    past = details.get("compactions")
    compactions = tuple(one for one in past if isinstance(one, dict)) if isinstance(past, list) else ()
    message = details.get("last_message")
    text = message if isinstance(message, str) else ""
    return ExternalSession(
        row[0], row[1], row[2], bool(row[3]), row[4], row[5], row[6], row[7], row[8], row[9], row[10],
        compactions, text,
    )  # fmt: skip


def _question(row: Sequence[Any]) -> ExternalQuestion:
    return ExternalQuestion(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], _object(row[7]), row[8], _object(row[9]), row[10], row[11], row[12]
    )  # fmt: skip


def _object(text: str) -> dict[str, Any]:
    try:
        found = decode(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def find_external_questions(connection: Connection, prefix: str) -> list[ExternalQuestion]:
    """The waiting questions whose id begins so; `last`: the newest."""
    waiting = [each for each in load_external(connection).questions if each.status == "waiting"]
    if prefix == "last":
        return waiting[-1:]
    return [each for each in waiting if each.id.startswith(prefix)]


# --- Answering ---------------------------------------------------------------------------------------------------------


def decision(
    question: ExternalQuestion, *, allow: bool, reason: str = "", choices: dict[str, str] | None = None,
    original: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the program is told. It never holds the program's own suggestions: those widen permissions for good.

    Args:
        choices: question → the label chosen, or any other text; labels joined with `, ` where several may be chosen.
        original: the input as the program sent it, not redacted.

    Raises:
        ValueError: a multiple-choice question is allowed without an answer to each of its questions, or has answers to
            others.
    """
    if not allow:
        return {"behavior": "deny", "message": reason or "The user refused this from Watchkeeper."}
    if not question.choices:
        if choices:
            raise ValueError("this question has no choices; allow or deny it")
        return {"behavior": "allow"}
    source = original if original is not None else question.input
    asked = [str(one.get("question", "")) for one in source.get("questions", ()) if isinstance(one, dict)]
    if choices is None or set(choices) != set(asked) or not all(choices.values()):
        raise ValueError("answer each of its questions: " + "; ".join(asked))
    return {"behavior": "allow", "updatedInput": {**source, "answers": choices}}


def answer_question(
    database: Path, question: ExternalQuestion, by: str, *, allow: bool, reason: str = "", choices: dict[str, str] | None = None
) -> None:  # fmt: skip
    """Hand an answer to the hook that waits. The row then says `sent`, until the log confirms what became of it.

    `choices` maps the place (`0`, `1`, …) of each multiple-choice question to its answer.

    Raises:
        ValueError: the question is gone, was answered already, or the answer does not fit.
    """
    folder = hooks_folder(database)
    asked = folder / "asks" / f"{question.pid}.{question.id}.json"
    try:
        payload = json.loads(asked.read_bytes())
    except (OSError, ValueError):
        raise ValueError(
            "the question is gone: it was answered in its terminal, or its process ended"
        ) from None
    original = payload.get("tool_input") if isinstance(payload, dict) else None
    original = original if isinstance(original, dict) else {}
    if choices is not None:
        # Redaction may have changed the words of a question: its place names it.
        texts = [
            str(one.get("question", "")) for one in original.get("questions", ()) if isinstance(one, dict)
        ]
        if set(choices) != {str(place) for place in range(len(texts))}:
            raise ValueError(f"answer each of its {len(texts)} questions")
        choices = {text: choices[str(place)] for place, text in enumerate(texts)}
    told = decision(question, allow=allow, reason=reason, choices=choices, original=original)
    output = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": told}}
    handle, name = tempfile.mkstemp(dir=folder / "answers", prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(output, file)
        os.link(name, folder / "answers" / f"{question.id}.json")  # never over an answer that is there
    except FileExistsError:
        raise ValueError("an answer was sent already") from None
    except OSError as fault:
        raise ValueError(f"the answer cannot be written: {fault.strerror}") from None
    finally:
        Path(name).unlink(missing_ok=True)
    kept = {"behavior": told["behavior"], "reason": reason, "choices": sorted((choices or {}).values())}
    writer = Writer(database)
    try:
        writer.submit(lambda group: _mark_sent(group, question.id, kept, by)).result()
    finally:
        writer.close()


def _mark_sent(group: Group, question_id: str, kept: dict[str, Any], by: str) -> None:
    group.connection.execute(
        "UPDATE external_questions SET status = 'sent', answer = ?, decided_by = ? WHERE id = ? AND status = 'waiting'",
        (encode(kept), by, question_id),
    )


def set_compact_instructions(database: Path, program_session: str, text: str) -> None:
    """What a session's next compactions are told besides the program's own instructions; empty: nothing.

    Raises:
        NotFound: the hooks are not installed.
        ValueError: the id is none.
    """
    folder = hooks_folder(database) / "instructions"
    if not program_session or not all(
        one.isascii() and (one.isalnum() or one == "-") for one in program_session
    ):
        raise ValueError("that is no id of a session")
    if not folder.is_dir():
        raise NotFound("the hooks are not installed: wk hooks install claude")
    if not text.strip():
        (folder / program_session).unlink(missing_ok=True)
        return
    handle, name = tempfile.mkstemp(dir=folder, prefix=".")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text.strip() + "\n")
    os.replace(name, folder / program_session)


# --- Rows that the spool's reader writes ---------------------------------------------------------------------------------


@dataclass(slots=True)
class SessionState:
    """What is known of one session, as a row holds it."""

    program: str
    program_session: str
    session_id: str = ""
    pid: int | None = None
    folder: str = ""
    transcript: str = ""
    status: str = "idle"
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    changed_at: float = 0.0


_STATE = "program, program_session, imported_as, pid, folder, transcript, status, reason, details, changed_at"


def load_states(connection: Connection) -> dict[str, SessionState]:
    """Every session that is kept, by its program's id of it."""
    rows = connection.execute(f"SELECT {_STATE} FROM external_sessions").fetchall()
    return {
        row[1]: SessionState(
            row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], _object(row[8]), row[9]
        )
        for row in rows
    }


def save_states(connection: Connection, states: Iterable[SessionState]) -> None:
    """Write these sessions. A row takes the id of the session that was imported from its log."""
    for each in states:
        found = connection.execute(
            "SELECT session_id FROM transcript_files WHERE path = ? AND session_id IS NOT NULL",
            (each.transcript,),
        ).fetchone()
        connection.execute(
            f"INSERT INTO external_sessions ({_STATE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (program,"
            " program_session) DO UPDATE SET imported_as = excluded.imported_as, pid = excluded.pid, folder = excluded.folder,"
            " transcript = excluded.transcript, status = excluded.status, reason = excluded.reason, details = excluded.details,"
            " changed_at = excluded.changed_at",
            (
                each.program, each.program_session, found[0] if found else each.session_id, each.pid, each.folder,
                each.transcript, each.status, each.reason, encode(each.details), each.changed_at,
            ),
        )  # fmt: skip


def forget_old(connection: Connection, now: float) -> None:
    """Delete rows of sessions that ended long ago, and their questions."""
    connection.execute(
        "DELETE FROM external_sessions WHERE status = 'ended' AND changed_at < ?", (now - KEPT_SECONDS,)
    )
    connection.execute(
        "DELETE FROM external_questions WHERE status IN ('answered', 'ended') AND changed_at < ?",
        (now - KEPT_SECONDS,),
    )


def add_question(connection: Connection, question: ExternalQuestion) -> None:
    """Keep a question that a hook waits with."""
    connection.execute(
        "INSERT INTO external_questions (id, program, program_session, pid, agent, tool, input, status, asked_at, changed_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting', ?, ?) ON CONFLICT (id) DO NOTHING",
        (
            question.id, question.program, question.program_session, question.pid, question.agent, question.tool,
            encode(question.input), question.asked_at, question.asked_at,
        ),
    )  # fmt: skip


def end_question(connection: Connection, question_id: str, outcome: str, now: float) -> None:
    """A question was answered as its log says (`allowed`, `denied`, or `failed`: the call's result is an error), or is gone
    (empty). An error after a denial that was sent from here is that denial."""
    if outcome == "failed":
        row = connection.execute(
            "SELECT answer FROM external_questions WHERE id = ?", (question_id,)
        ).fetchone()
        outcome = "denied" if row and _object(row[0]).get("behavior") == "deny" else "allowed"
    connection.execute(
        "UPDATE external_questions SET status = ?, outcome = ?, changed_at = ? WHERE id = ? AND (status IN ('waiting', 'sent')"
        " OR (status = 'ended' AND ? <> ''))",
        ("answered" if outcome else "ended", outcome, now, question_id, outcome),
    )
