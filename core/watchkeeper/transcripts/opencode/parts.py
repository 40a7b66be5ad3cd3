"""Parts of OpenCode's messages as Anthropic content blocks, and what they say of calls and costs."""

from __future__ import annotations

import json
import math
import re
from hashlib import blake2b
from typing import Any, NamedTuple

from watchkeeper.transcripts.jsontext import count_of, list_of, object_of, possible, text_of, write

NOT_FOR_US = "known, and of no use here"
HOUSEKEEPING = frozenset({"agent", "patch", "snapshot", "step-start"})
"""Parts that are known, and of no use here."""

_DATA_URL = re.compile(r"data:(?P<kind>[\w.+-]+/[\w.+-]+)(;[\w=.+-]+)*;base64,(?P<data>.*)", re.DOTALL)
_SUBAGENT_TITLE = re.compile(r"(?P<name>.*?) \(@(?P<role>\S+) subagent\)", re.DOTALL)
_STOPS = {"stop": "end_turn", "tool-calls": "tool_use", "length": "max_tokens"}


class Tokens(NamedTuple):
    """Usage of one step; `input` without what the cache served or took."""

    input: int
    output: int
    """Reasoning included."""
    read: int
    write: int

    @property
    def context(self) -> int:
        """What the model held when the step ended."""
        return sum(self)


def tokens_of(value: Any) -> Tokens | None:
    """Usage as a step or a message tells it; None where it tells of none."""
    if not isinstance(value, dict):
        return None
    cache = object_of(value.get("cache"))
    given, output, reasoning = (count_of(value.get(name)) for name in ("input", "output", "reasoning"))
    read, write = count_of(cache.get("read")), count_of(cache.get("write"))
    total = count_of(value.get("total"))
    # Output and reasoning are counted apart, and cost the same; where a sum is given, it says whether they are.
    included = reasoning > 0 and total == given + output + read + write
    found = Tokens(given, output if included else output + reasoning, read, write)
    return found if any(found) else None


def cost_of(value: Any) -> float | None:
    """Dollars, where they were logged."""
    if isinstance(value, dict):
        value = value.get("usd")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= 0
    ):
        return None
    return float(value)


def stop_reason(value: Any) -> str | None:
    """Why a step ended, in Anthropic's words where there is one."""
    reason = text_of(value)
    return _STOPS.get(reason, reason) if reason else None


def time_of(value: Any, *names: str) -> float | None:
    """The first of these times, in seconds."""
    times = (object_of(value).get(name) for name in names)
    return next(
        (
            each / 1000
            for each in times
            if not isinstance(each, bool)
            and isinstance(each, int | float)
            and 0 < each < 1e15
            and possible(each / 1000)
        ),
        None,
    )


def file_block(part: dict[str, Any]) -> dict[str, Any]:
    """A file that was attached: an image as one, any other by its name and place."""
    url, mime = text_of(part.get("url")) or "", text_of(part.get("mime")) or "?"
    name = text_of(part.get("filename")) or "file"
    match = _DATA_URL.fullmatch(url)
    if match is not None and match["kind"].startswith("image/"):
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": match["kind"], "data": match["data"]},
        }
    if mime.startswith("image/") and url.startswith(("https://", "http://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    if match is not None and match["kind"] == "application/pdf":
        source = {"type": "base64", "media_type": match["kind"], "data": match["data"]}
        return {"type": "document", "source": source, "title": name}
    where = "" if match is not None or url.startswith("data:") else f" at {url}"
    return {"type": "text", "text": f"[attached {mime}: {name}{where}]"}


def result_content(state: dict[str, Any]) -> Any:
    """The content of a tool's result: its output, and what it attached."""
    output = state.get("output") if state.get("status") != "error" else state.get("error")
    text = (
        output
        if isinstance(output, str)
        else ""
        if output is None
        else json.dumps(output, ensure_ascii=False)
    )
    files = [file_block(each) for each in list_of(state.get("attachments")) if isinstance(each, dict)]
    return [{"type": "text", "text": text}, *files] if files else text


def signature_of(part: dict[str, Any]) -> str | None:
    """The signature of a piece of reasoning, wherever its provider put it."""
    signatures = (
        text_of(object_of(about).get("signature")) for about in object_of(part.get("metadata")).values()
    )
    return next(filter(None, signatures), None)


def title_parts(title: str | None) -> tuple[str | None, str | None]:
    """Name and role of a sub-agent, by its session's title."""
    match = _SUBAGENT_TITLE.fullmatch(title) if title else None
    return (match["name"], match["role"]) if match is not None else (title, None)


def digest(*values: Any) -> str:
    """A name for what was said, the same wherever it is repeated under other ids."""
    return blake2b(write(values)[0].encode("utf-8", "replace"), digest_size=12).hexdigest()


def model_of(info: dict[str, Any]) -> str:
    """`provider/model` of a message."""
    about = object_of(info.get("model"))
    name = text_of(info.get("modelID")) or text_of(about.get("modelID")) or text_of(about.get("id"))
    provider = text_of(info.get("providerID")) or text_of(about.get("providerID"))
    if name is None:
        return "unknown"
    return f"{provider}/{name}" if provider else name


def words_of(error: dict[str, Any]) -> str:
    """What an error says."""
    words = text_of(object_of(error.get("data")).get("message"))
    return words or text_of(error.get("message")) or text_of(error.get("name")) or "an error"
