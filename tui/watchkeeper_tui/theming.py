"""Applying a theme: the user's choice, others tried on in the palette, and every theme file as it was saved
last."""

from __future__ import annotations

import os
from pathlib import Path

from textual.command import Command, CommandPalette
from textual.theme import Theme

from watchkeeper_tui.key_order import KeyOrder
from watchkeeper_tui.palette import Palette
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.theme_watch import ThemeWatch
from watchkeeper_tui.themes import DEFAULT_THEME, TERMINAL_THEME, load_themes, user_folder

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
        """What the user wants to wear, whether or not it can be read now."""
        self._wear(self._chosen)

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
            return f"which theme? {', '.join(sorted(self.themes))}", "text"
        if name not in self.themes:
            return f"no theme {sanitize(name)!r}; there are {', '.join(sorted(self.themes))}", "failed"
        self._chosen = name
        self._wear(name)
        self.theme_chosen(name)
        return f"theme {name}", "done"

    def theme_chosen(self, name: str) -> None:
        """The user chose a theme; a subclass may keep it for the next time."""

    def reload_themes(self) -> None:
        """Read every theme file again, and apply the chosen theme as it is now; while it is damaged, as it
        was before."""
        before = self.themes
        self.themes, self.theme_problems = load_themes(self._theme_folders, plain=self._plain)
        if self.theme_problems and self._chosen in before:
            self.themes.setdefault(self._chosen, before[self._chosen])
        self._register_themes()
        self._wear(self._chosen)
        self.refresh_css(animate=False)
        self.watch_theme(self.theme)
        said = "; ".join(self.theme_problems)
        front = self.screen
        if isinstance(front, WatchScreen):
            front.say(
                sanitize(said) if said else "themes reloaded", "failed" if said else "muted", beside=True
            )

    def theme_commands(self) -> dict[str, str]:
        """The palette's line for each theme, and the theme's name."""
        return {f"{_TITLE}{each.title}": name for name, each in self.themes.items()}

    def on_command_palette_option_highlighted(self, event: CommandPalette.OptionHighlighted) -> None:
        """Show what the theme under the cursor looks like; nothing is chosen by that."""
        option = event.highlighted_event.option
        text = str(option.hit.text) if isinstance(option, Command) else ""
        self._wear(self.theme_commands().get(text, self._chosen))

    def on_command_palette_closed(self, event: CommandPalette.Closed) -> None:
        if not event.option_selected:
            self._wear(self._chosen)

    def watch_theme(self, theme: str) -> None:
        for screen in self.screen_stack if self.is_running else ():
            for widget in screen.query("*"):
                widget.refresh()
            if isinstance(screen, LiveScreen) and screen.is_mounted:
                self.call_after_refresh(screen.redraw)

    def _wear(self, name: str) -> None:
        worn = name if name in self.themes else DEFAULT_THEME
        if self.theme != worn:
            self.theme = worn

    def _register_themes(self) -> None:
        self._theme_names = {name: each.theme for name, each in self.themes.items()}
        for each in self._theme_names.values():
            self.register_theme(each)
