"""One agent's context: every message that it ever had, and the view of them that a model receives. No I/O.

Each call that changes something returns a `Change`, the records to store. If the caller crashes between two
calls, nothing is lost: the stored records are the truth, not this object.

Invariants, whatever is appended:

- every message is verbatim, elided or covered by a cited observation;
- a pinned message is verbatim until it is unpinned, covered or not; where the window became too small for the pins,
  the largest are shortened, and the `Change` says which;
- no cut separates a tool call from its result;
- `tokens` never exceeds `limit` (else `render` raises `WindowTooSmall`);
- messages and observations are only ever added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from watchkeeper.memory import digest, fitting, history
from watchkeeper.memory.content import (
    after_compaction,
    compacted_text,
    copied_messages,
    cut_points,
    frozen_content,
    newest_turn,
    paired,
    shown,
)
from watchkeeper.memory.fitting import Assembly, assemble, pinnable
from watchkeeper.memory.history import (
    EDIT,
    PIN,
    UNPIN,
    Change,
    ContextLimits,
    Pin,
    Prepared,
    Preview,
    Rejection,
    WindowTooSmall,
)
from watchkeeper.memory.ledger import Ledger, Notebook
from watchkeeper.memory.rendering import elide
from watchkeeper.memory.tokens import TokenCounter, count_message, plain
from watchkeeper.memory.validation import spliced, unusable
from watchkeeper.models.registry import price
from watchkeeper.records.messages import Content, Message, Observation, ObservationKind, Role, Usage, View

LOW_KEEP_SHARE, LOW_DIGEST_SHARE, LOW_OBSERVATIONS_SHARE = 0.4, 0.2, 0.4
"""Shares of the threshold: what a pass leaves verbatim, what a digest takes, and how large observations may
grow before they are folded. They bind where the threshold is low. A pass must leave much less than the
threshold, or the next message begins the next pass."""


NOTES_A_MESSAGE = 3
"""For so many messages a digest's notes are made when one is added, from half of the threshold on: all are there before
the window is full, and the agents whose contexts stay small never pay for them."""


REREAD_WINDOWS = 4
"""So many windows of messages under digests a summary reads again, in parts; if there are more, it reads the digests."""


class ContextState:
    """See the module's docstring. Sequence numbers are the ids of messages, from 1."""

    def __init__(
        self,
        limits: ContextLimits,
        counter: TokenCounter,
        *,
        agent_id: str = "agent",
        at: float = 0.0,
        pin_first: bool = True,
    ) -> None:
        """`pin_first`: keep the first user message (the assignment) at the front, observed or not."""
        self.agent_id = agent_id
        self.counter = counter
        self.calibration = 1.0
        self.limits = limits
        self.epoch = 0
        """Advances when the view changes by hand (undo, redo, a digest on request): every earlier pass is
        then void."""
        self.last_refusal = ""
        """Why the last `digest` had nothing to gain."""
        self.notebook = Notebook()
        """What a digest would say of the messages shown."""
        self.messages: list[Message] = []
        """Every message that is loaded, oldest first, consecutive. Not to be changed by callers."""
        self.last_seq = 0
        """The newest message's number; 0 before the first."""
        self.total_tokens = 0
        """Size of every message ever appended, raw."""
        self.view = View(version=1, observations=(), verbatim_from=1, created_at=at)
        """The version now current."""
        self._views = {1: self.view}
        self._first: Message | None = None
        """Message 1, where it is loaded; it may be so although those behind it are not."""
        self._kept: dict[int, Message] = {}
        """The messages that some version pins, which may be covered."""
        self._lasting: set[int] = set()
        """Those of them that were pinned as they came (see `append`): undo keeps them pinned."""
        self._odd: dict[int, Content] = {}
        """What is shown of messages that no encoder takes as they are."""
        self._redo: list[int] = []
        """Versions that redo leads to, the next one last."""
        self._next_observation = 1
        self._labels: dict[str, int] = {}
        self._pin_first = pin_first
        self._marks: list[int] = []
        self._held = False
        self._assembly = self._assemble(self.view)

    @classmethod
    def restore(
        cls,
        limits: ContextLimits,
        counter: TokenCounter,
        *,
        agent_id: str,
        messages: Sequence[Message],
        views: Sequence[View],
        current: int,
        observations: Sequence[Observation] = (),
        calibration: float = 1.0,
        pin_first: bool = True,
        total_tokens: int | None = None,
    ) -> ContextState:
        """The state as stored.

        `messages`: at least those that the current view does not cover (consecutive, to the newest), those that
        `views` pin, and the first message if it is to stay at the front; all of them if undo must reach back. `views`: at least the
        current one; undo needs its ancestors. `total_tokens`: the size of all messages, if the newest one is
        not among `messages`.
        """
        state = cls(limits, counter, agent_id=agent_id, pin_first=pin_first)
        state.calibration = calibration
        state._views = {view.version: view for view in sorted(views, key=lambda view: view.version)}
        state.view = state._views[current]
        known = [*observations, *(one for view in views for one in view.observations)]
        state._next_observation = max((one.id for one in known), default=0) + 1
        ordered = sorted(messages, key=lambda message: message.seq)
        newest = ordered[-1].seq if ordered else 0
        state.last_seq = max(newest, history.uncovered_from(state.view) - 1)
        state.total_tokens = ordered[-1].total_tokens if ordered else 0
        if total_tokens is not None:
            state.total_tokens = total_tokens
        state._note(ordered)
        state._keep({seq for view in views for seq in view.pins}, {one.seq: one for one in ordered})
        state._lasting = history.lasting_pins(state._views)
        if newest == state.last_seq:  # else the view covers everything, and an older message alone is no tail
            start = max(0, len(ordered) - 1)
            while start > 0 and ordered[start - 1].seq == ordered[start].seq - 1:
                start -= 1
            state.messages = ordered[start:]
        for message in state._tail(state.view):  # a result that comes next is of a call in one of these
            state.notebook.add(message)
        state._redo = history.redo_stack(state._views, state.view)
        state._held = (
            state._holds(state._redo) or history.before_appends(state._views, state.view).reason == "undo"
        )
        state._assembly = state._assemble(state.view)
        return state

    # --- what is shown --------------------------------------------------------------------------------------

    @property
    def views(self) -> tuple[View, ...]:
        """Every version that is loaded, oldest first."""
        return tuple(self._views.values())

    @property
    def verbatim(self) -> Sequence[Message]:
        """The messages that the view does not cover."""
        return self._tail(self.view)

    def covered_by(self, observation: Observation) -> Sequence[Message]:
        """The messages that an observation covers; empty if they are not all loaded."""
        first, last = observation.covers
        if not self.messages or first < self.messages[0].seq:
            return []
        base = self.messages[0].seq
        return self.messages[first - base : last - base + 1]

    def content_of(self, message: Message) -> Content:
        """A message's content as it may be sent: without the lone surrogates that no encoder takes."""
        return self._odd.get(message.seq, message.content)

    def shown_tokens(self, message: Message) -> int:
        """Tokens of a message as the view shows it: whole, or shortened."""
        shortened = self.view.elided.get(message.seq)
        return message.tokens if shortened is None else shortened.tokens

    @property
    def tokens(self) -> int:
        """Size of `render()`, raw, without `overhead_tokens`."""
        return self._assembly.tokens

    @property
    def limit(self) -> int:
        """How many of our own tokens the context may take: the window less reply and overhead, calibrated."""
        return self._scaled(self.limits.max_tokens - self.limits.reserve_tokens)

    @property
    def threshold(self) -> int:
        """From how many of our own tokens on a compaction should run."""
        return min(
            self.limit, self._scaled(int(self.limits.max_tokens * self.limits.summarization_threshold))
        )

    def composition(self) -> dict[str, int]:
        """Tokens of the window by what they are spent on; `messages` are those shown whole, the assignment
        included; `pinned` those that a person pinned, if there are any."""
        made = self._assembly
        elided = min(max(0, made.elided), made.tokens - made.observations)
        pins = min(max(0, made.pins), made.tokens - made.observations - elided)
        return {
            "observations": made.observations,
            **({"pinned": pins} if pins else {}),
            "messages": made.tokens - made.observations - elided - pins,
            "elided": elided,
            "headroom": max(0, self.limit - made.tokens),
            "overhead": self.limits.overhead_tokens,
        }

    def stable_prefix(self) -> int:
        """How many rendered messages are byte-identical in the next turn, as long as the view stays."""
        rendering = self._assembly.rendering
        return len(rendering.items) - rendering.unstable

    def render(self) -> list[dict[str, Any]]:
        """The context, valid for the Messages API. The caller may change what it gets: a copy of all that is
        shown.

        Raises:
            WindowTooSmall: not even the newest group of messages fits.
        """
        return copied_messages(self.rendered())

    def rendered(self) -> list[dict[str, Any]]:
        """`render()` with messages that cannot be changed: later calls share them, so that nothing is copied.

        Raises:
            WindowTooSmall: not even the newest group of messages fits.
        """
        if self.tokens > self.limit and self.last_seq:
            raise WindowTooSmall(self.tokens, self.limit, fitting.kept_whole(self.verbatim, self.counter))
        return self._assembly.rendering.items[:]

    def missing_for(self, move: Literal["undo", "redo"], to: int | None = None) -> tuple[int, int] | None:
        """The first and last message to be given to `load_earlier` before that move (see `undo`); None where
        all are there.

        Raises:
            ValueError: there is nothing to undo, or to redo.
        """
        start = history.needed_from(self._target(move, to))
        base = self._base()
        return (start, base - 1) if start < base else None

    def needs_compaction(self) -> bool:
        """Whether the threshold is reached; never right after an undo, which would only be undone itself."""
        return not self._held and self.tokens >= self.threshold

    @property
    def held(self) -> bool:
        """Whether automatic passes wait, because a person or a caller undid one."""
        return self._held

    def descends_from(self, version: int) -> bool:
        """Whether every change of the context since `version` was one of the bound (digests, elisions), or of what is
        pinned: none that a pass which read that version would contradict."""
        view: View | None = self.view
        while view is not None and view.version != version:
            by_itself = view.reason in ("append", "elision", PIN, UNPIN) or (
                view.reason == "digest" and history.provisional(view)
            )
            if not by_itself or view.parent is None:
                return False
            view = self._views.get(view.parent)
        return view is not None

    # --- messages -------------------------------------------------------------------------------------------

    def append(
        self, role: Role, content: Content, *, at: float, tokens: int | None = None, lasting: bool = False
    ) -> Change:
        """Add a message; where the bound would be passed, a digest takes older ones' place in the same
        change.

        O(1) in the length of the history, but for that digest. `tokens`: the raw count where it is known
        already. `lasting`: pin the message, so that it survives compaction where it was said. If all lasting
        messages need more than a third of the limit, the oldest are unpinned.
        """
        before = cached = self.tokens
        content = frozen_content(content)
        counted = count_message(role, content, self.counter) if tokens is None else tokens
        seq = self.last_seq + 1
        pins = self._pins_with(seq, counted) if lasting else self.view.pins
        start = seq if self.view.verbatim_from is None else self.view.verbatim_from
        views: tuple[View, ...] = ()
        if (start, pins) != (self.view.verbatim_from, self.view.pins):
            unpinned = set(self.view.pins) - set(pins)
            self.view = self._version(replace(self.view, verbatim_from=start, pins=pins), "append", at)
            views = (self.view,)
            if unpinned:
                shown = self._assembly
                self._assembly = self._assemble(self.view)
                cached = self._assembly.rendering.shared_with(shown.rendering)
        self.last_seq = seq
        self.total_tokens += counted
        message = Message(seq, role, content, counted, self.total_tokens, at)
        self.messages.append(message)
        self._note((message,))
        self.notebook.add(message)
        if self.tokens >= self.threshold // 2:
            self.notebook.make(NOTES_A_MESSAGE)
        pushed = self.tokens
        self._assembly.rendering.push(role, self.content_of(message), counted)
        if lasting:
            self._keep((seq,))
            self._assembly.pins += self.tokens - pushed
        whole = self.tokens
        made = [change for change in (self._adopted(message, at), self._fitted(at)) if change is not None]
        shared = min((each.tokens_before - each.cache_tokens_invalidated for each in made), default=cached)
        return Change(
            messages=(message,),
            observations=tuple(one for each in made for one in each.observations),
            views=(*views, *(view for each in made for view in each.views)),
            view=self.view,
            tokens=self.tokens,
            tokens_before=whole,
            messages_removed=sum(each.messages_removed for each in made),
            high_water=max((each.high_water for each in made if each.high_water is not None), default=None),
            reason=made[-1].reason if made else "append" if views else "",
            cache_tokens_invalidated=max(0, before - shared),
            pins_shortened=tuple(sorted({seq for each in made for seq in each.pins_shortened})),
        )

    def fit(self, *, at: float) -> Change | None:
        """Enforce the bound now, as after `set_limits`; None where it holds already."""
        return self._fitted(at)

    def set_limits(self, limits: ContextLimits, calibration: float) -> None:
        """Set new limits, between turns. The context changes only with the next `append` or `fit`."""
        self.limits = limits
        self.calibration = calibration

    def forget_covered(self) -> None:
        """Drop the messages that nothing reads any more while this view is current.

        The window then bounds the memory of a context. For callers that store each `Change`; see
        `missing_for`.
        """
        start = history.uncovered_from(self.view)
        for observation in reversed(self.view.observations):
            again = self.covered_by(observation) if observation.provisional else ()
            # A summary reads the messages under digests, in parts, up to so many windows.
            if (
                not again
                or again[-1].total_tokens - again[0].total_tokens + again[0].tokens
                > REREAD_WINDOWS * self.limit
            ):
                break
            start = observation.covers[0]
        if self._base() < start:
            del self.messages[: start - self._base()]
            self._odd = {
                seq: content
                for seq, content in self._odd.items()
                if seq >= start or seq == 1 or seq in self._kept
            }

    def load_earlier(self, messages: Sequence[Message]) -> None:
        """Add messages before the first one loaded, consecutive up to it, so that undo can return to views
        that show them.

        Raises:
            ValueError: they do not join on.
        """
        if not messages:
            return
        base = self._base()
        if messages[-1].seq + 1 != base or any(b.seq != a.seq + 1 for a, b in pairwise(messages)):
            raise ValueError(f"Expected messages up to {base - 1} without gaps.")
        self.messages[:0] = messages
        self._note(messages)

    # --- passes ---------------------------------------------------------------------------------------------

    def begin_pass(self, high_water: int) -> None:
        """A pass that reads up to `high_water` is running: digests made meanwhile split there."""
        self._marks.append(high_water)

    def end_pass(self, high_water: int) -> None:
        """The pass that `begin_pass` announced is over."""
        if high_water in self._marks:
            self._marks.remove(high_water)

    def digest(
        self,
        *,
        up_to: int | None = None,
        at: float,
        reason: str = "digest",
        instructions: str | None = None,
        keep_newest: bool = True,
    ) -> Change | None:
        """Compact now, without a model. None where nothing is gained: `last_refusal` says why.

        `up_to`: the last message to cover (moved back so that no pair is cut); None: all but the newest turn
        and about a fifth of the window. `keep_newest=False` lets `up_to` reach into the newest turn.
        """
        inputs = self._fit_inputs(at, instructions=instructions, provisional=False)
        fitted = self._digested(inputs, up_to, keep_newest=keep_newest)
        if fitted is None:
            return None
        self.last_refusal = ""
        self.epoch += 1
        return self._take(fitted, reason, at)

    def _digested(
        self, inputs: fitting.FitInputs, up_to: int | None, *, keep_newest: bool
    ) -> fitting.Fitted | None:
        tail = inputs.tail
        latest = newest_turn(tail) if keep_newest and tail else len(tail)
        if up_to is None:
            cut = self.cut_for_pass(latest)
        else:
            cut = self.cut_before(up_to, latest)
        if cut == 0:
            self.last_refusal = (
                "All eligible messages are already digested. The newest messages stay, "
                "as does everything after a tool call without a result."
            )
            return None
        covered = sum(inputs.cost(message) for message in tail[:cut])
        observed = sum(o.tokens for o in self.view.observations)
        crowded = inputs.crowded() or observed > self.threshold * LOW_OBSERVATIONS_SHARE
        # What the digest takes over of earlier ones has its own room: few new messages do not cost it.
        room = covered // 2 + sum(o.tokens for o in inputs.folded(fold_all=crowded))
        budget = min(fitting.digest_budget(self.limit), room, int(self.threshold * LOW_DIGEST_SHARE))
        fitted = inputs.build(cut, budget, fold_all=crowded)
        if fitted.tokens >= self.tokens:
            self.last_refusal = f"A digest of messages {tail[0].seq} to {tail[cut - 1].seq} would not be shorter than the messages."
            return None
        return fitted

    def fold(self, *, at: float) -> Change | None:
        """Make one provisional digest of all observations until there is a reflection; None if it would not
        be smaller."""
        fitted = self._fit_inputs(at).build(0, fitting.digest_budget(self.limit), fold_all=True)
        if not fitted.new or fitted.tokens >= self.tokens:
            return None
        return self._take(fitted, "digest", at)

    def cut_for_pass(self, latest: int | None = None) -> int:
        """How many verbatim messages a pass without a mark should cover: all but the newest fifth of the
        window; if everything is within that fifth, all but the newest turn."""
        tail = self.verbatim
        if not tail:
            return 0
        if latest is None:
            latest = newest_turn(tail)
        inputs = self._fit_inputs(0.0)
        keep = int(min(self.limit * fitting.KEEP_BY_HAND, self.threshold * LOW_KEEP_SHARE))
        return inputs.cut_keeping(keep, latest) or inputs.cut_keeping(0, latest)

    def cut_before(self, up_to: int, latest: int | None = None) -> int:
        """How many of the verbatim messages a cut behind message `up_to` covers, moved back so that no pair
        is cut."""
        tail = self.verbatim
        if not tail:
            return 0
        allowed = cut_points(tail)
        cut = min(max(0, up_to - tail[0].seq + 1), len(tail) if latest is None else latest)
        while cut > 0 and not allowed[cut]:
            cut -= 1
        return cut

    def publish(self, prepared: Prepared, *, at: float) -> Change | Rejection:
        """Apply the result of a pass if its place in the view allows it; else say why not, and change
        nothing."""
        if prepared.epoch != self.epoch:
            return Rejection("The context was edited during the compaction.")
        observation = Observation(
            id=self._next_observation,
            kind=prepared.kind,
            text=prepared.text,
            tokens=prepared.tokens,
            covers=prepared.covers,
            citations=prepared.citations,
            level=prepared.level,
            replaces=prepared.replaces,
            created_at=at,
            ledger=self._ledger_at(prepared.covers[1]),
        )
        parts = spliced(prepared, observation, self.view, self.verbatim, self.last_seq + 1)
        if isinstance(parts, Rejection):
            return parts
        observations, verbatim_from = parts
        view = self._with_pins(
            replace(
                self.view,
                observations=observations,
                verbatim_from=verbatim_from,
                elided={
                    seq: shown
                    for seq, shown in self.view.elided.items()
                    if seq == 1 or (verbatim_from is not None and seq >= verbatim_from)
                },
            )
        )
        assembly = self._assemble(view)
        stands_in = any(
            have.provisional and have.covers[1] <= prepared.covers[1] for have in self.view.observations
        )
        if assembly.tokens >= self.tokens and not stands_in:
            return Rejection(
                f"The context would not shrink: {assembly.tokens} tokens instead of {self.tokens}."
            )
        fitted: fitting.Fitted | None = fitting.Fitted(view, (observation,), assembly)
        if assembly.tokens > self.limit:
            # A digest filled the window to the last token: what is shown short already makes room for the
            # summary.
            fitted = fitting.shortened_again(self._fit_inputs(at, view=view))
        if fitted is None:
            return Rejection(
                f"With the summary, the context is {assembly.tokens} tokens, {assembly.tokens - self.limit} over the limit."
            )
        return self._take(replace(fitted, new=(observation,)), prepared.reason, at)

    def _ledger_at(self, last: int) -> str:
        """What was done up to a message, as an observation keeps it."""
        before = [one for one in self.view.observations if one.covers[1] <= last]
        start = before[-1].covers[1] if before else 0
        ledger = Ledger.up_to(
            before, [one for one in self.messages if start < one.seq <= last], self.notebook
        )
        digest.bound(ledger, fitting.digest_budget(self.limit))
        return ledger.stored(self.notebook)

    def undo(self, *, at: float, to: int | None = None) -> Change:
        """Go back to the view before the last compaction; messages appended since stay. `to`: the version
        before an earlier one.

        Raises:
            ValueError: there is none, or it does not fit any more; the message says why, and by how much.
        """
        target = self._target("undo", to)
        left = [self.view.version]
        for view in history.undo_targets(self._views, self.view):
            if view.version == target.version:
                break
            left.append(view.version)
        held = self._held or self._holds(left)
        change = self._point_at(target, "undo", at)
        self._redo += left
        self._held = held
        return change

    def _holds(self, undone: Iterable[int]) -> bool:
        """Whether automatic passes must wait after these versions were undone: not if all were changes by hand."""
        views = self._views
        return any(history.last_change(views, views[one]).reason not in history.BY_HAND for one in undone)

    def undo_fits(self, to: int) -> bool:
        """Whether `undo(to=…)` would succeed, as far as messages are loaded."""
        try:
            self._fitting(self._views[to], 0.0)
        except ValueError:
            return False
        return True

    def redo(self, *, at: float) -> Change:
        """Undo the last undo.

        Raises:
            ValueError: nothing was undone, or a newer view came since, or it does not fit any more.
        """
        change = self._point_at(self._target("redo"), "redo", at)
        self._redo.pop()
        self._held = self._holds(self._redo)
        return change

    # --- surgery by hand ------------------------------------------------------------------------------------

    def edit(
        self,
        *,
        drop: Collection[int] = (),
        texts: Mapping[int, str] | None = None,
        pin: Collection[int] = (),
        unpin: Collection[int] = (),
        among: Sequence[Message] = (),
        at: float,
    ) -> Change:
        """Change by hand what is shown. What is stored stays, pairs stay whole, and undo leads back.

        `drop`: messages to show as pointers alone. `texts`: other texts of observations, by their ids. `pin`: messages
        to show as they are from now on, with the other halves of their pairs; `unpin`: those no more. `among`: messages
        to pin that are not loaded.

        Raises:
            ValueError: a message or an observation is not in this context, nothing would change, it would not fit, or
                the pins would take more than a third of the limit.
        """
        fitted = self._edited(drop, texts or {}, pin, unpin, among, at)
        reason = EDIT
        if not drop and not texts:
            reason = PIN if pin else UNPIN
        else:
            self.epoch += 1
        self._keep(fitted.view.pins, {one.seq: one for one in among})
        self._lasting &= set(fitted.view.pins)
        return self._take(fitted, reason, at)

    def preview_edit(
        self,
        *,
        drop: Collection[int] = (),
        texts: Mapping[int, str] | None = None,
        pin: Collection[int] = (),
        unpin: Collection[int] = (),
        among: Sequence[Message] = (),
        model: str | None = None,
    ) -> Preview:
        """What `edit` would lead to, and what that costs at the prices of `model`. Raises as `edit` does."""
        return self._previewed(self._edited(drop, texts or {}, pin, unpin, among, 0.0), model)

    def preview_compaction(self, up_to: int | None = None, *, model: str | None = None) -> Preview:
        """What a compaction now would lead to, with a digest in the place of a summary, whose text is not known yet.
        `model`: at whose prices the prompt is written to the cache again.

        Raises:
            ValueError: there is nothing to gain; the message says why.
        """
        fitted = self._digested(self._fit_inputs(0.0, provisional=False), up_to, keep_newest=up_to is None)
        if fitted is None:
            raise ValueError(self.last_refusal)
        return self._previewed(fitted, model)

    def _previewed(self, fitted: fitting.Fitted, model: str | None) -> Preview:
        made = fitted.assembly.rendering
        shared, alike = made.shared_with(self._assembly.rendering), made.alike(self._assembly.rendering)
        written = max(0, fitted.tokens - shared)
        start, covered = history.uncovered_from(fitted.view), history.uncovered_from(self.view)
        return Preview(
            tokens_before=self.tokens,
            tokens=fitted.tokens,
            limit=self.limit,
            cache_tokens_void=max(0, self.tokens - shared),
            cache_tokens_written=written,
            cost_usd=price(model, Usage(cache_write_tokens=written)).usd if model else None,
            messages_cached=alike,
            high_water=start - 1 if start > covered else None,
            messages_removed=start - covered,
            messages=copied_messages(made.items),
            sizes=list(made.sizes),
        )

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pinned messages, oldest first."""
        return tuple(
            Pin(seq, self._kept[seq].tokens, short.tokens if short else self._kept[seq].tokens)
            for seq in self.view.pins
            for short in (self.view.elided.get(seq),)
        )

    def _edited(
        self,
        drop: Collection[int],
        texts: Mapping[int, str],
        pin: Collection[int],
        unpin: Collection[int],
        among: Sequence[Message],
        at: float,
    ) -> fitting.Fitted:
        shown = {message.seq: message for message in self.verbatim}
        elided, observations = dict(self.view.elided), list(self.view.observations)
        pinned = self._pinned_after(pin, unpin, among)
        for seq in {
            *(pinned.keys() - set(self.view.pins)),
            *pin,
            *(set(self.view.pins) - pinned.keys() - shown.keys()),
        }:
            elided.pop(seq, None)
        for seq in drop:
            if seq in pinned:
                raise ValueError(f"Message {seq} is pinned; unpin it first.")
            if seq not in shown:
                raise ValueError(
                    f"Message {seq} is not shown in this context; only shown messages can be dropped."
                )
            short = elide(shown[seq], self.agent_id, 0, self.counter)
            if short.tokens >= self.shown_tokens(shown[seq]):
                raise ValueError(f"Message {seq} is already shown as short as possible.")
            elided[seq] = short
        new: list[Observation] = []
        for number, text in texts.items():
            place = next((i for i, one in enumerate(observations) if one.id == number), None)
            if place is None:
                raise ValueError(f"Observation {number} is not in this context.")
            if not text.strip():
                raise ValueError("The text is empty. Enter a text that replaces the messages it covers.")
            if text == observations[place].text:
                continue
            edited = replace(
                observations[place],
                id=self._next_observation + len(new),
                text=plain(text),
                tokens=self.counter.count(plain(text)),
                replaces=(number,),
                provisional=False,
                created_at=at,
            )
            observations[place] = edited
            new.append(edited)
        view = replace(self.view, observations=tuple(observations), elided=elided, pins=tuple(sorted(pinned)))
        if view == self.view:
            raise ValueError("Nothing would change.")
        start = history.uncovered_from(view)
        tokens = sum(message.tokens for message in pinned.values())
        if set(pinned) - set(self.view.pins) and tokens > self.limit * fitting.PINS_SHARE:
            raise ValueError(
                f"The pinned messages would take {tokens} tokens. Pins may take"
                f" {int(self.limit * fitting.PINS_SHARE)}, a third of the limit of {self.limit}."
            )
        assembly = self._assemble(view, [pinned[seq] for seq in view.pins if seq < start])
        if assembly.tokens > self.limit:
            raise ValueError(
                f"The context would take {assembly.tokens} tokens, {assembly.tokens - self.limit} over the limit"
                f" of {self.limit}."
            )
        return fitting.Fitted(view, tuple(new), assembly)

    def _pinned_after(
        self, pin: Collection[int], unpin: Collection[int], among: Sequence[Message]
    ) -> dict[int, Message]:
        """The messages that are pinned after `pin` and `unpin`, by their numbers."""
        if not self.view.pins and not pin and not unpin:
            return {}
        known = {one.seq: one for one in (*among, *self._kept.values(), *self.messages)}
        ordered = [known[seq] for seq in sorted(known)]
        pinned = paired(ordered, self.view.pins)
        for seq in unpin:
            if seq not in pinned:
                raise ValueError(f"Message {seq} is not pinned.")
        pinned -= paired(ordered, unpin)
        for seq in pin:
            if seq not in known:
                loaded = "is not loaded" if 1 <= seq <= self.last_seq else "is not in this context"
                raise ValueError(f"Message {seq} {loaded}; only loaded messages can be pinned.")
            if seq in pinned and seq not in self.view.elided:
                raise ValueError(f"Message {seq} is already pinned.")
        return {seq: known[seq] for seq in pinned | paired(ordered, pin)}

    # --- how ------------------------------------------------------------------------------------------------

    def _scaled(self, provider_tokens: int) -> int:
        return max(0, int(provider_tokens / self.calibration) - self.limits.overhead_tokens)

    def _base(self) -> int:
        """The first message that is loaded, or the next one's number."""
        return self.messages[0].seq if self.messages else self.last_seq + 1

    def _note(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.seq == 1:
                self._first = message
            content = shown(message.content)
            if content is not message.content:
                self._odd[message.seq] = content

    def _tail(self, view: View) -> Sequence[Message]:
        """The messages that `view` does not cover.

        Raises:
            ValueError: they are not loaded.
        """
        start, base = history.uncovered_from(view), self._base()
        if start > self.last_seq:
            return []
        if start < base:
            raise ValueError(f"Messages {start} to {base - 1} are not loaded.")
        return self.messages if start == base else self.messages[start - base :]

    def _target(self, move: Literal["undo", "redo"], to: int | None = None) -> View:
        if move == "undo" and to is not None:
            for view in history.undo_targets(self._views, self.view):
                if view.version == to:
                    return view
            raise ValueError(f"No compaction of this context started from version {to}.")
        if move == "undo":
            return history.undo_target(self._views, self.view)
        if not self._redo:
            raise ValueError("Nothing to redo: there was no undo, or the context has changed since.")
        return self._views[self._redo[-1]]

    @property
    def _pinned(self) -> Message | None:
        return self._first if self._pin_first and pinnable(self._first) else None

    def _assemble(self, view: View, pins: Sequence[Message] | None = None) -> Assembly:
        """`pins`: those that it covers, where they are not kept yet."""
        return assemble(
            self.agent_id,
            view,
            self._tail(view),
            self._pinned,
            self.counter,
            self._labels,
            self._odd,
            self._covered_pins(view) if pins is None else pins,
        )

    def _pins_with(self, seq: int, tokens: int) -> tuple[int, ...]:
        """The pins of the view and the message that comes next, less the oldest lasting ones that have no room."""
        self._lasting.add(seq)
        pins = self.view.pins
        room = int(self.limit * fitting.PINS_SHARE) - tokens - sum(self._kept[one].tokens for one in pins)
        for one in sorted(self._lasting.intersection(pins)):
            if room >= 0:
                break
            room += self._kept[one].tokens
            self._lasting.discard(one)
            pins = tuple(kept for kept in pins if kept != one)
        return (*pins, seq)

    def _covered_pins(self, view: View) -> list[Message]:
        """The messages that a view pins and covers.

        Raises:
            ValueError: they are not loaded.
        """
        start = history.uncovered_from(view) if view.pins else 0
        covered = [seq for seq in view.pins if seq < start]
        for seq in covered:
            if seq not in self._kept:
                raise ValueError(f"Message {seq} is pinned but not loaded.")
        return [self._kept[seq] for seq in covered]

    def _keep(self, pins: Collection[int], among: Mapping[int, Message] | None = None) -> None:
        """Keep the pinned messages that are loaded, covered by the view or not, or that are `among` others."""
        base, found = self._base(), dict(among or {})
        for seq in pins:
            if seq in found:
                self._kept[seq] = found[seq]
            elif base <= seq <= self.last_seq:
                self._kept[seq] = self.messages[seq - base]

    def _with_pins(self, parts: View) -> View:
        """A view that covers other messages than the current one, with the same pins."""
        if not self.view.pins:
            return parts
        inputs = self._fit_inputs(0.0)
        self._keep(inputs.kept)
        shown = {seq: short for seq, short in parts.elided.items() if seq not in inputs.kept}
        return replace(
            parts,
            pins=tuple(sorted(inputs.kept)),
            elided=dict(sorted((shown | inputs.shortened_pins()).items())),
        )

    def _fit_inputs(
        self,
        at: float,
        *,
        view: View | None = None,
        instructions: str | None = None,
        provisional: bool = True,
    ) -> fitting.FitInputs:
        view = view or self.view
        return fitting.FitInputs(
            agent_id=self.agent_id,
            counter=self.counter,
            limit=self.limit,
            view=view,
            tail=self._tail(view),
            pinned=self._pinned,
            marks=tuple(self._marks),
            next_id=self._next_observation,
            at=at,
            instructions=instructions,
            provisional=provisional,
            notebook=self.notebook,
            pins=self._covered_pins(view),
            labels=self._labels,
            odd=self._odd,
        )

    def _adopted(self, message: Message, at: float) -> Change | None:
        """A provider compacted the context itself: the text of its `compaction` block becomes the observation of
        everything before. None for any other message, or if a call before it still waits for its result."""
        text = compacted_text(message.role, message.content)
        if text is None or unusable(text):
            return None
        tail = self.verbatim
        whole = not after_compaction(message.content)
        cut, last = len(tail) - (not whole), message.seq - (not whole)
        if last < 1 or not cut_points(tail)[cut]:
            return None
        observation = Observation(
            id=self._next_observation,
            kind=ObservationKind.SUMMARY,
            text=text,
            tokens=self.counter.count(text),
            covers=(1, last),
            citations=tuple(dict.fromkeys((1, last))),
            replaces=tuple(one.id for one in self.view.observations),
            created_at=at,
            ledger=self._ledger_at(last),
        )
        view = self._with_pins(
            replace(
                self.view,
                observations=(observation,),
                verbatim_from=None if whole else message.seq,
                elided={seq: short for seq, short in self.view.elided.items() if seq == 1},
            )
        )
        self.epoch += 1  # a pass that is running reads what is gone
        return self._take(fitting.Fitted(view, (observation,), self._assemble(view)), "summary", at)

    def _fitted(self, at: float) -> Change | None:
        if self.tokens <= self.limit:
            return None
        fitted = fitting.forced(self._fit_inputs(at))
        if fitted.view == self.view:
            return None
        return self._take(fitted, "digest" if fitted.new else "elision", at)

    def _take(self, fitted: fitting.Fitted, reason: str, at: float) -> Change:
        if fitted.new:
            self._held = False  # the bound forced it, or a caller asked
            self._next_observation += len(fitted.new)
        self._keep(fitted.view.pins)
        view = self._version(fitted.view, reason, at)
        change = self._show(view, fitted.assembly, reason)
        self.notebook.forget(history.uncovered_from(view))
        high_water = max((one.covers[1] for one in fitted.new), default=None)
        return replace(change, observations=fitted.new, views=(view,), high_water=high_water)

    def _version(self, parts: View, reason: str, at: float, *, parent: View | None = None) -> View:
        """A new version of the context, made from the current one or from `parent`; redo ends where it is
        the current one."""
        if parent is None:
            self._redo.clear()
        view = replace(
            parts,
            version=next(reversed(self._views)) + 1,
            parent=(parent or self.view).version,
            reason=reason,
            created_at=at,
        )
        self._views[view.version] = view
        return view

    def _show(self, view: View, assembly: Assembly, reason: str) -> Change:
        """Make an assembled view the current one."""
        before, uncovered = self.tokens, history.uncovered_from(self.view)
        known = self.view.elided
        shared = assembly.rendering.shared_with(self._assembly.rendering)
        self.view, self._assembly = view, assembly
        return Change(
            view=view,
            tokens=self.tokens,
            tokens_before=before,
            messages_removed=max(0, history.uncovered_from(view) - uncovered),
            reason=reason,
            cache_tokens_invalidated=max(0, before - shared),
            pins_shortened=tuple(seq for seq in view.pins if seq in view.elided and seq not in known),
        )

    def _point_at(self, target: View, reason: str, at: float) -> Change:
        """Go to an earlier or later version. Messages that came since keep the short form that they have now,
        and are shortened further where the version does not fit otherwise."""
        parts, assembly = self._fitting(target, at)
        if parts is not target:
            parts = self._version(parts, reason, at, parent=target)
        change = self._show(parts, assembly, reason)
        self.epoch += 1
        self._held = True
        return change if parts is target else replace(change, views=(parts,))

    def _fitting(self, target: View, at: float) -> tuple[View, Assembly]:
        """An earlier or later version as it can be shown now; see `_point_at`.

        Raises:
            ValueError: it does not fit.
        """
        start = history.uncovered_from(target)
        parts = target
        if missing := self._lasting - set(target.pins):
            parts = replace(target, pins=tuple(sorted({*target.pins, *missing})))
        assembly = self._assemble(parts)
        appended = target.verbatim_from is None and start <= self.last_seq
        if appended or assembly.tokens > self.limit:
            kept = self._fit_inputs(0.0, view=replace(parts, verbatim_from=start, elided={})).kept
            later = {
                seq: short
                for seq, short in self.view.elided.items()
                if seq >= start and short.tokens and seq not in kept
            }
            parts = replace(
                parts,
                verbatim_from=start if start <= self.last_seq else None,
                elided={**later, **target.elided},
            )
            assembly = self._assemble(parts)
            if assembly.tokens > self.limit:
                fitted = fitting.shortened_again(self._fit_inputs(at, view=parts), later)
                if fitted is None or fitted.new:
                    raise ValueError(
                        f"Version {target.version} of the context no longer fits: it would take "
                        f"{assembly.tokens} tokens, {assembly.tokens - self.limit} over the limit of {self.limit}"
                        "."
                    )
                parts, assembly = fitted.view, fitted.assembly
        return parts, assembly
