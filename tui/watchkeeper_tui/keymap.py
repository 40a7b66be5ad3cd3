"""Keys and the command bar: which keys the user may change and whether they clash, the slash commands, and keys that act
one after the other.

Textual passes a key to the focused widget and hears of it again when it has bubbled up; only then does a binding act. Of
keys that come in one burst (typed under load, pasted, sent by tmux) all would go to the widget that was focused before
the first acted: `:resume` would open the command bar and then press `r`, `e`, `s`, … `KeyOrder` passes none on before the
one before it has done what it does.

What a key does goes before what the database says: a reading that comes meanwhile is drawn after the key was painted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, _character_to_key, key_to_character
from textual.message import Message

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


def usable_keys(
    wanted: Mapping[str, str], groups: Iterable[Iterable[BindingType]]
) -> tuple[dict[str, str], list[str]]:
    """The part of `wanted` that can be used, and one line for each that cannot.

    `groups` are the bindings that may be active together. Within one, no two wanted keys may be the same; a wanted key
    goes before the default key of another action (`displaced`).
    """
    scopes = [frozenset(each.id for each in _with_ids(group)) for group in groups]
    known = frozenset[str | None]().union(*scopes)
    problems = [
        f"keys.{name} is not an action; see docs/dashboard.md" for name in wanted if name not in known
    ]
    used: dict[str, str] = {}
    for name, keys in wanted.items():
        if name not in known:
            continue
        if not keys.strip():
            problems.append(f"keys.{name}: no key is given")
            continue
        unknown = next((key for key in normal(keys) if not is_key(key)), None)
        if unknown is not None:
            problems.append(
                f"keys.{name}: {unknown!r} is not a key (keys are p, P, ?, f5, ctrl+x, pageup …); the"
                " previous one is kept"
            )
            continue
        near = frozenset[str | None]().union(*(scope for scope in scopes if name in scope))
        clash = next((other for other in used if other in near and normal(used[other]) & normal(keys)), None)
        if clash is not None:
            problems.append(f"keys.{name}: {keys!r} is {clash}'s key; the previous one is kept")
            continue
        used[name] = keys
    return used, problems


def displaced(used: Mapping[str, str], groups: Iterable[Iterable[BindingType]]) -> dict[str, tuple[str, str]]:
    """The defaults that lose a key to the user's: by their id, the keys left, with commas, and what took one."""
    lost: dict[str, tuple[str, str]] = {}
    for group in groups:
        bindings = {str(each.id): each for each in _with_ids(group)}
        for name in used.keys() & bindings.keys():
            taken = normal(used[name]) - normal(bindings[name].key)
            for other, binding in bindings.items():
                keys = [key.strip() for key in lost.get(other, (binding.key, ""))[0].split(",")]
                left = [key for key in keys if not normal(key) & taken]
                if other not in used and len(left) < len(keys):
                    lost[other] = (",".join(left), name)
    return lost


def _with_ids(group: Iterable[BindingType]) -> list[Binding]:
    return [each for each in group if isinstance(each, Binding) and each.id]


def shown_key(keys: str) -> str:
    """The first of `keys`, as the footer shows it."""
    first = keys.split(",")[0].strip()
    return _SHOWN.get(first, first)


@dataclass(frozen=True, slots=True)
class Slash:
    """One command of the bar."""

    name: str
    argument: str
    help: str
    action: str = ""
    """The id of its action in `actions.ACTIONS`; empty if the screen handles the command by name."""

    @property
    def needs_argument(self) -> bool:
        """It does nothing without an argument."""
        return (
            bool(self.argument) and not self.argument.startswith("[") and self.name not in ("memory", "agent")
        )


