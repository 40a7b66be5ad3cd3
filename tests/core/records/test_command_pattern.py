"""Patterns of commands: what matches is one simple command of these words, and bash agrees."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from watchkeeper.records.tool_inputs import matches, parse_command, parse_pattern, pattern_of, program_path

OPERATORS = [
    ";", "&", "|", "<", ">", "`", "$", "\n", "\r", "\\", "(", ")", "{", "}", "*", "?", "[", "]", "!", "#", "^", "\t", "\x00",
    "\x1b", "\u202e", "\u00a0", "\u200b", "\u037e", "\uff1b",
]  # fmt: skip


@given(st.text(max_size=40), st.sampled_from(OPERATORS), st.text(max_size=40))
def test_a_text_with_an_operator_anywhere_never_matches(before: str, operator: str, after: str) -> None:
    command = f"git {before}{operator}{after}"
    assert parse_command(command) is None
    assert matches("git *", command) is None


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf ~", "git status && id", "git status & id", "git status | sh", "git status > x", "git status < x",
        "git status $(id)", "git status `id`", "git status <(id)", "git status\nid", "git status \\\nid", "git status <<E",
        "git status 'a;b'", 'git status "$HOME"', "X=1 git status", "if git status", "time git status", "! git status",
        "{ git status; }", "(git status)", "[[ a ]]", "eval git status", "exec git status", ". git status", "source git",
        "env git status", "xargs git status", "sudo git status", "sh -c 'git status'", "/bin/sh -c id", "bash git", "git {a,b}",
        "git status #x", "git ~/x", "git --dir=~/x", "git 'unclosed", "coproc git status", "function git", "alias git=rm",
        "command git status", "cd /tmp", "", "   ", "''", "=git status",
    ],
)  # fmt: skip
def test_what_a_shell_would_interpret_is_no_simple_command(command: str) -> None:
    assert parse_command(command) is None


@pytest.mark.parametrize(
    ("pattern", "command", "fits"),
    [
        ("git status *", "git status", True),
        ("git status *", "git status --short", True),
        ("git status *", "git  'status'  -s a b", True),
        ("git status *", "git stash", False),
        ("git status *", "git statusx", False),
        ("git status *", "git -c a=b status", False),
        ("git status *", "gitstatus", False),
        ("git status *", "/usr/bin/git status", False),
        ("git status", "git status --short", False),
        ("git commit -m 'two words'", 'git commit -m "two words"', True),
        ("git commit -m 'two words'", "git commit -m two words", False),
        ("git commit -m two words", "git commit -m 'two words'", False),
    ],
)
def test_a_pattern_is_a_list_of_words_and_never_crosses_one(pattern: str, command: str, fits: bool) -> None:
    assert (matches(pattern, command) is not None) is fits


@pytest.mark.parametrize(
    "pattern", ["*", "", "git *; id", "git st*", "git * status", "sudo *", "x | y", "\u0433it *"]
)
def test_a_pattern_that_could_mean_more_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        parse_pattern(pattern)


WORD = st.text(alphabet="abcXYZ019 -_=./:,+@%'\"~", min_size=1, max_size=8)


@given(st.lists(WORD, min_size=1, max_size=5))
def test_a_pattern_that_is_stored_is_read_back_as_the_same_words(words: list[str]) -> None:
    parsed = parse_command(pattern_of(("prog", *words)))
    assume(parsed is not None)
    assert parsed is not None
    assert parse_pattern(pattern_of((*parsed, "*")))[:-1] == parsed
    assert matches(pattern_of((*parsed, "*")), pattern_of(parsed)) == parsed


ODD = st.text(alphabet="ab'\"\\ ;&|<>$`(){}[]*?!#~=\n\t-+@%^,.:/", max_size=14)
LIKELY = st.text(alphabet="ab'\" -+@%,.:/=~_", max_size=14)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(ODD, LIKELY, LIKELY), min_size=40, max_size=40))
def test_bash_runs_exactly_the_words_that_were_parsed(tmp_path_factory, texts):
    """Bash itself runs each command that the parser takes: one program, once, with these words."""
    folder = tmp_path_factory.mktemp("differential")
    (folder / "cwd").mkdir()
    program = folder / "prog"
    log = folder / "log"
    program.write_text(
        f"#!/bin/sh\nfor word; do printf '%s\\037' \"$word\"; done >> {log}\nprintf '\\n' >> {log}\n"
    )
    program.chmod(0o755)
    taken = [
        (command, words) for text in texts if (words := parse_command(command := f"prog {text}")) is not None
    ]
    assume(taken)
    script = "".join(f"{{ {command}\n}} </dev/null 2>&1\n" for command, _ in taken)
    environment = {"PATH": str(folder), "HOME": "/nowhere"}
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc"], input=script, cwd=folder / "cwd", env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
    logged = [line.split("\x1f")[:-1] for line in log.read_text().split("\n")[:-1]]
    assert logged == [list(words[1:]) for _, words in taken]
    assert not list((folder / "cwd").iterdir())


def test_a_relative_program_counts_in_the_workspace_alone_and_relative_places_of_the_path_not_at_all(
    tmp_path: Path,
) -> None:
    (tmp_path / "sub").mkdir()
    for place in (tmp_path, tmp_path / "sub"):
        (place / "tool").write_text("#!/bin/sh\n")
        (place / "tool").chmod(0o755)
    workspace = str(tmp_path)
    assert program_path("./tool", workspace, workspace, "") is not None
    assert program_path("./tool", str(tmp_path / "sub"), workspace, "") is None
    assert program_path("tool", str(tmp_path / "sub"), workspace, f".{os.pathsep}sub") is None
    assert program_path("tool", workspace, workspace, str(tmp_path / "sub")) == str(tmp_path / "sub" / "tool")
    assert program_path("no-such-program", workspace, workspace, "/usr/bin") is None
