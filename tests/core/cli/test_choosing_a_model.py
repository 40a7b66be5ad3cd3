"""Which model a run uses, and what is refused before anything is written: no model, no key, a damaged
configuration."""

from __future__ import annotations

import io
import json
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cli.conftest import Said, Wk, rows
from tests.core.roles.test_role_models import put

from watchkeeper.cli import models, run
from watchkeeper.models.anthropic import missing_key
from watchkeeper.models.registry import SUGGESTED, SURVEYOR, rates, resolve
from watchkeeper.records.errors import BadInput
from watchkeeper.records.text import sanitize
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime

GOAL = "Rename f to g"
SONNET = "anthropic/claude-sonnet-5"


class Shell:
    """A user's shell in an empty folder: its environment, configuration and database. Runs are not driven."""

    def __init__(self, wk: Wk, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.wk, self.folder, self.patch = wk, folder, patch
        self.driven: list[str] = []
        """The sessions that would have been driven."""
        patch.setattr(run, "_drive", lambda path, session_id, *_, **__: self.driven.append(session_id) or 0)

    def run(self, *arguments: object) -> Said:
        return self.wk("run", GOAL, *arguments)

    def set_key(self) -> None:
        self.patch.setenv("ANTHROPIC_API_KEY", "sk-test")

    def answers(self, *lines: str) -> None:
        """From now on a person at a terminal types these lines."""
        self.patch.setattr(run, "may_ask", lambda *, as_json: not as_json)
        self.patch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    def configure(self, text: str) -> None:
        (self.folder / "config").mkdir(exist_ok=True)
        (self.folder / "config" / "config.toml").write_text(text)

    def newest(self, column: str) -> str:
        sql = f"SELECT {column} FROM sessions ORDER BY ordinal DESC LIMIT 1"
        return str(rows(self.folder / "watchkeeper.db", sql)[0][0])

    def made_nothing(self) -> bool:
        return {one.name for one in self.folder.iterdir()} <= {"work", "config"}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(models, "LOCAL_SERVERS", {})


@pytest.fixture
def shell(wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(wk, tmp_path, monkeypatch)


class TestWithoutAModel:
    @pytest.mark.parametrize("key", [False, True])
    @pytest.mark.parametrize(
        "config", ["", f'model = "{SURVEYOR}"'], ids=["nothing", "the surveyor configured"]
    )
    @pytest.mark.parametrize(
        "arguments", [[GOAL], [GOAL, "--json"], ["--from", "last"], [GOAL, "--workspace", ".", "--headless"]]
    )
    def test_a_run_is_refused_with_the_exact_command_and_nothing_is_made(
        self, shell: Shell, key: bool, config: str, arguments: list[str]
    ) -> None:  # fmt: skip
        shell.configure(config)
        if key:
            shell.set_key()
        said = shell.wk("run", *arguments)
        assert said.code == 2
        assert shlex.split(said.error.rpartition("run: ")[2]) == [
            "wk", "run", *arguments, "--model", SUGGESTED[0],
        ]  # fmt: skip
        assert ("set ANTHROPIC_API_KEY" in said.error) is not key
        assert shell.made_nothing()

    def test_the_command_is_quoted_as_people_write_it(self, wk: Wk) -> None:
        assert wk("run", GOAL).error.endswith(f'run: wk run "Rename f to g" --model {SONNET}')
        assert wk("run", "--headless", "--", "-x").error.endswith(
            f"run: wk run --headless --model {SUGGESTED[0]} -- -x"
        )

    @given(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
    )
    def test_any_goal_comes_back_from_the_shell_as_it_was(self, goal: str) -> None:
        word = models._quoted(goal)
        assert " ".join(word.split()) == sanitize(word) == word
        if word.startswith("$'"):
            undone = word[2:-1].encode("latin-1").decode("unicode_escape").encode("latin-1").decode()
        else:
            (undone,) = shlex.split(word)
        assert undone == goal

    def test_the_shell_agrees(self) -> None:
        goals = ["two  spaces", "a\nb", "it's $HOME `x` \\ !", "\x1b[31mred", "plain", "é ü", ""]
        line = " ".join(["printf '%s\\0'", *map(models._quoted, goals)])
        environ = {"PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, env=environ)
        assert done.stdout.decode().split("\0")[:-1] == goals

    def test_a_configured_model_is_used_and_a_named_one_before_it(self, shell: Shell) -> None:
        shell.configure('model = "anthropic/claude-haiku-4-5"')
        shell.set_key()
        for command, model in ((["run", GOAL], "anthropic/claude-haiku-4-5"), (["run", GOAL, "--model", SURVEYOR], SURVEYOR),
                               (["demo"], SURVEYOR)):  # fmt: skip
            assert shell.wk(*command).code == 0
            assert shell.newest("model") == model

    def test_a_program_that_names_none_is_refused_too(self, shell: Shell) -> None:
        path, workspace = shell.folder / "own.db", shell.folder / "work"
        for config in ("", f'model = "{SURVEYOR}"'):
            shell.configure(config)
            with pytest.raises(BadInput, match="no model is set"):
                Runtime(path).start(GOAL, workspace=workspace)
        assert not path.exists()
        assert Runtime(path).start(GOAL, workspace=workspace, model=SURVEYOR)


class TestAtATerminal:
    def test_models_with_a_key_are_offered_with_their_prices(self, shell: Shell) -> None:
        shell.set_key()
        shell.answers("9", "gpt-5", "2")
        said = shell.run()
        assert (said.code, shell.newest("model")) == (0, SUGGESTED[1])
        for number, ref in enumerate(SUGGESTED, 1):
            assert f"  {number}  {ref}, {rates(ref)} (key: ANTHROPIC_API_KEY)" in said.err
        assert said.err.count("is not a valid choice") == 2

    @pytest.mark.parametrize("answer", ["claude-opus-4-8", "anthropic/claude-opus-4-8"])
    def test_another_model_may_be_named(self, shell: Shell, answer: str) -> None:
        shell.set_key()
        shell.answers(answer)
        assert (shell.run().code, shell.newest("model")) == (0, "anthropic/claude-opus-4-8")

    @pytest.mark.parametrize("lines", [("",), (SURVEYOR, "")], ids=["an empty line", "the surveyor"])
    def test_no_answer_is_refused_and_nothing_is_made(self, shell: Shell, lines: tuple[str, ...]) -> None:
        shell.set_key()
        shell.answers(*lines)
        said = shell.run()
        assert said.code == 2
        assert said.err.splitlines()[-1].endswith(f'run: wk run "Rename f to g" --model {SUGGESTED[0]}')
        assert shell.made_nothing()

    def test_the_end_of_input_is_an_interruption(self, shell: Shell) -> None:
        shell.set_key()
        shell.answers()
        assert shell.run().code == 130
        assert shell.made_nothing()

    def test_with_nothing_to_offer_nothing_is_asked(self, shell: Shell) -> None:
        shell.answers("1")
        assert "set ANTHROPIC_API_KEY, then run: wk run" in shell.run().error
        assert shell.made_nothing()

    def test_a_local_server_is_offered_and_gets_no_key(self, shell: Shell, listener: int) -> None:
        shell.patch.setattr(models, "LOCAL_SERVERS", {1: "Nothing", listener: "Ollama"})
        shell.answers("1", "qwen3:8b")
        said = shell.run()
        assert said.code == 0
        assert f"1  a model on the server at http://127.0.0.1:{listener} (Ollama port), no key" in said.err
        assert "Nothing" not in said.err
        assert shell.newest("model") == "anthropic/qwen3:8b"
        assert SessionSettings.load(shell.newest("settings")).base_url == f"http://127.0.0.1:{listener}"

    def test_a_configured_server_is_offered_if_it_answers_or_is_elsewhere(self, shell, listener):
        here = f"http://localhost:{listener}/v1"
        for url, shown in ((here, True), ("http://127.0.0.1:1", False), ("https://models.example", True)):
            shell.configure(f'[anthropic]\nbase_url = "{url}"\n')
            shell.answers("1", "claude-test")
            said = shell.run()
            assert (f"a model on {url}, the configured server" in said.err) is (said.code == 0) is shown

    def test_probing_is_bounded_and_stays_on_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def slow(place: tuple[str, int], timeout: float) -> None:
            assert place[0] == "127.0.0.1"
            clock[0] += timeout
            raise TimeoutError

        clock = [0.0]
        monkeypatch.setattr(socket, "create_connection", slow)
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        assert (
            models._listening([*(f"http://127.0.0.1:{port}" for port in range(1, 40)), "http://192.0.2.1:80"])
            == []
        )
        assert clock[0] <= 0.3


class TestListed:
    def test_models_are_listed_with_prices_and_where_they_come_from(self, shell, serving):
        port = serving(json.dumps({"data": [{"id": "qwen3:8b"}, {"id": "\x1b[31mred"}]}).encode())
        shell.patch.setattr(models, "LOCAL_SERVERS", {port: "Ollama"})
        shell.set_key()
        shell.configure(f'model = "{SONNET}"\n')
        listed = shell.wk("models", "--json").json["models"]
        url = f"http://127.0.0.1:{port}"
        assert [(one["model"], one["base_url"]) for one in listed] == [
            (SONNET, None), *((ref, None) for ref in SUGGESTED if ref != SONNET),
            ("openai-chat/qwen3:8b", url), ("openai-chat/\x1b[31mred", url), (SURVEYOR, None),
        ]  # fmt: skip
        assert listed[0]["where"] == "configured"
        assert listed[0]["input_usd"] > 0
        assert listed[-2]["input_usd"] is None
        said = shell.wk("models").out
        assert "\x1b" not in said
        assert "per million tokens" in said
        assert shell.run("--model", "openai-chat/qwen3:8b", "--base-url", url).code == 0
        assert SessionSettings.load(shell.newest("settings")).base_url == url

    @pytest.mark.parametrize("answer", [b"{", b"[]", b'{"data": 3}', b'{"data": [{}]}', b""])
    def test_a_server_that_names_no_models_is_left_out(self, shell, serving, answer):
        shell.patch.setattr(models, "LOCAL_SERVERS", {serving(answer): "Ollama"})
        assert [one["model"] for one in shell.wk("models", "--json").json["models"]] == [SURVEYOR]

    @pytest.mark.parametrize("url", ["http://models.example", "file:///etc/passwd", "127.0.0.1:1", ""])
    def test_a_server_elsewhere_is_not_taken_from_the_command_line(self, shell: Shell, url: str) -> None:
        said = shell.run("--model", "openai-chat/x", "--base-url", url)
        assert said.code == 2
        assert shell.made_nothing()


@pytest.fixture
def serving() -> Iterator[Callable[[bytes], int]]:
    """A server that answers every GET with these bytes; returns its port."""
    servers: list[ThreadingHTTPServer] = []

    def serve(body: bytes) -> int:
        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answering))
        threading.Thread(
            target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return servers[-1].server_port

    yield serve
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_every_suggested_model_has_a_price_and_can_be_resolved() -> None:
    for ref in SUGGESTED:
        assert rates(ref) is not None, f"{ref} is not in the price table; suggest another"
        assert resolve(ref).ref == ref


class TestAMissingKey:
    @pytest.mark.parametrize(
        ("config", "environ", "missing"),
        [
            ({}, {}, "ANTHROPIC_API_KEY"), ({}, {"ANTHROPIC_API_KEY": "  "}, "ANTHROPIC_API_KEY"),
            ({}, {"ANTHROPIC_BASE_URL": "https://api.anthropic.com/v1"}, "ANTHROPIC_API_KEY"),
            ({"api_key_env": "TEAM_KEY"}, {"ANTHROPIC_API_KEY": "x"}, "TEAM_KEY"),
            ({"api_key_env": "TEAM_KEY"}, {"TEAM_KEY": "x"}, None), ({}, {"ANTHROPIC_API_KEY": "x"}, None),
            ({}, {"ANTHROPIC_AUTH_TOKEN": "x"}, None), ({}, {"ANTHROPIC_PROFILE": "work"}, None),
            ({}, {"ANTHROPIC_CUSTOM_HEADERS": "X-A: b\nX-Api-Key: x"}, None),
            ({}, {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080"}, None),
            ({"base_url": "https://gateway.example/v1"}, {}, None),
        ],
    )  # fmt: skip
    def test_only_what_is_known_to_fail_is_missing(self, tmp_path, config, environ, missing):
        environ = {"HOME": str(tmp_path)} | environ
        assert missing_key("anthropic/claude-test", **config, environ=environ) == missing
        assert missing_key(SURVEYOR, **config, environ=environ) is None
        (tmp_path / ".config" / "anthropic" / "configs").mkdir(parents=True)
        assert missing_key("anthropic/claude-test", environ={"HOME": str(tmp_path)}) is None, (
            "a profile may hold one"
        )

    @pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "TEAM_KEY"])
    def test_a_run_says_so_before_it_opens_anything(self, shell: Shell, name: str) -> None:
        shell.configure(f'[anthropic]\napi_key_env = "{name}"\n' if name == "TEAM_KEY" else "")
        said = shell.run("--model", SONNET)
        assert said.code == 2
        assert f"{name} is not set in the environment of this shell" in said.error
        assert shell.made_nothing()

    def test_a_resume_says_so_and_leaves_the_session_as_it_was(self, shell: Shell) -> None:
        from watchkeeper_tui.control import StoreControl

        shell.set_key()
        assert shell.run("--model", SONNET).code == 0
        shell.patch.delenv("ANTHROPIC_API_KEY")
        before = shell.wk("show", "--json").json
        for options in ([], ["--headless"], ["--detach"], ["--json"]):
            said = shell.wk("resume", "last", *options)
            assert said.code == 2
            assert "ANTHROPIC_API_KEY is not set in the environment of this shell" in said.error
        shell.patch.setattr(
            subprocess, "Popen", lambda *_, **__: pytest.fail("a host was started without a key")
        )
        dashboard = (
            rf"ANTHROPIC_API_KEY is not set in the environment of this dashboard \(pid {os.getpid()}\)"
        )
        with pytest.raises(BadInput, match=dashboard):
            StoreControl(shell.folder / "watchkeeper.db").start_host(shell.driven[0], resume=True, once=None)
        assert shell.wk("show", "--json").json == before
        assert len(shell.driven) == 1


BAD: dict[str, Any] = {
    "bad TOML": "permissions = [", "an unknown setting": "colour = 'red'", "a wrong type": "permissions = 3",
    "a wrong value": "[permissions]\nbash = 'perhaps'", "not UTF-8": b"# \xff",
    "a huge number": "permissions = " + "9" * 5_000, "deep nesting": "permissions = " + "[" * 100_000,
    "too large": "#" * 1_000_001, "a folder": Path.mkdir, "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}  # fmt: skip


def put_bad(folder: Path, what: str) -> None:
    folder.mkdir(exist_ok=True)
    made = BAD[what]
    if callable(made):
        made(folder / "config.toml")
    else:
        (folder / "config.toml").write_bytes(made if isinstance(made, bytes) else made.encode())


class TestADamagedConfiguration:
    @pytest.mark.parametrize("what", BAD)
    @pytest.mark.parametrize("whose", ["config", "work/.watchkeeper"])
    def test_nothing_starts_and_nothing_is_made(self, shell: Shell, what: str, whose: str) -> None:
        put_bad(shell.folder / whose, what)
        for command in (["run", GOAL, "--model", SURVEYOR], ["demo"], ["run", GOAL]):
            said = shell.wk(*command)
            assert said.code == 2
            assert f"{whose}/config.toml" in said.error
        with pytest.raises(Exception, match=r"config\.toml"):
            Runtime(shell.folder / "watchkeeper.db").start(
                GOAL, workspace=shell.folder / "work", model=SURVEYOR
            )
        assert shell.made_nothing()

    @pytest.mark.parametrize(
        ("text", "hint"),
        [("model = ", "not valid TOML"), ("modell = 'x'", "modell"), ("max_parallel = 0", "max_parallel"),
         ("[mcp_servers.x]\nargs = ['y']\n", "mcp_servers.x")],
    )  # fmt: skip
    def test_the_error_names_the_setting(self, shell: Shell, text: str, hint: str) -> None:
        shell.configure(text)
        assert hint in shell.wk("demo").error
        assert shell.made_nothing()

    def test_a_host_that_meets_one_pauses_the_session_and_the_mended_one_resumes(self, shell: Shell) -> None:
        wk = shell.wk
        wk("demo", "--speed", "max")
        put_bad(shell.folder / "work" / ".watchkeeper", "an unknown setting")
        assert wk("host", shell.driven[0]).code == 2
        shown = wk("show", "--json").json["session"]
        assert shown["status"] == "paused"
        assert "colour" in shown["status_reason"]
        for command in ("resume", "fork"):
            refused = wk(command, "last")
            assert refused.code == 2
            assert "colour" in refused.error
        assert len(wk("sessions", "--json").json) == 1
        (shell.folder / "work" / ".watchkeeper" / "config.toml").unlink()
        assert wk("host", shell.driven[0], "--resume").code == 0
        assert wk("show", "--json").json["session"]["status"] == "done"


class TestAWorkspaceThatChoosesADearerModel:
    MINE, DEAR, CHEAP = (
        "anthropic/claude-sonnet-4-6",
        "anthropic/claude-opus-4-8",
        "anthropic/claude-haiku-4-5",
    )

    @pytest.fixture(autouse=True)
    def _cloned(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        for role, model in (("reviewer", self.DEAR), ("tester", self.DEAR), ("counter", self.CHEAP)):
            put(tmp_path / "work/.claude/agents", role, model)

    def allowed(self, wk: Wk) -> list[str]:
        settings: dict[str, list[str]] = wk("show", "--json").json["session"]["settings"]
        return settings["allow_models"]

    def test_is_asked_about_at_a_terminal_with_both_prices(self, shell: Shell) -> None:
        shell.answers("y")
        said = shell.run("--model", self.MINE)
        assert said.code == 0
        assert "reviewer (.claude/agents/reviewer.md), tester (.claude/agents/tester.md)" in said.err
        assert f"{self.DEAR}: $5 in, $25 out per million tokens" in said.err
        assert f"{self.MINE}: $3 in, $15 out per million tokens" in said.err
        assert said.err.count("Use the requested model") == 1
        assert "counter" not in said.err
        assert self.allowed(shell.wk) == [f"reviewer={self.DEAR}", f"tester={self.DEAR}"]

    @pytest.mark.parametrize("answer", ["n", ""])
    def test_is_not_followed_without_a_yes(self, shell: Shell, answer: str) -> None:
        shell.answers(answer)
        assert shell.run("--model", self.MINE).code == 0
        assert self.allowed(shell.wk) == []

    @pytest.mark.parametrize("options", [[], ["--json"], ["--headless"]])
    def test_is_not_followed_without_a_terminal_and_the_flag_is_named(self, shell, options):
        said = shell.run("--model", self.MINE, *options)
        assert said.code == 0
        assert said.err.count(f"--allow-model {self.DEAR}") == 2
        assert self.allowed(shell.wk) == []
        assert shell.run("--model", self.MINE, "--allow-model", self.DEAR, *options).err == ""
        assert self.allowed(shell.wk) == [self.DEAR]

    def test_is_asked_about_again_when_it_comes_later(self, shell: Shell) -> None:
        shell.answers("y", "y")
        shell.run("--model", self.MINE)
        put(shell.folder / "work/.claude/agents", "counter", self.DEAR)
        said = shell.wk("resume", "last")
        assert "for the role counter (.claude/agents/counter.md):" in said.err
        assert self.allowed(shell.wk) == [f"{role}={self.DEAR}" for role in ("reviewer", "tester", "counter")]
        assert "role" not in shell.wk("resume", "last").err, "what was confirmed is not asked about again"

    def test_never_concerns_the_surveyor(self, shell: Shell) -> None:
        shell.answers()
        assert shell.wk("demo").err == shell.run("--model", SURVEYOR).err == ""

    def test_roles_sources_and_models_are_shown_before_a_run_and_by_show(self, wk, tmp_path):
        put(tmp_path / "config/agents", "mine", None)
        said = wk("run", GOAL, "--model", SURVEYOR, "--speed", "max", "--headless")
        assert said.code == 0
        places = {name: f".claude/agents/{name}.md" for name in ("reviewer", "tester", "counter")}
        places["mine"] = "agents/mine.md (yours)"
        price = "$0 in, $0 out per million tokens"
        assert set(said.out.splitlines()[:4]) == {
            f"role {name}  {place}  {SURVEYOR}  {price}" for name, place in places.items()
        }
        shown = wk("show").out
        assert f"  role tester  .claude/agents/tester.md  {SURVEYOR}" in shown
        assert f"role explorer (built-in) · {SURVEYOR}" in shown
        task = wk("show", "--json").json["plan"]["tasks"][0]
        assert (task["role_source"], task["model"]) == ("built-in", SURVEYOR)
