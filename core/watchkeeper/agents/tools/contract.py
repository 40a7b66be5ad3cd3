"""Tools: what one is, its input checked, its output cut to a bounded size.

There are two kinds, which differ in where their effect happens.
A `StoreTool` changes only the session's own database, in the very transaction that records its result: its
effect happens exactly once, whatever crashes. An `OutsideTool` acts on the world (files, a shell, an MCP
server). Its intent is committed before it runs, and after a crash its `idempotent` says whether it may run
again.
"""

from __future__ import annotations

import difflib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from watchkeeper.records.messages import Block, ToolSpec

if TYPE_CHECKING:
    from watchkeeper.records.premises import Premises
    from watchkeeper.records.tool_inputs import Pipeline, Protected
    from watchkeeper.store.transaction import Transaction


DEFAULT_TIMEOUT_SECONDS = 120.0
"""How long one call of a tool may run, unless the configuration says otherwise."""


class Permission(StrEnum):
    """Whether a call may run. Ordered from wide to narrow: a later one wins where two sources disagree on
    narrowing."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A command that patterns allowed: the very words that matched, run without a shell that could change
    their meaning."""

    parts: Pipeline
    paths: tuple[str, ...]
    """The program of each part."""
    folder: str


@dataclass(frozen=True, slots=True)
class ToolContext:
    """For whom a tool runs."""

    session_id: str
    agent_id: str
    task_id: str | None
    workspace: Path
    tool_call_id: str = ""
    """The same when the call runs again after a crash: what a tool gives to a service that takes each request
    once."""
    subject_digest: str = ""
    """Digest of the file whose change a person approved (see `records.tool_inputs`); the tool changes
    no other. For a call that asked a `PersonQuestion`: the digest of the one that was answered."""
    protected: Protected = frozenset()
    """Files of the database, which no tool may open."""
    redact: Callable[[Any], Any] = field(default=lambda value: value, compare=False)
    """Takes known secrets out of a text."""
    premises: Premises | None = None
    """For `bash`: what a person's answer rests on. If it is not so any more, the tool does not run the command."""
    pipeline: PipelineRun | None = None
    """For `bash`: run these programs outside the shell, instead of the command."""


@dataclass(frozen=True, slots=True)
class PersonQuestion:
    """What a tool must know from a person before it goes on."""

    cause: str
    arguments: dict[str, Any]
    """Shown in place of the call's input (see `store.commands.sections_of`)."""
    note: str
    """In a line, why it is asked."""
    digest: str
    """The digest of what is asked about: an answer holds for that alone."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model receives. `content` is a string or Messages API blocks (text, image)."""

    content: str | list[Block]
    is_error: bool = False
    effects: dict[str, Any] = field(default_factory=dict)
    """For the agent loop alone: what the call asks of it (`compact`, `finish`, …). Never shown to the
    model."""
    question: PersonQuestion | None = None
    """Put this to a person, and run the call again with the answer: its input as edited, and the question's
    digest as `subject_digest`. Where no person answers in time it runs with the digest alone."""
    outcome_unknown: bool = False
    """The call began, and what ran it ended before its answer: it may have had an effect."""


SHELL_LOST = (
    "[not run] Your shell was restarted: its folder, variables and background jobs are gone. This command was not"
    " run. The new shell is in {folder}. Set up what you need, then call again."
)
"""The answer to the first command after an agent's shell was lost."""
SHELL_NEW = " Your shell was lost with it: its folder, variables and background jobs are gone. The new shell is in {folder}."
"""Added to the result of a command during which the agent's shell was lost."""
SAVE_SHELL = "save_shell"
"""In a request, in the place of a tool: end the shell's jobs, and answer with the JSON of what can be restored of the
shell; `null` if there is nothing to restore."""
SHELL_CLOSED = (
    "Your shell was closed while it was idle. The new shell is in {folder}, with your exported variables."
)
"""Comes before the answer to the first command after a shell was closed, and restored."""
SHELL_CLOSED_NOT_RUN = "[not run] {notice} This command was not run. Set up what you need, then call again."
"""The answer where something was lost that the command may need."""


