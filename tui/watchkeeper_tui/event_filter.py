"""Which events hold the words searched for: each is asked once, however often the list is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper_tui.event_line import EventLine


class EventFilter:
    """Filters one reading's events after the other."""

    def __init__(self) -> None:
        self._for: tuple[str, dict[str, str]] = ("", {})
        self._events: Sequence[EventLine] = ()
        self._found: tuple[EventLine, ...] = ()

    def matching(self, events: Sequence[EventLine], words: str, names: dict[str, str]) -> Sequence[EventLine]:
        """Those of `events` that hold every word; `names` are agents' names by id."""
        wanted = words.casefold().split()
        if not wanted:
            return events
        last = self._events[-1].seq if self._events and events else 0
        if (words, names) != self._for or not last or events[-1].seq < last:
            self._for, self._found, last = (words, names), (), 0
        elif events is self._events:
            return self._found
        self._events = events
        oldest = events[0].seq if events else 0
        kept = [event for event in self._found if event.seq >= oldest]
        fresh = [event for event in events if event.seq > last and _holds(event, wanted, names)]
        self._found = (*kept, *fresh)
        return self._found


def _holds(event: EventLine, wanted: Sequence[str], names: dict[str, str]) -> bool:
    text = f"{event.kind} {names.get(event.agent_id or '', '')} {event.text}".casefold()
    return all(word in text for word in wanted)
