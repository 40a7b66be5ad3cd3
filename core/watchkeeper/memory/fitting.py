"""Making a context fit its window without a model: what to digest, what to shorten, in which order.

First the older messages become a digest and the newest turn stays verbatim. If that is too much, the newest
turn is shortened, largest messages first. Last, only the newest group stays, as short as possible.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchkeeper.memory import digest, rendering
from watchkeeper.memory.content import (
    THINKING,
    blocks_of,
    cut_points,
    droppable_thinking,
    newest_group,
    newest_turn,
    paired,
    result_ids,
)
from watchkeeper.memory.ledger import Ledger, Notebook
from watchkeeper.memory.rendering import Rendering, pointer_of
from watchkeeper.memory.tokens import MESSAGE_OVERHEAD, TokenCounter, count_block, count_message
from watchkeeper.records.messages import Block, Content, Elision, Message, Observation, ObservationKind, View

# --- Assembling a context from a view and its messages ------------------------------------------------------
#
# First the front (assignment and observations), then the verbatim messages.

HEADING = "# Memory of earlier messages"


@dataclass(slots=True)
class Assembly:
    """A rendered context and what it is made of, in tokens."""

    rendering: Rendering
    observations: int = 0
    pinned: int = 0
    """The assignment at the front."""
    pins: int = 0
    """What a person pinned, but for what is shortened."""
    elided: int = 0

    @property
    def tokens(self) -> int:
        return self.rendering.tokens


def pinnable(message: Message | None) -> bool:
    """Whether a first message is an assignment that can stand at the front for ever."""
    return message is not None and message.role == "user" and not result_ids(message.role, message.content)


def front(
    agent_id: str,
    observations: Sequence[Observation],
    counter: TokenCounter,
    known: dict[str, int],
    *,
    heading: bool = True,
) -> tuple[list[Block], int]:
    """The observations as the model reads them, and their tokens; byte-identical until the view changes.

    Each observation is its own block, so that tokens add up and none is counted twice. Observations may fill
    a third of a large window, and counting all of them whenever one is added would stall the turn. `known`:
    labels counted before.
    """
    if not observations:
        return [], 0
    blocks: list[Block] = [{"type": "text", "text": HEADING}] if heading else []
    tokens = _counted(HEADING, counter, known) if heading else 0
    for observation in observations:
        if observation.kind is not ObservationKind.DIGEST:  # a digest names its pointer itself
            first, last = observation.covers
            label = f"[messages {first}–{last}, full text: {pointer_of(agent_id, *observation.covers)}]"
            blocks.append({"type": "text", "text": label})
            tokens += _counted(label, counter, known)
        blocks.append({"type": "text", "text": observation.text})
        tokens += observation.tokens
    return blocks, tokens


def _counted(text: str, counter: TokenCounter, known: dict[str, int]) -> int:
    if text not in known:
        known[text] = counter.count(text)
    return known[text]


def _stretches(
    observations: Sequence[Observation], pins: Sequence[Message]
) -> Iterator[tuple[Sequence[Observation], Sequence[Message]]]:
    """The observations up to each one that covers pins, with these pins; then the rest."""
    start = place = 0
    for number, observation in enumerate(observations, 1):
        end = place
        while end < len(pins) and pins[end].seq <= observation.covers[1]:
            end += 1
        if end > place or number == len(observations):
            yield observations[start:number], pins[place:end]
            start, place = number, end


def assemble(
    agent_id: str,
    view: View,
    tail: Sequence[Message],
    pinned: Message | None,
    counter: TokenCounter,
    known: dict[str, int] | None = None,
    odd: Mapping[int, Content] | None = None,
    pins: Sequence[Message] = (),
) -> Assembly:
    """Render `view`. `tail`: the messages that it shows verbatim or elided. `pinned`: text before the
    observations. `pins`: messages that it shows although observations cover them.

    `known`: tokens of labels; `odd`: the text shown for messages that cannot be sent as they are.
    """
    odd, known = odd or {}, {} if known is None else known
    made = Assembly(Rendering(counter))

    def push(message: Message) -> None:
        shortened, before = view.elided.get(message.seq), made.tokens
        content = odd.get(message.seq, message.content)
        if shortened is None:
            made.rendering.push(message.role, content, message.tokens)
            made.pins += made.tokens - before if message.seq in view.pins else 0
        else:
            made.rendering.push(message.role, rendering.apply(content, shortened), shortened.tokens)
            made.elided += made.tokens - before

    if pinned is not None and pinned.seq in view.elided and view.elided[pinned.seq].tokens == 0:
        pinned = None
    behind = [
        message
        for message in pins
        if (pinned is None or message.seq != pinned.seq)
        and (message.seq not in view.elided or view.elided[message.seq].tokens)
    ]
    for observations, shown_here in _stretches(view.observations, behind):
        memory, tokens = front(agent_id, observations, counter, known, heading=not made.rendering.items)
        if pinned is not None and not made.rendering.items:
            shown = odd.get(pinned.seq, pinned.content)
            if pinned.seq in view.elided:
                shown = rendering.apply(shown, view.elided[pinned.seq])
            blocks: list[Block] = [block for block in blocks_of(shown) if str(block.get("text", "-")).strip()]
            made.pinned = count_message("user", blocks, counter)
            made.observations += tokens
            made.rendering.push("user", [*blocks, *memory], made.pinned + tokens)
        else:
            made.observations += MESSAGE_OVERHEAD + tokens
            made.rendering.push("user", memory, MESSAGE_OVERHEAD + tokens)
        for message in shown_here:
            push(message)
    for message in tail:
        push(message)
    return made


KEEP_FORCED = 0.40
"""The share of the limit that stays verbatim after a forced digest, so that the next one is not due soon."""

KEEP_BY_HAND = 0.20
"""The share of the limit that stays verbatim after a digest on request."""

DIGEST_SHARE = 0.15
"""The size of a digest, as a share of the limit."""

OBSERVATIONS_SHARE = 0.35
"""Observations that grow beyond this share of the limit are folded into one digest."""

PINNED_SHARE = 0.25
"""An assignment larger than this share of the limit is shortened."""

PINS_SHARE = 1 / 3
"""The share of the limit up to which messages may be pinned: two thirds are left to what changes."""

PINS_FORCED_SHARE = 0.5
"""Pins above this share of a limit that became smaller are shortened, the largest first."""

USEFUL_SHARE = 0.08
"""A result shortened below this share of the limit is useless; then the agent's own words are shortened as
well."""

FEW_MESSAGES = 4

SLACK_SHARE = 0.04
"""The share of the limit that stays free when messages had to be shortened."""

_SMALLER = (DIGEST_SHARE, 0.08, 0.03, 0.0)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A context that was tried: the parts of its view, and how many tokens it takes."""

    view: View
    new: tuple[Observation, ...]
    assembly: Assembly

    @property
    def tokens(self) -> int:
        return self.assembly.tokens


