"""A server that answers as three providers do, by a script that stands in the prompt.

It speaks Anthropic's Messages API, OpenAI's Responses API and OpenAI's chat completions, with streaming, on a
port of loopback. A script is the lines after `#script` in the newest message that has one:

    #script
    run: echo one >> ledger
    tool: remember {"text": "…"}
    await: is done
    say: all done

Each line is one reply. What follows the script in the conversation says which line is next, so the server keeps no
state: a program that was killed and resumed goes on where its own history says. `await: TEXT` waits, with idle words,
until a later message says that text. `slow SECONDS:` before a line streams it over that time; after the last line the
reply is "done". `fail: 529` answers with that status, and `limit: SECONDS` with a usage limit that ends so long after it
was met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

SEARCH = "ToolSearch"
"""With it, a model of Claude Code loads a tool that it is offered by name alone."""
_DEFERRED = re.compile(r"deferred tools are now available via ToolSearch[^\n]*\n((?:[\w.-]+\n?)*)")
SHELLS = ("Bash", "bash", "shell_command", "exec_command", "shell", "local_shell")
INPUT_TOKENS, OUTPUT_TOKENS = 1200, 40


@dataclass(frozen=True, slots=True)
class Step:
    """One reply of the script."""

    kind: str
    """`say`, `run` or `tool`."""
    text: str
    slow_seconds: float = 0.0


_SCRIPT = re.compile(r"^#script\s*$(.*)", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"\s*(?:slow ([\d.]+):\s*)?(say|run|tool|await|fail|limit):\s*(.*)")


def steps_of(text: str) -> list[Step]:
    """The script in a text; none where it has no line `#script`."""
    script = _SCRIPT.search(text)
    lines = (_LINE.match(line) for line in script[1].splitlines()) if script else ()
    return [Step(one[2], one[3].strip(), float(one[1] or 0)) for one in lines if one]


@dataclass(frozen=True, slots=True)
class Turn:
    """A conversation in the words of all three APIs: who (`user`, `said` for an assistant's words without a tool call,
    `result`, `found` for that of a search of tools, or another) and what."""

    who: str
    text: str


_SUMMARISES = re.compile(r"compaction|summary of|summari[sz]e|handoff summary", re.IGNORECASE)
"""How programs ask their model for a summary."""


SYNTHETIC = "No response requested."
"""What Claude Code writes by itself into a session whose turn was cut."""


def _summary(turns: list[Turn]) -> str:
    """The summary of a conversation: what is left of its script, so that the work goes on."""
    left = []
    while (step := next_step([*turns, *(Turn("result", "") for _ in left)])) != Step("say", "done") and len(
        left
    ) < 50:
        left.append(f"slow {step.slow_seconds}: {step.kind}: {step.text}")
    return "A summary of the work so far, and what is left of it.\n#script\n" + "\n".join(left)


def next_step(turns: list[Turn], passed: Container[str] = ()) -> Step:
    """The reply that the script of the newest message asks for, by what followed that message. `passed`: limits that
    are over."""
    last = turns[-1] if turns else Turn("", "")
    if last.who == "user" and not steps_of(last.text) and _SUMMARISES.search(last.text):
        return Step("say", _summary(turns[:-1]))
    scripts = [n for n, turn in enumerate(turns) if turn.who in ("user", "said") and steps_of(turn.text)]
    begun = max(scripts, default=None)
    if begun is None:
        return Step("say", "Nothing to do.")
    steps = [one for one in steps_of(turns[begun].text) if one.kind != "limit" or one.text not in passed]
    steps.append(Step("say", "done"))
    place, heard = 0, ""

    def skip() -> None:
        nonlocal place
        while steps[place].kind == "await" and steps[place].text in heard:
            place += 1

    for turn in turns[begun + 1 :]:
        if turn.text.strip() == SYNTHETIC:
            continue
        heard += turn.text if turn.who == "user" else ""
        skip()
        if turn.who == "result" or (turn.who == "said" and steps[place].kind != "await"):
            place = min(place + 1, len(steps) - 1)
    skip()
    return steps[place] if steps[place].kind != "await" else Step("say", "Waiting.")


def text_in(content: Any) -> str:
    """All text in a message's content, whichever API wrote it."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text") or part.get("content") or "") for part in content if isinstance(part, dict)
        )
    return ""


