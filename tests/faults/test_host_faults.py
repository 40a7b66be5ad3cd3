"""What the machine runs out of is never a tool's result: the call stays pending, is tried again, and the
session pauses."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import Run
from tests.support.places import query, wk
from tests.support.scripted import PlannedRun, ScriptedModel, call, last_results, said, task, turns

from watchkeeper.agents.roles import agents_md, load_roles
from watchkeeper.agents.tools.child import Child
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.interop import hooks
from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.records import errors
from watchkeeper.records.errors import HostFault, Shortage, StoreExhausted, WatchkeeperError, host_fault
from watchkeeper.records.messages import ModelRequest
from watchkeeper.runtime.config import load_config, load_workspace_config
from watchkeeper.runtime.host import HostResult
from watchkeeper.runtime.lifecycle import SessionSettings, check_workspace
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import database, driver
from watchkeeper.transcripts.export import new_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "RETRY_SECONDS", (0.01, 0.02, 0.03))


# --- what is one --------------------------------------------------------------------------------------------


def _wrapped(error: BaseException) -> BaseException:
    try:
        try:
            raise error
        except BaseException as cause:
            raise ExceptionGroup("all attempts failed", [ConnectionError("one")]) from cause
    except ExceptionGroup as group:
        return group


@pytest.mark.parametrize(
    ("error", "shortage"),
    [
        (OSError(errno.EMFILE, "x"), Shortage.OPEN_FILES),
        (OSError(errno.ENFILE, "x"), Shortage.OPEN_FILES), (OSError(errno.ENOMEM, "x"), Shortage.MEMORY),
        (MemoryError(), Shortage.MEMORY), (BlockingIOError(errno.EAGAIN, "x"), Shortage.PROCESSES),
        (RuntimeError("can't start new thread"), Shortage.THREADS),
        (OSError(errno.ENOSPC, "x"), Shortage.DISK), (OSError(errno.EDQUOT, "x"), Shortage.QUOTA),
        (OSError(errno.EFBIG, "x"), Shortage.FILE_SIZE),
        (ImportError(f"x.so: cannot open shared object file: {os.strerror(errno.EMFILE)}"),
         Shortage.OPEN_FILES), (_wrapped(OSError(errno.EMFILE, "x")), Shortage.OPEN_FILES),
        (_wrapped(BlockingIOError(errno.EAGAIN, "a socket had nothing to read")), None),
        (BlockingIOError(errno.EAGAIN, "write could not complete without blocking"), None),
        (OSError(errno.EINVAL, os.strerror(errno.EINVAL)), None), (OSError(errno.EIO, "x"), None),
        (OSError(errno.ENOENT, "x"), None), (PermissionError(errno.EACCES, "x"), None),
        (RuntimeError("x"), None), (ImportError("no module"), None),
    ],
)  # fmt: skip
def test_the_machines_shortages_are_told_from_other_faults(error, shortage):
    found = host_fault(error)
    assert (found.shortage if found else None) == shortage
    if found is not None:
        assert len(str(found).splitlines()) == 1


def _check(workspace: Path) -> None:
    check_workspace(workspace, workspace.parent / "watchkeeper.db")


@pytest.mark.parametrize("read", [load_roles, agents_md, load_config, load_workspace_config, _check])
def test_what_cannot_be_read_for_want_of_a_descriptor_is_neither_missing_nor_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    (tmp_path / ".watchkeeper" / "agents").mkdir(parents=True)
    for name in ("config.toml", ".watchkeeper/config.toml", ".watchkeeper/agents/own.md", "AGENTS.md"):
        (tmp_path / name).write_text("")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("open", "listdir"):
        monkeypatch.setattr(os, name, full)
    with pytest.raises(HostFault, match="too many open files"):
        read(tmp_path)


# --- a tool's call ------------------------------------------------------------------------------------------


class Shell(PlannedRun):
    """One coder, which runs `echo` into a ledger and reports what it was told."""

    def __init__(self, ledger: Path) -> None:
        super().__init__([task("one", role="coder")], self.act)
        self._ledger = ledger

    def act(self, name: str, request: Any) -> Any:
        if turns(request) == 0:
            return [call("bash", {"command": f"echo had >> {self._ledger}"})]
        return [said(f"told: {last_results(request)[0]['content']}")]


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "w.db", model=ScriptedModel(Shell(tmp_path / "ledger")))


def _start(runtime: Runtime, workspace: Path) -> str:
    return runtime.start("goal", workspace=workspace, settings=SessionSettings(allow=("bash",)))


async def _drive(runtime: Runtime, session: str) -> HostResult:
    return await runtime.run(session)


def _failing(monkeypatch: pytest.MonkeyPatch, times: int, error: Callable[[], Exception]) -> list[int]:
    """Let the start of a process fail so many times; returns a list that grows with each."""
    failed: list[int] = []
    real = subprocess.Popen.__init__

    def start(self: Any, *arguments: Any, **options: Any) -> None:
        if len(failed) < times:
            failed.append(1)
            self.returncode = 0
            raise error()
        real(self, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", start)
    return failed


@pytest.mark.usefixtures("short_waits")
async def test_a_worker_that_cannot_be_started_for_a_moment_costs_nothing(
    runtime: Runtime, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = _failing(
        monkeypatch, 2, lambda: BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    )
    result = await _drive(runtime, _start(runtime, workspace))
    assert (result.exit_code, len(failed)) == (0, 2)
    assert (tmp_path / "ledger").read_text() == "had\n"
    assert query(runtime.path, "SELECT status, is_error FROM tool_calls WHERE name = 'bash'") == [("done", 0)]
    kinds = query(runtime.path, "SELECT kind FROM events WHERE kind LIKE 'tool.%' AND data LIKE '%bash%'")
    again = ["tool.started", "tool.pending"]
    assert [kind for (kind,) in kinds] == [*again, *again, "tool.started", "tool.done"]


@pytest.mark.usefixtures("short_waits")
async def test_a_lasting_shortage_pauses_the_session_with_its_call_pending_and_a_resume_ends_it(
    runtime: Runtime, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _start(runtime, workspace)
    with monkeypatch.context() as short:
        _failing(short, 1_000, lambda: OSError(errno.EMFILE, "Too many open files"))
        result = await _drive(runtime, session)
    assert (result.status, result.exit_code, result.short_of) == ("paused", 5, Shortage.OPEN_FILES)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert result.reason is not None
    assert f"too many open files (limit {limit:,}); raise the limit with `ulimit -n" in result.reason
    assert result.reason.endswith(f"then `wk resume {session}`")
    assert query(runtime.path, "SELECT status, started_at, result FROM tool_calls WHERE name = 'bash'") == [
        ("pending", None, None)
    ]
    assert not (tmp_path / "ledger").exists()
    assert (await _drive(runtime, session)).exit_code == 0
    assert (tmp_path / "ledger").read_text() == "had\n"
    wrong = "SELECT kind FROM events WHERE kind IN ('tool.error', 'tool.unknown', 'task.failed')"
    assert query(runtime.path, wrong) == []


@pytest.mark.usefixtures("short_waits")
async def test_a_pause_while_a_call_waits_for_room_comes_at_once_and_leaves_it_pending(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "RETRY_SECONDS", (50.0, 50.0))
    session = _start(runtime, workspace)
    with monkeypatch.context() as short:
        failed = _failing(short, 1_000, lambda: OSError(errno.ENOMEM, "Cannot allocate memory"))
        running = asyncio.create_task(_drive(runtime, session))
        status = "SELECT status FROM tool_calls WHERE name = 'bash'"
        while not failed or query(runtime.path, status) != [("pending",)]:  # noqa: ASYNC110 - what changes is a file
            await asyncio.sleep(0.01)
        runtime.hosts[session].pause_all("enough")
        result = await asyncio.wait_for(running, 10)
    assert (result.exit_code, result.reason) == (5, "enough")
    assert (await _drive(runtime, session)).exit_code == 0


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("began", [False, True])
async def test_a_call_that_may_have_begun_is_unknown_and_one_that_did_not_runs_again(
    runtime: Runtime, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: bool
) -> None:
    real, failed = Child.call, []

    async def failing(self: Child, request: Any) -> Any:
        if request["tool"] == "bash" and not failed:
            failed.append(1)
            if began:
                await real(self, request)
            raise HostFault("the machine is out of memory", Shortage.MEMORY, began=began)
        return await real(self, request)

    monkeypatch.setattr(Child, "call", failing)
    assert (await _drive(runtime, _start(runtime, workspace))).exit_code == 0
    assert (tmp_path / "ledger").read_text() == "had\n"
    assert query(runtime.path, "SELECT status FROM tool_calls WHERE name = 'bash'") == [
        ("unknown" if began else "done",)
    ]
    told = query(runtime.path, "SELECT content FROM messages WHERE content LIKE '%told:%'")[0][0]
    assert ("outcome unknown" in told) == began


# --- a worker that meets it ---------------------------------------------------------------------------------


def _limit_workers(pool: WorkerPool, **limits: int) -> None:
    """Lower limits of the workers that live, as their system would."""
    for child in [*pool._idle, *pool._shells.children()]:
        assert isinstance(child, Child)
        for name, value in limits.items():
            number = getattr(resource, name)
            resource.prlimit(child.pid, number, (value, resource.prlimit(child.pid, number)[1]))


@pytest.mark.parametrize(
    "tool",
    [
        "grep",
        "write",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("read", "glob", "list_folder", "edit")),
    ],
)
async def test_a_file_tool_without_descriptors_says_so_and_never_answers_with_less_than_there_is(
    run: Run, pool: WorkerPool, workspace: Path, tool: str
) -> None:
    arguments: dict[str, Any] = {
        "read": {"file_path": "hello.txt"}, "grep": {"pattern": "hello"}, "glob": {"pattern": "**/*.txt"},
        "list_folder": {}, "write": {"file_path": "hello.txt", "content": "other\n"},
        "edit": {"file_path": "hello.txt", "old_string": "hello", "new_string": "other"},
    }[tool]  # fmt: skip
    before = (await run(tool, **arguments)).content if tool not in ("write", "edit") else None
    await run("write", file_path="hello.txt", content="hello\n")  # the SDK is loaded now
    _limit_workers(pool, RLIMIT_NOFILE=0)
    with pytest.raises(HostFault) as short:
        await run(tool, **arguments)
    assert (short.value.shortage, short.value.began) == (Shortage.OPEN_FILES, False)
    assert (workspace / "hello.txt").read_text() == "hello\n"
    _limit_workers(pool, RLIMIT_NOFILE=256)
    result = await run(tool, **arguments)
    assert not result.is_error
    assert before is None or result.content == before


@pytest.mark.parametrize(
    "tool", ["edit", *(pytest.param(each, marks=pytest.mark.long) for each in ("write", "new"))]
)
async def test_a_full_disk_is_the_hosts_and_costs_nothing_of_what_a_file_held(run, pool, workspace, tool):
    """The limit of a file's size stands for the end of the disk: it lets a part be written, too."""
    held = "".join(f"line {number}\n" for number in range(100))
    await run("write", file_path="held.txt", content=held)
    longer = held.replace("line", "line" * 10)
    arguments = {
        "write": {"file_path": "held.txt", "content": longer},
        "edit": {"file_path": "held.txt", "old_string": "line 99", "new_string": longer},
        "new": {"file_path": "new.txt", "content": longer},
    }[tool]
    _limit_workers(pool, RLIMIT_FSIZE=2_000)
    with pytest.raises(HostFault) as full:
        await run(tool if tool != "new" else "write", **arguments)
    assert (full.value.shortage, full.value.began) == (Shortage.FILE_SIZE, False)
    assert (workspace / "held.txt").read_text() == held
    assert not (workspace / "new.txt").exists()


