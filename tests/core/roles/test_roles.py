"""Role files: where they come from, what they may say, and what a damaged one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.agents.agent_state import overhead_tokens
from watchkeeper.agents.memory_tools import RecallTool, memory_tools
from watchkeeper.agents.roles import (
    ALWAYS,
    PLAN_TOOLS,
    SHOWN_PATTERNS,
    Role,
    agents_md,
    load_roles,
    permission_note,
    split_front_matter,
)
from watchkeeper.agents.session_tools import PlanTools, artifact_tools
from watchkeeper.agents.tools.contract import Permission
from watchkeeper.agents.tools.workers import WorkerPool, builtin_tools
from watchkeeper.memory.tokens import default_counter

BUILT_IN = {"planner", "explorer", "coder", "writer", "reviewer", "researcher"}


def write(folder: Path, name: str, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "config"


def test_the_built_in_roles_are_there_and_only_the_planner_plans(workspace: Path) -> None:
    roles = load_roles(workspace)
    assert set(roles) == BUILT_IN
    assert roles.warnings == []
    for role in roles.values():
        assert role.description
        assert role.trusted
        assert len(role.prompt) > 500
        assert all(role.may_call(tool) for tool in ALWAYS)
        assert all(role.may_call(tool) is (role.name == "planner") for tool in PLAN_TOOLS)
    can = {name: role.can for name, role in roles.items()}
    assert can == {
        "coder": "writes files, runs commands", "explorer": "reads only", "planner": "reads, runs commands",
        "researcher": "writes files, runs commands", "reviewer": "reads, runs commands", "writer": "writes files",
    }  # fmt: skip


def test_the_users_role_overrides_a_built_in_one(workspace: Path, user: Path) -> None:
    write(
        user / "agents",
        "coder.md",
        "---\nname: coder\ndescription: mine\ntools: read\nmodel: anthropic/x\n---\nBe brief.\n",
    )
    coder = load_roles(workspace, user)["coder"]
    assert (coder.description, coder.tools, coder.model, coder.prompt) == (
        "mine",
        ("read",),
        "anthropic/x",
        "Be brief.",
    )
    assert coder.trusted


def test_a_workspaces_roles_come_last_and_are_not_trusted(workspace: Path, user: Path) -> None:
    write(user / "agents", "helper.md", "---\nname: helper\n---\nThe user's.")
    write(workspace / ".claude/agents", "helper.md", "---\nname: helper\n---\nClaude's.")
    write(workspace / ".claude/agents/nested", "deep.md", "---\nname: deep\n---\nDeep.")
    write(workspace / ".watchkeeper/agents", "helper.md", "---\nname: helper\n---\nOurs.")
    roles = load_roles(workspace, user)
    assert roles["helper"].prompt == "Ours."
    assert not roles["helper"].trusted
    assert "deep" in roles


def test_a_workspace_can_only_take_tools_away(workspace: Path) -> None:
    folder = workspace / ".watchkeeper/agents"
    write(folder, "explorer.md", "---\nname: explorer\ntools: read, bash, write\n---\nExplore.")
    write(folder, "writer.md", "---\nname: writer\n---\nWrite.")
    write(folder, "planner.md", "---\nname: planner\ntools: write, create_plan, read\n---\nPlan.")
    write(folder, "boss.md", "---\nname: boss\ntools: create_plan, finish_session, grep\n---\nLead.")
    roles = load_roles(workspace)
    assert roles["explorer"].tools == ("read",)
    assert not roles["writer"].may_call("bash")
    assert not roles["planner"].may_call("write")
    assert roles["planner"].may_call("finish_session")
    assert roles["boss"].tools == ("grep",)
    assert not roles["boss"].may_call("create_plan")


def test_tools_of_claude_code_are_known_by_our_names(workspace: Path) -> None:
    tools = "Read, Grep, Glob, Bash(git log:*, git diff:*), Edit, Write, LS, mcp__git__*, WebFetch"
    write(workspace / ".claude/agents", "c.md", f"---\nname: c\ntools: {tools}\nmodel: sonnet\n---\nDo.")
    role = load_roles(workspace)["c"]
    assert role.tools == (
        "read",
        "grep",
        "glob",
        "list_folder",
        "bash",
        "edit",
        "write",
        "mcp__git__*",
        "WebFetch",
    )
    assert role.model is None
    assert role.may_call("mcp__git__push")
    assert role.may_call("save_artifact")


def test_the_descriptions_of_tools_are_short(workspace: Path) -> None:
    roles = load_roles(workspace)
    stored = [*PlanTools(lambda: "id", roles).tools(), *artifact_tools(), *memory_tools()]
    builtin = builtin_tools(WorkerPool(1, workspace, {})).values()
    specs = [tool.spec for tool in builtin] + [tool.spec for tool in stored] + [RecallTool.spec]
    for role, most in {"planner": 3_300, "coder": 2_300}.items():  # `merge_task` comes to the planner's
        own = [spec for spec in specs if roles[role].may_call(spec.name)]
        assert overhead_tokens(default_counter(), "", own) < most


def test_real_files_with_unquoted_colons_are_read(workspace: Path) -> None:
    text = (
        '---\nname: code-reviewer\ndescription: Use this agent when: you wrote code. Examples: <example>user: "hi"</example>\n'
        "tools:\n  - Read\n  - Grep\ncolor: blue\n---\n\nYou review.\n"
    )
    write(workspace / ".claude/agents", "x.md", text.replace("\n", "\r\n"))
    role = load_roles(workspace)["code-reviewer"]
    assert role.description.startswith("Use this agent when: you wrote code.")
    assert role.tools == ("read", "grep")
    assert role.prompt == "You review."


def test_a_damaged_file_is_one_warning_and_no_more(workspace: Path, tmp_path: Path) -> None:
    folder = workspace / ".claude/agents"
    write(folder, "open.md", "---\nname: open\nno end")
    write(folder, "empty.md", "")
    write(folder, "binary.md", bytes(range(256)) * 10 + b"\x1b[31m")
    write(folder, "name.md", "---\nname: ../../evil\n---\nText.")
    write(folder, "huge.md", "x" * 200_000)
    write(folder, "bomb.md", "---\na: &a [x,x]\nb: &b [*a,*a]\nname: bomb\n---\nText.")
    os.mkfifo(folder / "fifo.md")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "folder.md").mkdir()
    (folder / "bad\x1b[31m.md").write_text("---\nname: [\n---\n")
    outside = write(tmp_path, "outside.md", "---\nname: outside\n---\nSecret.")
    (folder / "out.md").symlink_to(outside)
    write(folder, "good.md", "---\nname: good\n---\nText.")
    roles = load_roles(workspace)
    assert {"good", "bomb"} <= set(roles)
    assert "outside" not in roles
    assert len(roles.warnings) >= 8
    assert all(warning.isprintable() for warning in roles.warnings)


def test_a_folder_of_roles_that_leads_out_of_the_workspace_is_left_out(workspace, tmp_path):
    write(tmp_path / "elsewhere", "x.md", "---\nname: x\n---\nText.")
    (workspace / ".claude").mkdir()
    (workspace / ".claude/agents").symlink_to(tmp_path / "elsewhere")
    roles = load_roles(workspace)
    assert set(roles) == BUILT_IN
    assert len(roles.warnings) == 1


def test_a_workspaces_role_cannot_send_text_to_another_provider() -> None:
    mine = Role("a", "", None, "anthropic/large", "p")
    theirs = Role("a", "", None, "anthropic/large", "p", trusted=False)
    assert mine.model_for("local/small") == "anthropic/large"
    assert theirs.model_for("local/small") == "local/small"
    assert theirs.model_for("anthropic/small") == "anthropic/large"
    assert Role("a", "", None, None, "p").model_for("local/small") == "local/small"


@given(st.text(alphabet=st.sampled_from("---\n: abc[]{}&*!|>'\"#\t\x00é\ufeff"), max_size=200))
def test_no_front_matter_makes_a_reader_fail(text: str) -> None:
    try:
        fields, body = split_front_matter("---\n" + text + "\n---\nbody")
    except ValueError:
        return
    assert isinstance(fields, dict)
    assert isinstance(body, str)


def test_agents_md_is_read_within_bounds(workspace: Path, tmp_path: Path) -> None:
    assert agents_md(workspace) is None
    file = write(workspace, "AGENTS.md", "Use tabs.\n")
    assert agents_md(workspace) == "Use tabs.\n"
    file.write_bytes(b"caf\xe9 " * 100)
    assert "caf\N{REPLACEMENT CHARACTER}" in str(agents_md(workspace))
    file.write_text("x" * 1_000_000)
    assert len(str(agents_md(workspace))) < 40_000
    file.unlink()
    file.symlink_to(write(tmp_path, "secret", "secret"))
    assert agents_md(workspace) is None
    file.unlink()
    os.mkfifo(file)
    assert agents_md(workspace) is None
    assert agents_md(workspace / "missing") is None


# --- what a first message says of permissions -----------------------------------------------------------------

ALLOW, ASK, DENY = Permission.ALLOW, Permission.ASK, Permission.DENY


@pytest.mark.parametrize(
    ("tools", "patterns", "wanted"),
    [
        ({}, ["pytest *"], ""),
        ({"read": ALLOW, "grep": ALLOW}, ["pytest *"], "Without approval: grep, read."),
        (
            {"read": ALLOW, "write": ASK, "bash": ASK, "edit": DENY}, ["pytest *", "tail -n *", "pytest *"],
            "Without approval: read, bash for `pytest *`, `tail -n *`.\nWith a person's approval: bash, write.\nDenied: edit.\n"
            "A pipeline of these is allowed too. Anything with ;, &&, redirection or substitution needs approval.",
        ),
        (
            {"bash": ASK}, [],
            "With a person's approval: bash.\nA pipeline of commands allowed by an approval pattern is allowed too. Anything with ;, &&,"
            " redirection or substitution needs approval.",
        ),
        ({"bash": ALLOW}, ["pytest *"], "Without approval: bash."),
        ({"bash": DENY}, ["pytest *"], "Denied: bash."),
        (
            {"mcp__a__x": ASK, "mcp__a__y": ASK, "mcp__b__x": ALLOW, "mcp__b__y": DENY}, [],
            "Without approval: mcp__b__x.\nWith a person's approval: mcp__a__*.\nDenied: mcp__b__y.",
        ),
    ],
)  # fmt: skip
def test_a_first_message_says_what_needs_no_question(tools, patterns, wanted):
    assert permission_note(tools, patterns) == wanted
    assert permission_note(dict(reversed(tools.items())), patterns) == wanted


def test_a_first_message_shows_the_newest_patterns_only() -> None:
    note = permission_note({"bash": ASK}, [f"p{number} *" for number in range(30)])
    assert f"`p{30 - SHOWN_PATTERNS} *`" in note
    assert f"`p{29 - SHOWN_PATTERNS} *`" not in note
