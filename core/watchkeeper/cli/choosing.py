"""Which models a run uses: those that the user named, or picks at a terminal. None is picked for the user,
and none that a workspace chooses makes the run dearer without the user's word."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli.options import clean, say
from watchkeeper.models.credentials import ANTHROPIC_HOST, host_of, missing_key
from watchkeeper.models.registry import SUGGESTED, SURVEYOR
from watchkeeper.records.errors import BadInput
from watchkeeper.records.text import sanitize
from watchkeeper.runtime.config import Config

if TYPE_CHECKING:
    from watchkeeper.runtime.role_models import RoleModel

LOCAL_SERVERS = {11434: "Ollama", 1234: "LM Studio", 8080: "llama.cpp", 8000: "vLLM"}
"""Ports on which programs that can speak the Messages API listen by default."""

PROBE_SECONDS = 0.25
"""How long all probes of local servers may take together."""

LONGEST_COMMAND = 4_000
"""Characters of a command that an error repeats whole."""

MOST_ROLES = 5
"""Roles that one question or warning names."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model, and the local server that was picked with it (None: the configured server, or Anthropic's)."""

    ref: str
    base_url: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """One line of the question. Without `ref` the user names the server's model."""

    text: str
    ref: str | None = None
    base_url: str | None = None


def choose_model(
    named: str | None, config: Config, *, arguments: Sequence[str], may_ask: bool
) -> ChosenModel:
    """The model that `--model` named or the configuration holds; else the one that the user picks, if
    `may_ask`.

    The surveyor is used where `--model` names it, and never otherwise. `arguments` are those of `wk`, for the
    error.

    Raises:
        BadInput: none was chosen; the line ends with the command that chooses one.
    """
    if named:
        return ChosenModel(named)
    if config.model is not None and config.model.strip() != SURVEYOR:
        return ChosenModel(config.model)
    why = "no model is chosen"
    if config.model is not None:
        why = f"the configured model is {SURVEYOR}, which surveys a folder and reads no goal"
    offers = _offers(config) if may_ask else []
    if offers:
        chosen = _ask(why, offers)
        if chosen is not None:
            return chosen
    key = missing_key(
        SUGGESTED[0], api_key_env=config.anthropic.api_key_env, base_url=config.anthropic.base_url
    )
    first = f"set {key}, then run" if key else "run"
    raise BadInput(f"{why}; {first}: {_command(arguments, SUGGESTED[0])}")


def confirm_roles(
    workspace: Path, ref: str, allowed: Sequence[str], *, may_ask: bool, show: bool
) -> tuple[str, ...]:
    """The user's answers about roles of the workspace that ask for a dearer model, in addition to `allowed`.

    Answers are as `SessionSettings.allow_models` holds them. Without `may_ask` nothing is allowed, and a
    warning says which
    model each of these roles runs on. `show`: print role, source and model of each role that is not built in.
    """
    from watchkeeper.agents.roles import load_roles
    from watchkeeper.runtime.role_models import BUILT_IN, price_of, role_models, warning
    from watchkeeper.store.user_secrets import config_folder

    roles = load_roles(workspace, config_folder())
    dearer: dict[tuple[str, str], list[RoleModel]] = {}
    for choice in role_models(roles, ref, allowed).values():
        if choice.unconfirmed is not None:
            dearer.setdefault((choice.unconfirmed, choice.own), []).append(choice)
    confirmed: list[str] = []
    for (wanted, own), choices in dearer.items():
        if not may_ask:
            for choice in choices[:MOST_ROLES]:
                click.echo(f"wk: {clean(warning(choice), 600)}", err=True)
            continue
        named = ", ".join(f"{one.role} ({one.source})" for one in choices[:MOST_ROLES])
        more = f" and {len(choices) - MOST_ROLES} more" if len(choices) > MOST_ROLES else ""
        click.echo(
            "wk: this workspace chooses a model that costs more than yours, for the role"
            f" {clean(named, 600)}{more}:",
            err=True,
        )
        click.echo(f"  its choice  {clean(wanted, 120)}: {price_of(wanted)}", err=True)
        click.echo(f"  yours       {clean(own, 120)}: {price_of(own)}", err=True)
        if click.confirm("Use its choice", default=False, err=True):
            confirmed += [f"{one.role}={wanted}" for one in choices]
    if show:
        for choice in role_models(roles, ref, (*allowed, *confirmed)).values():
            if choice.source != BUILT_IN:
                say(
                    f"role {clean(choice.role, 40)}  {clean(choice.source, 80)}  {clean(choice.model, 80)} "
                    f" {price_of(choice.model)}"
                )
    return tuple(confirmed)


