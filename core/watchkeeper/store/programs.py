"""Rows of `agent_programs`, `program_turns` and `worktrees`: which program's session an agent is, what it was sent, and
where it works.

A turn is a call: its row is `running` before the prompt is sent, and then `completed`, `interrupted`, `failed`, or
`unknown` where the host died meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.store.driver import decode_or, encode
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
    kind: str
    """`prompt`, or `compaction`: nothing new was sent."""
    record_end: str | None
    """The newest message in the program's own record before the turn, by its id there; None: not known."""


_COLUMNS = "agent_id, program, version, program_session, model, transcript, folder, sent_seq"


def load_session(reads: Any, agent_id: str) -> ProgramSession | None:
    """The program's session of an agent, or None where none was opened yet."""
    row = reads.one(f"SELECT {_COLUMNS} FROM agent_programs WHERE agent_id = ?", (agent_id,))
    return ProgramSession(*row) if row is not None else None


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


def order_compaction(tx: Transaction, agent_id: str, instructions: str | None) -> None:
    """A person wants the context compacted, at the next chance; None: no longer, since that was done."""
    tx.execute("UPDATE agent_programs SET compaction = ? WHERE agent_id = ?", (instructions, agent_id))


def ordered_compaction(reads: Any, agent_id: str) -> str | None:
    """The instructions of a compaction that was ordered, maybe empty; None where none was."""
    row = reads.one("SELECT compaction FROM agent_programs WHERE agent_id = ?", (agent_id,))
    return row[0] if row is not None else None


def last_turn(reads: Any, agent_id: str) -> ProgramTurn | None:
    """The newest turn, or None."""
    row = reads.one(
        "SELECT id, prompt_seq, status, reason, kind, record_end FROM program_turns WHERE agent_id = ?"
        " ORDER BY id DESC LIMIT 1",
        (agent_id,),
    )
    return ProgramTurn(*row) if row is not None else None


def begin_turn(tx: Transaction, agent_id: str, prompt_seq: int, kind: str, record_end: str | None) -> int:
    """A prompt is being sent, or a compaction begun; returns the turn's id."""
    return tx.insert(
        "INSERT INTO program_turns (session_id, agent_id, prompt_seq, status, started_at, commit_seq, kind, record_end)"
        " VALUES (?, ?, ?, 'running', ?, ?, ?, ?)",
        (tx.session_id, agent_id, prompt_seq, tx.now, tx.commit_seq, kind, record_end),
    )


def end_turn(tx: Transaction, turn_id: int, status: str, reason: str | None = None) -> None:
    """How a turn ended: `completed`, `interrupted`, `failed` or `unknown`."""
    tx.execute(
        "UPDATE program_turns SET status = ?, reason = ?, ended_at = ? WHERE id = ?",
        (status, reason, tx.now, turn_id),
    )


# --- Worktrees ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Worktree:
    """The git worktree of one task."""

    task_id: str
    status: str
    """`making` until the folder is whole, then `ready`, `merging` while its merge is under way, `merged`, and `removed`
    with the folder."""
    repository: str
    """The folder that all worktrees of the repository share (`.git`)."""
    folder: str
    branch: str
    base_commit: str
    """Where it began, or what was merged last: the agent's changes are those since then."""
    target: str
    """The branch of the user's folder when it began; empty where that was on none."""
    merge_commit: str | None = None
    """What the user's branch is, or is to be moved to."""
    unresolved: tuple[str, ...] = ()
    """Files that began with conflict markers, because the tasks before it disagree."""
    files_changed: int = 0
    diff: str = ""
    """What its agent has changed, as it was last looked at, for the screen."""
    prefix: str = ""
    """The workspace below `folder`; empty where that is the workspace's counterpart."""

    @property
    def is_there(self) -> bool:
        """Whether an agent may work in it."""
        return self.status not in ("making", "removed")

    @property
    def place(self) -> Path:
        """The workspace's counterpart: where the agent works."""
        return Path(self.folder) / self.prefix


_WORKTREE = (
    "task_id, status, repository, folder, branch, base_commit, target, merge_commit, unresolved, files_changed, diff,"
    " prefix"
)


WORKTREE_OF_TASK = f"SELECT {_WORKTREE} FROM worktrees WHERE task_id = ?"


def load_worktree(reads: Any, task_id: str) -> Worktree | None:
    """The worktree of a task, or None."""
    row = reads.one(WORKTREE_OF_TASK, (task_id,))
    return _worktree(row) if row is not None else None


def load_worktrees(reads: Any, session_id: str) -> list[Worktree]:
    """All worktrees of a session, oldest first."""
    rows = reads.all(
        f"SELECT {_WORKTREE} FROM worktrees WHERE session_id = ? ORDER BY commit_seq, task_id", (session_id,)
    )
    return [_worktree(row) for row in rows]


def _worktree(row: Any) -> Worktree:
    return Worktree(
        task_id=row[0], status=row[1], repository=row[2], folder=row[3], branch=row[4], base_commit=row[5], target=row[6],
        merge_commit=row[7], unresolved=tuple(decode_or(row[8], [])), files_changed=row[9], diff=row[10], prefix=row[11],
    )  # fmt: skip


def save_worktree(tx: Transaction, tree: Worktree) -> None:
    """Write the worktree of a task, in place of an earlier one."""
    tx.execute(
        f"INSERT INTO worktrees ({_WORKTREE}, session_id, created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task_id) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in _WORKTREE.replace(" ", "").split(",")[1:]),
        (
            tree.task_id, tree.status, tree.repository, tree.folder, tree.branch, tree.base_commit, tree.target,
            tree.merge_commit, encode(list(tree.unresolved)), tree.files_changed, tree.diff, tree.prefix,
            tx.session_id, tx.now, tx.commit_seq,
        ),
    )  # fmt: skip


def forget_worktree(tx: Transaction, task_id: str) -> None:
    """Delete the row of a worktree that is gone."""
    tx.execute("DELETE FROM worktrees WHERE task_id = ?", (task_id,))
