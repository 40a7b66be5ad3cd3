"""File tools: what they give, and what they refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.core.tools.conftest import Run

from watchkeeper.agents.tools.contract import OutsideTool, Permission
from watchkeeper.agents.tools.worker_files import FileTools
from watchkeeper.agents.tools.workers import WorkerPool, builtin_tools, mark_fault, number_lines


async def test_file_tools_read_search_and_change_the_workspace(run: Run, workspace: Path) -> None:
    assert (await run("read", file_path="hello.py")).content == "    1\tprint('hello')\n    2\t# TODO: more"
    assert (await run("read", file_path="hello.py", view_range=[2, 2])).content == "    2\t# TODO: more"
    assert (await run("glob", pattern="**/*.py")).content == "hello.py"
    assert (await run("grep", pattern="TO.O")).content == "hello.py:2:# TODO: more"
    assert not (await run("write", file_path="new/file.txt", content="one two")).is_error
    assert not (await run("edit", file_path="new/file.txt", old_string="two", new_string="three")).is_error
    assert (workspace / "new/file.txt").read_text() == "one three"
    assert (await run("list_folder")).content == "hello.py  28\nnew/  1 file, 9"


async def test_no_file_tool_reaches_outside_the_workspace(run: Run, workspace: Path) -> None:
    outside = workspace.parent
    (workspace / "link.txt").symlink_to(outside / "secret.txt")
    (workspace / "folder_link").symlink_to(outside)
    links = "link.txt", "folder_link/secret.txt"
    for path in ("../secret.txt", f"{outside}/secret.txt", *links, "/etc/passwd"):
        results = [
            await run("read", file_path=path),
            await run("write", file_path=path, content="owned"),
            await run("edit", file_path=path, old_string="out", new_string="in"),
            await run("grep", pattern="bounds", path=path),
        ]
        assert all(result.is_error for result in results), path
        assert not any("out of bounds" in str(result.content) for result in results), path
    assert (outside / "secret.txt").read_text() == "out of bounds"
    assert "secret" not in str((await run("glob", pattern="folder_link/*")).content)
    assert (await run("glob", pattern="../*")).is_error


async def test_a_new_file_is_not_written_through_a_dangling_link(run: Run, workspace: Path) -> None:
    (workspace / "dangling").symlink_to(workspace.parent / "not_yet")
    assert (await run("write", file_path="dangling", content="x")).is_error
    assert not (workspace.parent / "not_yet").exists()


async def test_files_that_are_no_text_are_refused_or_shown_as_images(run: Run, workspace: Path) -> None:
    (workspace / "latin.txt").write_bytes(b"caf\xe9")
    (workspace / "huge.log").write_bytes(b"x" * 300_000)
    (workspace / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n0000")
    os.mkfifo(workspace / "fifo")
    assert (await run("read", file_path="latin.txt")).is_error
    assert "view_range" in str((await run("read", file_path="huge.log")).content)
    assert (await run("read", file_path="fifo")).is_error
    image = (await run("read", file_path="dot.png")).content
    assert isinstance(image, list)
    assert image[0]["type"] == "image"


async def test_a_pipe_is_not_written_to_where_nobody_might_ever_read_it(run: Run, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    refused = await run("write", file_path="fifo", content="x")
    assert refused.is_error
    assert refused.content == "write: fifo: not a regular file"
    (workspace / "folder").mkdir()
    assert (await run("write", file_path="folder", content="x")).is_error
    assert not (await run("write", file_path="new.txt", content="x")).is_error


async def test_names_and_lines_that_are_not_utf8_do_no_harm(run: Run, workspace: Path) -> None:
    (workspace / os.fsdecode(b"odd\xff.txt")).write_bytes(b"needle \xff\xfe\n")
    found = await run("grep", pattern="needle")
    assert not found.is_error
    assert "needle" in str(found.content)
    assert not (await run("glob", pattern="*")).is_error
    assert not (await run("list_folder")).is_error


async def test_a_workspace_that_was_deleted_gives_errors(run: Run, workspace: Path) -> None:
    shutil.rmtree(workspace)
    for name, arguments in (
        ("list_folder", {}),
        ("read", {"file_path": "a"}),
        ("write", {"file_path": "a", "content": "x"}),
        ("bash", {"command": "ls"}),
    ):
        assert (await run(name, **arguments)).is_error
    assert not workspace.exists()


async def test_input_is_checked_before_anything_runs(run: Run) -> None:
    for name, arguments in (
        ("read", {}),
        ("read", {"file_path": 3}),
        ("read", {"file_path": "a", "view_range": [1]}),
        ("write", {"file_path": "a"}),
        ("list_folder", {"path": ["."]}),
        ("list_folder", {"what": 1}),
        ("bash", {"timeout_ms": "long"}),
    ):
        result = await run(name, **arguments)
        assert result.is_error, (name, arguments)
        assert "\n" not in str(result.content)


async def test_reading_is_allowed_and_changing_asks(pool: WorkerPool) -> None:
    tools = builtin_tools(pool)
    allowed = {name for name, tool in tools.items() if tool.permission is Permission.ALLOW}
    assert allowed == {"list_folder", "read", "glob", "grep"}
    assert {name for name, tool in tools.items() if not tool.idempotent} == {"edit", "bash"}
    assert all(isinstance(tool, OutsideTool) for tool in tools.values())


async def test_the_schemas_name_what_the_sdk_takes(pool: WorkerPool) -> None:
    from anthropic.lib.tools import agent_toolset as sdk

    tools = builtin_tools(pool)
    for theirs in sdk.beta_agent_toolset_20260401(sdk.AgentToolContext(workdir=".")):
        schema = theirs.to_dict()["input_schema"]
        ours = tools[theirs.name].spec.input_schema
        assert set(ours["properties"]) == set(schema["properties"])  # type: ignore[call-overload]
        assert set(ours["required"]) == set(schema.get("required") or [])  # type: ignore[call-overload]


def test_the_host_and_the_common_file_tools_need_no_sdk(workspace: Path) -> None:
    program = f"""
