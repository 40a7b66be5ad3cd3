"""The digest that needs no model: what it keeps, what it costs, that it points at the whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.core.memory.support import call, result

from watchkeeper.memory.compactor import SUMMARY_SYSTEM
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.digest import DigestNotes, Written
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.notes import DigestIndex, error_lines, gather, identifiers_in, paths_in
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import Content, Message, Observation, ObservationKind


def message(seq: int, role: str, content: Content) -> Message:
    return Message(seq, role, content, 1, seq, 0.0)  # type: ignore[arg-type]


SESSION = [
    message(1, "user", "Port the parser in src/parse.py to the new grammar."),
    message(
        2,
        "assistant",
        "I decided to keep the old tokenizer because its tests pass.\n- [ ] update docs/grammar.md",
    ),
    message(3, "assistant", call("c1", path="src/parse.py")),
    message(
        4,
        "user",
        result("c1", text="Traceback (most recent call last):\nValueError: bad token at 17", is_error=True),
    ),
    message(5, "assistant", call("c2", path="src/lexer.py")),
    message(6, "user", result("c2", text="412 lines")),
]


def digest(budget: int, **other: object) -> Written:
    notes = DigestNotes.gather("a", (1, 6), (), SESSION, **other)  # type: ignore[arg-type]
    return notes.write(budget, default_counter())


def test_a_digest_keeps_goals_decisions_open_tasks_files_errors_and_last_results() -> None:
    text, citations, _ = digest(400)
    assert "message://a/1-6" in text
    for section, line in {
        "Goals:": "Port the parser in src/parse.py to the new grammar. (#1)",
        "Decisions:": "I decided to keep the old tokenizer because its tests pass. (#2)",
        "Open tasks:": "update docs/grammar.md (#2)",
        "Errors:": "ValueError: bad token at 17",
        "Files:": "src/lexer.py (#5)",
        "Last results:": "read src/lexer.py: 412 lines (#6)",
    }.items():
        assert section in text
        assert line in text
    assert set(citations) <= set(range(1, 7))


@pytest.mark.parametrize("budget", [0, 5, 20, 40, 80, 200, 1_000])
def test_a_digest_stays_within_its_budget_or_is_the_bare_pointer(budget: int) -> None:
    text, citations, _ = digest(budget)
    assert citations
    assert "message://a/1-6" in text
    assert default_counter().count(text) <= budget or text == "Whole text: message://a/1-6"


def test_instructions_say_what_to_keep() -> None:
    text, *_ = digest(120, instructions="keep everything about the tokenizer")
    assert text.splitlines()[1] == "Asked to keep:"
    assert "tokenizer" in text.splitlines()[2]


def test_a_digest_folds_the_earlier_one_line_by_line() -> None:
    text, citations, _ = digest(400)
    earlier = Observation(1, ObservationKind.DIGEST, text, 1, (1, 6), citations, provisional=True)
    notes = DigestNotes.gather(
        "a", (1, 8), [earlier], [message(7, "user", "Also rename it."), message(8, "assistant", "ok")]
    )
    folded, cited, _ = notes.write(500, default_counter())
    assert "message://a/1-8" in folded
    assert "Port the parser in src/parse.py to the new grammar. (#1)" in folded
    assert "Also rename it. (#7)" in folded
    assert folded.count("Digest, made without a model") == 1
    assert {1, 7} <= set(cited)


# --- the user's words ---------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, list[str]]:
    """Lines of a digest by section."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        if line.startswith("- "):
            found[list(found)[-1]].append(line.removeprefix("- "))
        else:
            found[line.removesuffix(":")] = []
    return found


def digest_of(*messages: Message, budget: int = 2_000, earlier: tuple[Observation, ...] = ()) -> Written:
    first = earlier[0].covers[0] if earlier else messages[0].seq
    notes = DigestNotes.gather("a", (first, messages[-1].seq), earlier, messages)
    return notes.write(budget, default_counter())


def found_in(*messages: Message, **about: Any) -> dict[str, list[str]]:
    return sections(digest_of(*messages, **about).text)


def test_each_word_of_the_user_is_kept_while_there_is_room() -> None:
    said = [f"Sentence {number} of mine.  It has\ntwo lines and number {number}!" for number in range(40)]
    text, *_ = digest_of(*(message(1 + at, "user", one) for at, one in enumerate(said)))
    assert all(" ".join(one.split()) in text for one in said)


