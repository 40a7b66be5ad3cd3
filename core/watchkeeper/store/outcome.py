"""How a run ended: what stopped it, the planner's summary, and the names of what the run left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from watchkeeper.records.readers import is_foreign
from watchkeeper.records.states import AgentStatus, SessionStatus, ToolCallStatus
from watchkeeper.records.text import lazily, sanitize
from watchkeeper.records.tool_inputs import command_of, edited_files
from watchkeeper.store.agents import Worktree, load_worktrees
from watchkeeper.store.driver import IN_LIST, Reads, decode_or, list_of

UNKNOWN = "unknown"
"""What stopped a run, where no reason was recorded."""
NAMES_SHOWN = 16
"""Names of artifacts, and of files, in one list of a text."""
_DIFFED = lazily(r"^(?:---|\+\+\+) [ab]/(.+?)\s*$", re.MULTILINE)
"""The files of a diff."""
_PAGE = 500
"""Replies that are read at a time."""


@dataclass(frozen=True, slots=True)
class RunEnding:
    """Why a run does not run any more. Both texts are complete, as stored, and hostile."""

    status: str
    stopped: str
    """What stopped a run that did not reach its goal: `unknown` if nothing was recorded. Empty for one that did."""
    summary: str
    """The planner's summary, as Markdown. Empty if the planner wrote none."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The ending of a run, with the names of what it left."""

    ending: RunEnding
    artifacts: tuple[str, ...]
    """The names of what its agents saved: what a task promised first, then the newest first. The results of tasks are no
    artifacts."""
    files: tuple[str, ...]
    """Files that its agents edited with a tool that names the file, or in a git worktree. What a shell command
    changed in the workspace is not known."""
    branches: tuple[str, ...]
    """Branches of worktrees with changes that are not merged."""

    def as_json(self) -> dict[str, Any]:
        """As `wk show --json` and the result of `--headless --json` have it."""
        names = {name: list(value) for name, value in asdict(self).items() if name != "ending"}
        ending = self.ending
        return {"stopped": ending.stopped or None, "summary": ending.summary or None, **names}

    @classmethod
    def from_json(cls, status: str, value: Mapping[str, Any]) -> RunOutcome:
        """What `as_json` made, of a session with this status."""
        names = {name: tuple(value[name]) for name in ("artifacts", "files", "branches")}
        return cls(RunEnding(status, value["stopped"] or "", value["summary"] or ""), **names)

    def lines(self, session_id: str) -> Iterator[str]:
        """As harmless text: what stopped the run, the whole summary, then the names."""
        ending = self.ending
        if ending.stopped:
            first, *more = text_lines(ending.stopped)
            yield f"{ending.status}: {first}"
            yield from more
        if ending.summary:
            yield from text_lines(ending.summary)
        elif not ending.stopped:
            yield "the planner wrote no summary"
        names = list(self.names(f"wk artifacts {session_id}", f"wk show {session_id} --json"))
        if names and (ending.summary or ending.stopped):
            yield ""
        for title, listed in names:
            yield f"{title}: {listed}"

    def names(self, all_artifacts: str, all_files: str) -> Iterator[tuple[str, str]]:
        """Titles with harmless lists of names. The arguments say where a list that is cut is complete."""
        for title, names, where in (
            ("Artifacts", self.artifacts, all_artifacts),
            ("Files edited", self.files, all_files),
            ("Branches to merge", self.branches, all_files),
        ):
            if names:
                shown = ", ".join(" ".join(sanitize(name).split()) for name in names[:NAMES_SHOWN])
                more = len(names) - NAMES_SHOWN
                yield title, shown + (f", and {more:,} more ({where})" if more > 0 else "")


def text_lines(text: str) -> list[str]:
    """A hostile text of several lines as harmless lines, none of them cut."""
    return [line.expandtabs(4).rstrip() for line in sanitize(text).strip("\n").split("\n")] or [""]


def run_ending(
    status: str, reason: str | None, planner_status: str | None, origin: str = "run"
) -> RunEnding | None:
    """What ended a run, from the columns of its session and the status of its planner.

    None while it runs, and for another program's session: its log does not say how it ended.
    """
    if status == SessionStatus.RUNNING or is_foreign(origin):
        return None
    said = (reason or "").strip()
    if status == SessionStatus.DONE:
        return RunEnding(status, "", said)
    # The planner that ends a session as failed is itself done. A planner that fails takes the session with it.
    if status == SessionStatus.FAILED and planner_status == AgentStatus.DONE and said:
        return RunEnding(status, "the planner ended the run without reaching the goal", said)
    return RunEnding(status, said or UNKNOWN, "")


