"""Patterns of commands: what matches is one simple command of these words, and bash agrees."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from watchkeeper.records.tool_inputs import (
    SimpleCommand,
    covering,
    matches,
    parse_command,
    parse_pattern,
    pattern_of,
    program_path,
    values_inside,
)

OPERATORS = [
    ";", "&", "||", "|&", "<", ">", "`", "$", "\n", "\r", "\\", "(", ")", "{", "}", "*", "?", "[", "]", "!", "#", "^", "\t", "\x00",
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
    "pattern",
    [
        "*",
        "",
        "git *; id",
        "git st*",
        "git * status",
        "sudo *",
        "\u0433it *",
        "x |",
        "| x",
        "x | *",
        "x || y",
        "x |& y",
        "pytest * | sh",
        "CI=1 *",
        "HOME=x git *",
        "x > y | z",
        "x * | y * z",
    ],
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
    parsed = parse_command(pattern_of((SimpleCommand(("prog", *words)),)))
    assume(parsed is not None)
    assert parsed is not None
    open_ended = (SimpleCommand((*parsed[0].words, "*")),)
    assert parse_pattern(pattern_of(open_ended)) == open_ended
    assert matches(pattern_of(open_ended), pattern_of(parsed)) == parsed


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
        (command, parts[0].words)
        for text in texts
        if (parts := parse_command(command := f"prog {text}")) is not None and len(parts) == 1
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


GRANTS = [
    "pytest *", "python -m pytest *", "git log *", "git diff *", "tail *", "head *", "grep *", "sort *", "wc *", "cat *",
    "echo *", "python *", "python -m json.tool *", "sed -n *", "ls *", "find . *", "ruff check *",
]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "pytest -q | tail -n 5", "pytest -q|tail -5", "pytest -q 2>&1 | tail -n 20", "pytest -q 2>&1|tail", "CI=1 pytest -q",
        "PYTHONPATH=. pytest -q | tail -n 5", "PYTHONPATH=src:tests python -m pytest -q tests 2>&1 | tail -n 30",
        "PYTHONPATH= pytest", "PYTHONDONTWRITEBYTECODE=1 pytest -q", "NO_COLOR=1 CI=true pytest -q | cat",
        "LANG=C LC_ALL=C.UTF-8 sort names | head -3", "TZ=UTC git log --oneline | head -n 20", "TZ=Europe/Berlin git log",
        "cat a.txt | LC_ALL=C sort | head", "git log --oneline | wc -l", 'git diff --stat | grep "src/" | sort | tail -n 3',
        "cat data.json | python -m json.tool", "ls -la | head -n 5", "find . -name setup.py | sort", "echo 'a b' | wc -c",
        "ruff check src 2>&1 | head -n 40", 'PYTHONPATH="src" pytest', "python run.py | tail -n 1", "  pytest -q  |  tail  ",
        "cat x | sed -n 5p",
    ],
)  # fmt: skip
def test_pipelines_and_the_listed_variables_are_covered_part_by_part(command: str) -> None:
    found = covering(GRANTS, command)
    assert found is not None
    parts, used = found
    assert parts == parse_command(command)
    assert used
    assert values_inside(parts, "/work/app", "/work/app")
    whole = pattern_of(parts)
    assert matches(whole, command) == parts, "and the whole command can be allowed"


@pytest.mark.parametrize(
    "command",
    [
        # what only a shell can run
        "pytest -q; tail x", "pytest && tail x", "pytest || tail x", "pytest & tail x", "pytest | tail &", "pytest |& tail",
        "pytest > out | tail", "pytest 2> out | tail", "pytest >& out | tail", "pytest | tail > out", "pytest | tail >> out",
        "pytest < in | tail", "pytest 2>/dev/null | tail", "pytest 1>&2 | tail", "pytest 2>&1 >x | tail", "pytest 2>&1 2>&1 | tail",
        "pytest 2>&3 | tail", "pytest2>&1 | tail", "pytest '2>&1' | tail", "pytest | tail 2>&1", "pytest $(id) | tail",
        "pytest `id` | tail", "pytest $X | tail", "pytest | tail <(id)", "pytest *.py | tail", "pytest tests/? | tail",
        "pytest\n| tail", "pytest | tail\nid", "(pytest | tail)", "{ pytest; } | tail", "! pytest | tail", "pytest | tail #x",
        "pytest {a,b} | tail", "pytest \\| tail", "pytest ~/x | tail", "time pytest | tail", "pytest | tail |", "| tail",
        "pytest | | tail", "pytest '| tail", "pytest 'a|b' | tail", 'grep "a|b" x', "pytest\t| tail", "pytest | t\u0430il",
        "pytest <<< x | tail", "pytest | while read x",
        # a part that no pattern allows
        "pytest | tee out", "pytest | sh", "cat x | bash", "cat x | xargs rm", "curl x | tail", "pytest | env tail",
        "pytest | sudo tail", "find . -exec id + | tail", "cat x | sort -o y", "git log --output=x | tail", "find . | rm",
        "pytest | ./tail", "pytest | /tmp/tail x", "cat x | nohup tail", "pytest | command tail", "pytest | tail | docker ps",
        "echo x | sed -i s/a/b/ y", "echo x | sed -n -f y", "pytest -p evil | tail", "python -c id | tail", "echo x | sort -T /tmp",
        # a program that would run what it is fed
        "cat x | python", "echo id | python -", "cat x | python -i", "cat x | python -u -", "cat x | python /dev/stdin",
        "cat x | python -m code", "cat x | python /proc/self/fd/0", "cat x | PYTHONPATH=. python", "cat x | python -W ignore",
        # variables
        "PATH=. pytest", "LD_PRELOAD=x pytest", "PYTHONSTARTUP=x pytest", "PYTHONPATH+=. pytest", "HOME=. pytest", "CI=1",
        "'CI'=1 pytest", "CI=$X pytest", "CI=~ pytest", "PYTHONPATH=~/x pytest", "PYTHONPATH=.:~ pytest", "CI=1 CI=2 pytest",
        "PYTEST_ADDOPTS=-pevil pytest", "GIT_PAGER=x git log", "CI=1 PATH=. pytest", "pytest | PATH=. tail", "CI=1 sh",
        "CI=1 | tail", "ci=1 pytest", "PYTHONPATHS=. pytest", "CI=1; pytest", "CI= =x pytest", "env CI=1 pytest",
        "export CI=1 | tail", "CI =1 pytest", "TERM=x pytest", "LC_CTYPE=C pytest", "CI[0]=1 pytest",
    ],
)  # fmt: skip
def test_everything_else_asks(command: str) -> None:
    assert covering(GRANTS, command) is None
    assert not any(matches(pattern, command) for pattern in GRANTS)


@pytest.mark.parametrize(
    ("value", "is_inside"),
    [
        ("PYTHONPATH=.", True), ("PYTHONPATH=src:lib", True), ("PYTHONPATH=", True), ("PYTHONPATH=src::lib", True),
        ("PYTHONPATH=:", True), ("PYTHONPATH={root}/src", True), ("PYTHONPATH=sub/../src", True), ("PYTHONPATH=none/yet", True),
        ("PYTHONPATH=..", False), ("PYTHONPATH=src:/etc", False), ("PYTHONPATH=/", False), ("PYTHONPATH=../other", False),
        ("PYTHONPATH=out", False), ("PYTHONPATH=out/below", False), ("PYTHONPATH={root}-other", False),
        ("PYTHONPATH=.:..", False), ("PYTHONPATH=inside", True),
        ("TZ=UTC", True), ("TZ=Europe/Berlin", True), ("TZ=CET-1CEST", True), ("TZ=", True), ("TZ=:Europe/Berlin", True),
        ("TZ=:/etc/localtime", False), ("TZ=/etc/passwd", False), ("TZ=:../x", False), ("TZ=../../etc/passwd", False),
        ("TZ=Europe/../../x", False), ("TZ=./zone", True), ("TZ={root}/zone", True), ("TZ=out/zone", False), ("TZ=:out/zone", False),
        ("LANG=C", True), ("LANG=de_DE.UTF-8@euro", True), ("LANG=/tmp/locale", False), ("LANG=./locale", True),
        ("LC_ALL=../locale", False), ("LC_ALL=..", False), ("LC_ALL=out/x", False), ("CI=/anything", False), ("CI=1", True),
        ("NO_COLOR=../x", False), ("PYTHONDONTWRITEBYTECODE=1", True),
    ],
)  # fmt: skip
def test_a_value_that_names_a_path_must_lead_inside_the_workspace(
    tmp_path: Path, value: str, is_inside: bool
) -> None:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (tmp_path / "root-other").mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "inside").symlink_to("src")
    parts = parse_command(f"cat x | {value.format(root=root)} sort")
    assert parts is not None
    assert values_inside(parts, str(root), str(root)) is is_inside


def test_an_empty_entry_of_the_path_is_the_folder_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    root = str(tmp_path / "root")
    for value, folder, is_inside in (
        ("..", f"{root}/sub", True), ("../..", f"{root}/sub", False), ("", f"{root}/sub", True), ("", str(tmp_path), False),
        ("root", str(tmp_path), True), (f"{root}:", str(tmp_path), False),
    ):  # fmt: skip
        parts = parse_command(f"PYTHONPATH={value} x")
        assert parts is not None
        assert values_inside(parts, folder, root) is is_inside, (value, folder)


@pytest.mark.parametrize(
    ("pattern", "command", "fits"),
    [
        ("pytest * | tail -n *", "pytest -q | tail -n 5", True),
        ("pytest * | tail -n *", "CI=1 pytest -q 2>&1 | tail -n 5", True),
        ("pytest * 2>&1 | tail -n *", "pytest -q | tail -n 5", True),
        ("pytest * | tail -n *", "pytest -q", False),
        ("pytest * | tail -n *", "tail -n 5", False),
        ("pytest * | tail -n *", "pytest | tail -n 5 | tail -n 5", False),
        ("pytest * | tail -n *", "tail -n 5 | pytest", False),
        ("pytest | tail", "pytest -q | tail", False),
        ("CI=1 pytest *", "CI=1 pytest -q", True),
        ("CI=1 pytest *", "pytest -q", False),
        ("CI=1 pytest *", "CI=2 pytest -q", False),
        ("CI=1 pytest *", "CI=1 NO_COLOR=1 pytest -q", False),
        ("git *", "git log | git x", True),
        ("cat * | python -", "cat x | python -", True),
        ("cat * | python -", "cat x | python", False),
        ("cat * | python -m json.tool *", "cat x | python -m json.tool --indent 2", True),
    ],
)
def test_a_pattern_may_be_a_pipeline(pattern: str, command: str, fits: bool) -> None:
    assert (matches(pattern, command) is not None) is fits


def test_grants_of_one_part_are_not_joined_to_what_only_a_pipeline_was_allowed_to_be() -> None:
    assert covering(["cat * | sort *", "tail *"], "cat x | tail") is None
    assert covering(["python -", "echo *"], "echo x | python -") is None
    assert covering(["echo *", "tail *", "wc *"], "echo x | tail | echo y") is not None
    found = covering(["wc *", "echo *", "tail *"], "echo x | tail | echo y")
    assert found is not None
    assert found[1] == (1, 2)
    with pytest.raises(ValueError, match="piped input as code"):
        parse_pattern("cat * | python *")


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
