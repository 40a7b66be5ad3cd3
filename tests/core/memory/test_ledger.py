"""The ledger of an agent's work: what each form of message puts into it, and what it leaves out.

Texts of other programs are in the form in which public logs of Claude Code, Codex and OpenCode hold them.
"""

from __future__ import annotations

import json

import pytest
from tests.core.memory.support import answer, message, sections, use

from watchkeeper.memory import digest
from watchkeeper.memory.ledger import (
    AGENTS,
    COMMANDS,
    DONE,
    EDITED,
    FAILED,
    MODE,
    OPEN,
    READ,
    RUNNING,
    SAID,
    SAVED,
    TODO,
    WORDS,
    WORK,
    Ledger,
    Notebook,
    command_key,
)
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import Message, Observation, ObservationKind

REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the"
    " new_string was NOT written to the file). To tell you how to proceed, the user said:\n"
)
STOPPED = (
    REJECTED.partition(" To tell")[0]
    + " STOP what you are doing and wait for the user to tell you how to proceed."
)


def ledger_of(*messages: Message) -> Ledger:
    return Ledger.up_to((), messages)


def texts(section: str, *messages: Message) -> list[str]:
    return [each.text for each in ledger_of(*messages).entries(section).values()]


def shown(*messages: Message, budget: int = 4_000) -> dict[str, list[str]]:
    """The digest of the messages, by section."""
    written = digest.write(
        ledger_of(*messages), "a", (messages[0].seq, messages[-1].seq), budget, default_counter()
    )
    return sections(written.text)


# --- One entry of each kind ---------------------------------------------------------------------------------


def test_a_file_has_its_last_edit_the_changes_and_whether_it_was_read_since() -> None:
    done = [
        use(1, "Edit", file_path="/w/b.py", old_string="x = 1", new_string="x = 1\ndef parse_all(text): ..."),
        answer(2), use(3, "Edit", file_path="/w/b.py", old_string="y", new_string="def lex(text): ..."), answer(4),
        use(5, "Write", file_path="/w/a.py", content="parse(text)\n"), answer(6),
        use(7, "Read", file_path="/w/b.py"), answer(8, "x" * 900),
    ]  # fmt: skip
    files = ledger_of(*done).entries(EDITED)
    assert list(files) == ["/w/b.py", "/w/a.py"]
    assert (files["/w/b.py"].seq, files["/w/b.py"].edits, files["/w/b.py"].read) == (4, 2, 8)
    assert files["/w/b.py"].details == ("def parse_all(text): ...", "def lex(text): ...")
    assert files["/w/a.py"].read == 0
    assert shown(*done)[EDITED] == [
        "/w/b.py (2 edits): `def parse_all(text): ...`, `def lex(text): ...`; read again in #8 (#4)",
        "/w/a.py: `parse(text)` (#6)",
    ]


def test_an_edit_that_failed_or_that_a_person_refused_changes_no_file() -> None:
    for failure in ("String to replace not found in file.", STOPPED, f"{REJECTED}Use git mv."):
        done = [
            use(1, "Edit", file_path="/w/b.py", old_string="x", new_string="y"),
            answer(2, failure, is_error=True),
        ]
        assert not ledger_of(*done).entries(EDITED)


def test_a_patch_of_codex_edits_each_of_its_files() -> None:
    patch = (
        "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** Add File: src/b.py\n+z\n*** End Patch"
    )
    for given in ({"input": patch}, {"command": ["apply_patch", patch]}):
        done = [
            use(1, "apply_patch", **given),
            answer(2, "Exit code: 0\nSuccess. Updated the following files:\nM src/a.py"),
        ]
        assert list(ledger_of(*done).entries(EDITED)) == ["src/a.py", "src/b.py"]


def test_a_file_that_was_only_read_has_its_path_once_and_an_edit_takes_it_from_there() -> None:
    done = [
        use(1, "Read", file_path="/w/a.py", offset=1, limit=80), answer(2, "x" * 900),
        use(3, "Read", file_path="/w/c.py"), answer(4, "x" * 900),
        use(5, "Read", file_path="/w/a.py"), answer(6, "x" * 900),
    ]  # fmt: skip
    assert texts(READ, *done) == ["/w/c.py", "/w/a.py"]
    edited = [*done, use(7, "Write", file_path="/w/c.py", content="def f(): ..."), answer(8)]
    assert texts(READ, *edited) == ["/w/a.py"]
    assert str(shown(*edited)).count("/w/c.py") == 2, "the file, and the last call"


