"""Sessions in other terminals: beside the others, on the line of attention, answered from here, and their compactions."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tui.conftest import NOW, Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, FakeSession, insert
from textual.pilot import Pilot

from watchkeeper.store import external
from watchkeeper.store.external import (
    NO_HOOK,
    ExternalQuestion,
    ExternalReader,
    ExternalSession,
    SessionState,
    hooks_folder,
)
from watchkeeper.store.snapshot import SessionSnapshotReader
from watchkeeper_tui.app import WatchkeeperApp, news
from watchkeeper_tui.external import condition_of, why_not_answer
from watchkeeper_tui.screens.external import ExternalQuestionScreen, chosen_labels
from watchkeeper_tui.screens.fleet import FleetScreen
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.settings import Notifications
from watchkeeper_tui.snapshot import Snapshot

SIZES = [(120, 40), (80, 24)]
COLOURS = {"questions": [
    {"question": "Which colour?", "header": "Colour", "multiSelect": False,
     "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]},
    {"question": "Which sizes?", "header": "Size", "multiSelect": True,
     "options": [{"label": "S", "description": ""}, {"label": "M", "description": ""}, {"label": "L", "description": ""}]},
]}  # fmt: skip


class Terminals:
    """Sessions of Claude Code in other terminals, as the spool's reader writes them."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.connection = desk, desk.session.connection
        self.folder = hooks_folder(desk.path)
        for name in ("asks", "answers", "instructions"):
            (self.folder / name).mkdir(parents=True)
        self._lock = os.open(self.folder.with_name(self.folder.name + ".lock"), os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        os.close(self._lock)

    def has(
        self, name: str, status: str, reason: str = "", *, imported: str = "", **values: Any
    ) -> SessionState:
        """A session `name` in a folder of that name; `imported`: as this session of the store."""
        state = SessionState(
            "claude-code", name, imported or f"id{name}"[:8], 4242, f"/srv/{name}", f"/logs/{name}.jsonl", status, reason,
            values.pop("details", {}), values.pop("changed_at", NOW - 2),
        )  # fmt: skip
        state = replace(state, **values)
        external.save_states(self.connection, [state])
        self.desk.feed.wake()
        return state

    def asks(
        self, name: str, tool: str = "Bash", given: dict[str, Any] | None = None, number: str = "a"
    ) -> str:
        """A question of that session, with the hook that waits for its answer."""
        given = {"command": "rm -r build"} if given is None else given
        question_id = (number * 32)[:32]
        external.add_question(
            self.connection,
            ExternalQuestion(
                question_id, "claude-code", name, "", os.getpid(), "", tool, given, "waiting", {}, "", "",
                NOW - 1,
            ),
        )  # fmt: skip
        payload = json.dumps({"tool_name": tool, "tool_input": given})
        (self.folder / "asks" / f"{os.getpid()}.{question_id}.json").write_text(payload)
        self.desk.feed.wake()
        return question_id

    def answer(self, question_id: str) -> Any:
        """What the waiting hook would hand to the program; None while there is nothing."""
        path = self.folder / "answers" / f"{question_id}.json"
        return json.loads(path.read_text())["hookSpecificOutput"]["decision"] if path.exists() else None

    def ends(self, question_id: str, outcome: str) -> None:
        external.end_question(self.connection, question_id, outcome, NOW)
        self.desk.feed.wake()


@pytest.fixture
def terminals(desk: Desk) -> Iterator[Terminals]:
    terminals = Terminals(desk)
    yield terminals
    terminals.close()


async def fleet(pilot: Pilot[int], words: str) -> FleetScreen:
    await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen) and words in text_of(pilot))
    screen = pilot.app.screen
    assert isinstance(screen, FleetScreen)
    return screen


async def test_each_session_has_one_row_and_its_state_as_its_terminal_has_it(desk, terminals):
    claude = FakeSession(
        desk.session.connection, "claude23", goal="fix the flaky test", origin="claude-code", model="anthropic/claude-opus-4-6"
    )  # fmt: skip
    insert(desk.session.connection, "transcript_files", path="/logs/joined.jsonl", session_id=claude.id, program="claude-code",
           **_FILE)  # fmt: skip
    terminals.has("joined", "waiting", "permission: Bash")
    terminals.has("fresh", "compacting", "auto")
    terminals.has("broken", "failed", "rate limit reached")
    terminals.has("quiet", "busy", changed_at=NOW - 400)
    terminals.has("gone", "ended", "the process ended unexpectedly")
    async with desk.shown(size=(160, 40), screen="fleet") as pilot:
        screen = await fleet(pilot, "broken")
        shown = text_of(pilot)
        assert [row.id for row in screen.view.rows].count("claude23") == 1
        assert len(screen.view.rows) == 6
        for words in (
            "compacts", "rate limit reached", "silent 6", "ended", "permission: Bash", "fix the flaky test",
        ):  # fmt: skip
            assert words in shown, words
        terminals.has("joined", "idle")
        await shows(pilot, without="permission: Bash")
        terminals.has("fresh", "waiting", "permission: Edit")
        await shows(pilot, "permission: Edit", NO_HOOK[:20])


def test_a_question_of_codex_names_the_command_that_opens_its_thread() -> None:
    """Its thread may run in a daemon, and its terminal may be gone."""
    session = ExternalSession(
        "codex",
        "01a1-thread",
        "id",
        True,
        42,
        "/srv/app",
        "/logs/t.jsonl",
        "waiting",
        "permission: Bash",
        NOW,
        (),
    )
    assert "`codex resume 01a1-thread`" in condition_of(session, (), NOW).note
    assert "`codex resume 01a1-thread`" in why_not_answer(session, ())


_FILE = {"size": 1, "modified_at": NOW, "read_bytes": 1, "head_digest": "", "imported_at": NOW}


@pytest.mark.parametrize("size", SIZES)
async def test_e_leads_from_the_plan_to_each_terminal_that_needs_a_person(desk, terminals, size):
    async with desk.shown("explorer-1", size=size) as pilot:
        assert "terminal" not in text_of(pilot)
        terminals.has("shop", "waiting", "permission: Bash")
        terminals.has("idle1", "idle")
        terminals.asks("shop")
        await shows(pilot, "? terminal shop wants to run")
        for _ in range(10):
            await pilot.press("e")
            if isinstance(pilot.app.screen, FleetScreen):
                break
        screen = await fleet(pilot, "shop")
        assert screen.view.selected is not None
        assert screen.view.selected.goal == "shop"
        await pilot.press("escape", "e")
        # From the same row it goes on, not to and fro.
        assert isinstance(pilot.app.screen, LiveScreen)


@pytest.mark.parametrize(
    ("keys", "wanted"), [(["y"], {"behavior": "allow"}),
     (["n"], {"behavior": "deny", "message": "The user denied this in Watchkeeper."}),
     (["r", *"no", "enter"], {"behavior": "deny", "message": "no"})],
)  # fmt: skip
async def test_an_answer_is_sent_and_then_confirmed(desk, terminals, keys, wanted):
    terminals.has("shop", "waiting", "permission: Bash")
    question = terminals.asks("shop")
    async with desk.shown(screen="fleet") as pilot:
        await fleet(pilot, "shop")
        await pilot.press("e", "a")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExternalQuestionScreen))
        for words in ("Claude Code (process", "wants to run Bash", "rm -r build", "/srv/shop", "Allow once"):
            assert words in text_of(pilot)
        assert "Always" not in text_of(pilot)
        await pilot.press("a")
        await shows(pilot, "here you can only allow once")
        await pilot.press(*keys)
        await until(pilot, lambda: terminals.answer(question) is not None)
        assert terminals.answer(question) == wanted
        desk.feed.wake()
        await shows(pilot, "◔ sent")
        await pilot.press("a")
        await shows(pilot, "not confirmed yet")
        terminals.has("shop", "busy")
        terminals.ends(question, "allowed" if wanted["behavior"] == "allow" else "denied")
        await shows(pilot, "confirmed by its program", without="◔ sent")


async def test_y_counts_after_the_end_and_the_question_ends_with_its_process(desk, terminals):
    terminals.has("shop", "waiting", "permission: Bash")
    command = "\n".join(f"echo {HOSTILE} line-{number}" for number in range(200))
    question = terminals.asks("shop", given={"command": command})
    async with desk.shown(size=(80, 24), screen="fleet") as pilot:
        await fleet(pilot, "shop")
        await pilot.press("e", "a")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExternalQuestionScreen))
        await pilot.press("y")
        await shows(pilot, "scroll to the end first")
        assert terminals.answer(question) is None
        assert not set("\x1b\u202e\u200b") & set(text_of(pilot))
        terminals.has("shop", "ended", "the process ended unexpectedly")
        terminals.ends(question, "")
        await until(
            pilot,
            lambda: isinstance(pilot.app.screen, FleetScreen) and "no longer pending" in text_of(pilot),
        )


