"""Worktrees: agents beside each other in one repository, and their merges, with real git."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agents.scene import assert_no_half_merge, git, merging, repository
from tests.core.runtime.conftest import Bench, Ground
from tests.support.agent_rows import create_agent
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.agents.roles import load_roles
from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult
from watchkeeper.agents.worktrees import GitFailed, MergeConflict, MergeTool, Worktrees
from watchkeeper.cli.app import run
from watchkeeper.records.errors import HostFault, host_fault
from watchkeeper.records.messages import ModelRequest
from watchkeeper.records.ports import ManualClock
from watchkeeper.records.states import TaskStatus
from watchkeeper.store import agents, faultpoints, plans
from watchkeeper.store.commands import load_question
from watchkeeper.store.database import open_readonly
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction

ROLES = load_roles(Path("/nowhere"))


class Crash(BaseException):
    """Stands for a kill -9: nothing after it runs, but `finally`."""


class Scene:
    """A repository with one commit, and a session whose workspace it is."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.ground = Ground(folder)
        self.workspace = Path(self.ground.store.one("SELECT workspace FROM sessions")[0])
        git(self.workspace, "init", "-q", "-b", "main")
        (self.workspace / "a.txt").write_text("one\ntwo\nthree\n")
        (self.workspace / "b.txt").write_text("b\n")
        git(self.workspace, "add", "-A")
        git(self.workspace, "commit", "-q", "-m", "begin")
        self.ground.write(lambda tx: plans.create_plan(tx, "plan", "goal"))
        self.trees = self.again()

    def again(self) -> Worktrees:
        """As a new host has it."""
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        return Worktrees(self.ground.store, self.workspace, environ, lambda text: text)

    def task(self, name: str, *, after: tuple[str, ...] = (), **about: Any) -> Task:
        if plans.load_task(self.ground.store, name) is None:

            def add(tx: Transaction) -> None:
                plans.add_task(
                    tx, task_id=name, plan_id="plan", name=name, position=len(name), title=f"Do {name}", instructions="",
                    role="coder", model=None, expected_outputs=[], **about,
                )  # fmt: skip
                plans.set_dependencies(tx, name, after)

            self.ground.write(add)
        task = plans.load_task(self.ground.store, name)
        assert task is not None
        return replace(task, status=TaskStatus.DONE)

    async def open(self, name: str, *, program: bool = True, **about: Any) -> Path:
        return await self.trees.open(self.task(name, **about), ROLES["coder"], program=program)

    async def merge(self, name: str) -> str:
        return await self.trees.merge(self.task(name))

    async def call_merge(self, name: str, keep: str = "", answered: str = "") -> ToolResult:
        """The planner's tool, after a person answered the question with that digest."""
        self.task(name)
        arguments = {"task": name} | ({"keep": keep} if keep else {})
        context = ToolContext("s", "planner", None, self.workspace, subject_digest=answered)
        return await MergeTool(self.trees, self.ground.store).run(arguments, context)

    def kinds(self) -> list[str]:
        return [row[0] for row in self.ground.store.all("SELECT kind FROM events ORDER BY seq")]

    def warnings(self) -> str:
        rows = self.ground.store.all("SELECT data FROM events WHERE kind = 'host.warning'")
        return "\n".join(row[0] for row in rows)

    def state(self) -> tuple[str, dict[str, str]]:
        """The user's folder: `git status`, and its files."""
        files = {
            str(file.relative_to(self.workspace)): file.read_text()
            for file in sorted(self.workspace.rglob("*"))
            if file.is_file() and ".git" not in file.parts
        }
        return git(self.workspace, "status", "--porcelain"), files


def conflicting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, by_tools: bool = False, **settings: Any
) -> Bench:
    """A planner that merges two coders whose changes conflict."""
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(folder / "config"))
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = u\nemail = u@h\n")
    monkeypatch.setenv("HOME", str(home))
    bench = Bench(folder)
    repository(bench.workspace)
    bench.start(partial(merging, by_tools=by_tools), allow=("write", "bash"), **settings)
    return bench


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    faultpoints.tell(None)
    made.ground.close()


