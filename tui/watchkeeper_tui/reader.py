"""The one thread that reads the database: it folds what changed into frozen snapshots, at most one a tick.

It only ever reads: its connection is `mode=ro` and `query_only`, reads are short, and nothing is held open
between them. A receiver may keep a snapshot for any time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from watchkeeper.records import proc
from watchkeeper.records.errors import StoreUnusable, WatchkeeperError
from watchkeeper.records.quota import Quota
from watchkeeper.store import agent_snapshot
from watchkeeper.store.agent_snapshot import ReportReader, StoredMessage, ViewFacts
from watchkeeper.store.database import Identity, identities, refuse_second_name, taken_away
from watchkeeper.store.driver import Connection, Queries, release_memory, sqlite3
from watchkeeper.store.external import External, ExternalReader
from watchkeeper.store.imports import imported_from
from watchkeeper.store.place import Place
from watchkeeper.store.postgres import LEASE_HOLDER, ask_ahead
from watchkeeper.store.projection import AgentFacts, LiveFacts, SessionFacts
from watchkeeper.store.quota import load_quotas
from watchkeeper.store.snapshot import EVENTS_KEPT, SessionSnapshotReader, Statement, Undone, accept_any_text
from watchkeeper_tui import external as terminals
from watchkeeper_tui.formatting import EventLine, event_lines, plural
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import AgentDetail, SessionState, Snapshot, TranscriptBlock, session_state


def fold_message(message: StoredMessage, tool_names: dict[str, str]) -> list[TranscriptBlock]:
    """The blocks of one message. `tool_names` learns which tool each `tool_use` id called, so that results
    can name it."""

    def block(
        index: int, kind: str, title: str, text: str, call_id: str = "", arguments: Any = None
    ) -> TranscriptBlock:
        return TranscriptBlock(
            f"{message.seq}.{index}", message.seq, kind, clip(sanitize(title), 300), text,
            0 if index else message.tokens, message.created_at, call_id, arguments or {},
        )  # fmt: skip

    role = message.role
    if message.cut:
        return [block(0, role, f"{role} (too large to format)", message.content)]
    try:
        content = json.loads(message.content)
    except (ValueError, RecursionError):
        content = message.content
    if isinstance(content, str):
        return [block(0, role, role, content)]
    found = []
    for index, part in enumerate(content if isinstance(content, list) else [content]):
        if not isinstance(part, dict):
            found.append(block(index, role, role, str(part)))
            continue
        kind = part.get("type")
        if kind == "text":
            found.append(block(index, role, role, str(part.get("text", ""))))
        elif kind in ("thinking", "redacted_thinking"):
            said = str(part.get("thinking", "(redacted)")) or "(hidden by the provider)"
            found.append(block(index, "thinking", "thinking", said))
        elif kind == "tool_use":
            name, given, call_id = str(part.get("name", "?")), part.get("input"), str(part.get("id"))
            tool_names[call_id] = name
            arguments = given if isinstance(given, dict) else {}
            found.append(block(index, "tool_use", name, _arguments_text(given), call_id, arguments))
        elif kind == "tool_result":
            call_id = str(part.get("tool_use_id"))
            of = "tool_error" if part.get("is_error") else "tool_result"
            found.append(
                block(
                    index, of, tool_names.get(call_id, "result"), _result_text(part.get("content")), call_id
                )
            )
        else:
            found.append(block(index, "attachment", str(kind), _attachment_text(part)))
    return found


def live_block(live: LiveFacts | None) -> TranscriptBlock | None:
    """What streams in now, as a block after the last one."""
    if live is None or not live.text:
        return None
    return TranscriptBlock("live", 1 << 60, "live", "writing", live.text, 0, live.updated_at)


def _arguments_text(value: Any) -> str:
    """A call's input: one `key: value` a line; a long string keeps its own lines."""
    if not isinstance(value, dict):
        return _flat(value)
    return "\n".join(
        f"{key}: {each if isinstance(each, str) else _flat(each)}" for key, each in value.items()
    )


def _result_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            (str(each["text"]) if "text" in each else _attachment_text(each))
            if isinstance(each, dict)
            else str(each)
            for each in content
        )
    return _flat(content)


def _attachment_text(part: Mapping[str, Any]) -> str:
    """An image or a document in a message: its kind, its type and its size."""
    source = part.get("source")
    if not isinstance(source, dict) or not isinstance(source.get("data"), str):
        return f"[{part.get('type')}]"
    return f"[{part.get('type')}: {source.get('media_type')}, {plural(len(source['data']) * 3 // 4, 'byte')}]"


