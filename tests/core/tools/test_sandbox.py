"""The sandbox of `bash`: what commands can write, read and reach, with bubblewrap and without it."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.core.tools.conftest import caller, context

from watchkeeper.agents.tools import confinement
from watchkeeper.agents.tools.sandbox import DoesNotHold, Sandbox, git_folders, make_folder, secret_paths
from watchkeeper.records.errors import BadInput
from watchkeeper.records.tool_inputs import parse_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")


@functools.cache
def _why_not(way: str) -> str:
    """Why this machine cannot confine a command in this way; empty if it can."""
    if way == "bubblewrap" and shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    words = (
        ["bwrap"]
        if way == "bubblewrap"
        else [sys.executable, "-I", "-S", confinement.__file__, "--namespaces"]
    )
    words += [
        "--unshare-pid",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--chdir",
        "/",
        "--",
        "true",
    ]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    return said.stderr.strip()[:200] or (f"exit code {said.returncode}" if said.returncode else "")


@pytest.fixture(params=["bubblewrap", "namespaces"])
def environ(request, tmp_path) -> dict[str, str]:
    """A home with credentials, and a PATH with or without bubblewrap."""
    if why := _why_not(request.param):
        pytest.skip(f"this machine has no {request.param}: {why}")
    home = tmp_path / "home"
    for name in (".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc", ".claude/.credentials.json",
                 ".codex/auth.json", ".config/gcloud/token", "notes.txt", ".claude/notes.txt"):  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("invented-content")
    return {"HOME": str(home), "PATH": _path(tmp_path / "programs", request.param == "bubblewrap")}


def _path(folder: Path, with_bubblewrap: bool) -> str:
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in os.scandir(place):
            if program.name != "bwrap" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program.path)
    if with_bubblewrap:
        (folder / "bwrap").symlink_to(shutil.which("bwrap") or "")
    return str(folder)


def _git(*words: str) -> None:
    who = [
        "-c",
        "user.name=Someone",
        "-c",
        "user.email=someone@example.org",
        "-c",
        "protocol.file.allow=always",
    ]
    subprocess.run(["git", *who, *words], check=True)


def _start_sleep(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env=environ)


class _Unconfined:
    """A shell that nothing confines."""

    pid = os.getpid()

    async def run(self, command: str) -> tuple[str, int | None]:
        process = await asyncio.create_subprocess_exec(
            "/bin/bash", "-c", command, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return said.decode(), process.returncode

    async def close(self) -> None:
        pass


@pytest.fixture
def repository(workspace: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    (workspace / ".git" / "config").open("a").write(
        "[user]\n\tname = Someone\n\temail = someone@example.org\n"
    )
    return workspace


async def test_commands_write_only_in_the_workspace_and_the_temporary_folder(
    make_pool, environ, workspace, tmp_path
):
    run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
    made = await run("bash", command="echo in > made && echo t > $TMPDIR/t && cat made $TMPDIR/t")
    assert made.content == "in\nt"
    for place in (
        tmp_path / "outside",
        Path(environ["HOME"]) / "outside",
        Path("/dev/outside"),
        Path("/run/outside"),
    ):
        result = await run("bash", command=f"echo out > {place}")
        assert result.is_error
        assert "[sandbox = workspace: commands may write only in" in result.content
        assert not place.exists()
    (workspace / "link").symlink_to(tmp_path / "secret.txt")
    assert (await run("bash", command="echo out > link")).is_error
    assert (tmp_path / "secret.txt").read_text() == "out of bounds"
    assert (await run("bash", command="pwd")).content == str(workspace)
    assert (
        await run("bash", command="echo x > /dev/stdout; cat <(echo x); echo y > /dev/null")
    ).content == "x\nx"


async def test_jobs_that_left_the_shell_are_confined_too(make_pool, environ, workspace, tmp_path):
    run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
    escape = f"echo out > {tmp_path}/outside; cat ~/.ssh/id_ed25519 > stolen; echo done > finished"
    await run(
        "bash",
        command=f"(setsid nohup sh -c '{escape}' >/dev/null 2>&1 &); while ! [ -e finished ]; do :; done",
    )
    assert not (tmp_path / "outside").exists()
    assert "invented" not in (workspace / "stolen").read_text()


async def test_a_command_that_was_approved_word_by_word_is_confined_too(
    make_pool, environ, workspace, tmp_path
):
    pool = make_pool(environ=environ, sandbox="workspace")
    outside = tmp_path / "outside"
    for command in (
        f"touch made {outside}",
        f"echo x | tee made2 {outside} | cat",
        f"touch {outside} | touch made3",
    ):
        parts = parse_command(command)
        assert parts is not None
        asked = replace(context(workspace), pipeline=pool.pipeline("agent1", parts))
        assert asked.pipeline is not None
        result = await pool.run_shell({"command": command}, asked, 60)
        assert "[sandbox = workspace:" in result.content
        assert not outside.exists()
    assert {"made", "made2", "made3"} <= set(os.listdir(workspace))
    parts = parse_command("CI=1 yes | head -n 1")
    assert parts is not None
    asked = replace(context(workspace), pipeline=pool.pipeline("agent1", parts))
    result = await pool.run_shell({"command": "yes"}, asked, 60)
    # The first process of a namespace ignores the signal of a closed pipe, and says that it cannot write: it prints that in
    # two pieces, and the line of the other program may come between them.
    assert ("y\n" in f"{result.content}\n", result.is_error) == (True, False)


async def test_commands_cannot_read_credentials_but_other_files(make_pool, environ, workspace, tmp_path):
    database = tmp_path / "runs.db"
    database.write_text("invented-content")
    run = caller(make_pool(environ=environ, sandbox="workspace", database_path=database), workspace)
    for name in ("notes.txt", ".claude/notes.txt"):
        assert (await run("bash", command=f"cat ~/{name}")).content == "invented-content"
    secrets = (
        "~/.ssh/* ~/.aws/* ~/.config/gh/* ~/.netrc ~/.claude/.credentials.json ~/.codex/* ~/.config/gcloud/*"
    )
    for command in (
        f"cat {secrets} {database}",
        f"ln -s {environ['HOME']}/.ssh l; cat l/*",
        f"chmod -R 777 {environ['HOME']}/.ssh {database}; cat {secrets} {database}",
        "cd ~/.ssh && ls",
    ):
        result = (await run("bash", command=command)).content
        assert "invented" not in result
        assert "id_ed25519\n" not in result
    assert "[sandbox = workspace:" in (await run("bash", command="cat ~/.netrc")).content


async def test_a_credential_that_is_made_or_replaced_later_stays_hidden(make_pool, environ, workspace):
    home = Path(environ["HOME"])
    run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
    await run("bash", command="true")
    (home / ".pgpass").write_text("invented-later")
    (home / ".config" / "hub").write_text("invented-later")
    (home / "new").write_text("invented-later")
    (home / "new").replace(home / ".netrc")
    result = (await run("bash", command="cat ~/.pgpass ~/.config/hub ~/.netrc; ls -A ~")).content
    assert "invented" not in result


async def test_credentials_in_the_workspace_itself_are_unreadable(make_pool, environ, workspace):
    (workspace / ".netrc").write_text("invented-content")
    pool = make_pool(environ=environ | {"HOME": str(workspace)}, sandbox="workspace")
    run = caller(pool, workspace)
    assert "invented" not in (await run("bash", command="cat .netrc; cat hello.py")).content
    assert (await run("bash", command="mv .netrc other")).is_error


async def test_a_workspace_in_a_folder_with_credentials_is_refused(make_pool, environ, workspace):
    pool = make_pool(environ=environ | {"GNUPGHOME": str(workspace.parent)}, sandbox="workspace")
    with pytest.raises(BadInput, match="which may hold credentials"):
        await pool.check_sandbox()


async def test_commands_see_no_process_outside(make_pool, environ, workspace):
    outside = _start_sleep({"PLANTED": "invented-key"})
    try:
        run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
        assert (await run("bash", command=f"kill -9 {outside.pid}")).is_error
        assert "invented" not in (await run("bash", command="cat /proc/*/environ | tr '\\0' ' '")).content
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


async def test_commands_cannot_change_the_settings_of_the_kernel(make_pool, environ, workspace):
    run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
    for name in ("kernel/core_pattern", "kernel/hostname", "vm/drop_caches"):
        assert (await run("bash", command=f": >> /proc/sys/{name}")).is_error, name  # it only opens the file


async def test_commands_reach_no_socket_of_a_service_outside(make_pool, environ, workspace, tmp_path):
    path, late = tmp_path / "agent.sock", Path(environ["HOME"]) / "late.sock"
    with (
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as later,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        named.bind(str(path))
        named.listen()
        abstract.bind(f"\0{tmp_path}")
        abstract.listen()
        run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
        await run("bash", command="true")
        later.bind(str(late))
        later.listen()
        (workspace / "connect.py").write_text(
            "import socket, sys\nsocket.socket(socket.AF_UNIX).connect(sys.argv[1].replace('@', '\\0'))\nprint('reached')\n"
        )
        held = [str(path), str(late)]
        if confinement.landlock_version() >= 6:
            held.append(f"@{tmp_path}")
        for name in held:
            result = await run("bash", command=f"{sys.executable} connect.py {name}")
            assert result.is_error, name
            assert "reached\n" not in f"{result.content}\n".split("[sandbox")[0]


async def test_commands_use_git_but_cannot_change_what_makes_git_run_programs(make_pool, environ, repository):
    run = caller(make_pool(environ=environ, sandbox="workspace"), repository)
    committed = await run(
        "bash", command="git add -A && git commit -qm first && git branch other && git gc -q"
    )
    assert not committed.is_error, committed.content
    before = (repository / ".git" / "config").read_text()
    for command in (
        "echo x > .git/hooks/pre-commit",
        "git config core.pager x",
        "git config --worktree core.pager x; echo x > .git/config.worktree",
        "mv .git other",
        "rm -rf .git/hooks",
        "mv .git/config .git/old",
        "ln -f hello.py .git/config",
        "mkdir .git/worktrees/mine",
        "mount -o remount,rw .git/config",
        "umount .git/hooks",
        "unshare -Urm sh -c 'umount .git/hooks && echo x > .git/hooks/pre-commit'",
        "unshare -Urm sh -c 'mount --bind . .git && echo x > .git/config'",
    ):
        assert (await run("bash", command=command)).is_error, command
    assert (repository / ".git" / "config").read_text() == before
    assert not list((repository / ".git" / "hooks").glob("pre-commit"))


async def test_a_repository_without_hooks_does_not_get_some(make_pool, environ, repository):
    shutil.rmtree(repository / ".git" / "hooks")
    run = caller(make_pool(environ=environ, sandbox="workspace"), repository)
    result = await run("bash", command="mkdir -p .git/hooks; echo x > .git/hooks/pre-commit")
    assert result.is_error
    assert not (repository / ".git" / "hooks" / "pre-commit").exists()


async def test_a_command_that_redirects_the_repository_loses_its_shell(make_pool, environ, repository):
    run = caller(make_pool(environ=environ, sandbox="workspace"), repository)
    command = "mkdir evil; echo ../evil > .git/commondir; while :; do :; done"
    result = await run("bash", command=command, timeout_ms=30_000)
    assert result.is_error
    assert "commondir, which was removed" in result.content
    assert not (repository / ".git" / "commondir").exists()


async def test_a_configuration_that_is_replaced_outside_ends_the_shell(make_pool, environ, repository):
    run = caller(make_pool(environ=environ, sandbox="workspace"), repository)
    config = repository / ".git" / "config"
    (repository / "new").write_text("[core]\n\tbare = false\n")
    endless = "touch started; while :; do :; done"
    task = asyncio.ensure_future(run("bash", command=endless, timeout_ms=30_000))
    while not (repository / "started").exists():  # noqa: ASYNC110 - a file of another process
        await asyncio.sleep(0)
    (repository / "new").replace(config)
    result = await task
    assert result.is_error
    assert "config was replaced" in result.content
    assert (await run("bash", command="echo x >> .git/config")).is_error


async def test_what_the_configuration_of_git_names_is_guarded_too(make_pool, environ, repository):
    (repository / ".husky").mkdir()
    (repository / "shared.cfg").write_text("[core]\n\thooksPath = .husky\n")
    _git("-C", str(repository), "config", "include.path", "../shared.cfg")
    run = caller(make_pool(environ=environ, sandbox="workspace"), repository)
    for command in (
        "echo x > .husky/pre-commit",
        "echo x > shared.cfg",
        "mv .husky other",
        "mkdir .git/modules/sub",
    ):
        assert (await run("bash", command=command)).is_error, command
    assert not (await run("bash", command="echo x > made")).is_error


async def test_a_guarded_name_that_is_a_link_is_refused(make_pool, environ, repository):
    shutil.rmtree(repository / ".git" / "hooks")
    (repository / "shared").mkdir()
    (repository / ".git" / "hooks").symlink_to("../shared")
    with pytest.raises(BadInput, match=r"\.git/hooks is a symbolic link or is reached through one"):
        await make_pool(environ=environ, sandbox="workspace").check_sandbox()


async def test_a_linked_worktree_writes_its_repository_and_not_another_folder(
    make_pool, environ, repository, tmp_path
):
    tree = tmp_path / "tree"
    _git("-C", str(repository), "commit", "-q", "--allow-empty", "-m", "first")
    _git("-C", str(repository), "worktree", "add", "-q", str(tree))
    own = repository / ".git" / "worktrees" / "tree"
    run = caller(make_pool(environ=environ, sandbox="workspace").at(tree), tree)
    done = await run("bash", command="echo x > y && git add y && git commit -qm second")
    assert not done.is_error, done.content
    for command in (
        f"echo x > {repository}/.git/hooks/pre-commit",
        f"echo x > {repository}/hello.py",
        f"echo x > {own}/commondir",
        f"mv {own} {own}2",
        "rm .git",
    ):
        assert (await run("bash", command=command)).is_error, command


@pytest.mark.parametrize("text", ["gitdir: {0}/victim/.git/worktrees/a", "gitdir: {0}/victim/.git"])
def test_a_workspace_cannot_name_a_git_folder_that_does_not_name_it(workspace, tmp_path, text):
    victim = tmp_path / "victim"
    subprocess.run(["git", "init", "-q", str(victim)], check=True)
    (victim / ".git" / "worktrees" / "a").mkdir(parents=True)
    (victim / ".git" / "worktrees" / "a" / "gitdir").write_text(f"{victim}/tree/.git")
    (workspace / ".git").write_text(text.format(tmp_path))
    assert git_folders(workspace) == (None, None)


async def test_the_network_is_reached_unless_it_is_taken_away(make_pool, environ, workspace):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]}"
        run = caller(make_pool(environ=environ, sandbox="workspace"), workspace)
        assert not (await run("bash", command=f"({connect})")).is_error
        run = caller(make_pool(environ=environ, sandbox="workspace,no-network"), workspace)
        assert (await run("bash", command=f"({connect})")).is_error
        assert (
            await run("bash", command="grep -c : /proc/net/dev; grep -c lo: /proc/net/dev")
        ).content == "1\n1"
        result = await run("bash", command="exec 3<>/dev/tcp/192.0.2.1/80")
        assert "[sandbox = workspace,no-network: commands have no network access]" in result.content


async def test_a_confined_shell_keeps_its_state_and_its_folder_is_known(make_pool, environ, workspace):
    pool = make_pool(environ=environ, sandbox="workspace")
    run = caller(pool, workspace)
    await run("bash", command="mkdir sub; cd sub; export MINE=1")
    assert pool.shell_folder("agent1") == str(workspace / "sub")
    assert (await run("bash", command="echo $MINE")).content == "1"
    await run("bash", restart=True)
    assert (await run("bash", command="echo x > ~/outside")).is_error


async def test_a_confined_shell_that_was_closed_is_restored_and_confined(
    make_pool, environ, workspace, tmp_path
):
    pool = make_pool(environ=environ, sandbox="workspace")
    run = caller(pool, workspace)
    begun = "until grep -q sleep /proc/$!/comm; do :; done"
    await run("bash", command=f"mkdir sub; cd sub; export MINE='a b' PYTHONPATH=$PWD; sleep 1001 & {begun}")
    await pool.release("agent1", continues=True)
    result = await run("bash", command="echo $PWD $MINE $PYTHONPATH")
    assert "background jobs have ended: sleep 1001" in str(result.content)
    assert str(result.content).endswith(f"\n{workspace}/sub a b {workspace}/sub")
    assert (await run("bash", command=f"touch {tmp_path}/outside")).is_error
    assert not (tmp_path / "outside").exists()


async def test_a_sandbox_that_does_not_hold_is_refused_and_runs_no_command(workspace, environ, tmp_path):
    folder = make_folder(workspace)
    try:
        sandbox = Sandbox.of(
            "workspace,no-network", str(workspace), str(folder), secret_paths(environ), environ
        )

        with pytest.raises(DoesNotHold, match="a confined shell"):
            await sandbox.check(_Unconfined())
    finally:
        shutil.rmtree(folder)


_NO_NAMESPACES = """
for name in mnt pid user; do echo 0 > /proc/sys/user/max_${name}_namespaces || exit 99; done
exec "$@"
"""


def test_where_nothing_confines_bash_a_run_is_refused_in_one_line(workspace, tmp_path):
    wk = [sys.executable, "-P", "-m", "watchkeeper", "demo", "--headless", "--sandbox", "workspace"]
    said = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", _NO_NAMESPACES, "sh", *wk, "--workspace", str(workspace)],
        capture_output=True, text=True, check=False,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "WATCHKEEPER_DB": str(tmp_path / "runs.db")},
    )  # fmt: skip
    if said.returncode == 99 or "unshare" in said.stderr.partition(":")[0]:
        pytest.skip("this machine has no user namespaces")
    assert said.returncode == 2, said.stderr
    assert "cannot confine bash here (sandbox = workspace)" in said.stderr
    assert "install the package `bubblewrap`" in said.stderr
    assert len(said.stderr.splitlines()) == 1
