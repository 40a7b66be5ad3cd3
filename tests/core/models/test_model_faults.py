"""Each fault of fault_cases over the real SDK: what the user sees, and what the runtime is told to do."""

from __future__ import annotations

import re
import socket
import ssl

import pytest
from tests.core.models.fault_cases import CASES, LONG, Case, cases
from tests.support.answers import Cut, Raw, Reply, Status, in_turn, text, tool
from tests.support.event_stream import sse, stream_events
from tests.support.guide import DOCS, cell, has_row
from tests.support.model_calls import MODELS, Serve, asking, events_of, model_of, reply_of
from tests.support.wires import CHAT, MESSAGES, RESPONSES, WIRES, Wire, whole_answer

from watchkeeper.models.failures import RetryPolicy, classify, failure_of
from watchkeeper.records import messages as records
from watchkeeper.records.messages import Delta, ErrorKind, ModelError, Retrying

PAGE = "model-faults.md"
RECOVERED = [text("recovered")]


async def run(case: Case, serve: Serve, wire: Wire = MESSAGES) -> str:
    """Run the fault once, then a good answer; check what must hold, and give what the user sees."""
    answer = case.answer or Reply([text("never asked")])
    server = serve(in_turn(answer, Reply(RECOVERED)))
    model = model_of(server, wire, **case.options)
    if case.outcome == "retry":
        *events, reply = await events_of(model)
        retries = [event for event in events if isinstance(event, Retrying)]
        assert len(retries) == 1
        assert retries[0].rate_limited == case.rate_limited
        assert retries[0].wait_seconds >= max(case.waits_at_least, 0.5)
        assert isinstance(reply, records.Reply)
        assert (reply.content, reply.retries) == (RECOVERED, 1)
        seen = retries[0].reason
    else:
        with pytest.raises(ModelError) as caught:
            await events_of(model)
        assert caught.value.kind == ErrorKind(case.outcome)
        assert caught.value.retries == 0
        assert (
            (caught.value.until is not None)
            == ("it ends at" in str(caught.value))
            == (case.outcome == "park")
        )
        assert len(server.requests) == (1 if case.answer else 0)
        seen = str(caught.value)
    assert "secret" not in seen
    assert seen.isprintable()
    assert len(seen) < 600
    seen = re.sub(r"ends at [-0-9: ]+ UTC", "ends at TIME", seen)
    return re.sub(r"127\.0\.0\.1:\d+", "HOST", seen)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_fault_is_seen_told_and_documented(case: Case, serve: Serve) -> None:
    seen = await run(case, serve)
    has_row(PAGE, "table", f"| {case.name} | {cell(seen)} | {case.outcome} |")


@pytest.mark.parametrize(
    ("wire", "case"),
    [(wire, case) for wire in (RESPONSES, CHAT) for case in cases(wire)],
    ids=lambda each: each.provider if isinstance(each, Wire) else each.name,
)
async def test_each_fault_has_the_same_outcome_over_the_other_apis(case, wire, serve):
    """The page lists what is worded otherwise than for the Messages API."""
    seen = await run(case, serve, wire)
    seen = seen.replace(MODELS[wire.provider][1], "claude-sonnet-5").replace(
        f"{wire.provider}/", "anthropic/"
    )
    listed = (DOCS / PAGE).read_text().splitlines()
    if f"| {case.name} | {cell(seen)} | {case.outcome} |" not in listed:
        has_row(PAGE, "other wordings", f"| {case.name}, `{wire.provider}` | {cell(seen)} | {case.outcome} |")


async def test_a_refused_connection_is_retried_and_then_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    model = model_of(f"http://127.0.0.1:{port}", retries=RetryPolicy(max_retries=3))
    with pytest.raises(
        ModelError, match=rf"127\.0\.0\.1:{port} refused the connection.*gave up after 3"
    ) as caught:
        await events_of(model)
    assert (caught.value.kind, caught.value.retries) == (ErrorKind.RETRY, 3)


async def test_a_name_that_cannot_be_resolved_is_retried_and_then_named(monkeypatch):
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ModelError, match=r"cannot resolve the host name of models\.invalid") as caught:
        await events_of(model_of("http://models.invalid", retries=RetryPolicy(max_retries=1)))
    assert (caught.value.kind, caught.value.retries) == (ErrorKind.RETRY, 1)