async def test_a_shell_that_cannot_be_started_never_began(run, pool, workspace):
    await run("bash", command="true")
    await run("bash", restart=True)
    _limit_workers(pool, RLIMIT_NOFILE=6)
    with pytest.raises(HostFault) as short:
        await run("bash", command="touch made")
    assert not short.value.began
    assert not (workspace / "made").exists()
    _limit_workers(pool, RLIMIT_NOFILE=256)
    assert not (await run("bash", command="touch made")).is_error


async def test_what_a_models_own_command_says_of_a_shortage_stays_its_result(run: Run) -> None:
    command = "echo 'No space left on device' >&2; echo '{\"shortage\": \"disk\"}'; exit 1"
    result = await run("bash", command=command)
    assert result.is_error
    assert "No space left on device" in str(result.content)
    limited = await run("bash", command="ulimit -n 3; cat hello.txt")
    assert limited.is_error
    assert "Error 24" in str(limited.content)


async def test_a_worker_that_cannot_load_says_what_is_short(workspace, monkeypatch):
    real = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool = WorkerPool(1, workspace, os.environ)
    spawn = asyncio.base_events.BaseEventLoop.subprocess_exec

    async def limited(self: Any, factory: Any, *command: Any, **options: Any) -> Any:
        options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, real[1]))
        return await spawn(self, factory, *command, **options)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "subprocess_exec", limited)
    try:
        with pytest.raises(HostFault) as short:
            await pool._start("shell", "agent")
        assert short.value.shortage is Shortage.OPEN_FILES
    finally:
        await pool.aclose()


