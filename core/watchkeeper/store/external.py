"""Sessions that a person started in another terminal: what each does now, and the questions that it waits with.

`interop.hook_spool` writes the rows. The dashboard and the command line read them with `load_external` and answer a
question with `answer_question`, which hands the answer to the hook that waits (`interop.hooks`, `answer.sh`).
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import NotFound, reason_of
from watchkeeper.store.driver import Connection, decode, encode, row_lines
from watchkeeper.store.place import Place, folder_beside
from watchkeeper.store.projection import Raw
from watchkeeper.store.snapshot import IncrementalQuery

if TYPE_CHECKING:
    from watchkeeper.store.writer import Group

SILENT_SECONDS = 300.0
"""A session that is busy, and of which neither a hook nor the log reported anything for so long, is silent."""
KEPT_SECONDS = 7 * 86_400.0
"""How long rows of ended sessions stay."""
NO_HOOK = "no hook is waiting; answer in the terminal. To answer here in future, run `wk hooks install claude --answer`"
ENDED_SECONDS = 3_600.0
"""How long a session that ended is still listed."""
PROBE_SECONDS = 1.0
CHOICES = "AskUserQuestion"
"""The tool with which Claude Code asks multiple-choice questions."""


def hooks_folder(database: Place) -> Path:
    """Where the hooks of one database write, and where answers are handed to them. Only databases in files have
    any."""
    if not isinstance(database, Path):
        return folder_beside(database) / "hooks"
    resolved = database.expanduser().resolve()
    return resolved.with_name(resolved.name + "-hooks")


def is_read(database: Place) -> bool:
    """Whether a process reads now what other terminals do: without one, the rows tell of the past."""
    folder = hooks_folder(database)
    try:
        descriptor = os.open(folder.with_name(folder.name + ".lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


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
    """The later of what hooks and log report."""
    compactions: tuple[Mapping[str, Any], ...] = ()
    """The last ones: `trigger`, `at`, `ended_at` (None: in progress), `path` and `bytes`: the log before it, whose first
    `bytes` hold everything that is about to be dropped."""
    last_message: str = ""

    def is_silent(self, now: float) -> bool:
        """Whether it should work, and neither a hook nor its log reported anything for long."""
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
    input: Mapping[str, Any]
    """Redacted: an approval runs what the program itself has."""
    status: str
    """`waiting`, `sent`, `answered` or `ended`."""
    answer: Mapping[str, Any]
    decided_by: str
    outcome: str
    """How the log says that an answered one ended: `allowed` or `denied`."""
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


_SESSION_COLUMNS = (
    "e.program, e.program_session, e.imported_as, s.id IS NOT NULL, e.pid, e.folder, e.transcript, e.status, e.reason, e.changed_at,"
    " CASE WHEN coalesce(s.last_active, 0) > e.changed_at THEN s.last_active ELSE e.changed_at END, e.details"
)
_SESSIONS = (
    "external_sessions e LEFT JOIN sessions s ON s.id = e.imported_as AND s.deleted_at IS NULL"
    " WHERE e.status <> 'ended' OR e.changed_at >= ? ORDER BY e.changed_at DESC LIMIT 500"
)
_QUESTION_COLUMNS = (
    "q.id, q.program, q.program_session, coalesce(e.imported_as, ''), q.pid, q.agent, q.tool, {input}, q.status, q.answer,"
    " q.decided_by, q.outcome, q.asked_at"
)
_QUESTIONS = "external_questions q LEFT JOIN external_sessions e ON e.program = q.program AND e.program_session = q.program_session"
_OPEN = " WHERE q.status IN ('waiting', 'sent') ORDER BY q.asked_at, q.id LIMIT 200"


def load_external(connection: Connection, *, ended_since: float = float("inf")) -> External:
    """The live sessions, those that ended since a time, and the open questions."""
    rows = connection.execute(f"SELECT {_SESSION_COLUMNS} FROM {_SESSIONS}", (ended_since,))
    columns = _QUESTION_COLUMNS.format(input="q.input")
    questions = connection.execute(f"SELECT {columns} FROM {_QUESTIONS}{_OPEN}")
    return External(tuple(map(_session, rows.fetchall())), tuple(map(_question, questions.fetchall())))


def load_external_question(connection: Connection, question_id: str) -> ExternalQuestion | None:
    """One question, open or not."""
    columns = _QUESTION_COLUMNS.format(input="q.input")
    row = connection.execute(f"SELECT {columns} FROM {_QUESTIONS} WHERE q.id = ?", (question_id,)).fetchone()
    return _question(row) if row is not None else None


class ExternalReader:
    """Reads it again and again, at the price of what changed. It gives nothing while no process reads what other
    terminals do."""

    def __init__(self, database: Place, probe: Callable[[Place], bool] = is_read) -> None:
        self._database, self._probe = database, probe
        self._probed_at = float("-inf")
        self._is_read = False
        self._sessions = IncrementalQuery(row_lines(_SESSION_COLUMNS, _SESSIONS), _session)
        columns = _QUESTION_COLUMNS.format(input="q.id")
        self._questions: IncrementalQuery[Raw] = IncrementalQuery(
            row_lines(columns, _QUESTIONS + _OPEN), lambda raw: raw
        )
        self._rows: tuple[Raw, ...] = ()
        self._asked: tuple[ExternalQuestion, ...] = ()
        self._last = External()

    def asked(self, now: float) -> list[tuple[str, tuple[object, ...]]]:
        """The statements of a reading, as far as they are known before (`postgres.ask_ahead`)."""
        return [(self._sessions.sql, (now - ENDED_SECONDS,))]

    def read(self, connection: Connection, now: float) -> External:
        """The live sessions, those that ended lately, and the open questions; the same object where nothing changed."""
        sessions = self._sessions.read(connection, (now - ENDED_SECONDS,))
        if sessions and not 0 <= now - self._probed_at < PROBE_SECONDS:
            self._probed_at, self._is_read = now, self._probe(self._database)
        if not sessions or not self._is_read:
            self._last = self._last if self._last == External() else External()
            return self._last
        rows = self._questions.read(connection, ())
        if rows is not self._rows:
            self._rows, inputs = rows, {each.id: each.input for each in self._asked}
            self._asked = tuple(_question(self._with_input(connection, row, inputs)) for row in rows)
        if sessions is not self._last.sessions or self._asked is not self._last.questions:
            self._last = External(sessions, self._asked)
        return self._last

    @staticmethod
    def _with_input(connection: Connection, row: Raw, known: Mapping[str, Mapping[str, Any]]) -> Raw:
        """The row with its input, which never changes and may be large: it is read once."""
        found = known.get(row[0])
        if found is None:
            text = connection.execute(
                "SELECT input FROM external_questions WHERE id = ?", (row[0],)
            ).fetchone()
            found = _object(text[0]) if text is not None else {}  # deleted meanwhile
        return [*row[:7], found, *row[8:]]


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
    given, answer = (one if isinstance(one, dict) else _object(one) for one in (row[7], row[9]))
    return ExternalQuestion(*[*row[:7], given, row[8], answer, *row[10:]])


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
    original: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What the program gets. It never holds the program's own suggestions: those widen permissions permanently.

    Args:
        choices: question → the label chosen, or any other text; labels joined with `, ` where several may be chosen.
        original: the input as the program sent it, not redacted.

    Raises:
        ValueError: a multiple-choice question is allowed without an answer to each of its questions, or has answers to
            others.
    """
    if not allow:
        return {"behavior": "deny", "message": reason or "The user denied this in Watchkeeper."}
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
            "the question is no longer open: it was answered in its terminal, or its process ended"
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
    answer_to_program = decision(question, allow=allow, reason=reason, choices=choices, original=original)
    output = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": answer_to_program}}
    handle, name = tempfile.mkstemp(dir=folder / "answers", prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(output, file)
        os.link(name, folder / "answers" / f"{question.id}.json")  # never over an answer that is there
    except FileExistsError:
        raise ValueError("an answer was already sent") from None
    except OSError as fault:
        raise ValueError(f"cannot write the answer: {reason_of(fault)}") from None
    finally:
        Path(name).unlink(missing_ok=True)
    kept = {
        "behavior": answer_to_program["behavior"],
        "reason": reason,
        "choices": sorted((choices or {}).values()),
    }
    from watchkeeper.store.writer import Writer

    writer = Writer(database)
    try:
        writer.submit(lambda group: _mark_sent(group, question, kept, by)).result()
    finally:
        writer.close()


def _mark_sent(group: Group, question: ExternalQuestion, kept: dict[str, Any], by: str) -> None:
    row = group.connection.execute(
        "SELECT transcript FROM external_sessions WHERE program = ? AND program_session = ?",
        (question.program, question.program_session),
    ).fetchone()
    try:  # what the log tells later confirms the answer
        kept["log_bytes"] = log_of(row[0], question.agent).stat().st_size if row else 0
    except OSError:
        kept["log_bytes"] = 0
    group.connection.execute(
        "UPDATE external_questions SET status = 'sent', answer = ?, decided_by = ? WHERE id = ? AND status = 'waiting'",
        (encode(kept), by, question.id),
    )


def log_of(transcript: str, agent: str) -> Path:
    """The log of a session of Claude Code, or of one of its agents."""
    log = Path(transcript)
    return log.with_suffix("") / "subagents" / f"agent-{agent}.jsonl" if agent else log


def compact_instructions(database: Place, program_session: str) -> str:
    """What `set_compact_instructions` set; empty where it set nothing."""
    try:
        return (
            (hooks_folder(database) / "instructions" / Path(program_session).name)
            .read_text("utf-8", "replace")
            .strip()
        )
    except OSError:
        return ""


def set_compact_instructions(database: Path, program_session: str, text: str) -> None:
    """What a session's next compactions get besides the program's own instructions; empty: nothing.

    Raises:
        NotFound: the hooks are not installed.
        ValueError: the id is none.
    """
    folder = hooks_folder(database) / "instructions"
    if not program_session or not all(
        one.isascii() and (one.isalnum() or one in "-_") for one in program_session
    ):
        raise ValueError("not a session id")
    if not folder.is_dir():
        raise NotFound("the hooks are not installed; run `wk hooks install claude`")
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


def _stored(text: str) -> str:
    """The text as a binding takes it: JSON may name lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def save_states(connection: Connection, states: Iterable[SessionState]) -> None:
    """Write these sessions. A row takes the id of the session that was imported from its log."""
    for each in states:
        found = connection.execute(
            "SELECT session_id FROM transcript_files WHERE path = ? AND session_id IS NOT NULL",
            (_stored(each.transcript),),
        ).fetchone()
        connection.execute(
            f"INSERT INTO external_sessions ({_STATE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (program,"
            " program_session) DO UPDATE SET imported_as = excluded.imported_as, pid = excluded.pid, folder = excluded.folder,"
            " transcript = excluded.transcript, status = excluded.status, reason = excluded.reason, details = excluded.details,"
            " changed_at = excluded.changed_at",
            (
                each.program, each.program_session, found[0] if found else each.session_id, each.pid, _stored(each.folder),
                _stored(each.transcript), each.status, _stored(each.reason), encode(each.details), each.changed_at,
            ),
        )  # fmt: skip


def own_sessions(connection: Connection) -> set[str]:
    """The sessions of other programs that agents of our own drive."""
    return {row[0] for row in connection.execute("SELECT program_session FROM agent_programs")}


def forget_sessions(connection: Connection, program_sessions: Iterable[str]) -> None:
    """Delete the rows of these sessions, and their questions."""
    for each in program_sessions:
        connection.execute("DELETE FROM external_questions WHERE program_session = ?", (each,))
        connection.execute("DELETE FROM external_sessions WHERE program_session = ?", (each,))


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
            question.id, question.program, question.program_session, question.pid, question.agent, _stored(question.tool),
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
