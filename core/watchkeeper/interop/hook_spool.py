"""What hooks wrote and what Claude Code keeps about its own sessions, as rows of `store.external`.

`HookSpool.run` looks twenty times a second into a few small folders: the spool, the questions that hooks wait with, and
`~/.claude/sessions`, where the program itself says which session waits. So waiting questions are known without hooks.
Files are hostile and may be half-written, damaged, huge or thousands; each is read once, bounded, and deleted after the
commit that holds it. Reading one twice changes nothing. One process reads for a database; others stand by.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.interop.hooks import (
    ANSWER_TIMEOUT_SECONDS,
    CODEX_EVENTS,
    EVENTS,
    GUARDING,
    MOST_BYTES,
    MOST_QUESTION_BYTES,
    load_installed,
)
from watchkeeper.records import proc
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.quota import QuotaReading, status_readings
from watchkeeper.records.redact import Redactor
from watchkeeper.records.text import one_line
from watchkeeper.store import database, driver, external
from watchkeeper.store.driver import Connection, Queries, sqlite3
from watchkeeper.store.external import ExternalQuestion, SessionState, hooks_folder, log_of
from watchkeeper.store.guard import add_denial
from watchkeeper.store.quota import note_readings
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts.records import stable_id

if TYPE_CHECKING:
    from watchkeeper.interop.guard import Guard

PROGRAM = "claude-code"
LOOK_SECONDS = 0.05
SLOW_LOOK_SECONDS = 1.0
"""How often processes and logs are asked about questions and ends that no file tells of."""
MOST_AT_ONCE = 1_000
WHOLE_AFTER_SECONDS = 2.0
"""A file that is no JSON yet may still be written; after so long it is damaged."""
FRESH_SECONDS = 5.0
SETTLED_SECONDS = 0.2
"""What a program writes into its log within so long after it asked belongs to the call that it asks about."""
ANSWERS_KEPT_SECONDS = 60.0
YOUNG_SECONDS = 60.0
"""So soon after an event of a session, a run may still say that it drives it."""
COMPACTIONS_KEPT = 10
LONGEST_TEXT = 500
LOG_TAIL_BYTES = 1 << 20

_ID = re.compile(r"[0-9A-Za-z_-]{1,80}")
_NAME = re.compile(r"(\d{1,10})\.[0-9a-f]{1,32}\.json")
_decode = json.JSONDecoder().raw_decode
_MEMBER = re.compile(r'[\s,{]*("(?:[^"\\]|\\.){1,80}")\s*:\s*')


def read_small(path: Path, limit: int) -> tuple[bytes, os.stat_result] | None:
    """The beginning of a plain file, and what it is; None for links, pipes and folders, and where it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit), found
    except OSError:
        return None
    finally:
        os.close(descriptor)


def parse_payload(data: bytes) -> dict[str, Any] | None:
    """The members of a JSON object, of a cut one those before the cut; None where there is none."""
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        pass
    if len(data) < MOST_BYTES or not text.startswith("{"):
        return None
    members: dict[str, Any] = {}
    at = 0
    while (key := _MEMBER.match(text, at)) is not None:
        try:
            members[json.loads(key[1])], at = _decode(text, key.end())
        except (ValueError, RecursionError):
            break
    return members or None


def _words(payload: dict[str, Any], name: str, limit: int = LONGEST_TEXT) -> str:
    found = payload.get(name)
    return one_line(found, limit) if isinstance(found, str) else ""


def program_of(payload: dict[str, Any]) -> str:
    """Which program sent an event: OpenCode's plugin says so, and Codex's logs are named `rollout-…`."""
    if payload.get("program") == "opencode":
        return "opencode"
    log = payload.get("transcript_path")
    return "codex" if isinstance(log, str) and log.rpartition("/")[2].startswith("rollout-") else PROGRAM


def _is_older(at: float, state: SessionState, now: float) -> bool:
    """Whether more is known since. What was known at a time to come was known before the clock was set back."""
    return at < state.changed_at <= now


