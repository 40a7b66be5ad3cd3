"""The guide says what the program does: every command, option, setting, table and key in it is compared with
the code.

Parts of the pages are written from the code (`tests.support.guide`); other rooms' tests compare theirs.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import grimp
import pytest
import yaml
from tests.support.guide import DOCS, agrees

from watchkeeper.agents.backends.programs import AgentProgramSettings
from watchkeeper.agents.tools.contract import McpServer
from watchkeeper.cli.app import wk
from watchkeeper.cli.help import Command
from watchkeeper.records import states
from watchkeeper.runtime import config
from watchkeeper.store import database
from watchkeeper.store.driver import Connection

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
WIDTH = 130
"""No line of prose is longer; tables, code and links may be."""


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that people may call, with its whole name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")


def chapter(name: str, command: click.Command) -> str:
    """One command as the page has it."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    help_text = "\n\n".join(
        textwrap.fill(" ".join(part.split()), 120) for part in (command.help or "").split("\n\n")
    )
    examples = "\n".join(command.examples) if isinstance(command, Command) else ""
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        value = "" if option.is_flag else f" {option.make_metavar(context)}"
        words = [option.help or ""]
        kind = option.type
        if isinstance(kind, click.IntRange | click.FloatRange) and option.help is None:
            words = ["An amount."]
        if option.show_default and option.default is not None:
            words.append(f"Default: {option.default}.")
        named = f"{', '.join(option.opts)}{value}".replace("|", "\\|")
        rows.append(f"| `{named}` | {' '.join(words).strip()} |")
    table = "\n".join(["| Option | What it does |", "|---|---|", *rows]) if rows else ""
    return (
        "\n\n".join(
            part
            for part in (
                f"## `{name}`",
                f"```sh\n{examples}\n```",
                f"```text\n{usage}\n```",
                help_text,
                table,
            )
            if part
        )
        + "\n\n"
    )


def test_every_command_and_option_is_in_the_guide() -> None:
    expected = "\n" + "".join(chapter(name, command) for name, command in commands(wk, "wk"))
    agrees("commands.md", "commands", expected)


def test_exit_codes_in_the_guide_are_those_of_the_errors() -> None:
    from watchkeeper.records import errors

    page = text_of("commands.md")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.WatchkeeperError)
    }
    assert raised <= listed
    assert listed == {0, 1, 2, 3, 4, 5, 130}


def test_every_table_of_the_database_is_in_the_guide(tmp_path: Path) -> None:
    connection = database.open_writable(tmp_path / "watchkeeper.db")
    try:
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
            )
        ]
        ours = [
            name for name in names if not name.startswith(("facts_fts", "messages_fts", "sqlite_", "_sqlite"))
        ]
        columns = {name: [str(row[1]) for row in rows_of(connection, name)] for name in ours}
    finally:
        connection.close()
    page = text_of("database.md")
    assert set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE)) == set(ours)
    for name in ours:
        listed = textwrap.fill("Columns: " + ", ".join(f"`{column}`" for column in columns[name]) + ".", 118)
        agrees("database.md", f"columns of {name}", listed + "\n")


def rows_of(connection: Connection, table: str) -> list[tuple[object, ...]]:
    return list(connection.execute("SELECT * FROM pragma_table_info(?)", (table,)))