def test_artifacts_are_a_list_that_grows() -> None:
    saved = [
        part
        for number in range(1, 40, 2)
        for part in (
            use(number, "save_artifact", name=f"n{number}.json", content="{}"),
            answer(number + 1, "Saved."),
        )
    ]
    assert texts(SAVED, *saved) == [f"artifact n{number}.json" for number in range(1, 40, 2)]


def test_an_artifact_that_is_saved_again_is_one_line_and_replaces_a_save_that_failed() -> None:
    failed = [use(1, "save_artifact", name="a.json", content="{"), answer(2, "not JSON", is_error=True)]
    assert texts(COMMANDS, *failed) == ["save_artifact a.json"]
    saved = [
        part
        for number in (3, 5, 7)
        for part in (
            use(number, "save_artifact", name="a.json", content="{}" * number),
            answer(number + 1, f'{{"name": "a.json", "bytes": {number}}}'),
        )
    ]
    assert texts(COMMANDS, *failed, *saved) == []
    assert texts(SAVED, *failed, *saved) == ["artifact a.json"]


def test_the_newest_text_of_the_agent_is_complete_and_earlier_ones_have_their_ends() -> None:
    first = "I look at the parser. It is large. Its loop ends early. I fix the loop."
    newest = (
        "The loop is fixed.\n\n1. The lexer is next.\n2. Then the docs.\n\n"
        + "It took long. " * 100
        + "Now the lexer."
    )
    done = [message(1, "assistant", first), message(2, "user", "Go on."), message(3, "assistant", newest)]
    found = shown(*done)
    assert newest in found[WORK][0]
    assert found[SAID] == ["I look at the parser. … I fix the loop. (#1)"]


def test_the_work_in_progress_names_the_last_calls_with_their_outcomes() -> None:
    told = (use(2, "Bash", command="sed -i s/a/b/ x.py"), answer(3))
    failed = (use(4, "Bash", command="make"), answer(5, "Exit code 2\nmake: nothing", is_error=True))
    assert shown(message(1, "assistant", "I look."), *told, *failed)[WORK] == [
        "I look. (#1)",
        "last calls: sed -i s/a/b/ x.py → ok: done; make → failed: make: nothing (#5)",
    ]


@pytest.mark.parametrize(
    ("output", "shown_as"),
    [
        ("a.go:160:36: cannot use x", "go build ./... → failed: a.go:160:36: cannot use x"),
        ("src/a.ts(3,5): error TS2304: no x", "go build ./... → failed: src/a.ts(3,5): error TS2304: no x"),
        ("it works", "go build ./... → ran: it works"),
        ("", "go build ./... → ok"),
    ],
)
def test_a_pipe_that_hides_the_exit_code_makes_no_success(output: str, shown_as: str) -> None:
    """A public log of Claude Code has compile errors behind `| head -50` in results that nothing marks as errors."""
    found = shown(use(1, "Bash", command="go build ./... 2>&1 | head -50"), answer(2, output))
    assert found[COMMANDS] == [f"{shown_as} (#2)"]


@pytest.mark.parametrize(
    ("output", "state"),
    [
        (
            "[interrupted, outcome unknown] The program stopped while this call was running.",
            "outcome unknown",
        ),
        ("[not run] Your shell was restarted.", "not run"),
    ],
)
def test_a_call_that_was_cut_or_not_made_is_neither_a_success_nor_a_failure(output: str, state: str) -> None:
    found = shown(use(1, "bash", command="./deploy"), answer(2, output, is_error=True))
    assert found[COMMANDS] == [f"./deploy → {state} (#2)"]
    assert found[WORK] == [f"last calls: ./deploy → {state} (#2)"]


