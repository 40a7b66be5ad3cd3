"""What the dashboard does to a run: commands written beside the event loop, hosts, exports, and previews of prompts in
processes of their own. What became of a command is read from the `commands` table like all else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store.agent_snapshot import StoredMessage
from watchkeeper.store.place import Place, config_text
from watchkeeper_tui import formatting
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.requests import Request
from watchkeeper_tui.snapshot import TranscriptBlock

if TYPE_CHECKING:
    from watchkeeper.records.messages import Periods


@dataclass(frozen=True, slots=True)
class Sent:
    """A command that this dashboard wrote."""

    command_id: int | None
    """None while it is being written, and where a host was started instead."""
    about: str
    at: float
    said: str = ""
    """What came of it where no command tells."""
    group: int = 0
    """Commands that one key wrote have the same number."""
    compacts: str | None = None
    """The agent whose context it compacts: its pass is followed after the command was applied."""
    once: bool = False
    """A background process was started to apply it."""


MOST_SENT = 100
"""As many commands are followed: as many agents may be marked."""


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of the prompt."""

    role: str
    tokens: int
    blocks: tuple[TranscriptBlock, ...]


@dataclass(frozen=True, slots=True)
class PromptPreview:
    """What the change would lead to, as the store has it; or why it cannot be made."""

    tokens_before: int = 0
    tokens: int = 0
    limit: int = 0
    cache_tokens_written: int = 0
    """Tokens behind the first change: the next call writes them to the prompt cache again."""
    cost_usd: float | None = None
    """The cost of these; None without a known price."""
    messages_cached: int = 0
    high_water: int | None = None
    messages: tuple[PromptMessage, ...] = ()
    problem: str = ""

    def lines(self) -> list[str]:
        """The preview in words."""
        if self.problem:
            return [self.problem]
        change = formatting.change(self.tokens_before, self.tokens)
        before, after = formatting.tokens(self.tokens_before), formatting.tokens(self.tokens)
        lines = [
            f"Messages and observations: {before} → {after} of {formatting.tokens(self.limit)} tok ({change})"
        ]
        if self.high_water is not None:
            lines[0] += f", up to #{self.high_water} (with a digest as a placeholder for the summary)"
        if not self.cache_tokens_written:
            return [*lines, "Prompt cache: unchanged."]
        kept = formatting.plural(self.messages_cached, "message")
        if self.cost_usd == 0:  # a model that costs nothing has no prompt cache that is paid for
            changed = formatting.tokens(self.cache_tokens_written)
            return [
                *lines,
                f"Prompt: {kept} at its beginning stay as they are; {changed} tok after them change.",
            ]
        cost = "" if self.cost_usd is None else f", about {formatting.money(self.cost_usd)}"
        lines.append(
            f"Prompt cache: keeps {kept}; the next {formatting.tokens(self.cache_tokens_written)} tok"
            f" are rewritten{cost}."
        )
        return lines


def arguments(session_id: str, request: Request) -> tuple[list[str], str]:
    """The command line that previews a command, and its standard input; no words where it has none."""
    payload, agent = request.payload, request.agent_id or ""
    if request.kind == "compact":
        return ["compact", session_id, agent, "--preview"], ""
    if request.kind != "edit":
        return [], ""
    words = ["memory", "edit", session_id, agent, "--preview"]
    for name in ("drop", "pin", "unpin"):
        if payload.get(name):
            words += [f"--{name}", ",".join(map(str, payload[name]))]
    for number, text in payload.get("texts", {}).items():
        return [*words, "--observation", str(number), "--text", "-"], str(text)
    return words, ""


async def preview(database_path: Place, session_id: str, request: Request) -> PromptPreview | None:
    """Run the preview of a command and wait for its end; None where it has none."""
    words, given = arguments(session_id, request)
    if not words:
        return None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "watchkeeper", *words, "--json", "--db", str(database_path),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate(given.encode("utf-8", "replace"))
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1].removeprefix("wk: ") if lines else f"exit code {process.returncode}"
        # A summary may be shorter than the digest that has nothing to gain.
        return PromptPreview(
            problem=f"{'This would be refused' if request.kind == 'edit' else 'No preview'}: {why}"
        )
    return read(json.loads(out))


def read(value: Mapping[str, Any]) -> PromptPreview:
    """A preview from the JSON of the command line."""
    names: dict[str, str] = {}
    messages = []
    for place, (message, tokens) in enumerate(zip(value["messages"], value["sizes"], strict=True), 1):
        text = json.dumps(message["content"])
        stored = StoredMessage(place, message["role"], text, tokens, 0, 0.0, len(text))
        messages.append(PromptMessage(message["role"], tokens, tuple(fold_message(stored, names))))
    return PromptPreview(
        value["tokens_before"], value["tokens"], value["limit"], value["cache_tokens_written"], value["cost_usd"],
        value["messages_cached"], value["high_water"], tuple(messages),
    )  # fmt: skip


class Control(Protocol):
    """What the dashboard may do to a run."""

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        """Queue a command; returns its id."""
        ...

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        """Start a host if none runs; returns its pid. A host that resumes the session runs it by then.

        Raises:
            WatchkeeperError: it ended before it ran the session.
        """
        ...

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        """The prompt that a command would lead to; None where it changes none. Changes nothing."""
        ...


class ReadOnlyControl:
    """Refuses everything: the session is only looked at."""

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        raise ReadOnly

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        raise ReadOnly

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        raise ReadOnly


class ReadOnly(WatchkeeperError):
    """The user tried to control a session that is open read-only."""

    def __init__(self) -> None:
        super().__init__("the session is open read-only; press s, then Enter to act on it")