async def test_a_fault_that_stays_is_given_up_after_bounded_retries(serve: Serve) -> None:
    server = serve(lambda body: Status(529, "overloaded_error", "Overloaded"))
    with pytest.raises(ModelError, match="gave up after 5 retries in") as caught:
        await events_of(model_of(server))
    assert caught.value.kind is ErrorKind.RETRY
    assert (caught.value.status, caught.value.error_type) == (529, "overloaded_error")
    assert len(server.requests) == 6
    assert 30 <= caught.value.latency_seconds <= 120


async def test_a_server_that_says_not_to_retry_is_not_asked_again(serve: Serve) -> None:
    server = serve(lambda body: Status(500, "api_error", "no", {"x-should-retry": "false"}))
    with pytest.raises(ModelError) as caught:
        await events_of(model_of(server))
    assert (caught.value.kind, len(server.requests)) == (ErrorKind.RETRY, 1)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
@pytest.mark.parametrize("how", ["disconnect", "truncate"])
async def test_wherever_a_stream_breaks_no_half_reply_is_taken(serve: Serve, how: str, wire: Wire) -> None:
    whole = len(list(wire.events(LONG, model="m", usage={})))
    whole -= wire is CHAT  # after its reason a completion may end as it likes
    answers: list[Cut | Reply] = []
    for events in range(whole - 2):
        answers += [Cut(LONG, events, how), Reply(RECOVERED)]  # type: ignore[arg-type]
    model = model_of(serve(in_turn(*answers)), wire)
    for events in range(whole - 2):
        reply = await reply_of(model)
        assert (reply.content, reply.retries) == (RECOVERED, 1), f"cut after {events} events"


async def test_what_an_attempt_showed_before_it_broke_is_followed_by_a_retry(serve: Serve) -> None:
    model = model_of(serve(in_turn(Cut(LONG, 6, "disconnect"), Reply(RECOVERED))))
    kinds = [type(event) for event in await events_of(model)]
    assert kinds.index(Delta) < kinds.index(Retrying)
    assert kinds[-1] is records.Reply


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ('{"path": "a', "invalid input"),
        ('{"path": "a"} trailing', "invalid input"),
        ("[1, 2]", "not a JSON object"),
        ('"just text"', "not a JSON object"),
        ('{"n": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "invalid input"),
        ('{"n": ' + "9" * 5_000 + "}", "invalid input"),
    ],
    ids=["cut", "trailing", "list", "string", "nan", "deep", "huge number"],
)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
async def test_malformed_tool_input_is_reported_and_never_taken_for_a_call(serve, raw, why, wire):
    blocks = [tool("look", {}, "good"), tool("look", {}, "bad")]
    server = serve(in_turn(Reply(blocks, raw_inputs={"bad": raw}, piece=4096)))
    reply = await reply_of(model_of(server, wire))
    assert set(reply.invalid_inputs) == {"bad"}
    assert why in reply.invalid_inputs["bad"]
    assert len(reply.invalid_inputs["bad"]) < 500
    assert [block["input"] for block in reply.content] == [{}, {}]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
async def test_tool_input_cut_off_by_max_tokens_says_so(serve: Serve, wire: Wire) -> None:
    blocks = [tool("write", {}, "t")]
    answer = Reply(blocks, stop_reason="max_tokens", raw_inputs={"t": '{"content": "half a fi'})
    reply = await reply_of(model_of(serve(in_turn(answer)), wire))
    assert reply.stop_reason == "max_tokens"
    assert "reached max_tokens" in reply.invalid_inputs["t"]


async def test_a_huge_tool_input_arrives_whole(serve: Serve) -> None:
    content = "line\n" * 400_000
    answer = Reply([tool("write", {"content": content})], piece=65_536)
    reply = await reply_of(model_of(serve(in_turn(answer))))
    assert reply.content[0]["input"] == {"content": content}
    assert not reply.invalid_inputs