def _offers(config: Config) -> list[Offer]:
    """What this machine could run on: models of Anthropic where there is a key, the configured server, local
    servers."""
    from watchkeeper.models.prices import rates

    own = config.anthropic
    configured = (own.base_url or os.environ.get("ANTHROPIC_BASE_URL") or "").strip()
    found: list[Offer] = []
    if configured and host_of(configured) != ANTHROPIC_HOST:
        open_ports = [] if host_of(configured) not in LOOPBACK else [configured]
        if not open_ports or _listening(open_ports):
            found.append(Offer(f"a model of {clean(configured, 200)}, the configured server"))
    elif missing_key(SUGGESTED[0], api_key_env=own.api_key_env, base_url=configured) is None:
        variable = own.api_key_env or next(
            (name for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN") if os.environ.get(name)),
            "the SDK's own credentials",
        )
        for ref in SUGGESTED:
            rate = rates(ref)
            price = f", {rate}" if rate is not None else ""
            found.append(Offer(f"{ref}{price} (key: {variable})", ref))
    urls = {f"http://127.0.0.1:{port}": name for port, name in LOCAL_SERVERS.items()}
    urls = {url: name for url, name in urls.items() if _place(url) != _place(configured)}
    for url in _listening(list(urls)):
        found.append(Offer(f"a model of the server at {url} ({urls[url]}'s port), without a key", None, url))
    return found


def _ask(why: str, offers: list[Offer]) -> ChosenModel | None:
    """Ask on standard error; None where the user chooses nothing."""
    click.echo(f"wk: {why}. These were found:", err=True)
    for number, offer in enumerate(offers, 1):
        click.echo(f"  {number}  {offer.text}", err=True)
    answer = _line("Which model (a number, or provider/model; empty: none)")
    while answer:
        number = int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 4 else 0
        if 0 < number <= len(offers):
            return _picked(offers[number - 1])
        if answer.startswith("claude-"):
            answer = f"anthropic/{answer}"
        if answer.partition("/")[0] == "anthropic" and answer.partition("/")[2]:
            return ChosenModel(answer)
        click.echo(
            f"  {clean(answer, 80)} is not one of them; give a number from 1 to {len(offers)}, or"
            " anthropic/MODEL",
            err=True,
        )
        answer = _line("Which model")
    return None


def _picked(offer: Offer) -> ChosenModel | None:
    if offer.ref is not None:
        return ChosenModel(offer.ref)
    name = _line("The name of the model on that server (empty: none)")
    return ChosenModel(f"anthropic/{name.removeprefix('anthropic/')}", offer.base_url) if name else None


def _line(question: str) -> str:
    return str(click.prompt(question, default="", show_default=False, err=True)).strip()


def _listening(urls: Sequence[str]) -> list[str]:
    """Those of these loopback URLs where a program accepts a connection. Takes `PROBE_SECONDS` at most."""
    deadline = time.monotonic() + PROBE_SECONDS
    found = []
    for url in urls:
        host, port = _place(url)
        left = deadline - time.monotonic()
        if host not in LOOPBACK or left <= 0:
            continue
        try:
            socket.create_connection((host, port), timeout=left / 2).close()
        except OSError:
            continue
        found.append(url)
    return found


def _place(url: str) -> tuple[str, int]:
    """Host and port of a URL; `localhost` is 127.0.0.1. A URL that names none gives an empty host."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "", 0
    host = parts.hostname or ""
    return ("127.0.0.1" if host == "localhost" else host), port


def _command(arguments: Sequence[str], ref: str) -> str:
    """`wk ARGUMENTS --model REF` for a shell, on one line."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    words[place:place] = ["--model", ref]
    text = " ".join(["wk", *map(_quoted, words)])
    return text if len(text) <= LONGEST_COMMAND else f"wk run GOAL --model {ref}"


def _quoted(word: str) -> str:
    """A word for a POSIX shell. What one line of a terminal cannot show is written as `$'…'` (bash, zsh,
    ksh)."""
    if " ".join(sanitize(word).split()) != word:
        escaped = "".join(
            one if one.isascii() and one.isprintable() and one not in "\\' " else _escaped(one)
            for one in word
        )
        return f"$'{escaped}'"
    if word and shlex.quote(word) == word:
        return word
    return shlex.quote(word) if set(word) & set('"$`\\!') or not word else f'"{word}"'


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def may_ask(*, as_json: bool) -> bool:
    """Whether a person sits at a terminal who can answer a question."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()