async def test_three_writers_are_merged_one_after_the_other(scene):
    before = scene.state()
    for name, line in (("x", "one"), ("y", "two"), ("z", "three")):
        folder = await scene.open(name)
        text = (folder / "a.txt").read_text()
        (folder / "a.txt").write_text(text.replace(line, f"{line}\n{line} by {name}\n-\n-\n-\n"))
        (folder / f"{name}.txt").write_text(name)
    assert scene.state() == before
    for name in "xyz":
        assert "is merged into main" in await scene.merge(name)
    status, files = scene.state()
    assert status == ""
    assert {"x.txt", "y.txt", "z.txt"} <= set(files)
    assert all(line in files["a.txt"] for line in ("one by x", "two by y", "three by z"))
    assert await scene.merge("x") == await scene.merge("x")


async def test_a_conflict_changes_nothing_and_a_joining_task_resolves_it(scene):
    for name in ("x", "y"):
        folder = await scene.open(name)
        (folder / "a.txt").write_text(f"{name}\n")
    await scene.merge("x")
    before, head = scene.state(), git(scene.workspace, "rev-parse", "HEAD")
    result = await scene.call_merge("y")
    assert result.is_error
    assert "<<<<<<<" in result.content
    assert "add a task that depends on y" in result.content
    assert (scene.state(), git(scene.workspace, "rev-parse", "HEAD")) == (before, head)

    joined = await scene.open("join", after=("y",), program=False)
    assert "resolve these first" in scene.trees.note_for(scene.task("join"))
    with pytest.raises(GitFailed, match="markers"):
        await scene.merge("join")
    assert scene.state() == before
    (joined / "a.txt").write_text("x and y\n")
    await scene.merge("join")
    assert scene.state() == ("", before[1] | {"a.txt": "x and y\n"})
    assert "merged" in await scene.merge("y")


@pytest.mark.parametrize(
    ("kind", "side"),
    [("text", "ours"), ("latin-1", "theirs"), ("binary", "theirs"), ("deleted", "ours"), ("deleted", "theirs"),
     ("added", "ours"), ("mode", "theirs"), ("rename", "ours")],
)  # fmt: skip
async def test_a_person_keeps_one_side_of_a_conflict_and_both_of_the_rest(scene, kind, side):
    """Whatever the conflict is of, also in a name and a text that are no UTF-8."""
    name = b"\xe9 a.txt" if kind == "latin-1" else b"c.txt"
    file = Path(os.fsdecode(os.path.join(os.fsencode(scene.workspace), name)))
    many = "".join(f"{number}\n" for number in range(20))
    began = {"binary": b"\0began", "latin-1": b"\xe9\n"}.get(kind, many.encode())
    if kind != "added":
        file.write_bytes(began)
    git(scene.workspace, "add", "-A")
    git(scene.workspace, "commit", "-q", "--allow-empty", "-m", "more")
    for writer in ("ours", "theirs"):
        folder = await scene.open(writer)
        own = folder / file.name
        (folder / f"{writer}.txt").write_text(writer)
        mark = f"by {writer}\n".encode()
        if kind in ("text", "mode"):
            low = "1\n2\n" if writer == "ours" else "18\n19\n"
            own.write_bytes(began.replace(b"10\n", mark).replace(low.encode(), b"+" + low.encode()))
            if kind == "mode":
                own.chmod(0o755)
        elif kind == "rename" and writer == "ours":
            own.rename(folder / "renamed.txt")
            (folder / "renamed.txt").write_bytes(began.replace(b"10\n", mark))
        elif kind == "deleted" and writer == "ours":
            own.unlink()
        else:
            own.write_bytes(began.replace(b"10\n", mark) if kind == "rename" else began[:1] + mark)
    await scene.merge("ours")
    before, head = git(scene.workspace, "status", "--porcelain"), git(scene.workspace, "rev-parse", "HEAD")
    asked = (await scene.call_merge("theirs")).question
    assert asked is not None
    told = json.dumps(asked.arguments)
    assert "Do ours" in told
    assert "Do theirs" in told
    assert (await scene.call_merge("theirs", side)).question == asked  # a planner's own choice does not count
    assert (await scene.call_merge("theirs", side, "of another conflict")).question == asked
    assert (await scene.call_merge("theirs", "", asked.digest)).question is None  # left to the planner
    assert (git(scene.workspace, "status", "--porcelain"), git(scene.workspace, "rev-parse", "HEAD")) == (
        before,
        head,
    )

    result = await scene.call_merge("theirs", side, asked.digest)
    assert not result.is_error, result.content
    assert before == git(scene.workspace, "status", "--porcelain") == ""
    assert (scene.workspace / "theirs.txt").exists()
    assert (scene.workspace / "ours.txt").exists()
    if kind == "rename":
        file = scene.workspace / "renamed.txt"
    assert file.exists() is not (kind == "deleted" and side == "ours")
    held = file.read_bytes() if file.exists() else b"by ours"
    assert f"by {side}".encode() in held
    assert b"<<<<<<<" not in held
    if kind in ("text", "mode"):
        assert b"+1\n" in held
        assert b"+18\n" in held


