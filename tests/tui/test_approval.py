"""The question of an agent on its own screen: all of it, every answer, and nothing approved that was not in
sight."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import insert
from textual.pilot import Pilot
from textual.widgets import TextArea

from watchkeeper.store.lease import is_watched
from watchkeeper_tui.rendering.code import row_ends
from watchkeeper_tui.screens.approval import ApprovalScreen

LONG = (
    "\n".join(f"echo line-{number} | tee -a /var/log/long-name-of-a-file-{number}" for number in range(200))
    + "\nrm -rf the-end"
)
SIZES = [(120, 40), (80, 24), (60, 20), (20, 5)]


def ask(desk: Desk, tool: str, arguments: dict[str, Any], number: int = 1, **values: Any) -> None:
    """A question of `explorer1`, with the message and the call that it is about."""
    connection = desk.session.connection
    seq = desk.session.message(
        "explorer1", "assistant", [{"type": "tool_use", "id": "tu9", "name": tool, "input": arguments}]
    )
    insert(
        connection, "tool_calls", id=76 + number, session_id=desk.session.id, agent_id="explorer1", turn=99, position=0, seq=seq,
        tool_use_id="tu9", name=tool, idempotent=0, status="pending",
    )  # fmt: skip
    insert(
        connection, "approvals", id=f"appr{number}", session_id=desk.session.id, agent_id="explorer1", task_id="t-core", tool_call_id=76 + number,
        tool=tool, question=f"{tool} {json.dumps(arguments, ensure_ascii=False)}", created_at=desk.session.now + number, **values,
    )  # fmt: skip


async def opened(pilot: Pilot[int], desk: Desk) -> ApprovalScreen:
    """Open the question from the live screen, and wait until it was read."""
    await until(pilot, lambda: bool(pilot.app.snapshot.approvals))  # type: ignore[attr-defined]
    await pilot.press("a")
    await until(
        pilot, lambda: isinstance(pilot.app.screen, ApprovalScreen) and bool(pilot.app.screen.view.rows)
    )
    screen = pilot.app.screen
    assert isinstance(screen, ApprovalScreen)
    await until(pilot, lambda: screen._is_read)
    return screen


def written(desk: Desk) -> list[tuple[str, dict[str, Any]]]:
    return [(kind, json.loads(payload)) for kind, _, _, payload in desk.session.commands()]


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
async def test_y_counts_only_after_the_end_was_in_sight_at_every_size(desk, size):
    ask(desk, "bash", {"command": LONG})
    async with desk.shown(size=size) as pilot:
        screen = await opened(pilot, desk)
        await pilot.press("y")
        await shows(pilot, "scroll")
        await pilot.press("pagedown", "y", "down", "y")
        assert written(desk) == []
        await pilot.press("end")
        await until(pilot, lambda: "the-end" in text_of(pilot).replace("\n", ""))
        assert (
            "".join("".join(text for text, _ in row.pieces) for row in screen.view.rows).count("line-199")
            == 1
        )
        await pilot.press("home", "y")
        await until(pilot, lambda: bool(written(desk)))
        assert written(desk) == [("approve", {"approval": "appr1"})]


async def test_it_says_who_asks_for_which_task_in_which_folder_and_why(desk: Desk) -> None:
    ask(
        desk, "bash", {"command": "git status", "timeout_ms": 7000}, folder="/srv/billing/sub",
        note="it already ran 3 times", cause="repetition",
    )  # fmt: skip
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        for words in ("explorer-1 (explorer) wants to run bash", "task    explorer-1: Explore core", "folder  /srv/billing/sub", "/srv/billing", "git status",
                      "why     it already ran 3 times", "timeout_ms", "7000"):  # fmt: skip
            assert words in text_of(pilot)
        await pilot.press("a")
        await shows(pilot, "need approval each time")


@pytest.mark.parametrize(("keys", "wanted"), [
    (["y"], ("approve", {})),
    (["n"], ("deny", {})),
    (["r", *"no", "enter"], ("deny", {"reason": "no"})),
    (["a", "t"], ("approve", {"scope": "tool"})),
    (["a", "p", "enter"], ("approve", {"scope": "pattern", "pattern": "git status"})),
    (["a", "p", *" *", "enter"], ("approve", {"scope": "pattern", "pattern": "git status *"})),
])  # fmt: skip
async def test_every_answer_is_one_command(desk, keys, wanted):
    ask(desk, "bash", {"command": "git status"})
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        await pilot.press(*["space" if key == " " else "asterisk" if key == "*" else key for key in keys])
        await until(pilot, lambda: bool(written(desk)))
        assert written(desk) == [(wanted[0], {"approval": "appr1", **wanted[1]})]
        assert not isinstance(pilot.app.screen, ApprovalScreen)


@pytest.mark.parametrize(("keys", "wanted"), [
    ("t", ("approve", {"edited_input": {"task": "q", "keep": "theirs"}})),
    ("o", ("approve", {"edited_input": {"task": "q", "keep": "ours"}})),
    ("eay", ("approve", {})),
    ("n", ("deny", {})),
])  # fmt: skip
async def test_the_conflict_of_a_merge_is_shown_whole_and_has_answers_of_its_own(desk, keys, wanted):
    conflict = {
        "file": "a.txt",
        "ours": "1a2b u: p: Do p",
        "theirs": "3c4d u: q: Do q",
        "text": "<<<<<<< ours (main)",
    }
    ask(
        desk, "merge_task", {"task": "q", "conflicts": [conflict], "one_side": True}, cause="conflict",
        note="q conflicts",
    )  # fmt: skip
    async with desk.shown(size=(110, 24)) as pilot:
        await opened(pilot, desk)
        for words in ("wants to merge q, which has conflicts", "conflict in a.txt", *list(conflict.values())[1:], "Keep ours",
                      "Keep theirs", "The planner resolves it", "Cancel the merge"):  # fmt: skip
            assert words in text_of(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: bool(written(desk)))
        assert written(desk) == [(wanted[0], {"approval": "appr1", **wanted[1]})]


async def test_an_edit_is_shown_before_it_is_approved_and_is_what_is_sent(desk: Desk) -> None:
    ask(desk, "bash", {"command": "git push", "timeout_ms": 5})
    async with desk.shown(size=(80, 24)) as pilot:
        screen = await opened(pilot, desk)
        await pilot.press("e")
        area = screen.query_one(TextArea)
        assert area.text == "git push"
        area.load_text("git push --dry-run\n# \u202e")
        await pilot.press("ctrl+s")
        await shows(pilot, "git push --dry-run", "<U+202E>")
        assert written(desk) == []
        await pilot.press("y")
        await until(pilot, lambda: bool(written(desk)))
        edited = {"command": "git push --dry-run\n# \u202e", "timeout_ms": 5}
        assert written(desk) == [("approve", {"approval": "appr1", "edited_input": edited})]


async def test_a_pattern_for_nothing_and_an_edit_that_is_no_json_are_refused_and_escape_leaves_it_waiting(
    desk: Desk,
) -> None:
    ask(desk, "bash", {"command": "git status", "timeout_ms": [1]})
    async with desk.shown(size=(80, 24)) as pilot:
        screen = await opened(pilot, desk)
        await pilot.press("a", "p", "semicolon", "enter")
        await shows(pilot, "matches nothing")
        await pilot.press("y", "n")  # typed on: no answer
        await shows(pilot, "git status;yn")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))
    desk.session.connection.execute("DELETE FROM approvals")
    desk.session.connection.execute("DELETE FROM tool_calls")
    ask(desk, "mcp__x__y", {"a": 1})
    async with desk.shown(size=(80, 24)) as pilot:
        screen = await opened(pilot, desk)
        await pilot.press("e")
        screen.query_one(TextArea).load_text("{")
        await pilot.press("ctrl+s")
        await shows(pilot, "invalid JSON")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))
    assert written(desk) == []


async def test_a_change_is_shown_against_the_file_as_it_is_now_and_the_answer_says_which(desk, tmp_path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "f.txt").write_text("one\ntwo\n")
    desk.session.connection.execute("UPDATE sessions SET workspace = ?", (str(workspace),))
    ask(desk, "edit", {"file_path": "f.txt", "old_string": "two", "new_string": "2"})
    async with desk.shown(size=(80, 24)) as pilot:
        screen = await opened(pilot, desk)
        assert "-two" in text_of(pilot)
        assert "+2" in text_of(pilot)
        assert screen._question is not None
        digest = screen._question.digest
        await pilot.press("y")
        await until(pilot, lambda: bool(written(desk)))
        assert written(desk) == [("approve", {"approval": "appr1", "subject_digest": digest})]
        assert digest


async def test_a_question_answered_elsewhere_closes_at_once_and_says_by_whom(desk: Desk) -> None:
    ask(desk, "bash", {"command": LONG})
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        await pilot.press("r")
        desk.session.connection.execute(
            "UPDATE approvals SET status = 'approved', decided_by = 'ada (command line)'"
        )
        desk.feed.wake()
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))
        await shows(pilot, "bash: approved by ada (command line)")


async def test_hostile_text_is_named_and_never_acts(desk: Desk) -> None:
    ask(
        desk, "bash", {"command": "echo \x1b[2J \u202egnp.exe\u2066 [@click=app.exit]x[/] \u200b\tend",
         "x\u202ey": "\x1b]0;t\x07"},
    )  # fmt: skip
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        shown = text_of(pilot)
        for words in (
            "<U+001B>[2J", "<U+202E>gnp.exe<U+2066>", "[@click=app.exit]x[/]", "<U+200B>", "x<U+202E>y",
            "<U+001B>]0;t<U+0007>",
        ):  # fmt: skip
            assert words in shown
        assert not {"\x1b", "\u202e", "\u2066", "\u200b"} & set(shown)


async def test_a_megabyte_is_whole_and_its_rows_are_made_once(desk: Desk) -> None:
    text = "\n".join(f"{number:07} " + "x" * 92 for number in range(10_000))
    ask(desk, "mcp__x__y", {"body": text})
    async with desk.shown(size=(80, 24)) as pilot:
        screen = await opened(pilot, desk)
        await until(pilot, lambda: len(screen.view.rows) > 20_000, seconds=30)
        rows = screen.view.rows
        for _ in range(20):
            screen.view.action_page(1)
            screen.view.render_line(3)
        assert screen.view.rows is rows
        screen.view.action_last()
        await shows(pilot, "0009999 x")


def test_rows_drop_no_character() -> None:
    for text in ("", "a" * 50, "word " * 30, "漢字" * 30 + " end", "a " + "é" * 40):
        for width in (2, 7, 20):
            ends = list(row_ends(text, width))
            assert ends[-1] == len(text)
            assert "".join(text[a:b] for a, b in zip([0, *ends], ends, strict=False)) == text


async def test_a_dashboard_says_that_somebody_is_here(desk: Desk) -> None:
    async with desk.shown(size=(80, 24)) as pilot:
        await until(pilot, lambda: is_watched(desk.path, desk.session.id))
    assert not is_watched(desk.path, desk.session.id)


# --- one question after the other -----------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchkeeper_tui.screens.approval.SETTLE_SECONDS", 0.001)


async def next_one(pilot: Pilot[int], wanted: str) -> ApprovalScreen:
    """The question with this id, once keys answer it."""

    def is_there() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, ApprovalScreen) and screen._approval_id == wanted and screen._is_settled

    await until(pilot, is_there)
    screen = pilot.app.screen
    assert isinstance(screen, ApprovalScreen)
    return screen


def asked_thrice(desk: Desk) -> None:
    for number, command in enumerate(("git status", "rm -rf build", "git push"), 1):
        ask(desk, "bash", {"command": command}, number)


async def test_every_answer_is_followed_by_the_next_question_until_none_is_left(desk, at_once):
    asked_thrice(desk)
    ask(desk, "bash", {"command": "make"}, 4)
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        await shows(pilot, "Question  1 of 4", "git status")
        await pilot.press("y")
        await next_one(pilot, "appr2")
        await shows(pilot, "Question  2 of 4", "rm -rf build", without="git status")
        await pilot.press("n")
        await next_one(pilot, "appr3")
        await pilot.press("a", "t")
        await next_one(pilot, "appr4")
        await shows(pilot, "4 of 4", "make")
        await pilot.press("r", *"no", "enter")
        await until(pilot, lambda: len(written(desk)) == 4)
        assert not isinstance(pilot.app.screen, ApprovalScreen)
    assert [(kind, about["approval"]) for kind, about in written(desk)] == [
        ("approve", "appr1"), ("deny", "appr2"), ("approve", "appr3"), ("deny", "appr4"),
    ]  # fmt: skip


async def test_the_next_question_of_the_same_agent_opens_when_it_is_asked(desk, at_once):
    """A person who answered an agent's question met its next one on the dashboard, where `y` copies."""
    ask(desk, "bash", {"command": "git status"}, 1)
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        await pilot.press("y")
        await until(pilot, lambda: len(written(desk)) == 1)
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))
        ask(desk, "bash", {"command": "make"}, 2)
        desk.feed.wake()
        await next_one(pilot, "appr2")
        await shows(pilot, "2 of 2", "make")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))
        ask(desk, "bash", {"command": "make clean"}, 3)
        desk.feed.wake()
        await until(pilot, lambda: len(pilot.app.snapshot.approvals) == 3)
        assert not isinstance(pilot.app.screen, ApprovalScreen)


