"""The command bar: what may be typed after `:`, and what it means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slash:
    """One command of the bar."""

    name: str
    argument: str
    help: str
    action: str = ""
    """The id of its action in `actions.ACTIONS`; empty if the screen handles the command by name."""


SLASHES: tuple[Slash, ...] = (
    Slash("pause", "[run or now]", "pause the selected agent, the whole run, or the agent at once", "pause"),
    Slash("resume", "", "resume what is paused; if nothing is running, the whole run", "resume"),
    Slash("rerun", "[fresh]", "run the selected task again", "rerun"),
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
        "put a text, or a fact, into every prompt; or keep messages as they are",
        "pin",
    ),
    Slash(
        "unpin",
        "#FACT or NUMBERS",
        "remove a fact from the prompts, or let messages be compacted again",
        "unpin",
    ),
    Slash("context", "", "what the agent's context is made of"),
    Slash("usage", "", "tokens and cost of the agent"),
    Slash("cost", "", "the same as usage"),
    Slash("export", "[FORM]", "this run as one file in the folder you started in: html, md or json"),
    Slash("sessions", "[words]", "every session"),
    Slash("replay", "", "replay this session step by step"),
    Slash("agent", "report", "the selected agent's task, result, artifacts and statistics"),
    Slash("autosave_load", "[SESSION]", "resume this run, or another session, from its last step", "resume"),
    Slash("theme", "NAME", "another theme"),
    Slash("freeze", "", "hold the view still, or let it go on"),
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
    """The commands that a line could still become."""
    text = line.strip().lstrip("/:")
    name = text.partition(" ")[0].casefold()
    return [slash for slash in SLASHES if slash.name.startswith(name)]
