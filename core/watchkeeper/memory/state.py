"""One agent's context: every message it ever had, and the view that is shown of them. No I/O.

Each call that changes something returns a `Change`, the records to store; nothing here is lost by a crash of the
caller between two calls, because nothing here is the truth: the stored records are.

What always holds, whatever is appended:

- every message is verbatim, elided or covered by a cited observation;
- no cut separates a tool call from its result;
- `tokens` never exceeds `limit` (else `render` raises `WindowTooSmall`);
- messages and observations are only ever added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from watchkeeper.memory import fitting, history
from watchkeeper.memory.assembly import Assembly, assemble, pinnable
from watchkeeper.memory.changes import Change, ContextLimits, Prepared, Rejection, WindowTooSmall
from watchkeeper.memory.content import copied
from watchkeeper.memory.cuts import cut_points, newest_turn
from watchkeeper.memory.publishing import spliced
from watchkeeper.memory.rendering import Rendering
from watchkeeper.memory.tokens import TokenCounter, count_message
from watchkeeper.records.memory import Content, Message, Observation, Role, View

__all__ = ["Change", "ContextLimits", "ContextState", "Prepared", "Rejection", "WindowTooSmall"]


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
        """`pin_first`: keep the first user message (the assignment) at the front for ever, observed or not."""
        self._setup(limits, counter, agent_id, pin_first)
        self._view = View(version=1, observations=(), verbatim_from=1, created_at=at)
        self._views[1] = self._view

    def _setup(self, limits: ContextLimits, counter: TokenCounter, agent_id: str, pin_first: bool) -> None:
        self.agent_id = agent_id
        self.counter = counter
        self.calibration = 1.0
        self.limits = limits
        self.epoch = 0
        """Advances when the view changes by hand (undo, redo, a digest asked for): a pass begun before is void."""
        self.last_refusal = ""
        """Why the last `digest` had nothing to gain."""
        self._pin_first = pin_first
        self._messages: list[Message] = []
        self._first: Message | None = None
        self._views: dict[int, View] = {}
        self._newest = 1
        self._redo: list[int] = []
        self._held = False
        self._marks: list[int] = []
        self._next_observation = 1
        self._last_seq = 0
        self._total_tokens = 0
        self._assembly = Assembly(Rendering(counter))

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

        `messages`: at least those that the current view does not cover (consecutive, to the newest), and the first
        message where it is to stay pinned; all of them where undo shall reach back. `views`: at least the current
        one; undo needs its ancestors. `total_tokens`: of all messages, where the newest one is not among `messages`.
        """
        state = cls.__new__(cls)
        state._setup(limits, counter, agent_id, pin_first)
        state.calibration = calibration
        state._views = {view.version: view for view in views}
        state._view = state._views[current]
        ordered = sorted(messages, key=lambda message: message.seq)
        if ordered and ordered[0].seq == 1:
            state._first = ordered[0]
        start = len(ordered)
        while start > 0 and (start == len(ordered) or ordered[start - 1].seq == ordered[start].seq - 1):
            start -= 1
        state._messages = ordered[start:]
        covered = max((o.covers[1] for o in state._view.observations), default=0)
        state._last_seq = max(covered, ordered[-1].seq if ordered else 0)
        if ordered and ordered[-1].seq < state._last_seq:
            state._messages = []  # the view covers everything; an older message alone (the first) is no tail
        state._total_tokens = total_tokens if total_tokens is not None else ordered[-1].total_tokens if ordered else 0
        known = [*observations, *(o for view in views for o in view.observations)]
        state._next_observation = max((o.id for o in known), default=0) + 1
        state._newest = max(state._views)
        state._redo = history.redo_stack(state._views, state._view)
        state._held = bool(state._redo) or state._view.reason == "undo"
        state._assembly = state._assemble(state._view)
        return state

    # --- what is there -------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The version now current."""
        return self._view

    @property
    def views(self) -> tuple[View, ...]:
        """Every version that is loaded, oldest first."""
        return tuple(self._views[version] for version in sorted(self._views))

    @property
    def messages(self) -> list[Message]:
        """Every message that is loaded, oldest first. Not to be changed by callers."""
        return self._messages

    @property
    def verbatim(self) -> Sequence[Message]:
        """The messages that the view does not cover."""
        return self._tail(self._view)

    def covered_by(self, observation: Observation) -> Sequence[Message]:
        """The messages that an observation stands for; empty where they are not all loaded."""
        first, last = observation.covers
        if not self._messages or first < self._messages[0].seq:
            return []
        base = self._messages[0].seq
        return self._messages[first - base : last - base + 1]

    def shown_tokens(self, message: Message) -> int:
        """Tokens of a message as the view shows it: whole, or shortened."""
        shortened = self._view.elided.get(message.seq)
        return message.tokens if shortened is None else shortened.tokens

    @property
    def last_seq(self) -> int:
        """The newest message's number; 0 before the first."""
        return self._last_seq

    @property
    def total_tokens(self) -> int:
        """Of every message ever appended, raw."""
        return self._total_tokens

    @property
    def tokens(self) -> int:
        """Of `render()`, raw, without `overhead_tokens`."""
        return self._assembly.tokens

    @property
    def limit(self) -> int:
        """How many of our own tokens the context may take: the window less reply and overhead, calibrated."""
        return self._scaled(self.limits.max_tokens - self.limits.reserve_tokens)

    @property
    def threshold(self) -> int:
        """From how many of our own tokens on a compaction should run."""
        return min(self.limit, self._scaled(int(self.limits.max_tokens * self.limits.summarization_threshold)))

    def _scaled(self, provider_tokens: int) -> int:
        return max(0, int(provider_tokens / self.calibration) - self.limits.overhead_tokens)

    def composition(self) -> dict[str, int]:
        """Tokens of the window by what they are spent on; `messages` are those shown whole, the assignment included."""
        made = self._assembly
        elided = min(max(0, made.elided), made.tokens - made.observations)
        return {
            "observations": made.observations,
            "messages": made.tokens - made.observations - elided,
            "elided": elided,
            "headroom": max(0, self.limit - made.tokens),
            "overhead": self.limits.overhead_tokens,
        }

    def stable_prefix(self) -> int:
        """How many rendered messages are byte-identical in the next turn, as long as the view stays."""
        rendering = self._assembly.rendering
        return len(rendering.items) - rendering.unstable

    def render(self) -> list[dict[str, Any]]:
        """The context, valid for the Messages API. The caller may change what it gets.

        Raises:
            WindowTooSmall: not even the newest group of messages fits.
        """
        if self.tokens > self.limit and self._last_seq:
            raise WindowTooSmall(self.tokens, self.limit)
        return [copied(item) for item in self._assembly.rendering.items]

    def needs_compaction(self) -> bool:
        """Whether the threshold is reached; never right after an undo, which would only be undone itself."""
        return not self._held and self.tokens >= self.threshold

    @property
    def held(self) -> bool:
        """Whether automatic passes wait, because somebody undid one."""
        return self._held

    # --- what changes it -----------------------------------------------------------------------------------------

    def append(self, role: Role, content: Content, *, at: float, tokens: int | None = None) -> Change:
        """Add a message; where the bound would be passed, a digest takes older ones' place in the same change.

        O(1) in the length of the history, but for that digest. `tokens`: the raw count where it is known already.
        """
        before = self.tokens
        content = copied(content)
        counted = count_message(role, content, self.counter) if tokens is None else tokens
        message = Message(
            seq=self._last_seq + 1,
            role=role,
            content=content,
            tokens=counted,
            total_tokens=self._total_tokens + counted,
            created_at=at,
        )
        self._last_seq = message.seq
        self._total_tokens = message.total_tokens
        self._messages.append(message)
        if message.seq == 1:
            self._first = message
        views: list[View] = []
        if self._view.verbatim_from is None:
            views.append(self._adopt(replace(self._view, verbatim_from=message.seq), "append", at))
        self._assembly.rendering.push(role, content, counted)
        change = self._fitted(at)
        if change is None:
            return Change(
                messages=(message,),
                views=tuple(views),
                view=self._view,
                tokens=self.tokens,
                tokens_before=before,
                reason="append" if views else "",
            )
        return replace(
            change,
            messages=(message,),
            views=(*views, *change.views),
            tokens_before=before,
            cache_tokens_invalidated=min(before, change.cache_tokens_invalidated),
        )

    def fit(self, *, at: float) -> Change | None:
        """Enforce the bound now, as after `set_limits`; None where it holds already."""
        return self._fitted(at)

    def set_limits(self, limits: ContextLimits, calibration: float) -> None:
        """New limits, between turns. Changes nothing by itself: the next `append` or `fit` does."""
        self.limits = limits
        self.calibration = calibration

    def begin_pass(self, high_water: int) -> None:
        """A pass that reads up to `high_water` is in flight: digests made meanwhile split there."""
        self._marks.append(high_water)

    def end_pass(self, high_water: int) -> None:
        """The pass that `begin_pass` announced is over."""
        if high_water in self._marks:
            self._marks.remove(high_water)

    def descends_from(self, version: int) -> bool:
        """Whether only the bound (digests, elisions) has changed the context since `version`, and nobody by hand."""
        view: View | None = self._view
        while view is not None and view.version != version:
            by_itself = view.reason in ("append", "elision") or (view.reason == "digest" and history.provisional(view))
            if not by_itself or view.parent is None:
                return False
            view = self._views.get(view.parent)
        return view is not None

    def reset_epoch(self) -> None:
        """Whatever is in flight is abandoned (agent reset, re-run, session ended)."""
        self.epoch += 1

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

        `up_to`: the last message to cover (moved back so that no pair is cut); None: all but the newest turn and
        about a fifth of the window. `keep_newest=False` lets `up_to` reach into the newest turn.
        """
        tail = self.verbatim
        bench = self._bench(at, instructions=instructions, provisional=False)
        latest = newest_turn(tail) if keep_newest and tail else len(tail)
        if up_to is None:
            cut = self.cut_for_pass(latest)
        else:
            cut = self.cut_before(up_to, latest)
        if cut == 0:
            self.last_refusal = "Everything that could be digested is digested already; the newest messages stay."
            return None
        covered = sum(bench.cost(message) for message in tail[:cut])
        budget = min(fitting.digest_budget(self.limit), covered // 2)
        fitted = bench.build(cut, budget, fold_all=bench.crowded())
        if fitted.tokens >= self.tokens:
            self.last_refusal = f"A digest of messages {tail[0].seq} to {tail[cut - 1].seq} would take as much room as they do."
            return None
        self.last_refusal = ""
        self.epoch += 1
        return self._take(fitted, reason, at)

    def fold(self, *, at: float) -> Change | None:
        """Make one provisional digest of all observations, for a reflection still to come; None where none is smaller."""
        fitted = self._bench(at).build(0, fitting.digest_budget(self.limit), fold_all=True)
        if not fitted.new or fitted.tokens >= self.tokens:
            return None
        return self._take(fitted, "digest", at)

    def cut_for_pass(self, latest: int | None = None) -> int:
        """How many of the verbatim messages a pass should cover that nobody gave a mark: all but the newest fifth of
        the window; where everything is within that, all but the newest turn."""
        tail = self.verbatim
        if not tail:
            return 0
        if latest is None:
            latest = newest_turn(tail)
        bench = self._bench(0.0)
        return bench.cut_keeping(int(self.limit * fitting.KEEP_BY_HAND), latest) or bench.cut_keeping(0, latest)

    def cut_before(self, up_to: int, latest: int | None = None) -> int:
        """How many of the verbatim messages a cut behind message `up_to` covers, moved back so that no pair is cut."""
        tail = self.verbatim
        if not tail:
            return 0
        allowed = cut_points(tail)
        cut = min(max(0, up_to - tail[0].seq + 1), len(tail) if latest is None else latest)
        while cut > 0 and not allowed[cut]:
            cut -= 1
        return cut

    def publish(self, prepared: Prepared, *, at: float) -> Change | Rejection:
        """Put what a pass made in its place, if it may stand there; else say why not, and change nothing."""
        if prepared.epoch != self.epoch:
            return Rejection("The context was changed by hand while the pass ran.")
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
        )
        parts = spliced(prepared, observation, self._view, self.verbatim, self._last_seq + 1)
        if isinstance(parts, Rejection):
            return parts
        observations, verbatim_from = parts
        view = replace(
            self._view,
            observations=observations,
            verbatim_from=verbatim_from,
            elided={
                seq: shown
                for seq, shown in self._view.elided.items()
                if seq == 1 or (verbatim_from is not None and seq >= verbatim_from)
            },
        )
        assembly = self._assemble(view)
        if assembly.tokens > self.limit:
            return Rejection(
                f"The context with the summary takes {assembly.tokens} tokens, {assembly.tokens - self.limit} too many."
            )
        return self._take(fitting.Fitted(view, (observation,), assembly), prepared.reason, at)

    def undo(self, *, at: float) -> Change:
        """Go back to the view before the last compaction; messages appended since stay.

        Raises:
            ValueError: there is none, or it does not fit any more; the message says why, and by how much.
        """
        target = history.undo_target(self._views, self._view)
        leaving = self._view.version
        change = self._point_at(target, "undo", at)
        self._redo.append(leaving)
        return change

    def redo(self, *, at: float) -> Change:
        """Undo the last undo.

        Raises:
            ValueError: nothing was undone, or a newer view came since, or it does not fit any more.
        """
        if not self._redo:
            raise ValueError("There is nothing to redo: no undo, or the context has changed since.")
        kept = self._redo[:-1]
        change = self._point_at(self._views[self._redo[-1]], "redo", at)
        self._redo = kept
        self._held = bool(kept)
        return change

    # --- how -----------------------------------------------------------------------------------------------------

    def _tail(self, view: View) -> Sequence[Message]:
        start = self._uncovered_from(view)
        if not self._messages or start > self._last_seq:
            return []
        base = self._messages[0].seq
        if start < base:
            raise ValueError(f"Messages {start} to {base - 1} are not loaded.")
        return self._messages if start == base else self._messages[start - base :]

    def _uncovered_from(self, view: View) -> int:
        if view.verbatim_from is not None:
            return view.verbatim_from
        return max((o.covers[1] for o in view.observations), default=0) + 1

    @property
    def _pinned(self) -> Message | None:
        return self._first if self._pin_first and pinnable(self._first) else None

    def _assemble(self, view: View) -> Assembly:
        return assemble(self.agent_id, view, self._tail(view), self._pinned, self.counter)

    def _bench(self, at: float, *, instructions: str | None = None, provisional: bool = True) -> fitting.Bench:
        return fitting.Bench(
            agent_id=self.agent_id,
            counter=self.counter,
            limit=self.limit,
            view=self._view,
            tail=self.verbatim,
            pinned=self._pinned,
            marks=tuple(self._marks),
            next_id=self._next_observation,
            at=at,
            instructions=instructions,
            provisional=provisional,
        )

    def _fitted(self, at: float) -> Change | None:
        if self.tokens <= self.limit:
            return None
        fitted = fitting.forced(self._bench(at))
        if (
            fitted.view.observations == self._view.observations
            and fitted.view.verbatim_from == self._view.verbatim_from
            and fitted.view.elided == self._view.elided
        ):
            return None
        return self._take(fitted, "digest" if fitted.new else "elision", at)

    def _take(self, fitted: fitting.Fitted, reason: str, at: float) -> Change:
        before, removed_before = self.tokens, self._uncovered_from(self._view)
        view = self._adopt(fitted.view, reason, at)
        shared = fitted.assembly.rendering.shared_with(self._assembly.rendering)
        self._assembly = fitted.assembly
        self._next_observation += len(fitted.new)
        if fitted.new:
            self._held = False  # the bound forced it, or somebody asked
        start = self._uncovered_from(view)
        return Change(
            observations=fitted.new,
            views=(view,),
            view=view,
            tokens=self.tokens,
            tokens_before=before,
            messages_removed=max(0, start - removed_before),
            high_water=max((o.covers[1] for o in fitted.new), default=None),
            reason=reason,
            cache_tokens_invalidated=max(0, before - shared),
        )

    def _adopt(self, parts: View, reason: str, at: float) -> View:
        view = replace(parts, version=self._newest + 1, parent=self._view.version, reason=reason, created_at=at)
        self._views[view.version] = view
        self._newest = view.version
        self._view = view
        self._redo.clear()
        return view

    def _point_at(self, target: View, reason: str, at: float) -> Change:
        before, start_before = self.tokens, self._uncovered_from(self._view)
        start = self._uncovered_from(target)
        complete = target.verbatim_from is not None or start > self._last_seq
        assembly = self._assemble(target)
        view = target
        views: tuple[View, ...] = ()
        if not complete or assembly.tokens > self.limit:
            # Messages that came later keep the short form that they have now.
            later = {seq: shown for seq, shown in self._view.elided.items() if seq >= start or seq == 1}
            parts = replace(
                target,
                verbatim_from=start if start <= self._last_seq else None,
                elided={**later, **target.elided},
            )
            assembly = self._assemble(parts)
            if assembly.tokens > self.limit:
                raise ValueError(
                    f"Version {target.version} of the context does not fit any more: it would take "
                    f"{assembly.tokens} tokens, {assembly.tokens - self.limit} more than the {self.limit} allowed."
                )
            view = replace(parts, version=self._newest + 1, parent=target.version, reason=reason, created_at=at)
            self._views[view.version] = view
            self._newest = view.version
            views = (view,)
        shared = assembly.rendering.shared_with(self._assembly.rendering)
        self._view = view
        self._assembly = assembly
        self.epoch += 1
        self._held = True
        return Change(
            views=views,
            view=view,
            tokens=self.tokens,
            tokens_before=before,
            messages_removed=max(0, start - start_before),
            reason=reason,
            cache_tokens_invalidated=max(0, before - shared),
        )
