"""How much a model thinks: which models let a caller choose, and what each API calls it.

An effort has one name for people (`records.messages.EFFORTS`). `TABLE` says which of them a model has and where a request
carries it. A model that lacks an effort gets its nearest; one that has none gets nothing. Neither fails a call.

What comes back as thinking is output: providers count it in the output tokens, and it is priced so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.models.client import host_of
from watchkeeper.records.messages import Effort

_RANKS = {"off": 0, "none": 0, "minimal": 1, "low": 2, "medium": 3, "high": 4, "xhigh": 5, "max": 6}

OWN = "own"
"""The provider's own server alone."""
ANY = ""
"""Every server."""


@dataclass(frozen=True, slots=True)
class EffortRow:
    """Models that take an effort in the same form. The first row that fits applies."""

    provider: str
    server: str
    """`OWN`, `ANY`, or how the name of the server's host ends."""
    name: str
    """For people."""
    models: str
    """A regular expression that occurs in the model's name, in lower case."""
    values: str
    """The efforts that it has, by the API's names, the lowest first. `none` turns thinking off."""
    fields: tuple[str, ...]
    """Where the effort goes in the request's body."""
    source: str
    """Where this is published, and the day on which it was read there."""
    on: Mapping[str, Any] = field(default_factory=dict)
    """What else is sent with an effort."""
    off: Mapping[str, Any] | None = None
    """What is sent for `off`; empty: nothing, since the model does not think unless asked. None: `none`, or the lowest
    effort where the model cannot stop thinking."""
    unset: Mapping[str, Any] = field(default_factory=dict)
    """What is sent to the provider's own server where no effort is chosen."""
    returned: str | None = None
    """Chat servers: the field of a message in which the server wants its reasoning back."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values.split())


_ADAPTIVE = {"thinking": {"type": "adaptive", "display": "summarized"}}
"""Newer models leave the text out unless it is asked for, and people could not read it in the transcript."""
_ALL = "low medium high xhigh max"
_BOTH = "openai openai-chat"
_EFFORT = ("output_config.effort",)
_CLAUDE = "platform.claude.com/docs/en/build-with-claude/effort and /thinking, 2026-11-28"
_CLAUDE_55 = "platform.claude.com/docs/en/models/*-5-5/whats-new-*-5-5, 2026-11-28"
_REASONING = ("reasoning.effort",)
_SUMMARY = {"reasoning": {"summary": "auto"}}
_OPENAI = "developers.openai.com/api/docs/guides/reasoning, 2026-11-28"
_CHAT = ("reasoning_effort",)
_LOCAL = (
    "docs.vllm.ai/en/stable/features/reasoning_outputs, docs.ollama.com/api/openai-compatibility, 2026-11-28"
)
_THINKS = {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
_THINKS_NOT = {
    "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
    "reasoning_effort": "none",
}

TABLE = (
    EffortRow("anthropic", ANY, "Claude Mythos Preview", r"claude-mythos-preview",
              "low medium high max", _EFFORT, _CLAUDE, on=_ADAPTIVE, unset=_ADAPTIVE),
    EffortRow("anthropic", ANY, "Claude Sonnet 5.5", r"claude-sonnet-5-5",
              _ALL, _EFFORT, _CLAUDE_55, on=_ADAPTIVE, off={"thinking": {"type": "between_tools"}}, unset=_ADAPTIVE),
    EffortRow("anthropic", ANY, "Claude Haiku 5.5", r"claude-haiku-5-5",
              _ALL, _EFFORT, _CLAUDE_55, on=_ADAPTIVE, off={"thinking": {"type": "disabled"}}, unset=_ADAPTIVE),
    EffortRow("anthropic", ANY, "Claude Opus 5.5, Fable, Mythos and later",
              r"claude-(opus-5-5|fable-|mythos-|[a-z]+-(5-[6-9]|[6-9]|[1-9]\d)\b)",
              _ALL, _EFFORT, _CLAUDE_55, on=_ADAPTIVE, unset=_ADAPTIVE),
    EffortRow("anthropic", ANY, "Claude Opus 5, Sonnet 5", r"claude-(opus|sonnet)-5",
              _ALL, _EFFORT, _CLAUDE, on=_ADAPTIVE, off={"thinking": {"type": "disabled"}}, unset=_ADAPTIVE),
    EffortRow("anthropic", ANY, "Claude Opus 4.7, 4.8", r"claude-opus-4-[78]",
              _ALL, _EFFORT, _CLAUDE, on=_ADAPTIVE, off={}),
    EffortRow("anthropic", ANY, "Claude Opus 4.6, Sonnet 4.6", r"claude-(opus|sonnet)-4-6",
              "low medium high max", _EFFORT, _CLAUDE, on=_ADAPTIVE, off={}),
    EffortRow("anthropic", ANY, "Claude Opus 4.5 (without thinking)", r"claude-opus-4-5",
              "low medium high", _EFFORT, _CLAUDE, off={}),
    EffortRow("openai-chat", "openrouter.ai", "all", r"",
              "none minimal low medium high xhigh", _REASONING,
              "openrouter.ai/docs/use-cases/reasoning-tokens, 2026-11-28", returned="reasoning_details"),
    EffortRow("openai-chat", "deepseek.com", "all", r"",
              "low high max", _CHAT, "api-docs.deepseek.com/guides/thinking_mode, 2026-11-28",
              on={"thinking": {"type": "enabled"}}, off={"thinking": {"type": "disabled"}}, returned="reasoning_content"),
    EffortRow("openai-chat", "mistral.ai", "Mistral Small, Medium", r"mistral-(small|medium)",
              "none high", _CHAT, "docs.mistral.ai/capabilities/reasoning, 2026-11-28"),
    # Chat Completions refuses tools together with any other effort than `none`; agents always have tools.
    EffortRow("openai-chat", OWN, "GPT-5.6 and later", r"^gpt-(5\.[6-9]|[6-9])",
              "none", _CHAT, "github.com/BerriAI/litellm/pull/34569, 2026-11-28", unset={"reasoning_effort": "none"}),
    EffortRow("openai-chat", OWN, "GPT-5.4, 5.5", r"^gpt-5\.[45](?!.*-chat)",
              "none", _CHAT, "github.com/openai/openai-openapi/issues/541, 2026-11-28"),
    EffortRow(_BOTH, ANY, "GPT-5.x Pro", r"^gpt-5\.\d+-pro", "medium high xhigh", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5 Pro", r"^gpt-5-pro", "high", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5, 5.1 Codex", r"^gpt-(5\.1|5)-codex(?!-max)",
              "low medium high", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5.1 Codex Max, 5.2 Codex and later", r"^gpt-5\.\d+-codex",
              "low medium high xhigh", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5.6 and later", r"^gpt-(5\.[6-9]|[6-9])(?!.*-chat)",
              "none low medium high xhigh max", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5.2 to 5.5", r"^gpt-5\.[2-5](?!.*-chat)",
              "none low medium high xhigh", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5.1", r"^gpt-5\.1(?!.*-chat)", "none low medium high", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "GPT-5", r"^gpt-5(?!\.|.*-chat)", "minimal low medium high", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow(_BOTH, ANY, "o1, o3, o4", r"^(o1(?!-mini|-preview)|o3|o4)", "low medium high", _REASONING, _OPENAI, on=_SUMMARY),
    EffortRow("openai", ANY, "gpt-oss", r"gpt-oss", "low medium high", _REASONING, _LOCAL),
    EffortRow("openai-chat", ANY, "gpt-oss", r"gpt-oss",
              "low medium high", (*_CHAT, "chat_template_kwargs.reasoning_effort"), _LOCAL),
    EffortRow("openai-chat", ANY, "Qwen3, GLM-4.5, Gemma 4, DeepSeek-V3.1, Granite 3 and later",
              r"(qwen-?3|glm-(4\.[5-9]|[5-9])|gemma-?4|deepseek-v(3\.[1-9]|[4-9])|granite-?[3-9])(?!.*(coder|instruct|embed))",
              "low medium high", _CHAT, _LOCAL, on=_THINKS, off=_THINKS_NOT),
)  # fmt: skip
"""A model in no row has no effort that can be set."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a request carries for an effort."""

    used: Effort | None
    """The effort that the model gets, by our names; None: it has none."""
    body: Mapping[str, Any]
    """The arguments of the call."""