def documented(kind: type) -> dict[str, str]:
    """What is written below each attribute of a class, and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.partition(".")[0] == "watchkeeper":
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            assert isinstance(body, ast.ClassDef)
            for named, text in pairwise(body.body):
                match named, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(said))
                    ):
                        found[name] = " ".join(said.split())
    return found


def settings(kind: type) -> str:
    """One table of `config.toml`."""
    lines = ["| Setting | Default | What it means |", "|---|---|---|"]
    texts = documented(kind)
    declared = getattr(kind, "model_fields", None)
    for attribute, field in (declared or {one.name: one for one in fields(kind)}).items():
        name = (getattr(field, "alias", None) if declared else None) or attribute
        default = field.default
        if isinstance(default, bool):
            value = f"`{str(default).lower()}`"
        elif isinstance(default, str | int | float) and default != "":
            value = f'`"{default}"`' if isinstance(default, str) else f"`{default}`"
        else:
            value = ""
        assert texts.get(attribute), f"{kind.__name__}.{attribute} is not documented where it is declared"
        lines.append(f"| `{name}` | {value} | {texts[attribute]} |")
    return "\n".join(lines) + "\n\n"


def test_every_setting_is_in_the_guide_as_it_is_documented_where_it_is_declared() -> None:
    tables = {
        "Settings": config.Config,
        "`[memory]`": config.MemorySettings,
        "`[roles.NAME]`": config.RoleSettings,
        "`[sandbox]`": config.SandboxSettings,
        "`[anthropic]`": config.AnthropicSettings,
        "`[openai]` and `[openai-chat]`": config.OpenAISettings,
        "`[mcp_servers.NAME]`": McpServer,
        "`[agents.NAME]`": AgentProgramSettings,
        "`[notifications]`": config.NotificationSettings,
        "`[alerts]`": config.AlertSettings,
        "`[guard]`": config.GuardSettings,
    }
    parts = [f"## {name}\n\n{settings(kind)}" for name, kind in tables.items()]
    agrees("configuration.md", "settings", "\n" + "".join(parts))


STATES = {
    "agent": states.AgentStatus, "approval": states.ApprovalStatus, "command": states.CommandStatus,
    "compaction": states.CompactionStatus, "model": states.ModelCallStatus, "session": states.SessionStatus,
    "task": states.TaskStatus, "tool": states.ToolCallStatus,
}  # fmt: skip
"""What a kind of event ends in where it is `subject.STATE`."""


def kinds_of(name: ast.expr) -> set[str]:
    """The kinds of event that an expression may name."""
    match name:
        case ast.Constant(value=str(value)) if re.fullmatch(r"[a-z]+\.[a-z_]+", value):
            return {value}
        case ast.JoinedStr(values=[ast.Constant(value=str(begin)), ast.FormattedValue()]):
            return {f"{begin}{state}" for state in STATES.get(begin.rstrip("."), ())}
        case ast.IfExp(body=body, orelse=orelse):
            return kinds_of(body) | kinds_of(orelse)
    return set()


def test_every_kind_of_event_is_in_the_guide() -> None:
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "core").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if called not in {"event", "_event"}:
                continue
            data = {word.arg for word in call.keywords if word.arg} - {"agent_id", "task_id", "at"}
            for kind in kinds_of(call.args[0]):
                found.setdefault(kind, set()).update(data)
    assert {"session.done", "task.stale", "model.replied", "host.started", "compaction.applied"} <= set(found)
    rows = [
        f"| `{kind}` | {', '.join(f'`{one}`' for one in sorted(found[kind]))} |\n" for kind in sorted(found)
    ]
    agrees("events.md", "events", "\n| Kind | `data` |\n|---|---|\n" + "".join(rows) + "\n")


def test_the_example_of_a_configuration_is_one(tmp_path: Path) -> None:
    page = text_of("configuration.md")
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "config.toml").write_text(example[1], encoding="utf-8")
    found = config.load_config(tmp_path)
    assert found.model == "anthropic/claude-sonnet-5"
    assert list(found.mcp_servers) == ["tickets"]


def test_built_in_roles_are_those_of_the_guide(tmp_path: Path) -> None:
    from watchkeeper.agents.roles import load_roles

    page = " ".join(text_of("roles.md").split())
    assert "built-in ones (" + ", ".join(f"`{name}`" for name in sorted(load_roles(tmp_path))) + ")" in page


def test_the_keys_and_commands_of_the_dashboard_are_those_of_the_guide() -> None:
    from watchkeeper_tui.actions import ACT, COMMANDS, TABLE

    actions = [
        f"| `{one.keys}` | {one.label} | {one.help[0].upper()}{one.help[1:]} |\n"
        for one in TABLE
        if one.keys and one.help and one.group == ACT and "live" in one.scopes
    ]
    agrees(
        "keys.md",
        "actions",
        "\n| Key | Action | What it does |\n|---|---|---|\n" + "".join(actions) + "\n",
    )
    commands = [
        f"| `:{one.words}{' ' + one.argument if one.argument else ''}` | {one.help} |\n" for one in COMMANDS
    ]
    agrees("keys.md", "slashes", "\n| Command | What it does |\n|---|---|\n" + "".join(commands) + "\n")


def test_the_ids_of_keys_are_those_of_the_guide_and_its_example_can_be_used() -> None:
    from watchkeeper_tui.actions import TABLE, read_keys

    named: dict[str, list[str]] = {}
    for one in TABLE:
        if one.keys:
            prefix, _, name = one.id.rpartition(".")
            named.setdefault(prefix, []).append(f"`{name}`")
    lines = [
        f"- {f'`{prefix}.`' if prefix else 'no dot'}: {', '.join(names)}" for prefix, names in named.items()
    ]
    agrees(
        "keys.md",
        "ids of keys",
        "\n" + "".join(textwrap.fill(line, 118, subsequent_indent="  ") + "\n" for line in lines) + "\n",
    )
    example = tomllib.loads(text_of("keys.md").split("```toml")[1].split("```")[0])["keys"]
    assert read_keys(example).problems == ()


def test_keys_for_looking_around_are_bound() -> None:
    from watchkeeper_tui.screens.live import LiveScreen
    from watchkeeper_tui.widgets.panes import PlanView

    names = {"esc": "escape"}
    bound = {
        key
        for kind in (*LiveScreen.__mro__, PlanView)
        for one in kind.__dict__.get("BINDINGS", ())
        for key in one.key.split(",")
    }
    bound |= {
        "ctrl+p",
        "enter",
        "j",
        "k",
        "g",
        "G",
        "PgUp",
        "PgDn",
    }  # the toolkit's own, and those of every list
    part = text_of("keys.md").partition("## Looking around")[2].partition("## ")[0]
    for row in re.findall(r"^\| (`.+?) \|", part, re.MULTILINE):
        for key in re.findall(r"`([^`]+)`", row):
            assert names.get(key, key) in bound, f"{key} is bound to nothing"


def test_every_theme_that_is_shipped_is_named_in_the_guide() -> None:
    page = text_of("themes.md")
    for theme in (ROOT / "themes").glob("*.toml"):
        assert f"`{theme.stem}`" in page


def examples() -> dict[str, str]:
    text = text_of("library.md")
    return dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", text, re.DOTALL))


def test_the_examples_of_the_guide_are_short() -> None:
    assert set(examples()) == {"runtime", "manager", "compactor", "coordinator"}
    assert all(len(code.strip().splitlines()) <= 18 for code in examples().values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("compactor", ["summary", " -> ", "messages to send"]),
        ("coordinator", ["10 messages were observed up to index 10"]),
    ],
)
def test_the_examples_of_the_parts_run(tmp_path: Path, name: str, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", examples()[name]], cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(each in done.stdout for each in said), done.stdout


def test_the_memory_example_of_the_guide_compacts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", examples()["manager"]],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert " -> " in done.stdout
    assert "200 messages kept" in done.stdout


def test_the_session_example_of_the_guide_runs_to_its_end(tmp_path, monkeypatch, capsys):
    from watchkeeper.models import surveyor

    monkeypatch.setattr(surveyor, "LONGEST_REPLY_SECONDS", 0.0)
    monkeypatch.setattr(surveyor, "FIRST_TOKEN_SECONDS", 0.0)
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WATCHKEEPER_DB", str(tmp_path / "data" / "watchkeeper.db"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hello.py").write_text("print('hello')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "work")
    exec(compile(examples()["runtime"], "library.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("done ")


def test_links_and_pictures_of_the_guide_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_what_the_walks_through_the_code_name_is_in_the_file_that_they_link_to() -> None:
    page = text_of("architecture.md")
    targets = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", page, re.MULTILINE))
    named = re.findall(r"\[`(\w+)`\]\[([^]]+)\]", page)
    assert len(named) > 40
    for name, target in named:
        source = (DOCS / targets[target]).read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", source), f"architecture.md looks for {name} in {target}"
    assert set(targets) == {target for _, target in named}


def nav() -> dict[str, list[str]]:
    """The pages of each section of the site."""

    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for one in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from pages(one)

    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return {name: list(pages(entry)) for section in sections for name, entry in section.items()}


def test_every_page_is_in_the_site_and_linked_from_its_first_page() -> None:
    names = {page.name for page in DOCS.glob("*.md")}
    listed = [page for pages in nav().values() for page in pages]
    assert sorted(listed) == sorted(names)
    first = text_of("index.md")
    assert all(f"({name})" in first for name in names - {"index.md"})


def test_the_readme_and_the_first_release_of_the_changelog_are_short() -> None:
    assert len(text_of("../README.md").splitlines()) <= 100
    release = text_of("../CHANGELOG.md").partition("\n## [0.1.0]")[2].partition("\n## [")[0]
    assert 10 < len(release.splitlines()) <= 80


MEASURED = re.compile(r"\d (?:ms|MB/s)\b|\bmedian\b|\bpercentile\b|\bp95\b")


@pytest.mark.parametrize("name", nav()["How to"])
def test_a_how_to_page_fits_one_screen_and_holds_no_measurement(name: str) -> None:
    assert len(text_of(name).splitlines()) <= 66
    assert not MEASURED.search(text_of(name))


SKIPPED = "<!-- not run: "
"""Before a block of commands that a test does not run; the reason follows."""


def command_lines(page: Path) -> Iterator[tuple[str, bool]]:
    """The commands of `wk` that a page shows, and whether in a block, so that they are complete."""
    text = page.read_text(encoding="utf-8")
    for kind, block in re.findall(r"```(sh|console)\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("wk " if kind == "sh" else "$ wk "):
                yield line.removeprefix("$ "), True
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for span in re.findall(r"`(wk [^`]+)`", prose):
        if "…" not in span and "|" not in span:
            yield " ".join(span.split()), False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_shows_can_be_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown in the text may leave out arguments. The names of sessions and files need not be there."""
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _context: value)
    for line, complete in command_lines(page):
        command: click.Command = wk
        rest = shlex.split(line, comments=True)[1:]
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            found = command.get_command(click.Context(command), rest[0])
            if found is None and command.invoke_without_command:
                break
            assert found is not None, f"{page.name}: {line}: no command {rest[0]}"
            assert not found.hidden, f"{page.name}: {line}: an earlier name"
            command, rest = found, rest[1:]
        known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
        for word in rest:
            if re.fullmatch(r"--[a-z-]+|-[a-z]", word):
                assert word in known | {"--help", "-h", "--version"}, f"{page.name}: {line}: no option {word}"
        if complete:
            command.make_context("wk", rest)