# --- a model's call -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("times", [2, 1_000])
async def test_a_model_that_cannot_be_reached_for_want_of_a_descriptor_is_called_again_and_then_the_session_pauses(
    runtime: Runtime, workspace: Path, tmp_path: Path, times: int
) -> None:
    model: Any = runtime._model
    script, failed = model.script, []

    def short(request: Any) -> Any:
        if len(failed) < times:
            failed.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        return script(request)

    session = _start(runtime, workspace)
    model.script = short
    result = await _drive(runtime, session)
    if times > 2:
        assert (result.exit_code, result.short_of, len(failed)) == (5, Shortage.OPEN_FILES, 4)
        model.script = script
        result = await _drive(runtime, session)
    assert result.exit_code == 0
    assert (tmp_path / "ledger").read_text() == "had\n"
    assert query(runtime.path, "SELECT status FROM model_calls WHERE status != 'done'") == []
    assert query(runtime.path, "SELECT sum(errors) FROM agents") == [(0,)]


async def test_a_socket_that_cannot_be_opened_is_no_fault_of_the_provider(monkeypatch):
    model = AnthropicModel("claude-test", api_key="a key of a test", base_url="http://127.0.0.1:9")
    request = ModelRequest(system="", messages=[{"role": "user", "content": "hello"}])

    def no_socket(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    await model._connected()
    monkeypatch.setattr(socket, "socket", no_socket)
    with pytest.raises(HostFault) as short:
        async for _ in model.stream(request):
            pass
    monkeypatch.undo()
    assert short.value.shortage is Shortage.OPEN_FILES
    await model.close()


# --- the command line ---------------------------------------------------------------------------------------


def _wk(
    path: Path, *arguments: str, limit: int | None = None, of: int = resource.RLIMIT_NOFILE
) -> subprocess.CompletedProcess[str]:
    def lower() -> None:
        if limit is not None:
            resource.setrlimit(of, (limit, resource.getrlimit(of)[1]))

    return wk(path, *arguments, "--headless", preexec_fn=lower)


@pytest.mark.parametrize("limit", [18, *(pytest.param(each, marks=pytest.mark.long) for each in (24, 32))])
def test_a_run_with_too_few_descriptors_pauses_with_one_line_and_ends_once_it_has_enough(
    tmp_path: Path, workspace: Path, limit: int
) -> None:
    path = tmp_path / "w.db"
    paused = _wk(path, "demo", "--speed", "max", "--workspace", str(workspace), limit=limit)
    assert paused.returncode == 5, paused.stderr
    lines = paused.stderr.splitlines()
    assert len(lines) == 1, paused.stderr
    assert (
        f"too many open files (limit {limit}); raise the limit with `ulimit -n 1024`, then `wk resume "
        in lines[0]
    )
    assert query(path, "SELECT status FROM sessions") == [("paused",)]
    wrong = "SELECT kind FROM events WHERE kind IN ('tool.error', 'task.failed', 'session.failed')"
    assert query(path, wrong) == []
    resumed = _wk(path, "resume", query(path, "SELECT id FROM sessions")[0][0])
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert query(path, "SELECT status FROM sessions") == [("done",)]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="without it, no probe is written")
@pytest.mark.parametrize(("number", "shortage"), [(errno.EDQUOT, Shortage.QUOTA), (errno.EIO, None)])
def test_an_io_error_of_a_database_whose_folder_takes_no_more_is_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, shortage: Shortage | None
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    (tmp_path / "w.db").write_bytes(b"")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    assert driver.shortage(tmp_path / "w.db", error) is None
    monkeypatch.setattr(os, "pwrite", refuse)
    assert driver.shortage(tmp_path / "w.db", error) == shortage


