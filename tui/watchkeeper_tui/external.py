"""Sessions in other terminals as the dashboard shows them: the state of each beside others, and who needs a person.

All text in them is hostile: everything here gives sanitised words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from watchkeeper.records.waiting import Waiting
from watchkeeper.store.external import NO_HOOK, External, ExternalQuestion, ExternalSession
from watchkeeper.store.projection import AgentFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import Condition, SessionState

if TYPE_CHECKING:
    from watchkeeper.store.snapshot import FleetRow

NOTHING_ASKED = "no pending questions"
ASKS_NOBODY = f"{NOTHING_ASKED}; `claude -p` never asks questions"
IN_ITS_TERMINAL = {
    "codex": "answer it in the session's terminal or with `codex resume {session}`",
    "opencode": "answer it in the session's terminal; to get permission requests here, run `wk hooks install opencode --answer`",
}
"""Where a question is answered that cannot be answered here, where not for want of a hook of Claude Code. A thread of
Codex may run in its daemon: it waits on after its terminal was closed or killed."""
NOT_IMPORTED = "its log is not imported yet; `wk watch --all` or `wk import --watch-all` imports it"
NO_INSTRUCTIONS = "Codex hooks cannot set compaction instructions"
_ENDED_SOON = 5.0
"""Seconds by which a log may be written after its session's end was seen."""


def line(text: str, limit: int = 300) -> str:
    """Text as one harmless line."""
    return clip(" ".join(sanitize(text[: 4 * limit]).split()), limit)


def name_of(session: ExternalSession) -> str:
    """The folder in which a session works."""
    return line(Path(session.folder).name or session.program_session[:8], 60)


def asked(question: ExternalQuestion) -> str:
    """What is asked, in one line."""
    if question.choices:
        return line(" / ".join(str(one.get("question", "")) for one in question.choices))
    given = question.input
    words = next(
        (given[key] for key in ("command", "file_path", "url") if isinstance(given.get(key), str)), ""
    )
    return line(f"{question.tool} {words or ', '.join(islice(given, 20))}")


def questions_of(external: External, session_id: str) -> tuple[ExternalQuestion, ...]:
    """The open questions of one session, the oldest first."""
    return tuple(each for each in external.questions if each.session_id == session_id)


def questions_by_session(external: External) -> dict[str, tuple[ExternalQuestion, ...]]:
    """The open questions of every session that has some."""
    found: dict[str, list[ExternalQuestion]] = {}
    for each in external.questions:
        found.setdefault(each.session_id, []).append(each)
    return {session_id: tuple(those) for session_id, those in found.items()}


def session_of(external: External, session_id: str | None) -> ExternalSession | None:
    """What is known of this session's terminal."""
    return next((each for each in external.sessions if each.session_id == session_id), None)


def where_answered(session: ExternalSession) -> str:
    """Where the question of a session is answered that cannot be answered here."""
    words = IN_ITS_TERMINAL.get(session.program, NO_HOOK)
    return words.replace("{session}", line(session.program_session, 60))


def why_not_answer(session: ExternalSession | None, questions: Sequence[ExternalQuestion]) -> str:
    """Why nothing can be answered here; empty where it can."""
    if any(each.status == "waiting" for each in questions):
        return ""
    if questions:
        return "answer sent, not confirmed yet"
    if session is None:
        return NOTHING_ASKED
    if session.status == "waiting":
        return where_answered(session)
    return NOTHING_ASKED if session.program in IN_ITS_TERMINAL else ASKS_NOBODY


def why_not_instruct(session: ExternalSession | None) -> str:
    """Why the compactions of a session cannot get instructions; empty where they can."""
    if session is None:
        return "this session is not running in another terminal"
    return NO_INSTRUCTIONS if session.program == "codex" else ""