async def test_of_very_many_conflicts_the_first_are_shown_and_all_are_named_and_merged(scene, monkeypatch):
    monkeypatch.setattr("watchkeeper.agents.worktrees.MOST_SHOWN", 1)
    names = ("a.txt", "b.txt", "c.txt")
    for writer in ("x", "y"):
        folder = await scene.open(writer)
        for name in names:
            (folder / name).write_text(f"{writer}\n")
    await scene.merge("x")
    asked = (await scene.call_merge("y")).question
    assert asked is not None
    shown, more = asked.arguments["conflicts"]
    assert shown["file"] == "a.txt"
    assert (more["file"], more["text"]) == ("2 more files", "b.txt\nc.txt")
    await scene.call_merge("y", "theirs", asked.digest)
    assert [(scene.workspace / name).read_text() for name in names] == ["y\n"] * 3


async def test_a_task_begins_with_the_work_that_it_depends_on(scene):
    for name in ("x", "y"):
        (await scene.open(name) / f"{name}.txt").write_text(name)
    folder = await scene.open("z", after=("x", "y"), program=False)
    assert (folder / "x.txt").read_text() + (folder / "y.txt").read_text() == "xy"
    await scene.trees.refresh("z")
    tree = agents.load_worktree(scene.ground.store, "z")
    assert tree is not None
    assert (tree.files_changed, tree.diff) == (0, "")


async def test_a_git_that_finds_the_disk_full_is_the_hosts_fault_and_no_result(scene, tmp_path):
    (await scene.open("x") / "x.txt").write_text("x")
    full = tmp_path / "git"
    full.write_text(
        "#!/bin/sh\necho 'fatal: unable to write new index file: No space left on device' >&2; exit 128\n"
    )
    full.chmod(0o755)
    real, short = scene.trees, {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(scene.home)}
    scene.trees = Worktrees(scene.ground.store, scene.workspace, short, lambda text: text)
    with pytest.raises(HostFault, match="the disk is full"):
        await scene.call_merge("x")
    with pytest.raises(GitFailed) as refused:
        await scene.open("y")
    assert host_fault(refused.value)
    scene.trees = real
    assert "is merged into main" in await scene.merge("x")


async def test_what_the_user_has_not_committed_stays_and_is_never_overwritten(scene):
    (scene.workspace / "a.txt").write_text("mine\n")
    (scene.workspace / "new.txt").write_text("mine too\n")
    folder = await scene.open("x")
    assert "2 uncommitted files in your folder" in scene.warnings()
    (folder / "a.txt").write_text("theirs\n")
    before = scene.state()
    with pytest.raises(GitFailed, match=r"a\.txt"):
        await scene.merge("x")
    git(folder, "checkout", "-q", "HEAD~1", "--", "a.txt")
    (folder / "new.txt").write_text("theirs\n")
    with pytest.raises(GitFailed, match=r"new\.txt"):
        await scene.merge("x")
    assert scene.state() == before
    (folder / "new.txt").unlink()
    (folder / "b.txt").write_text("b2\n")
    await scene.merge("x")
    assert scene.state()[1] == before[1] | {"b.txt": "b2\n"}
    assert (scene.workspace / "a.txt").read_text() == "mine\n"


