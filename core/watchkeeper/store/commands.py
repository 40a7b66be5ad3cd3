"""What people ask of a run, and what a run asks of them: the control queue, and questions about calls of tools.

Any process writes commands; only the host applies them.

A question shows the whole input of the call, the agent, its task and its folder: one projection for the dashboard,
`wk show` and `wk approve --show`. Nothing is cut. `write` and `edit` are shown as a difference from the present file, with
the digest that the answer returns. The texts come from a model: a caller that displays them passes them through
`records.text.reveal`, which hides nothing.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.records.premises import Premises
from watchkeeper.records.states import ApprovalStatus, CommandStatus
from watchkeeper.records.text import call_words, parser_mistake
from watchkeeper.records.tool_inputs import (
    FILE_CHANGES,
    FileChange,
    Protected,
    file_change,
    matches,
    parse_command,
    pattern_of,
    values_inside,
)
from watchkeeper.store.agents import load_worktree
from watchkeeper.store.database import protected_files
from watchkeeper.store.driver import Queries, Reads, decode, decode_or, encode, first
from watchkeeper.store.names import AGENT_NAME, TASK_NAME, described, with_role
from watchkeeper.store.place import Place

if TYPE_CHECKING:
    from watchkeeper.store.driver import Connection
    from watchkeeper.store.transaction import Transaction

CALL_OPEN = "NOT EXISTS (SELECT 1 FROM tool_calls c WHERE c.id = tool_call_id AND c.status NOT IN ('pending', 'running'))"
"""Whether the call that a row of `approvals` asks about still waits; one that has ended, in whatever way, does not."""


KINDS = frozenset(
    {
        "pause",
        "resume",
        "cancel",
        "rerun",
        "plan",
        "compact",
        "undo",
        "redo",
        "edit",
        "steer",
        "approve",
        "deny",
        "set_budget",
        "memory_sync",
        "pin",
        "unpin",
        "revoke",
    }
)


def insert(
    connection: Connection,
    *,
    session_id: str,
    kind: str,
    agent_id: str | None,
    task_id: str | None,
    payload: dict[str, Any],
    requested_by: str,
    dedupe_key: str | None,
    now: float,
) -> int:
    """Queue a command; a second one with the same dedupe key is the first one. Returns its id."""
    row = connection.execute(
        "INSERT INTO commands (session_id, kind, agent_id, task_id, payload, requested_by, dedupe_key,"
        " created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, (SELECT event_seq + 1 FROM sessions WHERE id = ?))"
        " ON CONFLICT (session_id, dedupe_key) WHERE dedupe_key IS NOT NULL"
        " DO UPDATE SET dedupe_key = excluded.dedupe_key RETURNING id",
        (session_id, kind, agent_id, task_id, encode(payload), requested_by, dedupe_key, now, session_id),
    ).fetchone()
    return int(row[0])


def newest(reads: Reads, session_id: str) -> int:
    """The id of the newest command of a session, or 0. Ids grow, and do not depend on clocks."""
    return int(reads.one("SELECT coalesce(max(id), 0) FROM commands WHERE session_id = ?", (session_id,))[0])


@dataclass(frozen=True, slots=True)
class Command:
    """A command that waits for a host, or is being applied."""

    id: int
    kind: str
    agent_id: str | None
    task_id: str | None
    payload: Any
    """What it is given; as stored JSON text until a host applies it."""
    requested_by: str

    def settle(self, tx: Transaction, status: CommandStatus, result: str) -> None:
        """Store how the command ended."""
        settle(tx, self.id, self.kind, status, result, agent_id=self.agent_id, task_id=self.task_id)


def queued(reads: Reads, session_id: str) -> list[Command]:
    """The commands of a session that wait, oldest first."""
    sql = (
        "SELECT id, kind, agent_id, task_id, payload, requested_by FROM commands"
        " WHERE session_id = ? AND status = 'queued' ORDER BY id"
    )
    return [Command(*row) for row in reads.all(sql, (session_id,))]


def newest_queued(reads: Reads, session_id: str) -> int | None:
    """The id of the newest command of a session that waits; None if none does."""
    sql = "SELECT max(id) FROM commands WHERE session_id = ? AND status = 'queued'"
    return first(reads, int, sql, (session_id,))


def answer(reads: Reads, command_id: int) -> tuple[str, str | None] | None:
    """The status and the result of a command; None if there is no such command."""
    row = reads.one("SELECT status, result FROM commands WHERE id = ?", (command_id,))
    return tuple(row) if row is not None else None


def settle(
    tx: Transaction, command_id: int, kind: str, status: CommandStatus, result: str, **about: Any
) -> None:
    """Mark a command applied, refused or failed, with the event that says so."""
    seq = tx.event(f"command.{status}", command=command_id, command_kind=kind, result=result, **about)
    tx.execute(
        "UPDATE commands SET status = ?, result = ?, applied_at = ?, event_seq = ? WHERE id = ? AND status ="
        " 'queued'",
        (status, result, tx.now, seq, command_id),
    )


@dataclass(frozen=True, slots=True)
class UnsettledCommand:
    """A command that a host could not apply, or has not applied yet. Its result is not sanitised."""

    id: int
    session_id: str
    kind: str
    status: CommandStatus
    result: str
    seconds: float
    """Since it was queued, or since it failed."""


def unsettled(connection: Connection, now: float) -> list[UnsettledCommand]:
    """The commands of all sessions that have failed or are queued, newest first."""
    rows = connection.execute(
        "SELECT id, session_id, kind, status, coalesce(result, ''), coalesce(applied_at, created_at) FROM commands"
        " WHERE status IN (?, ?) ORDER BY id DESC",
        (CommandStatus.QUEUED, CommandStatus.FAILED),
    ).fetchall()
    return [
        UnsettledCommand(row[0], row[1], row[2], CommandStatus(row[3]), row[4], now - row[5]) for row in rows
    ]


def compaction_made(reads: Reads, command_id: int, agent_id: str) -> Any:
    """The pass that a host made for this command and did not report before it died; or None.

    `tokens_before, tokens_after, high_water, reason`. The event of its beginning names the command: wall
    times of two hosts say nothing, since clocks are set back.
    """
    row = reads.one(
        "SELECT tokens_before, tokens_after, high_water, reason, id, session_id FROM compactions WHERE id ="
        " (SELECT max(id) FROM compactions WHERE agent_id = ? AND trigger = 'manual' AND status = 'applied')",
        (agent_id,),
    )
    if row is None:
        return None
    begun = reads.all(
        "SELECT data FROM events WHERE session_id = ? AND agent_id = ? AND kind = 'compaction.started'"
        " ORDER BY seq DESC",
        (row[5], agent_id),
    )
    orders = (decode(text) for (text,) in begun)
    made = any((one.get("compaction"), one.get("command")) == (row[4], command_id) for one in orders)
    return tuple(row)[:4] if made else None


def decide_approval(
    tx: Transaction,
    approval_id: str,
    status: ApprovalStatus,
    by: str,
    reason: str | None,
    *,
    scope: str | None = None,
    edited_input: dict[str, Any] | None = None,
    subject_digest: str | None = None,
) -> bool:
    """Answer a question that waits; False if it was answered before, or its call has ended.

    `scope`: `once`, `tool`, `pattern` or `grant` of an approval. `edited_input` replaces the model's input of
    the call. `subject_digest`: digest of the file as the person saw it; None: as it was when the agent asked.
    """
    edited = encode(edited_input) if edited_input is not None else None
    changed = tx.changed(
        "UPDATE approvals SET status = ?, decided_by = ?, reason = ?, decided_at = ?, scope = ?,"
        " edited_input = ?,"
        f" subject_digest = coalesce(?, subject_digest) WHERE id = ? AND status = 'waiting' AND {CALL_OPEN}",
        (status, by, reason, tx.now, scope, edited, subject_digest, approval_id),
    )
    if changed == 1 and edited is not None:
        tx.execute(
            "UPDATE tool_calls SET edited_input = ? WHERE id = (SELECT tool_call_id FROM approvals WHERE id"
            " = ?)",
            (edited, approval_id),
        )
    return changed == 1


# --- Questions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is stored, for what follows from it; `Question` is what a person is shown."""

    id: str
    status: ApprovalStatus
    agent_id: str
    task_id: str | None
    tool: str
    cause: str | None
    note: str | None
    scope: str | None
    reason: str | None
    decided_by: str | None
    subject_digest: str | None
    created_at: float
    call_status: str | None
    premises: Premises | None
    """What an answer rests on."""
    edited_input: Any
    """What a person made of the input of the call; None if none did."""


