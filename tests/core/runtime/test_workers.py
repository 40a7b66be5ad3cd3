"""Workers: who takes which session, what happens to sessions whose host dies, and what a move loses."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench, add_agent
from tests.support.places import query, workspace_in
from tests.support.scripted import PlannedRun, call, said, task

from watchkeeper.agents.tools.mcp import McpServers
from watchkeeper.agents.worktrees import GitFailed
from watchkeeper.records.errors import BadInput, LeaseLost
from watchkeeper.records.ports import SystemClock
from watchkeeper.records.states import SessionStatus
from watchkeeper.runtime import background
from watchkeeper.runtime import host as hosts
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.runtime.worker import Worker, check_remote, checkout, tidy, why_not
from watchkeeper.store import database, sessions, workers
from watchkeeper.store.driver import Queries, encode
from watchkeeper.store.lease import probe
from watchkeeper.store.place import Place
from watchkeeper.store.transaction import SessionStore, Transaction
from watchkeeper.store.workers import Claims, Needs, Placement


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return tmp_path / "w.db"
    found: Place = request.getfixturevalue("postgres_place")
    return found


def queued(place: Place, folder: Path, **needs: Any) -> str:
    """A session that waits for a worker."""
    wanted = Needs(**({"path": str(workspace_in(folder))} | needs))
    return create_session(place, NewSession("goal", folder, "offline/surveyor", needs=wanted))


@dataclass
class FakeHost:
    """A host in this process: it has the lease of its session between `claim` and its end."""

    place: Place
    session: str
    options: Sequence[str]
    pid: int = field(default_factory=os.getpid)
    returncode: int | None = None
    store: SessionStore | None = None
    signals: list[int] = field(default_factory=list)

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.end(-9)

    def claim(self) -> None:
        self.store = SessionStore.claim(
            self.place, self.session, SystemClock(), pid=self.pid, host_name=os.uname().nodename
        )

    def end(self, code: int, status: SessionStatus | None = None) -> None:
        if self.store is not None:
            if status is not None:
                self.write(lambda tx: sessions.set_status(tx, status))
            self.store.close()
        self.returncode = code

    def write(self, change: Callable[[Transaction], Any]) -> None:
        assert self.store is not None
        epoch = self.store.epoch
        self.store.writer.submit(lambda group: change(Transaction(group, self.session, epoch, 1.0))).result()


class Scene:
    """Workers whose hosts are in this process, and a clock of the workers."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.now = 0.0
        self.hosts: list[FakeHost] = []
        self.workers: list[Worker] = []

    def worker(self, slots: int = 2, labels: Sequence[str] = (), machine: str | None = None) -> Worker:
        def start(place: Place, session: str, options: Sequence[str]) -> Any:
            self.hosts.append(FakeHost(place, session, options))
            return self.hosts[-1]

        made = Worker(
            self.place, f"w-{len(self.workers)}", slots=slots, labels=labels, machine=machine, start=start,
            monotonic=lambda: self.now,
        )  # fmt: skip
        self.workers.append(made)
        return made

    def running(self, session: str | None = None) -> list[FakeHost]:
        return [one for one in self.hosts if one.returncode is None and session in (None, one.session)]

    def close(self) -> None:
        for host in self.running():
            host.end(0)
        for worker in self.workers:
            worker.close()


@pytest.fixture
def scene(place: Place) -> Iterator[Scene]:
    made = Scene(place)
    yield made
    made.close()


def reasons(place: Place, session: str) -> list[str]:
    return [
        row[0] for row in query(place, "SELECT reason FROM worker_refusals WHERE session_id = ?", session)
    ]


def test_a_claim_is_held_by_one_and_ends_with_it(place: Place, tmp_path: Path) -> None:
    session = queued(place, tmp_path)
    connections = [database.open_writable(place) for _ in range(3)]
    first, *others = [Claims(place, one) for one in connections]
    assert first.take(session)
    assert not first.take(session)
    assert not any(other.take(session) for other in others)
    first.close()
    assert [other.take(session) for other in others] == [True, False]
    connections[1].close()  # as when its process dies; on SQLite the file is closed then
    others[0].close()
    assert others[1].take(session)
    others[1].close()


