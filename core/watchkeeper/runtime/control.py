"""Control of a session from any process: queue a command for its host, or start a host if none runs.

This module writes the `commands` table and starts processes, nothing else. It is the only part of the runtime
that the dashboard may import, and it imports nothing heavy.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.models.registry import list_prices, missing_key, provider_of
from watchkeeper.records.errors import BadInput, NotFound, StoreUnusable, WatchkeeperError
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.records.states import AGENT_ENDED, SessionStatus
from watchkeeper.store import commands, database, driver, sessions
from watchkeeper.store.database import refuse_inside
from watchkeeper.store.driver import Connection, Queries, make_private, sqlite3
from watchkeeper.store.imports import refuse_imported
from watchkeeper.store.lease import probe
from watchkeeper.store.place import Place, arguments_for, config_folder, config_text, user_redactor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from watchkeeper.records.messages import Periods
    from watchkeeper.runtime.config import Config


# Checks before a session is started or resumed: the configuration is readable, and the model has a key. A host
# checks the same when it begins; here the user gets the error at once, before anything is written.


def check_configuration(workspace: Path) -> Config:
    """The user's configuration, after it and that of the workspace were checked as a host checks them.

    Raises:
        BadInput: a file is damaged, or has an unknown setting; the line names the file and the setting.
    """
    from watchkeeper.runtime.config import load_config, load_workspace_config

    config = load_config()
    load_workspace_config(workspace)
    return config


def check_key(ref: str, *, environment: str, then: str, base_url: str | None = None) -> None:
    """Refuse a model whose key is missing from the environment of this process.

    In the message, `environment` names this process, and `then` says what to do after the key was set.
    `base_url` is the server that the session chose; None: the configured one. The configuration is read without validation
    (`check_configuration` does that), so that the dashboard loads nothing heavy.

    Raises:
        BadInput: the variable that holds no key, and where it was looked for.
    """
    settings = _server_settings(provider_of(ref))
    name = missing_key(
        ref, api_key_env=settings.get("api_key_env"), base_url=base_url or settings.get("base_url")
    )
    if name is not None:
        other = " or OPENAI_BASE_URL" if provider_of(ref) == "openai-chat" else ""
        raise BadInput(
            f"{name} is not set in the environment of {environment}, and {ref} needs a key; set {name}{other}, then {then}"
        )


def check_resume(database_path: Place, session_id: str, *, environment: str) -> None:
    """Refuse to resume a session that shares a budget of its project, whose model has no key in this process's
    environment, or whose files are a worker's.

    Raises:
        BadInput: see `check_key` and `refuse_project_budget`.
    """
    from watchkeeper.store.budgets import refuse_project_budget
    from watchkeeper.store.driver import decode

    with closing(database.open_readonly(database_path)) as connection:
        refuse_project_budget(connection, session_id)
        session = sessions.load(Queries(connection), session_id)
    if session is None:
        return
    if session.needs is not None and not Path(session.workspace).is_dir():
        raise BadInput(
            f"session {session_id} belongs to another machine ({session.workspace} does not exist here); queue it for a worker with"
            f" `wk resume {session_id} --queue`"
        )
    try:
        settings = decode(session.settings)
    except ValueError:
        return  # damaged: the host says which value
    chosen = settings.get("base_url") if isinstance(settings, dict) else None
    check_key(
        session.model,
        environment=environment,
        then=f"run `wk resume {session_id}` in that shell",
        base_url=chosen if isinstance(chosen, str) else None,
    )


def _server_settings(provider: str) -> dict[str, Any]:
    """`api_key_env` and `base_url` of a provider's table in the user's configuration, if they are texts."""
    table = _configured(provider)
    return {name: value for name in ("api_key_env", "base_url") if isinstance(value := table.get(name), str)}


def _configured(name: str) -> dict[str, Any]:
    """A table of the user's configuration, not validated; empty if there is none, or the file is damaged."""
    table = _configuration().get(name)
    return table if isinstance(table, dict) else {}


_Number = TypeVar("_Number", int, float)


def _configured_number(name: str, default: _Number) -> _Number:
    value = _configuration().get(name)
    return type(default)(value) if isinstance(value, int | float) else default


def _configuration() -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads((config_folder() / "config.toml").read_text("utf-8"))
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}


GUARD = "WATCHKEEPER_AGENT"
"""Set in the environment of every tool, because an agent must not control its own run."""


@dataclass(frozen=True, slots=True)
class CommandState:
    """The state of a command (`records.states.CommandStatus`), and its result."""

    status: str
    result: str | None


