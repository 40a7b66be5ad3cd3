"""Themes: shipped ones are whole, a user's wins by name, and a broken one is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from textual.color import Color

from watchkeeper_tui import theming as theme_watch
from watchkeeper_tui.settings import Settings
from watchkeeper_tui.theming import (
    DEFAULT_THEME,
    ROLES,
    TERMINAL_THEME,
    Palette,
    load_themes,
    on_selection,
    parse_style,
    shipped_folder,
)


def test_the_shipped_themes_are_found_and_readable() -> None:
    themes, problems = load_themes([shipped_folder()])
    assert problems == []
    assert {DEFAULT_THEME, TERMINAL_THEME, "day-watch", "high-contrast", "colour-safe", "phosphor"} <= set(
        themes
    )
    assert not themes["day-watch"].theme.dark
    assert themes[TERMINAL_THEME].theme.ansi


def test_without_any_file_the_default_still_works(tmp_path: Path) -> None:
    themes, problems = load_themes([tmp_path / "none"])
    assert list(themes) == [DEFAULT_THEME]
    assert problems == []


def test_a_users_theme_replaces_a_shipped_one_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "phosphor"\n[screen]\nprimary = "#123456"\n[roles]\nworking = "bold #abcdef"\n'
    )
    themes, _ = load_themes([shipped_folder(), tmp_path])
    assert themes["phosphor"].theme.primary == "#123456"
    assert themes["phosphor"].palette["working"].bold


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not toml at all [", "theme bad.toml"),
        ('[screen]\nprimary = "#000000"\n[roles]\nworkin = "red"\n', "unknown role 'workin'"),
        (
            '[screen]\nprimary = "#000000"\n[roles]\nworking = "no-colour"\n',
            "'no-colour' must be a colour",
        ),
        ('[screen]\nmain = "#000000"\n', "unknown key 'main'"),
        ('title = "x"\n', "needs at least `primary`"),
        ('[screen]\nprimary = "nonsense"\n', "primary = 'nonsense' in [screen] is not a colour"),
        ("[screen]\nprimary = 5\n", "primary = 5 in [screen] is not a colour"),
        ('screen = "x"\n', "screen must be a table"),
        ('roles = "x"\n[screen]\nprimary = "#000000"\n', "roles must be a table"),
        ('variables = 3\n[screen]\nprimary = "#000000"\n', "variables must be a table"),
        (
            '[screen]\nprimary = "#000000"\n[variables]\npane-border = "x; }"\n',
            "pane-border = 'x; }' in [variables] is not a colour",
        ),
        ('[screen]\nprimary = "#000000"\n[variables]\n"a;b" = "#000000"\n', "'a;b' in [variables]"),
    ],
)
def test_a_broken_theme_is_left_out_and_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    themes, problems = load_themes([shipped_folder(), tmp_path])
    assert len(problems) == 1
    assert said in problems[0]
    assert DEFAULT_THEME in themes


def test_without_colour_the_states_still_differ_by_weight_or_reversal() -> None:
    palette = Palette(plain=True)
    assert all(palette[role].color is None and palette[role].bgcolor is None for role in ROLES)
    assert palette["selected"].reverse
    assert palette["badge_live"].reverse


def test_a_style_is_read_from_words() -> None:
    style = parse_style("bold #112233 on ansi_blue")
    assert style.bold
    assert style.color is not None
    assert style.bgcolor is not None


async def test_a_theme_that_is_saved_is_worn_at_once_and_a_broken_one_is_said(desk, tmp_path):
    own = tmp_path / "themes"
    own.mkdir()
    file = own / "mine.toml"
    file.write_text('name = "mine"\n[screen]\nprimary = "#123456"\n[roles]\nworking = "#111111"\n')
    app = desk.app(theme="mine", theme_folders=[shipped_folder(), own])
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "explorer-1")
        file.write_text('name = "mine"\n[screen]\nprimary = "#654321"\n[roles]\nworking = "#222222"\n')
        app.reload_themes()
        assert app.palette["working"] == parse_style("#222222")
        assert app.current_theme.primary == "#654321"
        file.write_text("name = [")
        app.reload_themes()
        await shows(pilot, "theme mine.toml")
        assert app.palette["working"] == parse_style("#222222"), "while it is damaged it is worn as it was"
        file.unlink()
        app.reload_themes()
        assert app.theme == DEFAULT_THEME
        file.write_text('name = "mine"\n[screen]\nprimary = "#654321"\n')
        app.reload_themes()
        assert app.theme == "mine"


async def test_trouble_with_a_theme_does_not_hide_why_a_run_is_paused(desk: Desk, tmp_path: Path) -> None:
    own = tmp_path / "themes"
    own.mkdir()
    (own / "mine.toml").write_text("name = [")
    desk.host_pid = None
    desk.session.set(status="paused", status_reason="the budget of $5 is reached")
    app = desk.app(theme_folders=[shipped_folder(), own])
    async with app.run_test(size=(160, 40)) as pilot:
        for _ in range(2):
            await shows(pilot, "theme mine.toml")
            line = next(line for line in text_of(pilot).splitlines() if "theme mine.toml" in line)
            assert "the budget of $5 is reached" in line
            app.reload_themes()


async def test_a_folder_of_themes_that_is_made_later_is_heard_of(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(theme_watch, "LOOK_SECONDS", 0.02)
    own = tmp_path / "themes"
    app = desk.app(theme="mine", theme_folders=[shipped_folder(), own])
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "explorer-1")
        own.mkdir()
        (own / "mine.toml").write_text('[screen]\nprimary = "#123456"\n')
        await until(pilot, lambda: app.theme == "mine")


async def test_the_palette_shows_a_theme_before_it_is_chosen_and_the_choice_is_kept(desk, tmp_path):
    app = desk.app(layout_path=tmp_path / "layout.json")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "explorer-1")
        for key, worn in (("escape", DEFAULT_THEME), ("enter", "phosphor")):
            await pilot.press("ctrl+p", *"phosphor")
            await until(pilot, lambda: app.theme == "phosphor")
            if key == "escape":
                await pilot.press("escape")
            await pilot.press(key)
            await until(pilot, lambda worn=worn: app.theme == worn and len(app.screen_stack) == 2)
    assert desk.app(layout_path=tmp_path / "layout.json").theme == "phosphor"
    assert (
        desk.app(layout_path=tmp_path / "layout.json", settings=Settings(theme="day-watch")).theme
        == "day-watch"
    )


def luminance(colour: tuple[int, int, int]) -> float:
    """Of WCAG 2."""
    parts = [part / 255 for part in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """From 1, the same, to 21, black on white."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["night-watch", "day-watch", "phosphor", "high-contrast", "colour-safe"])
