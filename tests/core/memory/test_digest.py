"""The digest that needs no model: what it keeps of the ledger, what it costs, that it points at the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.export.conftest import Made
from tests.core.memory.support import answer, call, message, result, sections, use

from watchkeeper.memory import digest
from watchkeeper.memory.compactor import SUMMARY_SYSTEM
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.digest import Written
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.ledger import (
    AGENTS,
    ASKED,
    COMMANDS,
    EARLIER,
    EDITED,
    SECTIONS,
    TODO,
    WORDS,
    WORK,
    Ledger,
    Notebook,
)
from watchkeeper.memory.notes import error_lines, gather, identifiers_in, paths_in
from watchkeeper.memory.rendering import pointer_of
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import Message, Observation, ObservationKind
from watchkeeper.store import messages
from watchkeeper.store.driver import Queries

SESSION = [
    message(1, "user", "Port the parser in src/parse.py to the new grammar."),
    message(
        2,
        "assistant",
        "I keep the old tokenizer because its tests pass.\n- [ ] update docs/grammar.md",
    ),
    use(3, "Bash", command="pytest tests"),
    answer(4, "Traceback (most recent call last):\nValueError: bad token at 17", is_error=True),
    use(5, "Edit", file_path="src/lexer.py", old_string="a = 1", new_string="def lex(): ..."),
    answer(6),
]


def written(budget: int, asked_to_keep: str | None = None) -> Written:
    return digest.write(
        Ledger.up_to((), SESSION),
        "a",
        (1, 6),
        budget,
        default_counter(),
        digest.wanted(SESSION, asked_to_keep),
    )


def test_a_digest_keeps_words_to_dos_work_failures_and_files() -> None:
    text, citations, tokens = written(400)
    assert "message://a/1-6" in text
    assert tokens == default_counter().count(text)
    found = sections(text)
    assert found[WORDS] == ["Port the parser in src/parse.py to the new grammar. (#1)"]
    assert found[TODO] == ["open: update docs/grammar.md (#2)"]
    assert found[WORK][0].startswith("I keep the old tokenizer because its tests pass.")
    assert found[WORK][-1] == (
        "last calls: pytest tests → failed: Traceback (most recent call last):; Edit src/lexer.py → ok (#6)"
    )
    assert found[COMMANDS][0].startswith("pytest tests → failed: ")
    assert "ValueError: bad token at 17" in found[COMMANDS][0]
    assert found[EDITED] == ["src/lexer.py: `def lex(): ...` (#6)"]
    assert set(citations) <= set(range(1, 7))


@pytest.mark.parametrize("budget", [0, 5, 20, 40, 80, 200, 1_000])
def test_a_digest_stays_within_its_budget_or_is_the_bare_pointer(budget: int) -> None:
    text, citations, _ = written(budget)
    assert citations
    assert "message://a/1-6" in text
    assert default_counter().count(text) <= budget or text == "Full text: message://a/1-6"


TEXTS = st.text(
    st.characters(codec="utf-8") | st.sampled_from("\n -[]x.。`<>/#\"'"), max_size=200
) | st.integers(1, 6_000).map(lambda size: "word " * size)


@given(texts=st.lists(st.tuples(st.sampled_from(["user", "assistant", "result"]), TEXTS), min_size=1, max_size=12),
       budget=st.integers(0, 1_500))  # fmt: skip
def test_a_digest_of_any_texts_stays_within_its_budget_and_cites_what_it_covers(
    texts: list[tuple[str, str]], budget: int
) -> None:
    said: list[Message] = []
    for kind, text in texts:
        seq = len(said) + 1
        if kind == "result":
            said += [use(seq, "Bash", command=text[:50] or "ls"), answer(seq + 1, text)]
        else:
            said.append(message(seq, kind, text))
    text, citations, tokens = digest.write(
        Ledger.up_to((), said), "a", (1, len(said)), budget, default_counter()
    )
    assert tokens <= budget or text == f"Full text: {pointer_of('a', 1, len(said))}"
    assert set(citations) <= set(range(1, len(said) + 1))


def test_a_digest_uses_its_budget_before_it_drops_a_line() -> None:
    messages = [message(1, "user", "Port all modules.")]
    for number in range(2, 400, 3):
        messages.append(message(number, "assistant", f"I port module {number}. Its rules are in place now."))
        messages.append(use(number + 1, "Bash", command=f"pytest tests/module_{number}"))
        messages.append(answer(number + 2, f"{number} passed"))
    for budget in (500, 1_000, 2_000):
        _, _, tokens = digest.write(
            Ledger.up_to((), messages), "a", (1, messages[-1].seq), budget, default_counter()
        )
        assert tokens >= 0.85 * budget


def test_instructions_say_what_to_keep() -> None:
    text, *_ = written(120, "keep everything about the tokenizer")
    assert text.splitlines()[1] == f"{ASKED}:"
    assert "tokenizer" in text.splitlines()[2]


def digest_of(*messages: Message, budget: int = 2_000, earlier: tuple[Observation, ...] = ()) -> Written:
    first = earlier[0].covers[0] if earlier else messages[0].seq
    ledger = Ledger.up_to(earlier, messages)
    ledger.quote(earlier)
    return digest.write(ledger, "a", (first, messages[-1].seq), budget, default_counter())


def kept(messages: list[Message], budget: int = 2_000) -> Observation:
    """A digest of the messages, with its ledger."""
    ledger = Ledger.up_to((), messages)
    covers = (messages[0].seq, messages[-1].seq)
    text, citations, tokens = digest.write(ledger, "a", covers, budget, default_counter())
    return Observation(1, ObservationKind.DIGEST, text, tokens, covers, citations, ledger=ledger.stored())


def found_in(*messages: Message, **about: Any) -> dict[str, list[str]]:
    return sections(digest_of(*messages, **about).text)


def test_a_later_digest_continues_the_ledger_of_the_earlier_one_and_not_its_text() -> None:
    earlier = kept(SESSION, 60)
    assert "tokenizer" not in earlier.text, "the budget was too small for it"
    more = [message(7, "user", "Also rename it."), message(8, "assistant", "Renamed.")]
    text, cited, _ = digest_of(*more, earlier=(earlier,))
    assert text == digest_of(*SESSION, *more).text
    assert "tokenizer" in text
    assert {1, 7} <= set(cited)


def test_a_digest_without_a_ledger_is_quoted() -> None:
    old = Observation(1, ObservationKind.DIGEST, "Digest.\nFiles:\n- src/old.py (#3)", 9, (1, 6), (3,))
    found = found_in(message(7, "user", "Go on with it."), earlier=(old,))
    assert any("src/old.py" in line for line in found[EARLIER])


def test_sections_stand_in_the_order_in_which_a_reader_needs_them() -> None:
    titles = list(sections(written(400).text))
    assert titles == [title for title in SECTIONS if title in titles]
    assert titles[0] == WORDS


# --- the person's words -------------------------------------------------------------------------------------


def test_each_word_of_the_user_is_kept_while_there_is_room() -> None:
    said = [f"Sentence {number} of mine.  It has\ntwo lines and number {number}!" for number in range(40)]
    text, *_ = digest_of(*(message(1 + at, "user", one) for at, one in enumerate(said)))
    assert all(" ".join(one.split()) in text for one in said)


def test_of_the_users_words_the_first_and_the_newest_are_kept_and_long_ones_shortened_by_pointer() -> None:
    said = [f"Request {number}: " + "word " * 60 for number in range(60)]
    said[30] = "Begin of a long story. " + "It goes on and on. " * 400 + "End of the story."
    goals = found_in(*(message(1 + at, "user", one) for at, one in enumerate(said)))[WORDS]
    assert goals[0].startswith("Request 0:")
    assert goals[-1].startswith("Request 59:")
    assert not any(line.startswith("Request 1:") for line in goals)
    whole = found_in(message(1, "user", "Fix it."), message(2, "user", said[30]))[WORDS]
    assert whole[0] == "Fix it. (#1)"
    assert whole[1].startswith("Begin of a long story.")
    assert "message://a/2" in whole[1]
    assert whole[1].endswith("End of the story. (#2)")


@pytest.mark.parametrize("joint", ["\n", " ", ", ", ","])
def test_of_a_long_text_the_beginning_and_the_end_are_read_however_long_its_lines(joint: str) -> None:
    paths = [f"src/module_{number}/file_{number}.py" for number in range(1_000)]
    found = paths_in(joint.join(f'"{path}"' for path in paths))
    assert set(found) <= set(paths), "none is cut in two"
    assert {paths[0], paths[50], paths[-50], paths[-1]} <= set(found)
    assert paths[500] not in found
    goals = found_in(message(1, "user", "Begin here." + " and go on" * 5_000 + " until the end."))
    assert goals[WORDS][0].startswith("Begin here. and go on")
    assert goals[WORDS][0].endswith("until the end. (#1)")


def test_of_a_paste_the_first_line_and_a_pointer_are_kept() -> None:
    log = "\n".join(f"2026-01-02T03:04:{at:02d} |INFO| a=1 b=2 c=3 d={at}" for at in range(50))
    goals = found_in(message(1, "user", f"It failed like this:\n{log}\nCan you find out why?"))[WORDS]
    assert goals[0].startswith("It failed like this:")
    assert goals[0].endswith("[… 50 lines: message://a/1 …] Can you find out why? (#1)")


def test_what_follows_a_fence_that_nothing_closes_is_kept() -> None:
    words = [f"Sentence {number} of what I want to be done here." for number in range(30)]
    text = "\n".join(["Do this:", "```", "x = 1", "```", "and look at", "```", *words])
    (goal,) = found_in(message(1, "user", text))[WORDS]
    assert all(one in goal for one in words)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<system-reminder>Be careful.</system-reminder>", ""),
        ("<system-reminder>Be careful.</system-reminder>\nGo west.", "Go west."),
        ("<environment_context>cwd: /x</environment_context>", ""),
        ("<local-command-stdout>Compacted</local-command-stdout>", ""),
        ("<command-name>/compact</command-name><command-args></command-args>", ""),
        (
            "<command-message>x</command-message><command-name>/fix</command-name><command-args>the bug</command-args>",
            "/fix the bug",
        ),
        ("[Request interrupted by user]", ""),
        ("Your reply was cut at its length limit. Go on where it stopped.", ""),
        ("Caveat: The messages below were generated by the user while running local commands.", ""),
        ("# Goal\nPort it.\n\nThe workspace is /w. Look at it, make a plan, and carry it out.", "Port it."),
        ('A person says: Use tabs.\n\n{"inbox": [{"kind": "steer"}]}', "Use tabs."),
        (
            '# Task: Lexer\n\nPort it.\n\nhandoff: {"task": "x"}\n\nWhen you are done, reply with your result.',
            "# Task: Lexer Port it.",
        ),
        ("Use <b>bold</b> and <T> here.", "Use <b>bold</b> and <T> here."),
        (
            "Write to <check-point[:2]>/<file-name>.\n<system-reminder>Careful.</system-reminder>\nThen run it.",
            "Write to <check-point[:2]>/<file-name>. Then run it.",
        ),
        ("<bash-stdout>" + "ok\n" * 9_000, ""),
        ("Tool loaded.", ""),
        (
            "<task-notification>\n<task-id>b1</task-id>\n</task-notification>\nRead the output file: /tmp/b1.output",
            "",
        ),
        ("[SYSTEM NOTIFICATION - NOT USER INPUT]\nA background agent ended.\nIts output is long.", ""),
        ("Base directory for this skill: /h/.claude/skills/x\n\n# Release\nDo this.", ""),
        ("Stop hook feedback:\n[check.sh]: the tests fail", ""),
        ('Task lexer is done.\nA person says: Use tabs.\n\n{"inbox": [{"kind": "task_done"}]}', "Use tabs."),
    ],
)
def test_only_what_a_person_or_a_planner_wrote_is_a_goal(text: str, kept: str) -> None:
    found = found_in(message(1, "user", "Begin."), message(9, "user", text))
    assert found[WORDS] == ["Begin. (#1)", *([f"{kept} (#9)"] if kept else [])]


def test_the_prompt_behind_a_command_is_no_goal_and_what_a_refusal_says_is() -> None:
    command = "<command-name>/plan</command-name><command-args>7975</command-args>"
    said = "The user doesn't want to proceed with this tool use. To tell you how, the user said:\nUse git mv instead."
    found = found_in(
        message(1, "user", command),
        message(2, "user", "# /plan\nImplement the plan of an issue."),
        message(3, "assistant", call("c1")),
        message(4, "user", result("c1", text=said, is_error=True)),
    )
    assert found[WORDS] == ["/plan 7975 (#1)", "on read src/a.py: Use git mv instead. (#4)"]
    assert COMMANDS not in found


# --- the to-do list -----------------------------------------------------------------------------------------


def todo(seq: int, **states: str) -> Message:
    items = [{"content": name, "status": state} for name, state in states.items()]
    return message(
        seq,
        "assistant",
        [{"type": "tool_use", "id": f"t{seq}", "name": "TodoWrite", "input": {"todos": items}}],
    )


TODO_TOOLS = ("TodoWrite", "update_plan", "TaskCreate", "create_plan", "boxes")


def list_changes(seed: int) -> Iterator[tuple[Message, dict[str, bool] | None]]:
    """Messages that change a to-do list of one kind, with what is open after each (None: a call came, and its
    result comes next)."""
    chance = random.Random(seed)
    kind = chance.choice(TODO_TOOLS)
    states: dict[str, bool] = {}
    ids: dict[str, str] = {}
    seq = 0
    for turn in range(chance.randint(4, 14)):
        name = f"item {turn} of {seed}"
        if not states or chance.random() < 0.6:
            states[name] = False
            ids[name] = str(len(ids) + 1)
        else:
            states[name := chance.choice(list(states))] = True
        seq += 1
        rows = [
            {"content": one, "step": one, "status": "completed" if done else "pending"}
            for one, done in states.items()
        ]
        if kind == "TodoWrite":
            yield use(seq, kind, todos=rows), states
        elif kind == "update_plan":
            yield use(seq, kind, plan=rows), states
        elif kind == "boxes":
            text = "\n".join(f"- [{'x' if done else ' '}] {one}" for one, done in states.items())
            yield message(seq, "assistant", f"The list:\n{text}"), states
        elif kind == "TaskCreate" and states[name]:
            yield use(seq, "TaskUpdate", taskId=ids[name], status="completed"), states
        elif kind == "TaskCreate":
            yield use(seq, "TaskCreate", subject=name), None
            seq += 1
            yield answer(seq, f"Task #{ids[name]} created successfully"), states
        elif states[name]:
            yield message(seq, "user", f'Task {ids[name]} is done.\n\n{{"inbox": []}}'), states
        else:
            yield use(seq, "add_task", name=ids[name], title=name), states


def test_of_a_to_do_list_the_newest_state_counts_across_digests_too() -> None:
    earlier = kept([todo(1, parse="in_progress", lex="pending", read="completed")])
    assert sections(earlier.text)[TODO] == [
        "in progress: parse (#1)",
        "open: lex (#1)",
        "done (1): read (#1)",
    ]
    found = found_in(todo(2, parse="completed", lex="in_progress"), earlier=(earlier,))
    assert found[TODO] == ["in progress: lex (#2)", "done (1): parse (#2)"]


@pytest.mark.parametrize("seed", range(200))
def test_a_finished_item_never_comes_back_as_open(seed: int) -> None:
    chance = random.Random(seed)
    state = ContextState(ContextLimits(20_000, 0), default_counter())
    folded: tuple[Observation, ...] = ()
    fresh: list[Message] = []
    known: dict[int, dict[str, bool]] = {}
    for each, states in list_changes(seed):
        state.append(each.role, each.content, at=0.0)
        fresh.append(each)
        known[each.seq] = dict(states or {})
        if states is not None and chance.random() < 0.4:
            made = state.digest(at=0.0, up_to=each.seq, keep_newest=False)
            ledger = Ledger.up_to(folded, fresh)
            text, citations, tokens = digest.write(ledger, "a", (1, each.seq), 2_000, default_counter())
            folded = (
                Observation(
                    1, ObservationKind.DIGEST, text, tokens, (1, each.seq), citations, ledger=ledger.stored()
                ),
            )
            fresh = []
            finished = [name for name, done in states.items() if done]
            opened = [name for name, done in states.items() if not done]
            shown = open_items(text)
            assert all(f" {name} (#" not in shown for name in finished)
            assert all(f" {name} (#" in shown for name in opened)
            if made is not None:  # it ends before a call that waits for its result
                newest = state.view.observations[-1]
                over = [name for name, done in known.get(newest.covers[1], {}).items() if done]
                shown = "\n".join(open_items(one.text) for one in state.view.observations)
                assert not any(f" {name} (#" in shown for name in over)


def open_items(text: str) -> str:
    """What a digest shows as open, or as being done."""
    items = sections(text).get(TODO, [])
    return "\n".join(one for one in items if one.startswith(("open:", "in progress:")))


def test_a_summary_is_quoted_where_a_digest_takes_its_place() -> None:
    text = "Goal:\n- Port it (#1)\nOpen to-dos:\n- write the lexer (#2)\nFacts:\n- port 8080 (#2)"
    summary = Observation(1, ObservationKind.SUMMARY, text, 9, (1, 2), (1, 2), ledger=Ledger().stored())
    found = found_in(message(3, "assistant", "I go on."), earlier=(summary,))
    assert [line.partition(" (#")[0] for line in found[EARLIER]] == [
        "Port it",
        "write the lexer",
        "port 8080",
    ]


def test_the_summariser_is_asked_for_what_a_digest_keeps() -> None:
    for title in (
        *("Goal", "User's constraints", "Decisions", "Current work", "Next step", "Files and symbols"),
        *("Errors and fixes", "Open to-dos"),
    ):
        assert f"\n{title}: " in SUMMARY_SYSTEM


def test_an_assignment_that_stays_at_the_front_is_not_repeated_in_a_digest() -> None:
    for pin_first in (True, False):
        state = ContextState(ContextLimits(4_000, 0), default_counter(), pin_first=pin_first)
        state.append("user", "Port the parser to the new grammar.", at=0.0)
        for number in range(20):
            state.append("assistant", f"Ported {number}. {'word ' * 60}", at=0.0)
            state.append("user", f"Now module {number}, please. {'And its tests. ' * 5}", at=0.0)
        assert state.digest(at=0.0) is not None
        assert ("Port the parser" in state.view.observations[0].text) is not pin_first
        assert "Port the parser" in str(state.render()[0])


def test_a_digest_of_few_messages_keeps_what_it_takes_over() -> None:
    state = ContextState(ContextLimits(8_000, 0), default_counter())
    for number in range(90):
        said = f"Request {number}: port module {number} of the parser to the new grammar. {'And its tests. ' * 20}"
        state.append("user", said, at=0.0)
        state.append("assistant", f"Ported {number}. {'word ' * 60}", at=0.0)
        if number % 3 == 2:
            assert state.digest(at=0.0, up_to=state.last_seq) is not None
            assert "Request 0:" in str(state.render()), "it stays at the front"
            shown = "\n".join(one.text for one in state.view.observations)
            assert f"Request {max(1, number - 3)}:" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see src/watchkeeper/memory/state.py, please", "src/watchkeeper/memory/state.py"),
        ("edited README.md.", "README.md"),
        ("at /home/me/.config/app.toml", "/home/me/.config/app.toml"),
        ("commit 00e1145a", "00e1145a"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
        ("issue #4679 and PROJ-123", "#4679"),
        ("issue #4679 and PROJ-123", "PROJ-123"),
        ("open https://example.org/a?b=1", "https://example.org/a?b=1"),
        ("We decided on a limit of 8192 tokens", "8192"),
        ("E   ValueError: bad token at 17", "E ValueError: bad token at 17"),
    ],
)
def test_identifiers_are_found(text: str, expected: str) -> None:
    assert expected in identifiers_in(text)


@pytest.mark.parametrize(
    "text", ["self.state and result.error", "and/or", "  12→ except ValueError:", "</tag> e.g. this"]
)
def test_code_and_prose_are_no_identifiers(text: str) -> None:
    assert identifiers_in(text) == []


def test_an_identifier_points_at_the_last_message_that_names_it() -> None:
    assert gather(SESSION)["src/lexer.py"] == 5


def test_each_identifier_is_told_once() -> None:
    assert paths_in("a/b/c.py a/b/c.py") == ["a/b/c.py"]
    assert error_lines("error: x\nerror: x\n") == ["error: x"]


# --- whenever notes are made, and after a restart -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_digest_is_the_same_whenever_its_notes_were_made(seed: int) -> None:
    chance = random.Random(seed)
    session = [made for made, _ in list_changes(seed)]
    shift = len(session)
    session += [
        use(shift + 1, "Bash", command="pytest tests"), answer(shift + 2, "1 failed", is_error=True),
        message(shift + 3, "user", "Go west."), message(shift + 4, "assistant", "I go. It is far."),
    ]  # fmt: skip
    covered = chance.randrange(1, len(session))
    texts = set()
    for pace in (len(session), 1, 0):
        notebook = Notebook()
        for one in session:
            notebook.add(one)
            notebook.make(pace)
        ledger = Ledger.up_to((), session[:covered], notebook)
        texts.add(digest.write(ledger, "a", (1, covered), 2_000, default_counter()).text)
    assert len(texts) == 1


def stored_and_loaded(folder: Path, state: ContextState) -> ContextState:
    """The state as a program finds it that opens the database, of an agent that a fork copied."""
    made = Made(folder / "sessions.db")
    agent_id, copied = made.agent("lexer"), made.agent("fork")
    messages.add_messages(made.tx, agent_id, state.messages)
    for view in state.views:
        known = messages.observation_texts(made.tx, agent_id)
        messages.add_observations(made.tx, agent_id, [o for o in view.observations if o.text not in known])
        messages.add_view(made.tx, agent_id, view, tokens=1)
    messages.copy_memory(made.tx, agent_id, copied)
    with closing(made.done()) as connection:
        reads = Queries(connection)
        return ContextState.restore(
            state.limits, default_counter(), agent_id=state.agent_id, messages=messages.load_messages(reads, copied),
            views=messages.load_views(reads, copied), current=state.view.version,
        )  # fmt: skip


def play(state: ContextState, first: int, last: int) -> None:
    for number in range(first, last):
        seq = state.last_seq + 1
        state.append(
            "user", f"Request {number}: port module {number}. {'And its tests. ' * 20}", at=float(seq)
        )
        made = use(seq + 1, "Edit", file_path=f"/w/{number % 7}.py", new_string=f"def f{number}(): ...")
        state.append(made.role, made.content, at=float(seq))
        made = answer(seq + 2)
        state.append(made.role, made.content, at=float(seq))
        state.append("assistant", f"Ported {number}. {'It was hard. ' * 30}Now {number + 1}.", at=float(seq))


def test_a_result_that_comes_after_a_restart_is_one_of_the_call_before_it() -> None:
    counter = default_counter()
    state = ContextState(ContextLimits(4_000, 0, summarization_threshold=0.001), counter)
    state.append("user", "Test the parser.", at=1.0)
    state.append("assistant", use(2, "Bash", command="pytest -q tests").content, at=2.0)
    again = ContextState.restore(
        state.limits, counter, agent_id="agent", messages=state.messages, views=state.views,
        current=state.view.version,
    )  # fmt: skip
    for each in (state, again):
        each.append("user", answer(3, "[not run] The agent ended.", is_error=True).content, at=3.0)
    ledgers = [Ledger.up_to((), each.messages, each.notebook) for each in (state, again)]
    assert ledgers[0].entries(WORK) == ledgers[1].entries(WORK)
    assert "pytest" in str(ledgers[1].entries(WORK))


def test_a_ledger_survives_its_storing_and_a_digest_after_a_restart_equals_the_one_without(
    tmp_path: Path,
) -> None:
    state = ContextState(ContextLimits(8_000, 0), default_counter(), agent_id="a")
    play(state, 0, 20)
    assert state.digest(at=0.0, up_to=state.last_seq - 4) is not None
    restored = stored_and_loaded(tmp_path, state)
    assert [one.ledger for one in restored.view.observations] == [
        one.ledger for one in state.view.observations
    ]
    assert all(one.ledger for one in restored.view.observations)
    for each in (state, restored):
        play(each, 20, 40)
        assert each.digest(at=9.0, up_to=each.last_seq - 4) is not None
    assert restored.view.observations == state.view.observations
    assert "Request 0:" in str(restored.render()), "it stays at the front"


def test_after_an_undo_the_next_digest_is_the_one_that_was_undone() -> None:
    state = ContextState(ContextLimits(8_000, 0), default_counter(), agent_id="a")
    play(state, 0, 10)
    assert state.digest(at=0.0, up_to=state.last_seq - 4) is not None
    play(state, 10, 20)
    assert state.digest(at=0.0, up_to=state.last_seq - 4) is not None
    before = [(one.text, one.ledger) for one in state.view.observations]
    state.undo(at=1.0)
    assert state.digest(at=2.0, up_to=state.last_seq - 4) is not None
    assert [(one.text, one.ledger) for one in state.view.observations] == before


def test_results_of_sub_agents_are_shortened_only_where_the_whole_has_no_room() -> None:
    done = [message(1, "user", "Port it.")]
    for number in range(2, 10, 2):
        done += [
            use(number, "Task", description=f"Look {number}", prompt="Look", subagent_type="Explore"),
            answer(number + 1, f"Result {number}. {'It is so. ' * 60}End {number}."),
        ]
    whole = found_in(*done, budget=2_000)[AGENTS]
    assert all(
        f"{'It is so. ' * 60}End {number}." in line
        for number, line in zip(range(2, 10, 2), whole, strict=True)
    )
    short = found_in(*done, budget=900)[AGENTS]
    assert len(short) == 4
    assert all("message://a/" in line for line in short)