def user_name() -> str:
    """The user who runs this process, for records of who did what; `unknown` if the system has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def refuse_agents() -> None:
    """Refuse to act on behalf of a tool of a run. A guard against accidents, not a boundary.

    Raises:
        BadInput: `WATCHKEEPER_AGENT` is set.
    """
    if os.environ.get(GUARD):
        raise BadInput("tools run by an agent cannot control runs (WATCHKEEPER_AGENT is set); ask the user")


def submit(
    database_path: Place,
    session_id: str,
    kind: str,
    *,
    agent_id: str | None = None,
    task_id: str | None = None,
    payload: dict[str, Any] | None = None,
    requested_by: str = "dashboard",
    dedupe_key: str | None = None,
    now: Callable[[], float] = time.time,
) -> int:
    """Queue a command, without the secrets that its payload may hold; returns its id at once.

    The host applies it, or refuses it with a reason.

    Raises:
        BadInput: not a kind of command, a session that another program ran, an answer that holds a secret, a
            compaction for which a host would be started in vain, or called from a tool.
        StoreUnusable: the database cannot be written.
    """
    refuse_agents()
    if kind not in commands.KINDS:
        raise BadInput(f"unknown command: {kind}; use one of {', '.join(sorted(commands.KINDS))}")
    given = payload or {}
    stored = user_redactor()(given)
    for name, text in (("edited_input", "the edited input"), ("pattern", "the pattern")):
        if stored.get(name) != given.get(name):  # what would run is not what the person approved
            raise BadInput(
                f"{text} contains a secret. Secrets are not stored; use an environment variable or a file"
            )
    try:
        with closing(database.open_writable(database_path)) as connection:
            refuse_imported(connection, session_id)
            if kind == "compact" and agent_id is not None and probe(database_path, session_id) is None:
                refuse_compaction(connection, agent_id, stored)
            if kind == "plan":
                refuse_plan_edit(connection, session_id, stored)
            with driver.writing(connection, "command", urgent=lambda: True):
                return commands.insert(
                    connection,
                    session_id=session_id,
                    kind=kind,
                    agent_id=agent_id,
                    task_id=task_id,
                    payload=stored,
                    requested_by=requested_by,
                    dedupe_key=dedupe_key,
                    now=now(),
                )
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(database_path, error)) from error


def refuse_compaction(connection: Connection, agent_id: str, payload: Mapping[str, Any]) -> None:
    """Refuse a compaction from the rows, before a host is started that would refuse it.

    Raises:
        BadInput: the session is cancelled, no model that may write the summary has a key here, or nothing is to gain.
    """
    from watchkeeper.agents.agent_state import AgentMemory, context_limits
    from watchkeeper.memory.tokens import Calibrations, CallableCounter
    from watchkeeper.store import agents
    from watchkeeper.store.projection import composition_of

    reads = Queries(connection)
    agent, session = agents.load(reads, agent_id), sessions.of_agent(reads, agent_id)
    if agent is None or session is None:
        return  # the host says that there is no such agent
    if session.status is SessionStatus.CANCELLED:
        raise BadInput(f"refused: session {session.id} is cancelled and will not continue")
    if (driven := agents.load_program_session(reads, agent_id)) is not None:
        if agent.status in AGENT_ENDED:
            raise BadInput(f"refused: {agent.name} has ended, so {driven.program} has nothing to compact")
        return  # the program itself compacts
    wanted = payload.get("model")
    _check_writer_key(
        agent.role, str(wanted or agent.model), session.workspace, session.settings, chosen=wanted is not None
    )
    up_to = payload.get("up_to")
    limits = context_limits(
        agent.context_limit,
        _configured_number("max_output_tokens", 8_192),
        _configured_number("summarization_threshold", 0.75),
        dict(composition_of(agents.progress(reads, agent_id).composition)).get("overhead", 0),
    )
    ratio = Calibrations(partial(agents.reported_prompts, reads, session.id)).of(agent.model).ratio
    # Sizes are stored: the little text that is counted here need not be counted with a model's encoding.
    counter = CallableCounter(lambda text: len(text) // 4)
    memory = AgentMemory.load(reads, agent_id, limits, counter, ratio)
    if reason := memory.why_not_compact(up_to if isinstance(up_to, int) else None):
        raise BadInput(f"refused: {reason}")


class _SessionReads(Queries):
    def __init__(self, connection: Connection, session_id: str) -> None:
        super().__init__(connection)
        self.session_id = session_id


def refuse_plan_edit(connection: Connection, session_id: str, payload: Mapping[str, Any]) -> None:
    """Refuse a change of the plan from the rows, before it is queued. The host judges it again when it applies it.

    Raises:
        BadInput: there is no plan, no such task or role, no instructions, or dependencies in a circle; or the task
            cannot be changed in its state.
    """
    from watchkeeper.agents.roles import load_roles
    from watchkeeper.agents.session_tools import PlanTools

    reads = _SessionReads(connection, session_id)
    session = sessions.load(reads, session_id)
    if session is None or not Path(session.workspace).is_dir():
        return  # another machine has the workspace and its roles
    if commands.newest_queued(reads, session_id) is not None:
        return  # what waits may change what this one finds
    tools = PlanTools(lambda: "", load_roles(Path(session.workspace), config_folder()))
    try:
        tools.refuse(reads, str(payload.get("act")), payload.get("arguments") or {})
    except ValueError as refused:
        raise BadInput(f"refused: {refused}") from None


def _check_writer_key(role: str, ref: str, workspace: str, settings: str, *, chosen: bool) -> None:
    """Refuse if the model of a summary has no key here. Unless the user `chosen` it, the role's or the configured
    model for memory may write in its place.

    Raises:
        BadInput: see `check_key`.
    """
    try:
        stored = driver.decode(settings)
    except ValueError:
        stored = None  # damaged: the host says which value
    base_url = stored.get("base_url") if isinstance(stored, dict) else None
    try:
        check_key(
            ref,
            environment="this process",
            then="compact again",
            base_url=base_url if isinstance(base_url, str) else None,
        )
    except BadInput:
        if chosen or not any(map(_has_key, _memory_models(role, Path(workspace)))):
            raise


def _memory_models(role: str, workspace: Path) -> Iterator[str]:
    from watchkeeper.agents.roles import load_roles

    if configured := _configured("memory").get("model"):
        yield str(configured)
    roles = load_roles(workspace, config_folder())
    if role in roles and (own := roles[role].memory_model):
        yield own


def _has_key(ref: str) -> bool:
    server = _server_settings(provider_of(ref))
    return missing_key(ref, api_key_env=server.get("api_key_env"), base_url=server.get("base_url")) is None


def state(database_path: Place, command_id: int) -> CommandState:
    """The state of a command now.

    Raises:
        NotFound: no such command.
    """
    with closing(database.open_readonly(database_path)) as connection:
        found = commands.answer(Queries(connection), command_id)
    if found is None:
        raise NotFound(f"no command {command_id}")
    return CommandState(*found)


ANSWER_SECONDS = 10.0
"""How long a command waits for the answer of a host that runs; after that it stays queued."""

ONCE_SECONDS = 60.0
"""How long it waits for a host that was started for this command alone."""
START_SECONDS = 20.0
"""How long a host may take to start its session."""

WITHOUT_HOST = frozenset({"compact", "undo", "redo", "edit", "rerun", "memory_sync", "pin", "unpin"})
"""Commands that start a host of their own if none runs; the others wait for `wk resume`."""


FINAL = frozenset({SessionStatus.DONE, SessionStatus.CANCELLED})
"""States in which a session cannot be resumed; a failed one can."""


def nothing_to_resume(session_id: str, status: str) -> str:
    """The message for a session that is done or cancelled."""
    return f"session {session_id} is already {status}; nothing to resume"


def carry_out(
    database_path: Place,
    session_id: str,
    kind: str,
    *,
    requested_by: str,
    agent_id: str | None = None,
    task_id: str | None = None,
    payload: dict[str, Any] | None = None,
) -> tuple[int, CommandState]:
    """Queue a command and wait for its answer, which always has a result; returns its id too.

    Raises:
        BadInput: the session has ended or was imported, or see `submit`.
        WatchkeeperError: the host that was started for the command ended early.
    """
    with closing(database.open_readonly(database_path)) as connection:
        refuse_imported(connection, session_id)
        status = sessions.require(Queries(connection), session_id).status
    alone = probe(database_path, session_id) is None
    if alone and kind not in WITHOUT_HOST and status in FINAL:
        refuse_agents()
        raise BadInput(
            f"session {session_id} is already {status}; nothing to {kind.replace('_', ' ')}."
            " `wk rerun` runs a task again"
        )
    command_id = submit(
        database_path, session_id, kind, agent_id=agent_id, task_id=task_id, payload=payload,
        requested_by=requested_by,
    )  # fmt: skip
    if alone and kind not in WITHOUT_HOST:
        return command_id, CommandState("queued", "applies on resume: nothing is running")
    answer = _await_answer(database_path, session_id, command_id, start=kind in WITHOUT_HOST)
    return command_id, CommandState(
        answer.status, answer.result or "queued; waiting for the background process"
    )


def _await_answer(database_path: Place, session_id: str, command_id: int, *, start: bool) -> CommandState:
    """Wait until a host has answered. With `start`, one is started for this command whenever none runs."""
    pid: int | None = None
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        # A host that ran a moment ago may end without having seen the command.
        if start and pid is None and probe(database_path, session_id) is None:
            pid = start_host(database_path, session_id, resume=False, once=command_id)
            deadline = time.monotonic() + ONCE_SECONDS
        ended = why_ended(database_path, session_id, pid) if pid is not None else None
        answer = state(database_path, command_id)
        if answer.status != "queued" or time.monotonic() >= deadline:
            return answer
        if ended is not None:
            raise WatchkeeperError(
                f"the background process for this command ended before the command finished: {ended.removeprefix('wk: ')}"
            )
        time.sleep(0.02)


def start_host(
    database_path: Place,
    session_id: str,
    *,
    resume: bool = True,
    once: int | None = None,
    approval_timeout_seconds: float | None = None,
    environment: str = "this process",
) -> int | None:
    """Start a detached host process for a session; returns its pid, or None if a host already runs.

    `resume` lifts a pause; `once` names a command after which the host stops again, leaving the session as it
    was. `approval_timeout_seconds`: how long that host's questions wait; None: until they are answered.
    `environment` names the environment that the host inherits, for the message about a missing key.

    Raises:
        BadInput: another program ran the session, it is done or cancelled (and `once` is None), its workspace
            contains the database, its model has no key here, or called from a tool.
    """
    refuse_agents()
    with closing(database.open_readonly(database_path)) as connection:
        refuse_imported(connection, session_id)
        session = sessions.load(Queries(connection), session_id)
    if session is not None:
        refuse_inside(database_path, Path(session.workspace))
    if probe(database_path, session_id) is not None:
        return None
    if once is None:
        if session is not None and session.status in FINAL:
            raise BadInput(nothing_to_resume(session_id, session.status))
        check_resume(database_path, session_id, environment=environment)
    options = ["--resume"] if resume else []
    if once is not None:
        options += ["--once", str(once)]
    if approval_timeout_seconds is not None:
        options += ["--approval-timeout", str(approval_timeout_seconds)]
    process = spawn_host(database_path, session_id, options)
    # The caller may never wait for the host: without this, an ended host would remain as a defunct process.
    threading.Thread(target=process.wait, name="reap-host", daemon=True).start()
    return process.pid


def spawn_host(database_path: Place, session_id: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """A detached process that runs `wk host SESSION OPTIONS`. It checks nothing, and its output goes to the host's
    log."""
    command = [sys.executable, "-P", "-m", "watchkeeper", "host", session_id, *arguments_for(database_path)]
    log = host_log_path(database_path, session_id)
    with (
        open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as output,
        handed_over(config_text()) as handover,
    ):
        return subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=handover.environment | {"PYTHONUNBUFFERED": "1"},
            pass_fds=handover.descriptors,
        )


def await_host(database_path: Place, session_id: str, pid: int) -> str | None:
    """Wait until the host that `start_host` started runs the session; returns None, or the last line of its log
    if it has ended.

    Only the process that started the host can see that it has ended.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if probe(database_path, session_id) is not None:
            return None
        ended = why_ended(database_path, session_id, pid)
        if ended is not None:
            return ended
        time.sleep(0.02)
    return f"the background process (pid {pid}) did not start the session within {START_SECONDS:g} s"


def why_ended(database_path: Place, session_id: str, pid: int) -> str | None:
    """The last line of the log of the host `pid`, once it has ended; None while it runs."""
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended = pid
    return last_words(database_path, session_id) if ended else None


def last_words(database_path: Place, session_id: str) -> str:
    """The last line of the log of a session's host."""
    log = host_log_path(database_path, session_id)
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "the background process ended immediately"


def host_log_path(database_path: Place, session_id: str) -> Path:
    """The log of a detached host, which is read if the host ends early."""
    from watchkeeper.store.lease import lock_path

    path = lock_path(database_path, session_id).with_suffix(".log")
    make_private(path.parent)
    return path


def model_prices(model_refs: Iterable[str]) -> dict[str, Periods]:
    """The list prices of these models, empty for a model without one.

    It may take a second for each model that was not asked for before: another process reads its prices.
    """
    return list_prices(model_refs)
