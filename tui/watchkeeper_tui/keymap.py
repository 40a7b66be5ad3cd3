"""The user's keys: which may be changed, whether they clash, and what a key is called on screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, _character_to_key, key_to_character

_SHOWN = {"left_square_bracket": "[", "right_square_bracket": "]", "minus": "-", "equals_sign": "=", "slash": "/", "colon": ":",
          "question_mark": "?", "exclamation_mark": "!", "escape": "esc"}  # fmt: skip


def normal(keys: str) -> frozenset[str]:
    """Keys as the toolkit names them: `?` is `question_mark`."""
    parts = [part.strip() for part in keys.split(",") if part.strip()] or [keys.strip()]
    return frozenset(_character_to_key(part) if len(part) == 1 else part for part in parts)


_MODIFIERS = frozenset({"ctrl", "shift", "alt", "super", "meta", "hyper"})
_NAMED = frozenset(KEY_NAME_REPLACEMENTS.values()) | {
    key.value.rsplit("+", 1)[-1] for key in Keys if not key.value.startswith("<")
}


def is_key(name: str) -> bool:
    """Whether a terminal can send a key of that name: `p`, `P`, `?`, `question_mark`, `f5`, `ctrl+x`,
    `pageup`."""
    *modifiers, key = name.split("+") if len(name) > 1 else [name]
    if not _MODIFIERS.issuperset(modifiers):
        return False
    if len(key) == 1:
        return key.isprintable() and not key.isspace()
    character = key_to_character(key)
    return key in _NAMED or (character is not None and _character_to_key(character) == key)


def active_together() -> list[list[BindingType]]:
    """The bindings of each screen, and of the panes in it that have keys of their own, with those that every
    screen has."""
    from watchkeeper_tui.screens.approval import ApprovalScreen
    from watchkeeper_tui.screens.base import WatchScreen
    from watchkeeper_tui.screens.compaction import CompactionScreen
    from watchkeeper_tui.screens.compare import CompareScreen
    from watchkeeper_tui.screens.fork import ForkScreen
    from watchkeeper_tui.screens.live import LiveScreen
    from watchkeeper_tui.screens.message import MessageScreen
    from watchkeeper_tui.screens.replay import ReplayScreen
    from watchkeeper_tui.screens.sessions import SessionsScreen
    from watchkeeper_tui.widgets.agent import AgentPane
    from watchkeeper_tui.widgets.replay import ReplayAgentPane
    from watchkeeper_tui.widgets.rows import RowView

    common = [*WatchScreen.BINDINGS, *RowView.BINDINGS]
    screens = (
        LiveScreen, ApprovalScreen, SessionsScreen, MessageScreen, CompareScreen, ForkScreen, CompactionScreen, ReplayScreen,
    )  # fmt: skip
    groups = [[*screen.BINDINGS, *common] for screen in screens]
    for screen, pane in ((LiveScreen, AgentPane), (ReplayScreen, ReplayAgentPane)):
        own = {key for each in pane.BINDINGS if isinstance(each, Binding) for key in normal(each.key)}
        # Where a pane has a key of the screen's for itself, that is meant.
        rest = [each for each in screen.BINDINGS if isinstance(each, Binding) and not normal(each.key) & own]
        groups.append([*pane.BINDINGS, *rest, *common])
    return groups


def usable_keys(
    wanted: Mapping[str, str], groups: Iterable[Iterable[BindingType]]
) -> tuple[dict[str, str], list[str]]:
    """The part of `wanted` that can be used, and one line for each that cannot.

    `groups` are the bindings that may be active together: within one, a key may do one thing only.
    """
    scopes = [
        {each.id: normal(each.key) for each in group if isinstance(each, Binding) and each.id}
        for group in groups
    ]
    known = {name for scope in scopes for name in scope}
    problems = [f"keys.{name} is no action; see docs/dashboard.md" for name in wanted if name not in known]
    used = {name: keys for name, keys in wanted.items() if name in known}
    for name in list(used):
        if not used[name].strip():
            problems.append(f"keys.{name}: no key is given")
            del used[name]
            continue
        unknown = next((key for key in normal(used[name]) if not is_key(key)), None)
        if unknown is not None:
            problems.append(
                f"keys.{name}: {unknown!r} is no key (keys are p, P, ?, f5, ctrl+x, pageup …); the one"
                " before stays"
            )
            del used[name]
            continue
        for scope in scopes:
            if name not in scope:
                continue
            others = {
                other: normal(used[other]) if other in used else keys
                for other, keys in scope.items()
                if other != name
            }
            clash = next((other for other, keys in others.items() if keys & normal(used[name])), None)
            if clash is not None:
                problems.append(f"keys.{name}: {used[name]!r} is {clash}'s key; the one before stays")
                del used[name]
                break
    return used, problems


def shown_key(keys: str) -> str:
    """The first of `keys`, as the footer shows it."""
    first = keys.split(",")[0].strip()
    return _SHOWN.get(first, first)