@pytest.mark.parametrize("seed", range(2))
def test_workers_that_race_and_hosts_that_die_drive_each_session_once_at_a_time_and_to_its_end(
    scene: Scene, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    made = {queued(scene.place, tmp_path) for _ in range(6)}
    pool = [scene.worker(slots=2) for _ in range(3)]
    deaths = 0
    for _ in range(600):
        chance.choice(pool).step()
        scene.now += 0.2
        assert all(len(worker.sessions) <= 2 for worker in pool)
        assert all(len(scene.running(session)) <= 1 for session in made)
        if not (alive := scene.running()):
            continue
        host = chance.choice(alive)
        if host.store is None:
            host.claim()
        elif deaths < 8 and chance.random() < 0.5:
            deaths += 1
            host.end(-9)
        else:
            host.end(0, SessionStatus.DONE)
    assert deaths >= 3
    rows = query(scene.place, "SELECT count(*) FROM sessions WHERE status = 'done' AND queued_at IS NULL")
    assert rows == [(6,)]


def test_a_session_whose_host_fails_at_once_is_tried_ever_more_rarely_and_says_why(scene, tmp_path):
    session = queued(scene.place, tmp_path)
    worker = scene.worker()
    while scene.now < 400:
        worker.step()
        for host in scene.running():
            host.end(1)
        scene.now += 0.5
    assert 5 <= len(scene.hosts) <= 9
    (reason,) = reasons(scene.place, session)
    assert "ended before it did anything" in reason


def test_a_host_that_was_killed_after_it_made_progress_is_replaced_at_once(scene, tmp_path):
    session = queued(scene.place, tmp_path)
    worker = scene.worker()
    for number in range(5):
        worker.step()
        (host,) = scene.running()
        host.claim()
        worker.step()
        host.write(lambda tx, number=number: add_agent(tx, f"a{number}"))
        host.write(
            lambda tx, number=number: tx.execute("UPDATE agents SET turn = 1 WHERE id = ?", (f"a{number}",))
        )
        host.end(-9)
        worker.step()
    assert len(scene.hosts) == 6
    assert not reasons(scene.place, session)


def test_a_worker_that_drains_takes_nothing_more_and_leaves_its_sessions_to_others(scene, tmp_path):
    session, _ = queued(scene.place, tmp_path), queued(scene.place, tmp_path)
    draining, other = scene.worker(slots=1), scene.worker(slots=1)
    draining.step()
    (host,) = scene.running()
    host.claim()
    draining.step()
    draining.drain()
    assert host.signals == [15]
    draining.step()
    host.end(hosts.RELEASED_EXIT)
    draining.step()
    assert draining.sessions == ()
    other.step()
    assert [one.session for one in scene.running()] == [session], "the one that waits longest"
    with closing(database.open_readonly(scene.place)) as connection:
        states = {one.id: one.state for one in workers.load_workers(Queries(connection))}
    assert states == {draining.id: "draining", other.id: "running"}


def test_a_worker_takes_only_what_fits_it_and_the_reason_is_kept(tmp_path, monkeypatch):
    place: Place = tmp_path / "w.db"
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text(
        '[permissions]\nbash = "deny"\n[mcp_servers.notes]\ncommand = "true"\n'
    )
    here = str(workspace_in(tmp_path))

    def why(
        model: str = "offline/surveyor", settings: dict[str, Any] | None = None, **needs: Any
    ) -> str | None:
        one = workers.Waiting("s", 1.0, Needs(**({"path": here} | needs)), model, settings or {})
        return why_not(one, ("gpu", "mcp:notes"), place)

    assert why(labels=("gpu", "mcp:notes")) is None
    assert why(labels=("gpu", "tpu", "arm")) == "lacks the label tpu, arm"
    assert "does not exist" in str(why(path=str(tmp_path / "nowhere")))
    assert "has no folder" in str(why(path="relative"))
    assert "ANTHROPIC_API_KEY" in str(why("anthropic/claude-sonnet-4-5"))
    assert "deny bash" in str(why(settings={"allow": ["read", "bash"]}))
    assert "is not a full commit id" in str(why(path=None, remote="https://h/x", commit="main"))

    session = queued(place, tmp_path, labels=("tpu",))
    scene = Scene(place)
    worker = scene.worker(labels=["gpu"])
    worker.step()
    assert worker.labels[0] == "gpu"
    assert "mcp:notes" in worker.labels
    assert scene.hosts == []
    with closing(database.open_readonly(place)) as connection:
        found = workers.queue_state(Queries(connection), session)
    assert found is not None
    assert [one[2] for one in found.refusals] == ["lacks the label tpu"]
    scene.close()


# --- Leaving a session, and what a move loses --------------------------------------------------------------------


async def test_a_released_session_goes_on_elsewhere_without_a_pause_and_asks_the_model_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[hosts.SessionHost] = []
    begin = hosts.SessionHost.run

    async def run(self: hosts.SessionHost, *, resume: bool) -> hosts.HostResult:
        made.append(self)
        return await begin(self, resume=resume)

    monkeypatch.setattr(hosts.SessionHost, "run", run)
    turns = []

    def work(name: str, request: Any) -> Any:
        turns.append(name)
        if len(turns) == 3:
            made[0].pause_all("drained", exit_code=hosts.RELEASED_EXIT)
        if len(turns) < 6:
            return [call("save_artifact", {"name": f"n{len(turns)}", "content": "note"}, f"t{len(turns)}")]
        return [said("done")]

    bench.start(PlannedRun([task("a")], work))
    first = await bench.run()
    assert (first.exit_code, first.status) == (hosts.RELEASED_EXIT, SessionStatus.RUNNING)
    assert {one["status"] for one in bench.state["agents"]} == {"working", "idle"}
    second = await bench.run()
    assert second.status is SessionStatus.DONE
    kinds = bench.kinds()
    assert "host.released" in kinds
    assert not {"session.paused", "agent.paused", "task.paused"} & set(kinds)
    assert len(turns) == 6, "each turn once"
    bench.assert_sound()


def test_a_move_says_which_changes_are_lost_and_tells_the_agents(tmp_path: Path) -> None:
    place: Place = tmp_path / "w.db"
    session = queued(place, tmp_path, labels=("team",))
    workspace = workspace_in(tmp_path)
    store = SessionStore.claim(place, session, SystemClock(), pid=1, host_name="a")

    def write(change: Callable[[Transaction], Any]) -> None:
        store.writer.submit(lambda group: change(Transaction(group, session, store.epoch, 1.0))).result()

    def placed(worker: str, machine: str) -> None:
        lost, commands = workers.lost_changes(store, session, workspace)
        at = Placement(worker, machine, str(workspace))
        write(lambda tx: workers.place_session(tx, at, lost, other_changes=commands))

    def change(tx: Transaction) -> None:
        add_agent(tx, "agent")
        blocks = [
            ("write", {"file_path": "kept.py", "content": "a = 1\n"}),
            ("write", {"file_path": "gone.py", "content": "b = 1\n"}),
            ("edit", {"file_path": "old.py", "old_string": "c = 1", "new_string": "c = 2"}),
            ("write", {"file_path": "/etc/passwd", "content": "not ours"}),
        ]
        content = [
            {"type": "tool_use", "id": f"t{n}", "name": name, "input": given}
            for n, (name, given) in enumerate(blocks)
        ]
        tx.execute(
            "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at) VALUES"
            " ('agent', 1, 'assistant', ?, 1, 1, 1.0)",
            (encode(content),),
        )
        for n, (name, _) in enumerate(blocks):
            tx.execute(
                "INSERT INTO tool_calls (session_id, agent_id, turn, position, seq, tool_use_id, name, idempotent,"
                " status) VALUES (?, 'agent', 1, ?, 1, ?, ?, 0, 'done')",
                (session, n, f"t{n}", name),
            )

    placed("w-1", "a")
    write(change)
    (workspace / "kept.py").write_text("a = 1\nmore = 2\n")
    (workspace / "old.py").write_text("c = 1\n")
    placed("w-2", "a")  # another worker of the same machine: nothing moved
    assert query(place, "SELECT count(*) FROM events WHERE kind = 'host.moved'") == [(0,)]
    placed("w-3", "b")
    ((data,),) = query(place, "SELECT data FROM events WHERE kind = 'host.moved'")
    assert '"lost":["gone.py","old.py"]' in data.replace(", ", ",").replace(": ", ":")
    ((agent, text),) = query(place, "SELECT agent_id, payload FROM inbox")
    assert agent == "agent"
    assert "gone.py, old.py" in text
    assert "moved from a to b" in text
    rows = Needs.load(query(place, "SELECT needs FROM sessions")[0][0]).placed
    assert rows == Placement("w-3", "b", str(workspace))
    store.close()


# --- Checkouts ----------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "remote",
    [
        "ext::sh -c touch% /tmp/x", "--upload-pack=touch /tmp/x", "-oProxyCommand=x", "ssh://-oProxyCommand=x/y", "git@-host:x",
        "git@host:-x", "https://h/a b", "https://h/\n", "http://h/x", "git://h/x", "fd::7", "https://user:secret@h/x",
        "https://token@h/x", "relative/path", "/absolute", "", "https://", "ssh://h/-x", "https://[bad/x", "file::x", "-",
    ],
)  # fmt: skip
def test_a_hostile_remote_is_refused_and_no_password_is_shown(remote: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_remote(remote, COMMIT)
    assert "secret" not in str(refused.value)
    with pytest.raises(BadInput):
        check_remote("https://h/x", f"--{COMMIT}"[:40])


@pytest.mark.parametrize(
    "remote", ["https://h/x.git", "ssh://git@h:22/x", "git@h.example:group/x.git", "file:///srv/x"]
)
def test_a_usual_remote_is_taken(remote: str) -> None:
    check_remote(remote, COMMIT)


def git(folder: Path, *arguments: str) -> str:
    options = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgSign=false"]
    done = subprocess.run(
        ["git", *options, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_checkout_is_the_commit_keeps_what_agents_change_and_is_removed_once_nothing_differs(tmp_path):
    origin, folder = tmp_path / "origin", tmp_path / "checkouts" / "s"
    origin.mkdir()
    git(origin, "init", "-q")
    (origin / "a.txt").write_text("one\n")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "one")
    commit = git(origin, "rev-parse", "HEAD")
    (origin / "a.txt").write_text("two\n")
    git(origin, "commit", "-qam", "two")
    remote = origin.as_uri()
    with pytest.raises(GitFailed):
        checkout(folder, remote, COMMIT, os.environ)
    assert list(folder.parent.iterdir()) == [], "nothing half made is left"
    assert checkout(folder, remote, commit, os.environ)
    assert (folder / "a.txt").read_text() == "one\n"
    (folder / "a.txt").write_text("changed\n")
    assert not checkout(folder, remote, commit, os.environ)
    assert (folder / "a.txt").read_text() == "changed\n"
    tidy(folder, commit)
    assert folder.exists()
    git(folder, "commit", "-qam", "changed")
    tidy(folder, commit)
    assert folder.exists(), "a commit that nobody else has"
    git(folder, "reset", "-q", "--hard", commit)
    tidy(folder, commit)
    assert not folder.exists()


def test_the_lease_of_a_dead_host_is_free_at_once_for_the_worker_that_started_it(scene, tmp_path):
    if isinstance(scene.place, Path):
        pytest.skip("a lock of SQLite ends with its process")
    session = queued(scene.place, tmp_path)
    worker, other = scene.worker(slots=1), scene.worker(slots=1)
    worker.step()
    (host,) = scene.running()
    host.claim()
    worker.step()
    host.returncode = -9  # its lease has not lapsed
    assert probe(scene.place, session) is not None
    other.step()
    assert other.sessions == ()
    worker.drain()
    worker.step()
    other.step()
    assert other.sessions == (session,)
    assert host.store is not None
    host.store.close()


async def test_a_host_that_loses_its_session_while_it_starts_ends_without_running(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its MCP servers take longer to start than its lease; another host takes the session meanwhile."""
    monkeypatch.setattr(background, "HEARTBEAT_SECONDS", 0.01)
    session = create_session(place, NewSession("goal", workspace_in(tmp_path), "offline/surveyor"))
    ended: list[McpServers] = []

    async def start(servers: McpServers) -> None:
        with closing(database.open_writable(place)) as connection:
            connection.execute("UPDATE sessions SET lease_epoch = lease_epoch + 1")
        await asyncio.Event().wait()

    async def aclose(servers: McpServers) -> None:
        ended.append(servers)

    monkeypatch.setattr(McpServers, "start", start)
    monkeypatch.setattr(McpServers, "aclose", aclose)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(Runtime(place).run(session), 30)
    assert len(ended) == 1
    assert query(place, "SELECT count(*) FROM events WHERE kind = 'host.started'") == [(0,)]