def call_of(step: Step, names: list[str], deferred: list[str]) -> tuple[str, dict[str, Any]]:
    """The tool and its input that a `run` or `tool` line stands for, among those that are offered. One that is offered by
    name alone is loaded first."""
    if step.kind == "run":
        name = next((one for one in SHELLS if one in names), "shell")
        if name == "exec_command":
            return name, {"cmd": step.text}
        if name == "shell":
            return name, {"command": ["bash", "-lc", step.text]}
        return name, {"command": step.text, **({"description": "run it"} if name in ("Bash", "bash") else {})}
    wanted, _, given = step.text.partition(" ")
    name = _named(wanted, names)
    if name is None and (later := _named(wanted, deferred)) is not None:
        return SEARCH, {"query": f"select:{later}", "max_results": 1}
    return name or wanted, json.loads(given or "{}")


def _named(wanted: str, names: list[str]) -> str | None:
    """The tool of this name, whatever a program puts before it."""
    name = next((one for one in names if one == wanted or re.split(r"[_.]{1,2}", one)[-1:] == [wanted]), None)
    return name or next((one for one in names if one.endswith(wanted)), None)


class ModelServer:
    """The three APIs. `log` holds what was asked: the API, the newest text, and which step it got."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self._limits: dict[str, float] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/{prefix:path}v1/messages", self.messages, methods=["POST"]),
                Route("/{prefix:path}v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
                Route("/{prefix:path}v1/responses", self.responses, methods=["POST"]),
                Route("/{prefix:path}v1/chat/completions", self.chat, methods=["POST"]),
                Route("/{prefix:path}v1/models", self.models, methods=["GET"]),
                Route("/{path:path}", self.other, methods=["GET", "POST", "HEAD"]),
            ]
        )

    async def other(self, request: Request) -> Response:
        self.log.append({"api": "other", "path": request.url.path})
        return JSONResponse({"error": "not found"}, status_code=404)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [], "object": "list", "models": []})

    async def count_tokens(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": INPUT_TOKENS})

    def _take(self, api: str, turns: list[Turn], names: list[str], deferred: list[str] | None = None) -> Step:
        # Programs ask for titles and summaries without tools.
        over = [text for text, until in self._limits.items() if time.time() >= until]
        step = next_step(turns, over) if names else Step("say", _summary(turns))
        if step.kind == "limit":
            self._limits.setdefault(step.text, time.time() + float(step.text))
        self.log.append(
            {
                "api": api,
                "kind": step.kind,
                "text": step.text,
                "turns": len(turns),
                "tools": names,
                "deferred": deferred or [],
                "results": [turn.text for turn in turns if turn.who == "result"],
            }
        )
        return step

    # --- Anthropic -------------------------------------------------------------------------------------------

    async def messages(self, request: Request) -> Response:
        body = await request.json()
        turns, searches = [], set()
        for message in body.get("messages", []):
            content = message.get("content")
            parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
            searches |= {part.get("id") for part in parts if part.get("name") == SEARCH}
            results = [part for part in parts if part.get("type") == "tool_result"]
            turns += [Turn("found" if part.get("tool_use_id") in searches else "result", text_in([part]))
                      for part in results]  # fmt: skip
            if isinstance(content, str) or len(results) < len(content or []):
                calls = any(part.get("type") == "tool_use" for part in parts)
                said = "called" if calls else "said"
                turns.append(
                    Turn(said if message["role"] == "assistant" else message["role"], text_in(content))
                )
        names = [tool["name"] for tool in body.get("tools", []) if "name" in tool]
        deferred = [
            name for turn in turns for listed in _DEFERRED.findall(turn.text) for name in listed.split()
        ]
        step = self._take("messages", turns, names, deferred)
        if step.kind == "limit":
            headers = {"anthropic-ratelimit-unified-status": "rejected", "retry-after": step.text,
                       "anthropic-ratelimit-unified-reset": str(int(self._limits[step.text]) + 1)}  # fmt: skip
            error = {
                "type": "rate_limit_error",
                "message": "This request would exceed your account's rate limit.",
            }
            return JSONResponse({"type": "error", "error": error}, 429, headers=headers)
        if step.kind == "fail":
            return JSONResponse(
                {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, int(step.text)
            )
        if not body.get("stream"):
            return JSONResponse(
                {"id": "msg_x", "type": "message", "role": "assistant", "model": body["model"],
                 "content": [{"type": "text", "text": step.text if step.kind == "say" else "ok"}],
                 "stop_reason": "end_turn", "stop_sequence": None,
                 "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}}
            )  # fmt: skip
        return StreamingResponse(self._anthropic(body, step, names, deferred), media_type="text/event-stream")

    async def _anthropic(
        self, body: dict[str, Any], step: Step, names: list[str], deferred: list[str]
    ) -> AsyncIterator[bytes]:
        def event(kind: str, **data: Any) -> bytes:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

        number = len(self.log)
        usage = {"input_tokens": INPUT_TOKENS, "output_tokens": 1, "cache_read_input_tokens": 300,
                 "cache_creation_input_tokens": 0}  # fmt: skip
        yield event("message_start", message={
            "id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        })  # fmt: skip
        if step.kind == "say":
            yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            async for piece in pieces(step):
                yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        else:
            name, given = call_of(step, names, deferred)
            yield event("content_block_start", index=0, content_block={
                "type": "tool_use", "id": f"toolu_{number:08d}", "name": name, "input": {}})  # fmt: skip
            yield event("content_block_delta", index=0,
                        delta={"type": "input_json_delta", "partial_json": json.dumps(given)})  # fmt: skip
        yield event("content_block_stop", index=0)
        yield event("message_delta",
                    delta={"stop_reason": "end_turn" if step.kind == "say" else "tool_use", "stop_sequence": None},
                    usage={**usage, "output_tokens": OUTPUT_TOKENS})  # fmt: skip
        yield event("message_stop")

    # --- OpenAI ----------------------------------------------------------------------------------------------

    async def responses(self, request: Request) -> Response:
        body = await request.json()
        given = body.get("input")
        items = given if isinstance(given, list) else [{"type": "message", "role": "user", "content": given}]
        turns = []
        for item in items:
            kind = item.get("type", "message")
            if kind.endswith("_output"):
                turns.append(Turn("result", text_in(item.get("output"))))
            elif kind == "message":
                who = item.get("role", "user")
                turns.append(Turn("said" if who == "assistant" else who, text_in(item.get("content"))))
        tools = {tool.get("name", tool.get("type")): tool for tool in body.get("tools", [])}
        names = list(tools)
        for tool in body.get("tools", []):  # namespaces of MCP servers
            names += [f"{tool.get('name')}.{one.get('name')}" for one in tool.get("tools", [])]
        step = self._take("responses", turns, names)
        if step.kind == "limit":
            error = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "pro",
                     "resets_at": int(self._limits[step.text]) + 1}  # fmt: skip
            return JSONResponse({"error": error}, 429)
        if step.kind == "fail":
            kind = "usage_limit_reached" if step.text == "429" else "server_error"
            headers = {"x-codex-primary-used-percent": "100", "x-codex-primary-window-minutes": "300",
                       "x-codex-primary-reset-at": "4102444800"}  # fmt: skip
            error = {"message": "x", "type": kind, "plan_type": "plus", "resets_at": 4102444800}
            return JSONResponse({"error": error}, int(step.text), headers)
        return StreamingResponse(self._responses(body, step, names), media_type="text/event-stream")

    async def _responses(self, body: dict[str, Any], step: Step, names: list[str]) -> AsyncIterator[bytes]:
        number = len(self.log)

        def event(kind: str, **data: Any) -> bytes:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

        head = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": body.get("model"),
                "status": "in_progress", "output": []}  # fmt: skip
        yield event("response.created", response=head)
        if step.kind == "say":
            item: dict[str, Any] = {"type": "message", "id": f"msg_{number}", "role": "assistant",
                                    "status": "completed",
                                    "content": [{"type": "output_text", "text": step.text, "annotations": []}]}  # fmt: skip
            yield event(
                "response.output_item.added",
                output_index=0,
                item={**item, "content": [], "status": "in_progress"},
            )
            async for piece in pieces(step):
                yield event(
                    "response.output_text.delta", item_id=item["id"], output_index=0, content_index=0,
                    delta=piece,
                )  # fmt: skip
        else:
            name, arguments = call_of(step, names, [])
            space, dot, short = name.rpartition(".")
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number:08d}", "name": short,
                    "arguments": json.dumps(arguments), "status": "completed"} | ({"namespace": space} if dot else {})  # fmt: skip
            yield event("response.output_item.added", output_index=0, item=item)
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response={
            **head, "status": "completed", "output": [item],
            "usage": {"input_tokens": INPUT_TOKENS, "input_tokens_details": {"cached_tokens": 300},
                      "output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": 0},
                      "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS},
        })  # fmt: skip

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        turns = []
        for message in body.get("messages", []):
            who = {"tool": "result", "assistant": "called" if message.get("tool_calls") else "said"}
            turns.append(Turn(who.get(message["role"], message["role"]), text_in(message.get("content"))))
        names = [tool["function"]["name"] for tool in body.get("tools", [])]
        step = self._take("chat", turns, names)
        if step.kind == "limit":
            error = {"message": "Rate limit reached", "type": "rate_limit_error"}
            return JSONResponse({"error": error}, 429, headers={"retry-after": step.text})
        if step.kind == "fail":
            return JSONResponse({"error": {"message": "x", "type": "server_error"}}, int(step.text))
        if not body.get("stream"):
            said = {"role": "assistant", "content": step.text if step.kind == "say" else "ok"}
            return JSONResponse({"id": "c", "object": "chat.completion", "created": 1, "model": body["model"],
                                 "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
                                 "usage": CHAT_USAGE})  # fmt: skip
        return StreamingResponse(self._chat(body, step, names), media_type="text/event-stream")

    async def _chat(self, body: dict[str, Any], step: Step, names: list[str]) -> AsyncIterator[bytes]:
        number = len(self.log)

        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
            data = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": body["model"],
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}  # fmt: skip
            return f"data: {json.dumps(data)}\n\n".encode()

        yield chunk({"role": "assistant", "content": ""})
        if step.kind == "say":
            async for piece in pieces(step):
                yield chunk({"content": piece})
            yield chunk({}, "stop", usage=CHAT_USAGE)
        else:
            name, given = call_of(step, names, [])
            yield chunk({"tool_calls": [{"index": 0, "id": f"call_{number:08d}", "type": "function",
                                         "function": {"name": name, "arguments": json.dumps(given)}}]})  # fmt: skip
            yield chunk({}, "tool_calls", usage=CHAT_USAGE)
        yield b"data: [DONE]\n\n"


CHAT_USAGE = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS,
              "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS, "prompt_tokens_details": {"cached_tokens": 300}}  # fmt: skip


async def pieces(step: Step) -> AsyncIterator[str]:
    """A text word by word, over the time that the script asks for."""
    words = re.findall(r"\S+\s*", step.text) or [""]
    for word in words:
        yield word
        if step.slow_seconds:
            await asyncio.sleep(step.slow_seconds / len(words))


class RunningServer:
    """The server on a free port of loopback, in a thread. A context manager; `url` has no path."""

    def __init__(self, port: int = 0) -> None:
        import socket
        import threading

        self.models = ModelServer()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self.models.app(), log_level="critical"))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> RunningServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    with RunningServer(parser.parse_args().port) as running:
        print(running.url, flush=True)
        sys.stdin.read()
        print(json.dumps(running.models.log), flush=True)
