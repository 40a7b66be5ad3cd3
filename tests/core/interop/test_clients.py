"""Adding the MCP server to the configuration of other programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.cli.conftest import Wk

from watchkeeper.agents.backends import TOOL_SERVER
from watchkeeper.agents.roles import ALWAYS
from watchkeeper.interop.clients import PROGRAMS, SERVER, Entry, entry
from watchkeeper.interop.mcp import CONTROL, READING
from watchkeeper.records.errors import BadInput

COMMAND = ("/opt/wk", "mcp")


def made(program: str) -> Entry:
    return entry(program, COMMAND, {}, Path("/home/ada"))


TEXTS = st.text(max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
SERVERS = st.dictionaries(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=2), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(TEXTS.filter(lambda one: one != "mcpServers"), VALUES, max_size=4),
    SERVERS | st.none(),
    st.sampled_from([None, 2, 4, "\t"]),
    st.booleans(),
)
def test_a_file_of_json_gets_one_entry_and_keeps_every_other_byte(rest, servers, indent, plain):
    value = rest | ({} if servers is None else {"mcpServers": servers})
    text = json.dumps(value, indent=indent, ensure_ascii=plain)
    added = made("claude")
    edited = added.edited(text)
    assert json.loads(edited) == value | {
        "mcpServers": (servers or {}) | {"watchkeeper": (servers or {}).get("watchkeeper", {}) | added.value}
    }
    assert added.edited(edited) == edited
    if "watchkeeper" not in (servers or {}):  # one piece was put in
        same = next(
            (at for at, pair in enumerate(zip(text, edited, strict=False)) if pair[0] != pair[1]), len(text)
        )
        assert edited.endswith(text[same:])


COMMENTED = """// my settings
{
  "theme": "dark", // dark!
  /* servers */
  "mcp": {
    "other": { "type": "local", "command": ["a // b"], },  // mine
  },
  "model": "x/y", // last
}
"""


def test_comments_and_trailing_commas_of_opencode_stay() -> None:
    edited = made("opencode").edited(COMMENTED)
    entry_lines = [line for line in edited.splitlines() if line not in COMMENTED.splitlines()]
    left = edited
    for line in entry_lines:
        left = left.replace(line + "\n", "", 1)
    assert '"watchkeeper": {' in entry_lines[0]
    assert left.replace("},,", "},") == COMMENTED
    assert made("opencode").edited(edited) == edited


TOML = """# mine
model = "gpt-5"   # the good one

[mcp_servers.other]
command = "x"
args = ["[mcp_servers.watchkeeper]"]

[projects."/w"]
trust_level = "trusted"
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "before",
    ["", TOML, TOML.rstrip("\n"), TOML + "[mcp_servers.watchkeeper]\ncommand = 'old'\n\n# end\n[z]\n"],
)
def test_a_file_of_toml_gets_one_table_and_keeps_the_rest(before: str, line_end: str) -> None:
    before = before.replace("\n", line_end)
    edited = made("codex").edited(before)
    servers = tomllib.loads(before).get("mcp_servers", {}) | {"watchkeeper": made("codex").value}
    assert tomllib.loads(edited) == tomllib.loads(before) | {"mcp_servers": servers}
    assert edited.startswith(before.partition("[mcp_servers.watchkeeper]\n")[0]) or "old" in before
    assert made("codex").edited(edited) == edited


