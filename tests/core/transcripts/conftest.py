"""Small logs of Claude Code, made by hand, and a database to import them into."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.records.messages import Cost, PriceStatus
from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts.importer import Importer, Report
from watchkeeper.transcripts.records import ModelCall

SESSION = "0a0a0a0a-1111-4222-8333-444444444444"


class Log:
    """Records of one file, chained as Claude Code chains them."""

    def __init__(self, session: str = SESSION, **common: Any) -> None:
        self.session = session
        self.records: list[dict[str, Any]] = []
        self._common = common
        self._second = 0
        self.last: str | None = None

    def add(self, kind: str, **about: Any) -> dict[str, Any]:
        """One record; its uuid is `u<n>` of its session unless it is given."""
        self._second += 1
        uuid = about.pop("uuid", f"{self.session[:4]}-u{len(self.records)}")
        record = {
            "parentUuid": about.pop("parent", self.last),
            "isSidechain": False,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"2026-02-03T04:{self._second // 60:02d}:{self._second % 60:02d}.000Z",
            "sessionId": self.session,
            "cwd": "/home/somebody/project",
            "version": "2.1.100",
            **self._common,
            **about,
        }
        self.records.append(record)
        self.last = uuid
        return record

    def user(self, content: Any, **about: Any) -> dict[str, Any]:
        return self.add("user", message={"role": "user", "content": content}, **about)

    def reply(
        self, *blocks: dict[str, Any], id: str, output: int = 10, stop: str | None = "end_turn", **about: Any
    ) -> dict[str, Any]:
        """One record of a reply; `input`, `read`, `write` and `hour` are tokens."""
        hour, write = about.pop("hour", 0), about.pop("write", 0)
        usage = {
            "input_tokens": about.pop("input", 3),
            "output_tokens": output,
            "cache_read_input_tokens": about.pop("read", 0),
            "cache_creation_input_tokens": write + hour,
            "cache_creation": {"ephemeral_5m_input_tokens": write, "ephemeral_1h_input_tokens": hour},
        }
        model = about.pop("model", "claude-opus-4-6")
        message = {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": list(blocks),
            "stop_reason": stop,
            "usage": usage,
        }
        return self.add("assistant", message=message, requestId=about.pop("request", f"req_{id}"), **about)

    def result(self, call: str, text: str = "fine", *, error: bool = False, **about: Any) -> dict[str, Any]:
        return self.user(
            [{"type": "tool_result", "tool_use_id": call, "content": text, "is_error": error}], **about
        )

    def boundary(self, before: int = 150_000, **about: Any) -> dict[str, Any]:
        return self.add(
            "system", subtype="compact_boundary", parent=None, logicalParentUuid=self.last,
            compactMetadata={"trigger": "auto", "preTokens": before, **about},
        )  # fmt: skip

    def summary(self, text: str) -> dict[str, Any]:
        return self.user(text, isCompactSummary=True)

    @property
    def lines(self) -> list[bytes]:
        return [json.dumps(record, separators=(",", ":")).encode() for record in self.records]

    @property
    def bytes(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)

    def write(self, folder: Path, name: str | None = None) -> Path:
        path = folder / (name or f"{self.session}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.bytes)
        return path


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(name: str, id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def dollar_a_token(each: ModelCall) -> Cost:
    """A dollar a token of input or output, and a tenth for what the cache served."""
    usd = each.input_tokens + each.output_tokens + each.cache_write_tokens + each.cache_read_tokens / 10
    if each.model.endswith("unheard-of"):
        return Cost(None, PriceStatus.UNPRICED)
    return Cost(float(usd), PriceStatus.EXACT if each.exact else PriceStatus.ESTIMATED)


@contextmanager
def store_in_a_folder() -> Iterator[tuple[Store, Path]]:
    """One for each example of a property."""
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder) / "db" / "w.db")) as store:
        yield store, Path(folder)


def work(session: str = Log().session, turns: int = 6) -> Log:
    log = Log(session)
    log.user("Mend the cache")
    for turn in range(turns):
        log.reply(text(f"Step {turn}."), id=f"msg_{session[:2]}{turn}", output=1, stop=None)
        log.reply(
            call("Bash", f"t{turn}", command=f"step {turn}"),
            id=f"msg_{session[:2]}{turn}",
            output=20,
            stop="tool_use",
        )
        log.add("queue-operation", operation="enqueue")
        log.result(f"t{turn}")
        if turn == 3:
            log.boundary()
            log.summary("Half of it.")
    return log


class Store:
    """A database to import into and to ask."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = Writer(path)
        self._connection = database.open_readonly(path)
        self._connection.row_factory = sqlite3.Row

    def run(self, *places: Path, **options: Any) -> Report:
        """Import, as one command would."""
        options = {"pricing": dollar_a_token, "now": lambda: 1_800_000_000.0} | options
        importer = Importer(self.writer, **options)
        try:
            return importer.run(list(places))
        finally:
            importer.close()

    def all(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(sql, parameters)]

    def one(self, sql: str, *parameters: Any) -> Any:
        """The first row, or its only value."""
        row = self._connection.execute(sql, parameters).fetchone()
        return row and (row[0] if len(row) == 1 else tuple(row))

    def said(self) -> list[Any]:
        """What all messages hold, in their order."""
        return [json.loads(row[0]) for row in self.all("SELECT content FROM messages ORDER BY seq")]

    def plan_versions(self) -> list[list[tuple[str, str]]]:
        """The titles and states of the tasks in each version of the plan."""
        rows = self.all("SELECT plan_graph_snapshot FROM plan_revisions ORDER BY revision")
        return [[(item["title"], item["status"]) for item in json.loads(row[0])] for row in rows]

    def errors(self) -> list[tuple[Any, ...]]:
        """Events but those of new agents, with the errors that they tell of."""
        error = "json_extract(data, '$.error')"
        return self.all(f"SELECT kind, {error} FROM events WHERE kind <> 'agent.created' ORDER BY seq")

    def assert_a_tree(self) -> None:
        """No agent is an ancestor of itself."""
        parents = dict(self.all("SELECT id, parent_agent_id FROM agents"))
        for agent in parents:
            seen: set[str] = set()
            while agent is not None:
                assert agent not in seen
                seen.add(agent)
                agent = parents[agent]

    def counts(self) -> dict[str, int]:
        """Rows of every table that an import writes."""
        tables = (
            "sessions", "agents", "messages", "tool_calls", "model_calls", "tasks", "plan_revisions", "compactions", "observations",
            "views", "events", "raw_records", "transcript_files", "transcript_records", "transcript_calls",
            "transcript_revisions",
        )  # fmt: skip
        return {name: self.one(f"SELECT count(*) FROM {name}") for name in tables}

    def close(self) -> None:
        self._connection.close()
        self.writer.close()


def imported(store: Store, logs: Path, log: Log | None = None) -> tuple[Log, Path]:
    """A log (of one prompt, unless it is given) that was imported, and its file."""
    if log is None:
        log = Log()
        log.user("Mend the cache")
    path = log.write(logs)
    store.run(path)
    return log, path


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    made: list[Store] = []

    def make(name: str = "watchkeeper") -> Store:
        made.append(Store(tmp_path / "db" / f"{name}.db"))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def store(open_store: Callable[[str], Store]) -> Store:
    return open_store("watchkeeper")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder
