"""An MCP server that breaks the protocol in the way that its argument names. By hand, since a library would
not."""

import json
import os
import sys
import time

HOW = sys.argv[1]
TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("first", "second")
]


def send(value: object) -> None:
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\n")
    sys.stdout.flush()


def answer(number: object, result: object) -> None:
    send({"jsonrpc": "2.0", "id": number, "result": result})


def text(value: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": value}], "isError": False}


def call(number: int) -> None:
    if HOW == "wrong id":
        answer(number + 1000, text("for nobody"))
    elif HOW == "somebody else's id":
        answer(number - 1, text("of another call"))
    elif HOW == "two answers":
        answer(number, text("one"))
        answer(number, text("two"))
    elif HOW == "invalid JSON":
        send('{"jsonrpc": "2.0", "id": ')
    elif HOW == "no result":
        answer(number, {"content": "no list", "isError": "maybe"})
    elif HOW == "a list":
        send([1, 2, 3])
    elif HOW == "huge":
        answer(number, text("z" * 40_000_000))
    elif HOW == "deep":
        send(f'{{"jsonrpc": "2.0", "id": {number}, "result": {"[" * 50_000 + "]" * 50_000}}}')
    elif HOW == "dies":
        send('{"jsonrpc": "2.0", ')
        os._exit(9)
    elif HOW == "hangs":
        time.sleep(1000)
    elif HOW == "other tools":
        TOOLS.pop()
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        answer(number, text("the list is another now"))
    elif HOW == "asks back":
        send(
            {
                "jsonrpc": "2.0",
                "id": 77,
                "method": "sampling/createMessage",
                "params": {"messages": [], "maxTokens": 1},
            }
        )
        send({"jsonrpc": "2.0", "id": 78, "method": "roots/list"})
        answer(number, text("asked"))


for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "liar", "version": "1"}
        answer(number, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        answer(number, {"tools": TOOLS})
    elif method == "tools/call":
        call(number)
    elif number is not None and method is not None:
        send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}})