def test_a_failed_check_is_settled_by_a_later_one_of_everything() -> None:
    narrow = (use(1, "Bash", command="go test ./a/x.go"), answer(2, "--- FAIL: TestX"))
    other = (use(3, "Bash", command="npm run lint"), answer(4, "Exit code 1", is_error=True))
    whole = (use(5, "Bash", command="mise run test"), answer(6, "ok"))
    found = shown(*narrow, *other, *whole)[COMMANDS]
    assert found[0].startswith("go test ./a/x.go → failed, then passed")
    assert found[1].startswith("npm run lint → failed:")


def test_a_short_answer_stands_with_the_question_before_it() -> None:
    asked = message(1, "assistant", "Two ways.\n1. Fast\n2. Safe\nWhich one do you prefer?")
    assert texts(WORDS, asked, message(2, "user", "2")) == ["asked “Which one do you prefer?” → answered: 2"]
    assert texts(WORDS, asked, message(2, "user", "Take the safe one, and add a test for each failure.")) == [
        "Take the safe one, and add a test for each failure."
    ]


def test_a_message_that_is_sent_again_stands_once() -> None:
    words = "Please port the lexer to the new interface, and keep the old one."
    again = [message(number, "user", words) for number in (2, 3)]
    assert texts(WORDS, message(1, "user", "Begin."), *again) == ["Begin.", words]


# --- Commands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("pytest tests/a.py", "cd /w && uv run pytest -q --maxfail=1 tests/a.py 2>&1 | tail -5"),
        ("cargo test", "RUST_BACKTRACE=1 cargo test --quiet 2>&1 | grep -E 'test|error' | head -40"),
        ("npm run build", "timeout 600 npm run build --silent"),
        ("go test ./...", "cd pkg; go test -count=1 -v ./... > out.txt"),
        ("ruff check .", "python -m ruff check ."),
    ],
)
def test_a_command_is_its_program_and_its_target_whatever_its_flags(command: str, other: str) -> None:
    assert command_key(command) == command_key(other)


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("pytest tests/a.py", "pytest tests/b.py"),
        ("npm run build", "npm run test"),
        ("git status", "git diff"),
        ("cat a.py | wc -l", "cat b.py | wc -l"),
    ],
)
def test_another_program_or_target_is_another_command(command: str, other: str) -> None:
    assert command_key(command) != command_key(other)


def test_a_pass_takes_the_place_of_the_failure_and_says_what_was_edited_between() -> None:
    failed = [
        use(1, "Bash", command="pytest tests/a.py 2>&1 | tail -5"),
        answer(
            2, "E   ValueError: bad token\n=== 1 failed, 2 passed in 0.1s ===\nExit code 1", is_error=True
        ),
    ]
    entry = ledger_of(*failed).entries(COMMANDS)["pytest tests/a.py"]
    assert entry.state == FAILED
    assert any("ValueError: bad token" in one for one in entry.details)
    assert any("1 failed, 2 passed" in one for one in entry.details)
    passed = [
        *failed,
        use(3, "Edit", file_path="/w/a.py", old_string="x", new_string="yes"), answer(4),
        use(5, "Bash", command="cd /w && pytest -q tests/a.py"), answer(6, "3 passed"),
    ]  # fmt: skip
    assert shown(*passed)[COMMANDS] == [
        "pytest -q tests/a.py → ok: 3 passed; failed in #2, then edits to /w/a.py (#6)"
    ]


def test_a_command_as_a_list_of_words_fails_by_the_exit_code_that_it_prints() -> None:
    found = shown(
        use(1, "shell", command=["bash", "-lc", "make all"]),
        answer(2, "Exit code: 2\nWall time: 1 second\nOutput:\nmake: *** no rule for all"),
        use(3, "shell", command=["bash", "-lc", "ls"]),
        answer(4, "Exit code: 0\nWall time: 1 second\nOutput:\na.py"),
    )[COMMANDS]
    assert found[0] == "make all → failed: make: *** no rule for all (#2)"
    assert found[1].startswith("ls → ok")


def test_of_a_result_of_several_lines_the_lines_that_answer_are_kept() -> None:
    noise = "\n".join(f"tests/test_{number}.py {'.' * 40}" for number in range(60))
    for verdict in (
        "=== 412 passed, 3 skipped in 8.2s ===",
        "Found 3 errors.",
        "[main 1a2b3c4] Port the lexer",
    ):
        (line,) = shown(use(1, "Bash", command="check all"), answer(2, f"{noise}\n{verdict}\n"))[COMMANDS]
        assert line == f"check all → ok: {verdict} (#2)"