_ASKED = (
    "SELECT q.id, q.status, q.agent_id, q.task_id, q.tool, q.cause, q.note, q.scope, q.reason, q.decided_by, q.subject_digest,"
    " q.created_at, c.status, q.premises, c.edited_input FROM approvals q LEFT JOIN tool_calls c ON c.id = q.tool_call_id"
)


def _asked(row: Any) -> Asked | None:
    if row is None:
        return None
    columns = list(row)
    columns[1] = ApprovalStatus(columns[1])
    columns[13:] = [decode(text) if text is not None else None for text in columns[13:]]
    columns[13] = Premises.decoded(columns[13])
    return Asked(*columns)


def load_asked(reads: Reads, approval_id: str) -> Asked | None:
    return _asked(reads.one(f"{_ASKED} WHERE q.id = ?", (approval_id,)))


def asked_about(reads: Reads, call_id: int) -> Asked | None:
    """The newest question about a call, or None."""
    newest_first = "ORDER BY coalesce(q.commit_seq, 0) DESC LIMIT 1"
    return _asked(reads.one(f"{_ASKED} WHERE q.tool_call_id = ? {newest_first}", (call_id,)))


def asked_before(reads: Reads, agent_id: str, cause: str, subject_digest: str) -> Asked | None:
    """The newest question of an agent about this very subject that was not withdrawn, or None."""
    found = reads.one(
        f"{_ASKED} WHERE q.agent_id = ? AND q.cause = ? AND q.subject_digest = ? AND q.status <> ?"
        " ORDER BY q.commit_seq DESC LIMIT 1",
        (agent_id, cause, subject_digest, ApprovalStatus.CANCELLED),
    )
    return _asked(found)