async def test_a_server_that_leaves_out_ends_of_blocks_and_message_is_understood(serve: Serve) -> None:
    events = [
        event
        for event in stream_events(
            Reply([text("hi"), tool("look", {"a": 1})]), model="m", usage={"input_tokens": 3}
        )
        if b"content_block_stop" not in event and b"message_stop" not in event
    ]
    reply = await reply_of(model_of(serve(in_turn(Raw(b"".join(events))))))
    assert reply.content == [text("hi"), tool("look", {"a": 1})]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
async def test_a_server_that_does_not_stream_is_understood(serve: Serve, wire: Wire) -> None:
    blocks = [text("hi"), tool("look", {"a": 1})]
    *deltas, reply = await events_of(model_of(serve(in_turn(whole_answer(wire, blocks))), wire))
    assert deltas[0] == Delta("text", "hi")
    assert isinstance(reply, records.Reply)
    assert (reply.content, reply.stop_reason, reply.usage.total_tokens) == (blocks, "tool_use", 7)


async def test_a_proxy_that_ends_its_streams_in_done_is_understood(serve: Serve) -> None:
    events = list(stream_events(Reply([text("hi")]), model="m", usage={"input_tokens": 3}))[:-1]
    server = serve(in_turn(Raw(b": keep-alive\n\n" + b"".join(events) + b"data: [DONE]\n\n")))
    assert (await reply_of(model_of(server))).content == [text("hi")]


async def test_events_of_a_kind_not_known_yet_are_passed_over(serve: Serve) -> None:
    events = list(stream_events(Reply([text("hi")]), model="m", usage={"input_tokens": 3}))
    events.insert(2, sse("weather", {"type": "weather", "sky": "clear"}))
    reply = await reply_of(model_of(serve(in_turn(Raw(b"".join(events))))))
    assert reply.content == [text("hi")]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
async def test_a_key_that_a_server_quotes_is_not_shown(serve: Serve, wire: Wire) -> None:
    key = "sk-ant-api03-very-secret"
    server = serve(lambda body: Status(401, "authentication_error", f"Incorrect API key provided: {key}"))
    with pytest.raises(ModelError) as caught:
        await events_of(model_of(server, wire, api_key=key))
    assert "secret" not in str(caught.value)


async def test_a_request_that_cannot_be_encoded_fails_the_task_without_a_retry(serve: Serve) -> None:
    server = serve(lambda body: Reply(RECOVERED))
    with pytest.raises(ModelError, match="cannot encode") as caught:
        await events_of(model_of(server), asking([{"type": "text", "text": object()}]))
    assert (caught.value.kind, caught.value.retries) == (ErrorKind.FAIL, 0)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.provider)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_takes_neither_the_key_nor_the_context_elsewhere(serve, status, wire):
    other = serve(lambda body: Reply(RECOVERED))
    server = serve(lambda body: Status(status, headers={"location": f"{other.url}{wire.path}"}))
    with pytest.raises(
        ModelError, match=rf"it redirects to http://127\.0\.0\.1:\d+{wire.path}.*check the base_url"
    ) as caught:
        await events_of(model_of(server, wire))
    assert (caught.value.kind, caught.value.retries, other.requests) == (ErrorKind.PAUSE, 0, [])


async def test_a_profile_that_does_not_exist_pauses_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_PROFILE", "nonesuch")
    with pytest.raises(ModelError, match=r"cannot set up the connection: .*nonesuch.* then resume") as caught:
        await events_of(model_of("https://api.anthropic.com", api_key=None))
    assert caught.value.kind is ErrorKind.PAUSE
    assert str(caught.value).isprintable()


def test_an_untrusted_certificate_pauses_because_waiting_does_not_mend_it() -> None:
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")
    wrapped = ConnectionError("Connection error.")
    wrapped.__cause__ = untrusted
    verdict = classify(failure_of(wrapped))
    assert (verdict.kind, verdict.rule.name) == (ErrorKind.PAUSE, "misconfigured")


def test_the_table_names_no_fault_that_is_not_tested() -> None:
    rows = [
        line
        for line in (DOCS / PAGE).read_text().splitlines()
        if re.search(r"\| (retry|pause|park|compact|fail) \|$", line)
    ]
    named = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert [name for name in named if not name.endswith("`")] == [case.name for case in CASES]
