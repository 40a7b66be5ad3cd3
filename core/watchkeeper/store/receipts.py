"""Receipts: what the rows say of an agent's end, beside what it wrote.

Three facts, from calls and outputs alone: the promised artifacts and files that are missing, the last outcome of each
test or build command after the last edit, and an ending without any call. No rule reads what an agent wrote. Texts are
hostile until sanitised.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from watchkeeper.records.text import one_line, plural
from watchkeeper.records.tool_inputs import command_of, edited_files
from watchkeeper.store.driver import IN_LIST, Reads, decode_or, list_of
from watchkeeper.store.names import AGENT_NAME
from watchkeeper.store.plans import FILE_OUTPUT

MOST_CALLS = 4_000
"""The newest calls of each agent that are read."""
MOST_COMMANDS = 20
COMMAND_CHARACTERS = 4_000
"""A longer command is not parsed."""


class Presence(StrEnum):
    """Whether an expected output is there."""

    THERE = "there"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """A file that no call named, which a command may have written."""


class Outcome(StrEnum):
    """How a command ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Its exit code is not in the rows: it ran in front of a pipe, for example, or was interrupted."""


@dataclass(frozen=True, slots=True)
class Output:
    """An expected output of a task."""

    name: str
    presence: Presence


@dataclass(frozen=True, slots=True)
class CommandRun:
    """The last run of a test or build command."""

    command: str
    outcome: Outcome
    after_last_edit: bool
    """Whether no file was edited with a tool since."""
    message: str
    """Pointer to the message that made the call."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The facts of one agent's end."""

    agent_id: str
    agent: str
    task: str
    """The name of its task, or empty."""
    calls: int
    """The calls of the agent and of the agents below it."""
    outputs: tuple[Output, ...]
    commands: tuple[CommandRun, ...]
    """Those after the last edit first, then the newest first."""

    @property
    def missing(self) -> list[str]:
        return [one.name for one in self.outputs if one.presence is Presence.MISSING]

    @property
    def failed(self) -> list[str]:
        """The commands that failed after the last edit."""
        return [one.command for one in self.commands if one.after_last_edit and one.outcome is Outcome.FAILED]

    @property
    def flagged(self) -> bool:
        """Whether a person should look: something is missing, a command failed, or a task ended without a call."""
        return bool(self.missing or self.failed or (self.task and not self.calls))

    @property
    def mark(self) -> str:
        """`!` a person should look, `✓` outputs and commands are as they should be, `·` there is nothing to say."""
        if self.flagged:
            return "!"
        good = any(one.after_last_edit and one.outcome is Outcome.PASSED for one in self.commands)
        return "✓" if good or any(one.presence is Presence.THERE for one in self.outputs) else "·"

    @property
    def summary(self) -> str:
        """One line, what a person should look at first."""
        late = [one for one in self.commands if one.after_last_edit]
        passed = [one.command for one in late if one.outcome is Outcome.PASSED]
        parts = [
            *([] if self.calls else ["ended without a tool call"]),
            *([f"missing: {_listed(self.missing)}"] if self.missing else []),
            *([f"failed after the last edit: {_listed(self.failed)}"] if self.failed else []),
            *([f"passed after the last edit: {_listed(passed)}"] if passed else []),
            *(["no test or build command ran after the last edit"] if self.commands and not late else []),
        ]
        return one_line("; ".join(parts), 200) or plural(self.calls, "call")

    @property
    def says_something(self) -> bool:
        """Whether there is more than a number of calls."""
        return bool(self.outputs or self.commands or not self.calls)

    def as_json(self) -> dict[str, Any]:
        """As `wk show --json` prints it."""
        return {
            "agent": self.agent_id,
            "name": self.agent,
            "task": self.task,
            "mark": self.mark,
            "flagged": self.flagged,
            "summary": self.summary,
            "calls": self.calls,
            "outputs": [{"name": one.name, "presence": one.presence} for one in self.outputs],
            "commands": [
                {"command": one.command, "outcome": one.outcome, "after_last_edit": one.after_last_edit,
                 "message": one.message}
                for one in self.commands
            ],
        }  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(one_line(name, 60) for name in names[:3]) + more


