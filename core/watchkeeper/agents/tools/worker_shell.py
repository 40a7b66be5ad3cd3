"""In a worker: one agent's shell. While it runs, it keeps its folder, variables and jobs from call to
call."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.agents.tools.output import after_word
from watchkeeper.agents.tools.processes import kill_descendants
from watchkeeper.records.host_faults import HostFault, host_fault, raising_host_faults

if TYPE_CHECKING:
    from anthropic.lib.tools.agent_toolset import BashSession

NEVER = 1e9
"""Seconds. The host's own clock ends a command, since only the host can end all that the command started."""


TRUNCATED = "[output truncated]\n"
"""What the SDK puts before the end of an output whose beginning it dropped."""


OUTSIDE_SHELL = (
    "[ran outside your shell, in its folder: the shell's variables, functions and aliases do not apply]"
)
_OUTPUT_BYTES = 100 * 1024
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Shell:
    """Runs `bash` with the SDK's session."""

    def __init__(self, workspace: str) -> None:
        self._workspace = Path(workspace)
        self._session: BashSession | None = None

    async def run(self, request: dict[str, Any]) -> tuple[str, bool]:
        """Run one command; a result other than 0 is an error that says so."""
        arguments = request["arguments"]
        if isinstance(program := request.get("program"), dict):
            return await self._run_program(program)
        if arguments.get("restart"):
            await self._close()
            return "the shell was restarted", False
        command = str(arguments.get("command") or "")
        if not command.strip():
            return "bash: `command` is needed", True
        if "\0" in command:
            return "bash: a command cannot hold a NUL character", True
        if fault := await _syntax_fault(command):
            return fault, True
        if not self._workspace.is_dir():
            return f"bash: the workspace {self._workspace} is gone", True
        if self._session is None:
            from anthropic.lib.tools.agent_toolset import BashSession

            self._session = await BashSession.start(self._workspace, env=dict(os.environ))
        try:
            with raising_host_faults(began=True):
                output, code = await self._session.exec(command, timeout=NEVER)
            if code == -1:
                await _check_written(self._session)
        except HostFault:
            await self._close()  # what the command still says would be taken for the next one's
            raise
        output = output.removeprefix("\n")
        if output.startswith(TRUNCATED):
            # The rest may begin in the middle of a key, which no redaction would recognise.
            output = TRUNCATED + output[after_word(output, len(TRUNCATED) + 1) :].lstrip()
        if code == -1:
            await self._close()
            return f"{output}\n[the shell ended; the next command starts a new one in the workspace]".lstrip(
                "\n"
            ), True
        if code:
            return f"{output}\n[exit code {code}]".lstrip("\n"), True
        return output or "[no output]", False

    async def _run_program(self, program: dict[str, Any]) -> tuple[str, bool]:
        """Run one program with the environment that the shell began with: nothing that the shell defined
        since applies."""
        folder, words = str(program["folder"]), [str(word) for word in program["words"]]
        if self._session is not None and _folder_of(self._session) not in (folder, None):
            return (
                "bash: [not run] your shell is in another folder than the one for which this command was"
                " allowed",
                True,
            )
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                executable=str(program["path"]),
                cwd=folder,
                env={**os.environ, "TERM": "dumb"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            if host_fault(error) is not None:
                raise
            return f"bash: {words[0]}: {error.strerror or error}", True
        except RuntimeError as error:  # it was started; what waits for it could not be
            with raising_host_faults(began=True):
                raise error
        output, is_cut = await _output_of(process)
        text = _COLOURS.sub("", output.decode("utf-8", "replace")).strip("\n")
        if is_cut:
            text = TRUNCATED + text[after_word(text, 1) :].lstrip()
        if self._session is not None:
            text = f"{OUTSIDE_SHELL}\n{text}".rstrip("\n")
        if process.returncode:
            return f"{text}\n[exit code {process.returncode}]".lstrip("\n"), True
        return text or "[no output]", False

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        kill_descendants(os.getpid())


def _folder_of(session: BashSession) -> str | None:
    process = getattr(session, "_proc", None)  # nothing public says which process it is
    try:
        return os.readlink(f"/proc/{process.pid}/cwd") if process is not None else None
    except OSError:
        return None


async def _output_of(process: asyncio.subprocess.Process) -> tuple[bytes, bool]:
    """The end of what a process prints until it ends, and whether more came before. Its children may keep the
    pipe open."""
    assert process.stdout is not None
    stream, kept, is_cut = process.stdout, bytearray(), False

    async def read() -> None:
        nonlocal is_cut
        while block := await stream.read(65_536):
            kept.extend(block)
            if len(kept) > _OUTPUT_BYTES:
                del kept[: len(kept) - _OUTPUT_BYTES]
                is_cut = True

    reading = asyncio.create_task(read())
    try:
        await process.wait()
        await asyncio.wait({reading}, timeout=0.5)
    finally:
        reading.cancel()
    return bytes(kept), is_cut


async def _check_written(session: BashSession) -> None:
    """Distinguish a shell that ended from one whose command could not be written to it, and so never began.

    Raises:
        HostFault: the machine ran out of something.
    """
    stream: Any = getattr(session._proc.stdin, "_stream", None)
    if stream is not None and stream.is_closing():
        with raising_host_faults(), suppress(ConnectionError):
            await stream.wait_closed()


async def _syntax_fault(command: str) -> str | None:
    """Why the shell cannot read the command: it would wait for the rest of an unclosed quote until its time
    is up."""
    check = await asyncio.create_subprocess_exec(
        "/bin/bash", "--noprofile", "--norc", "-n",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await check.communicate(f"{{ {command}\n}}\n".encode("utf-8", "replace"))
    fault = said.decode("utf-8", "replace").strip()
    if check.returncode == 0 and "here-document" not in fault:
        return None
    return "bash: the command is not complete, or not valid: " + fault[:1000]
