"""What of a line of Claude Code's log anybody here reads; all else of it is passed over as it is parsed.

Half of a log is `toolUseResult`, which says once more what the message says, and the messages inside
`progress`. A field that the reader is to look at must stand here: tests feed it every record with and without
the rest.
"""

from __future__ import annotations

from typing import Any, TypedDict

from watchkeeper.transcripts.jsontext import parser


class Usage(TypedDict, total=False):
    """What a call cost."""

    input_tokens: Any
    output_tokens: Any
    cache_creation_input_tokens: Any
    cache_read_input_tokens: Any
    cache_creation: Any
    server_tool_use: Any
    service_tier: Any
    speed: Any


class Message(TypedDict, total=False):
    """What was said, as it went over the API."""

    id: Any
    model: Any
    content: Any
    stop_reason: Any
    usage: Usage | None


class Outcome(TypedDict, total=False):
    """Of a call's result in the program's own form, what it tells of agents and tasks."""

    agentId: Any
    totalDurationMs: Any
    totalTokens: Any
    totalToolUseCount: Any
    name: Any
    isAsync: Any
    status: Any
    success: Any
    description: Any
    prompt: Any
    task: Any
    agents: Any
    retrieval_status: Any


class Reply(TypedDict, total=False):
    """Of a sub-agent's reply inside a `progress` record, what it cost."""

    id: Any
    model: Any
    stop_reason: Any
    usage: Usage | None


class Said(TypedDict, total=False):
    """What a sub-agent said or was told, inside a `progress` record."""

    type: Any
    requestId: Any
    timestamp: Any
    message: Reply | str | None


class News(TypedDict, total=False):
    """Of a `progress` record."""

    type: Any
    agentId: Any
    prompt: Any
    message: Said | str | None


class Attachment(TypedDict, total=False):
    """What goes with a prompt."""

    type: Any
    prompt: Any


class Entry(TypedDict, total=False):
    """One record."""

    type: Any
    subtype: Any
    uuid: Any
    parentUuid: Any
    timestamp: Any
    cwd: Any
    version: Any
    forkedFrom: Any
    isSidechain: Any
    agentId: Any
    attributionAgent: Any
    requestId: Any
    isMeta: Any
    isCompactSummary: Any
    isApiErrorMessage: Any
    isAbortedMidStream: Any
    message: Message | None
    toolUseResult: Outcome | list[Any] | str | int | float | bool | None
    toolDenialKind: Any
    sourceToolUseID: Any
    parentToolUseID: Any
    data: News | None
    attachment: Attachment | None
    compactMetadata: Any
    microcompactMetadata: Any
    content: Any
    error: Any
    apiRefusalExplanation: Any
    summary: Any
    aiTitle: Any
    customTitle: Any


parse_entry = parser(Entry)
"""The record of a line, with these fields at least; None where the line holds none."""