def session_receipts(reads: Reads, session_id: str, only: Collection[str] | None = None) -> list[Receipt]:
    """A receipt of each agent that is done, in the order of the agents. `reads` has `one` and `all`; `only` are the
    agents whose receipts are wanted: also those that have not ended, but wait for a person."""
    rows = reads.all(
        f"SELECT a.id, {AGENT_NAME}, a.parent_agent_id, a.status, t.name, t.expected_outputs, t.id FROM agents a"
        " LEFT JOIN tasks t ON t.id = a.task_id AND t.assigned_agent = a.id WHERE a.session_id = ? ORDER BY a.ordinal",
        (session_id,),
    )
    below: dict[str, list[str]] = {}
    for row in rows:
        if row[2] and row[2] != row[0]:
            below.setdefault(row[2], []).append(row[0])
    found = []
    for agent_id, name, _, status, task, expected, task_id in rows:
        if status != "done" if only is None else agent_id not in only:
            continue
        family = _family(agent_id, below)
        count = sum(
            reads.one("SELECT count(*) FROM tool_calls WHERE agent_id = ?", (one,))[0] for one in family
        )
        calls = sorted(_calls(reads, family), key=lambda call: call.id)
        outputs = _outputs(reads, agent_id, task_id, decode_or(expected, []), calls) if task_id else ()
        found.append(Receipt(agent_id, name, task or "", count, outputs, _commands(calls)))
    return found


def _family(agent_id: str, below: dict[str, list[str]]) -> list[str]:
    """An agent and all agents below it."""
    found = {agent_id: None}
    waiting = [agent_id]
    while waiting:
        for child in below.get(waiting.pop(), ()):
            if child not in found:
                found[child] = None
                waiting.append(child)
    return list(found)


@dataclass(frozen=True, slots=True)
class _Call:
    id: int
    message: str
    given: Any
    ended: bool
    failed: bool


def _calls(reads: Reads, family: Sequence[str]) -> Iterator[_Call]:
    """The newest calls, with their inputs."""
    for agent_id in family:
        rows = reads.all(
            "SELECT id, seq, tool_use_id, status, is_error, edited_input FROM tool_calls WHERE agent_id = ? ORDER BY id"
            " DESC LIMIT ?",
            (agent_id, MOST_CALLS),
        )
        if not rows:
            continue
        contents = reads.all(
            f"SELECT seq, content FROM messages WHERE agent_id = ? AND seq {IN_LIST}",
            (agent_id, list_of(sorted({row[1] for row in rows}))),
        )
        inputs = {
            (seq, block.get("id")): block.get("input")
            for seq, content in contents
            for block in _blocks(decode_or(content, []))
        }
        for call_id, seq, use_id, status, is_error, edited in rows:
            if (seq, use_id) in inputs:
                given = decode_or(edited, None) if edited else inputs[seq, use_id]
                yield _Call(
                    call_id, f"message://{agent_id}/{seq}", given, status in ("done", "error"), bool(is_error)
                )


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _outputs(
    reads: Reads, agent_id: str, task_id: str, expected: Any, calls: Sequence[_Call]
) -> tuple[Output, ...]:
    """What the task expects, against what its agents saved and wrote."""
    names = [str(name) for name in expected] if isinstance(expected, list) else []
    rows = reads.all(
        "SELECT name FROM outputs WHERE (task_id = ? OR agent_id = ?) AND kind <> 'result'",
        (task_id, agent_id),
    )
    saved = {row[0] for row in rows}
    written = {
        path.removeprefix("./")
        for call in calls
        if call.ended and not call.failed
        for path in edited_files(call.given)
    }
    runs_commands = any(command_of(call.given) for call in calls)
    found = []
    for name in names:
        path = name.removeprefix(FILE_OUTPUT).removeprefix("./")
        if not name.startswith(FILE_OUTPUT):
            presence = Presence.THERE if name in saved else Presence.MISSING
        elif any(one == path or one.endswith(f"/{path}") for one in written):
            presence = Presence.THERE
        else:
            presence = Presence.UNKNOWN if runs_commands else Presence.MISSING
        found.append(Output(path if name.startswith(FILE_OUTPUT) else name, presence))
    return tuple(found)