def asked_for(reads: Reads, session_id: str, approval_id: str, agent_id: str | None) -> Asked | None:
    """The question of a session that an answer is for: that of this id, or where the id is empty the newest of the agent,
    if one waits one of these."""
    found = reads.one(
        f"{_ASKED} WHERE q.session_id = ? AND (q.id = ? OR (? = '' AND q.agent_id = ?))"
        " ORDER BY q.status = 'waiting' DESC, q.created_at DESC LIMIT 1",
        (session_id, approval_id, approval_id, agent_id),
    )
    return _asked(found)


def asks(reads: Reads, agent_id: str) -> bool:
    """Whether a question of the agent waits."""
    waits = "SELECT 1 FROM approvals WHERE agent_id = ? AND status = ?"
    return reads.one(waits, (agent_id, ApprovalStatus.WAITING)) is not None


def take_over_question(tx: Transaction, approval_id: str, call_id: int) -> None:
    """A question is about this call from now on, which repeats the one that it was asked for; so is its answer."""
    tx.execute("UPDATE approvals SET tool_call_id = ? WHERE id = ?", (call_id, approval_id))
    edited = tx.one("SELECT edited_input FROM approvals WHERE id = ?", (approval_id,))[0]
    tx.execute("UPDATE tool_calls SET edited_input = ? WHERE id = ?", (edited, call_id))


