"""Message content in every shape: immutable copies, its texts, its tool calls and results, allowed cuts."""

from __future__ import annotations

import gc
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NoReturn, cast

from watchkeeper.memory.tokens import COMPACTION, OPAQUE_KEYS, plain
from watchkeeper.records.messages import Block, Content, Message, Role
from watchkeeper.records.tool_inputs import leaves

# --- Immutable rendered messages that many requests share ---------------------------------------------------
#
# Every turn sends the whole context. A copy each time, to protect the next request from a caller's changes,
# would cost more the longer the context is; sharing immutable values costs nothing. To JSON encoders and to
# `isinstance` they are ordinary dicts and lists, and every copy of one (`copy`, `deepcopy`, `|`, `+`, a
# slice) is an ordinary one too.

_ATOMS = frozenset({str, int, float, bool, type(None)})


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise TypeError("Messages are read-only because requests share them; change a copy (copy.deepcopy).")


class FrozenDict(dict[str, Any]):
    """A dict for reading."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list for reading."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """`value`, JSON-like, as it cannot be changed: a structural copy, but for the parts that are frozen
    already."""
    kind = type(value)
    if kind in _ATOMS or kind is FrozenDict or kind is FrozenList:
        return value
    if isinstance(value, dict):
        return FrozenDict(
            {key: item if type(item) in _ATOMS else frozen(item) for key, item in value.items()}
        )
    if isinstance(value, list | tuple):
        return FrozenList([item if type(item) in _ATOMS else frozen(item) for item in value])
    return value


MOST_LEVELS = 100
"""Deeper than any API takes, and far from where walking through it would end Python's stack."""

_MOST_CONTAINERS = 1_000_000


def copied(value: Any) -> Any:
    """A structural copy of JSON-like data: what callers change later cannot reach what was stored."""
    if (
        type(value) is dict or type(value) is FrozenDict
    ):  # most blocks hold nothing but texts and numbers: one copy in C
        for item in value.values():
            if type(item) not in _ATOMS:
                return {key: item if type(item) in _ATOMS else copied(item) for key, item in value.items()}
        return value.copy()
    if isinstance(value, list | tuple):
        return [item if type(item) in _ATOMS else copied(item) for item in value]
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def copied_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`copied`, for messages with nothing in them but a role and a content.

    The garbage collector rests meanwhile: a large context is thousands of small objects, all alive, and going
    through the whole process for each few hundred of them takes ten times as long as copying them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return [
            {
                "role": message["role"],
                "content": content if type(content := message["content"]) is str else copied(content),
            }
            for message in messages
        ]
    finally:
        if collects:
            gc.enable()


def frozen_content(content: Content) -> Content:
    """`frozen`, for content from outside.

    Raises:
        ValueError: it is nested more than `MOST_LEVELS` deep.
    """
    if type(content) is not str and deeper_than(content, MOST_LEVELS):
        raise ValueError(
            f"A message's content is nested too deeply (more than {MOST_LEVELS} levels); give it as text."
        )
    kept: Content = frozen(content)
    return kept


def deeper_than(value: Any, levels: int) -> bool:
    """Whether JSON-like data is nested more than `levels` deep (a cycle is)."""
    layer = [value]
    for _ in range(levels):
        layer = [item for inner in layer for item in _inside(inner)]
        if not layer:
            return False
        if len(layer) > _MOST_CONTAINERS:
            return True
    return True


def _inside(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, Mapping) else value
    return [item for item in items if isinstance(item, Mapping | list | tuple)]


def shown(value: Any) -> Any:
    """JSON-like data as it may leave the program: lone surrogates, which no encoder takes, as U+FFFD. The same
    object where there are none."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        items = [shown(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    if isinstance(value, dict):
        pairs = {shown(key): shown(item) for key, item in value.items()}
        same = all(map(operator.is_, pairs.values(), value.values()))
        return value if same and pairs.keys() == value.keys() else pairs
    return value


def blocks_of(content: Content) -> list[Block]:
    """Content as a list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def call_ids(role: str, content: Content) -> list[str]:
    """Ids of the tool calls that an assistant message makes."""
    if role != "assistant" or isinstance(content, str):
        return []
    return [str(block["id"]) for block in content if block.get("type") == "tool_use" and block.get("id")]


