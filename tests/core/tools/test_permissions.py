"""Who may call what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.agents.tools.builtin import Permissions, narrowest, parse_rules
from watchkeeper.agents.tools.contract import Permission
from watchkeeper.records.errors import BadInput

ALLOW, ASK, DENY = Permission.ALLOW, Permission.ASK, Permission.DENY
DEFAULTS = {"read": ALLOW, "bash": ASK, "mcp__git__push": ASK}


@pytest.mark.parametrize(
    ("settings", "role", "tool", "expected"),
    [
        ({}, "coder", "read", ALLOW),
        ({}, "coder", "bash", ASK),
        ({}, "coder", "nobody_knows", ASK),
        ({"user": {"bash": ALLOW}}, "coder", "bash", ALLOW),
        ({"user": {"read": ASK}}, "coder", "read", ASK),
        ({"user": {"mcp__git__*": ALLOW}}, "coder", "mcp__git__push", ALLOW),
        ({"user": {"mcp__git__*": ALLOW, "mcp__git__push": ASK}}, "coder", "mcp__git__push", ASK),
        ({"user": {"mcp__*": DENY, "mcp__git__*": ALLOW}}, "coder", "mcp__git__push", DENY),
        ({"user": {"mcp__*": ASK, "mcp__git__*": ALLOW}}, "coder", "mcp__git__push", ASK),
        ({"user": {"bash": ASK}, "user_by_role": {"coder": {"bash": ALLOW}}}, "coder", "bash", ALLOW),
        ({"user": {"bash": ASK}, "user_by_role": {"coder": {"bash": ALLOW}}}, "writer", "bash", ASK),
        ({"user": {"bash": DENY}, "user_by_role": {"coder": {"bash": ALLOW}}}, "coder", "bash", DENY),
        ({"workspace": {"bash": ALLOW}}, "coder", "bash", ASK),
        ({"workspace": {"*": ALLOW}}, "coder", "unknown", ASK),
        ({"workspace": {"read": ASK}}, "coder", "read", ASK),
        ({"user": {"bash": ALLOW}, "workspace": {"bash": DENY}}, "coder", "bash", DENY),
        ({"allow": {"bash"}}, "coder", "bash", ALLOW),
        ({"allow": {"mcp__git__*"}}, "coder", "mcp__git__push", ALLOW),
        ({"allow": {"bash"}, "workspace": {"bash": ASK}}, "coder", "bash", ALLOW),
        ({"allow": {"bash"}, "workspace": {"bash": DENY}}, "coder", "bash", DENY),
        ({"allow": {"bash"}, "user": {"bash": DENY}}, "coder", "bash", DENY),
        ({"allow": {"bash"}, "deny": {"bash"}}, "coder", "bash", DENY),
        ({"deny": {"*"}}, "coder", "read", DENY),
        ({"tools_by_role": {"writer": ["read"]}, "allow": {"bash"}}, "writer", "bash", DENY),
        ({"tools_by_role": {"writer": ["read"]}}, "writer", "read", ALLOW),
        ({"tools_by_role": {"writer": ["read"]}}, "coder", "bash", ASK),
        ({"tools_by_role": {"writer": ["mcp__git__*"]}}, "writer", "mcp__git__push", ASK),
    ],
)
def test_permissions_are_decided_by_the_table(
    settings: dict[str, Any], role: str, tool: str, expected: Permission
) -> None:
    assert Permissions(DEFAULTS, **settings).resolve(role, tool) is expected


def test_rules_come_from_a_table_and_a_wrong_word_is_named() -> None:
    assert parse_rules({"bash": "allow", "mcp__*": "deny"}, "permissions") == {"bash": ALLOW, "mcp__*": DENY}
    with pytest.raises(BadInput, match=r"permissions\.bash is 'yes'"):
        parse_rules({"bash": "yes"}, "permissions")


names = st.sampled_from(["read", "bash", "mcp__git__push", "mcp__*", "*"])
rules = st.dictionaries(names, st.sampled_from(Permission), max_size=3)


@given(rules, rules, st.sampled_from(["read", "bash", "mcp__git__push", "other"]))
def test_a_workspace_never_widens_anything(
    user: dict[str, Permission], workspace: dict[str, Permission], tool: str
) -> None:
    without = Permissions(DEFAULTS, user=user).resolve("coder", tool)
    with_it = Permissions(DEFAULTS, user=user, workspace=workspace).resolve("coder", tool)
    assert narrowest(without, with_it) is with_it


@given(rules, rules, st.sampled_from(["read", "bash", "other"]))
def test_deny_wins_over_all(user: dict[str, Permission], by_role: dict[str, Permission], tool: str) -> None:
    decided = Permissions(
        DEFAULTS, user=user, user_by_role={"coder": by_role}, allow=frozenset({"*"}), deny=frozenset({tool})
    )
    assert decided.resolve("coder", tool) is DENY