def test_what_grep_and_a_compiler_print_names_no_files() -> None:
    grep = "src/a.py-10-import os\nsrc/a.py:11:def parse():\nsrc/a.py-12-    pass\n--\nlib/b.py:3:parse()"
    gcc = "src/c.c:10:5: warning: unused variable 'x'\nbuild/c.o: In function `main':\n" + "x" * 300
    ledger = ledger_of(
        use(1, "Bash", command="grep -rn -C1 parse ."), answer(2, f"{grep}\n" * 9),
        use(3, "Bash", command="make"), answer(4, gcc),
        use(5, "Grep", pattern="parse", path="src"), answer(6, f"{grep}\n" * 9),
    )  # fmt: skip
    assert not ledger.entries(EDITED)
    assert not ledger.entries(READ)
    assert "build/c.o" not in ledger.stored()
    assert "lib/b.py" not in ledger.stored()


def test_of_recall_and_read_back_only_pointers_are_kept() -> None:
    hit = "message://a/12 — The user said: never touch the generated tables.\nmessage://b/3-4 — tables are made by gen.py"
    for tool in ("recall", "mcp__watchkeeper__recall", "read_back"):
        (line,) = shown(use(1, tool, query="tables"), answer(2, hit))[COMMANDS]
        assert line.endswith("→ ok: message://a/12, message://b/3-4 (#2)")
        assert "never touch" not in line
    (line,) = shown(use(1, "recall", query="nothing"), answer(2, "No message holds that."))[COMMANDS]
    assert line.endswith("→ ok: nothing found (#2)")


# --- The person's answers -----------------------------------------------------------------------------------

QUESTIONS = [
    {
        "question": "Which database?",
        "header": "Database",
        "options": [{"label": "SQLite"}, {"label": "Postgres"}],
    },
    {
        "question": "Which files may change?",
        "header": "Files",
        "multiSelect": True,
        "options": [{"label": "src"}],
    },
]


def asked(result: str, *, is_error: bool = False, questions: object = QUESTIONS) -> list[str]:
    return texts(
        WORDS, use(1, "AskUserQuestion", questions=questions), answer(2, result, is_error=is_error)
    )  # fmt: skip


BOTH = ["asked “Which database?” → answered: SQLite; asked “Which files may change?” → answered: src, tests"]


@pytest.mark.parametrize(
    "result",
    [
        'User has answered your questions: "Which database?"="SQLite", "Which files may change?"="src, tests". You can now'
        " continue with the user's answers in mind.",
        'Your questions have been answered: "Which database?"="SQLite", "Which files may change?"="src, tests". You can now'
        " continue with these answers in mind.",
        'Your questions have been answered: "Which files may change?"="src, tests", "Which database?"="SQLite"',
        'The user answered: "Which database?"="SQLite", "Which files may change?"="src, tests". Read the answers carefully'
        " — they may request clarification, changes, or that you not proceed.",
    ],
)
def test_answers_are_kept_with_their_questions(result: str) -> None:
    assert asked(result) == BOTH


def test_notes_and_free_text_belong_to_the_answer() -> None:
    (words,) = asked(
        'User has answered your questions: "Which database?"="SQLite" user notes: but keep the "WAL" mode; no server,'
        ' "Which files may change?"="Only what the plan names, nothing else". You can now continue with the user\'s answers'
        " in mind."
    )
    assert '“Which database?” → answered: SQLite; user notes: but keep the "WAL" mode; no server' in words
    assert "“Which files may change?” → answered: Only what the plan names, nothing else" in words
    (words,) = asked(
        'The user answered: "Which database?"=(no option selected) notes: Choose what works. Read the answers carefully —'
        " they may request clarification, changes, or that you not proceed."
    )
    assert words == "asked “Which database?” → answered: (no option selected) notes: Choose what works"