def test_pictures_tell_nothing_of_the_machine_that_they_were_taken_on() -> None:
    for picture in (DOCS / "images").glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert not re.search(r"/(?:home|root|tmp|Users|work)\b", text), picture.name
        assert "@font-face" not in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_short_enough_to_read(page: Path) -> None:
    if page.name == "model-faults.md":
        pytest.skip("another page's test writes it")
    code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            code = not code
        if not code and not line.startswith(("|", "![", "<!--")):
            assert len(line) <= WIDTH, f"{page.name}:{number} has {len(line)} characters"


def test_each_heavy_check_that_the_docs_name_is_one_that_runs() -> None:
    listed = subprocess.run(
        [ROOT / ".ci" / "heavy"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    commands = {line.split()[0]: line.split()[2:] for line in listed}
    for command in commands.values():
        file = ROOT / (command[1].replace(".", "/") + ".py" if command[0] == "-m" else command[0])
        package = file.with_suffix("") / "__main__.py"
        assert file.is_file() or package.is_file() or command[:2] == ["-m", "pytest"]
    table = (ROOT / "docs" / "reliability.md").read_text().split("| `.ci/heavy` |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(commands)


def test_the_guide_names_each_module_that_only_one_other_imports() -> None:
    graph = grimp.build_graph("watchkeeper", "watchkeeper_tui")
    alone = {
        name.removeprefix("watchkeeper.")
        for name in graph.modules
        if name.startswith("watchkeeper.")
        and not graph.find_children(name)
        and len(graph.find_modules_that_directly_import(name)) == 1
    }
    section = (
        (ROOT / "CONTRIBUTING.md")
        .read_text("utf-8")
        .partition("### Modules with one importer")[2]
        .partition("\n## ")[0]
    )
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"`([\w.]+)`", " ".join(rows)))
    assert listed == alone
    assert len(listed) <= 30