PROGRAM_CHANGES = "file_change"
"""What the edits that an agent program asks for are called: `{"changes": [{"path", "diff"}]}`."""
CONFLICT = "conflict"
"""The cause of a question about a merge: `{"task", "conflicts": [{"file", "ours", "theirs", "text"}], "one_side"}`.
Approving it leaves the conflict to the planner; an edited input `{"task", "keep": "ours" or "theirs"}` keeps one side."""
EXTERNAL = "external"
"""The cause of a permission question of a session in another terminal (`store.external`)."""
GUARDED = "guarded"
"""The cause of a question about a file that makes other programs run code (`tool_inputs.GUARDED_PATHS`)."""
CONTEXT_LINES = 3
_MOST_COMPARISONS = 4_000_000
"""Pairs of lines. Beyond this, a difference is shown as all old lines and all new ones: as true, and without
the wait."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of what is asked. Its text is not sanitised."""

    title: str
    text: str
    language: str
    """`bash`, `diff`, `json` or `text`."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, waiting or answered, with all that a person needs to decide it."""

    id: str
    session_id: str
    status: ApprovalStatus
    decided_by: str | None
    reason: str | None
    tool: str
    agent: str
    task: str
    """The name of the agent's task; empty for the planner."""
    workspace: str
    root: str
    """What the paths of `write` and `edit` begin at: the worktree of the task, else the workspace."""
    folder: str
    """Where the call would run: the folder of the agent's shell, else the root."""
    cause: str
    """`permission`, `repetition`, `guarded`, `changed`, `conflict` or `external`."""
    note: str
    """Why it is asked, beyond the permission; empty where there is nothing to say."""
    arguments: dict[str, Any]
    """What would run: the person's edited input, or the model's."""
    original: dict[str, Any]
    """The model's input."""
    sections: tuple[Section, ...]
    difference: str
    """What changed since the question before, if that is why it is asked again; else empty. Then it is shown alone."""
    digest: str
    """Digest of the file that would change, when this was read; empty if there is no file."""
    role: str = ""
    """The agent's role; empty for one without a task."""
    title: str = ""
    """The title of the agent's task, which describes it."""

    @property
    def allows_always(self) -> bool:
        """Whether "always" may be answered: not where a call repeats itself or writes a guarded file, nor to a conflict
        or another program."""
        return self.cause not in ("repetition", GUARDED, CONFLICT, EXTERNAL)

    @property
    def allows_edit(self) -> bool:
        """Whether the input may be edited: a conflict has its own answers, another program runs its own input."""
        return self.cause not in (CONFLICT, EXTERNAL)

    @property
    def allows_sides(self) -> bool:
        """Whether "keep ours" and "keep theirs" may be answered."""
        return self.cause == CONFLICT and bool(self.original.get("one_side"))

    def keeping(self, side: str) -> dict[str, Any]:
        """The input of a merge that keeps a side, `ours` or `theirs`, where the two conflict."""
        return {"task": self.original.get("task"), "keep": side}

    @property
    def suggested_pattern(self) -> str:
        """A pattern of this very command; empty where no pattern could match it."""
        command = self.arguments.get("command")
        parts = parse_command(command) if self.tool == "bash" and isinstance(command, str) else None
        if parts is None or not values_inside(parts, self.folder, self.root):
            return ""
        return pattern_of(parts)

    def refuses_pattern(self, pattern: str, arguments: dict[str, Any] | None = None) -> str:
        """Why the answer cannot be for this pattern: it does not match what would run; empty where it does.

        `arguments`: the input as the person edited it.
        """
        command = (arguments or self.arguments).get("command")
        if self.tool != "bash" or not isinstance(command, str):
            return ""
        parts = matches(pattern, command)
        if parts is not None and values_inside(parts, self.folder, self.root):
            return ""
        if parts is not None:
            return "nothing was allowed: a variable contains a path outside the workspace; patterns do not cover such paths"
        return f"nothing was allowed: the pattern {pattern!r} does not match the pending command"

    @property
    def editable(self) -> str:
        """The input as a person edits it; `edited_arguments` reads it back."""
        return editable(self.tool, self.arguments)

    def edited_arguments(self, text: str) -> dict[str, Any]:
        """The input that a person made of `editable`.

        Raises:
            ValueError: a line that says what is wrong with it.
        """
        if self.tool == "bash" and isinstance(self.arguments.get("command"), str):
            if not text.strip():
                raise ValueError("the command is empty; deny the question instead")
            return {**self.arguments, "command": text}
        try:
            edited = json.loads(text)
        except ValueError as error:
            raise ValueError(f"invalid JSON: {parser_mistake(error)}") from None
        if not isinstance(edited, dict):
            raise ValueError("the input must be a JSON object")
        return edited

    @property
    def headline(self) -> str:
        """Who asks for what. Not sanitised."""
        who = with_role(self.agent, self.role)
        if self.cause == CONFLICT:
            return f"{who} wants to merge {self.original.get('task')}, which has conflicts"
        return f"{who} wants to run {self.tool}"

    @property
    def described_task(self) -> str:
        """The task's name with its title; empty for the planner. Not sanitised."""
        return described(self.task, self.title)

    def lines(self) -> Iterator[str]:
        """The question as plain lines, for a terminal that only prints. Not sanitised."""
        yield self.headline
        yield f"  task    {self.described_task or '(the planner has none)'}"
        yield f"  folder  {self.folder}" + (
            f"  (workspace {self.workspace})" if self.folder != self.workspace else ""
        )
        if self.note:
            yield f"  why     {self.note}"
        for section in self.sections:
            yield ""
            yield f"{section.title}:"
            for line in section.text.split("\n"):
                yield f"  {line}"