def apply(
    state: SessionState,
    event: str,
    payload: dict[str, Any],
    at: float,
    *,
    now: float,
    log_bytes: int | None = None,
) -> None:
    """What one event says about its session. Text is redacted already.

    An event that is older than what is known changes nothing but the list of compactions.
    """
    past = [one for one in state.details.get("compactions", ()) if isinstance(one, dict)]
    if event == "PreCompact" and all(one.get("at") != at for one in past):
        begun = {
            "trigger": _words(payload, "trigger", 20),
            "at": at,
            "ended_at": None,
            "path": state.transcript,
            "bytes": log_bytes,
        }
        past.append(begun | {"instructions": _words(payload, "custom_instructions", 2_000)})
    elif event == "PostCompact" or (
        event in ("SessionEnd", "Stop", "UserPromptSubmit", "StopFailure", "Interrupt") and past
    ):
        for one in past:
            if one.get("ended_at") is None and one.get("at", 0) <= at:
                one["ended_at"] = at
    if past:
        state.details["compactions"] = past[-COMPACTIONS_KEPT:]
    if _is_older(at, state, now):
        return
    was, state.changed_at = state.status, at
    if event == "SessionStart" and payload.get("source") != "compact":
        state.status, state.reason = "idle", ""
    elif event == "UserPromptSubmit":
        state.status, state.reason = "busy", ""
    elif event == "Stop":
        state.status, state.reason = "idle", ""
        state.details["last_message"] = _words(payload, "last_assistant_message")
    elif event == "StopFailure":
        said = [
            _words(payload, name) for name in ("error", "last_assistant_message")
        ]  # such as when a limit ends
        state.status, state.reason = "failed", ": ".join(filter(None, said)) or "the turn failed"
    elif event == "Notification" and payload.get("notification_type") in (
        "permission_prompt",
        "elicitation_dialog",
    ):
        state.status, state.reason = "waiting", _words(payload, "message")
    elif event == "PermissionRequest":
        state.status, state.reason = "waiting", f"permission: {_words(payload, 'tool_name', 60)}"
    elif event == "Interrupt":
        state.status, state.reason = "idle", "interrupted"
    elif event == "PreCompact":
        state.status, state.reason = "compacting", _words(payload, "trigger", 20)
        state.details["before_compaction"] = was
    elif event == "PostCompact":
        before = str(state.details.pop("before_compaction", "idle"))
        state.status, state.reason = before if before in ("idle", "busy") else "idle", ""
    elif event == "SessionEnd":
        reason = _words(payload, "reason", 60)
        state.status, state.reason = "ended", "" if reason == "other" else reason


@dataclass(slots=True)
class _Asked:
    """A question whose end is looked for in the log of its agent."""

    question: ExternalQuestion
    path: Path
    log: Path
    tool_input: dict[str, Any]
    started: str = ""
    """The kernel's start time of the process that asks."""
    begun: int = 0
    """The log's size when the question was found: a result before it belongs to an earlier call."""
    offset: int | None = None
    use_id: str | None = None
    gone: bool = False
    redact: Callable[[Any], Any] | None = None
    """Set where the reader before was ended between an answer and its confirmation: `tool_input` is redacted then."""

    def outcome(self) -> str:
        """`allowed`, `denied` or `failed` (an error) once the log has the result of the call; else empty."""
        if self.question.program != PROGRAM:
            return ""
        try:
            size = self.log.stat().st_size
            if self.offset is None:
                self.begun = size if self.redact is None else self.begun
                self.offset = max(0, self.begun - LOG_TAIL_BYTES)
            if size <= self.offset:
                return ""
            with self.log.open("rb") as file:
                file.seek(self.offset)
                data = file.read(4 * LOG_TAIL_BYTES)
        except OSError:
            self.offset = self.offset or 0  # the log may come later: then all of it is new
            return ""
        end = data.rfind(b"\n") + 1
        if not end and len(data) == 4 * LOG_TAIL_BYTES:
            end = len(data)  # a line as long as that holds an image or a file: no question waits for it
        start, self.offset = self.offset, self.offset + end
        for line in data[:end].splitlines(keepends=True):
            start += len(line)
            if b"tool_use" in line and (found := self._read(line, is_new=start > self.begun)):
                return found
        return ""

    def _read(self, line: bytes, *, is_new: bool) -> str:
        for block in _blocks(line):
            if block.get("type") == "tool_use" and block.get("name") == self.question.tool:
                given = block.get("input")
                if given == self.tool_input or (self.redact and self.redact(given) == self.tool_input):
                    self.use_id = str(block.get("id"))
            elif block.get("type") == "tool_result" and block.get("tool_use_id") == self.use_id:
                if is_new:
                    return (
                        "allowed"
                        if block.get("is_error") is not True
                        else "denied"
                        if _was_refused(block)
                        else "failed"
                    )
                self.use_id = None
        return ""