def test_a_long_free_answer_keeps_its_end_or_says_where_it_is() -> None:
    notes = "First the lexer. " * 100 + "At last the docs."
    (words,) = asked(f'User has answered your questions: "Which database?"="Other" user notes: {notes}')
    assert words.endswith("At last the docs.")
    notes = "First the lexer. " * 2_000 + "At last the docs."
    found = shown(
        use(1, "AskUserQuestion", questions=QUESTIONS),
        answer(2, f'User has answered your questions: "Which database?"="Other" user notes: {notes}'),
    )
    assert "message://a/2" in found[WORDS][0]
    assert "At last the docs." in found[WORDS][0]


def test_answers_that_come_with_a_wish_to_clarify_are_kept_without_the_program_s_own_text() -> None:
    clarify = (
        f"{REJECTED}The user wants to clarify these questions.\n    This means they may have additional information, context"
        " or questions for you.\n    Take their response into account and then reformulate the questions if appropriate.\n"
        "    Start by asking them what they would like to clarify.\n\n    Questions asked:\n"
        '- "Which database?"\n  Answer: SQLite\n  User notes: no server\n- "Which files may change?"\n  (No answer provided)'
        "\n\nNote: The user's next message may contain a correction or preference. Pay close attention."
    )
    (words,) = asked(clarify, is_error=True)
    assert "Which database?" in words
    assert "SQLite" in words
    assert "no server" in words
    assert "The user wants to clarify these questions." in words
    assert "Pay close attention" not in words
    assert "reformulate" not in words


@pytest.mark.parametrize(
    ("questions", "result"),
    [
        (
            [{"id": "db", "question": "Which database?"}, {"id": "f", "question": "Which files may change?"}],
            {"f": {"answers": ["src", "tests"]}, "db": {"answers": ["SQLite"]}},
        ),
        (QUESTIONS, {"Which files may change?": "src, tests", "Which database?": "SQLite"}),
    ],
)
def test_answers_as_json_are_kept_with_their_questions(questions: object, result: object) -> None:
    said = json.dumps({"answers": result})
    assert texts(WORDS, use(1, "request_user_input", questions=questions), answer(2, said)) == BOTH


def test_an_answer_to_a_question_without_a_number_is_kept() -> None:
    said = json.dumps({"answers": {"focus": {"answers": ["Small fixes"]}}})
    found = texts(
        WORDS, use(1, "request_user_input", questions=[{"question": "Which option?"}]), answer(2, said)
    )
    assert found == ["asked “Which option?” → answered: Small fixes"]


def test_an_answer_in_a_form_that_is_not_known_is_kept_as_it_is() -> None:
    assert asked("They chose SQLite.") == [
        "asked “Which database? / Which files may change?” → answered: They chose SQLite."
    ]


def test_a_question_that_was_dismissed_has_no_answer() -> None:
    assert asked(STOPPED, is_error=True) == []


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (f"{REJECTED}Use git mv instead.\nAnd keep the tests.", "Use git mv instead. And keep the tests."),
        (
            f"{REJECTED}Use git mv.\n\nNote: The user's next message may contain a correction or preference. Pay close"
            " attention — if they explain what went wrong, consider saving that to memory for future sessions.",
            "Use git mv.",
        ),
        (
            "The user doesn't want to proceed with this tool use. The tool use was rejected. The user provided the following"
            " reason for the rejection: Use git mv.",
            "Use git mv.",
        ),
        ("A person denied this: 'Use git mv.'. Nothing was done.", "Use git mv."),
        ("A person cancelled this merge: 'it isn't tested'. Nothing was done.", "it isn't tested"),
        ("PreToolUse:Bash hook error: [check.py]: Use git mv.", "[check.py]: Use git mv."),
        ("A person denied this. Nothing was done.", ""),
        (STOPPED, ""),
        ("The approval timed out, so this was denied (repetition). Nothing was done.", ""),
    ],
)
def test_the_reason_for_a_refusal_is_the_person_s_words(refusal: str, reason: str) -> None:
    ledger = ledger_of(use(1, "Bash", command="mv a b"), answer(2, refusal, is_error=True))
    words = [each.text for each in ledger.entries(WORDS).values()]
    assert words == ([f"on mv a b: {reason}"] if reason else [])