@pytest.mark.parametrize(
    ("name", "number", "shortage"),
    [
        ("SQLITE_IOERR", errno.ENOSPC, Shortage.DISK), ("SQLITE_IOERR_FSYNC", errno.EDQUOT, Shortage.QUOTA),
        ("SQLITE_IOERR", errno.EINVAL, None), ("SQLITE_IOERR_SHMMAP", errno.EINVAL, None),
        ("SQLITE_IOERR_SHMSIZE", errno.EIO, None), ("SQLITE_CANTOPEN", errno.EMFILE, Shortage.OPEN_FILES),
        ("SQLITE_CANTOPEN", errno.EINVAL, None),
    ],
)  # fmt: skip
def test_what_the_system_said_decides_what_an_error_of_sqlite_is(
    tmp_path: Path, name: str, number: int, shortage: Shortage | None
) -> None:
    path = tmp_path / "w.db"
    path.write_bytes(b"")
    error: Any = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname, error.system_errno = name, number
    assert driver.shortage(path, error) == shortage
    if shortage is None:
        assert os.strerror(number) in driver.explain(path, error)


def _export(folder: Path) -> None:
    with new_file(folder / "page.html") as file:
        file.write("text")


def _change_settings(folder: Path) -> None:
    hooks._write(folder / "settings.json", b"{}")