def _flat(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


MESSAGES_KEPT = 400


class DetailFold:
    """What was read of one agent so far; `read` adds what is new."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self.agent_id = agent_id
        self._fold = agent_snapshot.AgentSnapshotReader(session_id, agent_id)
        self._report = ReportReader(session_id, agent_id)
        self._messages: list[tuple[int, tuple[TranscriptBlock, ...]]] = []
        self._transcript: tuple[TranscriptBlock, ...] = ()
        self._tool_names: dict[str, str] = {}
        self._last_seq = 0
        self._view: ViewFacts | None = None
        self._system: str | None = None
        self._detail: AgentDetail | None = None
        self._parts: tuple[object, ...] = ()

    def asked(self, agent: AgentFacts) -> Iterator[Statement]:
        """The statements of the next reading, as far as they are known from the last one."""
        yield from self._fold.asked()
        yield from self._report.asked(agent)
        if self._last_seq:
            yield agent_snapshot.asked_after(agent.id, self._last_seq, MESSAGES_KEPT)

    def read(self, connection: Connection, agent: AgentFacts) -> AgentDetail:
        """The agent's transcript, calls, facts and context as they stand: the same object where nothing
        changed."""
        reading, report = self._fold.read(connection), self._report.read(connection, agent)
        self._tail(connection, agent.last_seq)
        if self._view is None or self._view.version != agent.view_version:
            self._view = agent_snapshot.view(connection, agent.id, agent.view_version)
        if self._system is None:
            self._system = agent_snapshot.system_prompt(connection, agent.id)
        parts = (
            self._transcript, agent.live, self._view, report,
            reading.tool_calls, reading.calls, reading.facts, reading.views, reading.inbox,
        )  # fmt: skip
        if self._detail is None or any(now is not then for now, then in zip(parts, self._parts, strict=True)):
            streaming = live_block(agent.live)
            self._parts = parts
            self._detail = AgentDetail(
                agent_id=agent.id,
                transcript=(*self._transcript, streaming) if streaming is not None else self._transcript,
                first_seq=self._messages[0][0] if self._messages else 1,
                tool_calls=reading.tool_calls,
                calls=reading.calls,
                facts=reading.facts,
                view=self._view,
                views=reading.views,
                system=self._system,
                inbox=reading.inbox,
                report=report,
            )
        return self._detail

    def _tail(self, connection: Connection, newest: int) -> None:
        if newest == self._last_seq:
            return
        if not 0 < newest - self._last_seq <= MESSAGES_KEPT or not self._last_seq:
            self._messages.clear()
            fresh = agent_snapshot.newest_messages(connection, self.agent_id, MESSAGES_KEPT)
        else:
            fresh = agent_snapshot.messages_after(connection, self.agent_id, self._last_seq, MESSAGES_KEPT)
        for message in fresh:
            self._messages.append((message.seq, tuple(fold_message(message, self._tool_names))))
            self._last_seq = message.seq
        del self._messages[:-MESSAGES_KEPT]
        self._transcript = tuple(block for _, parts in self._messages for block in parts)


RECEIPTS_AT_ONCE = 20


class ReceiptWatch:
    """Which agents are done with a receipt that a person should look at. Each is read once, in a thread and on a connection
    of its own: reading the calls of a long session takes seconds."""

    def __init__(self, path: Place, judged: Callable[[], None]) -> None:
        """`judged` is called, in any thread, when there is something new to `read`."""
        self._path, self._tell = path, judged
        self._judged: dict[str, tuple[int, str]] = {}
        """By agent: the end of the transcript that was judged, and what is missing; empty: nothing."""
        self._session_id = ""
        self._is_busy = False
        self._found: dict[str, str] = {}

    def read(self, facts: SessionFacts, agents: tuple[AgentFacts, ...]) -> Mapping[str, str]:
        """What was judged so far, by agent; the same object if nothing changed. A thread starts to judge the rest."""
        if facts.id != self._session_id:
            self._session_id, self._judged, self._found = facts.id, {}, {}
        # The log of another program has no end: its main agent waits for a person instead.
        ended = ("done", "idle") if imported_from(facts.origin) else ("done",)
        reports = {each.id: each.last_seq for each in agents if each.status in ended and each.last_seq}
        judged = self._judged
        wanted = {each: seq for each, seq in reports.items() if judged.get(each, (-1,))[0] != seq}
        if wanted and not self._is_busy:
            self._is_busy = True
            work = (facts.id, wanted, judged)
            threading.Thread(target=self._judge, args=work, name="watchkeeper-receipts", daemon=True).start()
        found = {each: judged[each][1] for each in reports if each not in wanted and judged[each][1]}
        if found != self._found:
            self._found = found
        return self._found

    def _judge(self, session_id: str, wanted: dict[str, int], judged: dict[str, tuple[int, str]]) -> None:
        from watchkeeper.store.database import open_readonly
        from watchkeeper.store.receipts import session_receipts

        try:
            connection = accept_any_text(open_readonly(self._path, check_same_thread=False))
            try:
                ids = list(wanted)
                for begin in range(0, len(ids), RECEIPTS_AT_ONCE):
                    some = ids[begin : begin + RECEIPTS_AT_ONCE]
                    receipts = session_receipts(Queries(connection), session_id, some)
                    missing = {each.agent_id: each.summary for each in receipts if each.flagged}
                    judged |= {each: (wanted[each], missing.get(each, "")) for each in some}
                    self._tell()
            finally:
                connection.close()
        except (sqlite3.Error, StoreUnusable):
            pass  # the reading itself says why nothing can be read; it is judged at the next change
        finally:
            self._is_busy = False


TICK_SECONDS = 0.03
FEED_MILLISECONDS, QUIET_FEED_MILLISECONDS = 20, 40
"""How often file events are collected, and how often when none came for a while: a dashboard is open all
day."""
STARTING_SECONDS = 8.0
"""How long a new session may be without a host before it counts as dead."""
LOOK_SECONDS = 1.0
"""How often the lease is probed where nothing changes; a stopped host is visible within twice that."""
SERVER_POLL_SECONDS = 0.02
"""How often a server is asked whether anything is new; a person waits for it."""
QUOTA_SECONDS = 5.0
"""How often it is read what is left of usage windows."""
RETRY_SECONDS = 1.0
LET_GO_SECONDS = 1.5
"""How long to wait before reopening a database whose files were removed."""


class Feed(Protocol):
    """What the reader needs of `watchkeeper.store.change_feed.ChangeFeed`."""

    def wait(self, timeout_seconds: float) -> bool: ...
    def close(self) -> None: ...


Probe = Callable[[Place, str], "int | None"]
"""The pid of the process that drives a session, or None."""


def lease_pid(path: Place, session_id: str, connection: Connection | None = None) -> int | None:
    """Ask the session's lock who holds it; a server through `connection`, if there is one."""
    from watchkeeper.store.lease import probe

    holder = probe(path, session_id, connection)
    return holder.pid if holder else None


def lease_pids(path: Place, session_ids: Iterable[str], probe: Probe = lease_pid) -> dict[str, int]:
    """The processes that drive these sessions; a server is asked once for all of them."""
    from watchkeeper.store.lease import probe_all

    if not isinstance(path, Path):
        return {session_id: holder.pid for session_id, holder in probe_all(path, session_ids).items()}
    found = {session_id: probe(path, session_id) for session_id in session_ids}
    return {session_id: pid for session_id, pid in found.items() if pid is not None}


class ProcessWatch:
    """What the processes do that a session's background process has started: how many, their names, their use of the
    processor. Linux only; elsewhere, and where nothing can be read, it knows nothing."""

    def __init__(self) -> None:
        self._read_at = 0.0
        self._pid = 0
        self._spent: dict[int, float] = {}
        self._words = ""

    def words(self, pid: int | None, now: float) -> str:
        """`2 processes (bash, sleep), no CPU`; empty if nothing is known. Looks every other second at most."""
        if pid is None:
            return ""
        if pid != self._pid or now - self._read_at >= PROCESS_SECONDS:
            seconds, self._read_at = now - self._read_at, now
            before = self._spent if pid == self._pid else {}
            self._pid = pid
            found = _below(pid)
            self._spent = {each: spent for each, (_, spent, _) in found.items()}
            used = sum(spent - before[each] for each, spent in self._spent.items() if each in before)
            self._words = _process_words(found, used / seconds if before else None)
        return self._words


PROCESS_SECONDS = 2.0


def _process_words(found: dict[int, tuple[str, float, int]], share: float | None) -> str:
    if not found:
        return ""
    parents = {parent for _, _, parent in found.values()}
    leaves = sorted({name for each, (name, _, _) in found.items() if each not in parents})
    count = f"{len(found)} process{'es' if len(found) != 1 else ''} ({', '.join(leaves[:3])})"
    return count if share is None else f"{count}, {'no CPU' if share < 0.005 else f'CPU {share:.0%}'}"


def _below(pid: int) -> dict[int, tuple[str, float, int]]:
    """Every descendant of a process: its name, the processor time that it used, in seconds, and its parent."""
    found: dict[int, tuple[str, float, int]] = {}
    left = [pid]
    while left and len(found) < MOST_PROCESSES:
        parent = left.pop()
        for child in proc.children_of(parent):
            stat = proc.stat_of(child)
            if stat is not None:
                found[child] = (sanitize(stat.name), stat.cpu_ticks / os.sysconf("SC_CLK_TCK"), parent)
                left.append(child)
    return found


MOST_PROCESSES = 200


def change_feed(path: Place) -> Feed:
    """The store's own feed."""
    from watchkeeper.store.change_feed import ChangeFeed

    return ChangeFeed(
        path,
        step_milliseconds=FEED_MILLISECONDS,
        quiet_step_milliseconds=QUIET_FEED_MILLISECONDS,
        server_poll_seconds=SERVER_POLL_SECONDS,
    )


class Reader(threading.Thread):
    """Publishes a snapshot whenever what the screens show has changed, at most every `TICK_SECONDS`.

    `publish` is called from this thread. `look_at`, `open_session`, `ask` and `close` may be called from any.
    """

    def __init__(
        self,
        path: Place,
        session_id: str | None,
        publish: Callable[[Snapshot], None],
        *,
        feed_factory: Callable[[Place], Feed] = change_feed,
        probe: Probe = lease_pid,
        now: Callable[[], float] = time.time,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        super().__init__(name="watchkeeper-reader", daemon=True)
        self._path = path
        self._session_id = session_id
        self._publish = publish
        self._feed_factory = feed_factory
        self._probe = probe
        self._now = now
        self._tick_seconds = tick_seconds
        self._stopping = threading.Event()
        self._stale = threading.Event()
        """There is something to read: the database changed, or the user looks at something else."""
        self._taken = threading.Event()
        """A reading has started since the database was seen to change."""
        self.has_read = threading.Event()
        """The first reading is over, whatever came of it."""
        self._feed: Feed | None = None
        self._focus: str | None = None
        self._questions: deque[tuple[Callable[[Connection], Any], Callable[[Any], None]]] = deque()
        self._standing: tuple[Callable[[Connection], Any], Callable[[Any], None]] | None = None
        self._connection: Connection | None = None
        self._files: dict[str, Identity] = {}
        self._snapshot = Snapshot()
        self._fold: SessionSnapshotReader | None = None
        self._undone = Undone()
        self._events: deque[EventLine] = deque(maxlen=EVENTS_KEPT)
        self._lines: tuple[EventLine, ...] = ()
        self._working = False
        self._retry_seconds = RETRY_SECONDS
        self._detail: DetailFold | None = None
        self._external = ExternalReader(path)
        self._quotas: tuple[Quota, ...] = ()
        self._quotas_at = float("-inf")
        self._receipts = ReceiptWatch(path, self._nudge)
        self._joined: tuple[tuple[object, ...], tuple[AgentFacts, ...]] = ((), ())
        """What the agents were joined of, and they."""

    def look_at(self, agent_id: str | None) -> None:
        """Read this agent's transcript, calls and memory too."""
        if agent_id != self._focus:
            self._focus = agent_id
            self._nudge()

    def open_session(self, session_id: str | None) -> None:
        """Show another session from now on."""
        self._session_id = session_id
        self._focus = None
        self._nudge()

    def ask(self, question: Callable[[Connection], Any], answer: Callable[[Any], None]) -> None:
        """Run a short query on the reader's connection; `answer` gets its result, or the error, in this
        thread."""
        self._questions.append((question, answer))
        self._nudge()

    def keep_asking(
        self, question: Callable[[Connection], Any] | None, answer: Callable[[Any], None] = lambda _: None
    ) -> None:
        """Run this query at each reading too, in place of the one before; None ends that. `answer` gets, in this
        thread, each result that is not None."""
        self._standing = (question, answer) if question is not None else None
        self._nudge()

    def close(self) -> None:
        """Stop reading. Returns at once."""
        self._stopping.set()
        self._stale.set()
        self._taken.set()
        if self._feed is not None:
            self._feed.close()

    def _nudge(self) -> None:
        self._stale.set()

    def _watch(self) -> None:
        """In a thread of its own, so that what the user does never waits for the database to change."""
        self._feed = feed = self._feed_factory(self._path)
        while not self._stopping.is_set():
            if feed.wait(LOOK_SECONDS):
                self._taken.clear()
                self._stale.set()
                self._taken.wait(LOOK_SECONDS)
        feed.close()

    def run(self) -> None:
        changed, rested = True, False
        watching: threading.Thread | None = None
        while not self._stopping.is_set():
            started, used = time.monotonic(), time.thread_time()
            self._stale.clear()
            self._taken.set()
            try:
                self._read(changed)
            except Exception as error:
                # Whatever it is: a reader that ended in silence would leave a screen that looks alive.
                self._fail(error)
                self.has_read.set()
                self._stopping.wait(self._retry_seconds)
                self._retry_seconds = RETRY_SECONDS
                changed = True
                continue
            self.has_read.set()
            if watching is None:
                # After the first reading: nothing may stand before the first paint.
                watching = threading.Thread(target=self._watch, name="watchkeeper-watch", daemon=True)
                watching.start()
            spent, used = time.monotonic() - started, time.thread_time() - used
            # A reading that needs the processor for long (thousands of agents) leaves it to the screen as long.
            if self._stopping.wait(max(self._tick_seconds - spent, used)):
                break
            changed = self._stale.wait(LOOK_SECONDS)
            if not changed and not rested and self._connection is not None and isinstance(self._path, Path):
                release_memory(self._connection)  # what starting took
                rested = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self, changed: bool) -> None:
        if self._connection is None:
            from watchkeeper.store.database import VIEWER_LOCK_SECONDS, open_readonly

            opened = open_readonly(
                self._path, check_same_thread=False, lock_timeout_seconds=VIEWER_LOCK_SECONDS
            )
            self._connection = accept_any_text(opened)
            self._files = identities(self._path)
            # A new connection may be to another file of that name: nothing of the old one is taken for
            # granted.
            self._fold = self._detail = None
        elif gone := taken_away(self._files, identities(self._path)):
            # Long enough for the feed to close it too: the feed checks at least once a second.
            self._retry_seconds = LET_GO_SECONDS
            raise StoreUnusable(f"{gone[0]} was deleted or replaced; showing the last data read")
        refuse_second_name(self._path)
        connection = self._connection
        while self._questions:
            question, answer = self._questions.popleft()
            try:
                result = question(connection)
            except sqlite3.Error as error:
                result = self._explained(error)
            answer(result)
        if (standing := self._standing) is not None:
            connection.execute("BEGIN")
            try:
                result = standing[0](connection)
            finally:
                connection.execute("COMMIT")
            if result is not None:
                standing[1](result)
        session_id = self._session_id  # read once: another thread may choose another session at any moment
        now = self._now()
        if session_id is not None:
            ask_ahead(connection, [*self._external.asked(now), (LEASE_HOLDER, (session_id,))])
        outside = self._external.read(connection, now)
        if not 0 <= now - self._quotas_at < QUOTA_SECONDS:
            self._quotas, self._quotas_at = load_quotas(connection), now
        if session_id is None:
            if outside != self._snapshot.external:
                shown = self._snapshot
                self._snapshot = replace(shown, external=outside, problem=None, version=shown.version + 1)
                self._publish(self._snapshot)
            return
        on_file = isinstance(self._path, Path)
        host_pid = (
            self._probe(self._path, session_id) if on_file else lease_pid(self._path, session_id, connection)
        )
        shown = self._snapshot
        same = (host_pid, outside, self._quotas) == (shown.host_pid, shown.external, shown.quotas)
        if not changed and same and not self._is_starting():
            if self._fold is not None and not shown.rates.is_still:
                rates = self._fold.rates(connection, now)
                if rates is not shown.rates:
                    self._snapshot = replace(shown, rates=rates, version=shown.version + 1, read_at=now)
                    self._publish(self._snapshot)
            return
        connection.execute("BEGIN")
        try:
            snapshot = self._take(connection, session_id, host_pid, outside)
        finally:
            connection.execute("COMMIT")
        if snapshot is not None:
            self._snapshot = snapshot
            self._publish(snapshot)

    def _is_starting(self) -> bool:
        return self._snapshot.state is SessionState.OPENING

    def _take(
        self, connection: Connection, session_id: str, host_pid: int | None, outside: External
    ) -> Snapshot | None:
        """What is to be shown now, or None where that is what is shown already."""
        now, shown = self._now(), self._snapshot
        if self._fold is None or self._fold.session_id != session_id:
            self._fold, self._detail, self._undone = SessionSnapshotReader(session_id), None, Undone()
            self._events.clear()
            self._lines = ()
        reading = self._fold.read(connection, now, self._asked_of_agent(shown))
        if reading is None:
            problem = f"session {session_id} is no longer in the database; s lists sessions"
            return shown.with_problem(problem, now) if shown.problem != problem else None
        if reading.events_anew:
            self._events.clear()
        if reading.events or reading.events_anew:
            self._events.extend(event_lines(reading.events, reading.tasks))
            self._lines = tuple(self._events)
        facts = reading.session
        agents = self._join(reading.agents, facts, outside)
        if agents is not shown.agents:
            self._working = any(agent.status in ("working", "waiting") for agent in reading.agents)
        state = session_state(facts.status, host_pid is not None, working=self._working, origin=facts.origin)
        if imported_from(facts.origin) is not None:
            state = terminals.state_of(terminals.session_of(outside, facts.id), facts.last_active, state)
        if (
            state is SessionState.DEAD
            and facts.host_pid is None
            and now - facts.created_at < STARTING_SECONDS
        ):
            state = SessionState.OPENING
        snapshot = Snapshot(
            version=shown.version + 1,
            read_at=now,
            session=facts,
            state=state,
            host_pid=host_pid,
            tasks=reading.tasks,
            agents=agents,
            events=self._lines,
            compactions=self._undone.mark(connection, agents, reading.compactions),
            approvals=reading.approvals,
            commands=reading.commands,
            budgets=reading.budgets,
            rates=reading.rates,
            detail=self._look(connection, session_id, agents),
            external=outside,
            quotas=self._quotas,
            flagged=self._receipts.read(facts, agents),
        )
        return None if snapshot.shows_the_same(shown) else snapshot

    def _asked_of_agent(self, shown: Snapshot) -> Iterator[Statement]:
        agent = shown.agents_by_id.get(self._focus or "")
        if agent is not None and self._detail is not None and self._detail.agent_id == agent.id:
            yield from self._detail.asked(agent)

    def _join(
        self, agents: tuple[AgentFacts, ...], facts: SessionFacts, outside: External
    ) -> tuple[AgentFacts, ...]:
        """The agents, the main one as its terminal has it; the same object where nothing changed."""
        session = terminals.session_of(outside, facts.id)
        if session is None:
            return agents
        asked = terminals.questions_of(outside, facts.id)
        joined_of = (agents, session, *asked)
        if len(joined_of) != len(self._joined[0]) or any(
            now is not then for now, then in zip(joined_of, self._joined[0], strict=True)
        ):
            main = facts.planner_agent_id
            joined = tuple(
                terminals.joined(each, session, asked) if each.id == main else each for each in agents
            )
            self._joined = (joined_of, joined)
        return self._joined[1]

    def _look(
        self, connection: Connection, session_id: str, agents: tuple[AgentFacts, ...]
    ) -> AgentDetail | None:
        focus = self._focus  # read once: another thread may choose another agent at any moment
        agent = next((each for each in agents if each.id == focus), None)
        if agent is None:
            return None
        if self._detail is None or self._detail.agent_id != agent.id:
            self._detail = DetailFold(session_id, agent.id)
        return self._detail.read(connection, agent)

    def _explained(self, error: sqlite3.Error) -> StoreUnusable:
        from watchkeeper.store.driver import explain

        return StoreUnusable(explain(self._path, error))

    def _fail(self, error: Exception) -> None:
        """Say once why nothing can be read; the last good reading stays."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if isinstance(error, sqlite3.Error):
            error = self._explained(error)
        if isinstance(error, (WatchkeeperError, OSError)):
            # By its name: its path may fill the line that says it.
            problem = str(error).replace(
                str(self._path), self._path.name if isinstance(self._path, Path) else str(self._path)
            )
        else:
            problem = (
                f"internal dashboard error ({type(error).__name__}: {error}); showing the last data read"
            )
        while self._questions:
            self._questions.popleft()[1](error)
        if self._snapshot.problem != problem:
            self._snapshot = self._snapshot.with_problem(problem, self._now())
            self._publish(self._snapshot)
