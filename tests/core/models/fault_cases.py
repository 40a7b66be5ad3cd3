"""Every fault of a model call that we know of, as a script for each API, with what must come of it.

The table in docs/model-faults.md is made from these cases by running them (see test_model_faults).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.answers import Answer, Cut, Drop, Hang, Raw, Reply, Status, text, tool
from tests.support.event_stream import sse
from tests.support.model_calls import VERY_IMPATIENT
from tests.support.wires import MESSAGES, Wire, head

Outcome = Literal["retry", "pause", "park", "compact", "fail"]

LONG = Reply([text("one two three four five six"), tool("look", {"path": "a/b/c", "depth": 3})], piece=4)
CREDIT = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."


@dataclass(frozen=True)
class Case:
    """One fault. `options` go to `model_of` in place of the server's own address or key."""

    name: str
    outcome: Outcome
    answer: Answer | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rate_limited: bool = False
    waits_at_least: float = 0.0


def _limit(status: int, seconds: str | None, code: str | None = None, message: str = "Slow down") -> Status:
    headers = {} if seconds is None else {"retry-after": seconds}
    return Status(status, "rate_limit_error", message, headers, error_code=code)


def _json(status: int, **error: Any) -> Status:
    """An error in a form other than the Messages API's."""
    return Status(status, body=error)


BAD = "invalid_request_error"
VLLM = "This model's maximum context length is 4096 tokens. However, you requested 5000."
UNTIL = {
    "anthropic-ratelimit-tokens-remaining": "0",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "2h5m",
}
JSON = "application/json"


def cases(wire: Wire) -> tuple[Case, ...]:
    """The faults, in the form in which a server of this API would send them."""
    start = head(wire)

    def error(kind: str, message: str) -> Raw:
        return Raw(start + wire.streamed_error(kind, message))

    return (
        # What a person or a compaction must act on
        Case("400 prompt too long", "compact", Status(400, BAD, "prompt is too long: 215000 tokens > 200000 maximum")),
        Case("400 prompt and max_tokens too long together", "compact",
             Status(400, BAD, "input length and `max_tokens` exceed context limit: 199000 + 4096 > 200000")),
        Case("overflow, as llama.cpp says it", "compact", _json(400, error={
            "code": 400, "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096})),
        Case("overflow, as vLLM says it", "compact", _json(400, object="error", message=VLLM, type="BadRequestError", code=400)),
        Case("overflow, as Ollama says it", "compact", _json(400, error="the input length exceeds the context length")),
        Case("overflow, as LM Studio says it, inside the stream", "compact", Raw(sse("error", {
            "error": {"message": "Trying to keep the first 9000 tokens when context the overflows."}}))),
        Case("413 request too large", "compact", Status(413, "request_too_large", "Request exceeds the maximum size")),
        Case("413 from a proxy, in HTML", "compact", Status(413, body=b"<html>413 Request Entity Too Large</html>")),
        Case("no key at all", "pause", options={"api_key": None, "base_url": None}),
        Case("a key that cannot be sent", "pause", options={"api_key": "sk-ant-api03-secret\nsecond line"}),
        Case("a base_url that is none", "pause", options={"base_url": "localhost-8080"}),
        Case("401 bad key", "pause", Status(401, "authentication_error", "invalid x-api-key")),
        Case("402 billing", "pause", Status(402, "billing_error", "Payment is past due")),
        Case("400 credit balance too low", "pause", Status(400, BAD, CREDIT)),
        Case("429 spend limit reached", "pause",
             _limit(429, None, "enforced_spend_limit_reached", "You have reached your monthly limit")),
        Case("no credit, inside the stream", "pause", error("billing_error", CREDIT)),
        Case("403 no permission", "pause", Status(403, "permission_error", "This key may not use this model")),
        Case("404 no such model", "pause", Status(404, "not_found_error", "model: claude-nonesuch")),
        Case("other 400", "fail", Status(400, BAD, "tools.0.input_schema: JSON schema is invalid")),
        Case("422 from a proxy", "fail", _json(422, detail=[{"msg": "field required"}])),
        # What passes by itself
        Case("429 with a delay", "retry", _limit(429, "17"), rate_limited=True, waits_at_least=17),
        Case("429 without a delay", "retry", _limit(429, None), rate_limited=True),
        Case("500", "retry", Status(500, "api_error", "Internal server error")),
        Case("503 from a proxy, in HTML", "retry", Status(503, body=b"<html>try later</html>")),
        Case("529 overloaded", "retry", Status(529, "overloaded_error", "Overloaded")),
        Case("overloaded, inside the stream", "retry", error("overloaded_error", "Overloaded")),
        Case("an unknown error inside the stream", "retry", Raw(start + sse("error", "boom"))),
        Case("an answer that never comes", "retry", Hang(), {"timeouts": VERY_IMPATIENT}),
        Case("a connection closed without an answer", "retry", Drop()),
        Case("a stall in the middle of the stream", "retry", Cut(LONG, 5, "stall")),
        Case("nothing but pings", "retry", Cut(LONG, 5, "pings")),
        Case("a disconnect in the middle of the stream", "retry", Cut(LONG, 5, "disconnect")),
        Case("a disconnect in the middle of a tool's input", "retry", Cut(LONG, 15, "disconnect")),
        Case("a stream cut short that ends in good order", "retry", Cut(LONG, 15, "truncate")),
        Case("a stream cut short before its first event", "retry", Cut(LONG, 0, "truncate")),
        Case("bytes that are no events", "retry", Raw(b"\x00\x01 not an event stream at all\n\n")),
        Case("bytes that are no UTF-8", "retry", Raw(start + b"event: content_block_delta\ndata: \xff\xfe\n\n")),
        Case("an event that is not JSON", "retry", Raw(start + b'event: content_block_delta\ndata: {"type": "con\n\n')),
        Case("an event that is not an object", "retry", Raw(start + sse("message", [1, 2]))),
        Case("an event without its fields", "retry", Raw(start + wire.odd["fields"])),
        Case("an event for a block that never began", "retry", Raw(start + wire.odd["lost"])),
        Case("a tool call without a name", "retry", Raw(start + wire.odd["nameless"])),
        Case("an error with status 200, in JSON", "pause", Raw(
            b'{"type": "error", "error": {"type": "billing_error", "message": "No credit left"}}', content_type=JSON)),
        Case("JSON that is not a message", "retry", Raw(b'{"ok": true}', content_type=JSON)),
        Case("a web page instead of a stream", "retry", Raw(b"<html>welcome</html>", content_type="text/html")),
        # Usage limits that end at a time: the agents are parked
        Case("429 with a delay of two hours", "park", _limit(429, "7200")),
        Case("503 with a delay of an hour", "park", Status(503, "api_error", "Maintenance", {"retry-after": "3600"})),
        Case("a usage limit whose body says for how long", "park", _json(429, error={
            "type": "usage_limit_reached", "message": "The limit is reached", "resets_in_seconds": 9000})),
        Case("a usage limit that ends in hours, in words", "park",
             Status(429, "rate_limit_error", "Usage limit reached. Please try again in 3h12m.")),
        Case("a limit of tokens that is used up until a time, in a header", "park",
             Status(429, "rate_limit_error", "Out of tokens", UNTIL)),
        Case("a quota whose end is among the error's details", "park", Status(429, body=[{"error": {
            "code": 429, "message": "You exceeded your current quota, please check your plan and billing details.",
            "details": [{"quotaId": "PerDay"}, {"retryDelay": "7200s"}]}}])),
        Case("a limit of a day, in headers that the error repeats", "park", _json(429, error={
            "code": 429, "message": "Rate limit exceeded: free-models-per-day",
            "metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2h"}}})),
        Case("429 with a delay of three years", "pause", _limit(429, "99999999")),
    )  # fmt: skip


CASES = cases(MESSAGES)