def test_what_a_command_prints_is_no_reason_of_a_person() -> None:
    printed = "A person denied this: 'x'. Nothing was done.\nthe user said: go"
    assert texts(WORDS, use(1, "Bash", command="cat log"), answer(2, printed)) == []


# --- Plan, mode, command ------------------------------------------------------------------------------------

PLAN = "# Port the parser\n\n## Lexer\n- read it\n- port it\n\n## Tests\n1. Run them.\n2. Fix them."


def test_plan_mode_holds_until_a_plan_is_approved_and_the_plan_is_quoted_whole() -> None:
    entered = [use(1, "EnterPlanMode"), answer(2, "Entered plan mode.")]
    assert texts(MODE, *entered) == ["plan mode: no changes until a plan is approved"]
    approved = [
        *entered,
        use(3, "ExitPlanMode", plan=PLAN),
        answer(4, "User has approved your plan. You can now start coding."),
    ]
    (line,) = shown(*approved)[MODE]
    assert line == f"the approved plan:\n{PLAN} (#3)"


def test_a_plan_that_was_rejected_is_said_to_be_so_and_the_feedback_is_the_person_s() -> None:
    done = [
        use(1, "EnterPlanMode"), answer(2, "Entered plan mode."), use(3, "ExitPlanMode", plan=PLAN),
        answer(4, f"{REJECTED}Tests first.", is_error=True),
    ]  # fmt: skip
    found = shown(*done)
    assert found[MODE][0].startswith("plan mode")
    assert "rejected" in found[MODE][1]
    assert "approved plan" not in found[MODE][1]
    assert found[WORDS] == ["on ExitPlanMode: Tests first. (#4)"]


@pytest.mark.parametrize("heading", ["## Approved Plan:", "## Approved Plan (edited by user):"])
def test_a_plan_that_only_the_result_holds_is_quoted(heading: str) -> None:
    said = (
        "User has approved your plan. You can now start coding. Start with updating your todo list if applicable\n\nYour plan"
        f" has been saved to: /h/.claude/plans/x.md\nYou can refer back to it if needed during implementation.\n\n{heading}\n"
        f"{PLAN}"
    )
    for given in ({}, {"plan": "# Old"}):
        (line,) = shown(use(1, "ExitPlanMode", **given), answer(2, said))[MODE]
        assert line == f"the approved plan:\n{PLAN} (#2)"


def test_a_long_plan_is_a_pointer_to_the_message_that_holds_it_with_all_headings() -> None:
    plan = "\n".join(f"## Step {number}\n" + "word " * 300 for number in range(8))
    (line,) = shown(
        use(1, "ExitPlanMode", plan=plan), answer(2, "User has approved your plan. You can now start coding.")
    )[MODE]
    assert "message://a/1" in line
    assert "message://a/2" not in line
    assert all(f"Step {number}" in line for number in range(8))


def test_the_prompt_behind_a_command_is_a_pointer_with_its_headings() -> None:
    command = "<command-name>/plan</command-name><command-args>7975 in German</command-args>"
    prompt = (
        "# /plan\n\nImplement the plan of an issue.\n\n## Prerequisites\n"
        + "Do that.\n" * 90
        + "## Step 1: Read"
    )
    found = shown(
        message(1, "user", command), message(2, "user", prompt), message(3, "assistant", "I read it.")
    )
    assert found[WORDS] == ["/plan 7975 in German (#1)"]
    (line,) = found[MODE]
    assert (
        line == "the command /plan; its instructions: message://a/2 (/plan; Prerequisites; Step 1: Read) (#2)"
    )


def test_a_skill_that_was_loaded_is_in_progress() -> None:
    assert texts(MODE, use(1, "Skill", skill="release"), answer(2, "Launching skill: release")) == [
        "the skill release"
    ]


# --- To-do lists --------------------------------------------------------------------------------------------


def test_a_list_has_open_items_apart_from_those_in_progress_and_those_done() -> None:
    rows = [
        {"content": "parse", "status": "completed"},
        {"content": "lex", "status": "in_progress"},
        {"content": "test", "status": "pending"},
    ]
    states = {
        each.text: each.state for each in ledger_of(use(1, "TodoWrite", todos=rows)).entries(TODO).values()
    }
    assert states == {"parse": DONE, "lex": RUNNING, "test": OPEN}
    assert shown(use(1, "TodoWrite", todos=rows))[TODO] == [
        "in progress: lex (#1)",
        "open: test (#1)",
        "done (1): parse (#1)",
    ]


