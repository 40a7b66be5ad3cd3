"""From a view and the messages to the context: the front (assignment and observations), then what is verbatim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.memory import elision
from watchkeeper.memory.content import blocks_of, result_ids
from watchkeeper.memory.elision import pointer_of
from watchkeeper.memory.rendering import Rendering
from watchkeeper.memory.tokens import TokenCounter, count_message
from watchkeeper.records.memory import Block, Message, Observation, ObservationKind, View

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


def front_text(agent_id: str, observations: Sequence[Observation]) -> str:
    """The observations as the model reads them, byte-identical until the view changes."""
    parts = [HEADING]
    for observation in observations:
        if observation.kind is not ObservationKind.DIGEST:  # a digest names its pointer itself
            first, last = observation.covers
            parts.append(f"[messages {first}–{last}, whole text: {pointer_of(agent_id, *observation.covers)}]")
        parts.append(observation.text)
    return "\n".join(parts)


def assemble(agent_id: str, view: View, tail: Sequence[Message], pinned: Message | None, counter: TokenCounter) -> Assembly:
    """Render `view`. `tail` are the messages that it shows verbatim or elided; `pinned` stands before the observations."""
    made = Assembly(Rendering(counter))
    text = front_text(agent_id, view.observations) if view.observations else ""
    if text:
        made.observations = count_message("user", text, counter)
    if pinned is not None and pinned.seq in view.elided and view.elided[pinned.seq].tokens == 0:
        pinned = None
    if pinned is not None and view.observations:
        shown = pinned.content
        if pinned.seq in view.elided:
            shown = elision.apply(shown, view.elided[pinned.seq])
        blocks: list[Block] = [block for block in blocks_of(shown) if str(block.get("text", "-")).strip()]
        made.pinned = count_message("user", blocks, counter)
        made.rendering.push("user", [*blocks, {"type": "text", "text": text}])
        made.observations = made.rendering.tokens - made.pinned
    elif text:
        made.rendering.push("user", text, made.observations)
    for message in tail:
        shortened = view.elided.get(message.seq)
        if shortened is None:
            made.rendering.push(message.role, message.content, message.tokens)
        else:
            before = made.tokens
            made.rendering.push(message.role, elision.apply(message.content, shortened), shortened.tokens)
            made.elided += made.tokens - before
    return made
