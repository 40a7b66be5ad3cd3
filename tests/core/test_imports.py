"""What importing costs: names load when they are used, and looking at a session loads no library of a
model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import watchkeeper
from watchkeeper.store import database, sessions
from watchkeeper.store.writer import Group

HEAVY = (
    "anthropic", "mcp", "genai_prices", "tiktoken", "sqlite_utils", "pydantic", "textual", "asyncio", "click", "sqlite3",
    "pysqlite3", "httpx", "yaml", "watchfiles", "importlib.metadata",
)  # fmt: skip


def loaded(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of `names` a fresh interpreter has loaded after running `code`."""
    program = f"import sys\n{code}\nprint('loaded:', *[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()[-1].split()[1:]


def test_importing_the_package_loads_nothing() -> None:
    assert loaded("import watchkeeper", HEAVY) == []


def test_asking_for_the_version_loads_nothing() -> None:
    code = "sys.argv = ['wk', '--version']\nfrom watchkeeper.__main__ import main\nmain()"
    assert loaded(code, HEAVY) == []


def test_the_help_loads_no_library_of_a_model() -> None:
    code = "from watchkeeper.cli.app import run\nassert run(['--help']) == 0"
    assert (
        loaded(code, ("anthropic", "mcp", "genai_prices", "tiktoken", "sqlite_utils", "pydantic", "textual"))
        == []
    )


@pytest.mark.parametrize(
    "command", [["sessions"], ["sessions", "--search", "word"], ["show"], ["artifacts"], ["memory", "status"]]
)
def test_looking_at_sessions_loads_no_library_of_a_model(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "w.db"
    connection = database.open_writable(path)
    about = {
        "session_id": "abcd2345", "user_id": "u", "goal": "a word", "workspace": ".", "model": "offline/surveyor",
    }  # fmt: skip
    sessions.create(Group(connection), **about, settings={}, budgets={}, now=1.0)
    connection.close()
    code = f"from watchkeeper.cli.app import run\nassert run({[*command, '--db', str(path)]!r}) == 0"
    assert (
        loaded(
            code,
            (
                "anthropic",
                "mcp",
                "genai_prices",
                "tiktoken",
                "sqlite_utils",
                "pydantic",
                "asyncio",
                "textual",
            ),
        )
        == []
    )


def test_the_dashboard_loads_no_library_of_a_model() -> None:
    assert (
        loaded("import watchkeeper_tui.app", ("anthropic", "mcp", "genai_prices", "tiktoken", "sqlite_utils"))
        == []
    )


def test_queueing_a_command_loads_no_library_of_a_model() -> None:
    assert (
        loaded(
            "import watchkeeper.runtime.control", ("anthropic", "mcp", "genai_prices", "tiktoken", "textual")
        )
        == []
    )


def test_the_core_never_loads_the_toolkit_of_the_dashboard() -> None:
    code = "import watchkeeper\nfor name in watchkeeper.__all__: getattr(watchkeeper, name)"
    assert loaded(code, ("textual",)) == []


@pytest.mark.parametrize("name", watchkeeper.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(watchkeeper, name) is not None
    assert name in dir(watchkeeper)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonesuch'"):
        _ = watchkeeper.Nonesuch
