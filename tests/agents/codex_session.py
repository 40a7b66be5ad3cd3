"""Sessions of the real Codex app-server, recorded and played again without it.

    python codex_session.py replay FOLDER PART        plays PART of `codex_session.jsonl`, as `codex app-server` would
    python codex_session.py record FOLDER -- codex …  runs Codex, and writes each line of both sides to FOLDER/lines.jsonl
    python codex_session.py schema CODEX              the parts of Codex's own JSON schema for what Watchkeeper sends

The recording has one line for each message: part, number of the process, who wrote it, the message. Of the client's
messages it has the method and the id alone. A replay sends a line of Codex when everything that the client had sent
before it has come. `WATCHKEEPER_RECORD_CODEX=PATH pytest tests/agents/test_codex_sessions.py` records anew.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).with_suffix(".jsonl")
SCHEMA = Path(__file__).with_name("codex_schema.json")
ARGUMENTS = (
    "app-server", "-c", "features.plugins=false", "-c", "features.apps=false", "-c", "features.remote_plugin=false",
)  # fmt: skip
SENT = {
    "initialize": "v1/InitializeParams", "thread/start": "v2/ThreadStartParams", "thread/resume": "v2/ThreadResumeParams",
    "turn/start": "v2/TurnStartParams", "turn/steer": "v2/TurnSteerParams", "turn/interrupt": "v2/TurnInterruptParams",
    "thread/compact/start": "v2/ThreadCompactStartParams",
    "thread/backgroundTerminals/clean": "v2/ThreadBackgroundTerminalsCleanParams",
    "item/commandExecution/requestApproval": "CommandExecutionRequestApprovalResponse",
    "item/fileChange/requestApproval": "FileChangeRequestApprovalResponse",
    "mcpServer/elicitation/request": "McpServerElicitationRequestResponse",
}  # fmt: skip
"""What the client sends, and its schema: parameters of requests, and results of Codex's own requests."""


def life_of(folder: Path) -> int:
    """The number of this process among those that were started in a folder."""
    with (folder / "lives").open("a") as lives:
        lives.write("x")
    return (folder / "lives").stat().st_size - 1


def record(folder: Path, command: list[str]) -> int:
    """Run Codex between our streams and its own."""
    life, lock = life_of(folder), threading.Lock()
    codex = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert codex.stdin is not None
    assert codex.stdout is not None

    def note(who: str, line: bytes) -> None:
        with lock, (folder / "lines.jsonl").open("a") as log:
            log.write(json.dumps([life, who, json.loads(line)]) + "\n")

    def forward() -> None:
        for line in sys.stdin.buffer:
            note("client", line)
            codex.stdin.write(line)
            codex.stdin.flush()
        codex.stdin.close()

    threading.Thread(target=forward, daemon=True).start()
    for line in codex.stdout:
        note("codex", line)
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    return codex.wait()


def cleaned(lines: list[Any], places: list[str]) -> list[Any]:
    """A recording without paths, ids and times of where it was made."""
    text = json.dumps(lines)
    for place in places:
        text = text.replace(place, "/place")
    text = re.sub(r"\w+/pytest-of-\w+/pytest-\d+/\w+|pytest-of-\w+/pytest-\d+/\w+", "place", text)
    uuids: dict[str, str] = {}
    text = re.sub(
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        lambda found: uuids.setdefault(found[0], f"00000000-0000-0000-0000-{len(uuids):012}"),
        text,
    )
    text = re.sub(r'("resets_?[aA]t": )\d+', r"\g<1>4102444800", text)
    text = re.sub(r'("\w+(?:At|AtMs)": )(?!4102444800)\d{9,}', r"\g<1>1", text)
    text = re.sub(r"\d{4}-\d{2}-\d{2}T[\d-]+", "2026-01-01T00-00-00", text)

    def shortened(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shortened(one) for key, one in value.items()}
        if isinstance(value, list):
            return [shortened(one) for one in value]
        return value[:300] if isinstance(value, str) else value

    kept = []
    for life, who, message in shortened(json.loads(text)):
        if message.get("method") in (
            "warning", "configWarning", "thread/status/changed", "remoteControl/status/changed",
        ):  # fmt: skip
            continue
        if who == "client":
            message = {key: value for key, value in message.items() if key in ("id", "method")}
        kept.append([life, who, message])
    return kept


def replay(folder: Path, part: str) -> None:
    """Answer as the recording says."""
    life = life_of(folder)
    lines = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    ids: dict[Any, Any] = {}  # of the client's requests, from the recording to now
    came: dict[Any, deque[dict[str, Any]]] = defaultdict(deque)
    for wanted_part, number, who, message in lines:
        if (wanted_part, number) != (part, life):
            continue
        if who == "codex":
            if "method" not in message:
                message = {**message, "id": ids[message["id"]]}
            print(json.dumps(message), flush=True)
            continue
        key = message.get("method") or ("answer", message["id"])
        while not came[key]:
            line = sys.stdin.readline()
            if not line:
                return
            with (folder / "received.jsonl").open("a") as log:
                log.write(json.dumps([life, json.loads(line)]) + "\n")
            sent = json.loads(line)
            came[sent.get("method") or ("answer", sent["id"])].append(sent)
        taken = came[key].popleft()
        if "method" in message and "id" in message:
            ids[message["id"]] = taken["id"]
    sys.stdin.read()


def schema(codex: str) -> str:
    """The parts of Codex's schema that concern what the client sends, without words for people."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            words = {
                key
                for key in ("description", "title", "$schema", "default")
                if not isinstance(value.get(key), dict)
            }
            return {key: strip(one) for key, one in value.items() if key not in words}
        return [strip(one) for one in value] if isinstance(value, list) else value

    definitions: dict[str, Any] = {}
    sent: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [codex, "app-server", "generate-json-schema", "--experimental", "--out", folder]
        subprocess.run(command, check=True, capture_output=True)
        for method, name in SENT.items():
            found = strip(json.loads(Path(folder, f"{name}.json").read_text()))
            definitions |= found.pop("definitions", {})
            found.get("properties", {}).pop("history", None)  # never sent, and large
            sent[method] = found
    used: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).rpartition("/")[2]
            if name and name not in used:
                used.add(name)
                walk(definitions[name])
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(one)

    walk(sent)
    whole = {"definitions": {name: definitions[name] for name in used}, **sent}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "schema":
        SCHEMA.write_text(schema(rest[0]))
    elif verb == "record":
        sys.exit(record(Path(rest[0]), rest[2:]))
    else:
        replay(Path(rest[0]), rest[1])