@runtime_checkable
class Tool(Protocol):
    """What every tool declares."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def idempotent(self) -> bool:
        """Running it twice with the same input is as good as once."""

    @property
    def permission(self) -> Permission:
        """The default, before roles and the user's configuration."""


@runtime_checkable
class StoreTool(Tool, Protocol):
    """Runs inside the transaction that stores its result."""

    def apply(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Change the session's rows. A `ValueError` becomes an error result, and nothing is changed."""


@runtime_checkable
class OutsideTool(Tool, Protocol):
    """Runs outside the database: in a worker process, or over MCP."""

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the call. Errors that the model can correct are results with `is_error`; cancelling stops the
        work.

        Raises:
            HostFault: the machine ran out of something. An `OSError` or `MemoryError` that says so counts as
                one which came before any effect.
        """


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server of the user's configuration: a command to start, or the URL of one that runs."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    command: str | None = None
    """A program to start."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its environment variables."""
    cwd: str | None = None
    """Where it runs: your home folder by default, never the workspace, whose files could stand in for its own."""
    url: str | None = None
    """Instead of `command`: a server that runs already."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What is sent to that server with each request."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """How long a call may take."""
    idempotent: tuple[str, ...] = ()
    """Names or patterns of its tools that are safe to run twice after a crash."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("needs either `command` or `url`")


# --- Checking a tool's input against its JSON Schema --------------------------------------------------------
#
# `jsonschema` does the work, less two things that a hostile schema of an MCP server could abuse: patterns (a
# regular expression can run for hours) and references to other documents (which would be fetched).

_LEFT_OUT = ("pattern", "patternProperties", "format", "$dynamicRef", "uniqueItems")
_MOST_KEPT = 256
_validators: OrderedDict[str, Any] = OrderedDict()


def validate_arguments(schema: Mapping[str, Any], arguments: Any) -> str | None:
    """One line saying what is wrong with a tool's input, or None.

    A schema that is itself no good finds no fault: the tool then judges for itself.
    """
    if not isinstance(arguments, dict):
        return "the input must be an object"
    try:
        faults = list(_validator(schema).iter_errors(arguments))
    except RecursionError:  # of the schema, if it refers to itself
        return None if "$ref" in json.dumps(schema, default=str) else "the input is nested too deeply"
    except Exception as error:
        # jsonschema raises many types for schemas that are wrong or refer elsewhere; none is the model's
        # fault.
        if type(error).__module__.split(".")[0] in ("jsonschema", "referencing", "builtins"):
            return None
        raise
    if not faults:
        return None
    from jsonschema.exceptions import best_match  # type: ignore[import-untyped]

    named = sorted((one for one in faults if _wrong_names(one)), key=lambda one: len(one.absolute_path))
    worst = named[0] if named else best_match(faults)
    if worst is None:
        return None
    if named:
        return _names_fault(worst)
    place = _place(worst.absolute_path)
    return (f"`{place}`: " if place else "") + _clear(str(worst.message))


def _wrong_names(fault: Any) -> bool:
    """Whether a fault is about the names of an object's properties: one too many, or one that is missing."""
    plain = isinstance(fault.schema, Mapping) and isinstance(fault.schema.get("properties"), Mapping)
    kinds = ("required", "additionalProperties")
    return plain and fault.validator in kinds and "patternProperties" not in fault.schema


def _names_fault(fault: Any) -> str:
    """Which properties are unknown or missing, and which ones there are."""
    known, given, wanted = list(fault.schema["properties"]), fault.instance, fault.schema.get("required")
    required = [one for one in wanted if isinstance(one, str)] if isinstance(wanted, list) else []
    is_closed = fault.schema.get("additionalProperties") is False
    missing = [one for one in required if one not in given]
    free = [one for one in known if one not in given]
    said = []
    for name in [one for one in given if one not in known][:3] if is_closed else ():
        meant = difflib.get_close_matches(name[:100], free, 1)
        missing = [one for one in missing if one not in meant]
        place = _place((*fault.absolute_path, name))
        said.append(
            f"`{place}` is unknown" + (f" (did you mean `{meant[0][:_NAME_CHARACTERS]}`?)" if meant else "")
        )
    said += [f"`{_place((*fault.absolute_path, name))}` is missing" for name in missing[:3]]
    shown = [
        one[:_NAME_CHARACTERS] + (" (required)" if one in required else "") for one in known[:_MOST_NAMES]
    ]
    more = [f"and {len(known) - _MOST_NAMES} more"] if len(known) > _MOST_NAMES else []
    return _clear("; ".join(said)) + _clear(f". Available: {', '.join([*shown, *more]) or 'none'}")


_MOST_NAMES, _NAME_CHARACTERS = 20, 40


def _place(steps: Iterable[str | int]) -> str:
    """Where in an input, such as `tasks[0].name`."""
    parts = (f"[{one}]" if isinstance(one, int) else f".{one[:_NAME_CHARACTERS]}" for one in steps)
    return "".join(parts).lstrip(".")


def _clear(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 300 else f"{line[:150]} … {line[-140:]}"


def _validator(schema: Mapping[str, Any]) -> Any:
    key = json.dumps(schema, sort_keys=True, default=str)
    if key in _validators:
        _validators.move_to_end(key)
        return _validators[key]
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]
    from referencing import Registry

    rules = {name: rule for name, rule in Draft202012Validator.VALIDATORS.items() if name not in _LEFT_OUT}
    checker = validators.create(
        Draft202012Validator.META_SCHEMA, rules, type_checker=Draft202012Validator.TYPE_CHECKER
    )
    made = checker(dict(schema), registry=Registry())
    _validators[key] = made
    if len(_validators) > _MOST_KEPT:
        _validators.popitem(last=False)
    return made


# --- Output of bounded size: the beginning, the end, and how much is missing between them ---------------

WORKER_CHARACTERS = 1 << 20
"""What a worker hands to the host at most, of text."""
RESULT_CHARACTERS = 100_000
"""What a model is shown at most, of one result's text."""
LONGEST_WORD = 512
"""Characters by which a cut moves so as not to go through a word."""
MOST_BLOCKS = 100
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MOST_IMAGE_BASE64 = 5 * 1024 * 1024
"""The Messages API's own limit for one image."""


def shorten(text: str, limit: int) -> str:
    """`text` itself, or its head and tail with a notice between, together not much longer than `limit`
    characters."""
    if len(text) <= limit:
        return text
    head = _before_word(text, limit * 2 // 3)
    tail = after_word(text, len(text) - (limit - limit * 2 // 3))
    return f"{text[:head]}\n[… {tail - head:,} of {len(text):,} characters omitted …]\n{text[tail:]}"


def _before_word(text: str, end: int) -> int:
    """Where the word that `end` cuts begins: half a key is not known for one any more, when secrets are taken
    out."""
    for at in range(end, max(end - LONGEST_WORD, 0), -1):
        if text[at].isspace() or text[at - 1].isspace():
            return at
    return end


def after_word(text: str, start: int) -> int:
    """Where the word that `start` cuts ends."""
    for at in range(start, min(start + LONGEST_WORD, len(text))):
        if text[at].isspace() or text[at - 1].isspace():
            return at
    return start


def shorten_content(content: Any, limit: int) -> str | list[dict[str, Any]]:
    """A result's content with its text shortened; anything that is no content at all becomes text."""
    if not isinstance(content, list):
        return shorten(content if isinstance(content, str) else repr(content), limit)
    blocks: list[dict[str, Any]] = []
    left = limit
    for block in content[:MOST_BLOCKS]:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text":
            text = shorten(str(block.get("text", "")), max(left, 200))
            left -= len(text)
            blocks.append({"type": "text", "text": text})
        else:
            blocks.append(block)
    if len(content) > MOST_BLOCKS:
        blocks.append({"type": "text", "text": f"[{len(content) - MOST_BLOCKS} more blocks omitted]"})
    return blocks


def is_content(value: Any) -> bool:
    """Whether a worker's value may go to a model unchanged: text, or text, image and document blocks."""
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(_is_block(block) for block in value)


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    if block.get("type") == "text":
        return isinstance(block.get("text"), str)
    source = block.get("source")
    if block.get("type") not in ("image", "document") or not isinstance(source, dict):
        return False
    return (
        source.get("type") == "base64"
        and isinstance(source.get("data"), str)
        and isinstance(source.get("media_type"), str)
    )