def _back_up(folder: Path) -> None:
    with closing(database.open_writable(folder / "w.db")) as connection:
        database.copy_database(connection, folder / "w.db", folder / "copy.db")


@pytest.mark.parametrize("write", [_export, _change_settings, _back_up])
@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk is full; free some space"), (errno.EDQUOT, "the disk quota is used up"),
        (errno.EINVAL, os.strerror(errno.EINVAL)),
    ],
)  # fmt: skip
def test_the_sync_of_a_file_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], number: int, says: str
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WatchkeeperError) as failed:
        write(tmp_path)
    assert says in str(failed.value)
    assert ("space" in str(failed.value)) is (number != errno.EINVAL)


def test_a_backup_that_finds_no_room_names_the_copy_and_the_limit(tmp_path: Path) -> None:
    path, copy = tmp_path / "w.db", tmp_path / "copy.db"
    database.open_writable(path).close()

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    (line,) = wk(path, "backup", str(copy), preexec_fn=lower).stderr.splitlines()
    assert f"{copy}: a file would exceed the size limit of this process" in line


WRITES_TOO_MUCH = """
import errno, resource, sys
from watchkeeper.store import database, driver
from watchkeeper.transcripts.export import new_file
connection = driver.sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE t (x)")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    with driver.writing(connection, "test"):
        connection.execute("INSERT INTO t VALUES (zeroblob(1000000))")
except driver.sqlite3.OperationalError as error:
    sys.exit(0 if error.system_errno == errno.EFBIG else f"{error} {error.system_errno}")
"""


def test_an_io_error_of_sqlite_carries_what_the_system_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_TOO_MUCH, str(tmp_path / "w.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="without it, no probe is written")
def test_a_database_that_may_not_grow_is_the_hosts_and_goes_on_once_it_may(
    tmp_path: Path, workspace: Path
) -> None:
    """As with a quota, SQLite says no more than `disk I/O error`."""
    path = tmp_path / "w.db"
    started = ("demo", "--speed", "max", "--workspace", str(workspace))
    assert _wk(path, *started).returncode == 0
    stopped = _wk(path, *started, limit=200_000, of=resource.RLIMIT_FSIZE)
    assert stopped.returncode == 5, stopped.stderr
    (line,) = stopped.stderr.splitlines()
    assert (
        "a file would exceed the size limit of this process; raise the limit with `ulimit -f`, then `wk resume "
        in line
    )
    assert _wk(path, "resume", "last").returncode == 0


def test_a_store_that_is_exhausted_is_unusable_and_the_hosts() -> None:
    fault = StoreExhausted("w.db: the disk is full", Shortage.DISK)
    assert (fault.exit_code, host_fault(fault)) == (2, fault)


# --- the n-th call of a run ---------------------------------------------------------------------------------


@pytest.mark.timeout(360)  # four runs, beside other tests
def test_wherever_the_machine_runs_out_of_something_a_run_ends_done_or_paused_and_resumable() -> None:
    """A sample of `python -m tests.faults.host_faults`, which tries every call to the 100th of each kind."""
    command = [sys.executable, "-m", "tests.faults.host_faults", "--sample", "4", "--seed", "1", "--forked"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=330, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "4 trials" in done.stdout
    assert " 0 failed" in done.stdout