@dataclass(frozen=True, slots=True)
class FitInputs:
    """Everything that fitting one context depends on."""

    agent_id: str
    counter: TokenCounter
    limit: int
    view: View
    """The view now current; its version and parent are the caller's business."""
    tail: Sequence[Message]
    """The messages that `view` does not cover."""
    pinned: Message | None
    marks: Sequence[int]
    """High-water marks of running passes: no digest may cover messages on both sides of one."""
    next_id: int
    at: float
    instructions: str | None = None
    provisional: bool = True
    notebook: Notebook | None = None
    """What was noted of the messages before."""
    pins: Sequence[Message] = ()
    """The messages that `view` pins and covers, oldest first."""
    pins_share: float = PINS_FORCED_SHARE
    """The share of the limit that pins may take."""
    odd: Mapping[int, Content] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    """Tokens of the observations' labels, as far as they were counted."""
    digests: dict[tuple[object, ...], Observation] = field(default_factory=dict)
    """Those made so far: attempts differ in what they shorten more often than in what they digest."""
    cuts: dict[bool, list[bool]] = field(default_factory=dict)
    """The allowed cuts of `tail`, as far as computed."""
    whole: list[frozenset[int]] = field(default_factory=list)
    """`kept`, once it was computed."""
    short: dict[float, dict[int, Elision]] = field(default_factory=dict)
    """`shortened_pins`, by the share."""

    def build(
        self,
        cut: int,
        digest_tokens: int,
        *,
        fold_all: bool,
        elided: Mapping[int, Elision] | None = None,
        pinned_tokens: int | None = None,
    ) -> Fitted:
        """The context with the first `cut` messages of the tail digested in `digest_tokens`."""
        kept, new = self._observations(cut, digest_tokens, fold_all=fold_all)
        tail = self.tail[cut:]
        kept_whole = self.kept
        shown = {
            seq: short
            for seq, short in {**self.view.elided, **(elided or {})}.items()
            if seq not in kept_whole
        } | self.shortened_pins()
        pinned = self.pinned
        room = int(self.limit * PINNED_SHARE) if pinned_tokens is None else pinned_tokens
        if pinned is not None and (*kept, *new) and pinned.seq not in kept_whole:
            known = shown.get(pinned.seq)
            if (known.tokens if known else pinned.tokens) > room:
                shown[pinned.seq] = rendering.elide(pinned, self.agent_id, room, self.counter)
            if room == 0:
                shown[pinned.seq] = rendering.left_out(pinned, self.agent_id)
        alive = {message.seq for message in tail} | ({pinned.seq} if pinned else set()) | kept_whole
        view = replace(
            self.view,
            observations=(*kept, *new),
            verbatim_from=tail[0].seq if tail else None,
            elided={seq: shown[seq] for seq in sorted(shown) if seq in alive},
            pins=tuple(sorted(kept_whole)),
        )
        pins = (*self.pins, *(message for message in self.tail[:cut] if message.seq in kept_whole))
        return Fitted(
            view, new, assemble(self.agent_id, view, tail, pinned, self.counter, self.labels, self.odd, pins)
        )

    @property
    def whole_beside(self) -> frozenset[int]:
        """The messages that the context shows as they are beside its observations: the assignment, if it is not shortened,
        and what is pinned."""
        small = self.pinned is not None and self.pinned.tokens <= int(self.limit * PINNED_SHARE)
        return self.kept | ({self.pinned.seq} if small and self.pinned is not None else set())

    @property
    def kept(self) -> frozenset[int]:
        """The view's pins with the other halves of their pairs, which may have come since."""
        if not self.view.pins:
            return frozenset()
        if not self.whole:
            self.whole.append(frozenset(paired(self.tail, self.view.pins)))
        return self.whole[0]

    def pinned_messages(self) -> list[Message]:
        """All of them, oldest first."""
        return [*self.pins, *(message for message in self.tail if message.seq in self.kept)]

    def shortened_pins(self) -> dict[int, Elision]:
        """How pins are shown that have no room as they are: the largest shortened to one size."""
        if self.view.pins and self.pins_share not in self.short:
            every = self.pinned_messages()
            cap = _water_level([one.tokens for one in every], int(self.limit * self.pins_share))
            covered = {one.seq for one in self.pins} if cap == 0 else set()
            self.short[self.pins_share] = {
                one.seq: rendering.left_out(one, self.agent_id)
                if one.seq in covered
                else rendering.elide(one, self.agent_id, cap, self.counter)
                for one in every
                if one.tokens > cap
            }
        return self.short.get(self.pins_share, {})

    @property
    def room(self) -> int:
        """What of the limit is left beside the pins."""
        pinned = sum(message.tokens for message in self.pinned_messages()) if self.view.pins else 0
        return self.limit - min(pinned, int(self.limit * self.pins_share))

    def folded(self, *, fold_all: bool) -> tuple[Observation, ...]:
        """The observations that a new digest takes over: all, or the provisional ones at the end."""
        have = self.view.observations
        place = 0 if fold_all else len(have)
        while place > 0 and have[place - 1].provisional:
            place -= 1
        return have[place:]

    def _observations(
        self, cut: int, digest_tokens: int, *, fold_all: bool
    ) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
        """What stays of the observations, and the digests that take the place of the rest and of
        `tail[:cut]`."""
        have = self.view.observations
        folded = self.folded(fold_all=fold_all)
        place = len(have) - len(folded)
        kept = have[:place]
        covered = self.tail[:cut]
        if not covered and (not folded or (len(folded) == 1 and not fold_all)):
            return have, ()
        pieces = self._pieces(folded, covered)
        moved: tuple[Observation, ...] = ()
        if not self.marks:  # a running pass knows the observations that it read by their ids
            kept, moved = digest.without_what_changes(kept, self.next_id, self.counter)
            kept = (*kept, *moved)
        new: list[Observation] = []
        for number, (old, messages) in enumerate(pieces, self.next_id + len(moved)):
            new.append(self._digest(number, old, messages, digest_tokens // len(pieces), (*kept, *new)))
        return kept[: len(kept) - len(moved)], (*moved, *new)

    def _pieces(
        self, folded: Sequence[Observation], covered: Sequence[Message]
    ) -> list[tuple[Sequence[Observation], Sequence[Message]]]:
        pieces: list[tuple[Sequence[Observation], Sequence[Message]]] = []
        low = 0
        for mark in (*sorted(set(self.marks)), None):
            old = [o for o in folded if o.covers[1] > low and (mark is None or o.covers[1] <= mark)]
            messages = [m for m in covered if m.seq > low and (mark is None or m.seq <= mark)]
            if old or messages:
                pieces.append((old, messages))
            low = mark or low
        return pieces

    def _digest(
        self,
        number: int,
        old: Sequence[Observation],
        messages: Sequence[Message],
        budget: int,
        beside: Sequence[Observation] = (),
    ) -> Observation:
        first = old[0].covers[0] if old else messages[0].seq
        last = messages[-1].seq if messages else old[-1].covers[1]
        key = (number, first, last, budget, len(old))
        if key in self.digests:
            return self.digests[key]
        ledger = Ledger.up_to((*beside, *old), messages, self.notebook)
        ledger.quote(old)
        asked = digest.wanted(messages, self.instructions)
        text, citations, tokens = digest.write(
            ledger,
            self.agent_id,
            (first, last),
            budget,
            self.counter,
            asked,
            beside=beside,
            shown=self.whole_beside,
        )
        self.digests[key] = made = Observation(
            id=number,
            kind=ObservationKind.DIGEST,
            text=text,
            tokens=tokens,
            covers=(first, last),
            citations=citations,
            replaces=tuple(o.id for o in old),
            provisional=self.provisional,
            created_at=self.at,
            ledger=ledger.stored(self.notebook),
        )
        return made

    def cost(self, message: Message) -> int:
        """Tokens of a message as the view shows it; of a pinned one nothing, since no cut saves them."""
        if message.seq in self.kept:
            return 0
        shortened = self.view.elided.get(message.seq)
        return message.tokens if shortened is None else shortened.tokens

    def allowed(self, *, orphans: bool = False) -> list[bool]:
        """`cut_points` of the tail."""
        if orphans not in self.cuts:
            self.cuts[orphans] = cut_points(self.tail, orphans=orphans)
        return self.cuts[orphans]

    def cut_keeping(self, tokens: int, latest: int, *, orphans: bool = False) -> int:
        """The earliest allowed cut that leaves at most `tokens` verbatim, else the last allowed one up to
        `latest`."""
        allowed = self.allowed(orphans=orphans)
        best = latest
        while best > 0 and not allowed[best]:
            best -= 1
        kept = sum(self.cost(message) for message in self.tail[best:])
        for place in range(best - 1, -1, -1):
            kept += self.cost(self.tail[place])
            if kept > tokens:
                break
            if allowed[place]:
                best = place
        return best

    def crowded(self) -> bool:
        """Whether the observations have outgrown their share."""
        return sum(o.tokens for o in self.view.observations) > self.limit * OBSERVATIONS_SHARE


def digest_budget(limit: int, share: float = DIGEST_SHARE) -> int:
    """Tokens that a digest may take in a window of which `limit` may be used."""
    return int(limit * share)


def forced(inputs: FitInputs) -> Fitted:
    """The best context within the limit; if there is none, the smallest possible one."""
    smallest: Fitted | None = None
    for tried in _attempts(inputs):
        if tried.tokens <= inputs.limit:
            return tried
        if smallest is None or tried.tokens < smallest.tokens:
            smallest = tried
    assert smallest is not None
    return smallest


def _attempts(inputs: FitInputs) -> Iterator[Fitted]:
    tail, limit = inputs.tail, inputs.room
    if not tail:
        for share in _SMALLER:
            yield inputs.build(0, digest_budget(limit, share), fold_all=True)
        yield inputs.build(0, 0, fold_all=True, pinned_tokens=limit // 16)
        yield inputs.build(0, 0, fold_all=True, pinned_tokens=0)
        for less in _with_less_pinned(inputs):
            yield less.build(0, 0, fold_all=True, pinned_tokens=0)
        return
    latest, group = newest_turn(tail), newest_group(tail)
    crowded = inputs.crowded()
    turn = latest
    for orphans in (False, True):
        turn = inputs.cut_keeping(0, latest, orphans=orphans)
        if sum(inputs.cost(message) for message in tail[turn:]) > limit:
            continue
        comfortable = inputs.cut_keeping(int(limit * KEEP_FORCED), latest, orphans=orphans)
        yield inputs.build(comfortable, digest_budget(limit), fold_all=crowded)
        for share in _SMALLER[:2]:
            yield inputs.build(turn, digest_budget(limit, share), fold_all=crowded or share < DIGEST_SHARE)
    for share in _SMALLER[1:]:  # a memory of nothing but pointers only where even that is too much
        for cut in dict.fromkeys((turn, group)):
            yield from _shortened(inputs, cut, group, digest_budget(limit, share))
    # Last: only what the API cannot do without, in its shortest form.
    for pinned_tokens in (limit // 16, 0):
        yield from _squeezed(inputs, group, range(group, len(tail)), pinned_tokens)
    if (
        len(tail) <= FEW_MESSAGES
    ):  # with few messages, the shortest forms can be smaller than a digest's pointer
        yield from _squeezed(inputs, 0, range(len(tail)), 0)
    for less in _with_less_pinned(inputs):
        yield from _squeezed(less, group, range(group, len(tail)), 0)


def _with_less_pinned(inputs: FitInputs) -> Iterator[FitInputs]:
    """The same with less and less room for pins; at last, of those that observations cover, none."""
    for share in (PINS_FORCED_SHARE / 2, PINS_FORCED_SHARE / 8, 0.0) if inputs.view.pins else ():
        yield replace(inputs, pins_share=share)


def _shortened(inputs: FitInputs, cut: int, group: int, digest_tokens: int) -> Iterator[Fitted]:
    """The newest messages from `cut`, the group itself verbatim where it fits."""
    bare = inputs.build(cut, digest_tokens, fold_all=True)
    newest = sum(inputs.cost(message) for message in inputs.tail[group:])
    front = bare.tokens - sum(inputs.cost(message) for message in inputs.tail[cut:])
    if bare.tokens <= inputs.limit:
        yield bare
        return
    if newest + front < inputs.limit and cut < group:
        yield from _squeezed(inputs, cut, range(cut, group), None, digest_tokens)
    # A tool's result can be read again by its pointer; the agent's last words say how it continues.
    brought = [place for place in range(cut, len(inputs.tail)) if inputs.tail[place].role == "user"]
    said = sum(inputs.cost(message) for message in inputs.tail[cut:] if message.role == "assistant")
    if inputs.limit - front - said > len(brought) * inputs.limit * USEFUL_SHARE:
        yield from _squeezed(inputs, cut, brought, None, digest_tokens)
    yield from _squeezed(inputs, cut, range(cut, len(inputs.tail)), None, digest_tokens)


def _squeezed(
    inputs: FitInputs,
    cut: int,
    free: Sequence[int],
    pinned_tokens: int | None,
    digest_tokens: int = 0,
    *,
    fold_all: bool = True,
) -> Iterator[Fitted]:
    """Shorten the messages at `free`, the largest first, until the context fits or nothing can be shortened.

    A little room is left; otherwise each further message, however small, would shorten all of them again.
    """
    bare = inputs.build(cut, digest_tokens, fold_all=fold_all, pinned_tokens=pinned_tokens)
    if bare.tokens <= inputs.limit:
        yield bare
        return
    free = [place for place in free if inputs.tail[place].seq not in inputs.kept]
    sizes = [inputs.cost(inputs.tail[place]) for place in free]
    room = int(inputs.limit * (1 - SLACK_SHARE)) - (bare.tokens - sum(sizes))
    for left in range(6, -1, -1):  # at last, the shortest form of each
        cap = _water_level(sizes, max(0, room)) if left else 0
        shorter = (
            (size, rendering.elide(inputs.tail[place], inputs.agent_id, cap, inputs.counter))
            for place, size in zip(free, sizes, strict=True)
            if size > cap
        )
        elided = {short.seq: short for size, short in shorter if short.tokens < size}
        tried = inputs.build(
            cut, digest_tokens, fold_all=fold_all, elided=elided, pinned_tokens=pinned_tokens
        )
        yield tried
        if cap == 0:
            return
        room = min(room - (tried.tokens - inputs.limit), int(room * 0.7))


def shortened_again(inputs: FitInputs, among: Container[int] | None = None) -> Fitted | None:
    """The view with the messages that it shows shortened (`among` these, if given) made shorter
    still, until it fits; None where that is not enough."""
    free = [
        place
        for place, message in enumerate(inputs.tail)
        if message.seq in inputs.view.elided and (among is None or message.seq in among)
    ]
    if not free:
        return None
    return next(
        (f for f in _squeezed(inputs, 0, free, None, fold_all=False) if f.tokens <= inputs.limit), None
    )


def kept_whole(tail: Sequence[Message], counter: TokenCounter) -> str:
    """Which block of the newest messages takes most of what cannot be shortened, as a sentence; empty if there is
    none."""
    blocks = [
        (count_block(block, counter), message.seq, block["type"])
        for message in (tail[newest_group(tail) :] if tail else ())
        for block in blocks_of(message.content)
        if block["type"] in THINKING and not droppable_thinking(message.content)
    ]
    if not blocks:
        return ""
    tokens, seq, kind = max(blocks)
    return (
        f"Message {seq} contains a {kind} block of {tokens} tokens. The provider requires it in full until the turn with"
        " tool calls ends."
    )


def _water_level(sizes: Sequence[int], room: int) -> int:
    """The largest cap such that the sizes, each cut down to it, sum up to at most `room`."""
    left, count = room, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return left // count
        left -= size
        count -= 1
    return max(sizes, default=0)