def condition_of(session: ExternalSession, questions: Sequence[ExternalQuestion], now: float) -> Condition:
    """The state of a session in another terminal, and why it is in it."""
    reason = line(session.reason)
    waiting = [each for each in questions if each.status == "waiting"]
    if waiting:
        more = f"{len(waiting)} questions: " if len(waiting) > 1 else ""
        asks = "asks: " if waiting[0].choices else "wants to run "
        return Condition("?", Waiting.QUESTION, "waiting", more + asks + asked(waiting[0]))
    if questions:
        return Condition("◔", "sent", "slot", f"answered {asked(questions[0])}; not confirmed yet")
    if session.status == "waiting":
        return Condition(
            "?", Waiting.QUESTION, "waiting", f"{reason or 'a question'}; {where_answered(session)}"
        )
    if session.status == "failed":
        return Condition("✗", "failed", "failed", reason)
    if session.status == "compacting":
        return Condition("◔", "compacts", "compaction", dropping(session))
    if session.is_silent(now):
        silence = formatting.duration(now - session.last_active)
        return Condition("!", "silent", "silent", f"silent {silence}")
    if session.status == "busy":
        return Condition("●", "working", "working", "")
    if session.status == "ended":
        return Condition("□", "ended", "muted", reason)
    if session.status == "idle":
        return Condition("○", "idle", "muted", line(session.last_message))
    return Condition("?", line(session.status, 20), "muted", reason)


def dropping(session: ExternalSession) -> str:
    """What the newest compaction drops, in one line; empty if there was none."""
    if not session.compactions:
        return ""
    newest = session.compactions[-1]
    size = newest.get("bytes")
    held = (
        f": the first {formatting.tokens(size)} bytes of its log are no longer in context"
        if isinstance(size, int)
        else ""
    )
    trigger = newest.get("trigger")
    return line(f"{trigger if isinstance(trigger, str) else ''} compaction{held}".strip())


def is_over(session: ExternalSession, last_active: float) -> bool:
    """Whether it ended, and its log tells nothing later."""
    return session.status == "ended" and last_active <= session.changed_at + _ENDED_SOON


def state_of(session: ExternalSession | None, last_active: float, otherwise: SessionState) -> SessionState:
    """The state of an imported session as its terminal has it, which knows more than the age of a log's newest record;
    `otherwise` where no hook says anything."""
    if session is None or (session.status == "ended" and not is_over(session, last_active)):
        return otherwise
    return _STATES.get(session.status, otherwise)


_STATES = {
    "busy": SessionState.LIVE, "waiting": SessionState.LIVE, "compacting": SessionState.LIVE,
    "idle": SessionState.IDLE, "ended": SessionState.ENDED, "failed": SessionState.FAILED,
}  # fmt: skip


def needy(external: External, now: float, besides: str | None) -> Iterable[tuple[ExternalSession, Condition]]:
    """The sessions that need a person, but for the one named."""
    questions = questions_by_session(external)
    for session in external.sessions:
        asked = questions.get(session.session_id, ())
        may_need = asked or session.status in ("waiting", "failed") or session.is_silent(now)
        if may_need and session.session_id != besides:
            condition = condition_of(session, asked, now)
            if condition.needs_attention:
                yield session, condition


def row_of(session: ExternalSession) -> FleetRow:
    """The row of a session whose log was not imported yet."""
    from watchkeeper.store.snapshot import FleetRow

    return FleetRow(
        id=session.session_id,
        goal=name_of(session),
        model="",
        origin=session.program,
        status="running",
        created_at=session.last_active,
        last_active=session.last_active,
    )


def joined(agent: AgentFacts, session: ExternalSession, questions: Sequence[ExternalQuestion]) -> AgentFacts:
    """The main agent of an imported session, as its terminal has it: a log says only that it works."""
    if agent.status != "working":
        return agent
    if questions or session.status == "waiting":
        asks = asked(questions[0]) if questions else session.reason
        return replace(agent, status="waiting", status_reason=asks)
    if session.status == "failed":
        return replace(agent, status="failed", status_reason=session.reason)
    if is_over(session, agent.last_active):
        return replace(agent, status="done", status_reason=session.reason)
    return replace(agent, status="idle") if session.status == "idle" else agent