async def test_multiple_choice_questions_are_answered_one_after_the_other(desk, terminals):
    terminals.has("shop", "waiting", "question")
    question = terminals.asks("shop", "AskUserQuestion", COLOURS)
    async with desk.shown(screen="fleet") as pilot:
        await fleet(pilot, "shop")
        await shows(pilot, "asks: Which colour?")
        await pilot.press("e", "a")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExternalQuestionScreen))
        for words in (
            "Which colour?", "1) Red  warm", "2) Blue  cold", "Which sizes?", "choose one or more",
        ):  # fmt: skip
            assert words in text_of(pilot)
        await pilot.press("y", "2")
        await shows(pilot, "numbers or your own answer")
        await pilot.press(*"1,3", "enter")
        await until(pilot, lambda: terminals.answer(question) is not None)
        answers = {"Which colour?": "Blue", "Which sizes?": "S, L"}
        assert terminals.answer(question) == {
            "behavior": "allow",
            "updatedInput": COLOURS | {"answers": answers},
        }


@given(
    st.text(max_size=12), st.booleans(), st.lists(st.text(min_size=1, max_size=5), max_size=4, unique=True)
)
def test_a_typed_choice_is_a_label_the_words_themselves_or_refused(typed, several, known):
    one = {"question": "?", "multiSelect": several, "options": [{"label": label} for label in known]}
    try:
        answer = chosen_labels(one, typed)
    except ValueError:
        return
    assert answer == typed.strip() or all(part in ", ".join(known) for part in answer.split(", "))


async def test_an_imported_session_is_one_with_its_terminal(desk: Desk, terminals: Terminals) -> None:
    """Its main agent waits, `a` answers, and its own question is not told twice."""
    claude = FakeSession(
        desk.session.connection, "claude23", goal="fix it", origin="claude-code", planner_agent_id="main0001", current_plan_id=None
    )  # fmt: skip
    claude.agent("main0001", "main", parent_agent_id=None, last_active=NOW - 100)
    terminals.has("shop", "idle", imported="claude23")
    async with desk.shown(session_id="claude23") as pilot:
        await until(pilot, lambda: "○ idle" in text_of(pilot) or "idle" in text_of(pilot))
        assert "silent" not in text_of(pilot)
        await pilot.press("a")
        await shows(pilot, "`claude -p` never asks")
        terminals.has("shop", "waiting", "permission: Bash", imported="claude23")
        await shows(pilot, "? main asks")
        assert "terminal shop" not in text_of(pilot)
        await pilot.press("a")
        await shows(pilot, NO_HOOK[:20])
        question = terminals.asks("shop")
        await until(pilot, lambda: bool(pilot.app.snapshot.external.questions))  # type: ignore[attr-defined]
        await pilot.press("a")
        await until(pilot, lambda: isinstance(pilot.app.screen, ExternalQuestionScreen))
        await pilot.press("y")
        await until(pilot, lambda: terminals.answer(question) == {"behavior": "allow"})
        await shows(pilot, "sent, not confirmed yet")
        terminals.has("shop", "ended", "logout", imported="claude23")
        terminals.ends(question, "allowed")
        await shows(pilot, "✓1", "confirmed by its program")
        app = pilot.app
        assert isinstance(app, WatchkeeperApp)
        app.open_session("claude23", read_only=True)
        await shows(pilot, "actions are not available")
        await pilot.press("a")
        await shows(pilot, "imported sessions are read-only")


