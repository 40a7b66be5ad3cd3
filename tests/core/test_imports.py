"""What importing costs: names load when they are used, and looking at a session loads no library of a
model."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import watchkeeper
from watchkeeper._version import __version__
from watchkeeper.models.registry import price
from watchkeeper.records.messages import Usage
from watchkeeper.store import database, sessions
from watchkeeper.store.writer import Group

PRICES = "genai_prices_alone.data"
LIBRARIES = ("anthropic", "openai", "httpx2", "mcp", "genai_prices", PRICES, "tiktoken", "sqlite_utils")
HEAVY = (*LIBRARIES, "pydantic", "textual", "asyncio", "click", "sqlite3", "pysqlite3", "httpx", "yaml", "watchfiles", "json",
         "importlib.metadata")  # fmt: skip
WK = "from watchkeeper.cli.app import run\nassert run({!r}) == 0"


def loaded(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of `names` a fresh interpreter has loaded after running `code`."""
    program = f"import sys\n{code}\nprint('loaded:', *[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import watchkeeper", HEAVY),
        ("sys.argv = ['wk', '--version']\nfrom watchkeeper.__main__ import main\nmain()", HEAVY),
        (WK.format(["--help"]), (*LIBRARIES, "pydantic", "textual")),
        ("import watchkeeper_tui.app", LIBRARIES),
        ("import watchkeeper.runtime.control", (*LIBRARIES, "textual")),
        ("import watchkeeper.models.anthropic, watchkeeper.models.openai, watchkeeper.models.registry", (*LIBRARIES, "pydantic")),
        ("import watchkeeper\nfor name in watchkeeper.__all__: getattr(watchkeeper, name)", ("textual",)),
    ],
    ids=["the package", "the version", "the help", "the dashboard", "queueing a command", "models", "public names"],
)  # fmt: skip
def test_nothing_loads_more_than_it_needs(code: str, names: tuple[str, ...]) -> None:
    assert loaded(code, names) == []


@pytest.mark.parametrize(
    "command",
    ["sessions", "sessions --json", "sessions --search word", "show", "show last --json", "artifacts", "memory status", "pause last"],
)  # fmt: skip
def test_looking_at_sessions_loads_no_library_of_a_model(command: str, tmp_path: Path) -> None:
    path = tmp_path / "w.db"
    connection = database.open_writable(path)
    about = {"user_id": "u", "goal": "a word", "workspace": ".", "model": "offline/surveyor"}
    sessions.create(Group(connection), session_id="abcd2345", **about, settings={}, budgets={}, now=1.0)
    connection.close()
    code = WK.format([*command.split(), "--db", str(path)])
    beside = () if command.startswith("pause") else ("asyncio",)
    assert loaded(code, (*LIBRARIES, *beside, "pydantic", "textual")) == []


@pytest.mark.parametrize("what", ["folder", "file"])
def test_importing_logs_loads_no_more_than_it_needs(what: str, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "11111111-1111-4111-8111-111111111111.jsonl"
    log.parent.mkdir()
    log.write_text(
        '{"type":"user","uuid":"1","sessionId":"s","message":{"role":"user","content":"a word"}}\n'
    )
    code = WK.format(["import", str(log if what == "file" else log.parent), "--db", str(tmp_path / "w.db")])
    others = (
        "asyncio",
        "pydantic_core",
        "watchkeeper.models.failures",
        "watchkeeper.transcripts.export.document",
        "watchkeeper.store.library",
        "watchkeeper.store.snapshot",
    )
    assert loaded(code, (*LIBRARIES, *others, "pydantic", "textual")) == []


SERVICE = """
import os, signal, sqlite3, threading, time
from pathlib import Path
from watchkeeper.cli.app import run

def priced():
    try:
        with sqlite3.connect("file:{db}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT count(*) FROM model_calls WHERE cost_usd > 0").fetchone()[0]
    except sqlite3.Error:
        return 0

def write_and_end():
    while priced() < 1:
        time.sleep(0.02)
    with Path("{log}").open("a") as file:  # the first line may be read by the process that imports what is there
        file.write(Path("{log}").read_text().replace("first", "second"))
    while priced() < 2:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=write_and_end, daemon=True).start()
assert run(["import", "--watch-all", "--db", "{db}"]) == 0
"""


def test_the_service_prices_a_call_without_loading_what_prices_it(tmp_path, monkeypatch):
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    log = tmp_path / ".claude/projects/-w/11111111-1111-4111-8111-111111111111.jsonl"
    log.parent.mkdir(parents=True)
    usage = {"input_tokens": 1000, "output_tokens": 10}
    said = {"id": "first", "role": "assistant", "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "a word"}], "usage": usage}  # fmt: skip
    record = {"type": "assistant", "uuid": "first", "sessionId": "11111111-1111-4111-8111-111111111111", "message": said,
              "timestamp": "2026-02-03T04:00:00.000Z"}  # fmt: skip
    log.write_text(json.dumps(record) + "\n")
    db = tmp_path / "w.db"
    heavy = (
        *LIBRARIES,
        "asyncio",
        "pydantic",
        "httpx",
        "importlib.metadata",
        "textual",
        "watchkeeper.store.library",
    )
    assert loaded(SERVICE.format(db=db, log=log), heavy) == []
    cost = price("anthropic/claude-sonnet-4-5", Usage(1000, 10), at=1_770_091_200.0)
    with database.open_readonly(db) as connection:
        assert connection.execute("SELECT cost_usd FROM model_calls").fetchall() == [(cost.usd,)] * 2


def test_a_second_import_of_a_model_loads_no_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    log = tmp_path / "11111111-1111-4111-8111-111111111111.jsonl"
    log.write_text(
        '{"type":"assistant","uuid":"1","sessionId":"s","timestamp":"2026-04-01T12:00:00.000Z","requestId":"r","message":{"id":"m",'
        '"role":"assistant","model":"claude-opus-4-6","content":"a word","usage":{"input_tokens":1000000,"output_tokens":1}}}\n'
    )
    found = []
    for number in (1, 2):
        path = tmp_path / f"{number}.db"
        found.append(
            loaded(WK.format(["import", str(log), "--db", str(path)]), (PRICES, "genai_prices", "pydantic"))
        )
        with closing(database.open_readonly(path)) as connection:
            [(cost,)] = connection.execute("SELECT cost_usd FROM model_calls")
            assert cost == pytest.approx(5.0, abs=0.001)
    assert found == [[PRICES], []]


def test_the_version_is_printed_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "watchkeeper", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"watchkeeper {__version__}\n"


@pytest.mark.parametrize("name", watchkeeper.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(watchkeeper, name) is not None
    assert name in dir(watchkeeper)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonesuch'"):
        _ = watchkeeper.Nonesuch