def test_a_planner_s_inbox_says_which_tasks_are_done_what_they_said_and_saved() -> None:
    plan = use(
        1, "create_plan", tasks=[{"name": "lexer", "title": "Port it"}, {"name": "docs", "title": "Write"}, {"name": "old", "title": "Drop"}]
    )  # fmt: skip
    items = [
        {"kind": "task_done", "task": "lexer", "result": "All 12 rules pass.", "artifacts": ["rules.json"]},
        {"kind": "task_failed", "task": "docs", "error": "No network."},
    ]
    told = (
        "Task lexer is done.\nTask docs failed: No network. Its work so far is kept; resume, re-run, revise or drop it.\n"
        f"Task old was cancelled by a person.\nA person says: Use tabs.\n\n{json.dumps({'inbox': items})}"
    )
    ledger = ledger_of(plan, answer(2), message(3, "user", told))
    states = {each.text: each.state for each in ledger.entries(TODO).values()}
    assert states == {"[lexer] Port it": DONE, "[docs] Write": FAILED, "[old] Drop": DONE}
    assert [each.text for each in ledger.entries(AGENTS).values()] == [
        "lexer is done:\nAll 12 rules pass.",
        "docs failed:\nNo network.",
    ]
    assert list(ledger.entries(SAVED)) == ["rules.json"]
    assert [each.text for each in ledger.entries(WORDS).values()] == ["Use tabs."]


# --- Sub-agents ---------------------------------------------------------------------------------------------

REPORT = "## Result\n\nThe lexer is in src/lex.py. 3 tests fail."


def test_a_sub_agent_s_result_is_its_text_without_what_its_program_adds() -> None:
    said = (
        f"{REPORT}\nagentId: a1b2c3 (for resuming to continue this agent's work if needed)\n"
        "<usage>total_tokens: 4711\ntool_uses: 3\nduration_ms: 815</usage>"
    )
    for tool in ("Task", "Agent"):
        done = [
            use(1, tool, description="Find the lexer", prompt="Find it", subagent_type="Explore"),
            answer(2, said),
        ]
        assert texts(AGENTS, *done) == [f"Find the lexer:\n{REPORT}"]


LAUNCHED = (
    "Async agent launched successfully.\nagentId: a1b2c3 (internal ID - do not mention to user.)\nThe agent is working in"
    " the background."
)


def test_a_sub_agent_in_the_background_is_known_by_its_number() -> None:
    launched = [
        use(1, "Task", description="Find the lexer", prompt="Find it", run_in_background=True), answer(2, LAUNCHED),
    ]  # fmt: skip
    assert texts(AGENTS, *launched) == []
    running = (
        "<retrieval_status>timeout</retrieval_status>\n<task_id>a1b2c3</task_id>\n<status>running</status>"
    )
    waiting = [*launched, use(3, "TaskOutput", task_id="a1b2c3", block=True), answer(4, running)]
    assert texts(AGENTS, *waiting) == []
    ended = (
        "<retrieval_status>success</retrieval_status>\n\n<task_id>a1b2c3</task_id>\n\n<task_type>local_agent</task_type>\n\n"
        f"<status>completed</status>\n\n<output>\n[Tool: Grep] lexer\n--- RESULT ---\n{REPORT}\n</output>"
    )
    assert texts(AGENTS, *waiting, use(5, "TaskOutput", task_id="a1b2c3"), answer(6, ended)) == [
        f"Find the lexer:\n{REPORT}"
    ]


def test_a_notification_of_a_sub_agent_is_its_result_and_no_word_of_the_person() -> None:
    told = (
        '<task-notification>\n<task-id>a1b2c3</task-id>\n<status>completed</status>\n<summary>Agent "Find the lexer"'
        f" completed</summary>\n<result>{REPORT}</result>\n<usage><total_tokens>4711</total_tokens></usage>\n"
        "</task-notification>\nFull transcript available at: /tmp/tasks/a1b2c3.output"
    )
    for text in (told, f"[SYSTEM NOTIFICATION - NOT USER INPUT]\n{told}"):
        ledger = ledger_of(message(1, "user", text))
        assert not ledger.entries(WORDS)
        (entry,) = ledger.entries(AGENTS).values()
        assert entry.text == f'Agent "Find the lexer" completed:\n{REPORT}'


# --- Texts as they are --------------------------------------------------------------------------------------


def test_a_list_is_not_cut_in_its_middle() -> None:
    items = "\n".join(f"{number}. Port rule {number} of the grammar" for number in range(1, 11))
    done = [
        message(1, "assistant", f"Still to do:\n{items}"),
        message(2, "user", "Yes."),
        message(3, "assistant", "I go on."),
    ]
    (line,) = shown(*done)[SAID]
    assert items in line


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        ("把解析器移植到新的语法。不要改动生成的表格!", "词法分析器已经完成。接下来修改文档。"),
        (
            "Bitte übertrage den Parser. Die Tabellen bleiben, wie sie sind!",
            "Der Lexer ist fertig. Es folgt die Doku.",
        ),
        (
            "パーサーを新しい文法に移植してください。表は変更しないこと。",
            "字句解析器は完成しました。次は文書です。",
        ),
    ],
)
def test_no_language_is_another_one(asked_for: str, said: str) -> None:
    found = shown(
        message(1, "user", asked_for),
        message(2, "assistant", said),
        use(3, "TodoWrite", todos=[{"content": said, "status": "pending"}]),
    )
    assert found[WORDS] == [f"{asked_for} (#1)"]
    assert found[WORK][0] == f"{said} (#2)"
    assert found[TODO] == [f"open: {said} (#3)"]


def test_the_ends_of_a_chinese_text_are_its_first_and_last_sentence() -> None:
    done = [message(1, "assistant", "先看解析器。它很大。现在修复循环。"), message(2, "assistant", "好。")]
    assert shown(*done)[SAID] == ["先看解析器。 … 现在修复循环。 (#1)"]


# --- Keeping and continuing ---------------------------------------------------------------------------------


def worked() -> list[Message]:
    return [
        message(1, "user", "Port the parser. Never touch the tables."),
        use(2, "TodoWrite", todos=[{"content": "lex", "status": "in_progress"}]), answer(3),
        use(4, "Bash", command="pytest tests"), answer(5, "FAILED tests/a.py\n1 failed", is_error=True),
        use(6, "Edit", file_path="/w/lex.py", old_string="x", new_string="def lex(): ..."), answer(7),
        use(8, "AskUserQuestion", questions=QUESTIONS), answer(9, 'The user answered: "Which database?"="SQLite"'),
        message(10, "assistant", "The lexer is ported. The tests are next."),
        use(11, "Bash", command="pytest -q tests"), answer(12, "3 passed"),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_ledger_that_continues_a_kept_one_equals_one_of_all_messages(cut: int) -> None:
    messages = worked()
    if messages[cut - 1].role == "assistant" and messages[cut].role == "user":
        return  # a call without its result is never covered
    kept = Ledger.up_to((), messages[:cut]).stored()
    earlier = Observation(1, ObservationKind.DIGEST, "…", 1, (1, cut), (1,), ledger=kept)
    assert Ledger.up_to([earlier], messages[cut:]).sections == ledger_of(*messages).sections


def test_a_notebook_reads_each_message_once() -> None:
    notebook = Notebook()
    messages = worked()
    first = [notebook.of(one) for one in messages]
    assert [notebook.of(one) for one in messages] == first
    assert all(notebook.of(one) is known for one, known in zip(messages, first, strict=True))


def test_a_ledger_is_bounded_and_keeps_the_assignment() -> None:
    ledger = Ledger()
    notebook = Notebook()
    messages = (message(number, "user", f"Request {number}: " + "word " * 40) for number in range(1, 3_000))
    for _ in ledger.reading(messages, notebook):
        pass
    digest.bound(ledger, 1_000)
    words = list(ledger.entries(WORDS).values())
    assert len(ledger.stored()) < 20_000
    assert words[0].seq == 1
    assert words[-1].seq == 2_999