DAMAGED = {
    "claude": ['{"a": 1', "[1]", '{"mcpServers": []}', '{"a": 1, "a": 2}', '{"a": 1,}', '{"a": 1} // x', '{"a": .}', "{'a': 1}", '{"a" 1}'],
    "codex": ["a = ", "mcp_servers = 3", "mcp_servers = { watchkeeper = { command = 'x' } }", "[a]\n[a]\n"],
    "opencode": ['{"mcp": "x"}', "{/* }", '{"a": 1 "b": 2}', '{"a": [1 2]}', '{"a":' * 300],
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "text"), [(program, text) for program, texts in DAMAGED.items() for text in texts]
)
def test_a_damaged_file_is_refused_and_left_as_it_is(program: str, text: str, wk: Wk, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        made(program).edited(text)
    place = entry(program, COMMAND, {}, tmp_path).path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    assert "nothing was changed" in wk("mcp", "install", program, "--write").error
    assert place.read_text() == text
    assert sorted(one.name for one in place.parent.iterdir() if one.is_file()) == [place.name]


@pytest.mark.parametrize("program", PROGRAMS)
def test_installing_writes_once_keeps_a_copy_the_mode_and_a_link(program, wk, tmp_path):
    place = entry(program, COMMAND, {}, tmp_path).path
    real = tmp_path / "dotfiles" / place.name
    real.parent.mkdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    real.write_text(text := TOML if program == "codex" else '{"theme": "dark"}')
    real.chmod(0o600)
    place.symlink_to(real)
    shown = wk("mcp", "install", program)
    assert shown.code == 0
    assert real.read_text() == text
    written = wk("mcp", "install", program, "--write", "--allow-control", "--json").json
    assert Path(written["backup"]).read_text() == text
    assert place.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert "--allow-control" in real.read_text()
    assert wk("mcp", "install", program, "--write", "--allow-control", "--json").json["written"] is False
    assert len(list(real.parent.iterdir())) == 2


def test_a_program_without_a_file_gets_one(wk: Wk, tmp_path: Path) -> None:
    for program in PROGRAMS:
        assert wk("mcp", "install", program, "--write").code == 0
        place = entry(program, COMMAND, {}, tmp_path).path
        parsed = tomllib.loads(place.read_text()) if program == "codex" else json.loads(place.read_text())
        assert "watchkeeper" in next(iter(parsed.values()))


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(TEXTS.filter(lambda one: one != "mcpServers"), VALUES, max_size=4),
    SERVERS.filter(lambda one: "watchkeeper" not in one),
    st.sampled_from([None, 2, 4, "\t"]),
    st.booleans(),
)
def test_what_was_added_to_a_file_of_json_is_taken_out_again(rest, servers, indent, first):
    members = {"mcpServers": servers} | rest if first else rest | {"mcpServers": servers}
    before = json.dumps(members, indent=indent, ensure_ascii=False)
    after = made("claude").removed(made("claude").edited(before))
    assert json.loads(after) == json.loads(before)
    assert made("claude").removed(after) == after
    if servers:
        assert after == before


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "before",
    ["", "# mine\nmodel = 'x'\n", "[mcp_servers.other]\ncommand = 'a'\n\n# of the next\n[tui]\nx = 1\n"],
)
def test_what_was_added_to_a_file_of_toml_is_taken_out_again(before: str, line_end: str) -> None:
    before = before.replace("\n", line_end)
    added = made("codex").edited(before)
    assert made("codex").removed(added) == before
    below = (
        added
        + f'[mcp_servers.watchkeeper.env]{line_end}A = "b"{line_end}{line_end}# of tui{line_end}[tui2]{line_end}'
    )
    assert "watchkeeper" not in made("codex").removed(below)
    assert "# of tui" in made("codex").removed(below)


def test_a_comment_beside_the_entry_and_other_servers_stay_when_it_is_taken_out() -> None:
    text = (
        '{\n  // mine\n  "mcp": {\n    "a": {}, // of a\n    "watchkeeper": {"x": 1}, /* ours */\n  },\n}\n'
    )
    after = made("opencode").removed(text)
    assert "// mine" in after
    assert "// of a" in after
    assert "watchkeeper" not in after


@pytest.mark.parametrize("program", PROGRAMS)
def test_uninstalling_takes_out_what_was_installed_and_keeps_a_copy(program, wk, tmp_path):
    place = entry(program, COMMAND, {}, tmp_path).path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text := TOML if program == "codex" else '{"theme": "dark"}')
    wk("mcp", "install", program, "--write")
    installed = place.read_text()
    removed = wk("mcp", "uninstall", program, "--json").json
    assert Path(removed["backup"]).read_text() == installed
    reads = tomllib.loads if program == "codex" else json.loads
    left = {name: one for name, one in reads(place.read_text()).items() if one}
    assert left == {name: one for name, one in reads(text).items() if one}
    assert wk("mcp", "uninstall", program, "--json").json["removed"] is False


def test_uninstalling_without_a_file_makes_none(wk: Wk, tmp_path: Path) -> None:
    assert wk("mcp", "uninstall", "codex").code == 0
    assert not entry("codex", COMMAND, {}, tmp_path).path.exists()


def test_an_installed_entry_names_the_database_that_is_in_use(wk: Wk, tmp_path: Path) -> None:
    shown = wk("mcp", "install", "codex", "--json").json["configuration"]
    arguments = tomllib.loads(shown)["mcp_servers"]["watchkeeper"]["args"]
    named = Path(arguments[arguments.index("--db") + 1])
    assert named.is_absolute()
    other = wk("mcp", "install", "codex", "--json", "--db", "else.db").json["configuration"]
    assert tomllib.loads(other)["mcp_servers"]["watchkeeper"]["args"][-1].endswith("/else.db")


def test_the_tools_of_an_agent_have_another_name_than_the_installed_server() -> None:
    assert SERVER != TOOL_SERVER
    assert not {f"{SERVER}_{tool.name}" for tool in (*READING, *CONTROL)} & {
        f"{TOOL_SERVER}_{name}" for name in ALWAYS
    }