async def test_an_ignored_file_of_the_user_is_not_overwritten(scene):
    (scene.workspace / ".git/info/exclude").write_text("secret.env\n")
    (scene.workspace / "secret.env").write_text("mine\n")
    folder = await scene.open("x")
    (folder / "secret.env").write_text("theirs\n")
    git(folder, "add", "-f", "secret.env")
    with pytest.raises(GitFailed):
        await scene.merge("x")
    assert (scene.workspace / "secret.env").read_text() == "mine\n"


@pytest.mark.parametrize("conflicting", [False, True])
async def test_a_kill_between_any_two_git_commands_loses_nothing(scene, conflicting):
    """Work, two merges and the end of the session, killed at each git command and each commit of a row in turn: the
    user's folder is as it was or merged, and what an agent wrote is in its worktree, on its branch or merged."""
    killed = 0

    def whole(state: tuple[str, dict[str, str]]) -> bool:
        status, files = state
        first = files["a.txt"] in ("one\ntwo\nthree\n", "from x\n", "from y\n")
        return status == "" and first

    def kept(name: str, text: str) -> bool:
        refs = git(scene.workspace, "for-each-ref", "--format=%(refname)").split()
        tree = agents.load_worktree(scene.ground.store, name)
        places = [Path(tree.folder)] if tree is not None else []
        return any((place / f"{name}.txt").is_file() for place in places) or any(
            subprocess.run(["git", "cat-file", "-e", f"{ref}:{name}.txt"], cwd=scene.workspace, check=False, capture_output=True)
            .returncode == 0
            for ref in refs
        )  # fmt: skip

    written: set[str] = set()

    async def work() -> None:
        scene.trees = scene.again()
        await scene.trees.recover()
        assert whole(scene.state())
        for name in ("x", "y"):
            folder = await scene.open(name)
            if name not in written:
                (folder / f"{name}.txt").write_text(name)
                if conflicting or name == "x":
                    (folder / "a.txt").write_text(f"from {name}\n")
                written.add(name)
        for name in ("x", "y"):
            try:
                await scene.merge(name)
            except MergeConflict:
                assert conflicting
                assert name == "y"
        await scene.trees.end()

    for step in range(1 + conflicting, 400, 2):
        count = 0

        def tell(point: str, step: int = step) -> None:
            nonlocal count
            if point.startswith("worktree."):
                count += 1
                if count == step:
                    raise Crash

        faultpoints.tell(tell)
        try:
            await work()
        except Crash:
            killed += 1
        else:
            break
        finally:
            faultpoints.tell(None)
        assert whole(scene.state())
        assert all(kept(name, name) for name in written)
    assert killed > 10
    status, files = scene.state()
    assert files["x.txt"] == "x"
    assert status == ""
    assert ("y.txt" in files) is not conflicting
    assert kept("y", "y")


@pytest.mark.parametrize("moment", ["before", "files", "index", "branch"])
async def test_a_git_that_was_killed_in_the_middle_of_a_merge_leaves_no_half(scene, moment):
    folder = await scene.open("x")
    (folder / "a.txt").write_text("from x\n")
    (folder / "b.txt").unlink()
    (folder / "new.txt").write_text("new\n")
    (scene.workspace / "user.txt").write_text("the user's\n")
    before = scene.state()

    def stop(point: str) -> None:
        if point == "worktree.merging":
            raise Crash

    faultpoints.tell(stop)
    with pytest.raises(Crash):
        await scene.merge("x")
    faultpoints.tell(None)
    tree = agents.load_worktree(scene.ground.store, "x")
    assert tree is not None
    assert tree.merge_commit is not None
    if moment == "files":
        (scene.workspace / ".git/index.lock").touch()
        (scene.workspace / "a.txt").write_text("from")
        (scene.workspace / "b.txt").unlink()
        (scene.workspace / "new.txt").write_text("new\n")
    elif moment != "before":
        git(scene.workspace, "read-tree", "-m", "-u", "HEAD", tree.merge_commit)
        if moment == "branch":
            git(scene.workspace, "update-ref", "HEAD", tree.merge_commit)
    await scene.again().recover()
    done = moment in ("index", "branch")
    merged = {"a.txt": "from x\n", "new.txt": "new\n", "user.txt": "the user's\n"}
    assert scene.state() == (("?? user.txt", merged) if done else before)
    await scene.merge("x")
    assert scene.state() == ("?? user.txt", merged)


