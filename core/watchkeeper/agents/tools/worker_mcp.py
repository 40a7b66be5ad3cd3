"""In a worker: the connection to one MCP server. Whatever the server does, only this process suffers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from watchkeeper._version import __version__
from watchkeeper.agents.tools.contract import IMAGE_TYPES, MOST_BLOCKS, MOST_IMAGE_BASE64
from watchkeeper.agents.tools.processes import Broken
from watchkeeper.records.errors import raising_host_faults

LIST_TOOLS = "\0list"
"""The name of the request for the server's tools; no tool has it."""
CONNECT_SECONDS = 30.0
MOST_TOOLS = 500
MOST_PAGES = 50
_LOST = frozenset({types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT})


class McpConnection:
    """Speaks to a server as `config` says; `closed` is set when the server hangs up."""

    def __init__(self, config: dict[str, Any], closed: asyncio.Event) -> None:
        self._config = config
        self._closed = closed
        self._client: Client | None = None

    async def open(self) -> None:
        """Connect, and agree on a protocol version. Never closed: the process ends instead."""
        info = types.Implementation(name="watchkeeper", version=__version__)
        client = Client(_noticing(self._transport(), self._closed), client_info=info, cache=None)
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()

        async def hold() -> None:
            # The client's scopes belong to the task that enters them, and stay open: hence a task of their
            # own.
            try:
                async with client:
                    opened.set_result(client)
                    await asyncio.Event().wait()
            except BaseException as error:
                if opened.done():
                    self._closed.set()
                else:
                    opened.set_exception(error)

        self._holding = asyncio.create_task(hold())
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._client = await asyncio.shield(opened)
        except TimeoutError:
            raise TimeoutError(f"the MCP server did not respond within {CONNECT_SECONDS:g} s") from None

    async def run(self, request: dict[str, Any]) -> tuple[Any, bool]:
        """Answer one request.

        Raises:
            Broken: the server is gone, or does not answer.
        """
        assert self._client is not None
        try:
            with raising_host_faults(began=True):
                return await self._answer(self._client, request)
        except MCPError as error:
            if error.code in _LOST or self._closed.is_set():
                raise Broken(f"the MCP server did not respond: {error.message}") from error
            return f"the MCP server refused: {error.message}", True
        except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise Broken(f"the MCP server disconnected: {type(error).__name__}") from error

    async def _answer(self, client: Client, request: dict[str, Any]) -> tuple[Any, bool]:
        if request["tool"] == LIST_TOOLS:
            return json.dumps(await self._list(client)), False
        seconds = float(request["timeout_seconds"])
        result = await client.call_tool(request["tool"], request["arguments"], read_timeout_seconds=seconds)
        return content_of(result), result.is_error

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        if url := self._config.get("url"):
            import httpx2

            seconds = httpx2.Timeout(30.0, read=300.0)
            client = httpx2.AsyncClient(headers=self._config.get("headers") or {}, timeout=seconds)
            return streamable_http_client(url, http_client=client)
        server = StdioServerParameters(
            command=self._config["command"],
            args=self._config.get("args") or [],
            env=self._config.get("env") or {},
            cwd=self._config.get("cwd") or os.environ.get("HOME") or "/",
            encoding_error_handler="replace",
        )
        return stdio_client(server, errlog=open(os.devnull, "w"))

    @staticmethod
    async def _list(client: Client) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                found.append(
                    {
                        "name": tool.name,
                        "description": tool.description or "",
                        "input_schema": tool.input_schema,
                    }
                )
            cursor = page.next_cursor
            if not cursor or len(found) >= MOST_TOOLS:
                break
        return found[:MOST_TOOLS]


@asynccontextmanager
async def _noticing(transport: AbstractAsyncContextManager[Any], closed: asyncio.Event) -> AsyncIterator[Any]:
    """The transport, with `closed` set when the server's side of it ends."""
    async with transport as (read, write):
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            async with send:
                async for message in read:
                    await send.send(message)
            closed.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward)
            yield receive, write
            tasks.cancel_scope.cancel()


def content_of(result: types.CallToolResult) -> str | list[dict[str, Any]]:
    """A server's result as text, or as text and image blocks where it holds images."""
    blocks = [_block(one) for one in result.content[:MOST_BLOCKS]]
    if len(result.content) > MOST_BLOCKS:
        blocks.append(_text(f"[{len(result.content) - MOST_BLOCKS} more parts omitted]"))
    if not blocks and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks) or "[no output]"
    return blocks


def _block(part: types.ContentBlock) -> dict[str, Any]:
    if isinstance(part, types.TextContent):
        return _text(part.text)
    if isinstance(part, types.ImageContent):
        if part.mime_type in IMAGE_TYPES and len(part.data) <= MOST_IMAGE_BASE64 and _is_base64(part.data):
            source = {"type": "base64", "media_type": part.mime_type, "data": part.data}
            return {"type": "image", "source": source}
        return _text(f"[unsupported image of type {part.mime_type[:80]}, {len(part.data)} characters]")
    if isinstance(part, types.AudioContent):
        return _text(f"[audio of type {part.mime_type[:80]} omitted]")
    if isinstance(part, types.ResourceLink):
        return _text(f"[resource {part.name}: {part.uri}]")
    if isinstance(part.resource, types.TextResourceContents):
        return _text(f"[resource {part.resource.uri}]\n{part.resource.text}")
    return _text(f"[binary resource {part.resource.uri} omitted]")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_base64(data: str) -> bool:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return bool(data)
