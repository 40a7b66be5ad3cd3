"""Which rows of a session stood at one of its moments, and how they stood then."""

from __future__ import annotations

from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode, encode
from watchkeeper.store.library.calls_then import calls_then
from watchkeeper.store.library.moment import AgentMoment, Moment
from watchkeeper.store.library.tasks_then import tasks_then

Row = dict[str, Any]

_OVER = frozenset({"done", "error", "denied", "unknown", "cancelled"})
_UNDER_WAY: Row = {
    "reason": None, "messages_removed": 0, "tokens_after": None, "view_before": None, "view_after": None, "model_call_id": None,
    "cost_usd": None, "cache_tokens_invalidated": 0, "prepared": None, "seconds": None, "stall_seconds": 0.0, "tokens_spent": 0,
    "ended_at": None,
}  # fmt: skip
"""What a pass over a context has before its end."""

_OVER_PASS = frozenset({"applied", "rejected", "abandoned"})


class Cut:
    """The rows of a session as of a moment. `keep` gives each row as it stood, or None where it was not there
    yet.

    The moment is right after a step, as if the host had been killed there: a call whose result was not in is
    pending, or running, and whoever resumes settles it as after any crash. `ahead`: the results of an agent's
    turn belong to the moment as soon as all of them were there, even if the message that carries them came
    only after the next event.
    """

    def __init__(
        self, connection: Connection, session_id: str, moment: Moment, *, ahead: bool = True
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self.moment = moment
        following = connection.execute(
            "SELECT at FROM events WHERE session_id = ? AND seq = ?", (session_id, moment.seq + 1)
        ).fetchone()
        self._before = following[0] if following is not None and not ahead else float("inf")
        """What no event tells of counts if it came before this."""
        self.last_seq: dict[str, int] = {}
        self._until: dict[str, float] = {}
        """Each agent, and through when its messages and views count."""
        self._undelivered: dict[str, dict[str, Row]] = {}
        """Each agent, and the results of its open turn that were in already, by the call's `tool_use_id`."""
        self._eventful: set[int] = self._calls_with_events()
        for agent_id, agent in moment.agents.items():
            self._place(agent_id, agent)
        self.view_of = {agent_id: self._view(agent_id, agent) for agent_id, agent in moment.agents.items()}
        self._calls = calls_then(connection, session_id, moment)
        every = self._rows("SELECT * FROM model_calls WHERE session_id = ?", session_id)
        self._model_calls = [row for row in every if row["id"] in self._calls]
        self.tasks = tasks_then(connection, session_id, moment, self.last_seq)

    def keep(self, table: str, row: Row) -> Row | None:
        """The row as it stood, or None."""
        rule = getattr(self, f"_keep_{table}", None)
        if rule is not None:
            kept: Row | None = rule(row)
            return kept
        return row if row.get("created_at", 0.0) <= self.moment.at else None

    # --- where each agent was -------------------------------------------------------------------------------

    def _place(self, agent_id: str, agent: AgentMoment) -> None:
        """Find the agent's last message: the last that an event tells of, and what followed from it without
        one."""
        ask = self._connection.execute
        steps = {
            row[0]: (row[1], row[2])
            for row in ask("SELECT turn, reply_seq, results_seq FROM steps WHERE agent_id = ?", (agent_id,))
        }
        delivered = [
            row[0]
            for row in ask(
                "SELECT DISTINCT delivered_seq FROM inbox WHERE agent_id = ? AND delivered_seq NOTNULL ORDER"
                " BY 1",
                (agent_id,),
            )
        ]
        newest = ask("SELECT coalesce(max(seq), 0) FROM messages WHERE agent_id = ?", (agent_id,)).fetchone()[
            0
        ]
        firsts = [reply - 1 for reply, _ in steps.values()] + [seq - 1 for seq in delivered[:1]]
        last = min(firsts, default=newest)
        if agent.delivered:
            last = max(last, delivered[min(agent.delivered, len(delivered)) - 1])
        if agent.turn in steps:
            last = max(last, self._after_reply(agent_id, agent, *steps[agent.turn], last, set(delivered)))
        row = ask(
            "SELECT created_at FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, last)
        ).fetchone()
        self.last_seq[agent_id] = last
        self._until[agent_id] = max(self.moment.at, row[0] if row else 0.0)

    def _after_reply(
        self,
        agent_id: str,
        agent: AgentMoment,
        reply: int,
        results: int | None,
        last: int,
        delivered: set[int],
    ) -> int:
        """The last message of the agent's last turn: its results belong to it as soon as all of them were
        there."""
        if last > reply:
            return last
        calls = self._connection.execute(
            "SELECT id, name, status, tool_use_id FROM tool_calls WHERE agent_id = ? AND turn = ?",
            (agent_id, agent.turn),
        ).fetchall()
        if not calls:
            follows = self._connection.execute(
                "SELECT role, created_at FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, reply + 1)
            ).fetchone()
            asked = follows is not None and follows[0] == "user" and follows[1] <= self._before
            return reply + 1 if asked and reply + 1 not in delivered else reply
        over = [self._status_of(call[0], call[2]) in _OVER for call in calls]
        finishes = any(call[1] == "finish_session" and call[2] == "done" for call in calls)
        row = self._connection.execute(
            "SELECT content, created_at FROM messages WHERE agent_id = ? AND seq = ?",
            (agent_id, results or 0),
        ).fetchone()
        ended = not finishes or agent.status in ("done", "failed", "cancelled")
        if results is not None and row is not None and all(over) and ended and row[1] <= self._before:
            return results
        if row is not None:
            blocks = decode(row[0])
            self._undelivered[agent_id] = {
                one["tool_use_id"]: one for one in blocks if one.get("type") == "tool_result"
            }
        else:
            self._undelivered[agent_id] = {}
        return reply

    def _calls_with_events(self) -> set[int]:
        rows = self._connection.execute(
            "SELECT DISTINCT data ->> 'call' FROM events WHERE session_id = ? AND kind LIKE 'tool.%'",
            (self._session_id,),
        )
        return {row[0] for row in rows if isinstance(row[0], int)}

    def _status_of(self, call_id: int, status_now: str) -> str:
        """How a call stood. One without any event was refused in the transaction of the reply that made
        it."""
        known = self.moment.calls.get(call_id)
        if known is not None:
            return known.status
        return "pending" if call_id in self._eventful or status_now not in _OVER else status_now

    def _view(self, agent_id: str, agent: AgentMoment) -> int:
        """The version of the context that the agent had."""
        rows = [
            row
            for row in self._rows("SELECT * FROM views WHERE agent_id = ? ORDER BY version", agent_id)
            if self._keep_views(row)
        ]
        newest = rows[-1] if rows else None
        if agent.moved_to is not None and (newest is None or newest["created_at"] <= agent.moved_to[1]):
            return agent.moved_to[0]
        return int(newest["version"]) if newest is not None else 0

    def _rows(self, sql: str, *parameters: Any) -> list[Row]:
        found = self._connection.execute(sql, parameters)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    # --- each table -----------------------------------------------------------------------------------------

    def _keep_sessions(self, row: Row) -> Row:
        moment = self.moment
        hosted = min(row["hosted_seconds"], max(0.0, moment.at - row["created_at"]))
        ended = moment.at if moment.status in ("done", "failed", "cancelled") else None
        plan = row["current_plan_id"] if row["current_plan_id"] in moment.revisions else None
        planner = row["planner_agent_id"] if row["planner_agent_id"] in moment.agents else None
        return row | self._totals("session_id", self._session_id) | {
            "status": moment.status, "status_reason": moment.reason, "ended_at": ended, "hosted_seconds": hosted,
            "current_plan_id": plan, "planner_agent_id": planner, "event_seq": moment.seq,
        }  # fmt: skip

    def _totals(self, column: str, value: str) -> Row:
        """What the model calls of a session or an agent came to by then."""
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "retries")
        total: Row = dict.fromkeys((*names, "model_calls", "errors", "unpriced_calls"), 0) | {
            "cost_usd": None
        }
        for row in self._model_calls:
            if row[column] == value:
                for name in names:
                    total[name] += row[name]
                if row["cost_usd"] is not None:
                    total["cost_usd"] = (total["cost_usd"] or 0.0) + row["cost_usd"]
                total["model_calls"] += 1
                total["errors"] += row["status"] == "error"
                total["unpriced_calls"] += (
                    row["cost_usd"] is None and sum(row[name] for name in names[:4]) > 0
                )
        return total

    def _keep_events(self, row: Row) -> Row | None:
        return row if row["seq"] <= self.moment.seq else None

    def _keep_plans(self, row: Row) -> Row | None:
        revision = self.moment.revisions.get(row["id"])
        if revision is None:
            return None
        (goal,) = self._connection.execute(
            "SELECT goal FROM plan_revisions WHERE plan_id = ? AND revision = ?", (row["id"], revision)
        ).fetchone()
        tasks = sorted(
            (one for one in self.tasks.values() if one["parent_plan_id"] == row["id"]),
            key=lambda one: one["position"],
        )
        queue = [one["id"] for one in tasks if one["status"] in ("pending", "running", "paused", "stale")]
        return row | {
            "goal": goal, "revision": revision, "task_queue": encode(queue), "step_cursor": len(tasks) - len(queue),
            "updated_at": self.moment.planned_at,
        }  # fmt: skip

    def _keep_plan_revisions(self, row: Row) -> Row | None:
        return row if row["revision"] <= self.moment.revisions.get(row["plan_id"], 0) else None

    def _keep_tasks(self, row: Row) -> Row | None:
        return self.tasks.get(row["id"])

    def _keep_task_dependencies(self, row: Row) -> Row | None:
        return None  # the plan's graph as of its revision tells them; see `dependencies`

    def dependencies(self) -> list[tuple[str, str]]:
        """Pairs of tasks, of which the first needs the second, as the plans had them."""
        pairs: list[tuple[str, str]] = []
        for plan_id, revision in self.moment.revisions.items():
            row = self._connection.execute(
                "SELECT plan_graph_snapshot FROM plan_revisions WHERE plan_id = ? AND revision = ?",
                (plan_id, revision),
            ).fetchone()
            pairs += [(one["id"], need) for one in decode(row[0]) for need in one["depends_on"]]
        return pairs

    def _keep_agents(self, row: Row) -> Row | None:
        agent = self.moment.agents.get(row["id"])
        if agent is None:
            return None
        last, version = self.last_seq[row["id"]], self.view_of[row["id"]]
        spent = self._connection.execute(
            "SELECT coalesce(sum(ended_at - started_at), 0) FROM steps WHERE agent_id = ? AND (turn < ? OR"
            " (turn = ?"
            " AND coalesce(results_seq, 0) <= ?)) AND ended_at NOTNULL",
            (row["id"], agent.turn, agent.turn, last),
        ).fetchone()[0]
        then = row | self._totals("agent_id", row["id"]) | {
            "status": agent.status, "status_reason": agent.reason, "turn": agent.turn, "view_version": version,
            "last_seq": last, "message_tokens": self._tokens_through(row["id"], last),
            "started_at": row["started_at"] if (row["started_at"] or 0.0) <= self.moment.at else None,
            "ended_at": agent.ended_at, "last_active": agent.last_active, "active_seconds": spent,
            "compactions": agent.compactions, "parked_until": agent.parked_until,
        }  # fmt: skip
        if (last, version) != (row["last_seq"], row["view_version"]):
            then |= self._context(row, version, last)
        return then

    def _tokens_through(self, agent_id: str, seq: int) -> int:
        row = self._connection.execute(
            "SELECT total_tokens FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, seq)
        ).fetchone()
        return int(row[0]) if row else 0

    def _context(self, row: Row, version: int, last: int) -> Row:
        """The size of the context as it must have been: the next step counts it anew."""
        agent_id = row["id"]
        found = self._rows("SELECT * FROM views WHERE agent_id = ? AND version = ?", agent_id, version)
        if not found:
            return {}
        view = found[0]
        before = self._connection.execute(
            "SELECT coalesce(max(total_tokens), 0) FROM messages WHERE agent_id = ? AND seq <= ? AND"
            " created_at <= ?",
            (agent_id, last, view["created_at"]),
        ).fetchone()[0]
        observed = self._connection.execute(
            "SELECT coalesce(sum(tokens), 0) FROM observations WHERE agent_id = ? AND id IN (SELECT value"
            " FROM json_each(?))",
            (agent_id, view["observations"]),
        ).fetchone()[0]
        used = view["tokens"] + max(0, self._tokens_through(agent_id, last) - before)
        made: Row = decode(row["composition"])
        room = row["context_tokens"] + made.get("headroom", 0)
        made |= {
            "observations": observed,
            "messages": max(0, used - observed),
            "elided": 0,
            "headroom": max(0, room - used),
        }
        return {"context_tokens": used, "composition": encode(made)}

    def _keep_messages(self, row: Row) -> Row | None:
        return row if row["seq"] <= self.last_seq.get(row["agent_id"], 0) else None

    def _keep_steps(self, row: Row) -> Row | None:
        agent = self.moment.agents.get(row["agent_id"])
        if agent is None or row["turn"] > agent.turn:
            return None
        if row["turn"] == agent.turn and (row["results_seq"] or 0) > self.last_seq[row["agent_id"]]:
            return row | {"results_seq": None, "ended_at": None}
        return row

    def _keep_tool_calls(self, row: Row) -> Row | None:
        agent = self.moment.agents.get(row["agent_id"])
        if agent is None or row["turn"] > agent.turn:
            return None
        if row["turn"] < agent.turn or row["agent_id"] not in self._undelivered:
            return row
        known = self.moment.calls.get(row["id"])
        status = self._status_of(row["id"], row["status"])
        if row["edited_input"] is not None and not self._was_edited(row["id"]):
            row = row | {"edited_input": None}
        if status not in _OVER:
            return row | {
                "status": status, "result": None, "result_seq": None, "is_error": 0, "ended_at": None,
                "started_at": known.started_at if known else None, "runs": known.runs if known else 0,
            }  # fmt: skip
        result = row["result"]
        block = self._undelivered[row["agent_id"]].get(row["tool_use_id"])
        if result is None and block is not None:
            result = encode(block.get("content"))
        return row | {"status": status, "result": result, "result_seq": None}

    def _was_edited(self, call_id: int) -> bool:
        """Whether a person had approved the call with another input by then."""
        edits = self._rows(
            "SELECT id FROM approvals WHERE tool_call_id = ? AND edited_input IS NOT NULL", call_id
        )
        return any(self.moment.approvals.get(row["id"]) == "approved" for row in edits)

    def _keep_model_calls(self, row: Row) -> Row | None:
        return row if row["id"] in self._calls else None

    def _keep_views(self, row: Row) -> Row | None:
        if row["agent_id"] not in self.moment.agents:
            return None
        told = self.moment.passes.get(row["compaction_id"]) if row["compaction_id"] is not None else None
        if told is not None:
            return row if told == "applied" else None
        return row if row["created_at"] <= self._until[row["agent_id"]] else None

    def _keep_observations(self, row: Row) -> Row | None:
        return self._keep_views(row)

    def _keep_compactions(self, row: Row) -> Row | None:
        told = self.moment.passes.get(row["id"])
        if told is None or told in _OVER_PASS:
            return row if told is not None else None
        if row["status"] == told == "prepared":
            return row
        return (
            row
            | {"status": "running"}
            | {column: value for column, value in _UNDER_WAY.items() if column in row}
        )

    def _keep_memory_snapshots(self, row: Row) -> Row | None:
        return (
            row if row["last_updated"] <= self.moment.at and row["agent_id"] in self.moment.agents else None
        )

    def _keep_facts(self, row: Row) -> Row | None:
        return row if row["created_at"] <= self.moment.at else None

    def _keep_handoffs(self, row: Row) -> Row | None:
        return row if row["assigned_agent"] in self.moment.agents else None

    def _keep_inbox(self, row: Row) -> Row | None:
        if row["created_at"] > self.moment.at:
            return None
        delivered = row["delivered_seq"]
        return row | {
            "delivered_seq": delivered if (delivered or 0) <= self.last_seq.get(row["agent_id"], 0) else None
        }

    def _keep_commands(self, row: Row) -> Row | None:
        return row if row["id"] in self.moment.commands else None

    def _keep_approvals(self, row: Row) -> Row | None:
        told = self.moment.approvals.get(row["id"])
        if told is None:
            return None
        if told == "waiting" and (row["decided_at"] is None or row["decided_at"] > self.moment.at):
            answer = ("decided_by", "reason", "decided_at", "scope", "edited_input")
            return row | dict.fromkeys(answer) | {"status": "waiting"}
        return row

    def _keep_budgets(self, row: Row) -> Row | None:
        reached = row["reached_at"] if (row["task_id"], row["kind"]) in self.moment.budgets else None
        return row | {"reached_at": reached, "required": row["required"] if reached is not None else None}
