"""What the logs of Gemini CLI and of Qwen Code have in common: the parts of messages in Google's API, and its counts of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

from watchkeeper.transcripts.records import Plan, count_of, distinct_items, list_of, object_of, text_of

_TODOS: dict[str, Any] = {"in_progress": "running", "completed": "done", "cancelled": "dropped"}


class Tokens(NamedTuple):
    """A call's tokens in the classes of `ModelCall`."""

    fresh: int
    output: int
    cached: int

    @classmethod
    def of(cls, prompt: Any, cached: Any, output: Any, thoughts: Any, tool: Any, total: Any) -> Tokens:
        """From the counts of the API: `prompt` includes `cached`; thoughts are output, and `tool` is prompt, besides. Where the
        total leaves no room for these, the server has counted them in the other two."""
        whole, said, thought, used = (count_of(each) for each in (prompt, output, thoughts, tool))
        served = min(whole, count_of(cached))
        if summed := count_of(total):
            thought = min(thought, max(0, summed - whole - said))
            used = min(used, max(0, summed - whole - said - thought))
        return cls(whole - served + used, said + thought, served)


def parts_as_blocks(parts: Any, uid: str) -> list[dict[str, Any]]:
    """Parts of the API as Anthropic's blocks; those of kinds that are not known stay as they are."""
    if isinstance(parts, str):
        return [{"type": "text", "text": parts}] if parts else []
    found: list[dict[str, Any]] = []
    for place, part in enumerate(list_of(parts)):
        if isinstance(part, str):
            found.append({"type": "text", "text": part})
            continue
        each = object_of(part)
        called, answered, data = (
            object_of(each.get(name)) for name in ("functionCall", "functionResponse", "inlineData")
        )
        said = text_of(each.get("text"))
        if called:
            name = text_of(called.get("name")) or "?"
            call = text_of(called.get("id")) or f"{uid}.{place}"
            found.append(
                {"type": "tool_use", "id": call, "name": name, "input": object_of(called.get("args"))}
            )
        elif answered:
            call, content = (
                text_of(answered.get("id")) or f"{uid}.{place}",
                object_of(answered.get("response")),
            )
            output = text_of(content.get("output")) or text_of(content.get("error"))
            block = {
                "type": "tool_result",
                "tool_use_id": call,
                "content": output or str(content),
                "is_error": "error" in content,
            }
            found.append(block)
        elif data:
            source = {"type": "base64", "media_type": data.get("mimeType"), "data": data.get("data")}
            found.append({"type": "image", "source": source})
        elif said is not None and each.get("thought"):
            found.append(
                {
                    "type": "thinking",
                    "thinking": said,
                    "signature": text_of(each.get("thoughtSignature")) or "",
                }
            )
        elif said is not None:
            found.append({"type": "text", "text": said})
        elif each:
            found.append(each)
    return found


def to_dos(name: str, arguments: dict[str, Any], agent: str, at: float | None) -> Plan | None:
    """The list that a call writes."""
    listed = arguments.get("todos")
    if name not in ("write_todos", "todo_write") or not isinstance(listed, list):
        return None
    items = distinct_items(
        (title, _TODOS.get(str(each.get("status")), "pending"))
        for each in map(object_of, listed)
        if (title := text_of(each.get("description")) or text_of(each.get("content"))) is not None
    )
    return Plan(agent, name, items, whole=True, plan=agent, at=at)
