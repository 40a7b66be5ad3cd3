"""An agent program that speaks ACP by a script, well or badly: `python fake_acp.py FOLDER`.

`FOLDER/script.json` has:

    replies  method → the result, or {"error": …}, of a request of the client, in place of the usual one. ["die", n]: the
             first n processes die there; ["each", results]: one after the other; ["lives", results]: one for each process; ["never"]: no answer; ["then", result, actions]
    lives    for each process that is started, for each of its prompts: a list of actions

A prompt without actions is answered with "done". FOLDER/received.jsonl gets every line that the client sends, with the
number of the process before it; FOLDER/pids every process. Only the standard library, so that it starts at once.

Actions: ["line", text] prints it; ["send", message]; ["update", fields] is a `session/update`; ["say", text];
["tool", id, fields…]; ["ask", id, tool call] puts a question and goes on; ["await", id] waits for its answer; ["spawn",
shell command] starts a process in a session and with an environment of its own; ["until", method] waits for that message; ["file", name] for a file in FOLDER;
["flood", text] says it for ever; ["refuse", error] answers the newest prompt with it;
["server", message] is an event of the server on `--port PORT`, which keeps what it is answered in FOLDER/replies.jsonl;
["reply"] waits for such an answer; ["die"]; ["orphan"] kills its parent; ["deaf"] reads nothing more, and ignores every signal that it can; ["end", reason]; ["error", code, message, data].
"""

from __future__ import annotations

import base64
import http.server
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

OPTIONS = [
    {"optionId": "yes", "kind": "allow_once", "name": "Allow"},
    {"optionId": "no", "kind": "reject_once", "name": "No"},
]
SESSION = "fake-session"


MODES = ("auto", "default", "build")


def agents(*later: dict[str, str]) -> list[Any]:
    """What OpenCode lists of its agents: the rules of the environment, and later ones."""
    given = json.loads(os.environ.get("OPENCODE_PERMISSION", "{}"))
    rules = [{"permission": name, "pattern": "*", "action": action} for name, action in given.items()]
    everything = {"permission": "*", "pattern": "*", "action": "allow"}
    return [{"name": "build", "mode": "primary", "permission": [everything, *rules, *later]}]


def taken_over(params: dict[str, Any]) -> dict[str, Any]:
    """The permissions of a thread of Codex, as it was asked for them."""
    first, *rest = params["sandbox"].split("-")
    sandbox = {"type": first + "".join(word.title() for word in rest)}
    return {
        "approvalPolicy": params["approvalPolicy"],
        "approvalsReviewer": params["approvalsReviewer"],
        "sandbox": sandbox,
    }


