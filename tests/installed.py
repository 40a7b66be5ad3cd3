"""What a user gets: the wheel without extras, in an environment that holds nothing else. `.ci/run` installs it, and
runs this with its interpreter: `PYTHONPATH=. PYTHON -m tests.installed`. Only what the wheel brings is imported.

Every module is imported, every command shows its help, the demo runs, and a stand-in of OpenCode puts a question and
meets a usage limit. What needs an extra names it in one line.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
from tests.support.scripted import ScriptedModel, call, said, task, turns

import watchkeeper
import watchkeeper_tui
from watchkeeper.cli.app import run, wk
from watchkeeper.memory.recall import vectors_unavailable
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime

ROOT = Path(__file__).resolve().parents[1]
LONGEST_SECONDS = 60.0


def installed_alone() -> str:
    """The packages are those of this environment, and no extra is there."""
    for package in (watchkeeper, watchkeeper_tui):
        assert Path(str(package.__file__)).is_relative_to(sys.prefix), package.__file__
    extras = {"serve": "textual_serve", "postgres": "psycopg", "vectors": "wordllama"}
    assert set(extras) <= set(distribution("watchkeeper").metadata.get_all("Provides-Extra") or [])
    there = [module for module in extras.values() if find_spec(module) is not None]
    assert not there, f"installed without extras, and yet there: {there}"
    return "no extra is there"


def modules() -> str:
    """Every module of both packages loads."""
    names = [
        module.name
        for package in (watchkeeper, watchkeeper_tui)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    for name in names:
        import_module(name)
    return f"{len(names)} modules"


def commands(group: click.Group = wk, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups and hidden ones included."""
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, name
        if isinstance(found, click.Group):
            yield from commands(found, *path, name)
        else:
            yield (*path, name)


class User:
    """A home folder, a workspace and a database of a user, and the command that the wheel installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workspace, self.config = folder, folder / "workspace", folder / "config"
        for made in (self.workspace, self.config):
            made.mkdir()
        for number in range(3):
            (self.workspace / f"module_{number}.py").write_text(f"def f{number}():\n    return {number}\n")
        self.database = folder / "watchkeeper.db"
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
        self.environment = {**kept, "HOME": str(folder), "WATCHKEEPER_DB": str(self.database),
                            "WATCHKEEPER_CONFIG_DIR": str(self.config)}  # fmt: skip

    def wk(self, *words: str, code: int = 0) -> str:
        """What a command prints, errors included."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("wk")), *words], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LONGEST_SECONDS, check=False,
        )  # fmt: skip
        printed = done.stdout + done.stderr
        assert done.returncode == code, (words, done.returncode, printed)
        assert "Traceback" not in printed, (words, printed)
        return printed


def help_of_every_command() -> str:
    # In this process: each start of another one takes a second of the processor. The script itself is tried by `demo`.
    found = [*commands(), ("host",), ("follow",)]
    for words in found:
        with redirect_stdout(StringIO()) as printed:
            assert run([*words, "--help"]) == 0, words
        assert "Usage: wk" in printed.getvalue(), words
    return f"{len(found)} commands"


def demo(user: User) -> str:
    user.wk("demo", "--headless", "--speed", "max", "--workspace", str(user.workspace))
    assert "done" in user.wk("sessions")
    page = user.folder / "page.html"
    user.wk("export", "last", "--output", str(page))
    assert "</html>" in page.read_text()
    return "the demo ended, and was exported"


def extras_are_named(user: User) -> str:
    """What needs an extra says how it is installed from the wheel that this is."""
    wheel = unquote(
        urlsplit(json.loads(distribution("watchkeeper").read_text("direct_url.json"))["url"]).path
    )
    for words, extra in (
        (("serve",), "serve"),
        (("sessions", "--db", "postgresql://127.0.0.1:9/x"), "postgres"),
    ):
        (line,) = user.wk(*words, code=2).splitlines()
        assert f"{wheel}[{extra}]" in line, line
    assert f"{wheel}[vectors]" in str(vectors_unavailable())
    return "serve, postgres and vectors are named"


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and the alerts that were posted to it."""
    posted: list[dict[str, Any]] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", posted
    server.shutdown()


def opencode(user: User) -> str:
    """A stand-in of OpenCode: its sub-agent asks over its server, then it meets a limit; a person is alerted."""
    fake = user.folder / "fake"
    fake.mkdir()
    command = [sys.executable, "-S", "-E", str(ROOT / "tests/agents/fake_acp.py"), str(fake), "acp"]

    def event(kind: str, **about: Any) -> list[Any]:
        return ["server", {"type": kind, "properties": about}]

    asked = {"id": "per_1", "sessionID": "kid", "permission": "bash", "metadata": {"command": "make it"}}
    retry = {"type": "retry", "message": "the weekly limit", "next": (time.time() + 36_000) * 1000}
    actions = [
        event("session.created", info={"id": "kid", "parentID": "fake-session", "title": "Look"}),
        event("permission.asked", **asked), ["reply"], event("session.idle", sessionID="kid"),
        event("session.status", sessionID="fake-session", status=retry), ["until", "session/cancel"],
        ["end", "cancelled"],
    ]  # fmt: skip
    (fake / "script.json").write_text(json.dumps({"lives": [[actions]]}))
    work = task("a", role="coder") | {"model": "opencode/default", "instructions": "Look."}

    def planner(request: Any) -> Any:
        plan = call("create_plan", {"goal": "the goal", "tasks": [work]})
        return [plan] if turns(request) == 0 else [said("I wait.")]

    async def drive(address: str) -> list[str]:
        (user.config / "config.toml").write_text(
            f'containment = "register"\n[alerts]\nwebhook = "{address}"\n'
            f"[agents.opencode]\ncommand = {json.dumps(command)}\n"
        )
        runtime = Runtime(user.folder / "opencode.db", model=ScriptedModel(planner))
        settings = SessionSettings(approval_timeout_seconds=None)
        session = runtime.start("the goal", workspace=user.workspace, settings=settings)

        async def until(condition: Callable[[dict[str, Any]], Any]) -> Any:
            while True:
                if found := condition(runtime.state(session)):
                    return found
                await asyncio.sleep(0.02)

        async def person() -> None:
            asking = await until(
                lambda state: [one for one in state["approvals"] if one["status"] == "waiting"]
            )
            assert "make it" in asking[0]["question"], asking
            runtime.submit(session, "approve", payload={"approval": asking[0]["id"]})
            await until(lambda state: [one for one in state["agents"] if one["status"] == "parked"])
            runtime.submit(session, "cancel")

        async with asyncio.timeout(LONGEST_SECONDS):
            await asyncio.gather(runtime.run(session), person())
        return [agent["status"] for agent in runtime.state(session)["agents"]]

    os.environ.update(user.environment)
    with webhook() as (address, posted):
        asyncio.run(drive(address))
    assert json.loads((fake / "replies.jsonl").read_text()) == ["/permission/per_1/reply", {"reply": "once"}]
    assert {"question", "parked", "finished"} <= {alert["why"] for alert in posted}, posted
    return "OpenCode's question was answered, and its limit parked the agent"


def main() -> int:
    """Run every check; prints a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        user = User(Path(folder))
        checks: dict[str, Callable[[], str]] = {
            "environment": installed_alone, "imports": modules, "help": help_of_every_command,
            "demo": lambda: demo(user), "extras": lambda: extras_are_named(user), "opencode": lambda: opencode(user),
        }  # fmt: skip
        for name, check in checks.items():
            began = time.monotonic()
            print(f"{name:<12} {check()} ({time.monotonic() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
