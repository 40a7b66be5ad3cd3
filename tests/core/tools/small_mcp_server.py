"""A real MCP server over stdio, good and bad at once."""

import asyncio
import base64
import os
import signal
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp_types import ToolAnnotations

server = MCPServer("small")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
def environment() -> str:
    """What it sees."""
    return "\n".join(f"{name}={value}" for name, value in os.environ.items())


@server.tool()
def fail() -> str:
    raise ValueError("as it should")


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool()
async def hang(note: str = "") -> str:
    try:
        if note:
            Path(note).write_text("started")
        await asyncio.sleep(1000)
    finally:
        if note:
            Path(note).write_text("cancelled")
    return ""


@server.tool()
def lie() -> str:
    sys.stdout.write("this is no JSON-RPC\n")
    sys.stdout.flush()
    return "true all the same"


@server.tool()
def flood() -> str:
    while True:
        sys.stdout.write("x" * 1_000_000)


@server.tool()
def large() -> str:
    return "y" * 3_000_000


@server.tool()
def picture() -> Image:
    return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")


@server.tool()
def pid() -> int:
    return os.getpid()


@server.tool(name="odd name/with.signs" + "x" * 60)
def odd() -> str:
    return "odd"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    elif len(sys.argv) > 1:
        # Says in a file when it was asked to end, as a server that has something to put in order would.
        signal.signal(
            signal.SIGTERM, lambda *_: (Path(sys.argv[1]).write_text("ended in order"), os._exit(0))
        )
    server.run("stdio")