async def test_the_end_of_a_session_deletes_only_what_is_committed_and_merged(scene):
    folders = {name: await scene.open(name) for name in ("merged", "waiting", "ignored")}
    (scene.workspace / ".git/info/exclude").write_text("*.log\n")
    for name, folder in folders.items():
        (folder / f"{name}.txt").write_text(name)
    (folders["ignored"] / "run.log").write_text("kept\n")
    await scene.merge("merged")
    await scene.merge("ignored")
    await scene.trees.end()
    assert [name for name, folder in folders.items() if folder.exists()] == ["waiting", "ignored"]
    waiting = agents.load_worktree(scene.ground.store, "waiting")
    assert waiting is not None
    assert git(scene.workspace, "show", f"{waiting.branch}:waiting.txt") == "waiting"
    assert f"git merge {waiting.branch}" in scene.warnings()
    branches = git(scene.workspace, "branch", "--list", "watchkeeper/*")
    assert "merged" not in branches


async def test_a_worktree_is_found_again_or_made_again(scene):
    folder = await scene.open("x")
    (folder / "x.txt").write_text("x")
    assert await scene.again().open(scene.task("x"), ROLES["coder"], program=True) == folder
    (folder / ".git").unlink()
    await scene.again().ensure("x")
    assert git(folder, "status", "--porcelain") == "?? x.txt"
    shutil.rmtree(folder)
    await scene.again().ensure("x")
    assert (folder / "a.txt").is_file()
    assert scene.state()[0] == ""


async def test_nothing_of_the_repository_runs(scene):
    hooks = scene.workspace / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    ran = scene.workspace.parent / "ran"
    for name in (
        "pre-commit", "post-commit", "post-checkout", "post-merge", "reference-transaction", "commit-msg",
    ):  # fmt: skip
        (hooks / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (hooks / name).chmod(0o755)
    git(scene.workspace, "config", "core.fsmonitor", f"touch {ran}; false")
    folder = await scene.open("x")
    (folder / "x.txt").write_text("x")
    await scene.trees.refresh("x")
    await scene.merge("x")
    assert not ran.exists()
    git(scene.workspace, "config", "filter.evil.clean", f"touch {ran}; cat")
    (await scene.open("x") / ".gitattributes").write_text("* filter=evil\n")
    with pytest.raises(GitFailed, match=r"filter\.evil\.clean"):
        await scene.merge("x")
    assert await scene.open("y") == scene.workspace
    assert "filter.evil.clean" in scene.warnings()
    assert not ran.exists()


async def test_a_repository_inside_a_worktree_is_not_merged_without_its_files_and_not_deleted(scene):
    """One that an agent made, and the empty place of a submodule: git looks into neither."""
    head = git(scene.workspace, "rev-parse", "HEAD")
    git(scene.workspace, "update-index", "--add", "--cacheinfo", f"160000,{head},lib")
    git(scene.workspace, "commit", "-q", "-m", "a submodule")
    inner, folder = await scene.open("inner") / "vendor", await scene.open("x")
    for place in (inner, inner.parent / "new"):
        place.mkdir()
        git(place, "init", "-q")
        (place / "v.txt").write_text("v")
    git(inner, "add", "-A")
    git(inner, "commit", "-q", "-m", "v")
    (inner.parent / "i.txt").write_text("i\n")
    await scene.trees.refresh("inner")
    tree = agents.load_worktree(scene.ground.store, "inner")
    assert tree is not None
    assert "+++ b/i.txt" in tree.diff
    with pytest.raises(GitFailed, match=r"vendor/ .*separate git repository"):
        await scene.merge("inner")
    (folder / "x.txt").write_text("x")
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib/unseen.txt").write_text("u")
    await scene.merge("x")
    await scene.trees.end()
    assert (inner / "v.txt").exists()
    assert (folder / "lib/unseen.txt").exists()
    assert "the submodule path" in scene.warnings()


async def test_the_users_own_git_configuration_stops_no_merge(scene):
    hooks = scene.home / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "commit-msg", "post-checkout", "post-merge", "reference-transaction"):
        (hooks / name).write_text("#!/bin/sh\nsleep 600\nexit 1\n")
        (hooks / name).chmod(0o755)
    (scene.home / ".gitconfig").write_text(
        f"[user]\nname=n\nemail=n@h\n[commit]\ngpgsign=true\n[gpg]\nprogram=/bin/false\n[color]\nui=always\n"
        f"[core]\nhooksPath={hooks}\nautocrlf=true\nsafecrlf=true\npager=sleep 600\n[merge]\nff=false\n"
        "[diff]\nnoprefix=true\nexternal=/bin/false\n[status]\nshowUntrackedFiles=no\n"
    )
    for name in ("x", "y"):
        folder = await scene.open(name)
        (folder / f"{name}.txt").write_bytes(b"lf\ncrlf\r\n")
        (folder / "a.txt").write_bytes(f"{name}\r\n".encode())
    await scene.trees.refresh("x")
    tree = agents.load_worktree(scene.ground.store, "x")
    assert tree is not None
    assert "+++ b/a.txt\n" in tree.diff
    await scene.merge("x")
    asked = (await scene.call_merge("y")).question
    assert asked is not None
    assert "is merged" in str((await scene.call_merge("y", "theirs", asked.digest)).content)
    assert (scene.workspace / "a.txt").read_bytes() == b"y\r\n"
    await scene.trees.end()
    assert list(scene.trees._store.path.parent.glob("worktrees/*-*")) == []