async def test_what_a_compaction_drops_is_read_and_the_next_is_told_what_to_keep(desk, terminals, tmp_path):
    log = tmp_path / "log.jsonl"
    entries = [
        {"type": "user", "message": {"role": "user", "content": "long ago"}},
        {"type": "system", "subtype": "compact_boundary"},
        {"type": "user", "message": {"role": "user", "content": f"keep the port 8080 {HOSTILE}"}},
        {"type": "assistant", "isSidechain": True,
         "message": {"role": "assistant", "content": "a helper's words"}}, {"type": "assistant",
         "message": {"role": "assistant", "content": [{"type": "text", "text": "I keep it"}]}},
    ]  # fmt: skip
    log.write_text("".join(json.dumps(one) + "\n" for one in entries))
    size = log.stat().st_size
    with log.open("a") as file:
        file.write(json.dumps({"type": "user", "message": {"role": "user", "content": "the summary"}}) + "\n")
    compaction = {"trigger": "auto", "at": NOW - 3, "ended_at": None, "path": str(log), "bytes": size}
    terminals.has("shop", "compacting", "auto", details={"compactions": [compaction]})
    async with desk.shown(screen="fleet") as pilot:
        await fleet(pilot, "compacts")
        await pilot.press("home", "c")
        await shows(pilot, "keep the port 8080")
        shown = text_of(pilot)
        assert "Dropped by the compaction of shop ─" in shown
        assert "I keep it" in shown
        assert not [words for words in ("long ago", "helper's", "the summary", "\x1b") if words in shown]
        await pilot.press("escape", "i", *"ports", "enter")
        await shows(pilot, "instructions set for its next compactions")
        assert (terminals.folder / "instructions" / "shop").read_text() == "ports\n"
        await pilot.press("i")
        await until(pilot, lambda: pilot.app.screen.query_one("#prompt-line").value == "ports")  # type: ignore[attr-defined]
        await pilot.press("escape")
        log.unlink()
        log.symlink_to("/dev/zero")
        await pilot.press("c")
        await shows(pilot, "log.jsonl")


async def test_hostile_names_and_reasons_do_nothing(desk: Desk, terminals: Terminals) -> None:
    terminals.has("evil", "waiting", HOSTILE, folder=f"/srv/{HOSTILE}")
    terminals.has("evil2", "failed", HOSTILE * 20, folder="/")
    terminals.asks("evil", f"Tool{HOSTILE}", {HOSTILE: [HOSTILE]})
    terminals.asks("evil2", "AskUserQuestion", {"questions": [{"question": HOSTILE, "options": "none"}]}, "b")
    async with desk.shown("terminal") as pilot:
        await pilot.press("S")
        await fleet(pilot, "question")
        for _ in range(2):
            await pilot.press("e", "a")
            await until(pilot, lambda: isinstance(pilot.app.screen, ExternalQuestionScreen))
            assert not set("\x1b\x07\u202e\u2066\u200b") & set(text_of(pilot))
            await pilot.press("escape")


def test_a_reading_costs_two_queries_and_nothing_without_a_reader(desk: Desk, terminals: Terminals) -> None:
    connection = desk.session.connection
    reader = ExternalReader(desk.path)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    empty = reader.read(connection, NOW)
    assert reader.read(connection, NOW) is empty
    assert len(statements) == 2
    for number in range(300):
        terminals.has(f"s{number}", "idle")
    question = terminals.asks("s1")
    first = reader.read(connection, NOW)
    assert len(first.sessions) == 300
    assert [each.id for each in first.questions] == [question]
    statements.clear()
    assert reader.read(connection, NOW) is first
    assert len(statements) == 2
    assert len(statements) == 2
    connection.set_trace_callback(None)
    terminals.has("s1", "busy")
    second = reader.read(connection, NOW)
    assert (
        sum(
            one is not other
            for one, other in zip(
                sorted(first.sessions, key=_name), sorted(second.sessions, key=_name), strict=True
            )
        )
        == 1
    )
    terminals.close()
    assert reader.read(connection, NOW + 2) == external.External()
    terminals._lock = os.open(os.devnull, os.O_RDONLY)


def _name(session: external.ExternalSession) -> str:
    return session.program_session


def test_a_terminal_that_begins_to_need_a_person_is_told_once(desk: Desk, terminals: Terminals) -> None:
    def reading() -> Snapshot:
        found = ExternalReader(desk.path).read(desk.session.connection, NOW)
        facts = SessionSnapshotReader(desk.session.id).read(desk.session.connection, NOW)
        assert facts is not None
        return Snapshot(read_at=NOW, session=facts.session, external=found)

    terminals.has("shop", "busy")
    before = reading()
    terminals.has("shop", "waiting", "permission: Bash")
    terminals.asks("shop")
    after = reading()
    assert [(each.title, each.text) for each in news(before, after, Notifications())] == [
        ("shop needs you", "wants to run Bash rm -r build")
    ]
    assert news(after, reading(), Notifications()) == []
