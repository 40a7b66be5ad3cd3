"""Who may call what: one decision from the tools' defaults, the user's configuration, the workspace and the
command line."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watchkeeper.agents.tools.contract import Permission
from watchkeeper.records.errors import BadInput

_NARROWNESS = {Permission.ALLOW: 0, Permission.ASK: 1, Permission.DENY: 2}

Rules = Mapping[str, Permission]
"""Tool name, or a pattern such as `mcp__github__*`, → permission."""


def parse_rules(table: Mapping[str, object], where: str) -> dict[str, Permission]:
    """Rules of a configuration file, where `where` names the table in messages.

    Raises:
        BadInput: a value that is none of allow, ask and deny.
    """
    rules: dict[str, Permission] = {}
    for name, value in table.items():
        try:
            rules[name] = Permission(str(value))
        except ValueError:
            raise BadInput(f"{where}.{name} is {value!r}; use allow, ask or deny") from None
    return rules


def narrowest(*permissions: Permission) -> Permission:
    """The one that lets the least happen."""
    return max(permissions, key=_NARROWNESS.__getitem__)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Decides whether a role's call of a tool may run, must be asked about, or is denied.

    In this order: a tool's own default; the user's rules, which may widen it; the user's rules for the role,
    which may widen it too; the workspace's rules, which only narrow it; `--allow`, which answers beforehand
    what would be asked. A `deny` from anywhere, and a role that does not list the tool, are final. A tool
    that nobody knows is asked about.
    """

    defaults: Rules = field(default_factory=dict)
    user: Rules = field(default_factory=dict)
    user_by_role: Mapping[str, Rules] = field(default_factory=dict)
    workspace: Rules = field(default_factory=dict)
    allow: frozenset[str] = frozenset()
    """Names or patterns of `--allow`."""
    deny: frozenset[str] = frozenset()
    """Names or patterns of `--deny`."""
    tools_by_role: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """Role → names or patterns of the tools that it may call; a role that is not in here may call all."""

    def resolve(self, role: str, tool: str) -> Permission:
        """The permission for one call."""
        if _matches(self.deny, tool) or not self._lists(role, tool):
            return Permission.DENY
        said = [
            self.defaults.get(tool),
            _rule(self.user, tool),
            _rule(self.user_by_role.get(role, {}), tool),
        ]
        known = [one for one in said if one is not None]
        if Permission.DENY in known:
            return Permission.DENY
        decided = known[-1] if known else Permission.ASK
        decided = narrowest(decided, _rule(self.workspace, tool) or Permission.ALLOW)
        if decided is Permission.ASK and _matches(self.allow, tool):
            return Permission.ALLOW
        return decided

    def _lists(self, role: str, tool: str) -> bool:
        listed = self.tools_by_role.get(role)
        return listed is None or _matches(listed, tool)


def _matches(names: Iterable[str], tool: str) -> bool:
    return any(name == tool or fnmatch.fnmatchcase(tool, name) for name in names)


def _rule(rules: Rules, tool: str) -> Permission | None:
    """The rule of this very name, or else the narrowest of the patterns that match."""
    if tool in rules:
        return rules[tool]
    matching = [permission for pattern, permission in rules.items() if fnmatch.fnmatchcase(tool, pattern)]
    return narrowest(*matching) if matching else None