class Fake:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "pids").open("a") as pids:
            pids.write(f"{os.getpid()}\n")
        with (folder / "lives").open("a") as lives:
            lives.write("x")
        self.life = (folder / "lives").stat().st_size - 1
        script = json.loads((folder / "script.json").read_text())
        self.replies: dict[str, Any] = script.get("replies", {})
        lives_given = script.get("lives", [])
        self.prompts = deque(lives_given[self.life] if self.life < len(lives_given) else [])
        self.waiting: deque[dict[str, Any]] = deque()
        self.early: list[dict[str, Any]] = []
        self.open_prompts: list[Any] = []
        self.events: queue.Queue[Any] = queue.Queue()
        self.mode = MODES[0]
        (folder / "permission.json").write_text(os.environ.get("OPENCODE_PERMISSION", "{}"))
        if "--port" in sys.argv:
            self.listen(int(sys.argv[sys.argv.index("--port") + 1]))

    def listen(self, port: int) -> None:
        """The server that OpenCode has beside ACP."""
        fake, password = self, os.environ["OPENCODE_SERVER_PASSWORD"]
        wanted = "Basic " + base64.b64encode(f"opencode:{password}".encode()).decode()

        class Answer(http.server.BaseHTTPRequestHandler):
            def begin(self) -> bool:
                allowed = self.headers["Authorization"] == wanted
                said = fake.replies.get(f"GET {self.path.partition('?')[0]}", 200)
                status = said if isinstance(said, int) else 200
                self.send_response(status if allowed else 401)
                self.end_headers()
                return allowed and status == 200

            def do_GET(self) -> None:
                if not self.begin():
                    return
                if self.path.startswith("/permission"):
                    self.wfile.write(b"[]")
                elif self.path.startswith("/agent"):
                    self.wfile.write(json.dumps(fake.replies.get("GET /agent", agents())).encode())
                elif self.path.startswith("/event"):
                    while True:
                        self.wfile.write(b"data: " + json.dumps(fake.events.get()).encode() + b"\n\n")

            def do_POST(self) -> None:
                said = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if self.begin():
                    (fake.folder / "replies.jsonl").write_text(
                        json.dumps([self.path.partition("?")[0], json.loads(said)])
                    )

            def log_message(self, *words: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def line(self, text: str) -> None:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass") + b"\n")
        sys.stdout.buffer.flush()

    def send(self, message: Any) -> None:
        self.line(json.dumps({"jsonrpc": "2.0", **message} if isinstance(message, dict) else message))

    def update(self, fields: Any) -> None:
        self.send({"method": "session/update", "params": {"sessionId": SESSION, "update": fields}})

    def take(self) -> dict[str, Any]:
        """The next message of the client; ends where its input does."""
        line = sys.stdin.buffer.readline()
        if not line:
            sys.exit(0)
        with (self.folder / "received.jsonl").open("a") as log:
            log.write(json.dumps([self.life, json.loads(line)]) + "\n")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "session/prompt" and self.open_prompts:
            self.open_prompts.append(message["id"])  # added to the running turn
        return message

    def until(self, wanted: Any) -> dict[str, Any]:
        """Read until a message has that method, or answers the request with that id. Answers to other requests are kept."""
        for message in self.early:
            if message.get("id") == wanted:
                self.early.remove(message)
                return message
        while True:
            message = self.take()
            if message.get("method") == wanted or ("method" not in message and message.get("id") == wanted):
                return message
            if "method" in message and "id" in message and message["method"] != "session/prompt":
                self.waiting.append(message)
            elif "method" not in message:
                self.early.append(message)

    def serve(self) -> None:
        while True:
            message = self.waiting.popleft() if self.waiting else self.take()
            method, number = message.get("method"), message.get("id")
            if method is None or number is None:
                continue
            if method == "session/prompt" and "session/prompt" not in self.replies:
                self.open_prompts = [number]
                self.prompt(self.prompts.popleft() if self.prompts else [["say", "done"]])
                continue
            if method == "session/set_mode" and method not in self.replies:
                self.mode = message["params"]["modeId"]
            if method == "session/load":
                self.update(
                    {
                        "sessionUpdate": "agent_message_chunk",
                        "content": {"type": "text", "text": "OLD HISTORY"},
                    }
                )
                self.update(
                    {
                        "sessionUpdate": "tool_call",
                        "toolCallId": "old",
                        "title": "bash",
                        "status": "completed",
                    }
                )
            reply = self.replies.get(method, self.usual(method))
            if method in ("thread/start", "thread/resume") and isinstance(reply, dict) and "thread" in reply:
                reply = taken_over(message["params"]) | reply
            self.answer(number, reply)

    def answer(self, number: Any, reply: Any) -> None:
        verb = reply[0] if isinstance(reply, list) and reply else None
        if verb == "die":
            if self.life < reply[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            reply = self.usual("session/new") | self.usual("initialize")
        elif verb == "lives":
            return self.answer(number, reply[1][self.life])
        elif verb == "each":
            return self.answer(number, reply[1].pop(0))
        elif verb == "never":
            return None
        elif verb == "then":
            self.answer(number, reply[1])
            return self.act(reply[2])
        failed = isinstance(reply, dict) and set(reply) == {"error"}
        self.send({"id": number, **(reply if failed else {"result": reply})})
        return None

    def usual(self, method: str) -> Any:
        if method == "initialize":
            return {"protocolVersion": 1, "agentInfo": {"name": "fake", "version": "9.9"},
                    "agentCapabilities": {"mcpCapabilities": {"http": True}, "loadSession": True,
                                          "sessionCapabilities": {"resume": {}}}}  # fmt: skip
        if method in ("session/new", "session/resume", "session/load"):
            modes = {
                "currentModeId": self.mode,
                "availableModes": [{"id": one, "name": one} for one in MODES],
            }
            return {"sessionId": SESSION, "modes": modes} if method == "session/new" else {"modes": modes}
        return {}

    def prompt(self, actions: list[list[Any]]) -> None:
        self.act(actions)
        self.end({"result": {"stopReason": "end_turn", "usage": {"inputTokens": 10, "outputTokens": 2}}})

    def act(self, actions: list[list[Any]]) -> None:
        for verb, *rest in actions:
            if verb == "line":
                self.line(*rest)
            elif verb == "send":
                self.send(*rest)
            elif verb == "update":
                self.update(*rest)
            elif verb == "say":
                self.update(
                    {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": rest[0]}}
                )
            elif verb == "tool":
                begun = "status" not in rest[1] or rest[1]["status"] == "in_progress"
                kind = "tool_call" if begun else "tool_call_update"
                self.update(
                    {"sessionUpdate": kind, "toolCallId": rest[0], "status": "in_progress", **rest[1]}
                )
            elif verb == "ask":
                params = {"sessionId": SESSION, "toolCall": rest[1], "options": OPTIONS}
                self.send({"id": rest[0], "method": "session/request_permission", "params": params})
            elif verb in ("await", "until"):
                self.until(rest[0])
            elif verb == "spawn":
                child = subprocess.Popen(
                    ["env", "-i", "setsid", "sh", "-c", rest[0]], stdout=subprocess.DEVNULL
                )
                with (self.folder / "pids").open("a") as pids:
                    pids.write(f"{child.pid}\n")
            elif verb == "file":
                while not (self.folder / rest[0]).exists():
                    time.sleep(0.01)
            elif verb == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif verb == "orphan":
                os.kill(os.getppid(), signal.SIGKILL)
            elif verb == "deaf":
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_IGN)
                (self.folder / "deaf").touch()
                while True:
                    time.sleep(3600)
            elif verb == "server":
                self.events.put(rest[0])
            elif verb == "reply":
                while not (self.folder / "replies.jsonl").exists():
                    time.sleep(0.01)
            elif verb == "flood":
                while True:
                    self.act([["say", rest[0]]])
            elif verb == "refuse":
                self.send({"id": self.open_prompts.pop(), "error": rest[0]})
            elif verb == "end":
                self.end({"result": {"stopReason": rest[0]}})
            elif verb == "error":
                code, message, *data = rest
                self.end({"error": {"code": code, "message": message, **({"data": data[0]} if data else {})}})

    def end(self, how: dict[str, Any]) -> None:
        for number in self.open_prompts:
            self.send({"id": number, **how})
        self.open_prompts = []


if __name__ == "__main__":
    Fake(Path(sys.argv[1])).serve()
