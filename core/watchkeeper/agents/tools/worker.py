"""The main program of a worker process: `python -P -m watchkeeper.agents.tools.worker HOST_PID`.

It reads JSON lines on standard input: first its configuration `{"mode", "workspace", …}`, then calls
`{"id", "tool", "arguments", "agent", …}` and `{"cancel": id}`; it answers `{"id", "content", "is_error", "broken"}` on
standard output. Both are moved to descriptors that no child inherits, so that a tool that prints cannot corrupt the
protocol. When standard input ends, because the host is gone, it kills all that it started, and exits.

Only what the mode needs is imported: `list_folder` works without the SDKs.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO, NoReturn

from watchkeeper.agents.tools.broken import Broken
from watchkeeper.agents.tools.output import WORKER_CHARACTERS, shorten_content
from watchkeeper.agents.tools.processes import adopt_orphans, die_with_parent, end_descendants, kill_descendants
from watchkeeper.agents.tools.surroundings import AGENT_VARIABLE, hide_worker_variables

Answer = tuple[Any, bool]
"""Content, and whether it is an error."""
Handler = Callable[[dict[str, Any]], Awaitable[Answer]]

LEAVE_SECONDS = 2.0
"""How long a worker whose server has gone waits for the calls under way to notice, and for its answers to be read."""
GRACE_SECONDS = 1.0
MOST_MEMORY_BYTES = 2 << 30
"""Of a worker that runs file tools: a file or a listing larger than memory ends as an error, not as a dead machine."""


def main() -> None:
    """Serve until standard input ends."""
    parent = int(sys.argv[1])
    lines = os.fdopen(os.dup(0), "rb")
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    hide_worker_variables()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: _end())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(lines.readline())
    # A search may hold the interpreter for minutes; such a worker has no children to see off, and may die at once.
    die_with_parent(parent, signal.SIGKILL if config["mode"] == "files" else signal.SIGTERM)
    asyncio.run(_serve(config, lines, out, null))


async def _serve(config: dict[str, Any], lines: BinaryIO, out: int, null: int) -> None:
    closed = asyncio.Event()
    try:
        handler, concurrent = await _handler(config, closed)
    except Exception as error:
        # The host reads this line. Ending here and now, since unwinding a connection that never was can take for ever.
        print(_one_line(error), file=sys.stderr, flush=True)
        _end(1)
    loop = asyncio.get_running_loop()
    requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    replies.put(b'{"ready": true}\n')

    def read() -> None:
        for line in lines:
            loop.call_soon_threadsafe(requests.put_nowait, json.loads(line))
        _end_politely() if config["mode"] == "mcp" else _end()

    def write() -> None:
        while data := memoryview(replies.get()):
            while data:
                data = data[os.write(out, data) :]

    async def answer(request: dict[str, Any]) -> None:
        replies.put(await _answer(handler, request))

    async def leave() -> None:
        await closed.wait()
        if running:
            await asyncio.wait(running.values(), timeout=LEAVE_SECONDS)
        replies.put(b"")
        await asyncio.to_thread(writer.join, LEAVE_SECONDS)
        _end()

    threading.Thread(target=read, daemon=True).start()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    os.dup2(null, 2)
    running: dict[int, asyncio.Task[None]] = {}
    leaving = asyncio.create_task(leave())
    while True:
        request = await requests.get()
        if leaving.done():
            return
        if "cancel" in request:
            if request["cancel"] in running:
                running[request["cancel"]].cancel()
        elif concurrent:
            number = request["id"]
            running[number] = asyncio.create_task(answer(request))
            running[number].add_done_callback(lambda _, number=number: running.pop(number))  # type: ignore[misc]
        else:
            await answer(request)


async def _answer(handler: Handler, request: dict[str, Any]) -> bytes:
    if isinstance(agent := request.get("agent"), str):
        os.environ[AGENT_VARIABLE] = agent
    broken = False
    try:
        content, is_error = await handler(request)
    except Broken as error:
        content, is_error, broken = f"{request.get('tool')}: {error}", True, True
    except asyncio.CancelledError:
        content, is_error = "cancelled", True
    except MemoryError:
        content, is_error = f"{request.get('tool')}: this needs more memory than a tool may use; ask for less", True
    except Exception as error:
        # A fault of the tool is the model's to read; the worker itself goes on.
        content, is_error = f"{request.get('tool')}: {type(error).__name__}: {error}", True
    content = shorten_content(content, WORKER_CHARACTERS)
    answer = {"id": request["id"], "content": content, "is_error": is_error, "broken": broken}
    return json.dumps(answer).encode() + b"\n"


async def _handler(config: dict[str, Any], closed: asyncio.Event) -> tuple[Handler, bool]:
    """What runs the calls of this mode, and whether several at a time."""
    mode = config["mode"]
    if mode == "files":
        from watchkeeper.agents.tools.confinement import confine
        from watchkeeper.agents.tools.worker_files import FileTools

        _limit_memory()
        confine(config["workspace"])
        return FileTools(config["workspace"]).run, False
    if mode == "shell":
        from watchkeeper.agents.tools.worker_shell import Shell

        return Shell(config["workspace"]).run, False
    if mode == "mcp":
        from watchkeeper.agents.tools.worker_mcp import McpConnection

        connection = McpConnection(config, closed)
        await connection.open()
        _limit_memory()  # after the server was started, which has no such limit
        return connection.run, True
    raise ValueError(f"no worker mode {mode!r}")


def _limit_memory() -> None:
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    except (ValueError, OSError):
        # A system without that limit, or with a lower one: the worker then relies on its own caps.
        return


def _one_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end(code: int = 0) -> NoReturn:
    kill_descendants(os.getpid())
    os._exit(code)


def _end_politely() -> NoReturn:
    """As `_end`, once an MCP server has had time to put its things in order."""
    end_descendants(os.getpid(), GRACE_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