def editable(tool: str, arguments: dict[str, Any]) -> str:
    """An input as a person edits it: the command of `bash`, else JSON."""
    if tool == "bash" and isinstance(arguments.get("command"), str):
        return str(arguments["command"])
    return json.dumps(arguments, ensure_ascii=False, indent=2)


_QUESTION = (
    f"SELECT q.id, q.session_id, q.status, q.decided_by, q.reason, q.tool, coalesce({AGENT_NAME}, q.agent_id),"
    f" CASE WHEN a.task_id IS NULL THEN '' ELSE a.role END, coalesce({TASK_NAME}, ''), coalesce(t.title, ''),"
    " s.workspace, q.task_id, q.folder, q.cause, q.note, c.edited_input, q.edited_input, q.question,"
    " m.content, c.position, c.status, q.premises"
    " FROM approvals q JOIN sessions s ON s.id = q.session_id LEFT JOIN agents a ON a.id = q.agent_id"
    " LEFT JOIN tasks t ON t.id = q.task_id LEFT JOIN tool_calls c ON c.id = q.tool_call_id AND c.agent_id ="
    " q.agent_id"
    " LEFT JOIN messages m ON m.agent_id = c.agent_id AND m.seq = c.seq WHERE q.id = ?"
)


def call_ended(call_status: str) -> str:
    """Why a question cannot be answered whose call is not open any more."""
    _, words = call_words(call_status, began=True)
    return f"its call has already ended: {words or call_status}"


def load_question(connection: Connection, database_path: Place, approval_id: str) -> Question | None:
    """The question with that id, or None. Reads the file that a call of `write` or
    `edit` would change."""
    row = connection.execute(_QUESTION, (approval_id,)).fetchone()
    if row is None:
        return None
    (
        question_id, session_id, status, decided_by, reason, tool, agent, role, task, title, workspace, task_id, folder, cause, note,
        of_call, of_answer, question, content, position, call_status, premises,
    ) = row  # fmt: skip
    if status == ApprovalStatus.WAITING and call_status not in (None, "pending", "running"):
        status, reason = ApprovalStatus.CANCELLED, call_ended(call_status)
    tree = load_worktree(Queries(connection), task_id)
    root = str(tree.place) if tree is not None and tree.is_there else workspace
    # The change of files that a program asks for is in its question; its call has the program's own form.
    # It also says what a conflict is about.
    told_whole = tool == PROGRAM_CHANGES or cause == CONFLICT
    original = _input_of(None if told_whole else content, position, tool, question)
    edited = decode_or(of_answer or of_call or "null", None)
    arguments = edited if isinstance(edited, dict) else original
    protected = protected_files(database_path) if tool in FILE_CHANGES else frozenset()
    sections, digest = sections_of(tool, arguments, Path(root), protected)
    if arguments != original and cause == CONFLICT:
        sections = (*sections, *sections_of(tool, original, Path(root))[0])
    elif arguments != original:
        before, _ = sections_of(tool, original, Path(root), protected)
        sections = (
            *sections,
            *(Section(f"original input — {one.title}", one.text, one.language) for one in before),
        )
    rests_on = Premises.decoded(decode_or(premises or "null", None))
    difference = rests_on.difference if rests_on is not None else ""
    if difference and arguments == original:
        command = tuple(one for one in sections if one.language == "bash")
        sections = (*command, Section("changed since the previous question", difference, "diff"))
    return Question(
        question_id, session_id, ApprovalStatus(status), decided_by, reason, tool, agent, task, workspace,
        root, folder or root, cause or "permission", note or "", arguments, original, sections, difference, digest, role, title,
    )  # fmt: skip


def question_from_text(
    approval_id: str, tool: str, question: str, *, agent: str, role: str, task: str, title: str, workspace: str, folder: str | None,
    cause: str | None, note: str | None,
) -> Question | None:  # fmt: skip
    """The question as its stored text alone tells it, without a look at any file; None where that is not all
    of it."""
    if (
        tool in FILE_CHANGES or cause == "changed" or len(question) >= 20_000
    ):  # readers take no more of the text
        return None
    arguments = _input_of(None, None, tool, question)
    sections, _ = sections_of(tool, arguments, Path(workspace))
    return Question(
        approval_id, "", ApprovalStatus.WAITING, None, None, tool, agent, task, workspace, workspace,
        folder or workspace, cause or "permission", note or "", arguments, arguments, sections, "", "", role, title,
    )  # fmt: skip


