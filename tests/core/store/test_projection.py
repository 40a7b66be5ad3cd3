"""A session is one dataclass: the list, the dashboard, a replay and JSON give the same of it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from tests.core.runtime.conftest import Bench
from tests.support import eventful_runs

from watchkeeper.store import database
from watchkeeper.store.driver import Queries
from watchkeeper.store.library import compare
from watchkeeper.store.projection import SessionFacts, counted_session, session_json
from watchkeeper.store.replay import open_recording
from watchkeeper.store.schema import SESSIONS
from watchkeeper.store.search.messages import list_sessions
from watchkeeper.store.snapshot import FleetReader, SessionSnapshotReader
from watchkeeper.store.state import agents_state

NAMES = [each.name for each in fields(SessionFacts)]
IN_OTHER_FORM = {"tags", "settings", "roles", "event_seq", "hosted_seconds", "host_pid", "host_name"} | {
    f"{kind}_tokens" for kind in ("input", "output", "cache_read", "cache_write")
}
NOT_IN_JSON = {"forked_from", "forked_at_seq"}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


def test_a_session_has_a_field_for_each_of_its_columns_but_those_of_this_database_alone() -> None:
    left = SESSIONS.types.keys() - set(NAMES)
    assert left == {
        "deleted_at", "ordinal", "deletion_ordinal", "history_inferred", "lease_until", "project", "needs", "source",
    }  # fmt: skip


async def test_list_fleet_dashboard_comparison_replay_and_json_give_the_same_of_a_session(
    bench: Bench,
) -> None:
    await eventful_runs.plain(bench)
    with closing(database.open_readonly(bench.path)) as connection:
        reads = Queries(connection)
        session = counted_session(reads, bench.session)
        assert session is not None
        recording = open_recording(connection, bench.session)
        reading = SessionSnapshotReader(bench.session).read(connection, 0.0)
        assert recording is not None
        assert reading is not None
        replayed = recording.at(connection, len(recording.times)).reading.session
        shown = {
            "list": list_sessions(reads)[0],
            "fleet": FleetReader([bench.session]).read(connection, 0.0)[0],
            "dashboard": reading.session,
            "comparison": compare(connection, bench.session, bench.session).left,
        }
        told = session_json(session)
        agents = agents_state(reads, bench.session)
    expected = {name: getattr(session, name) for name in NAMES}
    for where, one in shown.items():
        assert {name: getattr(one, name) for name in NAMES} == expected, where
    assert {name for name in NAMES if getattr(replayed, name) != expected[name]} <= {
        "last_active", "ended_at", "hosted_seconds", "host_name", "host_pid",
    }  # fmt: skip
    plain = set(NAMES) - IN_OTHER_FORM - NOT_IN_JSON
    assert {name: told[name] for name in plain} == {name: expected[name] for name in plain}
    assert told["tokens"]["total"] == session.total_tokens == sum(one["tokens"]["total"] for one in agents)
    assert json.loads(json.dumps(told)) == told
    assert (session.agents, session.turns) == (len(agents), sum(one["turn"] for one in agents))
    assert asdict(shown["fleet"]).keys() > asdict(session).keys()
