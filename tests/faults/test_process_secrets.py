"""A command that a model runs finds no key in the processes of its run, though they belong to the same
user."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.core.messages_api.scripts import Notes, says, uses
from tests.support.messages_server import MessagesServer
from tests.support.other_user import ROOT, Place, interpreter, processes, until
from tests.support.scripted import task

from watchkeeper.records.process_secrets import secret_variables

SMALL_SERVER = ROOT / "tests" / "core" / "tools" / "small_mcp_server.py"
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-planted7planted7planted7",
    "MODEL_ACCESS": "short-planted",  # named by the configuration alone
    "PLAIN": "sk-proj-shaped4like5a6key7planted8by9its0value",
    "SOME_URL": "postgres://someone:planted-password@localhost/db",
}
LOOK = """
import json, os, sys
keys = [bytes(byte ^ 1 for byte in bytes.fromhex(one)) for one in sys.argv[1:]]
seen = {}
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
    if pid == os.getpid():
        continue
    about = seen[pid] = {"environ": False, "mem": False, "found": []}
    for name in ("cmdline", "environ"):
        try:
            data = open(f"/proc/{pid}/{name}", "rb").read()
        except OSError:
            continue
        about["environ"] = about["environ"] or (name == "environ" and bool(data))
        about["found"] += [name for key in keys if key in data]
    try:
        memory, maps = open(f"/proc/{pid}/mem", "rb", 0), open(f"/proc/{pid}/maps").read()
    except OSError:
        continue
    for line in maps.splitlines():
        span, mode = line.split()[:2]
        if not mode.startswith("rw"):
            continue
        begin, end = (int(part, 16) for part in span.split("-"))
        try:
            memory.seek(begin)
            data = memory.read(end - begin)
        except OSError:
            continue
        about["mem"] = True
        about["found"] += ["mem" for key in keys if key in data]