async def test_a_key_that_is_pressed_twice_answers_one_question(desk, monkeypatch):
    monkeypatch.setattr("watchkeeper_tui.screens.approval.SETTLE_SECONDS", 3_600.0)
    asked_thrice(desk)
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        await pilot.press("y", "y", "y")
        await until(pilot, lambda: len(written(desk)) == 1)
        await shows(pilot, "2 of 3", "rm -rf build", "read it first")
        await pilot.press("n", "r", "a", "e", "y")
        screen = pilot.app.screen
        assert isinstance(screen, ApprovalScreen)
        assert not screen.prompt.is_asking
        assert not screen.has_class("-editing")
        assert [about["approval"] for _, about in written(desk)] == ["appr1"]
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))


async def test_no_key_answers_the_next_question_before_it_is_read_and_drawn(desk, at_once, monkeypatch):
    asked_thrice(desk)
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        reads: list[Any] = []
        monkeypatch.setattr(ApprovalScreen, "_read", lambda screen, arrived: reads.append(arrived))
        await pilot.press("y", "y", "y")
        await until(pilot, lambda: bool(reads))
        await pilot.press("y", "n")
        assert [about["approval"] for _, about in written(desk)] == ["appr1"]


async def test_escape_leaves_the_questions_after_it_too(desk, at_once):
    asked_thrice(desk)
    async with desk.shown(size=(80, 24)) as pilot:
        await opened(pilot, desk)
        await pilot.press("y")
        await next_one(pilot, "appr2")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ApprovalScreen))
        await pilot.pause()
        assert not isinstance(pilot.app.screen, ApprovalScreen)
        assert len(written(desk)) == 1


