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


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git log *", "git log --output=x"), ("git log *", "git log --outp=x"), ("git log *", "git log --output x"),
        ("git diff *", "git diff --ext-diff"), ("git grep *", "git grep -Oevil x"), ("git *", "git -c core.pager=evil log"),
        ("git format-patch *", "git format-patch -o dir"), ("git rebase *", "git rebase -x evil"),
        ("git ls-remote *", "git ls-remote --upload-pack=evil ."), ("git ls-remote *", "git ls-remote --exec=evil ."),
        ("find . *", "find . -exec evil +"), ("find . *", "find . -fprint out"), ("find . *", "find . -okdir evil +"),
        ("sort *", "sort -uoout in"), ("sort *", "sort -o out in"), ("sort *", "sort --compress-program=evil in"),
        ("sort *", "sort --compress-prog evil in"), ("tar *", "tar -cf x --to-command=evil"),
        ("tar *", "tar xf x --checkpoint-action=exec=evil"), ("rsync *", "rsync -e evil a b"),
        ("rsync *", "rsync -ave evil a b"), ("curl *", "curl -so out x"), ("wget *", "wget --output-document=x y"),
        ("rg *", "rg --pre evil x"), ("unheard-of *", "unheard-of -o x"), ("unheard-of *", "unheard-of --out-dir=x"),
        ("unheard-of *", "unheard-of --log-file x"), ("go test *", "go test -exec evil"), ("go build *", "go build -toolexec=evil"),
        ("pytest *", "pytest --junitxml=x"), ("uv *", "uv run evil"), ("uv *", "uv --quiet run evil"),
    ],
)  # fmt: skip
def test_a_pattern_allows_no_option_that_names_a_file_to_write_or_a_program_to_run(pattern, command):
    assert matches(pattern, command) is None
    assert matches(command, command) == parse_command(command), "the whole command can be allowed"


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git log --output *", "git log --output x"), ("git log --output=x *", "git log --output=x --output=y"),
        ("git log *", "git log --oneline -5 --no-ext-diff"), ("sort -o *", "sort -o out in"), ("grep *", "grep -rno x ."),
        ("find . *", "find . -name x -type f"), ("ls *", "ls -lo"), ("git diff *", "git diff --stat HEAD"),
        ("pytest *", "pytest -q tests"), ("find . -exec *", "find . -exec evil +"), ("uv pip *", "uv pip list"),
    ],
)  # fmt: skip
def test_a_pattern_that_names_the_option_allows_it_and_harmless_ones_need_no_name(pattern, command):
    assert matches(pattern, command) == parse_command(command)


STARTERS = [
    "rbash", "ash", "flock", "taskset", "prlimit", "chrt", "systemd-run", "tmux", "docker", "at", "wk",
]  # fmt: skip


@pytest.mark.parametrize("program", [*STARTERS, "/usr/bin/docker", "uv run"])
def test_a_program_that_starts_others_is_allowed_as_a_whole_command_alone(program: str) -> None:
    command = f"{program} ps"
    assert matches(command, command) == parse_command(command)
    assert matches(command, f"{command} more") is None
    for pattern in (f"{program} *", f"{command} *"):
        with pytest.raises(ValueError, match="starts other programs"):
            parse_pattern(pattern)
        assert matches(pattern, command) is None


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
