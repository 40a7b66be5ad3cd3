"""Which model a run uses, and what is refused before anything is written: no model, no key, a damaged
configuration."""

from __future__ import annotations

import io
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cli.conftest import Said, Wk, rows
from tests.core.roles.test_role_models import put

from watchkeeper.cli import run
from watchkeeper.models.anthropic import missing_key
from watchkeeper.models.registry import SUGGESTED, SURVEYOR, rates, resolve
from watchkeeper.records.text import sanitize
from watchkeeper.runtime.embedded import Runtime
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.store.driver import sqlite3

KEY = {"ANTHROPIC_API_KEY": "sk-test"}
GOAL = "Rename f to g"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(run, "LOCAL_SERVERS", {})


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions that would have been driven, in place of driving them."""
    sessions: list[str] = []
    monkeypatch.setattr(run, "_drive", lambda path, session_id, *_, **__: sessions.append(session_id) or 0)
    return sessions


def answering(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A terminal at which a person types these lines."""
    monkeypatch.setattr(run, "may_ask", lambda *, as_json: not as_json)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def configure(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "config.toml").write_text(text)


def nothing_was_made(tmp_path: Path) -> bool:
    return {one.name for one in tmp_path.iterdir()} <= {"work", "config"}


def command_in(said: Said) -> list[str]:
    """The words of the command that an error ends with."""
    return shlex.split(said.error.rpartition("run: ")[2])