def test_words_can_be_read_in_every_theme(name: str) -> None:
    themes, _ = load_themes([shipped_folder()])
    theme = themes[name]
    assert theme.theme.background is not None
    ground = Color.parse(theme.theme.background).rgb
    for role in ROLES:
        style = theme.palette[role]
        if style.color is None or role == "bar_empty":
            continue
        under = style.bgcolor.get_truecolor() if style.bgcolor is not None else ground
        least = 3.0 if role.startswith("kind_") else 4.5
        assert contrast(tuple(style.color.get_truecolor()), tuple(under)) >= least, role


@pytest.mark.parametrize("selected", ["selected", "selected_idle"])
@pytest.mark.parametrize("name", ["night-watch", "day-watch", "phosphor", "high-contrast", "colour-safe"])
def test_words_of_a_selected_row_can_be_read_in_every_theme(name: str, selected: str) -> None:
    themes, _ = load_themes([shipped_folder()])
    theme = themes[name]
    for role in ROLES:
        style = on_selection(theme.palette[role], theme.palette[selected])
        if style.color is None or style.bgcolor is None or role == "bar_empty":
            continue
        least = (
            2.2 if role.startswith("kind_") else 3.4 if role == "faint" or role.startswith("bar_") else 4.4
        )
        seen = contrast(tuple(style.color.get_truecolor()), tuple(style.bgcolor.get_truecolor()))
        assert seen >= least, f"{role}: {seen:.1f}"


@pytest.mark.parametrize("name", ["high-contrast", TERMINAL_THEME])
def test_a_row_that_is_selected_by_reversal_has_one_colour(name: str) -> None:
    themes, _ = load_themes([shipped_folder()])
    palette = themes[name].palette
    looks = {
        (style.color, style.bgcolor, style.reverse)
        for style in (palette[role] + palette["selected"] for role in ("failed", "money", "text"))
    }
    assert len(looks) == 1


async def test_a_theme_that_is_not_known_is_named_at_start(desk: Desk) -> None:
    async with desk.shown("unknown theme 'nope'", theme="nope", settings=Settings()):
        pass
