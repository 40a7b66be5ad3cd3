"""Bad input is one clear line on standard error that says what is wrong and what to do; nothing else
happens."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.core.cli.conftest import Wk, change, rows
from tests.support.places import workspace_in

from watchkeeper import __main__
from watchkeeper.cli import app

ODD = "\udcff"
MISUSED = {
    "an unknown command": (["sesions"], "did you mean `wk sessions`"),
    "a far-off command": (["zzz"], "unknown command 'zzz' (see `wk --help`)"),
    "an earlier name with a slip": (["restor", "x"], "did you mean `wk restore`"),
    "an unknown flag": (["demo", "--bogus"], "unknown option --bogus (see `wk demo --help`)"),
    "a flag with a slip": (["demo", "--headles"], "unknown option --headles; did you mean --headless?"),
    "a flag of another command": (["show", "last", "--headless"], "wk show --help"),
    "no goal": (["run"], "GOAL"),
    "an empty goal": (["run", "  "], "the goal is empty"),
    "no session": (["pause"], "SESSION is missing; usage: wk pause [OPTIONS] SESSION [AGENT] (see"),
    "one word too many": (
        ["undo", "last", "a", "b c"],
        "unexpected argument 'b c'; usage: wk undo [OPTIONS] SESSION AGENT",
    ),
    "an option without its value": (["show", "--db"], "--db needs a value: --db FILE|URL (see"),
    "a flag with a value": (["show", "--json=yes"], "--json takes no value"),
    "a word for a number": (["sessions", "--limit", "many"], "--limit: 'many' is not an integer (see"),
    "a word for an amount": (["demo", "--budget-usd", "x"], "--budget-usd: 'x' is not a number"),
    "a number out of range": (
        ["serve", "--port", "99999"],
        "--port: 99999 is out of range; use a number from 0 to 65535 (see",
    ),
    "a choice of others": (["usage", "--by", "year"], "--by: 'year' is not a valid value; use day, "),
    "no such speed": (["demo", "--speed", "fast"], "a positive number, or max"),
    "no time at all": (["demo", "--speed", "0"], "a positive number, or max"),
    "a budget of nothing": (
        ["demo", "--budget-tokens", "0"],
        "--budget-tokens: 0 is out of range; use 1 or more",
    ),
    "a budget that is no number": (["demo", "--budget-seconds", "nan"], "positive amount"),
    "a budget without an end": (["demo", "--budget-usd", "inf"], "positive amount"),
    "too small a context": (["demo", "--context-tokens", "10"], "--context-tokens"),
    "a rule without words": (
        ["run", "x", "--model", "offline/surveyor", "--rules", " "],
        "the rule is empty",
    ),
    "a rule that is too long": (
        ["run", "x", "--model", "offline/surveyor", "--rules", "x" * 2_001],
        "the rule has 2,001 characters; the limit is 2,000",
    ),
    "too many rules": (
        ["run", "x", "--model", "offline/surveyor", *(f"--rules={n}{'x' * 1_999}" for n in range(4))],
        "the rules have 8,000 characters",
    ),
    "a file of rules that is not there": (
        ["run", "x", "--model", "offline/surveyor", "--rules", "@nowhere.md"],
        "cannot read nowhere.md",
    ),
    "an unknown provider": (["run", "x", "--model", "acme/fast"], "anthropic/<model>"),
    "a model without its provider": (
        ["run", "x", "--model", "claude-sonnet-5"],
        "did you mean anthropic/claude-sonnet-5",
    ),
    "a budget in USD without a price": (
        ["run", "x", "--model", "anthropic/unheard-of", "--budget-usd", "1"],
        "--budget-tokens",
    ),
    "an unknown shell": (["completion", "tcsh"], "SHELL: 'tcsh' is not a valid value; use bash, zsh or fish"),
    "a path that is not there": (
        ["hooks", "install", "claude", "--binary", "/none"],
        "--binary: /none does not exist",
    ),
    "a server that does not run": (
        ["sessions", "--db", "postgresql://127.0.0.1:1/x"],
        "x: no server is listening there; start PostgreSQL",
    ),
    "a port of letters": (
        ["sessions", "--db", "postgresql://127.0.0.1:abc/x"],
        "the port must be a number; use the form postgresql",
    ),
    "a subcommand that is missing": (["memory", "bogus"], "unknown command 'bogus' (see `wk memory --help`)"),
    "a subcommand with a slip": (["memory", "serch"], "did you mean `wk memory search`?"),
}


@pytest.mark.parametrize("what", MISUSED)
def test_misuse_is_one_line_and_exit_2(wk: Wk, tmp_path: Path, what: str) -> None:
    arguments, hint = MISUSED[what]
    said = wk(*arguments)
    assert said.code == 2
    assert hint in said.error
    assert not (tmp_path / "watchkeeper.db").exists(), "a refused command left a database behind"


FAULTS_OF_LOADING = {
    "a package that is missing": (
        ModuleNotFoundError("No module named 'acme'"),
        "No module named 'acme': a package is missing or damaged; reinstall Watchkeeper",
    ),
    "an argument that the system refuses": (OSError(errno.EINVAL, "Invalid argument"), "Invalid argument"),
    "no descriptor": (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "too many open files"),
    "a library without a descriptor": (
        ImportError(f"acme.so: cannot open shared object file: {os.strerror(errno.EMFILE)}"),
        "too many open files",
    ),
    "a full disk": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "the disk is full; free some space"),
    "no memory": (MemoryError(), "the machine is out of memory"),
}


@pytest.mark.parametrize("fault", FAULTS_OF_LOADING)
@pytest.mark.parametrize(
    "where", [(__main__, "_hide_keys"), (app, "import_module")], ids=["start", "command"]
)
def test_what_keeps_the_program_from_loading_is_named_and_a_shortage_only_where_it_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, where: Any
) -> None:
    error, hint = FAULTS_OF_LOADING[fault]

    def fail(*_: object) -> None:
        raise error

    owner, name = where
    monkeypatch.setattr(owner, name, fail)
    monkeypatch.setattr(sys, "argv", ["wk", "sessions"])
    for other in ("freeze", "set_threshold"):
        monkeypatch.setattr(gc, other, lambda *_: None)
    with pytest.raises(SystemExit):
        __main__.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert hint in line
    if fault.startswith(("a package", "an argument")):
        assert not re.search("disk|memory|open files|make room", line)


@pytest.mark.parametrize("group", ["memory", "agent"])
def test_a_group_without_its_subcommand_shows_its_help(wk: Wk, group: str) -> None:
    said = wk(group)
    assert said.code == 2
    assert "Commands:\n" in said.out + said.err


@pytest.mark.parametrize("command", ["demo", "run"])
def test_a_workspace_that_is_no_folder_is_refused_before_anything_is_written(wk, tmp_path, command):
    goal = ["x"] if command == "run" else []
    (tmp_path / "file").write_text("x")
    assert "does not exist" in wk(command, *goal, "--workspace", tmp_path / "nowhere").error
    assert "is not a folder" in wk(command, *goal, "--workspace", tmp_path / "file").error
    assert not (tmp_path / "watchkeeper.db").exists()


@pytest.mark.parametrize(
    "arguments",
    [["show", "zzzz"], ["resume", "zzzz"], ["pause", "zzzz"], ["cancel", "zzzz"], ["artifacts", "zzzz"], ["watch", "zzzz"],
     ["rerun", "zzzz", "t"], ["steer", "zzzz", "a", "hi"], ["approve", "zzzz", "a"], ["compact", "zzzz", "a"],
     ["agent", "report", "zzzz"], ["memory", "status", "zzzz"], ["budget", "zzzz", "--tokens", "1"],
     ["artifacts", "last", "nothing.txt"], ["rerun", "last", "nothing"], ["steer", "last", "nobody", "hi"], ["deny", "last", "x"],
     ["budget", "last", "--task", "nothing", "--tokens", "1"]],
    ids=" ".join,
)  # fmt: skip
def test_what_is_not_there_is_exit_3(wk: Wk, demo: Path, arguments: list[str]) -> None:
    said = wk(*arguments)
    assert said.code == 3
    assert said.error


def test_last_without_any_session_is_exit_3_and_says_how_to_start_one(wk: Wk, demo: Path) -> None:
    change(demo, "DELETE FROM sessions")
    said = wk("show", "last")
    assert said.code == 3
    assert "wk demo" in said.error


def test_a_prefix_is_enough_unless_it_is_ambiguous(wk: Wk, demo: Path) -> None:
    ((session,),) = rows(demo, "SELECT id FROM sessions")
    columns = ", ".join(
        row[1] for row in rows(demo, "PRAGMA table_info(sessions)") if row[1] not in ("id", "ordinal")
    )
    change(
        demo, f"INSERT INTO sessions (id, {columns}) SELECT ?, {columns} FROM sessions", session[:3] + "00000"
    )
    ambiguous = wk("show", session[:3])
    assert ambiguous.code == 2
    assert session in ambiguous.error
    assert wk("show", session[:7], "--json").json["session"]["id"] == session
    assert wk("show", "").code == 3
    assert wk("show", "%").code == 3


class TestTheDatabase:
    @pytest.mark.parametrize(
        ("sql", "where", "command"),
        [
            ("UPDATE events SET data = '{' WHERE seq = 5", "events.data", ["show", "last", "--json"]),
            ("UPDATE sessions SET goal = x'00ff'", "sessions.goal", ["sessions", "--json"]),
            ("UPDATE sessions SET settings = '[1]'", "sessions.settings", ["resume", "last", "--headless"]),
            ("UPDATE facts SET confidence = 'high'", "facts.confidence", ["memory", "search", "todo"]),
        ],
    )
    def test_rows_that_cannot_be_read_are_reported_as_damage(self, wk, demo, sql, where, command):
        assert change(demo, sql)
        said = wk(*command, "--db", demo)
        if said.code:  # a command that does not read this value does what it does
            assert said.code == 2
            assert where in said.err
            assert "damaged" in said.err
        assert f"{where} in row" in wk("doctor", "--db", demo).out

    @pytest.mark.parametrize(
        "command", [["show", ODD], ["cancel", "last", ODD], ["steer", "last", ODD, "x"], ["sessions", "--search", ODD]]
    )  # fmt: skip
    def test_an_argument_of_odd_bytes_is_one_line(self, wk: Wk, demo: Path, command: list[str]) -> None:
        said = wk(*command, "--db", demo)
        assert said.code in (0, 2, 3)
        assert "fault" not in said.err

    def test_a_command_whose_host_cannot_start_says_so_at_once(self, wk: Wk, demo: Path) -> None:
        change(demo, "UPDATE sessions SET settings = '[1]'")
        said = wk("undo", "last", "planner", "--db", demo)
        assert said.code in (1, 2)
        assert "ended before the command finished" in said.error
        assert "sessions.settings" in said.error

    @pytest.mark.parametrize("command", ["sessions", "show last", "watch", "resume last", "memory status"])
    def test_none_there_says_how_to_start(self, wk: Wk, tmp_path: Path, command: str) -> None:
        said = wk(*command.split(), "--db", tmp_path / "none.db")
        assert said.code == 2
        assert "wk run GOAL" in said.error
        assert not (tmp_path / "none.db").exists()

    @pytest.mark.parametrize("command", ["sessions", "demo"])
    @pytest.mark.parametrize(
        ("kind", "hint"),
        [("text", "not a SQLite database"), ("folder", "directory"), ("another program", "another program")],
    )
    def test_what_is_no_database_of_ours_is_refused_and_left_as_it_was(
        self, wk: Wk, tmp_path: Path, command: str, kind: str, hint: str
    ) -> None:
        path = tmp_path / "other"
        if kind == "folder":
            path.mkdir()
        elif kind == "text":
            path.write_text("dear diary, " * 400)
        else:
            change(path, "CREATE TABLE recipes (name)")
        before = path.read_bytes() if path.is_file() else list(path.iterdir())
        said = wk(
            command, "--db", path, *(["--workspace", workspace_in(tmp_path)] if command == "demo" else [])
        )
        assert said.code == 2
        assert hint in said.error
        assert (path.read_bytes() if path.is_file() else list(path.iterdir())) == before

    @pytest.mark.parametrize(
        "command", ["sessions", "show last", "resume last", "steer last planner hi", "rerun last src"]
    )
    def test_one_of_a_newer_watchkeeper_asks_for_an_upgrade(self, wk: Wk, demo: Path, command: str) -> None:
        change(demo, "PRAGMA user_version=9999")
        said = wk(*command.split())
        assert said.code == 2
        assert "upgrade" in said.error

    @pytest.mark.parametrize(
        "command",
        ["sessions", "show last", "agent report", "memory status", "artifacts last survey.json", "resume last", "doctor --json"],
    )  # fmt: skip
    def test_a_damaged_one_is_said_to_be_damaged(self, wk: Wk, demo: Path, command: str) -> None:
        size = demo.stat().st_size
        with demo.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(size - 4096))
        said = wk(*command.split())
        if command == "doctor --json":
            assert (said.code, said.json["ok"]) == (1, False)
        else:
            assert said.code == 2
            assert "damaged" in said.error

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written_is_said_so(self, wk: Wk, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "permission" in wk("demo", "--db", tmp_path / "locked" / "w.db").error.lower()

    def test_a_place_where_no_file_can_be_made_is_said_so(self, wk: Wk, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        said = wk("demo", "--workspace", workspace_in(tmp_path), "--db", tmp_path / "file" / "w.db")
        assert said.code == 2
        assert "--db" in said.error


@pytest.mark.parametrize(
    "arguments",
    [["demo"], ["run", "x"], ["resume", "last"], ["pause", "last"], ["pause", "last", "planner"], ["cancel", "last"],
     ["rerun", "last", "src"], ["steer", "last", "planner", "hi"], ["compact", "last", "planner"], ["undo", "last", "planner"],
     ["budget", "last", "--tokens", "1"]],
    ids=" ".join,
)  # fmt: skip
def test_tools_of_a_run_may_not_control_runs(wk, demo, monkeypatch, arguments):
    monkeypatch.setenv("WATCHKEEPER_AGENT", "abcd")
    before = wk("show", "last", "--json").json
    said = wk(*arguments)
    assert said.code == 2
    assert "WATCHKEEPER_AGENT" in said.error
    assert wk("show", "last", "--json").json == before


def test_an_interruption_before_anything_has_begun_is_one_line(monkeypatch, capsys):
    from watchkeeper.__main__ import main

    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("watchkeeper.cli.app.run", interrupted)
    monkeypatch.setattr("sys.argv", ["wk", "sessions"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("name", ["nothing.jsonl", "~/nothing/at/all.db", "/nothing/at/all.jsonl"])
def test_watching_a_file_that_is_not_there_says_so(wk: Wk, demo: Path, name: str) -> None:
    refused = wk("watch", name)
    assert refused.code == 3
    assert "no such file or folder:" in refused.error
    assert "nothing" in refused.error


def test_an_empty_name_is_not_this_folder(wk: Wk, demo: Path) -> None:
    assert "no session ''" in wk("watch", "").error
    assert wk("watch", "claud").error.endswith("; did you mean `wk watch claude`?")
    late = wk("usage", "--since", "2026-11-02", "--until", "2026-11-01")
    assert (late.code, late.error) == (2, "--since 2026-11-02 is after --until 2026-11-01")
    assert "no such file or folder: ''" in wk("import", "").error


@pytest.mark.parametrize("search", ["state:bogus", "cost>abc", "ledger since:then"])
def test_a_search_by_a_filter_that_means_nothing_is_refused(wk: Wk, demo: Path, search: str) -> None:
    refused = wk("sessions", "--search", search)
    assert (refused.code, refused.out) == (2, "")
    assert search.split()[-1] in refused.error


def _configure(text: str) -> None:
    folder = Path(os.environ["WATCHKEEPER_CONFIG_DIR"])
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(text)


@pytest.mark.parametrize(
    ("configured", "why"), [("small", "'small' is not a model; write it as provider/model"),
     ("nowhere/small", "unknown model 'nowhere/small'"),
     ("anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY is not set")],
)  # fmt: skip
def test_a_model_for_memory_that_cannot_be_used_is_refused_before_a_session_exists(
    wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str, why: str
) -> None:
    _configure(f'[memory]\nmodel = "{configured}"\n')
    if configured != "anthropic/claude-haiku-4-5":
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    (tmp_path / "work").mkdir()
    model = "anthropic/claude-opus-4-5" if "haiku" not in configured else configured
    said = wk("run", "x", "--headless", "--workspace", tmp_path / "work", "--model", model)
    assert said.code == 2
    assert why in said.error
    assert not (tmp_path / "watchkeeper.db").exists() or wk("sessions", "--json").json == []


def test_the_surveyor_needs_no_model_for_memory_and_a_compaction_names_one_that_exists(wk, demo, tmp_path):
    _configure('[memory]\nmodel = "nowhere/small"\n')
    agent = rows(demo, "SELECT id FROM agents WHERE task_id IS NOT NULL ORDER BY ordinal")[0][0]
    refused = wk("compact", "last", agent, "--model", "nowhere/large")
    assert refused.code == 2
    assert "unknown model 'nowhere/large'" in refused.error
    assert wk("compact", "last", agent).code == 0
    edited = wk("memory", "edit", "last", agent, "--drop", "x")
    assert "'x' is not a message number or range" in edited.error


@pytest.mark.parametrize(
    ("configured", "model", "why"),
    [
        ('[openai-chat]\nbase_url = "localhost:8080"', "openai-chat/m", "openai-chat.base_url: 'localhost:8080' is not a valid address; use the form http://HOST:PORT/v1"),
        ('[openai-chat]\nurl = "x"', "openai-chat/m", "openai-chat.url: unknown setting; known settings: base_url, api_key_env"),
        ("", "openai-chat/m", "set OPENAI_API_KEY or OPENAI_BASE_URL, then run this command again"),
        ('[openai]\napi_key_env = "TEAM_KEY"', "openai/gpt-5", "TEAM_KEY is not set in the environment"),
        ("", "gpt-5", "did you mean openai/gpt-5?"),
        ("", "openai-chat/", "unknown model 'openai-chat/'"),
    ],
)  # fmt: skip
def test_a_server_of_openais_apis_that_cannot_be_used_is_refused_in_one_line(
    wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str, model: str, why: str
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    _configure(configured)
    (tmp_path / "work").mkdir()
    said = wk("run", "x", "--headless", "--workspace", tmp_path / "work", "--model", model)
    assert (said.code, said.out) == (2, "")
    assert why in said.error
    assert len(said.error.splitlines()) == 1


MISCONFIGURED = {
    "no value": ("model =", "is not valid TOML: the last line: invalid value; fix it"),
    "no name": ('\n= "x"', "is not valid TOML: line 2, column 1: "),
    "an end that is missing": ("slots = [1", "is not valid TOML: the last line: unclosed array"),
    "a slip": ("max_paralel = 2", "max_paralel: unknown setting; did you mean max_parallel?"),
    "a slip in a table": ("[memory]\nmodell = 'a/b'", "memory.modell: unknown setting; did you mean model?"),
    "a setting of a server": (
        "[mcp_servers.x]\ncomand = 'y'",
        "mcp_servers.x.comand: unknown setting; did you mean command?",
    ),
    "a word for a number": ("slots = 'many'", "slots: 'many' is not valid; write a whole number"),
    "half a slot": ("slots = 1.5", "slots: 1.5 is not valid; write a whole number"),
    "a number for a text": ("model = 5", "model: 5 is not valid; write text in quotes"),
    "a number for a switch": ("recall_vectors = 7", "recall_vectors: 7 is not valid; write true or false"),
    "a text for a table": ("anthropic = 'x'", "anthropic: 'x' is not valid; write a table"),
    "too many": ("slots = 999", "slots: 999 is out of range; write a number of at most 256"),
    "too few": ("max_parallel = 0", "max_parallel: 0 is out of range; write a number of at least 1"),
    "another word": (
        "[sandbox]\nbash = 'on'",
        'sandbox.bash: \'on\' is not valid; write "off", "workspace" or',
    ),
    "another permission": (
        "[permissions]\nbash = 'yes'",
        "permissions.bash: 'yes' is not valid; write \"allow\"",
    ),
    "a name of a server": ("[mcp_servers.'a b']\ncommand = 'y'", "mcp_servers: 'a b' is not a valid name"),
    "a secret in its place": (
        "[anthropic]\napi_key_env = ['sk-secret']",
        "anthropic.api_key_env: this is not valid",
    ),
}


@pytest.mark.parametrize("what", MISCONFIGURED)
def test_a_mistake_in_the_configuration_names_the_setting_and_what_to_write(wk: Wk, what: str) -> None:
    text, hint = MISCONFIGURED[what]
    _configure(text)
    said = wk("models")
    assert said.code == 2
    assert f"config.toml: {hint}" in said.error or f"config.toml {hint}" in said.error
    assert not re.search("pydantic|Input should|validation error|sk-secret|\\(at ", said.error)


def test_doctor_names_the_server_and_the_key_of_each_provider(wk, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    _configure('[openai-chat]\nbase_url = "http://127.0.0.1:8080/v1"')
    lines = {line.split()[1]: line for line in wk("doctor").out.splitlines()}
    assert "key found" in lines["openai"]
    assert "http://127.0.0.1:8080/v1; no key needed" in lines["openai-chat"]
    assert "sk-of-openai" not in str(lines)


def test_a_demo_in_the_folder_of_the_database_surveys_something_else(
    wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = wk("demo", "--headless", "--speed", "max", "--db", str(tmp_path / "own.db"))
    assert done.code == 0
    assert "surveying Watchkeeper's own files" in done.err
    assert "own.db" not in wk("artifacts", "last", "SURVEY.md", "--db", str(tmp_path / "own.db")).out