async def test_the_diff_has_new_files_and_survives_hostile_names(scene):
    folder = await scene.open("x")
    (folder / "a.txt").write_text("one\n\x1b[31mred\n")
    (folder / "new\x1b]0;title\x07.txt").write_text("new\n")
    (folder / "big.bin").write_bytes(os.urandom(3_000_000))
    os.mkfifo(folder / "fifo")
    await scene.trees.refresh("x")
    tree = agents.load_worktree(scene.ground.store, "x")
    assert tree is not None
    assert tree.files_changed == 3
    assert "+new" in tree.diff
    assert git(folder, "diff", "--cached", "--name-only") == ""
    assert len(tree.diff) < 10_000


@pytest.mark.parametrize(
    ("about", "role", "program", "isolated"),
    [
        ({}, "coder", True, True), ({}, "coder", False, False), ({}, "explorer", True, False),
        ({"isolation": "none"}, "coder", True, False), ({"isolation": "worktree"}, "coder", False, True),
    ],
)  # fmt: skip
async def test_who_gets_a_worktree(scene, about, role, program, isolated):
    task = scene.task("x", **about)
    folder = await scene.trees.open(task, ROLES[role], program=program)
    assert (folder != scene.workspace) is isolated


async def test_a_workspace_below_the_top_of_its_repository(scene, monkeypatch):
    inner = scene.workspace / "packages/inner"
    inner.mkdir(parents=True)
    scene.workspace = inner
    assert await scene.again().open(scene.task("x"), ROLES["coder"], program=True) == inner
    assert "does not contain the workspace folder" in scene.warnings()
    (inner / "i.txt").write_text("i\n")
    git(inner, "add", "-A")
    git(inner, "commit", "-q", "-m", "inner")
    scene.trees = scene.again()
    folder = await scene.open("y")
    assert (folder / "i.txt").is_file()
    (folder / "j.txt").write_text("j\n")
    await scene.merge("y")
    assert (inner / "j.txt").is_file()


async def test_two_agents_that_write_one_file_without_git_are_named(scene):
    def create(tx: Transaction) -> None:
        for one in ("p", "q"):
            create_agent(tx, one, name=one, role="coder")

    scene.ground.write(create)
    for agent, path in (
        ("p", "a.txt"), ("p", "a.txt"), ("q", "b.txt"), ("q", str(scene.workspace / "a.txt")),
        ("p", "a.txt"),
    ):  # fmt: skip
        await scene.trees.wrote(agent, agent, None, path)
    assert scene.warnings().count("both write") == 1


