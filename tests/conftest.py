"""What all rooms' tests share: a new database is a copy of one that was migrated once, and no commit waits
for the disk.

Both are for tests alone, in their own process; what they start beside it makes and keeps databases as users'
programs do, and so do the tests of the store and of faults, by `as_users_have_them`.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.postgres import _postgres_template, postgres_place, postgres_server  # noqa: F401 - fixtures of all rooms

from watchkeeper.store import database
from watchkeeper.store.driver import Connection

# A busy machine takes for one example what an idle one takes for a hundred: how long one took says nothing. What a
# fixture gives is made so that examples may share it.
_PASSED_OVER = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("unhurried", deadline=None, max_examples=16, suppress_health_check=_PASSED_OVER)
settings.load_profile("unhurried")

# Whoever starts the tests in the background of a script has them, and all that they start, ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="run the tests marked long too, which `.ci/heavy long` does"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long and has a shorter sibling, but where it is asked for."""
    if not config.getoption("--long"):
        long = [each for each in items if each.get_closest_marker("long")]
        items[:] = [each for each in items if not each.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)


_prepare_file, _configure = database._prepare_file, database._configure


def pytest_collection_finish() -> None:
    """Look for circular garbage less often: what thousands of collected tests hold made it a quarter of the
    tests' CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _databases_at_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("schema")
    database.open_writable(folder / "migrated.db").close()
    migrated = (folder / "migrated.db").read_bytes()

    def copy(path: Path) -> None:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            copied = folder / f"{os.urandom(8).hex()}.db"
            copied.touch(0o600)
            copied.write_bytes(migrated)
            try:
                os.link(copied, path)  # whole, and never over what another thread has made meanwhile
            except OSError:
                pass  # it is there already, or on another file system: then it is made as usual
            finally:
                copied.unlink()
        _prepare_file(path)

    def configure(connection: Connection, path: Path) -> None:
        _configure(connection, path)
        connection.execute("PRAGMA synchronous=OFF")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_prepare_file", copy)
        patch.setattr(database, "_configure", configure)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # prices that imports remember
        yield


@pytest.fixture
def as_users_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases are made by their migrations, and kept with `synchronous=FULL`."""
    monkeypatch.setattr(database, "_prepare_file", _prepare_file)
    monkeypatch.setattr(database, "_configure", _configure)
