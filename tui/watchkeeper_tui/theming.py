"""Themes: colours by what they mean, theme files, and applying the one that the user chose as it was saved last.

Widgets ask a `Palette` for a role (`working`, `muted`, `bar_high`), never for a colour.
"""

from __future__ import annotations

import os
import re
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.color import Color as RichColor
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.command import Command, CommandPalette
from textual.theme import Theme

from watchkeeper.records.text import parser_mistake
from watchkeeper.store.place import config_folder
from watchkeeper_tui.keymap import KeyOrder
from watchkeeper_tui.sanitize import sanitize

ROLES: Mapping[str, str] = {
    "text": "",
    "strong": "bold",
    "emphasis": "italic",
    "muted": "#929aac",
    "faint": "#7f8593",
    "heading": "#929aac",
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
    "failed": "bold #f2717c",
    "cancelled": "#929aac",
    "dead": "bold #f2717c",
    "pending": "#949aa8",
    "tool": "#7fc8d8",
    "compaction": "#c39ae8",
    "user": "bold #e0c080",
    "assistant": "bold #8bd17c",
    "thinking": "italic #929aac",
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
    foreground: RichColor | None = None
    background: RichColor | None = None
    behind = False
    for word in text.split():
        if word == "on":
            behind = True
        elif word in ("bold", "italic", "underline", "reverse", "dim", "strike"):
            attributes[word] = True
        else:
            try:
                colour = RichColor.parse(word.removeprefix("ansi_"))
            except Exception as error:
                raise ValueError(
                    f"{word!r} must be a colour (#rrggbb, ansi_red), bold, italic, underline or reverse"
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
                why = parser_mistake(error) if isinstance(error, ValueError) else error.strerror or str(error)
                problems.append(f"theme {path.name}: {why}")
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
            f"unknown key {next(iter(content))!r}; allowed keys: name, title, dark, ansi, [screen], [roles], "
            "[variables]"
        )
    for key in screen:
        if key not in _SCREEN:
            raise ValueError(f"unknown key {key!r} in [screen]; allowed keys: {', '.join(sorted(_SCREEN))}")
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
    if (shown := parse_style(str(roles.get("key", ROLES["key"]))).color) is not None:
        own.setdefault(
            "footer-key-foreground", shown.name if shown.name.startswith("#") else f"ansi_{shown.name}"
        )
        _check_colour("roles", "key", own["footer-key-foreground"])
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
        raise ValueError(f"{key!r} in [{table}] is not a colour name")
    try:
        Color.parse(value if isinstance(value, str) else "")
    except ColorParseError:
        raise ValueError(f"{key} = {value!r} in [{table}] is not a colour; use #rrggbb or ansi_red") from None


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


LOOK_SECONDS = 2.0
"""How often it is looked for a folder that is not there yet."""


class ThemeWatch:
    """Calls `changed`, in a thread of its own, whenever a theme file in `folder` was written, also once it is
    made."""

    def __init__(self, folder: Path, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._changed = changed
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        if not self._stop.is_set():
            threading.Thread(target=self._watch, name="watchkeeper-themes", daemon=True).start()

    def close(self) -> None:
        """Stop; returns at once."""
        self._stop.set()

    def _watch(self) -> None:
        from watchfiles import watch

        try:
            if not self._folder.is_dir():
                while not self._folder.is_dir():
                    if self._stop.wait(LOOK_SECONDS):
                        return
                self._changed()
            for _ in watch(
                self._folder,
                watch_filter=lambda _, name: name.endswith(".toml"),
                debounce=500,
                step=250,  # each step wakes the process
                rust_timeout=1000,
                stop_event=self._stop,
                recursive=False,
                raise_interrupt=False,
            ):
                if not self._stop.is_set():
                    self._changed()
        except (OSError, RuntimeError):
            # No file events here: a theme is read when the dashboard starts, as it always was.
            return


_TITLE = "Theme: "


class ThemedApp(KeyOrder):
    """An application whose colours are those of a theme file."""

    def __init__(self, wanted: str | None, folders: list[Path] | None) -> None:
        """`wanted` is the theme's name, or None for the default; under `NO_COLOR` it is the terminal's own
        colours."""
        self._plain = "NO_COLOR" in os.environ
        self._theme_folders = folders
        self.themes, self.theme_problems = load_themes(folders, plain=self._plain)
        own = folders[-1] if folders else user_folder()
        self._theme_watch = ThemeWatch(own, lambda: self.call_from_thread(self.reload_themes))
        self._theme_names: dict[str, Theme] | None = None
        super().__init__(ansi_color=True if self._plain else None)
        self._register_themes()
        self._chosen = (
            TERMINAL_THEME if self._plain and TERMINAL_THEME in self.themes else wanted
        ) or DEFAULT_THEME
        """The theme that the user wants, whether or not it can be read now."""
        if self._chosen not in self.themes:
            names = ", ".join(sorted(self.themes))
            self.theme_problems.append(f"unknown theme {sanitize(self._chosen)!r}; use one of {names}")
        self._apply_theme(self._chosen)

    @property
    def palette(self) -> Palette:
        """The styles of the theme in use."""
        return self.themes[self.theme if self.theme in self.themes else DEFAULT_THEME].palette

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Ours only: the toolkit's own themes do not know our roles. Asked for a dozen times in each
        painting."""
        # None while the toolkit's part is still being constructed.
        return super().available_themes if self._theme_names is None else self._theme_names

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"pane-border": "#333d52", "pane-focus": "#7aa2f7"}

    def choose_theme(self, name: str) -> tuple[str, str]:
        """Switch to a theme; returns what to say about it, and in which role."""
        if not name:
            return f"choose a theme: {', '.join(sorted(self.themes))}", "text"
        if name not in self.themes:
            return f"unknown theme {sanitize(name)!r}; use one of {', '.join(sorted(self.themes))}", "failed"
        self._chosen = name
        self._apply_theme(name)
        self.theme_chosen(name)
        return f"theme {name}", "done"

    def theme_chosen(self, name: str) -> None:
        """The user chose a theme; a subclass may keep it for the next time."""

    def themes_reloaded(self) -> None:
        """The theme files were read again, with `theme_problems`; a subclass may say so."""

    def reload_themes(self) -> None:
        """Read every theme file again, and apply the chosen theme as it is now; while it is damaged, as it
        was before."""
        before = self.themes
        self.themes, self.theme_problems = load_themes(self._theme_folders, plain=self._plain)
        if self.theme_problems and self._chosen in before:
            self.themes.setdefault(self._chosen, before[self._chosen])
        self._register_themes()
        self._apply_theme(self._chosen)
        self.refresh_css(animate=False)
        self.watch_theme(self.theme)
        self.theme_changed_signal.publish(self.current_theme)
        self.themes_reloaded()

    def theme_commands(self) -> dict[str, str]:
        """The palette's line for each theme, and the theme's name."""
        return {f"{_TITLE}{each.title}": name for name, each in self.themes.items()}

    def on_command_palette_option_highlighted(self, event: CommandPalette.OptionHighlighted) -> None:
        """Show what the theme under the cursor looks like; nothing is chosen by that."""
        option = event.highlighted_event.option
        text = str(option.hit.text) if isinstance(option, Command) else ""
        self._apply_theme(self.theme_commands().get(text, self._chosen))

    def on_command_palette_closed(self, event: CommandPalette.Closed) -> None:
        if not event.option_selected:
            self._apply_theme(self._chosen)

    def watch_theme(self, theme: str) -> None:
        for screen in self.screen_stack if self.is_running else ():
            for widget in screen.query("*"):
                widget.refresh()

    def _apply_theme(self, name: str) -> None:
        usable = name if name in self.themes else DEFAULT_THEME
        if self.theme != usable:
            self.theme = usable

    def _register_themes(self) -> None:
        self._theme_names = {name: each.theme for name, each in self.themes.items()}
        for each in self._theme_names.values():
            self.register_theme(each)