async def test_the_diff_is_shown_by_the_command_without_control_characters(scene):
    from click.testing import CliRunner

    from watchkeeper.cli.app import wk

    folder = await scene.open("x")
    (folder / "a.txt").write_text("\x1b[31mred\n")
    await scene.trees.refresh("x")
    database = ["--db", str(scene.ground.store.path)]
    shown = CliRunner().invoke(wk, ["artifacts", "--diff", scene.ground.session, "x", *database]).output
    assert "1 file, ready, branch watchkeeper/" in shown
    assert "-two" in shown
    assert "red" in shown
    assert "\x1b" not in shown


async def test_a_program_that_plans_waits_for_the_answer_with_as_many_calls_as_it_takes(scene, monkeypatch):
    """Programs give a call up after a while; the question stays the same one, and so does an answer that came meanwhile."""
    from types import SimpleNamespace

    from watchkeeper.agents.backends import tool_server
    from watchkeeper.agents.environment import LoopSettings
    from watchkeeper.agents.limits import AgentControl
    from watchkeeper.records.states import ApprovalStatus
    from watchkeeper.store import agents, commands

    for name in ("x", "y"):
        (await scene.open(name) / "a.txt").write_text(f"{name}\n")
    await scene.merge("x")
    store: Any = scene.ground.store
    ids, turns = iter("123456789"), iter(range(1, 9))
    environment: Any = SimpleNamespace(
        store=store, settings=LoopSettings(), new_id=lambda: next(ids), redact=lambda value: value, decisions={},
        live=SimpleNamespace(show=lambda *words: None), clock=ManualClock(), session_id="s", workspace=scene.workspace,
        tools={"merge_task": MergeTool(scene.trees, store)}, tools_of=lambda role: ["merge_task"], watched=lambda: False,
        permission=lambda name: Permission.ALLOW, folder_of=lambda task: scene.workspace,
    )  # fmt: skip

    def begin(tx: Transaction) -> None:
        create_agent(tx, "p", name="planner", role="planner")

    def call(tx: Transaction) -> None:
        (row,) = agents.add_intents(
            tx, "p", next(turns), 1, [("u", "mcp__watchkeeper__merge_task", False, "d")]
        )
        agents.start_tool_call(tx, row)

    scene.ground.write(begin)
    agent: Any = SimpleNamespace(id="p", name="planner", role="planner", task_id=None)
    server = tool_server.ToolServer()
    server.use(environment)
    server._controls["p"] = AgentControl()
    monkeypatch.setattr(tool_server, "WAIT_SECONDS", 0.05)
    for _ in range(2):
        scene.ground.write(call)
        assert "has not answered the approval request yet" in str(
            (await server.call(agent, "merge_task", {"task": "y"})).content
        )
        assert store.one("SELECT status FROM agents WHERE id = 'p'")[0] == "working"
    ((number, status),) = store.all("SELECT id, status FROM approvals")
    assert status == "waiting"
    keep = {"task": "y", "keep": "theirs"}
    approved = ApprovalStatus.APPROVED
    scene.ground.write(
        lambda tx: commands.decide_approval(tx, number, approved, "me", None, edited_input=keep)
    )
    scene.ground.write(call)
    assert "conflicts resolved with theirs" in str(
        (await server.call(agent, "merge_task", {"task": "y"})).content
    )
    assert len(store.all("SELECT id FROM approvals")) == 1
    assert (scene.workspace / "a.txt").read_text() == "y\n"


async def test_a_failed_session_keeps_its_worktrees_and_a_pruned_one_what_is_not_merged(scene):
    from watchkeeper.agents.worktrees import clean_up

    folder = await scene.open("x")
    (folder / "x.txt").write_text("x")
    tree = agents.load_worktree(scene.ground.store, "x")
    assert tree is not None
    assert "not committed" in clean_up(tree, os.environ)
    await scene.merge("x")
    assert clean_up(tree, os.environ) == ""
    assert not folder.exists()
    assert clean_up(tree, os.environ) == ""


