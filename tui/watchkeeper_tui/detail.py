"""Folding of the one agent looked at. Messages never change, so each is read and parsed once."""

from __future__ import annotations

from watchkeeper.store import dashboard_agent
from watchkeeper.store.dashboard import AgentFacts
from watchkeeper.store.dashboard_agent import ViewFacts
from watchkeeper.store.driver import Connection
from watchkeeper_tui.snapshot import AgentDetail, TranscriptBlock
from watchkeeper_tui.transcript import fold_message, live_block

MESSAGES_KEPT = 400
CALLS_KEPT = 300
FACTS_KEPT = 300


class DetailFold:
    """What was read of one agent so far; `read` adds what is new."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self._messages: list[tuple[int, tuple[TranscriptBlock, ...]]] = []
        self._tool_names: dict[str, str] = {}
        self._last_seq = 0
        self._view: ViewFacts | None = None
        self._system: str | None = None

    def read(self, connection: Connection, session_id: str, agent: AgentFacts) -> AgentDetail:
        """The agent's transcript, calls, facts and context as they stand."""
        self._tail(connection, agent.last_seq)
        if self._view is None or self._view.version != agent.view_version:
            self._view = dashboard_agent.view(connection, agent.id, agent.view_version)
        if self._system is None:
            self._system = dashboard_agent.system_prompt(connection, agent.id)
        blocks = [block for _, parts in self._messages for block in parts]
        streaming = live_block(agent.live)
        if streaming is not None:
            blocks.append(streaming)
        return AgentDetail(
            agent_id=agent.id,
            transcript=tuple(blocks),
            first_seq=self._messages[0][0] if self._messages else 1,
            tool_calls=dashboard_agent.tool_calls(connection, agent.id, 100),
            calls=dashboard_agent.model_calls(connection, agent.id, CALLS_KEPT),
            facts=dashboard_agent.facts(connection, session_id, agent.id, FACTS_KEPT),
            view=self._view,
            views=dashboard_agent.views(connection, agent.id),
            system=self._system,
            inbox=dashboard_agent.inbox_waiting(connection, agent.id),
        )

    def _tail(self, connection: Connection, newest: int) -> None:
        if not self._last_seq or newest - self._last_seq > MESSAGES_KEPT:
            self._messages.clear()
            fresh = dashboard_agent.newest_messages(connection, self.agent_id, MESSAGES_KEPT)
        else:
            fresh = dashboard_agent.messages_after(connection, self.agent_id, self._last_seq, MESSAGES_KEPT)
        for message in fresh:
            self._messages.append((message.seq, tuple(fold_message(message, self._tool_names))))
            self._last_seq = message.seq
        del self._messages[:-MESSAGES_KEPT]
