"""Rows of `agent_programs` and `program_turns`: which program's session an agent is, and what it was sent.

A turn is a call: its row is `running` before the prompt is sent, and then `completed`, `interrupted`, `failed`, or
`unknown` where the host died meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchkeeper.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ProgramSession:
    """The session of another program that an agent is."""

    agent_id: str
    program: str
    version: str
    program_session: str
    """The program's own id of it."""
    model: str | None
    transcript: str | None
    """Path of the program's own record."""
    folder: str
    sent_seq: int
    """The last message of the agent's history that was sent to the program."""


@dataclass(frozen=True, slots=True)
class ProgramTurn:
    """The newest turn of an agent."""

    id: int
    prompt_seq: int
    status: str
    reason: str | None
    started_at: float


_COLUMNS = "agent_id, program, version, program_session, model, transcript, folder, sent_seq"


def load_session(reads: Any, agent_id: str) -> ProgramSession | None:
    """The program's session of an agent, or None where none was opened yet."""
    row = reads.one(f"SELECT {_COLUMNS} FROM agent_programs WHERE agent_id = ?", (agent_id,))
    return ProgramSession(*row) if row is not None else None


def load_sessions(reads: Any, session_id: str) -> list[ProgramSession]:
    """The programs' sessions of all agents of a session."""
    rows = reads.all(f"SELECT {_COLUMNS} FROM agent_programs WHERE session_id = ?", (session_id,))
    return [ProgramSession(*row) for row in rows]


def save_session(tx: Transaction, session: ProgramSession) -> None:
    """Write which session an agent is; a later call for the same agent replaces it."""
    tx.execute(
        "INSERT INTO agent_programs (agent_id, session_id, program, version, program_session, model, transcript, folder,"
        " sent_seq, opened_at, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE SET"
        " version = excluded.version, program_session = excluded.program_session, model = excluded.model,"
        " transcript = excluded.transcript, folder = excluded.folder, sent_seq = excluded.sent_seq",
        (
            session.agent_id, tx.session_id, session.program, session.version, session.program_session, session.model,
            session.transcript, session.folder, session.sent_seq, tx.now, tx.commit_seq,
        ),
    )  # fmt: skip


def note_sent(tx: Transaction, agent_id: str, seq: int) -> None:
    """All messages up to this one were sent, or are being sent in this moment."""
    tx.execute("UPDATE agent_programs SET sent_seq = ? WHERE agent_id = ?", (seq, agent_id))


def last_turn(reads: Any, agent_id: str) -> ProgramTurn | None:
    """The newest turn, or None."""
    row = reads.one(
        "SELECT id, prompt_seq, status, reason, started_at FROM program_turns WHERE agent_id = ? ORDER BY id DESC LIMIT 1",
        (agent_id,),
    )
    return ProgramTurn(*row) if row is not None else None


def begin_turn(tx: Transaction, agent_id: str, prompt_seq: int) -> int:
    """A prompt is being sent; returns the turn's id."""
    return tx.insert(
        "INSERT INTO program_turns (session_id, agent_id, prompt_seq, status, started_at, commit_seq)"
        " VALUES (?, ?, ?, 'running', ?, ?)",
        (tx.session_id, agent_id, prompt_seq, tx.now, tx.commit_seq),
    )


def end_turn(tx: Transaction, turn_id: int, status: str, reason: str | None = None) -> None:
    """How a turn ended: `completed`, `interrupted`, `failed` or `unknown`."""
    tx.execute(
        "UPDATE program_turns SET status = ?, reason = ?, ended_at = ? WHERE id = ?",
        (status, reason, tx.now, turn_id),
    )
