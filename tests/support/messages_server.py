"""A small model server on loopback, for deterministic tests over the real SDKs. Standard library only.

It speaks the Messages API, and OpenAI's Responses and Chat Completions (see `wires`), by the path of the request.

`script` maps a request's JSON body to an answer: a `Reply`, or one of the faults in `answers`. Being a
function of the body alone, it serves many agents at once, and kills and restarts of its clients. The server
lives in a thread of its own, so that the code under test may be in this process or another.

    with MessagesServer(lambda body: Reply([text("hello")])) as server:
        AnthropicModel("claude-test", base_url=server.url, api_key="test")
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

from tests.support.answers import Answer, Body, Cut, Drop, Hang, Held, Raw, Reply, Script, Status
from tests.support.event_stream import sse
from tests.support.message_rules import PromptCache, broken_rule
from tests.support.wires import MESSAGES, WIRES, Wire


class MessagesServer:
    """Runs from `start` to `stop` (or as a context manager) on a free port of 127.0.0.1."""

    def __init__(self, script: Script, *, strict: bool = True, context_tokens: int | None = None) -> None:
        """`strict` refuses, with 400, bodies that the Messages API refuses (see `message_rules`);
        prompts above `context_tokens` (four characters a token) are refused as too long."""
        self._script = script
        self._strict = strict
        self._context_tokens = context_tokens
        self._cache = PromptCache()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="messages-server", daemon=True)
        self._ready = threading.Event()
        self._stopping: asyncio.Event
        self.port = 0
        self.requests: list[Body] = []
        """Every body received, in order of arrival, as it came."""
        self.headers: list[dict[str, str]] = []
        self.refused: list[str] = []
        """Why bodies broke the API's rules; a test of well-formed contexts asserts that this is empty."""
        self.abandoned = threading.Semaphore(0)
        """Released each time a client hangs up in the middle of a response."""
        self.connections = 0
        self.script_errors: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> MessagesServer:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the messages server did not start")
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def __enter__(self) -> MessagesServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=256 * 1024 * 1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait([task])

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                method, path, headers, raw = request
                if not await self._answer(method, path, headers, raw, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.abandoned.release()
        except asyncio.CancelledError:
            pass  # the server stops; nothing awaits this task but the event loop, which would log it
        finally:
            writer.close()

    async def _answer(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        raw: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Write the response; whether the connection may carry another."""
        wire = next((one for one in WIRES if one.path == path.partition("?")[0]), None)
        if method != "POST" or wire is None:
            answer: Answer = Status(404, "not_found_error", f"no such path: {path}")
            body: Body = {}
            wire = MESSAGES
        else:
            body = json.loads(raw)
            self.requests.append(body)
            self.headers.append(headers)
            why = wire.broken_rule(body) if self._strict else None
            body = wire.as_messages(body)
            answer = self._judge(body, why)
        match answer:
            case Status():
                await _write_json(writer, answer, wire)
                return True
            case Drop():
                return False
            case Hang():
                await self._stall(reader)
                return False
            case Raw():
                await _write_head(writer, 200, answer.content_type, {})
                await _write_chunk(writer, answer.body)
                if answer.then_stall:
                    await self._stall(reader)
                    return False
                await _write_chunk(writer, b"")
                return True
            case Held():
                await _write_head(writer, 200, "text/event-stream", answer.reply.headers)
                for number, event in enumerate(self._events(answer.reply, body, wire)):
                    while number == answer.events and not answer.until.is_set():
                        if reader.at_eof():
                            raise ConnectionResetError
                        await asyncio.sleep(0.005)
                    await _write_chunk(writer, event)
                await _write_chunk(writer, b"")
                return True
            case Cut():
                return await self._cut(answer, body, wire, reader, writer)
            case Reply():
                await _write_head(writer, 200, "text/event-stream", answer.headers)
                for event in self._events(answer, body, wire):
                    await _write_chunk(writer, event)
                await _write_chunk(writer, b"")
                return True

    def _judge(self, body: Body, why: str | None) -> Answer:
        why = why or (broken_rule(body) if self._strict else None)
        if why is not None:
            self.refused.append(why)
            return Status(400, "invalid_request_error", why)
        tokens = len(json.dumps(body)) // 4
        if self._context_tokens is not None and tokens > self._context_tokens:
            why = f"prompt is too long: {tokens} tokens > {self._context_tokens} maximum"
            return Status(400, "invalid_request_error", why)
        try:
            return self._script(body)
        except Exception as error:
            self.script_errors.append(error)
            return Status(400, "invalid_request_error", f"the script raised {error!r}")

    def _events(self, reply: Reply, body: Body, wire: Wire) -> Iterator[bytes]:
        usage = reply.usage if reply.usage is not None else self._cache.usage(body)
        yield from wire.events(reply, model=str(body.get("model")), usage=usage)

    async def _cut(
        self, cut: Cut, body: Body, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await _write_head(writer, 200, "text/event-stream", cut.reply.headers)
        for number, event in enumerate(self._events(cut.reply, body, wire)):
            if number == cut.events:
                break
            await _write_chunk(writer, event)
        match cut.how:
            case "truncate":
                await _write_chunk(writer, b"")
                return True
            case "disconnect":
                writer.transport.abort()
            case "stall":
                await self._stall(reader)
            case "pings":
                while not reader.at_eof():
                    await _write_chunk(writer, sse("ping", {"type": "ping"}))
                    await asyncio.sleep(0.01)
                self.abandoned.release()
        return False

    async def _stall(self, reader: asyncio.StreamReader) -> None:
        """Say nothing until the client hangs up (or the server stops)."""
        await reader.read(1)
        self.abandoned.release()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes] | None:
    head = await reader.readline()
    if not head:
        return None
    method, path, _ = head.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return method, path, headers, raw


async def _write_json(writer: asyncio.StreamWriter, answer: Status, wire: Wire) -> None:
    body = answer.body
    if body is None:
        body = wire.error(answer.error_type, answer.message, answer.error_code)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {answer.status} Scripted",
        "content-type: application/json",
        f"content-length: {len(raw)}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
    await writer.drain()


async def _write_head(
    writer: asyncio.StreamWriter, status: int, content_type: str, headers: dict[str, str]
) -> None:
    lines = [
        f"HTTP/1.1 {status} OK",
        f"content-type: {content_type}",
        "transfer-encoding: chunked",
        *(f"{name}: {value}" for name, value in {"request-id": "req_scripted", **headers}.items()),
    ]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    await writer.drain()


async def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
