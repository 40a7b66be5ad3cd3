"""Folding of the one agent looked at. Messages never change, so each is read and parsed once."""

from __future__ import annotations

from watchkeeper.store import agent_snapshot
from watchkeeper.store.agent_snapshot import ReportReader, ViewFacts
from watchkeeper.store.driver import Connection
from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui.snapshot import AgentDetail, TranscriptBlock
from watchkeeper_tui.transcript import fold_message, live_block

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
