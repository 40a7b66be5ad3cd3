"""An HTTP error whose body never ends is judged by its status, soon, in a bounded amount of memory."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.model_calls import model_of, reply_of

from watchkeeper.models import failures
from watchkeeper.models.failures import RetryPolicy
from watchkeeper.records.messages import ErrorKind, ModelError

Writer = asyncio.StreamWriter
BODY = json.dumps(
    {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
).encode()
NEVER = RetryPolicy(max_retries=0)


@asynccontextmanager
async def answering(
    status: int, body: Callable[[Writer], Awaitable[None]], headers: str = ""
) -> AsyncIterator[str]:
    """A server that answers with this status, and then with what `body` writes, of unsaid length."""

    async def answer(reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n{headers}\r\n".encode())
            await body(writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def error_of(url: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await asyncio.wait_for(reply_of(model_of(url, retries=NEVER)), 60)
    return caught.value


async def test_an_error_that_trickles_on_for_ever_is_judged_by_its_status(monkeypatch):
    monkeypatch.setattr(failures, "ERROR_SECONDS", 0.2)

    async def trickle(writer: Writer) -> None:
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with answering(401, trickle) as url:
        error = await error_of(url)
    assert (error.kind, error.status) == (ErrorKind.PAUSE, 401)


async def test_of_an_error_without_an_end_no_more_is_read_than_is_of_use(monkeypatch):
    monkeypatch.setattr(failures, "MOST_ERROR_BYTES", 4_000)
    written = 0

    async def flood(writer: Writer) -> None:
        nonlocal written
        while True:
            writer.write(b"refused " * 8_000)
            await writer.drain()
            written += 64_000

    async with answering(529, flood) as url:
        error = await error_of(url)
    assert (error.kind, error.status) == (ErrorKind.RETRY, 529)
    assert "refused" in str(error)
    assert written < 64_000_000


async def test_an_error_that_unpacks_to_gigabytes_is_cut() -> None:
    packed = gzip.compress(b"x" * 50_000_000)

    async def all_of_it(writer: Writer) -> None:
        writer.write(packed)
        await writer.drain()

    async with answering(
        400, all_of_it, f"content-encoding: gzip\r\ncontent-length: {len(packed)}\r\n"
    ) as url:
        error = await error_of(url)
    assert (error.kind, error.status) == (ErrorKind.FAIL, 400)
    assert len(str(error)) < 1_000


async def test_an_error_whose_connection_breaks_keeps_its_status_and_what_was_said() -> None:
    async def broken(writer: Writer) -> None:
        writer.write(BODY)
        await writer.drain()

    async with answering(401, broken, "content-length: 100000\r\n") as url:
        error = await error_of(url)
    assert (error.kind, error.status) == (ErrorKind.PAUSE, 401)
    assert "invalid x-api-key" in str(error)
