"""Against servers that somebody else wrote, of the Messages API and of Chat Completions: PyPI llmock, and npm @copilotkit/aimock.

aimock is looked for in `$WATCHKEEPER_AIMOCK`, then in `.ci-cache/aimock` of the checkout (a folder in which
`npm install @copilotkit/aimock@1.43.0` was run); else npm installs it into a temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_calls import asking, events_of, model_of, reply_of
from tests.support.wires import CHAT, MESSAGES, Wire

from watchkeeper.models.failures import RetryPolicy
from watchkeeper.models.registry import resolve
from watchkeeper.records.messages import ErrorKind, ModelError, Reply, Retrying, ToolSpec

ROOT = Path(__file__).parents[3]
AIMOCK = "@copilotkit/aimock@1.43.0"
LOOK = ToolSpec(
    "look",
    "Look at a path.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


PROVIDERS = pytest.mark.parametrize(
    ("wire", "name"), [(MESSAGES, "anthropic"), (CHAT, "openai")], ids=["anthropic", "openai-chat"]
)


class TestLLMock:
    """llmock breaks streams on demand, and judges its client afterwards."""

    @PROVIDERS
    @pytest.mark.parametrize("after", [1, 2, 3, 4])
    @pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt", "stall"])
    async def test_a_broken_stream_is_asked_for_again(self, llmock, fault, after, wire, name):
        llmock.call_tool("look", {"path": "a/rather/long/path"}, times=None)
        getattr(llmock, fault)(after_chunks=after)
        *events, reply = await events_of(model_of(llmock.base_url(name), wire), asking(tools=[LOOK]))
        assert isinstance(reply, Reply)
        assert reply.content[0]["input"] == {"path": "a/rather/long/path"}
        assert reply.retries == 1
        assert sum(isinstance(event, Retrying) for event in events) == 1
        llmock.assert_resilient()

    @PROVIDERS
    async def test_an_outage_is_given_up_with_one_line(self, llmock: Any, wire: Wire, name: str) -> None:
        llmock.outage()
        with pytest.raises(ModelError, match=r"overloaded \(503\).*gave up after 2") as caught:
            await events_of(model_of(llmock.base_url(name), wire, retries=RetryPolicy(max_retries=2)))
        assert caught.value.kind is ErrorKind.RETRY

    @PROVIDERS
    @pytest.mark.parametrize("window", [None, 100], ids=["scripted", "by its own count"])
    async def test_a_context_overflow_asks_for_compaction(self, llmock, window, wire, name):
        if window is None:
            llmock.context_overflow()
        else:
            llmock.limits(context_window=window)
        with pytest.raises(ModelError) as caught:
            await events_of(model_of(llmock.base_url(name), wire), asking("word " * 400))
        assert caught.value.kind is ErrorKind.COMPACT

    async def test_the_server_can_be_chosen_by_the_environment_alone(self, llmock: Any) -> None:
        llmock.reply("from the environment")
        model = resolve("anthropic/claude-haiku-4-5")
        reply = await reply_of(model)
        assert reply.content == [{"type": "text", "text": "from the environment"}]
        await model.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def aimock_cli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """aimock's command, found or installed; skips saying why where neither is possible."""
    if shutil.which("node") is None:
        pytest.skip("aimock needs node, which is not installed")
    named = os.environ.get("WATCHKEEPER_AIMOCK")
    for folder in (Path(named) if named else None, ROOT / ".ci-cache" / "aimock"):
        cli = folder and folder / "node_modules/@copilotkit/aimock/dist/cli.js"
        if cli and cli.exists():
            return cli
    if shutil.which("npm") is None:
        pytest.skip("aimock is not installed, and there is no npm to install it")
    folder = tmp_path_factory.mktemp("aimock")
    command = [
        "npm",
        "install",
        "--prefix",
        str(folder),
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        AIMOCK,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not install aimock within 60 s")
    if done.returncode != 0:
        pytest.skip(f"npm could not install aimock: {done.stderr.strip().splitlines()[-1:]}")
    return folder / "node_modules/@copilotkit/aimock/dist/cli.js"


@pytest.fixture
def aimock(aimock_cli: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start aimock on fixtures; gives its URL."""
    started: list[subprocess.Popen[str]] = []

    def start(fixtures: list[dict[str, Any]], *options: str) -> str:
        path = tmp_path / "fixtures.json"
        path.write_text(json.dumps({"fixtures": fixtures}))
        command = ["node", str(aimock_cli), "-p", "0", "-f", str(path), "--strict", "-c", "7", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"listening on (http://\S+)", line):
                return found.group(1)
        raise AssertionError("aimock did not start")

    yield start
    for process in started:
        process.kill()
        process.communicate()


class TestAimock:
    """aimock plays scripted conversations of several turns."""

    async def test_scripted_errors_are_judged_like_the_provider_s_own(self, aimock):
        def error(word: str, status: int, error_type: str, message: str) -> dict[str, Any]:
            body = {"error": {"message": message, "type": error_type}, "status": status}
            return {"match": {"userMessage": word}, "response": body}

        url = aimock(
            [
                error("broke", 400, "invalid_request_error", "Your credit balance is too low"),
                error("long", 400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
                error("locked", 401, "authentication_error", "invalid x-api-key"),
                error("busy", 529, "overloaded_error", "Overloaded"),
            ]
        )
        model = model_of(url, retries=RetryPolicy(max_retries=1))
        kinds = {"broke": "pause", "long": "compact", "locked": "pause", "busy": "retry"}
        for word, kind in kinds.items():
            with pytest.raises(ModelError) as caught:
                await events_of(model, asking(word))
            assert (word, caught.value.kind.value) == (word, kind)