print(json.dumps(seen))
"""


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    python = interpreter()
    looked_for = " ".join(bytes(byte ^ 1 for byte in key.encode()).hex() for key in KEYS.values())
    # The first one looks: another one that looked at the same time would hold the keys as well.
    look = f"{python} look.py {looked_for} > found && mv found looked"
    command = f"touch started.$$; until [ -e go ]; do sleep 0.05; done; if mkdir first; then {look}; fi"

    def work(name: str, turn: int, body: object) -> object:
        return [uses("bash", command=command)] if turn == 0 else [says("done")]

    with MessagesServer(Notes([task("look", role="coder")], work=work)) as made:
        yield made


@pytest.fixture
def place(server: MessagesServer) -> Iterator[Place]:
    made = Place(server.url, WATCHKEEPER_CONTAINMENT="register", **KEYS)
    (made.folder / "config" / "config.toml").write_text(
        '[anthropic]\napi_key_env = "MODEL_ACCESS"\n'
        f"[mcp_servers.small]\ncommand = {json.dumps(made.python)}\nargs ="
        f" [{json.dumps(str(SMALL_SERVER))}]\n"
        f"env = {{ PYTHONPATH = {json.dumps(made.environment['PYTHONPATH'])} }}\n"
    )
    (made.workspace / "look.py").write_text(LOOK)
    made.own()
    yield made
    made.end()


RUN = ("run", "reach the goal", "--model", "anthropic/claude-test", "--allow", "bash")


@pytest.mark.timeout(300)  # on a busy machine, eight new interpreters take their time
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows processes in /proc")
def test_a_command_of_a_model_reads_no_key_from_any_process_of_its_run(place, server):
    """The foreground run, a background host, its dashboard, MCP and shell workers, `wk serve` and what that
    starts."""
    canary = place.start("sleep", "600")
    run = (*RUN, "--workspace", str(place.workspace))
    foreground = place.wk(*run, "--headless", stdout=subprocess.DEVNULL)
    until(lambda: list(place.workspace.glob("started.*")), "the first run's command started")
    ours, theirs = pty.openpty()
    dashboard = place.wk(*run, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    mine = {foreground.pid: "wk run", dashboard.pid: "dashboard"}
    if find_spec("textual_serve") is not None:
        served, viewer = _serve(place)
        mine |= {served: "wk serve", viewer: "served dashboard"}
    until(lambda: len(list(place.workspace.glob("started.*"))) == 2, "the background host's command started")
    host = until(lambda: processes("watchkeeper host", str(place.path)), "the host runs")[0]
    mine |= {host: "host"}
    mine |= {
        pid: "MCP worker"
        for pid in (*_children(host), *_children(foreground.pid))
        if _children_named(pid, SMALL_SERVER.name)
    }
    assert list(mine.values()).count("MCP worker") == 2
    (place.workspace / "go").touch()
    until((place.workspace / "looked").exists, "a command looked")
    seen = {int(pid): about for pid, about in json.loads((place.workspace / "looked").read_text()).items()}
    assert set(mine) <= set(seen), (
        f"ended before they were looked at: {[mine[pid] for pid in set(mine) - set(seen)]}"
    )
    assert {pid: about["found"] for pid, about in seen.items() if about["found"] and pid != canary.pid} == {}
    assert {mine[pid]: seen[pid] for pid in mine if seen[pid]["environ"] or seen[pid]["mem"]} == {}
    assert set(seen[canary.pid]["found"]) == {"environ", "mem"}, "a key would have been found"
    assert foreground.wait(60) == 0
    assert all(KEYS["MODEL_ACCESS"] in str(headers) for headers in server.headers), (
        "the key reached the model's server"
    )
    assert len(server.headers) >= 4
    dashboard.send_signal(signal.SIGKILL)
    os.close(ours)
    if served := getattr(place, "connection", None):
        served.close()


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        return


def _serve(place: Place) -> tuple[int, int]:
    """`wk serve` with one browser's dashboard: the pids of both."""
    process = place.wk("serve", "--port", "0", stdout=subprocess.PIPE, text=True)
    address = urlsplit(process.stdout.readline().split()[4])
    entering = http.client.HTTPConnection("127.0.0.1", address.port, timeout=30)
    entering.request("GET", f"/?{address.query}")
    cookie = entering.getresponse().headers["Set-Cookie"].split(";")[0]
    connection = socket.create_connection(("127.0.0.1", address.port))
    connection.sendall(
        f"GET /ws?width=80&height=24 HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\nUpgrade:"
        " websocket\r\nConnection: Upgrade\r\n"
        f"Cookie: {cookie}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    place.connection = connection  # type: ignore[attr-defined]
    viewer = until(
        lambda: processes("watchkeeper_tui", str(place.path)), "the dashboard in the browser started"
    )[0]
    assert connection.recv(12) == b"HTTP/1.1 101"
    connection.recv(100_000)  # its prelude came: it has read what was handed over
    return process.pid, viewer


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _children_named(pid: int, name: str) -> bool:
    return any(
        name in Path(f"/proc/{child}/cmdline").read_bytes().decode("utf-8", "replace")
        for child in _children(pid)
    )


def test_which_variables_hold_secrets_is_known_by_name_by_configuration_and_by_value() -> None:
    plain = {
        "PATH": "/usr/bin:/bin", "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
        "LS_COLORS": "rs=0:di=01;34:*.tar=01;31", "LANG": "C.UTF-8", "HTTP_PROXY": "http://proxy.example:3128",
        "WATCHKEEPER_FAULT": "writer.before_commit:18", "EMPTY_TOKEN": "", "XAUTHORITY": "/home/x/.Xauthority",
    }  # fmt: skip
    assert secret_variables(plain | KEYS, 'api_key_env = "MODEL_ACCESS"') == KEYS
    assert "MODEL_ACCESS" not in secret_variables(KEYS)