async def test_a_question_that_was_answered_elsewhere_is_passed_over_and_named(desk, at_once, monkeypatch):
    asked_thrice(desk)
    async with desk.shown(size=(100, 24)) as pilot:
        screen = await opened(pilot, desk)
        await until(pilot, lambda: len(screen.watch_app.snapshot.approvals) == 3)
        # The dashboard does not know yet.
        desk.session.connection.execute(
            "UPDATE approvals SET status = 'denied', decided_by = 'ada' WHERE id = 'appr2'"
        )
        await pilot.press("y")
        await next_one(pilot, "appr3")
        await shows(pilot, "git push", "denied by ada")
        assert [about["approval"] for _, about in written(desk)] == ["appr1"]


async def test_a_command_that_answers_is_followed_by_the_next_question_too(desk, at_once):
    asked_thrice(desk)
    async with desk.shown("a answers") as pilot:
        await pilot.press("colon", "ctrl+u", *"approve", "enter")
        await next_one(pilot, "appr2")
        assert [about["approval"] for _, about in written(desk)] == ["appr1"]


async def test_a_pattern_of_a_pipeline_is_typed_and_sent(desk: Desk) -> None:
    ask(desk, "bash", {"command": "CI=1 pytest -q 2>&1 | tail -n 5"})
    async with desk.shown(size=(100, 24)) as pilot:
        await opened(pilot, desk)
        await pilot.press("a", "p")
        await shows(pilot, "CI=1 pytest -q | tail -n 5")
        await pilot.press(
            "ctrl+u",
            *"pytest",
            "space",
            "asterisk",
            "space",
            "vertical_line",
            "space",
            *"tail",
            "space",
            "asterisk",
            "enter",
        )
        await until(pilot, lambda: bool(written(desk)))
        about = {"approval": "appr1", "scope": "pattern", "pattern": "pytest * | tail *"}
        assert written(desk) == [("approve", about)]