def find_questions(
    connection: Connection, session_id: str | None, wanted: str, *, waiting: bool
) -> list[tuple[str, str]]:
    """Session and id of the questions that `wanted` may mean: an id, the beginning of one, or `last`; newest
    last.

    `session_id` None looks in every session. `waiting` leaves out those that were answered or whose call has ended.
    """
    rows = connection.execute(
        f"SELECT a.session_id, a.id, a.status, {CALL_OPEN} FROM approvals a JOIN sessions s ON s.id = a.session_id"
        " WHERE (? IS NULL OR a.session_id = ?) AND s.deleted_at IS NULL"
        " ORDER BY s.ordinal, coalesce(a.commit_seq, 0), a.tool_call_id, a.created_at",
        (session_id, session_id),
    ).fetchall()
    found = [(row[0], row[1]) for row in rows if not waiting or (row[2] == ApprovalStatus.WAITING and row[3])]
    if wanted == "last":
        return found[-1:]
    exact = [one for one in found if one[1] == wanted]
    return exact or [one for one in found if one[1].startswith(wanted)]


def sections_of(
    tool: str, arguments: dict[str, Any], workspace: Path, protected: Protected = frozenset()
) -> tuple[tuple[Section, ...], str]:
    """The parts that show an input whole, and the digest of the file that it would change."""
    if tool in FILE_CHANGES:
        change = file_change(workspace, tool, arguments, protected)
        return tuple(_file_sections(change, arguments, workspace)), change.digest
    parts = dict(arguments)
    sections = []
    if tool == PROGRAM_CHANGES and isinstance(parts.get("changes"), list):
        for change in parts.pop("changes"):
            found = change if isinstance(change, dict) else {}
            sections.append(
                Section(f"change to {found.get('path')}", str(found.get("diff") or "(no text)"), "diff")
            )
    if isinstance(parts.get("conflicts"), list) and tool == "merge_task":
        parts.pop("one_side", None)
        sections.extend(_conflict_sections(parts.pop("conflicts")))
    command = parts.get("command")
    if tool == "bash" and isinstance(command, str):
        del parts["command"]
        sections.append(Section("command", command, "bash"))
    for name, value in parts.items():
        if isinstance(value, str):
            sections.append(Section(name, value, "text"))
        else:
            sections.append(Section(name, json.dumps(value, ensure_ascii=False, indent=2), "json"))
    return tuple(sections) or (Section("input", "{}", "json"),), ""


def _conflict_sections(conflicts: list[Any]) -> Iterator[Section]:
    for one in conflicts:
        found = one if isinstance(one, dict) else {}
        sides = [f"{side:<6}  {found.get(side) or 'unknown'}" for side in ("ours", "theirs")]
        yield Section(
            f"conflict in {found.get('file')}", "\n".join([*sides, "", str(found.get("text") or "")]), "text"
        )


def _input_of(content: str | None, position: int | None, tool: str, question: str) -> dict[str, Any]:
    """The model's input: from its message, or from the stored text of the question where there is no
    message."""
    blocks = decode_or(content, None) if content is not None else None
    if isinstance(blocks, list) and position is not None:
        uses = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_use"]
        if position < len(uses) and isinstance(uses[position].get("input"), dict):
            found: dict[str, Any] = uses[position]["input"]
            return found
    text = question.removeprefix(f"{tool} ")
    parsed = decode_or(text, None)
    if isinstance(parsed, dict):
        return parsed
    return {"command" if tool == "bash" else "question": text}


def _file_sections(change: FileChange, arguments: dict[str, Any], workspace: Path) -> Iterator[Section]:
    title = f"change to {change.path}"
    if change.target and change.target != os.path.normpath(
        os.path.join(os.path.realpath(workspace), change.path)
    ):
        title += f" (which is {change.target})"
    if change.problem:
        yield Section("problem", change.problem, "text")
    if change.after is not None:
        yield Section(title, unified_diff(change.before, change.after, change.path), "diff")
        return
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        yield Section(name, text, "text")


def unified_diff(before: str | None, after: str, name: str) -> str:
    """The difference as `diff -u` writes it, of any two texts; `before` None: there is no such file yet."""
    if before == after:
        return "(no change: the file already has this text)"
    old, new = (before.split("\n") if before is not None else []), after.split("\n")
    head = [f"--- {name if before is not None else '/dev/null'}", f"+++ {name}"]
    return "\n".join([*head, *_hunks(_whole(old), _whole(new))])


