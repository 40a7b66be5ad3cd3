"""The guide says what the program does: every command, option, setting, table and key in it is compared with
the code.

Parts of the pages are written from the code (`tests.support.guide`); other rooms' tests compare theirs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import grimp
import pytest
from tests.support.guide import DOCS, agrees

from watchkeeper.cli.app import wk
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
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def chapter(name: str, command: click.Command) -> str:
    """One command as the page has it."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    help_text = "\n\n".join(
        textwrap.fill(" ".join(part.split()), 120) for part in (command.help or "").split("\n\n")
    )
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
        "\n\n".join(part for part in (f"## `{name}`", f"```text\n{usage}\n```", help_text, table) if part)
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


def test_every_setting_is_in_the_guide_with_its_default() -> None:
    from watchkeeper.agents.tools.contract import McpServer
    from watchkeeper.runtime.config import AnthropicSettings, Config, OpenAISettings

    page = text_of("configuration.md")
    shown = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", page, re.MULTILINE))
    for model in (Config, AnthropicSettings, OpenAISettings):
        for attribute, field in model.model_fields.items():
            name = field.alias or attribute
            assert name in shown, f"configuration.md does not mention {name}"
            default = field.default
            if isinstance(default, str | int | float):
                said = (
                    {True: "true", False: "false"}.get(default, default)
                    if isinstance(default, bool)
                    else default
                )
                assert shown[name] == (f'`"{said}"`' if isinstance(default, str) else f"`{said}`"), name
    servers = page.partition("## MCP servers")[2].partition("## ")[0]
    for name in (field.name for field in fields(McpServer)):
        assert f"`{name}`" in servers, f"configuration.md does not mention mcp_servers.*.{name}"


def test_the_example_of_a_configuration_is_one(tmp_path: Path) -> None:
    from watchkeeper.runtime.config import load_config

    page = text_of("configuration.md")
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tmp_path / "config.toml").write_text(example[1], encoding="utf-8")
    config = load_config(tmp_path)
    assert config.model == "anthropic/claude-sonnet-5"
    assert list(config.mcp_servers) == ["tickets"]


def test_built_in_roles_are_those_of_the_guide(tmp_path: Path) -> None:
    from watchkeeper.agents.roles import load_roles

    page = " ".join(text_of("configuration.md").split())
    assert "built-in ones (" + ", ".join(f"`{name}`" for name in sorted(load_roles(tmp_path))) + ")" in page


def test_the_keys_and_commands_of_the_dashboard_are_those_of_the_guide() -> None:
    from watchkeeper_tui.actions import ACTIONS
    from watchkeeper_tui.keymap import SLASHES

    actions = [
        f"| `{one.key}` | {one.label} | {one.help[0].upper()}{one.help[1:]} |\n" for one in ACTIONS if one.key
    ]
    agrees(
        "dashboard.md",
        "actions",
        "\n| Key | Action | What it does |\n|---|---|---|\n" + "".join(actions) + "\n",
    )
    slashes = [
        f"| `/{one.name}{' ' + one.argument if one.argument else ''}` | {one.help} |\n" for one in SLASHES
    ]
    agrees("dashboard.md", "slashes", "\n| Command | What it does |\n|---|---|\n" + "".join(slashes) + "\n")


def test_the_ids_of_keys_are_those_of_the_guide_and_its_example_can_be_used() -> None:
    from watchkeeper_tui.app import active_together
    from watchkeeper_tui.keymap import usable_keys

    groups = active_together()
    ids = dict.fromkeys(
        str(binding.id) for group in groups for binding in group if getattr(binding, "id", None)
    )
    named: dict[str, list[str]] = {}
    for one in ids:
        prefix, _, name = one.rpartition(".")
        named.setdefault(prefix, []).append(f"`{name}`")
    lines = [
        f"- {f'`{prefix}.`' if prefix else 'no dot'}: {', '.join(names)}" for prefix, names in named.items()
    ]
    agrees(
        "dashboard.md",
        "ids of keys",
        "\n" + "".join(textwrap.fill(line, 118, subsequent_indent="  ") + "\n" for line in lines) + "\n",
    )
    example = tomllib.loads(text_of("dashboard.md").split("```toml")[1].split("```")[0])["keys"]
    assert usable_keys(example, groups) == (example, [])