def _commands(calls: Sequence[_Call]) -> tuple[CommandRun, ...]:
    """The last runs of test and build commands, each command once, the newest first; `calls` in their order."""
    edits = (
        call.id for call in reversed(calls) if call.ended and not call.failed and edited_files(call.given)
    )
    last_edit = next(edits, 0)
    runs: dict[str, CommandRun] = {}
    for call in reversed(calls):
        for command, shows_exit in reversed(test_commands(command_of(call.given))):
            outcome = Outcome.FAILED if call.failed else Outcome.PASSED
            if not (call.ended and shows_exit):
                outcome = Outcome.UNKNOWN
            runs.setdefault(command, CommandRun(command, outcome, call.id > last_edit, call.message))
        if len(runs) >= MOST_COMMANDS:
            break
    return tuple(runs.values())[:MOST_COMMANDS]


# --- Which commands test or build ---------------------------------------------------------------------------

_ANY: frozenset[str] = frozenset()
_WHATEVER_ARGUMENTS = (
    "pytest py.test tox nox make ninja ctest mvn gradle gradlew jest vitest mocha tsc eslint ruff mypy pyright rspec phpunit"
    " bazel meson msbuild xcodebuild golangci-lint shellcheck"
)
_TESTS_OR_BUILDS = {
    **dict.fromkeys(_WHATEVER_ARGUMENTS.split(), _ANY),
    "cargo": frozenset({"test", "build", "check", "clippy", "nextest"}),
    "go": frozenset({"test", "build", "vet"}),
    "dotnet": frozenset({"test", "build"}),
    "swift": frozenset({"test", "build"}),
    "mix": frozenset({"test", "compile"}),
    "cmake": frozenset({"--build"}),
    "npm": frozenset({"test", "t", "run"}),
    "yarn": frozenset({"test", "build", "lint", "run"}),
    "pnpm": frozenset({"test", "build", "lint", "run"}),
    "bun": frozenset({"test", "build", "run"}),
}
"""Programs by their names, and the first arguments with which they test or build; empty: all."""
_MODULES = frozenset({"pytest", "unittest", "tox", "nox", "mypy", "ruff", "build"})
"""Modules behind `python -m` that test or build."""
_RUNNERS = {"uv": 2, "poetry": 2, "pipenv": 2, "npx": 1, "time": 1, "nice": 1, "bundle": 2}
"""Programs that run the rest of their words, and how many words come before it."""


def test_commands(text: str) -> list[tuple[str, bool]]:
    """The test and build commands of a shell command, and whether its exit code tells how each ended.

    It does if everything behind the command depends on its success (`&&`). Behind a pipe, `;` or `||`, the exit code
    is that of something else.
    """
    if not text or len(text) > COMMAND_CHARACTERS:
        return []
    head, here, rest = text.partition("<<")
    line, _, document = rest.partition("\n")
    if here:  # what follows is a document, then perhaps commands
        text = head + here + line
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    parts: list[tuple[list[str], str]] = []
    current: list[str] = []
    for word in words:
        if word and set(word) <= set(";&|()"):
            parts.append((current, word))
            current = []
        else:
            current.append(word)
    parts.append((current, ""))
    while len(parts) > 1 and not parts[-1][0]:
        parts.pop()
    found = []
    for place, (part, _) in enumerate(parts):
        command = _without_prefix(part)
        if command and _tests_or_builds(command):
            after = [operator for _, operator in parts[place:-1]]
            shows_exit = all(one == "&&" for one in after) and parts[-1][1] != "&" and not document
            found.append((one_line(shlex.join(command), 200), shows_exit))
    return found


test_commands.__test__ = False  # type: ignore[attr-defined]


def _without_prefix(words: Sequence[str]) -> list[str]:
    """A command without its variables, its redirections, and what only runs it."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word and set(word) <= set("<>&"):
            skip = True
            if kept and kept[-1].isdecimal():
                kept.pop()
        elif kept or not word.partition("=")[0].isidentifier() or "=" not in word:
            kept.append(word)
    while kept and (name := kept[0].rpartition("/")[2]) in _RUNNERS:
        if name in ("uv", "poetry", "pipenv") and kept[1:2] != ["run"]:
            break
        kept = kept[_RUNNERS[name] :]
    return kept


def _tests_or_builds(words: Sequence[str]) -> bool:
    name = words[0].rpartition("/")[2]
    if name.startswith("python") and "-m" in words[1:]:
        place = words.index("-m") + 1
        return place < len(words) and words[place] in _MODULES
    wanted = _TESTS_OR_BUILDS.get(name)
    return wanted is not None and (not wanted or any(word in wanted for word in words[1:3]))