def test_of_the_users_words_the_first_and_the_newest_are_kept_and_long_ones_shortened_by_pointer() -> None:
    said = [f"Request {number}: " + "word " * 60 for number in range(60)]
    said[30] = "Begin of a long story. " + "It goes on and on. " * 400 + "End of the story."
    goals = found_in(*(message(1 + at, "user", one) for at, one in enumerate(said)))["Goals"]
    assert goals[0].startswith("Request 0:")
    assert goals[-1].startswith("Request 59:")
    assert not any(line.startswith("Request 1:") for line in goals)
    whole = found_in(message(1, "user", "Fix it."), message(2, "user", said[30]))["Goals"]
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
    assert goals["Goals"][0].startswith("Begin here. and go on")
    assert goals["Goals"][0].endswith("until the end. (#1)")


def test_of_a_paste_the_first_line_and_a_pointer_are_kept() -> None:
    log = "\n".join(f"2026-01-02T03:04:{at:02d} |INFO| a=1 b=2 c=3 d={at}" for at in range(50))
    goals = found_in(message(1, "user", f"It failed like this:\n{log}\nCan you find out why?"))["Goals"]
    assert goals[0].startswith("It failed like this:")
    assert goals[0].endswith("[… 50 lines: message://a/1 …] Can you find out why? (#1)")


def test_what_follows_a_fence_that_nothing_closes_is_kept() -> None:
    words = [f"Sentence {number} of what I want to be done here." for number in range(30)]
    text = "\n".join(["Do this:", "```", "x = 1", "```", "and look at", "```", *words])
    (goal,) = found_in(message(1, "user", text))["Goals"]
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
        ("# Goal\nPort it.\n\nThe workspace is /w. Look at it, make a plan, and see it through.", "Port it."),
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
    ],
)
def test_only_what_a_person_or_a_planner_wrote_is_a_goal(text: str, kept: str) -> None:
    found = found_in(message(1, "user", "Begin."), message(9, "user", text))
    assert found["Goals"] == ["Begin. (#1)", *([f"{kept} (#9)"] if kept else [])]


def test_the_prompt_behind_a_command_is_no_goal_and_what_a_refusal_says_is() -> None:
    command = "<command-name>/plan</command-name><command-args>7975</command-args>"
    said = "The user doesn't want to proceed with this tool use. To tell you how, the user said:\nUse git mv instead."
    found = found_in(
        message(1, "user", command),
        message(2, "user", "# /plan\nImplement the plan of an issue."),
        message(3, "assistant", call("c1")),
        message(4, "user", result("c1", text=said, is_error=True)),
    )
    assert found["Goals"] == ["/plan 7975 (#1)", "Use git mv instead. (#4)"]
    assert "Errors" not in found


# --- files, names, errors, current work ---------------------------------------------------------------------


def use(seq: int, tool: str, **given: object) -> Message:
    return message(seq, "assistant", [{"type": "tool_use", "id": f"t{seq}", "name": tool, "input": given}])


def answer(seq: int, text: str = "done", *, is_error: bool = False) -> Message:
    return message(seq, "user", result(f"t{seq - 1}", text=text, is_error=is_error))


def test_a_file_stands_once_with_its_newest_state_edited_apart_from_read() -> None:
    first = [
        use(1, "Read", file_path="/w/a.py", offset=1, limit=80), answer(2, "x" * 900),
        use(3, "Read", file_path="/w/a.py", offset=200, limit=10), answer(4, "x" * 900),
        use(5, "Edit", file_path="/w/b.py", old_string="x = 1", new_string="def parse_all(text): ..."),
        answer(6), use(7, "Read", file_path="/w/b.py"), answer(8, "x" * 900),
        use(9, "Read", file_path="/w/c.py"), answer(10, "x" * 900),
    ]  # fmt: skip
    text, citations, tokens = digest_of(*first)
    found = sections(text)
    assert found["Files"] == [
        "edited /w/b.py: `def parse_all(text): ...` (#5)",
        "read /w/a.py, lines 1-80, 200-209 (#3)",
        "read /w/c.py (#9)",
    ]
    assert "parse_all" in found["Names"][0]
    assert "Last results" not in found
    folded = found_in(
        use(11, "Write", file_path="/w/a.py", content="new_name = 1"),
        answer(12),
        earlier=(Observation(1, ObservationKind.DIGEST, text, tokens, (1, 10), citations),),
    )
    assert folded["Files"] == [
        "edited /w/b.py: `def parse_all(text): ...` (#5)",
        "edited /w/a.py: `new_name = 1` (#11)",
        "read /w/c.py (#9)",
    ]
    assert {"parse_all", "new_name"} <= set(" ".join(folded["Names"]).replace(",", "").split())