def load_outcome(reads: Reads, session_id: str) -> RunOutcome | None:
    """How the session ended; None while it runs, and for another program's session."""
    row = reads.one(
        "SELECT s.status, s.status_reason, p.status, s.origin, s.workspace FROM sessions s"
        " LEFT JOIN agents p ON p.id = s.planner_agent_id WHERE s.id = ?",
        (session_id,),
    )
    ending = run_ending(row[0], row[1], row[2], row[3]) if row is not None else None
    if ending is None:
        return None
    trees = load_worktrees(reads, session_id)
    saved = reads.all(
        "SELECT name, max(id) FROM outputs WHERE session_id = ? AND kind = 'artifact' GROUP BY name"
        " ORDER BY max(id) DESC",
        (session_id,),
    )
    tasks = reads.all("SELECT expected_outputs FROM tasks WHERE session_id = ?", (session_id,))
    promised = {name for row in tasks for name in decode_or(row[0], [])}
    names = sorted((one[0] for one in saved), key=lambda name: name not in promised)
    return RunOutcome(
        ending,
        tuple(names),
        files_edited(reads, session_id, workspace=row[4], trees=trees),
        tuple(tree.branch for tree in trees if _is_left(tree)),
    )


def _is_left(tree: Worktree) -> bool:
    return tree.files_changed > 0 and tree.status not in ("making", "merged")


def files_edited(
    reads: Reads, session_id: str, *, workspace: str, trees: Sequence[Worktree] = ()
) -> tuple[str, ...]:
    """The files that the session's agents edited, each once, in the order of their first edit.

    A call counts if it ended without an error. A path in the workspace, or in a worktree of it, is relative.
    """
    folders = [str(tree.place).rstrip("/") + "/" for tree in trees] + [workspace.rstrip("/") + "/"]
    found: dict[str, None] = {}
    agents = reads.all("SELECT id FROM agents WHERE session_id = ? ORDER BY ordinal", (session_id,))
    for agent_id in (row[0] for row in agents):
        for given in inputs_of_calls(reads, agent_id):
            for name in edited_files(given):
                path = name.replace("\\", "/")
                folder = next((one for one in folders if path.startswith(one)), "")
                found[path.removeprefix(folder).removeprefix("./")] = None
    for tree in trees:
        inner = f"{tree.prefix}/" if tree.prefix else ""
        found |= dict.fromkeys(name.removeprefix(inner) for name in _DIFFED.findall(tree.diff))
    return tuple(found)


def inputs_of_calls(reads: Reads, agent_id: str, *, unknown: bool = False) -> Iterator[Any]:
    """The inputs of an agent's calls that ended without an error, as a person edited them. `unknown`: also of those whose
    outcome is not known."""
    statuses = (ToolCallStatus.DONE, *((ToolCallStatus.UNKNOWN, ToolCallStatus.RUNNING) if unknown else ()))
    last = 0
    while True:
        replies = reads.all(
            "SELECT seq, content FROM messages WHERE agent_id = ? AND seq > ? AND role = 'assistant'"
            " AND content LIKE '%tool\\_use%' ESCAPE '\\' ORDER BY seq LIMIT ?",
            (agent_id, last, _PAGE),
        )
        if not replies:
            return
        first, last = replies[0][0], replies[-1][0]
        calls = reads.all(
            "SELECT seq, tool_use_id, edited_input FROM tool_calls WHERE agent_id = ? AND seq BETWEEN ? AND ?"
            f" AND status {IN_LIST} AND (is_error = 0 OR status <> 'done')",
            (agent_id, first, last, list_of(statuses)),
        )
        done = {(row[0], row[1]): row[2] for row in calls}
        for seq, content in replies:
            blocks = decode_or(content, [])
            for block in blocks if isinstance(blocks, list) else ():
                if isinstance(block, dict) and (place := (seq, block.get("id"))) in done:
                    edited = decode_or(done[place], None) if done[place] else None
                    yield edited or block.get("input")


def changed_by_task(reads: Reads, task_id: str) -> tuple[list[str], bool]:
    """The files that the agents of a task changed with tools, as they named them, and whether they ran commands."""
    files: dict[str, None] = {}
    ran = False
    for (agent_id,) in reads.all("SELECT id FROM agents WHERE task_id = ? ORDER BY ordinal", (task_id,)):
        for given in inputs_of_calls(reads, agent_id, unknown=True):
            files |= dict.fromkeys(edited_files(given))
            ran = ran or bool(command_of(given))
    return list(files), ran
