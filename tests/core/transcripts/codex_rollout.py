"""Logs of Codex's threads, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = "019a0000-0000-7000-8000-000000000001"


CHILD = "019a0000-ea60-7000-8000-000000000002"
"""Made a minute after `ROOT`."""


GRANDCHILD = "019a0001-d4c0-7000-8000-000000000003"


FORK = "019a0002-bf20-7000-8000-000000000004"


OLD_TURN = "019a0000-1000-7000-8000-00000000000a"
"""A turn of `ROOT`, made before `CHILD`."""


class Rollout:
    """Lines of one thread's log, a second apart."""

    def __init__(
        self, thread: str = ROOT, *, minute: int = 0, model: str = "gpt-5.1-codex", **meta: Any
    ) -> None:
        self.thread = thread
        self.lines: list[dict[str, Any]] = []
        self._second = minute * 60
        self._total = [0, 0, 0]
        self.add("session_meta", {
            "id": thread, "timestamp": self.now, "cwd": "/home/somebody/project", "cli_version": "0.101.0", "source": "cli",
            "model_provider": "openai", **meta,
        })  # fmt: skip
        self.add(
            "turn_context", {"cwd": "/home/somebody/project", "model": model, "approval_policy": "never"}
        )

    @property
    def now(self) -> str:
        return f"2026-02-03T04:{self._second // 60:02d}:{self._second % 60:02d}.000Z"

    def add(self, kind: str, payload: dict[str, Any], *, wait: int = 1) -> Rollout:
        self._second += wait
        self.lines.append({"timestamp": self.now, "type": kind, "payload": payload})
        return self

    def item(self, kind: str, **about: Any) -> Rollout:
        return self.add("response_item", {"type": kind, **about})

    def event(self, kind: str, **about: Any) -> Rollout:
        return self.add("event_msg", {"type": kind, **about})

    def user(self, text: str) -> Rollout:
        return self.item("message", role="user", content=[{"type": "input_text", "text": text}])

    def says(self, text: str) -> Rollout:
        return self.item("message", role="assistant", content=[{"type": "output_text", "text": text}])

    def call(self, call_id: str, name: str = "shell", **arguments: Any) -> Rollout:
        return self.item("function_call", call_id=call_id, name=name, arguments=json.dumps(arguments))

    def output(self, call_id: str, output: Any = "fine") -> Rollout:
        return self.item("function_call_output", call_id=call_id, output=output)

    def tokens(
        self, prompt: int, cached: int, output: int, *, last: bool = True, again: bool = False
    ) -> Rollout:
        """A count: what the last call used, and the sum so far."""
        if not again:
            self._total = [old + new for old, new in zip(self._total, (prompt, cached, output), strict=True)]
        names = ("input_tokens", "cached_input_tokens", "output_tokens")
        info: dict[str, Any] = {
            "total_token_usage": dict(zip(names, self._total, strict=True)),
            "model_context_window": 272_000,
        }
        if last:
            info["last_token_usage"] = dict(zip(names, (prompt, cached, output), strict=True))
        return self.event("token_count", info=info, rate_limits=None)

    @property
    def bytes(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)

    def write(self, folder: Path, day: str = "2026/02/03") -> Path:
        path = folder / day / f"rollout-2026-02-03T04-00-00-{self.thread}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.bytes)
        return path


def spawned(parent: str, depth: int = 1, **about: Any) -> dict[str, Any]:
    spawn = {"parent_thread_id": parent, "depth": depth, "agent_nickname": "Kepler", "agent_role": "explorer"}
    return {"source": {"subagent": {"thread_spawn": spawn}}, **about}


def spawned_tree(copied: str) -> tuple[Rollout, Rollout]:
    """A thread and one that it spawned, whose log begins with a copy of it, as versions differ."""
    root = (
        Rollout().event("task_started", turn_id=OLD_TURN, model_context_window=272_000).user("Mend the cache")
    )
    root.call("s1", name="spawn_agent", message="Look for it", agent_type="explorer").tokens(1_000, 0, 50)
    history = list(root.lines)
    root.event("collab_agent_spawn_end", call_id="s1", sender_thread_id=ROOT, new_thread_id=CHILD, new_agent_nickname="Kepler",
               new_agent_role="explorer", prompt="Look for it", status="running")  # fmt: skip
    root.output("s1", json.dumps({"agent_id": CHILD, "nickname": "Kepler"})).says("Waiting.").tokens(
        2_000, 1_000, 30
    )
    child = Rollout(CHILD, minute=1, **spawned(ROOT, forked_from_id=ROOT))
    began = child.lines[0]["timestamp"]
    context = child.lines.pop()
    if copied == "as it was":
        child.lines += history
    elif copied == "stamped anew":
        child.lines += [line | {"timestamp": began} for line in history]
    elif copied == "without its header":
        child.lines += [line | {"timestamp": began} for line in history[1:]]
    elif copied == "its header alone":
        child.lines.append(history[0] | {"timestamp": began})
    child._total = [1_000, 0, 50] if copied not in ("not at all", "its header alone") else [0, 0, 0]
    child.event("task_started", turn_id=CHILD.replace("ea60", "ea70"), model_context_window=272_000)
    child.lines.append(context | {"timestamp": child.now})
    child.user("Look for it").says("Found.").tokens(700, 200, 9)
    return root, child


def usage_record(response: str, prompt: int, cached: int, output: int, thread: str = ROOT) -> dict[str, Any]:
    """What a response used, as later versions say it."""
    usage = {
        "input_tokens": prompt,
        "cached_input_tokens": cached,
        "cache_write_input_tokens": 0,
        "output_tokens": output,
    }
    return {"thread_id": thread, "session_id": ROOT, "turn_id": "t", "response_id": response, "usage": usage,
            "thread_token_usage": usage}  # fmt: skip


def answered(
    log: Rollout, response: str, prompt: int, cached: int, output: int, thread: str = ROOT
) -> Rollout:
    """A response as it is logged: its record, then the count that tells of it again."""
    log.add("token_usage_record", usage_record(response, prompt, cached, output, thread))
    return log.tokens(prompt, cached, output)


def compacted_by(response: str, **about: Any) -> dict[str, Any]:
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "All of it."}]}]
    return {"message": "", "replacement_history": history, "compaction_response_id": response, **about}