async def test_agents_of_our_own_loop_write_in_their_worktrees_and_a_person_answers_a_conflict(
    tmp_path, monkeypatch
):
    """Asked once, though the host pauses in front of the question; `wk` shows all of it."""
    from click.testing import CliRunner

    from watchkeeper.cli.app import wk

    bench = conflicting(tmp_path, monkeypatch, by_tools=True, approval_timeout_seconds=None)

    async def pause() -> None:
        await bench.waiting()
        bench.submit("pause", payload={"now": True})

    assert (await bench.run_while(pause)).exit_code == 5
    assert_no_half_merge(bench.workspace)
    (question,) = bench.state["approvals"]

    def command(*words: str) -> str:
        result = CliRunner().invoke(wk, [*words, "--db", str(bench.path)])
        return f"{result.output}{result.exception or ''}"

    shown = command("approve", "--show", question["id"])
    for part in ("wants to merge q, which has conflicts", "conflict in a.txt", "u: p: Do p", "u: q: Do q", "<<<<<<< ours (main)",
                 "by p", ">>>>>>> theirs (watchkeeper/", "by q", "--keep ours"):  # fmt: skip
        assert part in shown
    assert "--keep" in command("approve", question["id"], "--edit", "{}")
    command("approve", question["id"], "--keep", "theirs")
    result = await bench.run()
    assert result.status == "done", result
    assert bench.query("SELECT 1 FROM messages WHERE content LIKE '%conflicts resolved with theirs%'")
    assert len(bench.state["approvals"]) == 1
    assert (bench.workspace / "a.txt").read_text() == "by q\n"
    assert (bench.workspace / "p.txt").read_text() + (bench.workspace / "q.txt").read_text() == "pq"
    for name in ("p", "q"):
        assert str(tmp_path / "worktrees") in (bench.workspace / f"{name}.where").read_text()
    assert list((tmp_path / "worktrees").iterdir()) == [tmp_path / "worktrees/.gitignore"]
    assert_no_half_merge(bench.workspace)
    bench.assert_sound()


async def test_a_question_shows_the_file_in_the_worktree_and_its_answer_holds(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    bench = Bench(tmp_path)
    repository(bench.workspace)
    (bench.workspace / "a.txt").write_text("not committed\n")

    def work(name: str, request: ModelRequest) -> Any:
        edit = {"file_path": "a.txt", "old_string": "one", "new_string": "1"}
        return [call("edit", edit)] if turns(request) == 0 else [said("done")]

    plan = [task("p", role="coder") | {"isolation": "worktree"}]
    bench.start(PlannedRun(plan, work), approval_timeout_seconds=None)

    async def answer() -> None:
        (asked,) = await bench.waiting()
        assert run(["approve", "--show", asked["id"], "--json", "--db", str(bench.path)]) == 0
        shown = json.loads(capsys.readouterr().out)
        (tree,) = bench.query("SELECT folder FROM worktrees")[0]
        assert shown["folder"] == tree
        assert "-one\n+1" in shown["shown"][0]["text"]
        with closing(open_readonly(bench.path)) as connection:
            question = load_question(connection, bench.path, asked["id"])
        bench.submit("approve", payload={"approval": asked["id"], "subject_digest": question.digest})

    await bench.run_while(answer)
    assert bench.query("SELECT cause, status FROM approvals WHERE tool = 'edit'") == [
        ("permission", "approved")
    ]


@pytest.mark.parametrize(
    ("kind", "told"), [("deny", "cancelled this merge"), ("", "add a task that depends on q")]
)
async def test_a_conflict_that_no_side_is_kept_of_changes_nothing(tmp_path, monkeypatch, kind, told):
    """The person cancels the merge, or does not answer in time: then it is left to the planner."""
    bench = conflicting(tmp_path, monkeypatch, approval_timeout_seconds=None if kind else 0.0)

    async def answer() -> None:
        (question,) = await bench.waiting()
        bench.submit(kind, payload={"approval": question["id"]})
        await asyncio.Event().wait()

    await (bench.run_while(answer) if kind else bench.run())
    assert told in bench.state["session"]["status_reason"]
    assert len(bench.state["approvals"]) == 1
    assert (bench.workspace / "a.txt").read_text() == "by p\n"
    assert_no_half_merge(bench.workspace)
    bench.assert_sound()
