"""The help: one screen for all commands, a page for a group, and two examples at the beginning of each command's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.core.cli.conftest import LAST, Wk

from watchkeeper.cli.app import COMMANDS, GROUPS, HIDDEN, RENAMED, RESHAPED
from watchkeeper.cli.app import wk as root
from watchkeeper.cli.help import COMMENT, Command


@pytest.fixture(autouse=True)
def _a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


def every_command(group: click.Group = root, prefix: str = "") -> Iterator[tuple[str, Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert isinstance(command, Command)
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{prefix}{name} ")


ALL = dict(every_command())


def fits(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines())


def test_the_help_fits_one_screen_with_each_group_on_a_line(wk: Wk) -> None:
    said = wk("--help")
    assert (said.code, said.err) == (0, "")
    assert len(said.out.splitlines()) <= 24 - 2, "the command and the next prompt need a line each"
    assert fits(said.out)
    lines = said.out.partition("Commands:\n")[2].splitlines()[: len(GROUPS)]
    assert [line.split() for line in lines] == [[*group.split(), *names] for group, names in GROUPS.items()]
    assert list(GROUPS) == ["start", "act", "look", "keep", "set up"]
    assert 30 <= sum(map(len, GROUPS.values())) <= 36
    assert not (set(RENAMED) | set(RESHAPED) | set(HIDDEN)) & set(said.out.split())


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_begins_with_two_examples_and_has_a_line_for_each_command(
    wk: Wk, group: str
) -> None:
    said = wk("help", *group.split())
    assert said.code == 0
    first, *lines = said.out.splitlines()
    assert first == "Examples:"
    assert all(line.startswith("  wk ") for line in lines[:2])
    listed = said.out.partition(f"Commands to {group}:\n")[2].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(GROUPS[group])
    assert fits(said.out)


def test_help_of_a_command_is_what_its_own_option_prints(wk: Wk) -> None:
    assert wk("help").out == wk("--help").out
    assert wk("help", "pause").out == wk("pause", "--help").out
    assert wk("help", "memory", "search").out == wk("memory", "search", "--help").out
    assert wk("help", "set-up").out == wk("help", "set up").out
    assert "did you mean `wk pause`?" in wk("help", "pauze").error


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_each_command_begins_with_two_examples_that_it_accepts(wk: Wk, name: str) -> None:
    said = wk(*name.split(), "--help")
    assert said.code == 0
    first, *lines = said.out.splitlines()
    assert first == "Examples:"
    assert all(COMMENT in line for line in lines[:2])
    assert lines[2] == ""
    assert lines[3].startswith(f"Usage: wk {name} ")
    assert fits(said.out)
    for example in ALL[name].examples:
        words = shlex.split(example, comments=True)
        if words[0] == "eval":
            words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
        assert words[0] == "wk"
        assert " ".join(words[1:]).startswith(name)
        found = name
        rest = words[1 + len(name.split()) :]
        while isinstance(ALL[found], click.Group) and rest and not rest[0].startswith("-"):
            found = f"{found} {rest.pop(0)}"
        ALL[found].make_context(found, rest)


EARLIER = {
    "restore": (["restore"], ["delete", "--restore"]),
    "prune": (["prune", "--dry-run"], ["delete", "--prune", "--dry-run"]),
    "grants": (["grants", "last"], ["approve", "--grants", "last"]),
    "workers": (["workers", "--json"], ["worker", "--list", "--json"]),
    "diff": (["diff", "last"], ["artifacts", "--diff", "last"]),
    "rename": (["rename", "last", "a title"], ["edit", "last", "--title", "a title"]),
    "tag": (["tag", "last", "a", "b"], ["edit", "last", "--tag", "a", "--tag", "b"]),
}


@pytest.mark.parametrize("name", EARLIER)
def test_an_earlier_name_does_the_same_and_prints_the_new_one(wk: Wk, demo: Path, name: str) -> None:
    earlier, now = EARLIER[name]
    old, new = wk(*earlier), wk(*now)
    assert (old.code, old.out) == (new.code, new.out)
    (said,) = (line for line in old.err.splitlines() if not line.startswith(LAST))
    assert said == f"wk: `wk {name}` is now `wk {' '.join(RENAMED.get(name, [RESHAPED.get(name, '')]))}`"
    assert name not in COMMANDS or name in HIDDEN


def test_every_earlier_name_is_tried() -> None:
    assert EARLIER.keys() == RENAMED.keys() | RESHAPED.keys()


def test_a_tag_is_removed_by_the_earlier_name_too(wk: Wk, demo: Path) -> None:
    wk("edit", "last", "--tag", "a")
    assert wk("tag", "last", "a", "--remove").out.endswith("no tags\n")


def test_a_session_is_queued_by_the_earlier_option_too(wk: Wk, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    said = wk("run", "--queue", "--model", "offline/surveyor", "--workspace", folder, "the goal")
    assert said.code == 0
    assert said.err == "wk: `wk run --queue` is now `wk worker queue`\n"
    assert "is queued for a worker" in said.out
    refused = wk("run", "--on", "gpu", "--model", "offline/surveyor", "the goal")
    assert "options of `wk worker queue`" in refused.error
    refused = wk("run", "--queue", "--headless", "--model", "offline/surveyor", "the goal")
    assert "omit --headless and --detach" in refused.err


def test_options_that_belong_together_are_refused_apart(wk: Wk, demo: Path) -> None:
    for words, why in (
        (["delete", "last", "--keep", "1"], "need --prune"),
        (["delete", "--restore", "--prune"], "not both"),
        (["delete", "a", "b"], "specify one SESSION"),
        (["delete"], "name a SESSION to delete"),
        (["approve", "--grants", "--always"], "cannot be combined"),
        (["worker", "--json"], "needs --list"),
    ):
        said = wk(*words)
        assert (said.code, why in said.error) == (2, True), words
    assert len(wk("sessions", "--json").json) == 1
