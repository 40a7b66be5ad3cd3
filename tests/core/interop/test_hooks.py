"""Hooks of Claude Code: settings are restored byte for byte, scripts do nothing that the program could notice, and what
they wrote becomes rows whatever is in the files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchkeeper.cli.app import run
from watchkeeper.interop import hooks
from watchkeeper.interop.hook_spool import HookSpool, process_is_alive, process_start
from watchkeeper.records.errors import BadInput, NotFound, StoreUnusable
from watchkeeper.records.redact import Redactor
from watchkeeper.store import database, external
from watchkeeper.store.external import External, hooks_folder, load_external
from watchkeeper.store.writer import Writer

SESSION = "0a74beda-18fa-498d-abd9-6101d4d1f574"
KNOWN = hooks.Program("2.1.185", (*hooks.EVENTS, hooks.ASKING))
OURS = hooks.entries_of(Path("/data/w.db-hooks"), KNOWN.events, answer=True)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
groups = st.lists(
    st.fixed_dictionaries({"matcher": st.text(max_size=4), "hooks": st.lists(st.fixed_dictionaries({"type": st.just("command"), "command": st.text(max_size=8)}), max_size=2)}),
    max_size=2,
)  # fmt: skip
settings_values = st.builds(
    lambda before, found, after: before | ({"hooks": found} if found is not None else {}) | after,
    st.dictionaries(st.text(max_size=5), json_values, max_size=2),
    st.none()
    | st.dictionaries(st.sampled_from([*hooks.EVENTS[:4], "PreToolUse", hooks.ASKING]), groups, max_size=4),
    st.dictionaries(st.text(max_size=5), json_values, max_size=2),
).filter(lambda found: isinstance(found.get("hooks", {}), dict))
layouts = st.sampled_from(
    [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"ensure_ascii": False, "indent": 1}]
)


def _written(value: Any, layout: dict[str, Any]) -> str:
    return json.dumps(value, **layout)


@settings(max_examples=25)
@given(settings_values, layouts, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\n", "  \n\n"]))
def test_hooks_leave_every_other_setting_as_it_is_and_can_be_taken_out(value, layout, newline, end):
    text = _written(value, layout).replace("\n", newline) + end
    try:
        hooks.parse_settings(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            hooks.with_entries(text, OURS)
        return
    added = hooks.with_entries(text, OURS)
    found = json.loads(added)
    for event, entry in OURS.items():
        first, *others = found["hooks"][event]
        assert first["hooks"] == [{"type": "command", "command": entry.command, "timeout": entry.timeout}]
        assert others == value.get("hooks", {}).get(event, [])
    found.pop("hooks")
    assert found == {key: one for key, one in value.items() if key != "hooks"}
    commands = {entry.command for entry in OURS.values()}
    had = value.get("hooks", {})
    created = frozenset(
        [event for event in OURS if event not in had] + (["hooks"] if "hooks" not in value else [])
    )
    # Byte for byte, also where a person edited another place since.
    for edit in (str, lambda one: one.replace("{", '{"mine": 1,', 1)) if value else (str,):
        assert hooks.without_entries(edit(added), commands.__contains__, created) == edit(text)
    # Also after another program wrote the file anew.
    for edited in (added, json.dumps(json.loads(added) | {"added": 1})):
        bare = json.loads(hooks.without_entries(edited, commands.__contains__, created))
        bare.pop("added", None)
        assert bare == {key: one for key, one in value.items() if key != "added"}


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, // why\n}', '{"a": 1,}', "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', '{"a": 1, "a": 2}', '{"a": NaN}', "{", "nul",
     '{"a":' * 100_000, "\ufeff{}", "\udcff"],
)  # fmt: skip
def test_a_file_that_cannot_be_changed_safely_is_refused_in_one_line(text: str, claude: Claude) -> None:
    claude.settings.write_bytes(before := text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput) as refused:
        claude.install()
    assert "\n" not in str(refused.value)
    assert claude.settings.read_bytes() == before


class Claude:
    """A home of Claude Code, a database, and the hooks between them."""

    def __init__(self, folder: Path) -> None:
        self.home, self.db = folder / "home" / ".claude", folder / "data dir's" / "w.db"
        (self.home / "sessions").mkdir(parents=True)
        self.db.parent.mkdir()
        self.settings = self.home / "settings.json"
        self.folder = hooks_folder(self.db)
        self.log = folder / "log.jsonl"
        self.place = hooks.Settings(self.settings, self.home)
        self.writer = Writer(self.db)
        self.alive = True
        self.now = time.time() + 10
        self.spool = self.reader()

    def reader(self) -> HookSpool:
        return HookSpool(
            self.writer,
            Redactor({"SOME_API_KEY": "value-of-a-secret-key"}),
            homes=[self.home],
            now=lambda: self.now,
            is_alive=lambda pid, started: self.alive,
        )

    def install(self, *, answer: bool = False) -> hooks.Change:
        change = hooks.plan_install(self.db, self.place, KNOWN, answer=answer)
        hooks.install(self.db, self.place, change)
        return change

    def run(self, event: str, *, wait: bool = True, **payload: Any) -> subprocess.Popen[bytes]:
        """Run an event's hook as the program does."""
        (entry,) = json.loads(self.settings.read_text())["hooks"][event][0]["hooks"]
        base = {"session_id": SESSION, "transcript_path": str(self.log), "cwd": "/work/project"}
        text = json.dumps(base | {"hook_event_name": event} | payload).encode()
        command = ["/bin/sh", "-c", entry["command"]]
        environ = {"ANTHROPIC_API_KEY": "value-of-a-secret-key", "CLAUDE_CODE_SESSION_ID": SESSION}
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(text)
            child.stdin.close()
        if wait:
            assert child.wait(10) == 0
            assert child.stderr is not None
            assert child.stderr.read() == b""
        return child

    def spooled(
        self, name: str, data: bytes | None = None, *, at: float | None = None, **payload: Any
    ) -> None:
        """Put a file into the spool: these bytes, or an event of the session, written at this time."""
        told = {"session_id": SESSION, "hook_event_name": "UserPromptSubmit"} | payload
        (self.folder / "spool" / name).write_bytes(json.dumps(told).encode() if data is None else data)
        if at is not None:
            os.utime(self.folder / "spool" / name, (at, at))

    def look(self, spool: HookSpool | None = None) -> External:
        """What is found by a look that is due, at what is looked at now and then, too."""
        spool = spool or self.spool
        spool._slow_at = 0
        spool.step()
        return self.found()

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        """Rows of the database, over the reader's own connection."""
        return self.writer.submit(lambda group: group.connection.execute(sql, parameters).fetchall()).result()

    def found(self, *, ended_since: float = 0.0) -> External:
        connection = database.open_readonly(self.db)
        try:
            return load_external(connection, ended_since=ended_since)
        finally:
            connection.close()


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Claude]:
    claude = Claude(tmp_path)
    yield claude
    claude.spool.close()
    claude.writer.close()