class StoreControl:
    """The real one. `submit` blocks for milliseconds and `start_host` for a second, so a worker thread calls them."""

    def __init__(self, path: Place) -> None:
        self._path = path

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        import getpass

        from watchkeeper.runtime.control import submit

        try:
            who = f"{getpass.getuser()} (dashboard)"
        except (KeyError, OSError):  # a user without a name
            who = "dashboard"
        return submit(
            self._path,
            session_id,
            kind,
            agent_id=agent_id,
            task_id=task_id,
            payload=payload,
            requested_by=who,
        )

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        from watchkeeper.runtime.control import await_host, start_host

        pid = start_host(
            self._path,
            session_id,
            resume=resume,
            once=once,
            environment=f"this dashboard (pid {os.getpid()})",
        )
        if pid is not None and once is None:
            ended = await_host(self._path, session_id, pid)
            if ended is not None:
                raise WatchkeeperError(f"the background process did not start: {ended.removeprefix('wk: ')}")
        return pid

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        return await preview(self._path, session_id, request)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `wk run` is asked for, as it was typed."""

    goal: str
    """Empty with `from_session`: the goal of that session."""
    workspace: str = ""
    model: str = ""
    budget_usd: str = ""
    max_parallel: str = ""
    allow_models: tuple[str, ...] = ()
    """Models that roles of the workspace may use although they cost more."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    from_session: str | None = None
    """The session that is continued."""
    base_url: str = ""
    """A server on this machine that has the model."""
    rules: str = ""
    """A rule for every agent."""

    def arguments(self, database_path: Place) -> list[str]:
        """The arguments of `wk` that ask for it. A value is never taken for an option."""
        words = ["run", "--detach", "--json", f"--db={database_path}"]
        for option, value in (
            ("workspace", self.workspace),
            ("model", self.model),
            ("base-url", self.base_url),
            ("budget-usd", self.budget_usd),
            ("max-parallel", self.max_parallel),
            ("from", self.from_session),
            ("rules", self.rules),
        ):
            if value:
                words.append(f"--{option}={value}")
        for option, values in (
            ("allow-model", self.allow_models),
            ("allow", self.allow),
            ("deny", self.deny),
        ):
            words += [f"--{option}={value}" for value in values]
        return [*words, "--", self.goal] if self.goal else words


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that a run can use here, or that a role of the workspace asks for. Texts are hostile until sanitised."""

    ref: str
    where: str
    """The key, the server or the role that it comes from."""
    base_url: str = ""
    input_usd: float | None = None
    """Per million tokens; None: no price is known."""
    output_usd: float | None = None


async def list_models(workspace: str) -> tuple[tuple[ModelChoice, ...], tuple[ModelChoice, ...]]:
    """What `wk models` lists for a workspace: the models, and those that its roles ask for. Empty where it fails."""
    with handed_over(config_text()) as handover:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "watchkeeper", "models", "--json", *([f"--workspace={workspace}"] if workspace else []),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=handover.environment, pass_fds=handover.descriptors,
        )  # fmt: skip
    out, _ = await process.communicate()
    if process.returncode != 0:
        return (), ()
    listed = json.loads(out)
    models = tuple(
        ModelChoice(one["model"], one["where"], one["base_url"] or "", one["input_usd"], one["output_usd"])
        for one in listed["models"]
    )
    return models, tuple(
        ModelChoice(one["model"], f"{one['role']} ({one['source']})") for one in listed["roles"]
    )


async def start_run(database_path: Place, request: RunRequest) -> tuple[str, str]:
    """Run `wk run --detach` and wait until the host runs; returns the session's id, or an empty one and why not."""
    with handed_over(config_text()) as handover:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "watchkeeper", *request.arguments(database_path),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=handover.environment, pass_fds=handover.descriptors,
        )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode != 0:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        return "", lines[-1].removeprefix("wk: ") if lines else f"exit code {process.returncode}"
    return str(json.loads(out.decode("utf-8", "replace").strip().splitlines()[-1])["session"]), ""


FORMS = {"h": ("html", "a web page"), "m": ("md", "Markdown"), "j": ("json", "JSON, complete")}
"""By key: the form's name, which is the file's ending too, and what people call it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of it: the file, or why there is none."""

    path: str
    bytes: int
    redacted: int | None
    """How many secrets were taken out."""
    problem: str = ""


def free_name(folder: Path, session_id: str, form: str) -> Path:
    """A name that no file has: `SESSION.html`, `SESSION-2.html`, …

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    if not folder.is_dir():
        ways = f"create it, or run `wk export {session_id} -o FILE` in another folder"
        raise FileNotFoundError(f"the folder {folder} does not exist; {ways}")
    path, number = folder / f"{session_id}.{form}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{session_id}-{number}.{form}"
    return path


def start_folder() -> Path:
    """The folder where the dashboard was started, by its name where it is deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.environ.get("PWD") or ".")


async def export(database_path: Place, session_id: str, form: str, folder: Path) -> Exported:
    """Run `wk export` and wait for its end. It never takes the place of a file."""
    path = free_name(folder, session_id, form)
    with handed_over(config_text()) as handover:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "watchkeeper", "export", session_id, "--format", form, "--output", str(path), "--json",
            "--db", str(database_path),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=handover.environment, pass_fds=handover.descriptors,
        )  # fmt: skip
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        return Exported(
            str(path), 0, None, lines[-1].removeprefix("wk: ") if lines else f"exit code {process.returncode}"
        )
    report = json.loads(out.decode("utf-8", "replace").strip().splitlines()[-1])
    return Exported(str(report["path"]), int(report["bytes"]), report.get("redacted"))


def model_prices(models: Iterable[str]) -> dict[str, Periods]:
    """The list prices of these models, empty for a model without one. It may take seconds."""
    from watchkeeper.runtime.control import model_prices

    return model_prices(models)
