"""From a view and the messages to the context: the front (assignment and observations), then what is
verbatim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchkeeper.memory import elision
from watchkeeper.memory.content import blocks_of, result_ids
from watchkeeper.memory.elision import pointer_of
from watchkeeper.memory.rendering import Rendering
from watchkeeper.memory.tokens import MESSAGE_OVERHEAD, TokenCounter, count_message
from watchkeeper.records.memory import Block, Content, Message, Observation, ObservationKind, View

HEADING = "# Memory of earlier messages"


@dataclass(slots=True)
class Assembly:
    """A rendered context and what it is made of, in tokens."""

    rendering: Rendering
    observations: int = 0
    pinned: int = 0
    elided: int = 0

    @property
    def tokens(self) -> int:
        return self.rendering.tokens


def pinnable(message: Message | None) -> bool:
    """Whether a first message is an assignment that can stand at the front for ever."""
    return message is not None and message.role == "user" and not result_ids(message.role, message.content)


def front(
    agent_id: str, observations: Sequence[Observation], counter: TokenCounter, known: dict[str, int]
) -> tuple[list[Block], int]:
    """The observations as the model reads them, and their tokens; byte-identical until the view changes.

    Each is a block of its own, so that its tokens add up and none is counted twice: observations may hold a
    third of a large window, and counting them anew whenever one is added would stall the turn. `known`:
    labels counted before.
    """
    if not observations:
        return [], 0
    blocks: list[Block] = [{"type": "text", "text": HEADING}]
    tokens = _counted(HEADING, counter, known)
    for observation in observations:
        if observation.kind is not ObservationKind.DIGEST:  # a digest names its pointer itself
            first, last = observation.covers
            label = f"[messages {first}–{last}, whole text: {pointer_of(agent_id, *observation.covers)}]"
            blocks.append({"type": "text", "text": label})
            tokens += _counted(label, counter, known)
        blocks.append({"type": "text", "text": observation.text})
        tokens += observation.tokens
    return blocks, tokens


def _counted(text: str, counter: TokenCounter, known: dict[str, int]) -> int:
    if text not in known:
        known[text] = counter.count(text)
    return known[text]


def assemble(
    agent_id: str,
    view: View,
    tail: Sequence[Message],
    pinned: Message | None,
    counter: TokenCounter,
    known: dict[str, int] | None = None,
    odd: Mapping[int, Content] | None = None,
) -> Assembly:
    """Render `view`. `tail` are the messages that it shows verbatim or elided; `pinned` stands before the
    observations.

    `known`: tokens of labels; `odd`: what is shown of messages that cannot be sent as they are.
    """
    odd = odd or {}
    made = Assembly(Rendering(counter))
    memory, tokens = front(agent_id, view.observations, counter, {} if known is None else known)
    if memory:
        made.observations = MESSAGE_OVERHEAD + tokens
    if pinned is not None and pinned.seq in view.elided and view.elided[pinned.seq].tokens == 0:
        pinned = None
    if pinned is not None and view.observations:
        shown = odd.get(pinned.seq, pinned.content)
        if pinned.seq in view.elided:
            shown = elision.apply(shown, view.elided[pinned.seq])
        blocks: list[Block] = [block for block in blocks_of(shown) if str(block.get("text", "-")).strip()]
        made.pinned = count_message("user", blocks, counter)
        made.observations = tokens
        made.rendering.push("user", [*blocks, *memory], made.pinned + tokens)
    elif memory:
        made.rendering.push("user", memory, made.observations)
    for message in tail:
        shortened = view.elided.get(message.seq)
        if shortened is None:
            made.rendering.push(message.role, odd.get(message.seq, message.content), message.tokens)
        else:
            before = made.tokens
            made.rendering.push(
                message.role,
                elision.apply(odd.get(message.seq, message.content), shortened),
                shortened.tokens,
            )
            made.elided += made.tokens - before
    return made