NOTHING = Chosen(None, {})


_OWN_HOSTS = {"anthropic": "api.anthropic.com", "openai": "api.openai.com", "openai-chat": "api.openai.com"}


def other_host(ref: str, base_url: str | None) -> str | None:
    """The host of the server, in lower case; None where it is the provider's own."""
    host = host_of(base_url or "")
    return None if host in ("", _OWN_HOSTS.get(ref.partition("/")[0])) else host


def row_of(ref: str, host: str | None) -> EffortRow | None:
    """The row of a model. `host`: of another server than the provider's own."""
    provider, _, name = ref.strip().lower().partition("/")
    bare = name.rpartition("/")[2]
    for row in TABLE:
        if provider not in row.provider.split():
            continue
        if row.server == OWN and host is not None:
            continue
        if row.server not in (OWN, ANY) and not (host or "").endswith(row.server):
            continue
        if re.search(row.models, bare):
            return row
    return None


def choose(ref: str, host: str | None, effort: Effort | None) -> Chosen:
    """What a call to the model carries for `effort`. None: nothing was chosen, and the model's own default applies."""
    row = row_of(ref, host)
    if row is None:
        return NOTHING
    if effort is None:
        return Chosen(None, row.unset if host is None else {})
    if effort == "off" and row.off is not None:
        return Chosen("off", row.off)
    value = nearest(effort, row.names)
    used: Any = "off" if value == "none" else "low" if value == "minimal" else value
    # OpenAI's models take it in either API, each with a field of its own.
    chat = ref.startswith("openai-chat/") and row.provider == _BOTH
    body: dict[str, Any] = {}
    for path in _CHAT if chat else row.fields:
        _put(body, path, value)
    if value != "none" and not chat:
        for name, given in row.on.items():
            body[name] = {**given, **body[name]} if isinstance(body.get(name), dict) else given
    return Chosen(used, body)