def result_ids(role: str, content: Content) -> list[str]:
    """Ids of the calls that a user message brings results for."""
    if role != "user" or isinstance(content, str):
        return []
    return [str(block.get("tool_use_id", "")) for block in content if block.get("type") == "tool_result"]


def foreign_calls(content: Content) -> set[str]:
    """Ids of calls that the provider or an MCP server answers (`server_tool_use`, `mcp_tool_use`)."""
    if isinstance(content, str):
        return set()
    return {
        str(block["id"])
        for block in content
        if block.get("id")
        and (kind := str(block.get("type"))).endswith("tool_use")
        and kind not in KNOWN_BLOCKS
    }


def foreign_results(content: Content) -> set[str]:
    """Ids of the calls that such blocks answer (`web_search_tool_result`, `mcp_tool_result`)."""
    if isinstance(content, str):
        return set()
    return {
        str(block["tool_use_id"])
        for block in content
        if block.get("tool_use_id") and block.get("type") not in KNOWN_BLOCKS
    }


THINKING = frozenset({"thinking", "redacted_thinking"})
"""Blocks that a provider accepts unchanged or not at all."""


def droppable_thinking(content: Content) -> list[Block]:
    """The thinking of a reply that waits for no result. The Messages API wants thinking back, whole, only before calls
    whose results are being sent."""
    if isinstance(content, str):
        return []
    calls = any(block.get("type") == "tool_use" for block in content)
    if calls or foreign_calls(content) - foreign_results(content):
        return []
    return [block for block in content if block.get("type") in THINKING]


def result_text(block: Block) -> str:
    """The text of a tool result; other parts by their type in brackets."""
    inner = block.get("content", "")
    if isinstance(inner, str):
        return inner
    if not isinstance(inner, list):
        return "" if inner is None else str(inner)
    return "\n".join(map(_part_text, inner))


def _part_text(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    return str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type', 'block')}]"


KNOWN_BLOCKS = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document", COMPACTION}
)
"""Blocks with rules of their own. Every other one (results of server tools, of MCP servers, whatever comes next) is
its texts."""


def compacted_text(role: str, content: Content) -> str | None:
    """What a provider wrote in the place of everything before this reply (a `compaction` block); None where it did not,
    or where its compaction failed."""
    if role != "assistant" or isinstance(content, str):
        return None
    for block in reversed(content):
        if block.get("type") == COMPACTION:
            text = block.get("content")
            return text if isinstance(text, str) and text.strip() else None
    return None


def after_compaction(content: Content) -> list[Block]:
    """A reply without its `compaction` blocks, and without what comes before the last one; calls stay."""
    blocks = blocks_of(content)
    last = max((place for place, block in enumerate(blocks) if block.get("type") == COMPACTION), default=-1)
    return [
        block
        for place, block in enumerate(blocks)
        if place > last or str(block.get("type")).endswith(("tool_use", "tool_result"))
    ]


def texts_of(content: Content) -> Iterator[str]:
    """Every text that a reader of the message would see: texts, string leaves of tool inputs, tool
    results, what is readable in blocks of other types."""
    for block in blocks_of(content):
        kind = block.get("type")
        if kind == "text":
            yield str(block.get("text", ""))
        elif kind == "tool_use":
            yield from leaves(block.get("input"))
        elif kind == "tool_result":
            yield result_text(block)
        elif kind not in KNOWN_BLOCKS:
            yield unknown_text(block)


def unknown_text(block: Block) -> str:
    """The readable strings of a block of a type that has no rules here, a line each: not its ids, and no opaque
    data."""
    return "\n".join(_readable({key: item for key, item in block.items() if key not in _FRAME_KEYS}))


_FRAME_KEYS = frozenset({"type", "id", "tool_use_id", "cache_control"})