def test_errors_come_from_failing_results_and_say_what_fixed_them() -> None:
    found = found_in(
        message(1, "user", "ValueError: this is what I saw"),
        use(2, "Bash", command="pytest tests/a.py 2>&1 | tail -5"),
        answer(3, "Exit code 1\nE   ValueError: bad token", is_error=True),
        use(4, "Edit", file_path="/w/a.py", old_string="x", new_string="y"), answer(5),
        use(6, "Bash", command="pytest tests/a.py"), answer(7, "3 passed"),
        use(8, "Read", file_path="/w/log.txt"), answer(9, "error: this stands in a file\n" * 40),
        use(10, "Bash", command="make"), answer(11, "make: no rule", is_error=True),
    )  # fmt: skip
    assert found["Errors"] == [
        "Bash pytest tests/a.py: E ValueError: bad token → passed in #7 after edits to a.py (#3)",
        "Bash make: make: no rule (#11)",
    ]
    assert "Bash pytest tests/a.py: 3 passed (#7)" in found["Last results"]


def test_a_command_as_a_list_of_words_fails_by_the_exit_code_that_it_prints() -> None:
    found = found_in(
        use(1, "shell", command=["bash", "-lc", "make all"]),
        answer(2, "Exit code: 2\nWall time: 1 second\nOutput:\nmake: *** no rule for all"),
        use(3, "shell", command=["bash", "-lc", "ls"]),
        answer(4, "Exit code: 0\nWall time: 1 second\nOutput:\na.py"),
    )
    assert found["Errors"] == ["shell make all: make: *** no rule for all (#2)"]
    assert any(line.startswith("shell ls: ") for line in found["Last results"])


def test_a_section_says_what_is_done_now_and_what_comes_next() -> None:
    found = found_in(
        use(
            1,
            "update_plan",
            plan=[{"step": "Parse", "status": "in_progress"}, {"step": "Lex", "status": "pending"}],
        ),
        answer(2),
        message(
            3,
            "assistant",
            "The parser drops the last token, because the loop ends early. "
            + "It is long. " * 60
            + "Next I fix the loop.",
        ),
        use(4, "Bash", command="sed -i s/a/b/ x.py"),
        answer(5),
    )
    current = " ".join(found["Current work"])
    assert "now: Parse (#1)" in current
    assert "because the loop ends early" in current
    assert "next: Next I fix the loop. (#3)" in current
    assert "last call: Bash sed -i s/a/b/ x.py (#4)" in current
    assert found["Open tasks"] == ["to do: Parse (#1)", "to do: Lex (#1)"]


# --- the to-do list -----------------------------------------------------------------------------------------


def todo(seq: int, **states: str) -> Message:
    items = [{"content": name, "status": state} for name, state in states.items()]
    return message(
        seq,
        "assistant",
        [{"type": "tool_use", "id": f"t{seq}", "name": "TodoWrite", "input": {"todos": items}}],
    )


def test_of_a_to_do_list_the_newest_state_counts_across_digests_too() -> None:
    first = DigestNotes.gather(
        "a", (1, 1), (), [todo(1, parse="in_progress", lex="pending", read="completed")]
    )
    text, citations, _ = first.write(200, default_counter())
    assert "to do: parse (#1)" in text
    assert "to do: lex (#1)" in text
    assert "read" not in text
    earlier = Observation(1, ObservationKind.DIGEST, text, 1, (1, 1), citations)
    later = DigestNotes.gather("a", (1, 2), [earlier], [todo(2, parse="completed", lex="in_progress")])
    text, *_ = later.write(200, default_counter())
    assert "to do: lex (#2)" in text
    assert "parse" not in text


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


@pytest.mark.parametrize("seed", range(200))
def test_a_finished_item_never_comes_back_as_open(seed: int) -> None:
    chance = random.Random(seed)
    state = ContextState(ContextLimits(20_000, 0), default_counter())
    folded: tuple[Observation, ...] = ()
    fresh: list[Message] = []
    for each, states in list_changes(seed):
        state.append(each.role, each.content, at=0.0)
        fresh.append(each)
        if states is not None and chance.random() < 0.4:
            made = state.digest(at=0.0, up_to=each.seq, keep_newest=False)
            text, citations, tokens = digest_of(*fresh, earlier=folded)
            folded = (Observation(1, ObservationKind.DIGEST, text, tokens, (1, each.seq), citations),)
            fresh = []
            finished = [name for name, done in states.items() if done]
            opened = [name for name, done in states.items() if not done]
            shown = open_items(text)
            assert all(f" {name} (#" not in shown for name in finished)
            assert all(f" {name} (#" in shown for name in opened)
            apart = "\n".join(open_items(one.text) for one in state.view.observations)
            assert made is None or not any(f" {name} (#" in apart for name in finished)


def open_items(text: str) -> str:
    """What a digest shows as open, or as being done."""
    found = sections(text)
    return "\n".join(
        [*found.get("Open tasks", []), *(one for one in found.get("Current work", []) if one[:4] == "now:")]
    )


