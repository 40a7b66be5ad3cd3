"""The text of the status line: the most urgent fact now. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from watchkeeper.store.snapshot import CommandFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.compactions import compaction_pieces
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.session_status import agent_condition, task_condition
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.targets import Target
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.wording import question_words

if TYPE_CHECKING:
    from watchkeeper_tui.screens.actions import Sent

SETTLED_SECONDS = 8.0
"""How long the outcome of a command is shown."""

LOCKED_AFTER_SECONDS = 1.5
LOCKED = "waiting, another program holds the database"
"""Writing takes milliseconds. After `LOCKED_AFTER_SECONDS`, the line shows this text."""


def status_pieces(
    snapshot: Snapshot, target: Target, sent: Sequence[Sent], now: float, *, asking: bool = False
) -> list[Piece]:
    """The first that applies: a database problem, the last command, a pending question, the state of the run,
    the state of the selected row.

    `asking`: a question is open, and only its keys apply.
    """
    if snapshot.problem:
        return [("! ", "failed"), (sanitize(snapshot.problem), "failed")]
    command = _command(snapshot, sent, now)
    if command:
        return command
    if snapshot.approvals and not asking:
        first = snapshot.approvals[0]
        agent = snapshot.agent(first.agent_id)
        more = f" (+{len(snapshot.approvals) - 1})" if len(snapshot.approvals) > 1 else ""
        return [
            ("? ", "waiting"),
            (
                f"{sanitize(agent.name) if agent else 'an agent'} wants to run {sanitize(first.tool)} ",
                "waiting",
            ),
            (clip(sanitize(question_words(first.tool, first.question)), 100), "text"),
            (f"{more}   ", "muted"),
            ("a", "key"),
            (" answers", "muted"),
        ]
    return _run(snapshot, now) or _row(snapshot, target, now)


def _command(snapshot: Snapshot, sent: Sequence[Sent], now: float) -> list[Piece]:
    if not sent:
        return []
    newest = sent[0]
    if newest.said:
        return (
            [("✓ ", "done"), (f"{newest.about}: {sanitize(newest.said)}", "text")]
            if now - newest.at < SETTLED_SECONDS
            else []
        )
    several = [each for each in sent if each.group == newest.group] if newest.group else [newest]
    if len(several) > 1:
        return _several(snapshot, several, now)
    if newest.command_id is None:
        if now - newest.at > LOCKED_AFTER_SECONDS:
            return [("… ", "muted"), (newest.about, "text"), (f": {LOCKED}", "waiting")]
        return [("… ", "muted"), (newest.about, "text"), (": writing the command", "muted")]
    command = next((each for each in snapshot.commands if each.id == newest.command_id), None)
    if command is None or command.status == "queued":
        return _queued(snapshot, newest, now)
    if newest.compacts and command.status == "applied":
        return _pass(snapshot, newest, now) or _settled(snapshot, command, newest, now)
    return _settled(snapshot, command, newest, now)


def _several(snapshot: Snapshot, sent: Sequence[Sent], now: float) -> list[Piece]:
    """The outcome of the commands that one key wrote for several rows."""
    by_id = {each.id: each for each in snapshot.commands}
    commands = [by_id.get(each.command_id or 0) for each in sent]
    waiting = sum(1 for each in commands if each is None or each.status == "queued")
    refused = [
        (each, one)
        for each, one in zip(commands, sent, strict=True)
        if each is not None and each.status == "refused"
    ]
    at = max([each.applied_at or 0.0 for each in commands if each is not None] + [one.at for one in sent])
    if now - at > SETTLED_SECONDS and (not waiting or snapshot.host_pid is None):
        return []
    applied = len(sent) - waiting - len(refused)
    verb = sent[0].about.partition(" ")[0]
    pieces: list[Piece] = [("◔ ", "slot") if waiting else ("✗ ", "failed") if refused else ("✓ ", "done")]
    pieces.append((f"{verb} ×{len(sent)}: ", "text"))
    parts: list[Piece] = []
    if applied:
        parts.append((f"{applied} applied", "done"))
    if waiting:
        gone = snapshot.host_pid is None
        parts.append(
            (
                f"{waiting} accepted, " + ("apply on resume" if gone else "queued"),
                "waiting" if gone else "text",
            )
        )
    if refused:
        first, of = refused[0]
        parts.append(
            (f"{len(refused)} refused — {of.about}: {clip(sanitize(first.result or ''), 200)}", "failed")
        )
    for number, part in enumerate(parts):
        pieces += [(", ", "muted")] * bool(number) + [part]
    return pieces


def _pass(snapshot: Snapshot, sent: Sent, now: float) -> list[Piece]:
    """The progress of the requested pass, until shortly after its end."""
    mine = [
        each for each in snapshot.compactions if each.agent_id == sent.compacts and each.trigger == "manual"
    ]
    newest = next((each for each in mine if each.requested_at >= sent.at - 1), None)
    if newest is None or (newest.ended_at is not None and now - newest.ended_at > SETTLED_SECONDS):
        return []
    pieces = [(f"{sent.about}  ", "text"), *compaction_pieces(newest, now)]
    if newest.status == "running":
        pieces.append(("; the agent goes on working", "muted"))
    elif newest.status == "prepared":
        pieces.append(("; published at the agent's next step", "muted"))
    elif newest.status == "applied":
        pieces += [("   u", "key"), (" undoes it", "muted")]
    return pieces


def _queued(snapshot: Snapshot, sent: Sent, now: float) -> list[Piece]:
    if snapshot.host_pid is None:
        if now - sent.at > SETTLED_SECONDS:
            return []
        return [("◔ ", "slot"), (f"{sent.about}: accepted, ", "text"), ("applies on resume", "waiting")]
    return [
        ("◔ ", "slot"),
        (f"{sent.about}: accepted, queued ", "text"),
        (formatting.duration(now - sent.at), "muted"),
    ]


def _settled(snapshot: Snapshot, command: CommandFacts, sent: Sent, now: float) -> list[Piece]:
    if command.applied_at is not None and now - max(command.applied_at, sent.at) > SETTLED_SECONDS:
        return []
    result = clip(sanitize(command.result or ""), 300)
    name = sent.about.rpartition(" ")[2]
    result = result.removeprefix(f"{name}: ")  # the line already names it
    if command.status == "applied":
        return [
            ("✓ ", "done"),
            (f"{sent.about}: ", "text"),
            (_came(command, snapshot) or result or "applied", "done"),
        ]
    return [
        ("✗ ", "failed"),
        (f"{sent.about}: refused ", "failed"),
        (f"— {result}" if result else "", "text"),
    ]


def _came(command: CommandFacts, snapshot: Snapshot) -> str:
    """The effect of a pause that has taken effect; else empty."""
    if command.kind != "pause":
        return ""
    if command.agent_id is None:
        return "the run is paused" if snapshot.state is SessionState.PAUSED else ""
    agent = snapshot.agent(command.agent_id)
    return f"{sanitize(agent.name)} is paused" if agent is not None and agent.status == "paused" else ""


def _run(snapshot: Snapshot, now: float) -> list[Piece]:
    session = snapshot.session
    if session is None:
        return [("opening the database …", "muted")]
    reason = clip(sanitize(session.status_reason or ""), 200)
    if snapshot.state is SessionState.DEAD:
        return [
            ("† The background process stopped. ", "dead"),
            ("r", "key"),
            (" continues from the last saved step.", "text"),
        ]
    if snapshot.state is SessionState.OPENING:
        return [("… waiting for the background process to start", "muted")]
    if snapshot.state is SessionState.PAUSED:
        return [
            ("‖ paused", "paused"),
            (f" — {reason}" if reason else "", "text"),
            ("   r", "key"),
            (" resumes the run", "muted"),
        ]
    if snapshot.state is SessionState.FAILED:
        return [("✗ the run failed", "failed"), (f" — {reason}" if reason else "", "text")]
    return []


def _row(snapshot: Snapshot, target: Target, now: float) -> list[Piece]:
    """The state of the selected row, in full."""
    task, agent = (target.tasks[0] if target.tasks else None), target.agent
    if agent is not None and (task is None or task.status == "running"):
        condition = agent_condition(agent, snapshot.state, now, pausing=agent.id in snapshot.pausing)
        note = condition.note or clip(sanitize(agent.goal), 200)
    elif task is not None:
        condition = task_condition(task)
        note = condition.note or clip(sanitize(task.result or ""), 300)
    else:
        return [("select an agent: j k move, enter opens, ? shows every key", "faint")]
    name = sanitize(task.title if task is not None else agent.name if agent is not None else "")
    note = "" if note == name else note
    return [
        (f"{condition.glyph} ", condition.role),
        (clip(name, 60), "text"),
        (f" {condition.word}", condition.role),
        (f" — {note}" if note else "", "muted"),
    ]
