"""Themes from TOML files: the shipped ones, then the user's own, which win by name."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from watchkeeper_tui.palette import ROLES, Palette, parse_style
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.settings import config_folder

DEFAULT_THEME = "night-watch"
TERMINAL_THEME = "terminal"
"""The theme that keeps the terminal's own sixteen colours; also used under `NO_COLOR`."""

_SCREEN = frozenset(
    {
        "background",
        "surface",
        "panel",
        "foreground",
        "primary",
        "secondary",
        "accent",
        "warning",
        "error",
        "success",
        "boost",
    }
)


@dataclass(frozen=True)
class ThemeFile:
    """One theme: Textual's part, and the palette of roles."""

    theme: Theme
    title: str
    palette: Palette
    roles: dict[str, str] = field(default_factory=dict)


def shipped_folder() -> Path:
    """Where the shipped themes are: a checkout's `themes/` when there is one, else beside the installed
    package."""
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "themes").is_dir():
        return checkout / "themes"
    return package / "shipped_themes"


def user_folder() -> Path:
    """Where a user's own themes are read from."""
    return config_folder() / "themes"


def load_themes(
    folders: list[Path] | None = None, *, plain: bool = False
) -> tuple[dict[str, ThemeFile], list[str]]:
    """Every readable theme by name, and one line for each file that could not be used."""
    found: dict[str, ThemeFile] = {}
    problems: list[str] = []
    for folder in folders if folders is not None else [shipped_folder(), user_folder()]:
        if not folder.is_dir():
            continue
        for path in sorted(folder.glob("*.toml")):
            try:
                theme = read_theme(path, plain=plain)
            except (OSError, ValueError, UnicodeDecodeError) as error:
                problems.append(f"theme {path.name}: {error}")
            else:
                found[theme.theme.name] = theme
    if DEFAULT_THEME not in found:
        found[DEFAULT_THEME] = _fallback(plain)
    return found, problems


def read_theme(path: Path, *, plain: bool = False) -> ThemeFile:
    """One theme file.

    Raises:
        ValueError: not TOML, a key that no theme has, or a value that is no colour; the message says which.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    name = sanitize(str(content.pop("name", path.stem)))
    title = sanitize(str(content.pop("title", name)))
    dark, ansi = bool(content.pop("dark", True)), bool(content.pop("ansi", False))
    screen, roles, variables = (_table(content, key) for key in ("screen", "roles", "variables"))
    if content:
        raise ValueError(
            f"unknown key {next(iter(content))!r}; a theme has name, title, dark, ansi, [screen], [roles],"
            " [variables]"
        )
    for key in screen:
        if key not in _SCREEN:
            raise ValueError(f"unknown key {key!r} in [screen]; it may hold {', '.join(sorted(_SCREEN))}")
    for table, values in (("screen", screen), ("variables", variables)):
        for key, value in values.items():
            _check_colour(table, key, value)
    for role, value in roles.items():
        if role not in ROLES:
            raise ValueError(f"unknown role {role!r} in [roles]")
        parse_style(str(value))
    if "primary" not in screen:
        raise ValueError("[screen] needs at least `primary`")
    own = {str(key): str(value) for key, value in variables.items()}
    if ansi:
        # The toolkit's own styles refer to these, and its generator of ANSI themes leaves them out.
        own = {"ansi-background": "ansi_default", "ansi-foreground": "ansi_default", **own}
    theme = Theme(name=name, dark=dark, ansi=ansi, variables=own, **screen)
    roles = {**_foreground(theme), **{str(role): str(value) for role, value in roles.items()}}
    return ThemeFile(theme, title, Palette(roles, plain=plain), roles)


def _table(content: dict[str, Any], key: str) -> dict[str, Any]:
    table = content.pop(key, {})
    if not isinstance(table, dict):
        raise ValueError(f"{key} must be a table: [{key}]")
    return table


def _check_colour(table: str, key: str, value: object) -> None:
    """The toolkit would end the program over a colour that it cannot read."""
    if re.fullmatch(r"[a-z][a-z0-9-]*", key) is None:
        raise ValueError(f"{key!r} in [{table}] is no name of a colour")
    try:
        Color.parse(value if isinstance(value, str) else "")
    except ColorParseError:
        raise ValueError(f"{key} = {value!r} in [{table}] is no colour; write #rrggbb or ansi_red") from None


def _foreground(theme: Theme) -> dict[str, str]:
    """Plain text in the theme's own colour, also where it would take a border's."""
    if theme.ansi or theme.foreground is None:
        return {}
    return {"text": theme.foreground, "strong": f"bold {theme.foreground}"}


def _fallback(plain: bool) -> ThemeFile:
    """What is used where even the shipped files are missing: the palette's own values."""
    theme = Theme(
        name=DEFAULT_THEME,
        primary="#7aa2f7",
        background="#0d121c",
        surface="#0d121c",
        panel="#161d2b",
        foreground="#d5dbe8",
        accent="#7aa2f7",
        warning="#f2cc60",
        error="#f26d78",
        success="#8bd17c",
    )
    return ThemeFile(theme, "Night watch", Palette(_foreground(theme), plain=plain))