_NO_NEWLINE = "\n\\ No newline at end of file"


def _whole(lines: list[str]) -> list[str]:
    """Lines of a text. If the last line has no line break, a note says so, since the two texts differ."""
    if not lines:
        return lines
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], lines[-1] + _NO_NEWLINE]


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    first = max(0, start - CONTEXT_LINES)
    keep = max(0, end - CONTEXT_LINES)
    a, b = old[first : len(old) - keep], new[first : len(new) - keep]
    if (len(old) - start - end) * (len(new) - start - end) > _MOST_COMPARISONS:
        groups: Sequence[Sequence[tuple[str, int, int, int, int]]] = [
            [
                ("equal", 0, start - first, 0, start - first),
                ("replace", start - first, len(old) - end - first, start - first, len(new) - end - first),
                ("equal", len(old) - end - first, len(a), len(new) - end - first, len(b)),
            ]
        ]
    else:
        groups = list(difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT_LINES))
    for group in groups:
        a1, a2, b1, b2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
        yield f"@@ -{_span(first + a1, a2 - a1)} +{_span(first + b1, b2 - b1)} @@"
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in a[i1:i2])
                continue
            yield from (f"-{line}" for line in a[i1:i2])
            yield from (f"+{line}" for line in b[j1:j2])


def _span(start: int, length: int) -> str:
    return f"{start + 1 if length else start},{length}"


# --- What a person allowed for the rest of a session --------------------------------------------------------
#
# A tool, or the commands of a pattern. A fork begins without any.


@dataclass(frozen=True, slots=True)
class Grant:
    """One answer "always". It takes the place of a question, never of a rule that denies."""

    id: int
    tool: str
    pattern: str | None
    """Pattern of commands (see `records.tool_inputs`); None: every call of the tool."""
    granted_by: str
    created_at: float
    revoked_by: str | None
    revoked_at: float | None

    @property
    def is_live(self) -> bool:
        return self.revoked_by is None

    @property
    def subject(self) -> str:
        """What it allows, in a few words. Not sanitised."""
        return f"{self.tool}: {self.pattern}" if self.pattern is not None else f"every call to {self.tool}"


_SELECT = "SELECT id, tool, pattern, granted_by, created_at, revoked_by, revoked_at FROM permission_grants WHERE session_id = ? ORDER BY id"


def load_grants(connection: Connection, session_id: str) -> list[Grant]:
    """The grants of a session, revoked ones too, oldest first."""
    return [Grant(*row) for row in connection.execute(_SELECT, (session_id,)).fetchall()]


def live_grants(reads: Reads, session_id: str, tool: str | None = None) -> list[Grant]:
    """The grants that hold now, of a tool or (None) of all, oldest first."""
    return [
        grant
        for grant in (Grant(*row) for row in reads.all(_SELECT, (session_id,)))
        if grant.is_live and tool in (None, grant.tool)
    ]


def add_grant(tx: Transaction, *, tool: str, pattern: str | None, approval_id: str, by: str) -> int:
    """Allow a tool, or the commands of a pattern, from now on; returns the grant's id."""
    row = tx.one(
        "INSERT INTO permission_grants (session_id, tool, pattern, approval_id, granted_by, created_at,"
        " commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
        (tx.session_id, tool, pattern, approval_id, by, tx.now, tx.commit_seq),
    )
    tx.event("grant.added", grant=row[0], tool=tool, pattern=pattern, by=by)
    return int(row[0])


def revoke_grant(tx: Transaction, grant_id: int, by: str) -> Grant:
    """End a grant: from now on, its calls are asked about again.

    Raises:
        ValueError: the session has no such grant, or it was revoked before.
    """
    rows = tx.all(_SELECT, (tx.session_id,))
    found = next((grant for grant in (Grant(*row) for row in rows) if grant.id == grant_id), None)
    if found is None:
        known = ", ".join(str(row[0]) for row in rows)
        raise ValueError(f"no grant {grant_id} in this session; existing grants: {known or 'none'}")
    if not found.is_live:
        raise ValueError(f"grant {grant_id} is already revoked")
    tx.execute(
        "UPDATE permission_grants SET revoked_by = ?, revoked_at = ? WHERE id = ? AND revoked_by IS NULL",
        (by, tx.now, grant_id),
    )
    tx.event("grant.revoked", grant=grant_id, tool=found.tool, pattern=found.pattern, by=by)
    return found
