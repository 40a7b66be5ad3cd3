"""What a person does to a session in another terminal: answer its question, read what its compaction drops, and tell its
compactions what to keep.

Its own dialog stays open meanwhile, and the first answer counts. There is no "always": the program's suggestions may
allow every later call.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.records.readers import program_label
from watchkeeper.records.redact import Redactor
from watchkeeper.records.states import ApprovalStatus
from watchkeeper.records.text import reveal
from watchkeeper.store import external as store
from watchkeeper.store.agent_snapshot import StoredMessage
from watchkeeper.store.commands import EXTERNAL, Question, Section, sections_of, unified_diff
from watchkeeper.store.driver import Connection
from watchkeeper.store.external import ExternalQuestion, ExternalSession
from watchkeeper_tui import external as terminals
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action
from watchkeeper_tui.control import PromptMessage, PromptPreview
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.rendering.documents import Unit, lazy
from watchkeeper_tui.requests import Request
from watchkeeper_tui.sanitize import clip, sanitize, wrap
from watchkeeper_tui.screens.approval import ApprovalScreen
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.dialogs import PromptScreen
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.rows import PageLine, Piece

KEPT_BYTES = 8 << 20
"""The newest bytes of the log that are read to show what a compaction drops."""
LONGEST_DIFF = 100_000
"""Characters of an edit; the texts of a longer one are shown one after the other."""
MOST_OPTIONS = 9
"""So many options are chosen with a key; more are typed."""


# --- The question --------------------------------------------------------------------------------------------


def question_of(asked: ExternalQuestion, session: ExternalSession | None) -> Question:
    """A question of another terminal, as the screen of questions shows it: whole."""
    program = program_label(asked.program)
    agent = f"{program} (process {asked.pid})" if not asked.agent else f"{program}'s agent {asked.agent}"
    folder = session.folder if session is not None else ""
    note = "also pending in its terminal; the first answer counts"
    return Question(
        asked.id, asked.session_id, ApprovalStatus.WAITING, None, None, asked.tool, agent, "", folder, folder,
        folder, EXTERNAL, note, dict(asked.input), dict(asked.input), tuple(sections(asked)), "", "",
    )  # fmt: skip


def sections(asked: ExternalQuestion) -> Iterator[Section]:
    """The whole input, in the form in which it is read best. Hostile."""
    given = dict(asked.input)
    if asked.choices:
        rest = given.pop("questions")
        for number, one in enumerate(asked.choices, 1):
            yield Section(f"question {number}", "\n".join(_choice_lines(one)), "text")
        if len(rest) != len(asked.choices):
            yield Section("questions", json.dumps(rest, ensure_ascii=False, indent=2), "json")
    path, old, new = given.get("file_path"), given.get("old_string"), given.get("new_string")
    if (
        isinstance(path, str)
        and isinstance(old, str)
        and isinstance(new, str)
        and len(old) + len(new) < LONGEST_DIFF
    ):
        for name in ("file_path", "old_string", "new_string"):
            del given[name]
        yield Section(f"change of {path}", unified_diff(old, new, path), "diff")
    if given or not asked.input:
        # Never the name of a tool of ours: those have files read.
        yield from sections_of("bash" if asked.tool.lower() == "bash" else "", given, Path())[0]


def _choice_lines(one: dict[str, Any]) -> Iterator[str]:
    """A multiple-choice question with all that it holds."""
    yield str(one.get("question", ""))
    for number, option in enumerate(_options(one), 1):
        about = f"  {option['description']}" if option.get("description") else ""
        yield f"  {number}) {option.get('label', '')}{about}"
        more = {key: value for key, value in option.items() if key not in ("label", "description")}
        if more:
            yield "     " + json.dumps(more, ensure_ascii=False)
    if one.get("multiSelect"):
        yield "  choose one or more"
    known = ("question", "options", "multiSelect", "header")
    more = {key: value for key, value in one.items() if key not in known}
    if more:
        yield "  " + json.dumps(more, ensure_ascii=False)


def _options(one: dict[str, Any]) -> list[dict[str, Any]]:
    found = one.get("options")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def labels(one: dict[str, Any]) -> list[str]:
    """The labels of its options. Hostile."""
    return [str(option.get("label", "")) for option in _options(one)]


def chosen_labels(one: dict[str, Any], typed: str) -> str:
    """What a person typed as an answer: numbers become labels, several where several may be chosen.

    Raises:
        ValueError: nothing was typed, or a number names no option.
    """
    typed, known = typed.strip(), labels(one)
    if not typed:
        raise ValueError("enter a number or an answer")
    parts = typed.replace(",", " ").split()
    if not all(part.isascii() and part.isdigit() for part in parts):
        return typed
    if len(parts) > 1 and not one.get("multiSelect"):
        raise ValueError("choose only one option")
    if not all(0 < int(part) <= len(known) for part in parts):
        raise ValueError(f"there are only {len(known)} options")
    return ", ".join(dict.fromkeys(known[int(part) - 1] for part in parts))


class ExternalQuestionScreen(ApprovalScreen):
    """`y` allows once or answers its choices, `n` denies, `r` denies with a reason, Esc leaves it to its terminal."""

    SCOPE = "question"

    def __init__(
        self,
        asked: ExternalQuestion,
        session: ExternalSession | None,
        answer: Callable[[Request], None],
        follow: Callable[[frozenset[str]], ApprovalScreen | None] | None = None,
        answered: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(question_of(asked, session), asked.id, answer, follow, answered)
        self._asked, self._session = asked, session

    @property
    def others(self) -> int:
        asked = terminals.questions_of(self.watch_app.snapshot.external, self._asked.session_id)
        known = {*self._answered_ids, self._asked.id}
        return sum(each.status == "waiting" and each.id not in known for each in asked)

    def _read(self, arrived: Callable[[object], None]) -> None:
        question_id = self._asked.id

        def question(connection: Connection) -> object:
            return store.load_external_question(connection, question_id)

        self.ask_reader(question, arrived)

    def _arrived(self, result: object) -> None:
        if not self.is_usable or self._is_leaving:
            return
        if isinstance(result, Exception):
            self.say(f"! {self.trouble(result)}", "failed", seconds=12)
        elif not isinstance(result, ExternalQuestion) or result.status != "waiting":
            said = outcome_words(self._asked, result)
            self._leave(said, "accent", seconds=15, follows=bool(self._answered_ids))
        else:
            self._is_read = True
            self.call_after_refresh(self.moved)

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        waiting = {each.id for each in snapshot.external.questions if each.status == "waiting"}
        if self._asked.id not in waiting and not self._is_leaving:
            self._read(self._arrived)
        self._describe()

    def label_of(self, action: Action) -> str:
        is_choice = action.id == "approval.approve" and bool(self._asked.choices)
        return "Answer" if is_choice else super().label_of(action)

    def action_approve(self) -> None:
        if not self._may_approve():
            return
        if self._asked.choices:
            self._choose({})
        else:
            self._send("approve", self._about("allow"))

    def _choose(self, chosen: dict[str, str]) -> None:
        """Ask for the answer of the next of its questions; send them after the last."""
        if len(chosen) == len(self._asked.choices):
            self._send("approve", self._about("answer"), choices=chosen)
            return
        one = self._asked.choices[len(chosen)]
        known = labels(one)
        heading: list[Piece] = [(terminals.line(reveal(str(one.get("question", "")))), "strong")]
        options: list[list[Piece]] = [
            [(f"{number} ", "key"), (terminals.line(reveal(label), 100), "text")]
            for number, label in enumerate(known[:20], 1)
        ]
        if one.get("multiSelect") or not 0 < len(known) <= MOST_OPTIONS:
            what = "numbers or your own answer" if one.get("multiSelect") else "a number or your own answer"
            hint: list[Piece] = [(what, "muted")]
            self._ask_words([heading, *options, hint], one, chosen)
            return
        keys: dict[str, Callable[[], None]] = {
            str(number): partial(self._choose, {**chosen, str(len(chosen)): label})
            for number, label in enumerate(known, 1)
        }
        keys["t"] = partial(self._ask_words, [heading], one, chosen)
        last: list[Piece] = [("t", "key"), (" your own answer   ", "text"), ("esc", "key"), (" back", "text")]
        self.prompt.ask_key([heading, *options, last], keys)

    def _ask_words(
        self, question: Sequence[Sequence[Piece]], one: dict[str, Any], chosen: dict[str, str]
    ) -> None:
        def typed(text: str) -> None:
            try:
                answer = chosen_labels(one, text)
            except ValueError as fault:
                self.say(sanitize(str(fault)), "failed", seconds=8)
                return
            self._choose({**chosen, str(len(chosen)): answer})

        self.prompt.ask_line(question, typed, kind="choice", enter="Answer")

    def action_always(self) -> None:
        self.say("here you can only allow once; to always allow, use the session's terminal", "waiting")

    def action_back(self) -> None:
        self._leave("the question is still pending, here and in the session's terminal", "muted", seconds=3)


def outcome_words(asked: ExternalQuestion, now: object) -> str:
    """What became of a question, in one line. `now`: its row, if there is one."""
    what = clip(sanitize(asked.tool), 40)
    if not isinstance(now, ExternalQuestion) or now.status == "ended":
        return f"{what}: no longer pending; answered in its terminal, or its process ended"
    if now.status == "sent":
        by = f" by {sanitize(now.decided_by)}" if now.decided_by else ""
        return f"{what}: answer sent{by}, not confirmed yet"
    if not now.decided_by:
        return f"{what}: {now.outcome} in its terminal"
    sent = "denied" if now.answer.get("behavior") == "deny" else "allowed"
    if sent != now.outcome:
        return f"{what}: {now.outcome} in its terminal first; your answer was not used"
    return f"{what}: {now.outcome}, confirmed by its program"


def answer_question_of(
    screen: WatchScreen, session_id: str, answered: frozenset[str] = frozenset()
) -> ApprovalScreen | None:
    """Open the oldest question of a session in another terminal, or say why there is none to answer. `answered`: those
    before it, in the same go."""
    external = screen.watch_app.snapshot.external
    session, asked = terminals.session_of(external, session_id), terminals.questions_of(external, session_id)
    asked = tuple(each for each in asked if each.id not in answered)
    if answered and not any(each.status == "waiting" for each in asked):
        return None
    why_not = terminals.why_not_answer(session, asked)
    if why_not:
        screen.say(why_not, "waiting", seconds=12)
        return None
    question = next(each for each in asked if each.status == "waiting")

    def answer(request: Request) -> None:
        screen.say(f"… {request.about}", "muted", seconds=3)
        work = partial(_send, screen, question, request)
        screen.run_worker(work, thread=True, group="commands", exit_on_error=False, name="answer")

    follow = partial(answer_question_of, screen, session_id)
    opened = ExternalQuestionScreen(question, session, answer, follow, answered)
    screen.app.push_screen(opened)
    return opened


def _send(screen: WatchScreen, question: ExternalQuestion, request: Request) -> None:
    """In a worker thread: hand the answer over, and say that it was sent."""
    from watchkeeper.runtime.control import refuse_agents, user_name

    given = request.payload
    try:
        refuse_agents()
        store.answer_question(
            screen.watch_app.database_path,
            question,
            user_name(),
            allow=request.kind == "approve",
            reason=given.get("reason", ""),
            choices=given.get("choices"),
        )
        said = (f"◔ {request.about}: sent, not confirmed yet", "slot")
    except (ValueError, OSError, WatchkeeperError) as fault:
        said = (f"{request.about}: {screen.trouble(fault)}", "failed")
    screen.app.call_from_thread(_say, screen, *said)


def _say(screen: WatchScreen, text: str, role: str) -> None:
    if screen.is_usable:
        screen.say(text, role, seconds=12)


# --- Compactions ---------------------------------------------------------------------------------------------


def ask_instructions(screen: WatchScreen, session: ExternalSession | None) -> None:
    """Ask what the compactions of a session should keep, and hand it to its hook."""
    why_not = terminals.why_not_instruct(session)
    if why_not or session is None:
        screen.say(why_not, "muted")
        return
    database, known = screen.watch_app.database_path, session.program_session
    before = store.compact_instructions(database, known)

    def typed(text: str) -> None:
        from watchkeeper.runtime.control import refuse_agents

        try:
            refuse_agents()
            store.set_compact_instructions(database, known, text)
        except (ValueError, OSError, WatchkeeperError) as fault:
            screen.say(screen.trouble(fault), "failed", seconds=12)
            return
        said = (
            "instructions set for its next compactions" if text.strip() else "compaction instructions removed"
        )
        screen.say(f"✓ {said}", "done")

    name = terminals.name_of(session)
    question: list[list[Piece]] = [
        [(f"What should compactions of {name} keep?", "strong")],
        [("Added to the program's own instructions each time. Empty = remove.", "muted")],
    ]
    screen.prompt.ask_line(
        question,
        typed,
        kind="instructions",
        value=" ".join(sanitize(before).split()),
        enter="Set",
        keeps_lines=True,
    )


def show_dropped(screen: WatchScreen, session: ExternalSession | None) -> None:
    """Show what the newest compaction of a session drops, from its log as it was before it."""
    newest = session.compactions[-1] if session is not None and session.compactions else {}
    path, size = newest.get("path"), newest.get("bytes")
    if session is None or not newest:
        screen.say("the terminal reported no compactions; Enter opens the ones in the session log", "muted")
    elif session.program != "claude-code" or not isinstance(path, str) or not isinstance(size, int):
        screen.say("the log position of the compaction is unknown; Enter opens the session", "muted")
    else:
        screen.say("reading the log …", "muted")
        work = partial(_read_dropped, screen, session, Path(path), size)
        screen.run_worker(
            work, thread=True, group="dropped", exclusive=True, exit_on_error=False, name="dropped"
        )


def _read_dropped(screen: WatchScreen, session: ExternalSession, path: Path, size: int) -> None:
    """In a worker thread."""
    from watchkeeper.store.place import user_redactor

    try:
        messages, is_cut = dropped_messages(path, size, user_redactor())
    except OSError as fault:
        screen.app.call_from_thread(_say, screen, f"! {screen.trouble(fault)}", "failed")
        return
    screen.app.call_from_thread(_show_dropped, screen, session, PromptPreview(messages=messages), is_cut)


def _show_dropped(screen: WatchScreen, session: ExternalSession, shown: PromptPreview, is_cut: bool) -> None:
    if screen.is_usable:
        screen.app.push_screen(DroppedScreen(session, shown, is_cut=is_cut))


def dropped_messages(path: Path, size: int, redactor: Redactor) -> tuple[tuple[PromptMessage, ...], bool]:
    """The messages in the first `size` bytes of a log of Claude Code that came after the compaction before; and whether
    older ones were left out.

    Raises:
        OSError: the log cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        begin = max(0, size - KEPT_BYTES)
        file.seek(begin)
        data = file.read(size - begin)
    lines = data.split(b"\n")[1 if begin else 0 :]
    entries: list[dict[str, Any]] = []
    is_cut = begin > 0
    for one in lines:
        try:
            entry = json.loads(one)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict) or entry.get("isSidechain") is True:
            continue
        if entry.get("subtype") == "compact_boundary" or entry.get("isCompactSummary") is True:
            entries.clear()
            is_cut = False
        message = entry.get("message")
        if entry.get("type") in ("user", "assistant") and isinstance(message, dict):
            entries.append(message)
    names: dict[str, str] = {}
    found = []
    for number, message in enumerate(entries, 1):
        role = "assistant" if message.get("role") == "assistant" else "user"
        text = json.dumps(redactor(message.get("content")), ensure_ascii=False)
        stored = StoredMessage(number, role, text, 0, 0, 0.0, len(text))
        found.append(PromptMessage(role, 0, tuple(fold_message(stored, names))))
    return tuple(found), is_cut


class DroppedScreen(PromptScreen):
    """What a compaction drops: the messages of the log before it."""

    BACK: ClassVar[str] = "back"

    def __init__(self, session: ExternalSession, shown: PromptPreview, *, is_cut: bool) -> None:
        super().__init__("", replace(shown, messages_cached=-1))
        self._session, self._is_cut = session, is_cut

    @property
    def heading(self) -> str:
        return f"Dropped by the compaction of {terminals.name_of(self._session)}"

    def lines(self, width: int) -> Sequence[PageLine]:
        newest = self._session.compactions[-1]
        count = formatting.plural(len(self._shown.messages), "message")
        facts = [
            f"{terminals.dropping(self._session)}; {count}{' (older ones in the log)' if self._is_cut else ''}",
            f"log: {terminals.line(str(newest.get('path')), 500)}",
        ]
        if isinstance(sent := newest.get("instructions"), str) and sent:
            facts.append(f"instructions: {terminals.line(sent, 500)}")
        lines: list[PageLine | Unit] = [
            PageLine(f"facts.{number}.{row}", ((part, "muted"),))
            for number, one in enumerate(facts)
            for row, part in enumerate(wrap(one, width))
        ]
        return lazy([*lines, *self.message_lines(width)], self._cache)