def _blocks(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        content = json.loads(line)["message"]["content"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield block


_REFUSALS = ("The user doesn't want to", "Permission to use")
"""What Claude Code writes as the result of a call that was refused in its terminal."""


def _was_refused(block: dict[str, Any]) -> bool:
    text = json.dumps(block.get("content"), ensure_ascii=False)[:4_000]
    return any(word in text for word in _REFUSALS)


def process_start(pid: int) -> str:
    """The kernel's start time of a process, which tells it from a later one with the same number; empty: not known."""
    stat = proc.stat_of(pid)
    return str(stat.start_ticks) if stat is not None else ""


def process_is_alive(pid: int, started: str = "") -> bool:
    """Whether this process runs. `started`: the kernel's start time where it is known; another process with the same
    number has another."""
    if proc.has_ended(pid):
        return False
    known = proc.stat_of(pid)
    if known is None:
        return True
    return not known.has_ended and (not started.isdigit() or known.start_ticks == int(started))


@dataclass(slots=True)
class _Changes:
    """What one look found: what is to be written, and the files to be deleted after the commit."""

    states: dict[str, SessionState] = field(default_factory=dict)
    questions: list[ExternalQuestion] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    quota: list[QuotaReading] = field(default_factory=list)
    denials: list[tuple[str, str, float]] = field(default_factory=list)
    """Agents that hooks denied: the session's program and its id there, the tool, when."""
    read: list[Path] = field(default_factory=list)


class HookSpool:
    """Reads for one database, from one thread.

    Args:
        homes: folders of Claude Code; by default those in which hooks were installed, and the usual one.
        redactor: takes secrets out of what is kept.
        is_alive: whether a process runs, by its number and recorded start.
        guard: looks about once a second for caps that sessions reached.
    """

    def __init__(
        self,
        writer: Writer,
        redactor: Redactor,
        *,
        homes: Iterable[Path] | None = None,
        now: Callable[[], float] = time.time,
        is_alive: Callable[[int, str], bool] = process_is_alive,
        guard: Guard | None = None,
    ) -> None:
        self._writer, self._redactor, self._now, self._is_alive = writer, redactor, now, is_alive
        self._folder = hooks_folder(writer.path)
        self._homes = homes
        self._session_folders: list[Path] = []
        self._states: dict[str, SessionState] | None = None
        self._own: set[str] = set()
        """Sessions that agents of our own drive: those are shown already."""
        self._own_is_new = False
        """Whether this step read which those are."""
        self._seen: dict[Path, tuple[int, int]] = {}
        self._asked: dict[str, _Asked] = {}
        self._slow_at = 0.0
        self._lock: int | None = None
        self._guard = guard
        self._connection: Connection | None = None
        """What the guard reads with."""

    # --- The loop ---

    def run(self, stop: threading.Event) -> None:
        """Read until `stop` is set. Another process that reads already is waited for."""
        try:
            while not stop.is_set():
                if not self._take_lock():
                    stop.wait(SLOW_LOOK_SECONDS)
                    continue
                try:
                    self.step()
                except StoreUnusable:
                    stop.wait(SLOW_LOOK_SECONDS)  # a lock or a full disk may pass; nothing was deleted
                except OSError:
                    stop.wait(SLOW_LOOK_SECONDS)
                stop.wait(LOOK_SECONDS)
        finally:
            self.close()

    def _take_lock(self) -> bool:
        if self._lock is None:
            path = self._folder.with_name(self._folder.name + ".lock")
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return False
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        listening = self._folder / "listening"
        if self._folder.is_dir() and not listening.exists():
            with contextlib.suppress(OSError):
                listening.write_text(f"{os.getpid()}\n")
        elif self._states is None and listening.exists():
            with contextlib.suppress(OSError):
                listening.write_text(f"{os.getpid()}\n")  # of a process that was killed
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            (self._folder / "listening").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def step(self) -> int:
        """Look once; returns how many files of the spool were read.

        Raises:
            StoreUnusable: it cannot be written now; everything is read again by the next step.
        """
        if self._states is None:
            self._load()
        changes = _Changes()
        self._own_is_new = False
        before = dict(self._seen)
        events = self._read_events(changes)
        self._read_questions(changes)
        self._read_sessions(changes)
        if is_slow := time.monotonic() >= self._slow_at:
            self._slow_at = time.monotonic() + SLOW_LOOK_SECONDS
            self._look_at_processes(changes)
            self._look_at_questions(changes)
            self._forget_own(changes)
            self._tidy()
        try:
            self._write(changes)
        except BaseException:
            self._seen, self._states = before, None
            raise
        for path in changes.read:
            with contextlib.suppress(OSError):
                path.unlink()
        if is_slow and self._guard is not None:
            self._look_for_caps(self._guard)
        return events

    def _look_for_caps(self, guard: Guard) -> None:
        try:
            if self._connection is None:
                self._connection = database.open_readonly(self._writer.path)
            guard.look(self._connection)
        except (sqlite3.Error, StoreUnusable):  # the lock may be temporary: the next look opens it again
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _load(self) -> None:
        def read(connection: Connection) -> dict[str, SessionState]:
            external.forget_old(connection, self._now())
            self._own = external.own_sessions(connection)
            states = external.load_states(connection)
            asks = {path.name.split(".")[1] for path in self._names("asks")}
            for each in external.load_external(connection).questions:
                if each.id in asks or each.id in self._asked:
                    continue
                if each.status == "sent" and (state := states.get(each.program_session)) is not None:
                    path = self._folder / "asks" / f"{each.pid}.{each.id}.json"
                    began = each.answer.get("log_bytes")
                    self._asked[each.id] = _Asked(
                        each, path, log_of(state.transcript, each.agent), dict(each.input), gone=True,
                        redact=self._redactor, begun=began if isinstance(began, int) else 0,
                    )  # fmt: skip
                else:
                    external.end_question(connection, each.id, "", self._now())
            return states

        self._states = self._writer.submit(lambda group: read(group.connection)).result()
        homes = self._homes
        if homes is None:
            usual = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude").expanduser()
            homes = [
                usual,
                *(
                    Path(each.home)
                    for each in load_installed(self._folder)
                    if each.home and each.program == "claude"
                ),
            ]
        self._session_folders = [home / "sessions" for home in dict.fromkeys(homes)]

    def _write(self, changes: _Changes) -> None:
        if not (changes.states or changes.questions or changes.ended or changes.own or changes.quota):
            return
        now = self._now()

        def write(connection: Connection) -> None:
            external.save_states(connection, changes.states.values())
            for question in changes.questions:
                external.add_question(connection, question)
            for question_id, outcome in changes.ended:
                external.end_question(connection, question_id, outcome, now)
            external.forget_sessions(connection, changes.own)
            note_readings(Queries(connection), connection.execute, changes.quota)
            for source, tool, at in changes.denials:
                add_denial(connection, source, tool, at)

        try:
            self._writer.submit(lambda group: write(group.connection)).result()
        except sqlite3.Error as fault:
            raise driver.unusable(self._writer.path, fault) from fault

    # --- Events ---

    def _names(self, name: str) -> list[Path]:
        try:
            with os.scandir(self._folder / name) as entries:
                return [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]
        except OSError:
            return []

    def _read_events(self, changes: _Changes) -> int:
        found: list[tuple[int, Path, bytes]] = []
        now = self._now()
        for path in self._names("spool")[:MOST_AT_ONCE]:
            read = read_small(path, MOST_BYTES)
            if read is None:
                changes.read.append(path)
                continue
            found.append((read[1].st_mtime_ns, path, read[0]))
        for at_ns, path, data in sorted(found, key=lambda each: each[:2]):
            at = min(at_ns / 1e9, now)
            payload = parse_payload(data)
            if payload is None and now - at < WHOLE_AFTER_SECONDS and len(data) < MOST_BYTES:
                continue  # the hook may still be writing it
            changes.read.append(path)
            if payload is not None:
                self._take_event(path, payload, at, changes)
        return len(changes.read)

    def _take_event(self, path: Path, payload: dict[str, Any], at: float, changes: _Changes) -> None:
        event = payload.get("hook_event_name")
        if event == "PermissionReplied":
            self._take_reply(payload, changes)
            return
        if event is None:  # Claude Code's status data, which a user's status line hands on
            changes.quota += status_readings(payload.get("rate_limits"), at)
            return
        state = self._state_of(payload, changes)
        if state is not None and event == GUARDING:
            tool = self._redactor.text(_words(payload, "tool_name", 60)) or "unknown tool"
            changes.denials.append((f"{state.program}:{state.program_session}", tool, at))
            return
        if state is None or event not in _TAKEN:
            return
        name = _NAME.fullmatch(path.name)
        if name and (pid := int(name[1])) != state.pid:
            state.pid, state.details["started"] = pid, process_start(pid)
        log_bytes = None
        if event == "PreCompact" and self._now() - at < FRESH_SECONDS:
            with contextlib.suppress(OSError):
                log_bytes = os.stat(state.transcript).st_size
        kept = {
            key: value[:MOST_BYTES]
            for key, value in payload.items()
            if isinstance(value, str) and key in _KEPT
        }
        apply(state, event, self._redactor(kept), at, now=self._now(), log_bytes=log_bytes)

    def _take_reply(self, payload: dict[str, Any], changes: _Changes) -> None:
        """What became of a question of OpenCode, which says it itself."""
        question_id = payload.get("question")
        if isinstance(question_id, str) and self._asked.pop(question_id, None) is not None:
            outcome = {"once": "allowed", "always": "allowed", "reject": "denied"}.get(
                str(payload.get("reply")), ""
            )
            changes.ended.append((question_id, outcome))

    def _state_of(self, payload: dict[str, Any], changes: _Changes) -> SessionState | None:
        """The state of the session that a payload names, marked as changed."""
        session = payload.get("session_id")
        if not isinstance(session, str) or not _ID.fullmatch(session) or self._is_own(session):
            return None
        state = self._state(session, program_of(payload), changes)
        for name, key in (("transcript", "transcript_path"), ("folder", "cwd")):
            value = payload.get(key)
            if isinstance(value, str) and value.startswith("/") and len(value) <= 4_096 and "\0" not in value:
                setattr(state, name, value)
        return state

    def _is_own(self, session: str) -> bool:
        """Whether an agent of our own drives this session. A run may have been started since this was asked last."""
        assert self._states is not None
        if session not in self._own and session not in self._states and not self._own_is_new:
            self._read_own()
        return session in self._own

    def _read_own(self) -> None:
        self._own_is_new = True
        self._own = self._writer.submit(lambda group: external.own_sessions(group.connection)).result()

    def _forget_own(self, changes: _Changes) -> None:
        """Take out the sessions of which a run said only after their first event that it drives them."""
        assert self._states is not None
        young = self._now() - YOUNG_SECONDS
        if not self._own_is_new and any(
            each.status != "ended" and each.changed_at > young for each in self._states.values()
        ):
            self._read_own()
        for session in self._own & self._states.keys():
            del self._states[session]
            changes.states.pop(session, None)
            changes.own.append(session)
        for question_id, asked in list(self._asked.items()):
            if asked.question.program_session in self._own:
                changes.read.append(asked.path)  # its hook ends: the run asks
                del self._asked[question_id]

    def _state(self, session: str, program: str, changes: _Changes) -> SessionState:
        assert self._states is not None
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = SessionState(program, session, stable_id(program, session))
        changes.states[session] = state
        return state

    # --- What the program itself keeps about its sessions ---

    def _read_sessions(self, changes: _Changes) -> None:
        there: set[Path] = set()
        for folder in self._session_folders:
            try:
                with os.scandir(folder) as entries:
                    found = [entry for entry in entries if re.fullmatch(r"\d{1,10}\.json", entry.name)][
                        :MOST_AT_ONCE
                    ]
                    marks = {Path(entry.path): entry.stat(follow_symlinks=False) for entry in found}
            except OSError:
                continue
            for path, mark in marks.items():
                there.add(path)
                if self._seen.get(path) == (mark.st_mtime_ns, mark.st_size):
                    continue
                read = read_small(path, MOST_BYTES)
                said = parse_payload(read[0]) if read is not None else None
                if said is None:
                    continue  # it may be half-written: looked at again
                self._seen[path] = (mark.st_mtime_ns, mark.st_size)
                self._take_session(int(path.stem), said, mark.st_mtime, changes)
        for path in self._seen.keys() - there:
            del self._seen[path]

    def _take_session(self, pid: int, said: dict[str, Any], at: float, changes: _Changes) -> None:
        session, status = said.get("sessionId"), said.get("status")
        started = str(said.get("procStart", ""))[:40]
        if not isinstance(session, str) or not _ID.fullmatch(session) or self._is_own(session):
            return
        if not self._is_alive(pid, started):
            return  # left by a process that was killed
        state = self._state_of({"session_id": session, "cwd": said.get("cwd")}, changes)
        assert state is not None
        state.pid, state.details["started"] = pid, started
        self._end_others(state, changes)
        now = self._now()
        if _is_older(at, state, now) and state.status != "ended":
            return
        if state.status == "ended":
            state.status, state.reason = "idle", ""
        if status == "waiting":
            state.status, state.reason = "waiting", self._redactor.text(_words(said, "waitingFor"))
        elif status == "busy" and state.status not in ("compacting", "busy"):
            state.status, state.reason = "busy", ""
        elif status in ("idle", "shell") and state.status not in ("idle", "failed"):
            # `shell`: it waits for its person, and a command of it still runs in the background.
            state.status, state.reason = "idle", ""
        state.changed_at = max(at, state.changed_at) if state.changed_at <= now else at

    def _end_others(self, state: SessionState, changes: _Changes) -> None:
        """A process has one session: by `/clear` or `/resume`, another one took the place of the one before."""
        assert self._states is not None
        for other in self._states.values():
            if (
                other is not state
                and other.status != "ended"
                and (other.program, other.pid) == (state.program, state.pid)
                and other.details.get("started") == state.details.get("started")
            ):
                changes.states[other.program_session] = other
                now = self._now()
                apply(other, "SessionEnd", {"reason": "its process started another session"}, now, now=now)

    def _look_at_processes(self, changes: _Changes) -> None:
        assert self._states is not None
        for state in list(self._states.values()):
            if state.status == "waiting" and state.program == "codex" and self._went_on(state):
                changes.states[state.program_session] = state
                state.status, state.reason = "busy", ""
            if state.status == "ended" or state.pid is None:
                continue
            if not self._is_alive(state.pid, str(state.details.get("started", ""))):
                changes.states[state.program_session] = state
                now = self._now()
                apply(state, "SessionEnd", {"reason": "the process ended unexpectedly"}, now, now=now)

    def _went_on(self, state: SessionState) -> bool:
        """Whether the log grew since the question was asked: Codex writes nothing while its dialog waits, and says no other
        way that it was answered."""
        try:
            return os.stat(state.transcript).st_mtime > state.changed_at + SETTLED_SECONDS
        except OSError:
            return False

    # --- Questions ---

    def _read_questions(self, changes: _Changes) -> None:
        for path in self._names("asks")[:100]:
            pid, question_id = path.name.split(".")[:2]
            if question_id in self._asked:
                continue
            read = read_small(path, MOST_QUESTION_BYTES)
            payload = parse_payload(read[0]) if read is not None else None
            state = self._state_of(payload, changes) if payload is not None else None
            given = payload.get("tool_input") if payload is not None else None
            tool = payload.get("tool_name") if payload is not None else None
            if (
                read is None
                or payload is None
                or state is None
                or not isinstance(given, dict)
                or not isinstance(tool, str)
            ):
                changes.read.append(
                    path
                )  # nothing that could be shown whole: the hook ends, and the dialog stays
                continue
            agent = str(payload.get("agent_id") or "")
            agent = agent if _ID.fullmatch(agent) else ""
            log = log_of(state.transcript, agent)
            at = min(read[1].st_mtime, self._now())
            question = ExternalQuestion(
                question_id, state.program, state.program_session, state.session_id, int(pid), agent,
                self._redactor.text(one_line(tool, 200)), self._redactor(given), "waiting", {}, "", "", at,
            )  # fmt: skip
            self._asked[question_id] = asked = _Asked(question, path, log, given, process_start(int(pid)))
            asked.outcome()
            changes.questions.append(question)
            if not _is_older(at, state, self._now()):
                state.status, state.reason, state.changed_at = "waiting", f"permission: {question.tool}", at

    def _look_at_questions(self, changes: _Changes) -> None:
        for question_id, asked in list(self._asked.items()):
            outcome = asked.outcome()
            over = not asked.path.exists()
            alive = self._is_alive(asked.question.pid, asked.started)
            late = self._now() - asked.question.asked_at > ANSWER_TIMEOUT_SECONDS
            if outcome or late or not alive:
                changes.ended.append((question_id, outcome))
                changes.read.append(asked.path)  # a hook that still waits ends
                del self._asked[question_id]
            elif over and not asked.gone:
                asked.gone = True
                if asked.question.id not in self._sent():
                    changes.ended.append((question_id, ""))

    def _sent(self) -> set[str]:
        def read(connection: Connection) -> set[str]:
            return {each.id for each in external.load_external(connection).questions if each.status == "sent"}

        return self._writer.submit(lambda group: read(group.connection)).result()

    def _tidy(self) -> None:
        """Delete answers that no hook took, and what a hook that was killed left half-written."""
        for name in ("answers", "asks", "spool"):
            try:
                with os.scandir(self._folder / name) as entries:
                    old = [
                        entry.path
                        for entry in entries
                        if not _NAME.fullmatch(entry.name)
                        and entry.stat(follow_symlinks=False).st_mtime < time.time() - ANSWERS_KEPT_SECONDS
                    ]
            except OSError:
                continue
            for path in old:
                with contextlib.suppress(OSError):
                    os.unlink(path)


_TAKEN = (*EVENTS, *CODEX_EVENTS)
_KEPT = frozenset(
    (
        "tool_name",
        "source",
        "last_assistant_message",
        "error",
        "notification_type",
        "message",
        "trigger",
        "custom_instructions",
        "reason",
    )
)
"""What is kept of a payload besides whose it is. No prompt, no environment, no tool's input."""
