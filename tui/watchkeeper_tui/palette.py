"""Colours by what they mean. Widgets ask for a role (`working`, `muted`, `bar_high`), never for a colour."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color
from rich.style import Style

ROLES: Mapping[str, str] = {
    "text": "",
    "strong": "bold",
    "muted": "#8a93a6",
    "faint": "#606778",
    "heading": "#8a93a6",
    "accent": "#7aa2f7",
    "key": "bold #7aa2f7",
    "money": "#e0c080",
    "tokens": "#9ccfd8",
    "working": "#8bd17c",
    "waiting": "bold #f2cc60",
    "slot": "#b9a3f0",
    "paused": "#79b8ff",
    "retrying": "#f0a35e",
    "silent": "bold #f0a35e",
    "done": "#6fae72",
    "failed": "bold #f26d78",
    "cancelled": "#8a93a6",
    "dead": "bold #f26d78",
    "pending": "#7d8495",
    "tool": "#7fc8d8",
    "compaction": "#c39ae8",
    "user": "bold #e0c080",
    "assistant": "bold #8bd17c",
    "thinking": "italic #8a93a6",
    "bar_low": "#5fb3a1",
    "bar_mid": "#e0c080",
    "bar_high": "#f0a35e",
    "bar_full": "#f26d78",
    "bar_empty": "#2c3345",
    "kind_system": "#7aa2f7",
    "kind_pinned": "#f2cc60",
    "kind_tools": "#7fc8d8",
    "kind_observations": "#c39ae8",
    "kind_facts": "#e08fb5",
    "kind_messages": "#8bd17c",
    "kind_other": "#8a93a6",
    "badge_live": "bold #10151f on #8bd17c",
    "badge_paused": "bold #10151f on #79b8ff",
    "badge_dead": "bold #10151f on #f26d78",
    "badge_done": "bold #10151f on #6fae72",
    "badge_failed": "bold #10151f on #f26d78",
    "badge_frozen": "bold #10151f on #f2cc60",
    "badge_plain": "bold #10151f on #8a93a6",
    "selected": "on #26324a",
    "selected_idle": "on #1d2536",
    "marked": "bold #f2cc60",
    "match": "bold underline #f2cc60",
}
"""Every role with the value it has where a theme is silent. A theme file may set any of them, and no
other."""


class Palette:
    """The styles of one theme."""

    def __init__(self, roles: Mapping[str, str] | None = None, *, plain: bool = False) -> None:
        """`plain` is for `NO_COLOR`: weight and reversal only."""
        chosen = {**ROLES, **(roles or {})}
        self._styles = {role: parse_style(value) for role, value in chosen.items()}
        if plain:
            self._styles = {role: _without_colour(style) for role, style in self._styles.items()}
            for role in ("selected", *(name for name in ROLES if name.startswith("badge_"))):
                self._styles[role] = Style(reverse=True, bold=True if role.startswith("badge_") else None)
            self._styles["selected_idle"] = Style(underline=True)

    def __getitem__(self, role: str) -> Style:
        """The style of a role; an unknown one is plain text."""
        return self._styles.get(role) or Style.null()


@lru_cache(512)
def parse_style(text: str) -> Style:
    """A style from `bold #rrggbb on ansi_blue`.

    Raises:
        ValueError: a word is neither a colour nor an attribute.
    """
    attributes: dict[str, bool] = {}
    foreground: Color | None = None
    background: Color | None = None
    behind = False
    for word in text.split():
        if word == "on":
            behind = True
        elif word in ("bold", "italic", "underline", "reverse", "dim", "strike"):
            attributes[word] = True
        else:
            try:
                colour = Color.parse(word.removeprefix("ansi_"))
            except Exception as error:
                raise ValueError(
                    f"{word!r} is neither a colour (#rrggbb, ansi_red) nor bold, italic, underline, reverse"
                ) from error
            if behind:
                background = colour
            else:
                foreground = colour
    style = Style(
        bold=attributes.get("bold"),
        italic=attributes.get("italic"),
        underline=attributes.get("underline"),
        reverse=attributes.get("reverse"),
        dim=attributes.get("dim"),
        strike=attributes.get("strike"),
    )
    if foreground or background:
        style += Style.from_color(foreground, background)
    return style


def _without_colour(style: Style) -> Style:
    return Style(
        bold=style.bold, italic=style.italic, underline=style.underline, reverse=style.reverse, dim=style.dim
    )


def on_selection(style: Style, selected: Style) -> Style:
    """A style on a selected row: words that stand on a ground of their own keep both, unless the selection
    colours words too."""
    return style + selected if selected.color is not None or style.bgcolor is None else selected + style