import asyncio, os, sys, pathlib
from watchkeeper.agents.tools import contract, mcp, processes, workers
from watchkeeper.agents.tools.worker_files import FileTools
import watchkeeper.agents.tools.worker
for tool, arguments in (
    ("list_folder", {{}}),
    ("read", {{"file_path": "hello.py"}}),
    ("write", {{"file_path": "new/folder/file.txt", "content": "one"}}),
    ("write", {{"file_path": "new/folder/file.txt", "content": "two"}}),
    ("edit", {{"file_path": "new/folder/file.txt", "old_string": "two", "new_string": "three"}}),
):
    told, failed = asyncio.run(FileTools({str(workspace)!r}).run({{"tool": tool, "arguments": arguments}}))
    assert not failed, told
heavy = {{"anthropic", "mcp", "pydantic", "jsonschema", "yaml"}} & set(sys.modules)
assert not heavy, heavy
"""
    root = Path(__file__).parents[3] / "core"
    environ = dict(os.environ) | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_path_leads_where_it_leads_for_the_sdk(workspace: Path) -> None:
    from anthropic.lib.tools import agent_toolset as sdk

    (workspace / "folder").mkdir()
    (workspace / "inside").symlink_to("folder")
    (workspace / "nowhere").symlink_to("folder/new.txt")
    (workspace / "outside").symlink_to(workspace.parent)
    (workspace / "loop").symlink_to("loop")
    context = sdk.AgentToolContext(workdir=str(workspace))
    for name in (
        "hello.py", "./hello.py", "new/er/file", "inside/file", "inside/../hello.py", "nowhere", "nowhere/file", "outside",
        "outside/new/file", "loop", "loop/file", "hello.py/file", "..", "../x", ".", "", "/etc/passwd", str(workspace / "x"),
        "folder//x/", "a\0b", "x" * 5000, "x/" * 1500,
    ):  # fmt: skip
        found = []
        for resolve in (FileTools(str(workspace))._resolved, partial(sdk.resolve_path, context)):
            try:
                found.append(str(resolve(name)))
            except ValueError as error:
                found.append(repr(error))
        assert found[0] == found[1], name


MARK = "[redacted:database-password]"


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("write", {"file_path": ".env", "content": f"PASSWORD={MARK}\n"}, "environment variable"),
        ("edit", {"old_string": "MODE=a", "new_string": f"MODE=a\nTOKEN={MARK}"}, "environment variable"),
        ("edit", {"old_string": f"PASSWORD={MARK}", "new_string": "b"}, "old_string cannot match"),
        ("write", {"file_path": f"{MARK}.txt", "content": "x"}, "Choose a name without it"),
        ("edit", {"old_string": "MODE=a", "new_string": "MODE=b"}, None),
        ("read", {"file_path": MARK}, None),
    ],
)
def test_a_redaction_mark_in_a_change_of_a_file_is_refused_with_the_way_out(tool, arguments, said):
    fault = mark_fault(tool, arguments)
    assert fault is None if said is None else fault is not None and MARK in fault and said in fault


async def test_text_about_redaction_that_holds_no_mark_is_written(run: Run, workspace: Path) -> None:
    text = 'f"[redacted:{name}]" and [redacted] and "[redacted:"'
    assert not (await run("write", file_path="about.py", content=text)).is_error
    assert (workspace / "about.py").read_text() == text


async def test_a_file_that_also_has_a_name_outside_the_workspace_is_not_changed(run, workspace, tmp_path):
    outside = tmp_path / "secret.txt"
    (workspace / "linked.txt").hardlink_to(outside)
    for result in (
        await run("write", file_path="linked.txt", content="changed"),
        await run("edit", file_path="linked.txt", old_string="out", new_string="in"),
    ):
        assert result.is_error
        assert "hard link" in result.content
    assert outside.read_text() == "out of bounds"


async def test_a_file_with_two_names_in_the_workspace_is_changed(run, workspace):
    (workspace / "linked.py").hardlink_to(workspace / "hello.py")
    assert not (await run("write", file_path="linked.py", content="new")).is_error
    assert (workspace / "hello.py").read_text() == "new"


@pytest.mark.parametrize(
    ("text", "lines", "given"),
    [
        ("a\nb\n", None, "    1\ta\n    2\tb"),
        ("a\nb", None, "    1\ta\n    2\tb"),
        ("a\r\n\n\n", None, "    1\ta\r\n    2\t\n    3\t"),
        ("a\n\nb\n", [1, 2], "    1\ta\n    2\t"),
        ("a\nb\nc\n", [2, 0], "    2\tb\n    3\tc"),
        ("a\nb\nc\n", [3, 90], "    3\tc"),
        ("a\n", [9, 12], "[the file has no line 9]"),
        ("", None, "[the file is empty]"),
    ],
)
async def test_read_gives_each_line_with_its_number(run: Run, workspace: Path, text, lines, given) -> None:
    (workspace / "some.txt").write_bytes(text.encode())
    arguments = {"file_path": "some.txt"} | ({"view_range": lines} if lines else {})
    assert (await run("read", **arguments)).content == given


async def test_a_range_of_a_large_file_and_the_end_of_a_cut_one_have_their_own_numbers(
    run: Run, workspace: Path
) -> None:
    (workspace / "large.log").write_text("".join(f"line {n}\n" for n in range(1, 60_001)))
    far = await run("read", file_path="large.log", view_range=[50_000, 50_001])
    assert far.content == "50000\tline 50000\n50001\tline 50001"
    (workspace / "long.log").write_text("".join(f"line {n}\n" for n in range(1, 20_001)))
    long = await run("read", file_path="long.log")
    assert "characters omitted" in str(long.content)
    assert str(long.content).endswith("20000\tline 20000")


def test_lines_behind_a_secret_of_several_lines_keep_their_numbers() -> None:
    raw = "top\nKEY\nabc\ndef\nEND\nrest\nlast\n"
    assert number_lines(raw, "top\n[secret]\nrest\nlast\n") == (
        "    1\ttop\n    2\t[secret]\n    6\trest\n    7\tlast"
    )


async def test_an_edit_whose_old_text_has_line_numbers_is_told_so(run: Run, workspace: Path) -> None:
    shown = "    2\t# TODO: more"
    for old in (shown, f"print('hello')\n{shown}", f"hello')\n{shown}\n", "   12\tx\n   13\ty\n"):
        failed = await run("edit", file_path="hello.py", old_string=old, new_string="x")
        assert failed.is_error
        assert "line numbers" in str(failed.content)
    assert (workspace / "hello.py").read_text() == "print('hello')\n# TODO: more\n"
    (workspace / "table.tsv").write_text("1\ta\n2\tb\n")
    assert not (await run("edit", file_path="table.tsv", old_string="2\tb", new_string="2\tc")).is_error