OPENCODE = hooks.Program("1.18.33", hooks.OPENCODE_EVENTS, "opencode")


def test_the_plugin_of_opencode_is_a_file_of_its_own(claude: Claude, tmp_path: Path) -> None:
    place = hooks.opencode_settings({"XDG_CONFIG_HOME": str(tmp_path / "cfg")}, None)
    with pytest.raises(NotFound):
        hooks.plan_opencode_uninstall(claude.db, place.path)
    for answer in (False, True, True):
        change = hooks.plan_opencode_install(claude.db, place, OPENCODE, answer=answer)
        hooks.install(claude.db, place, change)
        (record,) = hooks.load_installed(claude.folder)
        assert record.answers is answer
        assert hooks.is_registered(claude.folder, record)
    place.path.write_text(place.path.read_text() + "// edited")
    assert not hooks.is_registered(claude.folder, record)
    hooks.uninstall(claude.db, hooks.plan_opencode_uninstall(claude.db, place.path))
    assert not place.path.exists()
    assert not claude.folder.exists()
    place.path.write_text("export const Mine = async () => ({})")
    with pytest.raises(BadInput, match="not a Watchkeeper plugin"):
        hooks.plan_opencode_install(claude.db, place, OPENCODE, answer=False)
    with pytest.raises(BadInput, match="not a Watchkeeper plugin"):
        hooks.plan_opencode_uninstall(claude.db, place.path)