SLASHES: tuple[Slash, ...] = (
    Slash("pause", "[run or now]", "pause the selected agent, the whole run, or the agent at once", "pause"),
    Slash("resume", "", "resume what is paused; if nothing is running, the whole run", "resume"),
    Slash(
        "rerun", "[fresh or message]", "run the selected task again; with a message that says why", "rerun"
    ),
    Slash("plan", "add, revise or drop", "add a task to the plan, revise or drop the selected one"),
    Slash("cancel", "[run]", "cancel the selected task, or the whole run", "cancel"),
    Slash("compact", "[instructions]", "compact the selected agent's context", "compact"),
    Slash("undo", "", "undo the selected agent's last compaction", "undo"),
    Slash("redo", "", "reapply the last undone compaction", "redo"),
    Slash("drop", "NUMBERS", "show these messages of the selected agent as pointers alone", "drop"),
    Slash("rewrite", "NUMBER TEXT", "rewrite a summary or an observation of the selected agent", "rewrite"),
    Slash("steer", "TEXT", "send the selected agent a message", "steer"),
    Slash("approve", "", "approve the pending question", "approve"),
    Slash("grants", "", "what runs without a question in this run; revoke one"),
    Slash("deny", "[reason]", "deny the pending question", "deny"),
    Slash("budget", "KIND AMOUNT", "usd, tokens, turns or seconds; `none` lifts it", "budget"),
    Slash("memory", "status, sync, search WORDS", "the agent's memory; persist every agent's; find in it"),
    Slash(
        "pin",
        "TEXT, #FACT or NUMBERS",
        "make a text, or a fact, a rule for every agent; or keep messages as they are",
        "pin",
    ),
    Slash(
        "unpin",
        "#FACT or NUMBERS",
        "withdraw a rule, or let messages be compacted again",
        "unpin",
    ),
    Slash("context", "", "what the agent's context is made of"),
    Slash("usage", "", "tokens and cost of the agent"),
    Slash("cost", "", "the same as usage"),
    Slash("export", "[FORM]", "this run as one file in the folder you started in: html, md or json"),
    Slash("sessions", "[words]", "every session"),
    Slash("fleet", "", "several sessions at once, live"),
    Slash("replay", "", "replay this session step by step"),
    Slash("run", "[GOAL]", "start another run: goal, workspace, model, budget, permissions"),
    Slash("timeline", "", "when each agent did what"),
    Slash("charts", "", "the selected agent over time: context, tokens per minute, cost"),
    Slash("artifacts", "", "what the agents saved"),
    Slash("spending", "", "usage: what all sessions cost, by day, model, project"),
    Slash("fork", "", "a new session that begins at a step of this one"),
    Slash("agent", "report", "the selected agent's task, result, artifacts and statistics"),
    Slash("autosave_load", "[SESSION]", "resume this run, or another session, from its last step", "resume"),
    Slash("theme", "NAME", "another theme"),
    Slash("freeze", "", "freeze or unfreeze the view"),
    Slash("help", "", "keys and commands"),
    Slash("quit", "", "leave the dashboard"),
)
BY_NAME = {slash.name: slash for slash in SLASHES}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What was typed: a command and its argument, or why it is none."""

    slash: Slash | None
    argument: str
    problem: str = ""


def parse(line: str) -> Parsed:
    """Read a line of the bar. The leading slash may be left out; a unique beginning is enough."""
    text = line.strip().lstrip("/:").strip()
    name, _, argument = text.partition(" ")
    name = name.casefold()
    if not name:
        return Parsed(None, "", "")
    exact = BY_NAME.get(name)
    if exact is None:
        near = [slash for slash in SLASHES if slash.name.startswith(name)]
        if len(near) != 1:
            several = ", ".join(f"/{slash.name}" for slash in near[:6])
            return Parsed(
                None,
                argument,
                f"/{name} could be {several}" if near else f"no command /{name}; ? shows them all",
            )
        exact = near[0]
    return Parsed(exact, argument.strip())


def completions(line: str) -> list[Slash]:
    """The commands that a line could still become; before its argument, then those too that have its words in
    their name or their help."""
    text = line.strip().lstrip("/:").casefold()
    name, has_argument, _ = text.partition(" ")
    found = [slash for slash in SLASHES if slash.name.startswith(name)]
    if name and not (found and has_argument):
        words = text.split()
        found += [
            slash
            for slash in SLASHES
            if slash not in found and all(word in f"{slash.name} {slash.help}".casefold() for word in words)
        ]
    return found


class CommandList:
    """The commands that the bar lists for a line, of which the user may choose one."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.matching = completions(line)
        self.place: int | None = None
        """The chosen command; None: what is typed counts."""

    @property
    def chosen(self) -> Slash | None:
        return self.matching[self.place] if self.place is not None else None

    def move(self, step: int) -> bool:
        """Choose the command so many rows further; False above the first, where none is chosen any more."""
        if not self.matching or (self.place is None and step < 0):
            return False
        place = (self.place if self.place is not None else -1) + step
        self.place = None if place < 0 else min(place, len(self.matching) - 1)
        return True

    def window(self, rows: int) -> range:
        """The places of the commands that are shown, the chosen one among them."""
        top = max(0, min((self.place or 0) - rows // 2, len(self.matching) - rows))
        return range(top, min(top + rows, len(self.matching)))


LONGEST_WAIT = 0.5
"""Seconds after which a key counts as done whatever became of it: its widget may have gone."""


class KeyPassed(Message):
    """Follows a key on its way up; when it arrives, the key has arrived before it, or was consumed."""


class KeyOrder(App[int]):
    """An application that takes its keys in order."""

    def __init__(self, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._waiting: deque[events.Key] = deque()
        self._unpainted = False
        """A key has done what it does, and that is not on the screen yet."""
        self._held: Callable[[], None] | None = None

    _passed_at: float | None = None
    """When the key was passed on that is still under way."""

    @property
    def _under_way(self) -> bool:
        return self._passed_at is not None and time.monotonic() - self._passed_at < LONGEST_WAIT

    def after_keys(self, do: Callable[[], None]) -> None:
        """Do it now; or, while a key is under way, when that key has been painted. The last of several is
        done."""
        if self._under_way or self._unpainted:
            self._held = do
        else:
            self._held = None
            do()

    def release(self) -> None:
        """The key was painted: do what was held back."""
        self._unpainted = False
        held, self._held = self._held, None
        if held is not None:
            held()

    def release_lost(self) -> None:
        """Do what was held back for a key that never came back; what waits for one that is under way, waits
        on."""
        if not self._under_way:
            self.release()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not self.screen_stack:
            return  # typed on while the program ends: nothing is there any more that could hear it
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
            return
        if self._under_way:
            self._waiting.append(event)
            return
        self._waiting.append(event)
        await self._pass_next()

    async def on_key_passed(self) -> None:
        self._passed_at = None
        if not self._unpainted:
            self._unpainted = True
            self.call_after_refresh(self.release)
        await self._pass_next()

    async def _pass_next(self) -> None:
        if not self._waiting or not self.screen_stack:
            return
        key, target = self._waiting.popleft(), self.focused or self.screen
        self._passed_at = time.monotonic()
        await super().on_event(key)
        if not target.post_message(KeyPassed()):
            self._passed_at = None
            await self._pass_next()