def _readable(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in OPAQUE_KEYS and key != "type":
                yield from _readable(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _readable(item)


def content_size(content: Content) -> int:
    """Rough size in characters, without encoding anything."""
    return len(content) if isinstance(content, str) else sum(map(len, leaves(content)))


def checked_message(message: Mapping[str, Any]) -> tuple[Role, Content]:
    """Role and content (a frozen copy) of a message from outside.

    Raises:
        ValueError: its role is not `user` or `assistant`. A system prompt is sent beside the messages.
        TypeError: it is no mapping, or its content is neither text nor a list of content blocks.
    """
    if not isinstance(message, Mapping):
        raise TypeError(
            f"A message must be a dict with role and content, not {type(message).__name__}: add_message({{'role': 'user', 'content': …}})."
        )
    role, content = message.get("role"), message.get("content")
    if role in ("system", "developer"):
        raise ValueError(
            f"A message's role must be 'user' or 'assistant': pass the {role} prompt separately from get_context(), and its"
            " size as overhead_tokens."
        )
    if role not in ("user", "assistant"):
        raise ValueError(f"A message's role must be 'user' or 'assistant', not {role!r}.")
    if isinstance(content, str):
        return cast(Role, role), content
    if isinstance(content, Sequence) and all(
        isinstance(block, Mapping) and "type" in block for block in content
    ):
        return cast(Role, role), frozen_content([dict(block) for block in content])
    raise TypeError("A message's content must be text, or a list of content blocks that each have a type.")


# --- Where a history may be cut -----------------------------------------------------------------------------
#
# Never between a tool call and its result, and never after a call that has no result yet.


def cut_points(messages: Sequence[Message], *, orphans: bool = False) -> list[bool]:
    """For consecutive `messages`: whether a cut is allowed before each of them and, as the last item, after
    all.

    A pair is a call and the first later result of that id, however far away; the same holds for calls that the provider
    or an MCP server answers, where another message brings the result. A call of ours without a result forbids
    every cut after it. `orphans`: it does so only until the assistant speaks again, since that result can no
    longer arrive. The bound needs this, or one lost result would keep all later messages verbatim for ever.
    """
    count = len(messages)
    steps = [0] * (count + 2)
    waiting: dict[str, int] = {}
    foreign: dict[str, int] = {}
    live: list[int] = []

    def forbid(first: int, last: int) -> None:
        steps[first] += 1
        steps[last + 1] -= 1

    for place, message in enumerate(messages):
        content = message.content
        if not isinstance(content, str) and any(block.get("type") not in KNOWN_BLOCKS for block in content):
            brought = foreign_results(content)
            for call in brought:
                if (asked := foreign.pop(call, None)) is not None:
                    forbid(asked + 1, place)
            foreign |= dict.fromkeys(foreign_calls(content) - brought, place)
        if message.role == "assistant":
            live = []
            for call in call_ids(message.role, message.content):
                waiting[call] = place
                live.append(place)
        else:
            for call in result_ids(message.role, message.content):
                asked = waiting.pop(call, None)
                if asked is not None:
                    forbid(asked + 1, place)
    still = [place for place in waiting.values() if not orphans or place in live]
    if still:
        forbid(min(still) + 1, count)
    allowed: list[bool] = []
    depth = 0
    for place in range(count + 1):
        depth += steps[place]
        allowed.append(depth == 0)
    return allowed


def paired(messages: Sequence[Message], wanted: Collection[int]) -> set[int]:
    """The numbers `wanted`, with those of the messages that hold the calls of their results, or results of their calls
    (the pairs of `cut_points`)."""
    partners: dict[int, set[int]] = {}
    waiting: dict[str, int] = {}
    for message in messages:
        role, content = message.role, message.content
        calls, results = set(call_ids(role, content)), set(result_ids(role, content))
        inside = foreign_calls(content) & foreign_results(content)
        for call in (results | foreign_results(content)) - inside:
            if (asked := waiting.pop(call, None)) is not None:
                partners.setdefault(asked, set()).add(message.seq)
                partners.setdefault(message.seq, set()).add(asked)
        waiting.update(dict.fromkeys((calls | foreign_calls(content)) - inside, message.seq))
    found, new = set[int](), set(wanted)
    while new:
        found |= new
        new = {other for seq in new for other in partners.get(seq, ())} - found
    return found


def newest_group(messages: Sequence[Message]) -> int:
    """Index at which the newest group begins: the last message, or the calls that it brings results for.

    The smallest part that the API accepts alone: only results that directly follow their call belong to it.
    """
    last = len(messages) - 1
    place = last
    while place > 0 and result_ids(messages[place].role, messages[place].content):
        place -= 1
    if place < last and not call_ids(messages[place].role, messages[place].content):
        return last
    return max(place, 0)


def newest_turn(messages: Sequence[Message]) -> int:
    """Index of the last assistant message where it and what answers it are the end of the history; else the
    newest group.

    A model finds its own last words and the answer to them, not a digest of them.
    """
    group = newest_group(messages)
    for place in range(len(messages) - 1, max(-1, group - 3), -1):
        if messages[place].role == "assistant":
            return min(place, group)
    return group
