"""Which tools may run without a question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.agents.tools.contract import Permission
from watchkeeper.agents.tools.workers import Permissions, narrowest

ALLOW, ASK, DENY = Permission.ALLOW, Permission.ASK, Permission.DENY
DEFAULTS = {"read": ALLOW, "bash": ASK, "mcp__git__push": ASK}


@pytest.mark.parametrize(
    ("settings", "tool", "expected"),
    [
        ({}, "read", ALLOW),
        ({}, "bash", ASK),
        ({}, "nobody_knows", ASK),
        ({"user": {"bash": ALLOW}}, "bash", ALLOW),
        ({"user": {"read": ASK}}, "read", ASK),
        ({"user": {"mcp__git__*": ALLOW}}, "mcp__git__push", ALLOW),
        ({"user": {"mcp__git__*": ALLOW, "mcp__git__push": ASK}}, "mcp__git__push", ASK),
        ({"user": {"mcp__*": DENY, "mcp__git__*": ALLOW}}, "mcp__git__push", DENY),
        ({"user": {"mcp__*": ASK, "mcp__git__*": ALLOW}}, "mcp__git__push", ASK),
        ({"workspace": {"bash": ALLOW}}, "bash", ASK),
        ({"workspace": {"*": ALLOW}}, "unknown", ASK),
        ({"workspace": {"read": ASK}}, "read", ASK),
        ({"user": {"bash": ALLOW}, "workspace": {"bash": DENY}}, "bash", DENY),
        ({"allow": {"bash"}}, "bash", ALLOW),
        ({"allow": {"mcp__git__*"}}, "mcp__git__push", ALLOW),
        ({"allow": {"bash"}, "workspace": {"bash": ASK}}, "bash", ALLOW),
        ({"allow": {"bash"}, "workspace": {"bash": DENY}}, "bash", DENY),
        ({"allow": {"bash"}, "user": {"bash": DENY}}, "bash", DENY),
        ({"allow": {"bash"}, "deny": {"bash"}}, "bash", DENY),
        ({"deny": {"*"}}, "read", DENY),
    ],
)
def test_permissions_are_decided_by_the_table(settings, tool, expected):
    assert Permissions(DEFAULTS, **settings).resolve(tool) is expected


names = st.sampled_from(["read", "bash", "mcp__git__push", "mcp__*", "*"])
rules = st.dictionaries(names, st.sampled_from(Permission), max_size=3)
tools = st.sampled_from(["read", "bash", "mcp__git__push", "other"])


@given(rules, rules, tools)
def test_a_workspace_never_widens_anything_and_deny_wins_over_all(user, workspace, tool):
    without = Permissions(DEFAULTS, user=user).resolve(tool)
    with_it = Permissions(DEFAULTS, user=user, workspace=workspace).resolve(tool)
    assert narrowest(without, with_it) is with_it
    denied = Permissions(DEFAULTS, user=user, allow=frozenset({"*"}), deny=frozenset({tool}))
    assert denied.resolve(tool) is DENY
