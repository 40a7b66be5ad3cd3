"""OpenCode: over ACP, and over its own server on loopback what ACP does not tell.

OpenCode sends no question over ACP for the calls of its sub-agents, so that they would wait for ever, and is silent while it
tries a model call again. Its server tells both. Watchkeeper chooses the server's port and password.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchkeeper.agents import backends
from watchkeeper.agents.backends import BackendSpec, Features, child_call
from watchkeeper.agents.backends.acp import Acp, AcpProgram
from watchkeeper.agents.backends.process import WRONG_SHAPE, ProgramProcess, number_of, object_of, objects_of

_STATUS = {"running": "in_progress", "completed": "completed", "error": "failed"}
_OPTIONS = [
    {"optionId": "once", "kind": "allow_once"},
    {"optionId": "reject", "kind": "reject_once"},
]
AGAIN_SECONDS = 1.0
"""After so long a connection to its server that broke is made again."""


def _transcript(spec: BackendSpec, session: str) -> Path | None:
    home = Path(spec.environ.get("HOME", "~")).expanduser()
    data = spec.environ.get("XDG_DATA_HOME") or home / ".local" / "share"
    return Path(data) / "opencode" / "opencode.db"


OPENCODE = AcpProgram("OpenCode", Features(compact_instructions=False), transcript=_transcript)


class OpenCode(Acp):
    """One session of OpenCode, with those of its sub-agents, whose calls and questions are the agent's too."""

    def __init__(self, process: ProgramProcess) -> None:
        super().__init__(process, OPENCODE)
        self._port, self._password = 0, ""
        self._http: Any = None

    def prepare(
        self, command: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """Have its server listen where only Watchkeeper knows the password."""
        if "acp" not in command or "--port" in command:
            return command, environ
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._password = secrets.token_urlsafe(24)
        own = {"OPENCODE_SERVER_PASSWORD": self._password, "OPENCODE_SERVER_USERNAME": "opencode"}
        return (*command, "--port", str(self._port)), {**environ, **own}

    async def open(self, spec: BackendSpec) -> str:
        session = await super().open(spec)
        if self._port:
            self._process.begin(self._listen(str(spec.folder)))
        return session

    async def _listen(self, folder: str) -> None:
        """Take the events of its server as long as it runs."""
        import httpx

        base, user = f"http://127.0.0.1:{self._port}", ("opencode", self._password)
        async with httpx.AsyncClient(
            base_url=base, auth=user, params={"directory": folder}, trust_env=False, timeout=None
        ) as self._http:
            while self._process.running:
                with suppress(httpx.HTTPError, ValueError):
                    async with self._http.stream("GET", "/event") as events:
                        for asked in objects_of((await self._http.get("/permission")).json()):
                            self._take("permission.asked", asked)  # it asked while nothing listened
                        async for line in events.aiter_lines():
                            if line.startswith("data:"):
                                self._heard(line[5:])
                await asyncio.sleep(AGAIN_SECONDS)

    def _heard(self, text: str) -> None:
        try:
            event = object_of(json.loads(text))
            self._take(str(event.get("type")), object_of(event.get("properties")))
        except (*WRONG_SHAPE, RecursionError):
            self.put(backends.Raw("an event of its server has the wrong shape"))

    def _take(self, kind: str, said: dict[str, Any]) -> None:
        session, status = str(said.get("sessionID")), object_of(said.get("status"))
        info, part = object_of(said.get("info")), object_of(said.get("part"))
        if kind == "session.created" and info.get("parentID") in (self._session, *self.children):
            self.child_began(str(info.get("id")), str(info.get("title")))
        elif session != self._session and session not in self.children:
            return
        elif kind == "session.status" and status.get("type") == "retry":
            message, again = str(status.get("message")), number_of(status.get("next")) / 1000
            self.put(backends.Retrying(f"{message}; OpenCode tries again", until=again or None))
        elif session == self._session:
            return
        elif kind == "session.idle":
            self.child_ended(session, done=True)
        elif kind == "permission.asked":
            self._process.begin(self._ask_for_child(session, said))
        elif kind == "message.part.updated" and part.get("type") == "tool":
            state = object_of(part.get("state"))
            status_word = _STATUS.get(str(state.get("status")))
            if status_word is not None:
                call = child_call(str(part.get("callID")), session)
                tool = str(part.get("tool"))
                self._tool(call, {
                    "sessionUpdate": "tool_call_update", "status": status_word, "title": tool, "rawInput": state.get("input"),
                    "kind": "execute" if tool == "bash" else "other", "rawOutput": state,
                })  # fmt: skip

    async def _ask_for_child(self, session: str, asked: dict[str, Any]) -> None:
        """Put the question of a sub-agent, and tell the server what was decided."""
        given, name, number = (
            object_of(asked.get("metadata")),
            str(asked.get("permission")),
            str(asked.get("id")),
        )
        call = str(object_of(asked.get("tool")).get("callID") or number)
        update: dict[str, Any] = {"toolCallId": child_call(call, session), "title": name, "rawInput": given, "status": "in_progress",
                  "kind": "execute" if name == "bash" else "other"}  # fmt: skip
        if isinstance(given.get("diff"), str):
            update["content"] = [{"type": "diff", "path": str(given.get("filepath")), "patch": given["diff"]}]
        answer = await self.asked(
            "session/request_permission", {"toolCall": update, "options": _OPTIONS}, number
        )
        reply = {"reply": answer["outcome"].get("optionId", "reject")}
        import httpx

        with suppress(httpx.HTTPError):
            await self._http.post(f"/permission/{number}/reply", json=reply)