class TestWithoutAModel:
    @pytest.mark.parametrize("environ", [{}, KEY], ids=["no key", "a key"])
    @pytest.mark.parametrize(
        "config", ["", f'model = "{SURVEYOR}"'], ids=["nothing configured", "the surveyor configured"]
    )
    @pytest.mark.parametrize(
        "arguments", [[GOAL], [GOAL, "--json"], ["--from", "last"], [GOAL, "--workspace", ".", "--headless"]]
    )
    def test_a_run_is_refused_with_the_exact_command_and_nothing_is_made(
        self,
        wk: Wk,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        environ: dict[str, str],
        config: str,
        arguments: list[str],
    ) -> None:
        configure(tmp_path, config)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        said = wk("run", *arguments)
        assert said.code == 2
        assert command_in(said) == ["wk", "run", *arguments, "--model", SUGGESTED[0]]
        assert ("set ANTHROPIC_API_KEY" in said.error) is (not environ)
        assert nothing_was_made(tmp_path)

    def test_the_command_is_quoted_as_people_write_it(self, wk: Wk) -> None:
        assert wk("run", GOAL).error.endswith('run: wk run "Rename f to g" --model anthropic/claude-sonnet-5')
        assert wk("run", "--headless", "--", "-x").error.endswith(
            f"run: wk run --headless --model {SUGGESTED[0]} -- -x"
        )

    @given(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
    )
    def test_any_goal_comes_back_from_the_shell_as_it_was(self, goal: str) -> None:
        (word,) = [run._quoted(goal)]
        assert " ".join(word.split()) == word
        assert sanitize(word) == word
        if word.startswith("$'"):
            undone = word[2:-1].encode("latin-1").decode("unicode_escape").encode("latin-1").decode()
        else:
            (undone,) = shlex.split(word)
        assert undone == goal

    def test_the_shell_agrees(self) -> None:
        goals = ["two  spaces", "a\nb", "it's $HOME `x` \\ !", "\x1b[31mred", "plain", "é ü", ""]
        line = " ".join(["printf '%s\\0'", *map(run._quoted, goals)])
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, check=True, env={"PATH": os.environ["PATH"]}
        )
        assert done.stdout.decode().split("\0")[:-1] == goals

    def test_a_configured_model_is_used(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configure(tmp_path, 'model = "anthropic/claude-haiku-4-5"')
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        assert wk("run", GOAL).code == 0
        assert model_of(tmp_path) == "anthropic/claude-haiku-4-5"

    def test_the_surveyor_runs_when_it_is_named(self, wk: Wk, tmp_path: Path, driven: list[str]) -> None:
        assert wk("run", GOAL, "--model", SURVEYOR).code == 0
        assert model_of(tmp_path) == SURVEYOR
        assert wk("demo").code == 0
        assert model_of(tmp_path) == SURVEYOR

    def test_a_program_that_names_none_is_refused_too(self, tmp_path: Path) -> None:
        from watchkeeper.records.errors import BadInput

        for config in ("", f'model = "{SURVEYOR}"'):
            configure(tmp_path, config)
            with pytest.raises(BadInput, match="no model is chosen"):
                Runtime(tmp_path / "own.db").start(GOAL, workspace=tmp_path / "work")
        assert not (tmp_path / "own.db").exists()
        assert Runtime(tmp_path / "own.db").start(GOAL, workspace=tmp_path / "work", model=SURVEYOR)


def model_of(tmp_path: Path) -> str:
    ((model,),) = rows(
        tmp_path / "watchkeeper.db", "SELECT model FROM sessions ORDER BY ordinal DESC LIMIT 1"
    )
    return str(model)


class TestAtATerminal:
    def test_models_with_a_key_are_offered_with_their_prices(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        answering(monkeypatch, "9", "gpt-5", "2")
        said = wk("run", GOAL)
        assert said.code == 0
        assert model_of(tmp_path) == SUGGESTED[1]
        for number, ref in enumerate(SUGGESTED, 1):
            assert f"  {number}  {ref}, {rates(ref)} (key: ANTHROPIC_API_KEY)" in said.err
        assert said.err.count("is not one of them") == 2

    @pytest.mark.parametrize(
        ("answer", "ref"), [("claude-opus-4-8", "anthropic/claude-opus-4-8"), ("anthropic/x", "anthropic/x")]
    )
    def test_another_model_may_be_named(
        self,
        wk: Wk,
        tmp_path: Path,
        driven: list[str],
        monkeypatch: pytest.MonkeyPatch,
        answer: str,
        ref: str,
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        answering(monkeypatch, answer)
        assert wk("run", GOAL).code == 0
        assert model_of(tmp_path) == ref

    @pytest.mark.parametrize("lines", [("",), (SURVEYOR, "")], ids=["an empty line", "the surveyor"])
    def test_no_answer_is_refused_and_nothing_is_made(
        self,
        wk: Wk,
        tmp_path: Path,
        driven: list[str],
        monkeypatch: pytest.MonkeyPatch,
        lines: tuple[str, ...],
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        answering(monkeypatch, *lines)
        said = wk("run", GOAL)
        assert said.code == 2
        assert said.err.splitlines()[-1].endswith(f'run: wk run "Rename f to g" --model {SUGGESTED[0]}')
        assert nothing_was_made(tmp_path)

    def test_the_end_of_input_is_an_interruption(
        self, wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        answering(monkeypatch)
        assert wk("run", GOAL).code == 130
        assert nothing_was_made(tmp_path)

    def test_with_nothing_to_offer_nothing_is_asked(
        self, wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering(monkeypatch, "1")
        assert "set ANTHROPIC_API_KEY, then run: wk run" in wk("run", GOAL).error
        assert nothing_was_made(tmp_path)

    def test_a_local_server_is_offered_and_gets_no_key(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch, listener: int
    ) -> None:
        monkeypatch.setattr(run, "LOCAL_SERVERS", {1: "Nothing", listener: "Ollama"})
        answering(monkeypatch, "1", "qwen3:8b")
        said = wk("run", GOAL)
        assert said.code == 0
        assert (
            f"1  a model of the server at http://127.0.0.1:{listener} (Ollama's port), without a key"
            in said.err
        )
        assert "Nothing" not in said.err
        assert model_of(tmp_path) == "anthropic/qwen3:8b"
        connection = sqlite3.connect(tmp_path / "watchkeeper.db")
        settings = SessionSettings.load(connection.execute("SELECT settings FROM sessions").fetchone()[0])
        connection.close()
        assert settings.base_url == f"http://127.0.0.1:{listener}"

    def test_a_configured_server_is_offered_if_it_answers_or_is_elsewhere(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch, listener: int
    ) -> None:
        for url, shown in (
            (f"http://localhost:{listener}/v1", True), ("http://127.0.0.1:1", False), ("https://models.example", True),
        ):  # fmt: skip
            configure(tmp_path, f'[anthropic]\nbase_url = "{url}"\n')
            answering(monkeypatch, "1", "claude-test")
            said = wk("run", GOAL)
            assert (f"a model of {url}, the configured server" in said.err) is shown
            assert (said.code == 0) is shown

    def test_probing_is_bounded_and_stays_on_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def slow(place: tuple[str, int], timeout: float) -> None:
            assert place[0] == "127.0.0.1"
            clock[0] += timeout
            raise TimeoutError

        clock = [0.0]
        monkeypatch.setattr(socket, "create_connection", slow)
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        assert (
            run._listening([*(f"http://127.0.0.1:{port}" for port in range(1, 40)), "http://192.0.2.1:80"])
            == []
        )
        assert clock[0] <= 0.3


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
            ({}, {}, "ANTHROPIC_API_KEY"),
            ({}, {"ANTHROPIC_API_KEY": "  "}, "ANTHROPIC_API_KEY"),
            ({}, {"ANTHROPIC_BASE_URL": "https://api.anthropic.com/v1"}, "ANTHROPIC_API_KEY"),
            ({"api_key_env": "TEAM_KEY"}, {"ANTHROPIC_API_KEY": "x"}, "TEAM_KEY"),
            ({"api_key_env": "TEAM_KEY"}, {"TEAM_KEY": "x"}, None),
            ({}, {"ANTHROPIC_API_KEY": "x"}, None),
            ({}, {"ANTHROPIC_AUTH_TOKEN": "x"}, None),
            ({}, {"ANTHROPIC_PROFILE": "work"}, None),
            ({}, {"ANTHROPIC_CUSTOM_HEADERS": "X-A: b\nX-Api-Key: x"}, None),
            ({}, {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080"}, None),
            ({"base_url": "https://gateway.example/v1"}, {}, None),
        ],
    )
    def test_only_what_is_known_to_fail_is_missing(
        self, tmp_path: Path, config: dict[str, str], environ: dict[str, str], missing: str | None
    ) -> None:
        environ = {"HOME": str(tmp_path)} | environ
        assert missing_key("anthropic/claude-test", **config, environ=environ) == missing
        assert missing_key(SURVEYOR, **config, environ=environ) is None

    def test_a_profile_of_the_sdk_may_hold_one(self, tmp_path: Path) -> None:
        (tmp_path / ".config" / "anthropic" / "configs").mkdir(parents=True)
        assert missing_key("anthropic/claude-test", environ={"HOME": str(tmp_path)}) is None

    @pytest.mark.parametrize("configured", [False, True])
    def test_a_run_says_so_before_it_opens_anything(self, wk: Wk, tmp_path: Path, configured: bool) -> None:
        configure(tmp_path, '[anthropic]\napi_key_env = "TEAM_KEY"\n' if configured else "")
        said = wk("run", GOAL, "--model", "anthropic/claude-sonnet-5")
        assert said.code == 2
        assert (
            f"no {'TEAM_KEY' if configured else 'ANTHROPIC_API_KEY'} in the environment of this shell"
            in said.error
        )
        assert nothing_was_made(tmp_path)

    def test_a_resume_says_so_and_leaves_the_session_as_it_was(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        assert wk("run", GOAL, "--model", "anthropic/claude-sonnet-5").code == 0
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        before = wk("show", "--json").json
        for options in ([], ["--headless"], ["--detach"], ["--json"]):
            said = wk("resume", "last", *options)
            assert said.code == 2
            assert "no ANTHROPIC_API_KEY in the environment of this shell" in said.error
        assert wk("show", "--json").json == before
        assert len(driven) == 1

    def test_a_resume_from_the_dashboard_says_in_which_environment_it_looked(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from watchkeeper.records.errors import BadInput
        from watchkeeper_tui.control import StoreControl

        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        wk("run", GOAL, "--model", "anthropic/claude-sonnet-5")
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        monkeypatch.setattr(
            subprocess, "Popen", lambda *_, **__: pytest.fail("a host was started without a key")
        )
        with pytest.raises(
            BadInput,
            match=rf"no ANTHROPIC_API_KEY in the environment of this dashboard \(pid {os.getpid()}\)",
        ):
            StoreControl(tmp_path / "watchkeeper.db").start_host(driven[0], resume=True, once=None)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


BAD: dict[str, Any] = {
    "bad TOML": "permissions = [", "an unknown setting": "colour = 'red'", "a wrong type": "permissions = 3",
    "a wrong value": "[permissions]\nbash = 'perhaps'", "not UTF-8": b"# \xff",
    "a huge number": "permissions = " + "9" * 5_000, "deep nesting": "permissions = " + "[" * 100_000,
    "too large": "#" * 1_000_001, "a folder": as_folder, "a pipe": as_pipe, "a device": as_device,
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
    def test_nothing_starts_and_nothing_is_made(self, wk: Wk, tmp_path: Path, what: str, whose: str) -> None:
        put_bad(tmp_path / whose, what)
        for command in (["run", GOAL, "--model", SURVEYOR], ["demo"], ["run", GOAL]):
            said = wk(*command)
            assert said.code == 2
            assert f"{whose}/config.toml" in said.error
        with pytest.raises(Exception, match=r"config\.toml"):
            Runtime(tmp_path / "watchkeeper.db").start(GOAL, workspace=tmp_path / "work", model=SURVEYOR)
        assert nothing_was_made(tmp_path)

    def test_a_damaged_mcp_server_counts(self, wk: Wk, tmp_path: Path) -> None:
        configure(tmp_path, "[mcp_servers.x]\nargs = ['y']\n")
        assert "mcp_servers.x" in wk("demo").error
        assert nothing_was_made(tmp_path)

    def test_a_host_that_meets_one_pauses_the_session_and_the_mended_one_resumes(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wk("demo", "--speed", "max")
        put_bad(tmp_path / "work" / ".watchkeeper", "an unknown setting")
        said = wk("host", driven[0])
        assert said.code == 2
        shown = wk("show", "--json").json["session"]
        assert shown["status"] == "paused"
        assert "colour" in shown["status_reason"]
        for command in ("resume", "fork"):
            refused = wk(command, "last")
            assert refused.code == 2
            assert "colour" in refused.error
        assert len(wk("sessions", "--json").json) == 1
        (tmp_path / "work" / ".watchkeeper" / "config.toml").unlink()
        assert wk("host", driven[0], "--resume").code == 0
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
        put(tmp_path / "work/.claude/agents", "reviewer", self.DEAR)
        put(tmp_path / "work/.claude/agents", "tester", self.DEAR)
        put(tmp_path / "work/.claude/agents", "counter", self.CHEAP)

    def allowed(self, wk: Wk) -> list[str]:
        settings: dict[str, list[str]] = wk("show", "--json").json["session"]["settings"]
        return settings["allow_models"]

    def test_is_asked_about_at_a_terminal_with_both_prices(
        self, wk: Wk, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering(monkeypatch, "y")
        said = wk("run", GOAL, "--model", self.MINE)
        assert said.code == 0
        assert "reviewer (.claude/agents/reviewer.md), tester (.claude/agents/tester.md)" in said.err
        assert f"{self.DEAR}: $5 in, $25 out per million tokens" in said.err
        assert f"{self.MINE}: $3 in, $15 out per million tokens" in said.err
        assert said.err.count("Use its choice") == 1
        assert "counter" not in said.err
        assert self.allowed(wk) == [f"reviewer={self.DEAR}", f"tester={self.DEAR}"]

    @pytest.mark.parametrize("answer", ["n", ""])
    def test_is_not_followed_without_a_yes(
        self, wk: Wk, driven: list[str], monkeypatch: pytest.MonkeyPatch, answer: str
    ) -> None:
        answering(monkeypatch, answer)
        assert wk("run", GOAL, "--model", self.MINE).code == 0
        assert self.allowed(wk) == []

    @pytest.mark.parametrize("options", [[], ["--json"], ["--headless"]])
    def test_is_not_followed_without_a_terminal_and_the_flag_is_named(
        self, wk: Wk, driven: list[str], options: list[str]
    ) -> None:
        said = wk("run", GOAL, "--model", self.MINE, *options)
        assert said.code == 0
        assert said.err.count(f"--allow-model {self.DEAR}") == 2
        assert self.allowed(wk) == []
        assert wk("run", GOAL, "--model", self.MINE, "--allow-model", self.DEAR, *options).err == ""
        assert self.allowed(wk) == [self.DEAR]

    def test_is_asked_about_again_when_it_comes_later(
        self, wk: Wk, tmp_path: Path, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering(monkeypatch, "y", "y")
        wk("run", GOAL, "--model", self.MINE)
        put(tmp_path / "work/.claude/agents", "counter", self.DEAR)
        said = wk("resume", "last")
        assert "for the role counter (.claude/agents/counter.md):" in said.err
        assert self.allowed(wk) == [f"reviewer={self.DEAR}", f"tester={self.DEAR}", f"counter={self.DEAR}"]
        assert wk("resume", "last").err == "", "what was confirmed is not asked about again"

    def test_never_concerns_the_surveyor(
        self, wk: Wk, driven: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering(monkeypatch)
        assert wk("demo").err == ""
        assert wk("run", GOAL, "--model", SURVEYOR).err == ""

    def test_roles_sources_and_models_are_shown_before_a_run_and_by_show(
        self, wk: Wk, tmp_path: Path
    ) -> None:
        put(tmp_path / "config/agents", "mine", None)
        said = wk("run", GOAL, "--model", SURVEYOR, "--speed", "max", "--headless")
        assert said.code == 0
        places = {"mine": "agents/mine.md (yours)"} | {
            name: f".claude/agents/{name}.md" for name in ("reviewer", "tester", "counter")
        }
        price = "$0 in, $0 out per million tokens"
        expected = {f"role {name}  {place}  {SURVEYOR}  {price}" for name, place in places.items()}
        assert set(said.out.splitlines()[:4]) == expected
        shown = wk("show").out
        assert f"  role tester  .claude/agents/tester.md  {SURVEYOR}" in shown
        assert f"role explorer (built-in)  {SURVEYOR}" in shown
        task = wk("show", "--json").json["plan"]["tasks"][0]
        assert (task["role_source"], task["model"]) == ("built-in", SURVEYOR)