def test_keys_for_looking_around_are_bound() -> None:
    from watchkeeper_tui.screens.live import LiveScreen

    names = {
        "[": "left_square_bracket", "]": "right_square_bracket", "-": "minus", "=": "equals_sign", "/": "slash", "$": "dollar_sign",
    }  # fmt: skip
    names |= {
        ":": "colon",
        "?": "question_mark",
        "esc": "escape",
        "<": "less_than_sign",
        ">": "greater_than_sign",
        "^": "circumflex_accent",
        "_": "underscore",
    }
    bound = {
        key
        for kind in LiveScreen.__mro__
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
    part = text_of("dashboard.md").partition("## Looking around")[2].partition("## ")[0]
    for row in re.findall(r"^\| (`.+?) \|", part, re.MULTILINE):
        for key in re.findall(r"`([^`]+)`", row):
            assert names.get(key, key) in bound, f"{key} is bound to nothing"


def test_every_theme_that_is_shipped_is_named_in_the_guide() -> None:
    page = text_of("dashboard.md")
    for theme in (ROOT / "themes").glob("*.toml"):
        assert f"`{theme.stem}`" in page


def test_the_definitions_of_the_survey_are_those_of_the_guide() -> None:
    from watchkeeper.models.surveyor import DEFINITIONS

    lines = [
        textwrap.fill(f"- **{name}**: {text}", 118, subsequent_indent="  ") + "\n"
        for name, text in DEFINITIONS.items()
    ]
    agrees("surveyor.md", "definitions", "\n" + "".join(lines) + "\n")


def examples() -> dict[str, str]:
    text = text_of("../README.md")
    return dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", text, re.DOTALL))


def test_the_examples_of_the_readme_are_about_ten_lines() -> None:
    assert set(examples()) == {"runtime", "manager"}
    assert all(len(code.strip().splitlines()) <= 14 for code in examples().values())


def test_the_memory_example_of_the_readme_compacts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", examples()["manager"]],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert " -> " in done.stdout
    assert "200 messages kept" in done.stdout


def test_the_session_example_of_the_readme_runs_to_its_end(tmp_path, monkeypatch, capsys):
    from watchkeeper.models import surveyor

    monkeypatch.setattr(surveyor, "LONGEST_REPLY_SECONDS", 0.0)
    monkeypatch.setattr(surveyor, "FIRST_TOKEN_SECONDS", 0.0)
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WATCHKEEPER_DB", str(tmp_path / "data" / "watchkeeper.db"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hello.py").write_text("print('hello')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "work")
    exec(compile(examples()["runtime"], "README.md", "exec"), {"__name__": "__main__"})
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


def test_every_page_of_the_guide_is_linked_from_the_readme() -> None:
    readme = text_of("../README.md")
    for page in DOCS.glob("*.md"):
        assert f"docs/{page.name}" in readme


def test_every_command_line_of_the_guide_is_one_that_exists() -> None:
    known = {name for name, _ in commands(wk, "wk")} | {"wk"}
    for page in PAGES:
        blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in "".join(blocks).splitlines():
            words = line.partition("#")[0].split()
            if words[:1] != ["wk"]:
                continue
            name = next((n for n in (" ".join(words[:3]), " ".join(words[:2]), "wk") if n in known), None)
            assert name is not None, f"{page.name}: {line}"
            command = dict(commands(wk, "wk")).get(name)
            options = {opt for param in command.params for opt in param.opts} if command else set()
            for word in re.findall(r"(?<!\S)--[a-z-]+", line.partition("#")[0]):
                assert word in options, f"{page.name}: {line}: no option {word}"


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