def test_the_to_do_list_of_a_summary_is_taken_over_and_replaced() -> None:
    text = "Goal:\n- Port it (#1)\nOpen to-dos:\n- write the lexer (#2)\nFacts:\n- port 8080 (#2)"
    summary = Observation(1, ObservationKind.SUMMARY, text, 9, (1, 2), (1, 2))
    kept = found_in(message(3, "assistant", "I go on."), earlier=(summary,))
    assert kept["Open tasks"] == ["to do: write the lexer (#2)"]
    assert kept["Earlier"] == ["Port it (#1)", "port 8080 (#2)"]
    newer = found_in(todo(3, tests="pending"), earlier=(summary,))
    assert newer["Open tasks"] == ["to do: tests (#3)"]


def test_a_digest_in_place_of_a_summary_keeps_its_words_before_the_identifiers_appended_to_it() -> None:
    words = [
        f"Step {number} ported rule {number} of the grammar, since its tests failed." for number in range(12)
    ]
    appended = [f"src/rules/rule_{number}.py → #{number}" for number in range(1, 900)]
    appended += ["b1946ac92492d2347c6235b4d2611184 → #900", "ValueError: bad token, at 17 → #901"]
    text = "\n".join([*words, "", "Also mentioned:", *appended])
    summary = Observation(1, ObservationKind.SUMMARY, text, 9_000, (1, 950), (1, 950))
    notes = DigestNotes.gather("a", (1, 950), (summary,), ())
    written = notes.write(1_000, default_counter()).text
    assert all(line in written for line in words)
    assert "- src/rules/rule_899.py (#899)" in written
    assert "b1946ac92492d2347c6235b4d2611184 (#900)" in written
    assert "ValueError: bad token, at 17 (#901)" in written
    assert "→" not in written


def test_the_summariser_is_asked_for_what_a_digest_keeps() -> None:
    for title in (
        *("Goal", "User's constraints", "Decisions", "Current work", "Next step", "Files and symbols"),
        *("Errors and fixes", "Open to-dos"),
    ):
        assert f"\n{title}: " in SUMMARY_SYSTEM


def test_a_digest_of_few_messages_keeps_what_it_takes_over() -> None:
    state = ContextState(ContextLimits(8_000, 0), default_counter())
    for number in range(90):
        said = f"Request {number}: port module {number} of the parser to the new grammar. {'And its tests. ' * 20}"
        state.append("user", said, at=0.0)
        state.append("assistant", f"Ported {number}. {'word ' * 60}", at=0.0)
        if number % 3 == 2:
            assert state.digest(at=0.0, up_to=state.last_seq) is not None
            shown = "\n".join(one.text for one in state.view.observations)
            assert "Request 0:" in shown
            assert f"Request {max(0, number - 3)}:" in shown


def test_a_list_in_later_messages_that_stay_is_newer_than_that_of_a_digest() -> None:
    state = ContextState(ContextLimits(20_000, 0), default_counter())
    for seq, made in enumerate(
        [todo(1, parse="pending"), answer(2, "x " * 4_000), todo(3, parse="completed")], 1
    ):
        state.append(made.role, made.content, at=float(seq))
    state.append("user", result("t3"), at=4.0)
    assert state.digest(at=5.0, up_to=2) is not None
    assert "parse" not in state.view.observations[0].text


@pytest.mark.parametrize("seed", range(40))
def test_a_digest_is_the_same_whenever_its_notes_were_made(seed: int) -> None:
    chance = random.Random(seed)
    session = [made for made, _ in list_changes(seed)]
    session += [message(len(session) + one.seq, one.role, one.content) for one in SESSION]
    covered = chance.randrange(1, len(session))
    written = set()
    for pace in (len(session), 1, 0):
        notebook = DigestIndex()
        for one in session:
            notebook.add(one)
            notebook.make(pace)
        notes = DigestNotes.gather("a", (1, covered), (), session[:covered], notebook=notebook)
        written.add(notes.write(2_000, default_counter())[0])
    assert len(written) == 1


def test_a_huge_message_costs_a_digest_no_more_than_its_beginning_and_end() -> None:
    huge = message(1, "user", "x" * 5_000_000)
    notes = DigestNotes.gather("a", (1, 1), (), [huge])
    assert sum(len(line.text) for lines in notes.sections.values() for line in lines) < 2_000


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
    assert gather(SESSION)["src/parse.py"] == 3


def test_each_identifier_is_told_once() -> None:
    assert paths_in("a/b/c.py a/b/c.py") == ["a/b/c.py"]
    assert error_lines("error: x\nerror: x\n") == ["error: x"]