def nearest(effort: Effort, values: tuple[str, ...]) -> str:
    """The value that is nearest to an effort; of two, the lower one. Only `off` becomes `none` where there are others."""
    thinking = tuple(value for value in values if value != "none")
    among = values if effort == "off" or not thinking else thinking
    return min(among, key=lambda value: (abs(_RANKS[value] - _RANKS[effort]), _RANKS[value]))


def _put(body: dict[str, Any], path: str, value: str) -> None:
    first, _, rest = path.partition(".")
    if rest:
        _put(body.setdefault(first, {}), rest, value)
    else:
        body[first] = value


def notice(ref: str, host: str | None, effort: Effort | None) -> str | None:
    """A line about an effort that the model does not have; None where it gets what was chosen."""
    if effort is None:
        return None
    used = choose(ref, host, effort).used
    if used == effort:
        return None
    if used is None:
        return None if effort == "off" else f"{ref} has no effort setting; effort {effort} is ignored"
    if used == "off":
        return f"{ref} cannot reason with tools in this API; effort {effort} is ignored (openai/ supports it)"
    if effort == "off":
        return f"{ref} always reasons; using effort {used}, its lowest"
    return f"{ref} does not support effort {effort}; using {used}, the nearest level"


THINKING_TOKENS: Mapping[str, int] = {
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 32_768,
}
"""Tokens that a reply may have for thinking, beside `max_output_tokens`: APIs count both against one limit."""


def thinking_tokens(ref: str, host: str | None, effort: Effort | None) -> int:
    """How much longer a reply may be than it would be without thinking."""
    return THINKING_TOKENS.get(choose(ref, host, effort).used or "off", 0) if effort is not None else 0


def documented() -> Iterator[tuple[str, str, str, str]]:
    """The rows for `docs/model-efforts.md`: API and server, models, field, efforts."""
    servers = {OWN: " (api.openai.com)", ANY: " (any server)"}
    for row in TABLE:
        if row.provider == _BOTH:
            fields = "reasoning.effort; reasoning_effort"
        else:
            fields = ", ".join((*row.fields, *(name for name in row.on if name != "reasoning")))
        stops = "off" if row.off is not None else "" if "none" in row.names else "never off"
        place = servers.get(row.server, f" ({row.server})")
        efforts = ", ".join(filter(None, (*row.names, stops)))
        yield row.provider.replace(" ", ", ") + place, row.name, fields, efforts