PLUGIN_TRIAL = """
import { Watchkeeper } from %s
import { readdirSync, writeFileSync } from "node:fs"
const posted = [], client = { _client: { post: async (call) => posted.push(call) } }
const plugin = await Watchkeeper({ client })
for (const event of %s) await plugin.event({ event })
const asks = process.env.FOLDER + "/asks"
const nonce = readdirSync(asks).find((name) => name.startsWith(process.pid + ".")).split(".")[1]
const decision = { behavior: "deny", message: "no" }
writeFileSync(`${process.env.FOLDER}/answers/${nonce}.json`, JSON.stringify({ hookSpecificOutput: { decision } }))
while (!posted.length) await new Promise((next) => setTimeout(next, 20))
console.log(JSON.stringify([nonce, posted[0].url, posted[0].body]))
const properties = { sessionID: "ses_2", requestID: "per_1", reply: "reject" }
if (process.env.END) await plugin.event({ event: { type: "permission.replied", properties } })
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here to run the plugin")
def test_the_plugin_tells_of_states_and_questions_and_takes_any_event(claude: Claude, tmp_path: Path) -> None:
    place = hooks.Settings(tmp_path / "watchkeeper.mjs", tmp_path)
    hooks.install(claude.db, place, hooks.plan_opencode_install(claude.db, place, OPENCODE, answer=True))
    (claude.folder / "listening").write_text(f"{os.getpid()}\n")
    asks = {"id": "per_1", "permission": "bash", "patterns": ["touch a"], "metadata": {"command": "touch a"}}
    events: list[Any] = [
        None, {}, {"type": 7, "properties": []}, {"type": "session.idle"}, {"type": "session.error", "properties": {"sessionID": {}}},
        {"type": "permission.asked", "properties": {}}, {"type": "session.created", "properties": {"info": {"id": "ses_1", "directory": "/w"}}},
        {"type": "session.created", "properties": {"sessionID": "ses_2", "info": {"id": "ses_2", "parentID": "ses_1"}}},
        {"type": "session.status", "properties": {"sessionID": "ses_1", "status": {"type": "busy"}}},
        {"type": "session.idle", "properties": {"sessionID": "ses_2"}},
        {"type": "permission.asked", "properties": {**asks, "sessionID": "ses_2"}},
    ]  # fmt: skip
    program = PLUGIN_TRIAL % (json.dumps(str(place.path)), json.dumps(events))

    def told(**environ: str) -> Any:
        environ |= {"FOLDER": str(claude.folder), "PATH": os.environ["PATH"]}
        command = ["node", "--input-type=module", "-e", program]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=True)
        return json.loads(done.stdout)

    external.set_compact_instructions(claude.db, "ses_1", "keep the decisions")  # an id of OpenCode is an id
    nonce, url, body = told()
    assert (url, body) == ("/permission/per_1/reply", {"reply": "reject", "message": "no"})
    claude.spool.step()
    found = claude.found()
    (session,), (question,) = found.sessions, found.questions
    assert (session.program, session.program_session, session.status) == ("opencode", "ses_1", "waiting")
    assert (session.reason, session.folder) == ("permission: bash", "/w")
    assert (question.id, question.program, question.tool) == (nonce, "opencode", "bash")
    assert question.input == {"command": "touch a", "patterns": ["touch a"]}
    reply = {"program": "opencode", "session_id": "ses_1", "hook_event_name": "PermissionReplied", "question": nonce, "reply": "reject"}  # fmt: skip
    claude.spooled("7.1.json", **reply)
    claude.spool.step()
    assert claude.found().questions == ()
    ended, *_ = told(END="1")
    left = [
        path.name.split(".")[1]
        for name in ("asks", "answers")
        for path in (claude.folder / name).glob("*.json")
    ]
    assert ended not in left


@pytest.mark.parametrize(
    ("end", "status"), [("the log grows", "busy"), ("Interrupt", "idle"), ("Stop", "idle")]
)
def test_a_question_of_codex_waits_until_its_log_grows_or_the_turn_ends(end, status, claude, tmp_path):
    claude.install()
    log = tmp_path / f"rollout-2026-11-23T04-55-18-{SESSION}.jsonl"
    log.write_text("{}\n")
    os.utime(log, (now := int(claude.now) - 20, now))

    def take(event: str, at: float, **payload: Any) -> tuple[str, str]:
        claude.spooled(
            "7.1.json", at=at, hook_event_name=event, transcript_path=str(log), turn_id="t", **payload
        )
        (session,) = claude.look().sessions
        return session.status, session.reason

    asked = take("PermissionRequest", now + 0.1, tool_name="Bash", tool_input={"command": "touch made"})
    assert asked == ("waiting", "permission: Bash")
    assert claude.look().sessions[0].status == "waiting"
    if end == "the log grows":
        os.utime(log, (now + 5, now + 5))
        assert claude.look().sessions[0].status == status
    else:
        assert take(end, now + 5)[0] == status


@pytest.mark.parametrize("laid_out_anew", [False, True])
@pytest.mark.parametrize(
    "before",
    [
        None, b"", b"{}", b'{"model":"opus"}',
        b'{"hooks":{"Stop":[null,5,{"hooks":null},{"hooks":[7,{"command":[]}]},{}]}}',
        b'{\r\n\t"hooks": {"Stop": []},\r\n\t"n": 1e3\r\n}',
    ],
)  # fmt: skip
def test_the_end_of_an_installation_restores_the_file_byte_for_byte(before, laid_out_anew, claude):
    if before is not None:
        claude.settings.write_bytes(before)
        claude.settings.chmod(0o640)
    claude.install()
    claude.install(answer=True)
    assert claude.install(answer=True).is_needed is False
    assert hooks.is_registered(claude.folder, hooks.load_installed(claude.folder)[0])
    if before is not None:
        assert claude.settings.stat().st_mode & 0o777 == 0o640
    if laid_out_anew:  # as Claude Code does now and then
        claude.settings.write_text(json.dumps(json.loads(claude.settings.read_bytes()), indent=2))
    hooks.uninstall(claude.db, hooks.plan_uninstall(claude.db, claude.settings))
    assert (claude.settings.read_bytes() if claude.settings.exists() else None) == before
    assert not claude.folder.exists()


def test_hooks_whose_record_was_deleted_leave_nothing_behind(claude: Claude) -> None:
    claude.settings.write_bytes(before := b'{"hooks":{"PreToolUse":[], "Stop":[{"hooks":[]}]},\t"a": 1}')
    claude.install(answer=True)
    (claude.folder / "installed.json").unlink()
    hooks.uninstall(claude.db, hooks.plan_uninstall(claude.db, claude.settings))
    assert claude.settings.read_bytes() == before


@pytest.mark.parametrize(
    ("said", "all_of_them"),
    [("2.1.185 (Claude Code)", True), ("3.0.0", True), ("2.1.184 (Claude Code)", False),
     ("shim: none", False)],
)  # fmt: skip
def test_the_version_tells_what_a_wrapper_of_the_program_knows(said, all_of_them, tmp_path):
    wrapper = tmp_path / "claude"
    wrapper.write_text(f"#!/bin/sh\necho '{said}'\n")
    wrapper.chmod(0o755)
    known = hooks.find_program({"PATH": str(tmp_path)}).events
    assert set(known) == ({*hooks.EVENTS, hooks.ASKING} if all_of_them else hooks.OLD_EVENTS)


@pytest.mark.parametrize(
    ("program", "place"),
    [("claude", ".claude"), ("codex", ".codex"), ("opencode", ".config/opencode/plugins")],
)
def test_the_command_shows_the_change_and_takes_it_back(program, place, tmp_path, monkeypatch, capsys):
    home, binary, db = tmp_path / "home", tmp_path / program, ["--db", str(tmp_path / "w.db")]
    (home / place).mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho codex-cli 1.170.1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "WATCHKEEPER_AGENT"):
        monkeypatch.delenv(name, raising=False)
    assert run(["hooks", "install", program, "--binary", str(binary), *db]) == 2
    assert "--yes" in capsys.readouterr().err
    assert not list((home / place).iterdir())
    assert run(["hooks", "install", program, "--binary", str(binary), "--yes", *db]) == 0
    assert "/spool" in capsys.readouterr().out
    assert run(["hooks", "status", "--json", *db]) == 0
    (installed,) = json.loads(capsys.readouterr().out)["installed"]
    assert installed["registered"]
    assert "SessionStart" in installed["events"]
    assert run(["hooks", "uninstall", program, "--yes", *db]) == 0
    assert not list((home / place).iterdir())


def test_settings_that_are_a_link_stay_one(claude: Claude, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text('{"a": 1}')
    claude.settings.symlink_to(tmp_path / "dotfiles.json")
    claude.install()
    assert claude.settings.is_symlink()
    assert "spool.sh" in (tmp_path / "dotfiles.json").read_text()
    hooks.uninstall(claude.db, hooks.plan_uninstall(claude.db, claude.settings))
    assert (tmp_path / "dotfiles.json").read_text() == '{"a": 1}'


def test_a_change_by_others_in_between_is_not_overwritten(claude: Claude) -> None:
    change = hooks.plan_install(claude.db, claude.place, KNOWN, answer=False)
    claude.settings.write_text('{"theirs": 1}')
    with pytest.raises(BadInput):
        hooks.install(claude.db, claude.place, change)
    assert claude.settings.read_text() == '{"theirs": 1}'


def test_a_hook_says_nothing_and_stores_no_environment(claude: Claude) -> None:
    claude.install()
    for payload in ({"last_assistant_message": "done"}, {"last_assistant_message": "x" * 300_000}):
        child = claude.run("Stop", **payload)
        assert child.stdout is not None
        assert child.stdout.read() == b""
    files = list((claude.folder / "spool").iterdir())
    assert len(files) == 2
    assert all(
        file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size <= hooks.MOST_BYTES for file in files
    )
    assert not any(b"value-of-a-secret-key" in file.read_bytes() for file in files)


@pytest.mark.parametrize("damage", ["no folder", "no spool", "a broken script", "a full spool", "no room"])
def test_a_hook_without_watchkeeper_does_nothing_and_exits_with_0(damage: str, claude: Claude) -> None:
    claude.install(answer=True)
    spool = claude.folder / "spool"
    if damage == "no folder":
        claude.folder.rename(claude.folder.with_name("gone"))
    elif damage == "no spool":
        spool.rmdir()
    elif damage == "a full spool":
        script = claude.folder / "spool.sh"
        script.write_text(script.read_text().replace(str(hooks.MOST_PENDING), "5"))
        for number in range(5):
            (spool / f"1.{number}.json").touch()
    elif damage == "no room":
        (claude.folder / "spool.sh").write_text(
            (claude.folder / "spool.sh").read_text().replace("umask 077", "ulimit -f 0")
        )
    else:
        for name in ("spool.sh", "compact.sh", "answer.sh"):
            (claude.folder / name).write_text("if then ((( 'unclosed\nexit 2")
    for event in (*hooks.EVENTS, hooks.ASKING):
        child = claude.run(event, prompt="x")
        assert child.stdout is not None
        assert child.stdout.read() == b""
    assert damage != "a full spool" or len(list(spool.iterdir())) == 5


def test_a_compaction_is_told_the_users_instructions_and_its_log_is_marked(claude: Claude) -> None:
    claude.install()
    claude.log.write_bytes(b"x" * 4_321)
    external.set_compact_instructions(claude.db, SESSION, "keep the decisions")
    claude.now = time.time()
    child = claude.run("PreCompact", trigger="auto", custom_instructions="")
    assert child.stdout is not None
    assert child.stdout.read() == b"keep the decisions\n"
    claude.spool.step()
    (session,) = claude.found().sessions
    assert session.status == "compacting"
    (compaction,) = session.compactions
    assert (compaction["path"], compaction["bytes"], compaction["ended_at"]) == (str(claude.log), 4_321, None)
    claude.run("PostCompact", trigger="auto", compact_summary="s")
    claude.now = time.time() + 10
    claude.spool.step()
    (session,) = claude.found().sessions
    assert session.status == "idle"
    assert session.compactions[0]["ended_at"] is not None


def test_events_become_the_state_of_one_session(claude: Claude) -> None:
    claude.install()
    seen = []
    for number, (event, payload) in enumerate([
        ("SessionStart", {"source": "startup"}),
        ("UserPromptSubmit", {"prompt": "the key is value-of-a-secret-key"}),
        ("Notification", {"notification_type": "permission_prompt", "message": "Claude needs you"}),
        ("Stop", {"last_assistant_message": "used value-of-a-secret-key"}),
        ("StopFailure", {"error": "rate_limit"}),
        ("SessionEnd", {"reason": "prompt_input_exit"}),
        ("SessionEnd", {"reason": "other"}),
    ]):  # fmt: skip
        claude.run(event, **payload)
        (file,) = (claude.folder / "spool").iterdir()
        os.utime(file, ns=(moment := 1_000_000_000 * (1_000 + number), moment))
        assert claude.spool.step() == 1
        (session,) = claude.found().sessions
        seen.append((session.status, session.reason))
    assert seen == [("idle", ""), ("busy", ""), ("waiting", "Claude needs you"), ("idle", ""), ("failed", "rate_limit"),
                    ("ended", "prompt_input_exit"), ("ended", "")]  # fmt: skip
    assert "[redacted" in session.last_message
    assert (
        b"value-of-a-secret-key" not in claude.db.read_bytes() + claude.db.with_name("w.db-wal").read_bytes()
    )
    assert list((claude.folder / "spool").iterdir()) == []


def test_what_claude_code_really_sends_becomes_the_state_of_one_session(claude: Claude) -> None:
    """Recorded from 2.1.197 over a mock server: a question, a sub-agent, a compaction, a usage limit and an end."""
    claude.install()
    limit = (
        "rate_limit: API Error: Request rejected (429) · This request would exceed your account's rate limit."
    )
    expected = [
        ("SessionStart", "idle", ""), ("UserPromptSubmit", "busy", ""), ("PermissionRequest", "waiting", "permission: Bash"),
        ("Notification", "waiting", "Claude needs your permission"), ("Stop", "idle", ""), ("UserPromptSubmit", "busy", ""),
        ("SubagentStop", "busy", ""), ("Stop", "idle", ""), ("PreCompact", "compacting", "manual"), ("SubagentStop", "compacting", "manual"),
        ("SessionStart", "compacting", "manual"), ("PostCompact", "idle", ""), ("UserPromptSubmit", "busy", ""),
        ("StopFailure", "failed", limit), ("SessionEnd", "ended", "prompt_input_exit"),
    ]  # fmt: skip
    seen = []
    for number, line in enumerate((Path(__file__).parent / "claude_hooks.jsonl").read_bytes().splitlines()):
        claude.spooled("7.1.json", line, at=1_000 + number)
        claude.spool.step()
        (session,) = claude.found().sessions
        seen.append((json.loads(line)["hook_event_name"], session.status, session.reason))
    assert seen == expected
    assert session.folder == "/home/dev/project"
    (compaction,) = session.compactions
    assert (compaction["instructions"], compaction["ended_at"]) == ("keep the names", 1_011)


def test_codex_fires_the_same_events_into_the_same_spool(claude: Claude, tmp_path: Path) -> None:
    claude.install(answer=True)
    answers = (claude.folder / "answer.sh").read_text()
    place = hooks.Settings(tmp_path / "hooks.json", tmp_path / ".codex")
    codex = hooks.Program("0.169.0", hooks.CODEX_EVENTS, "codex")
    hooks.install(claude.db, place, hooks.plan_install(claude.db, place, codex, answer=False))
    assert (claude.folder / "answer.sh").read_text() == answers
    assert all(hooks.is_registered(claude.folder, each) for each in hooks.load_installed(claude.folder))
    assert "compact.sh" not in place.path.read_text()
    claude.spooled("7.1.json", transcript_path=f"/s/rollout-2026-11-23T04-55-18-{SESSION}.jsonl")
    claude.spool.step()
    assert [(each.program, each.status) for each in claude.found().sessions] == [("codex", "busy")]
    assert not any(each.answers for each in hooks.load_installed(claude.folder) if each.program == "codex")
    assert "answer.sh" not in place.path.read_text()
    hooks.uninstall(claude.db, hooks.plan_uninstall(claude.db, place.path))
    assert not place.path.exists()
    assert claude.folder.exists()


HOSTILE = [b"", b"{", b"null", b"[]", b'{"session_id": 3}', b'{"session_id": "../../x", "hook_event_name": "Stop"}', b"\xff\xfe{}", b"\0" * 70_000,
           b'{"a":' * 20_000, json.dumps({"session_id": SESSION, "hook_event_name": "Unheard", "cwd": 7}).encode(),
           json.dumps({"session_id": SESSION, "hook_event_name": ["Stop"], "transcript_path": "/x\0y"}).encode()]  # fmt: skip


def test_damaged_and_hostile_files_change_nothing_and_do_not_stay(claude: Claude, tmp_path: Path) -> None:
    claude.install()
    for number, data in enumerate(HOSTILE):
        claude.spooled(f"7.{number}.json", data)
    spool = claude.folder / "spool"
    (spool / "8.1.json").symlink_to("/etc/passwd")
    os.mkfifo(spool / "8.2.json")
    (spool / "8.3.json").mkdir()
    (claude.folder / "asks" / f"8.{'a' * 32}.json").mkdir()
    (claude.home / "sessions" / "8.json").mkdir()
    whole = {
        "session_id": SESSION,
        "hook_event_name": "Stop",
        "cwd": "/work",
        "last_assistant_message": "y" * 80_000,
    }
    claude.spooled("9.1.json", json.dumps(whole).encode()[: hooks.MOST_BYTES])
    claude.spool.step()
    (session,) = claude.found().sessions
    assert (session.status, session.folder, session.pid) == ("idle", "/work", 9)
    assert [path.name for path in spool.iterdir()] == ["8.3.json"]


def test_the_status_data_of_claude_code_says_what_is_left_of_usage_windows(claude: Claude) -> None:
    claude.install()
    data = {"session_id": SESSION, "cwd": "/work/project", "cost": {"total_cost_usd": 1.5},
            "rate_limits": {"five_hour": {"used_percentage": 81, "resets_at": claude.now + 60}, "seven_day": {}}}  # fmt: skip
    # As a status line hands it on.
    subprocess.run(["/bin/sh", str(claude.folder / "spool.sh")], input=json.dumps(data).encode(), check=True)
    claude.spooled("7.7.json", b'{"rate_limits": {"five_hour": []}}')
    claude.spooled("8.8.json", b'{"rate_limits": 5}')
    assert claude.look().sessions == ()
    assert claude.rows("SELECT provider, account, minutes, used_percent, source FROM quota_readings") == [
        ("anthropic", "", 300, 81.0, "Claude Code's status data")
    ]
    assert os.listdir(claude.folder / "spool") == []


def test_a_half_written_file_is_read_when_it_is_whole(claude: Claude) -> None:
    claude.install()
    data = json.dumps({"session_id": SESSION, "hook_event_name": "UserPromptSubmit"}).encode()
    claude.now = time.time()
    claude.spooled("7.1.json", data[:20])
    claude.spool.step()
    assert claude.found().sessions == ()
    claude.spooled("7.1.json", data)
    claude.spool.step()
    assert claude.found().sessions[0].status == "busy"


def test_nothing_is_lost_while_nothing_can_be_written(claude, monkeypatch):
    claude.install()
    claude.run("UserPromptSubmit", prompt="p")
    claude.spool.step()
    claude.run("Stop", last_assistant_message="m")

    def full(connection: object, states: object) -> None:
        raise StoreUnusable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(external, "save_states", full)
        with pytest.raises(StoreUnusable):
            claude.spool.step()
    assert len(list((claude.folder / "spool").iterdir())) == 1
    claude.spool.step()
    assert claude.found().sessions[0].status == "idle"


def test_a_thousand_events_are_read_in_one_look(claude: Claude) -> None:
    claude.install()
    for number in range(1_000):
        event = ("UserPromptSubmit", "Stop")[number % 2]
        claude.spooled(f"7.{number}.json", session_id=f"s-{number % 50}", hook_event_name=event)
    assert claude.spool.step() == 1_000
    assert len(claude.found().sessions) == 50


def _says(claude: Claude, at: float, **about: Any) -> None:
    file = claude.home / "sessions" / "77.json"
    file.write_text(json.dumps({"pid": 77, "sessionId": SESSION, "cwd": "/work", "procStart": "1"} | about))
    os.utime(file, (at, at))


def test_the_programs_own_files_say_who_waits_without_any_hook(claude: Claude) -> None:
    for number, (said, status, reason) in enumerate(
        (("waiting", "waiting", "permission prompt"), ("busy", "busy", ""), ("shell", "idle", ""))
    ):
        _says(claude, 100.0 + number, status=said, waitingFor=reason)
        claude.spool.step()
        (session,) = claude.found().sessions
        assert (session.status, session.reason, session.pid) == (status, reason, 77)
    claude.alive = False
    claude.reader().step()  # as after a restart
    assert claude.found().sessions[0].status == "ended"


def test_a_process_that_took_up_another_session_ends_the_one_before(claude: Claude) -> None:
    _says(claude, 100.0, status="busy")
    claude.spool.step()
    _says(claude, 101.0, status="idle", sessionId="after-clear")
    claude.spool.step()
    found = {each.program_session: each.status for each in claude.found().sessions}
    assert found == {SESSION: "ended", "after-clear": "idle"}


def test_a_session_that_a_run_drives_is_not_listed_whenever_the_run_began(claude: Claude) -> None:
    claude.install()
    claude.spool.step()

    def take(session: str) -> list[str]:
        claude.spooled("7.1.json", session_id=session)
        return [each.program_session for each in claude.look().sessions]

    def drive(session: str) -> None:
        sql = "INSERT INTO agent_programs (agent_id, session_id, program, program_session, folder, opened_at) VALUES (?1, 's', 'p', ?1, '', 0)"
        claude.rows(sql, session)

    drive("known-before")
    assert take("known-before") == []
    assert take("known-later") == ["known-later"]
    drive("known-later")
    assert claude.look().sessions == ()
    assert take("known-later") == []


@pytest.mark.parametrize("seconds", [3, 4_000])
def test_events_count_also_after_the_clock_was_set_back(seconds: int, claude: Claude) -> None:
    claude.install()
    began = int(claude.now)

    def take(event: str, at: float) -> str:
        claude.spooled("7.1.json", at=at, hook_event_name=event)
        claude.now = at + 0.05
        claude.spool.step()
        return claude.found().sessions[0].status

    assert take("UserPromptSubmit", began) == "busy"
    assert take("Stop", began - seconds) == "idle"
    assert take("UserPromptSubmit", began - seconds + 1) == "busy"
    _says(claude, began - seconds + 2, status="waiting", waitingFor="a person")
    claude.now = began - seconds + 2.05
    claude.spool.step()
    assert claude.found().sessions[0].status == "waiting"


def test_a_process_is_known_by_its_number_and_start_and_a_killed_one_is_gone_at_once() -> None:
    child = subprocess.Popen(["sleep", "60"])
    started = process_start(child.pid)
    assert process_is_alive(child.pid, started)
    if started:
        assert not process_is_alive(child.pid, str(int(started) - 1))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
    assert not (started and process_is_alive(child.pid, started))
    child.wait()
    assert not process_is_alive(child.pid, started)


def test_a_session_that_another_process_resumed_has_not_ended(claude: Claude) -> None:
    claude.install()
    _says(claude, time.time(), status="idle", procStart="1")
    claude.spool.step()
    (claude.home / "sessions" / "77.json").unlink()
    spool = HookSpool(claude.writer, Redactor({}), homes=[claude.home])
    claude.spooled(f"{os.getpid()}.1.json")
    spool.step()
    assert claude.look(spool).sessions[0].status == "busy"


# --- Answers ---

BASH = {"command": "touch made", "description": "run it"}
COLOURS = {
    "questions": [
        {"question": "Which colour?", "options": [{"label": "Red"}, {"label": "Blue"}], "multiSelect": False}
    ]
}
Ask = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def ask(claude: Claude) -> Iterator[Ask]:
    """Starts the hook of a question and reads it into a row."""
    claude.install(answer=True)
    (claude.folder / "listening").write_text(f"{os.getpid()}\n")
    script = claude.folder / "answer.sh"
    script.write_text(script.read_text().replace("sleep 0.2", "sleep 0.01").replace("grace=15", "grace=0"))
    children: list[subprocess.Popen[bytes]] = []
    (claude.home / "sessions" / f"{os.getpid()}.json").write_text('{"status":"waiting"}')

    def start(tool: str = "Bash", given: dict[str, Any] = BASH) -> subprocess.Popen[bytes]:
        suggestions = [{"type": "setMode", "mode": "acceptEdits"}]
        child = claude.run(
            "PermissionRequest", wait=False, tool_name=tool, tool_input=given,
            permission_suggestions=suggestions,
        )  # fmt: skip
        children.append(child)
        deadline = time.monotonic() + 10
        while not claude.found().questions and time.monotonic() < deadline:
            claude.spool.step()
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


def _output(child: subprocess.Popen[bytes]) -> Any:
    assert child.stdout is not None
    out = child.stdout.read()
    assert child.wait(10) == 0
    return json.loads(out)["hookSpecificOutput"]["decision"] if out else None


def _log_result(claude: Claude, given: dict[str, Any], **about: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "not there"} | about
    blocks = [[{"type": "tool_use", "id": "t1", "name": "Bash", "input": given}], [result]]
    with claude.log.open("a") as file:
        file.writelines(json.dumps({"message": {"content": content}}) + "\n" for content in blocks)


def test_an_answer_reaches_the_hook_that_waits_and_the_log_confirms_it(claude: Claude, ask: Ask) -> None:
    claude.log.write_text("")
    child = ask()
    (question,) = claude.found().questions
    assert (question.tool, question.input, question.status) == ("Bash", BASH, "waiting")
    external.answer_question(claude.db, question, "me", allow=True)
    assert _output(child) == {"behavior": "allow"}
    assert claude.found().questions[0].status == "sent"
    with pytest.raises(ValueError, match="no longer open"):
        external.answer_question(claude.db, question, "me", allow=True)
    with claude.log.open("ab") as file:
        file.truncate(9 << 20)  # behind a line of 9 MB
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    _log_result(claude, BASH)
    for _ in range(3):
        claude.look()
    assert claude.look().questions == ()
    found = claude.rows("SELECT status, outcome, decided_by FROM external_questions")
    assert found == [("answered", "allowed", "me")]


@pytest.mark.parametrize(("refused", "outcome"), [(False, "allowed"), (True, "denied")])
def test_an_answer_is_confirmed_also_by_a_reader_that_was_started_later(refused, outcome, claude, ask):
    secret = {"command": "touch value-of-a-secret-key"}
    _log_result(claude, secret, is_error=not refused)  # the same call before
    child = ask(given=secret)
    external.answer_question(claude.db, claude.found().questions[0], "me", allow=not refused)
    assert _output(child)
    claude.spool.close()
    again = claude.reader()
    again.step()
    _log_result(claude, secret, is_error=refused)
    claude.look(again)
    assert claude.rows("SELECT status, outcome FROM external_questions") == [("answered", outcome)]


def test_a_denial_tells_the_reason_and_choices_are_answered_by_place(claude: Claude, ask: Ask) -> None:
    child = ask()
    external.answer_question(claude.db, claude.found().questions[0], "me", allow=False, reason="not there")
    assert _output(child) == {"behavior": "deny", "message": "not there"}
    _log_result(claude, BASH, is_error=True)
    claude.look()
    assert claude.rows("SELECT outcome FROM external_questions") == [("denied",)]
    claude.rows("DELETE FROM external_questions")
    child = ask("AskUserQuestion", COLOURS)
    (question,) = claude.found().questions
    with pytest.raises(ValueError, match="answer each"):
        external.answer_question(claude.db, question, "me", allow=True)
    external.answer_question(claude.db, question, "me", allow=True, choices={"0": "Blue"})
    assert _output(child) == {
        "behavior": "allow",
        "updatedInput": COLOURS | {"answers": {"Which colour?": "Blue"}},
    }


@pytest.mark.parametrize("end", ["answered in the terminal", "withdrawn", "ended by the program"])
def test_a_hook_ends_in_silence_when_its_question_is_gone(end: str, claude: Claude, ask: Ask) -> None:
    child = ask()
    if end == "answered in the terminal":
        (claude.home / "sessions" / f"{os.getpid()}.json").write_text('{"status":"busy"}')
    elif end == "withdrawn":
        next((claude.folder / "asks").iterdir()).unlink()
    else:
        child.terminate()
        child.wait(10)
    assert end == "ended by the program" or _output(child) is None
    if end == "ended by the program":
        return
    assert claude.look().questions == ()


def test_a_question_of_the_evening_can_be_answered_in_the_morning(claude: Claude, ask: Ask) -> None:
    child = ask()
    entry = json.loads(claude.settings.read_text())["hooks"][hooks.ASKING][0]["hooks"][0]
    assert entry["timeout"] >= 14 * 3_600
    claude.now += 14 * 3_600
    claude.look()
    external.answer_question(claude.db, claude.found().questions[0], "me", allow=True)
    assert _output(child) == {"behavior": "allow"}


def test_a_hook_asks_nobody_when_nobody_listens(claude: Claude) -> None:
    claude.install(answer=True)
    assert _output(claude.run("PermissionRequest", tool_name="Bash", tool_input=BASH)) is None
    (claude.folder / "listening").write_text("999999999\n")
    assert _output(claude.run("PermissionRequest", tool_name="Bash", tool_input=BASH)) is None
    assert list((claude.folder / "asks").iterdir()) == []


def test_lone_surrogates_in_a_payload_stop_nothing(claude: Claude) -> None:
    claude.install()
    claude.spooled(f"{os.getpid()}.1.json", hook_event_name="StopFailure", cwd="/w/\ud800", error="\udfff")
    claude.spool.step()
    assert [each.folder for each in claude.found().sessions] == ["/w/?"]