async def test_what_was_allowed_is_listed_and_revoked_from_the_command_bar(desk: Desk) -> None:
    insert(
        desk.session.connection, "permission_grants", id=7, session_id=desk.session.id, tool="bash", pattern="git status *",
        granted_by="ada (dashboard)", created_at=desk.session.now,
    )  # fmt: skip
    async with desk.shown("explorer-1", size=(80, 24)) as pilot:
        await pilot.press("colon", "ctrl+u", *"grants", "enter")
        await shows(pilot, "bash: git status *", "ada (dashboard)")
        await pilot.press("7", "enter")
        await until(pilot, lambda: bool(written(desk)))
        assert written(desk) == [("revoke", {"grant": 7})]


async def test_a_command_approves_without_the_screen_only_what_the_status_line_shows_whole(desk):
    ask(desk, "bash", {"command": "x" * 90})
    async with desk.shown("a answers") as pilot:
        await pilot.press("colon", "ctrl+u", *"approve", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ApprovalScreen))
        assert written(desk) == []


async def test_a_notice_never_covers_a_command_that_must_be_read(desk: Desk) -> None:
    ask(desk, "bash", {"command": "make\n" * 60})
    async with desk.shown("wants to run", notifications=True) as pilot:
        await opened(pilot, desk)
        pilot.app.notify("a notice about something else", timeout=600)
        await pilot.pause()
        assert "a notice about" not in text_of(pilot)
        await pilot.press("escape")
        await shows(pilot, "a notice about")
