"""The sandbox of an agent's shell: what its commands may write, read and reach (`[sandbox] bash`).

The rules become options of bubblewrap (`Sandbox.options`). Where bubblewrap is not installed, `confinement` applies the same
options with namespaces of its own. In both cases Landlock comes last. The result is read back in each new shell, before its
first command (`Sandbox.check`).

*Secrets.* A mount over a file ends when the file is replaced, and cannot be made before the file exists. So a folder that
may hold a secret is shown as a new folder with its other entries; what is made in it later does not appear. Inside a folder
that commands may write this is not possible: there the mounts are watched, and the shell ends when one is lost.
"""

from __future__ import annotations

import asyncio
import errno
import locale
import os
import pwd
import re
import select
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from watchkeeper.agents.tools import confinement
from watchkeeper.records.sandboxes import WORKSPACE, WORKSPACE_WITHOUT_NETWORK

SECRETS = (
    ".ssh", ".gnupg", ".password-store", ".netrc", ".git-credentials", ".cache/git/credential", ".git-credential-cache",
    ".pgpass", ".my.cnf", ".mylogin.cnf", ".vault-token",
    ".aws", ".azure", ".kube", ".docker", ".oci", ".terraform.d", ".terraformrc", ".boto", ".s3cfg", ".databrickscfg",
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials",
    ".composer/auth.json", ".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".nuget/NuGet",
    ".config/gh", ".config/glab-cli", ".config/hub", ".config/git/credentials", ".config/gcloud", ".config/doctl",
    ".config/rclone", ".config/sops", ".config/op", ".config/containers/auth.json", ".config/composer/auth.json",
    ".config/pypoetry/auth.toml", ".config/hcloud", ".config/watchkeeper", ".config/heroku", ".config/stripe",
    ".claude.json", ".claude/.credentials.json", ".codex/auth.json", ".gemini", ".local/share/opencode/auth.json",
    ".config/github-copilot", ".local/share/keyrings", ".local/share/kwalletd", ".Xauthority", ".ICEauthority",
    ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".mozilla", ".thunderbird",
    ".bash_history", ".zsh_history", ".python_history", ".psql_history",
    ".huggingface/token", ".cache/huggingface/token", ".kaggle", ".wandb", ".config/wandb",
)  # fmt: skip
"""Below the home folder: what a confined shell cannot read."""
SYSTEM_SECRETS = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/kubernetes",
    "/etc/krb5.keytab",
)
"""The same elsewhere; the user may be root."""
SECRET_VARIABLES = (
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AZURE_CONFIG_DIR", "BOTO_CONFIG",
    "CLAUDE_CONFIG_DIR", "CLOUDSDK_CONFIG", "CODEX_HOME", "DOCKER_CONFIG", "GH_CONFIG_DIR", "GNUPGHOME",
    "GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG", "NETRC", "NPM_CONFIG_USERCONFIG", "PGPASSFILE",
    "REGISTRY_AUTH_FILE", "SSH_AUTH_SOCK", "XAUTHORITY",
)  # fmt: skip
"""Variables of the host that name a file or folder with credentials."""
GUARDED = ("hooks", "config", "config.worktree", "worktrees", "modules")
"""In a repository's git folder: what can make git run programs. A confined shell may not write it."""
_RUNTIME = ("/run", "/var/run")
"""Sockets of services, and the secrets of containers. Only the folders of `_RUNTIME_SHOWN` are shown."""
_RUNTIME_SHOWN = ("/run/systemd/resolve", "/run/current-system", "/run/booted-system", "/run/opengl-driver")
_TEMPORARY = ("/tmp", "/var/tmp")
_SOCKET_FOLDERS = ("tmux-*", ".X11-unix", ".ICE-unix", "ssh-*", "dbus-*", "gpg-*", "screens")
"""In a temporary folder: where sockets of services may appear later."""
_MOST_ENTRIES = 400
"""A folder with more entries shows only those that the shell needs: each is a mount."""
_SOCKETS = "/proc/net/unix"
_CHECK_SECONDS = 20.0
_WATCH_MILLISECONDS = 5_000
_PROBE = ".watchkeeper-probe"
_CHECKED = "checked"
_NAMESPACES = ("pid", "mnt", "ipc", "net")
_UNREACHABLE = re.compile(
    r"network is unreachable|could not resolve|name resolution|\bENETUNREACH\b|\bEAI_AGAIN\b", re.IGNORECASE
)
_INSTALL = "install the package `bubblewrap`, or allow user namespaces"


class NotStarted(Exception):
    """The shell said nothing of what it was asked: it did not start."""


class DoesNotHold(Exception):
    """Nothing here confines the shell, or the read-back found a hole. The message is one line."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The rules for one shell.

    Args:
        workspace: the folder that the shell works in.
        git: the common git folder of the workspace's repository, if it has one.
        own_git: of a linked worktree, its own folder in the common one.
        folder: a folder of the host (`make_folder`); `tmp` in it is the temporary folder.
        network: whether commands may reach the network.
        hidden: files and folders that cannot be read; some may not exist.
        guarded: existing files and folders that cannot be written although the folder around them can.
        shown: what must stay visible in a folder of which only a part is shown.
    """

    workspace: str
    git: str | None
    own_git: str | None
    folder: str
    network: bool
    hidden: tuple[str, ...]
    guarded: tuple[str, ...]
    shown: tuple[str, ...]

    @classmethod
    def of(
        cls, setting: str, workspace: str, folder: str, secrets: Iterable[str], environ: Mapping[str, str]
    ) -> Sandbox:
        """The rules that a setting (`records.sandboxes`) other than `off` means for a workspace.

        Args:
            secrets: from `secret_paths`, in the host.
            environ: the variables of the shell.

        Raises:
            DoesNotHold: the workspace lies in a folder with credentials.
        """
        root = os.path.realpath(workspace)
        git, own = git_folders(Path(root))
        places = [place for place in (root, git, os.path.join(folder, "tmp")) if place is not None]
        hidden = dict.fromkeys([os.path.join(folder, "secret"), *secrets, *_sockets(places)])
        for path in hidden:
            if _is_below(root, path):
                raise DoesNotHold(f"the workspace is in {path}, which may hold credentials")
        outermost = [
            path for path in hidden if not any(_is_below(path, one) and path != one for one in hidden)
        ]
        shown = [sys.prefix, sys.base_prefix, os.path.dirname(__file__), environ.get("HOME", "")]
        shown += environ.get("PATH", "").split(os.pathsep)
        return cls(
            root, git, own, folder, setting != WORKSPACE_WITHOUT_NETWORK, tuple(outermost), _guarded(root, git, own, environ),
            tuple(os.path.realpath(path) for path in shown if os.path.isabs(path)),
        )  # fmt: skip

    @property
    def temporary(self) -> str:
        """The temporary folder of the shell's commands (`TMPDIR`)."""
        return os.path.join(self.folder, "tmp")

    @property
    def writable(self) -> tuple[str, ...]:
        """The folders that commands may write."""
        return tuple(path for path in (self.workspace, self.git, self.temporary) if path is not None)

    def options(self) -> list[str]:
        """The rules as options of bubblewrap."""
        steps: list[tuple[str, int, list[str]]] = []
        sealed = ["/dev"]
        for folder in _RUNTIME:
            if os.path.isdir(folder) and not os.path.islink(folder):
                steps.append((folder, 0, ["--tmpfs", folder]))
                sealed.append(folder)
        resolver = os.path.dirname(os.path.realpath("/etc/resolv.conf"))
        for path in dict.fromkeys([*_RUNTIME_SHOWN, *([resolver] if _is_below(resolver, "/run/") else [])]):
            steps.append((path, 1, ["--ro-bind-try", path, path]))
        views = self._views()
        sealed += views
        for view in views:
            steps.append((view, 2, ["--tmpfs", view]))
            steps += [(path, 3, words) for path, words in self._entries(view, views)]
        for path in self.hidden:
            if os.path.dirname(path) not in views and not any(_is_below(path, one) for one in _RUNTIME):
                steps += [(path, 4, words) for words in self._cover(path)]
        for path in self.hidden:
            if (
                os.path.isdir(path)
                and not os.path.islink(path)
                and not any(_is_below(path, one) for one in _RUNTIME)
            ):
                sealed.append(path)
        steps += [(path, 5, ["--bind", path, path]) for path in self.writable]
        steps += [(path, 6, ["--bind", path, path]) for path in self._around_guarded()]
        steps += [(path, 7, ["--ro-bind", path, path]) for path in self.guarded]
        words = ["--die-with-parent", "--unshare-pid", "--unshare-ipc"]
        words += ["--ro-bind", "/", "/", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
        words += ["--proc", "/proc", *([] if self.network else ["--unshare-net"])]
        known: set[tuple[str, ...]] = set()
        for _, _, step in sorted(steps):  # a folder before what is in it
            if tuple(step) not in known:
                known.add(tuple(step))
                words += step
        for path in dict.fromkeys(sealed):
            words += ["--remount-ro", path]
        return words

    def prefix(self, program: str | None, folder: str) -> list[str]:
        """What to put before a command so that it runs confined, in that folder. `program`: bubblewrap, if used."""
        # Without `site`, the user's variables and the folder: no file of a user can replace a module.
        launcher = [sys.executable, "-I", "-S", confinement.__file__]
        options = [*self.options(), "--chdir", folder]
        if program is None:
            return [*launcher, "--namespaces", *options, "--"]
        rights = (
            ["--cap-drop", "ALL"] if os.geteuid() == 0 else []
        )  # the rights of root over files, and no other
        for right in ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"):
            rights += ["--cap-add", right] if rights else []
        for name in confinement.KERNEL_SETTINGS:
            options += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        binds = [word for path in self.writable for word in ("--bind", path, path)]
        return [program, *rights, *options, "--", *launcher, *binds, "--"]

    def needed_mounts(self) -> list[str]:
        """The places of mounts that files can be replaced under."""
        views = self._views()
        covered = [
            path for path in self.hidden if os.path.dirname(path) not in views and any(self._cover(path))
        ]
        return [
            *self.guarded,
            *(path for path in covered if not any(_is_below(path, one) for one in _RUNTIME)),
        ]

    async def check(self, session: Session) -> None:
        """Try in the confined shell what must fail, and what must not.

        Raises:
            DoesNotHold: it does not hold; the message says what.
            NotStarted: the shell gave no answer.
        """
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                output, code = await session.run(self._script())
        except TimeoutError:
            raise DoesNotHold("the confined shell timed out") from None
        found = output.strip().splitlines()
        if code != 0 or found[-1:] != [_CHECKED]:
            raise NotStarted(" ".join(found[-1:])[:200])
        found = [*found[:-1], *self._traces(session.pid)]
        if found:
            raise DoesNotHold(f"a confined shell {found[0]}")

    def _script(self) -> str:
        """Says what a confined shell can do and must not, one a line. It starts no programs."""
        tried = [
            ("can write outside the workspace", f": > {shlex.quote(self._planted[0])}"),
            (
                "cannot write its temporary folder",
                f"! : > {shlex.quote(os.path.join(self.temporary, '.probe'))}",
            ),
            ("can change kernel settings", ": >> /proc/sys/kernel/core_pattern"),
            ("cannot use its workspace", f"! cd {shlex.quote(self.workspace)}"),
        ]
        for path in self.hidden:
            if not stat.S_ISSOCK(_mode(path)):
                quoted = shlex.quote(path)
                listed = f'for x in {quoted}/* {quoted}/.[!.]*; do [ -e "$x" ] && break; done && [ -e "$x" ]'
                read = f'x=; IFS= read -r -N 1 x < {quoted}; [ -n "$x" ]'
                tried.append((f"can read {path}", f"if [ -d {quoted} ]; then {listed}; else {read}; fi"))
        for path in self.guarded:
            place = os.path.join(path, _PROBE) if os.path.isdir(path) else path
            tried.append((f"can write {path}", f": >> {shlex.quote(place)}"))
        if not self.network:
            interfaces = "while IFS=: read -r x y; do case $x in *'|'*|*lo) ;; *) false; break;; esac; done"
            tried.append(("has network access", f"! {{ {interfaces}; }} < /proc/net/dev"))
        lines = [f"if {{ {test}; }} 2>/dev/null; then echo {shlex.quote(what)}; fi" for what, test in tried]
        return "\n".join(["(", *lines, f"echo {_CHECKED}", ")"])

    def _traces(self, pid: int) -> Iterator[str]:
        """What shows outside the shell that it is not confined. `pid`: its process."""
        for path in self._planted:
            if os.path.lexists(path):
                os.unlink(path)
                yield f"can write {path}"
        for name in _NAMESPACES:
            same = os.readlink(f"/proc/self/ns/{name}") == os.readlink(f"/proc/{pid}/ns/{name}")
            if same and not (name == "net" and self.network):
                yield f"shares the system's {name} namespace"
        # A command of another shell may put a link in the place of a folder just before it is mounted.
        for path in (*self.writable, *self.guarded, *self._around_guarded()):
            inside, outside = os.stat(f"/proc/{pid}/root{path}"), os.lstat(path)
            if (inside.st_dev, inside.st_ino) != (outside.st_dev, outside.st_ino):
                yield f"has a different {path}"

    def _around_guarded(self) -> list[str]:
        """The folders between a writable one and what is guarded in it: unless they are mounts, they can be renamed."""
        around: dict[str, None] = {}
        for path in self.guarded:
            while (path := os.path.dirname(path)) not in (*self.writable, "/"):
                around[path] = None
        return [*around]

    @property
    def _planted(self) -> list[str]:
        """The files that the read-back would make if nothing confined it."""
        return [os.path.join(path, _PROBE) for path in (self.folder, *self.guarded) if os.path.isdir(path)]

    def explain(self, output: str) -> str:
        """The output of a command, with the rule where the output says that something was denied."""
        said = []
        if _denials().search(output):
            places = [f"the workspace {self.workspace}", f"$TMPDIR {self.temporary}"]
            if self.git is not None:
                places.append(f"the git folder {self.git} (except {', '.join(GUARDED)})")
            said.append(
                f"commands may write only in {', '.join(places)}; they cannot read files with credentials"
                " or connect to service sockets"
            )
        if not self.network and _UNREACHABLE.search(output):
            said.append("commands have no network access")
        setting = WORKSPACE if self.network else WORKSPACE_WITHOUT_NETWORK
        return f"{output}\n[sandbox = {setting}: {'; '.join(said)}]" if said else output

    def _views(self) -> list[str]:
        """The folders that are shown as new folders, with their entries that are not hidden."""
        parents = [os.path.dirname(path) for path in self.hidden]
        fixed = ("/", "/etc", *_RUNTIME)
        return sorted(
            path
            for path in {*parents, *_TEMPORARY}
            if os.path.isdir(path)
            and os.path.realpath(path) == path
            and path not in fixed
            and not any(
                _is_below(path, one) for one in (*_RUNTIME, *self.writable, *self.hidden, "/dev", "/proc")
            )
        )

    def _entries(self, view: str, views: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        try:
            with os.scandir(view) as found:
                entries = list(found)
        except OSError:
            return
        needed = (*self.writable, self.folder, *self.shown)
        for entry in entries:
            path = entry.path
            if path in self.hidden:
                for words in self._cover(path):
                    yield path, words
            elif path in views or (
                len(entries) > _MOST_ENTRIES and not any(_is_below(one, path) for one in needed)
            ):
                continue
            elif entry.is_symlink():
                with suppress(OSError):
                    yield path, ["--symlink", os.readlink(path), path]
            else:
                yield path, ["--ro-bind-try", path, path]

    def _cover(self, path: str) -> Iterator[list[str]]:
        """Show something that cannot be read. A device on a mount without devices cannot be opened, even by root."""
        if not os.path.lexists(path):
            return
        if os.path.isdir(path) and not os.path.islink(path):
            yield ["--perms", "0000", "--tmpfs", path]
        elif not os.path.islink(path):
            yield ["--ro-bind", os.devnull, path]


async def _why_not(prefix: Sequence[str]) -> str:
    """Why a confined program does not start; empty if it does."""
    process = await asyncio.create_subprocess_exec(
        *prefix, "true", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


class Session(Protocol):
    """A shell that runs commands one after the other."""

    @property
    def pid(self) -> int: ...

    async def run(self, command: str) -> tuple[str, int | None]: ...

    async def close(self) -> None: ...


SessionT = TypeVar("SessionT", bound=Session)


class ConfinedShells:
    """Starts the shells of one worker in a sandbox, one after the other, and ends one whose sandbox no longer holds.

    Args:
        setting, workspace, folder, secrets, environ: as for `Sandbox.of`.
        end_shell: ends what the worker started; called from another thread.
    """

    def __init__(
        self,
        setting: str,
        workspace: str,
        folder: str,
        secrets: Sequence[str],
        environ: Mapping[str, str],
        end_shell: Callable[[], None],
    ) -> None:
        self._rules = (setting, workspace, folder, tuple(secrets), environ)
        self._environ = environ
        self._end_shell = end_shell
        self._sandbox: Sandbox | None = None
        self._program: str | None = None
        self._ended_because: str | None = None

    async def open(self, start: Callable[[Sequence[str]], Awaitable[SessionT]]) -> SessionT:
        """A shell that is proven to be confined. `start` starts one with words before it.

        Raises:
            DoesNotHold: it is not confined; no shell was left.
        """
        self._ended_because = None
        self._sandbox = sandbox = Sandbox.of(*self._rules)
        self._program = find_bubblewrap(self._environ, sandbox)
        try:
            return await self._open(sandbox, start)
        except DoesNotHold:
            if self._program is None:
                raise
        self._program = None
        return await self._open(sandbox, start)

    async def _open(
        self, sandbox: Sandbox, start: Callable[[Sequence[str]], Awaitable[SessionT]]
    ) -> SessionT:
        prefix = self.prefix(sandbox.workspace)
        session = await start(prefix)
        try:
            try:
                await sandbox.check(session)
            except NotStarted as error:
                raise DoesNotHold(f"{await _why_not(prefix) or error}; {_INSTALL}") from None
            self._watch(sandbox, session.pid)
        except BaseException:
            await session.close()
            raise
        return session

    def prefix(self, folder: str) -> list[str]:
        """What to put before a program so that it runs as the open shell does, in that folder."""
        assert self._sandbox is not None
        return self._sandbox.prefix(self._program, folder)

    def explain(self, output: str) -> str:
        """The output of a command, with what the sandbox denied, or why it ended the shell."""
        if self._sandbox is None:
            return output
        if self._ended_because is not None:
            output = f"{output}\n[the sandbox ended the shell: {self._ended_because}]"
        return self._sandbox.explain(output)

    def _watch(self, sandbox: Sandbox, shell_pid: int) -> None:
        """End the shell when a mount that a rule needs is lost, because its file was replaced outside the shell, or when a
        command makes `commondir` in a git folder, which replaces its configuration and hooks.

        Raises:
            DoesNotHold: a mount is missing already.
        """
        needed = {path.encode() for path in sandbox.needed_mounts()}
        mounts = open(f"/proc/{shell_pid}/mountinfo", "rb", buffering=0)  # noqa: SIM115 - the thread closes it
        common = os.path.join(sandbox.git, "commondir") if sandbox.git is not None else None
        changes = confinement.watch_entries([sandbox.git] if sandbox.git is not None else [])

        def fault() -> str | None:
            if common is not None and os.path.lexists(common):
                with suppress(OSError):
                    os.unlink(common)
                return f"a command created {common}, which was removed"
            mounts.seek(0)
            lines = mounts.read().splitlines()
            lost = needed - {_unescaped(line.split(b" ")[4]) for line in lines}
            return f"{os.fsdecode(min(lost))} was replaced" if lines and lost else None

        if (why := fault()) is not None:
            mounts.close()
            os.close(changes)
            raise DoesNotHold(why)

        def watch() -> None:
            poll = select.poll()
            poll.register(mounts, select.POLLPRI)
            poll.register(changes, select.POLLIN)
            with mounts:
                while os.path.exists(f"/proc/{shell_pid}"):
                    poll.poll(_WATCH_MILLISECONDS)
                    with suppress(BlockingIOError):
                        os.read(changes, 65_536)
                    if (why := fault()) is not None:
                        self._ended_because = why
                        self._end_shell()
                        break
            os.close(changes)

        threading.Thread(target=watch, name="sandbox", daemon=True).start()


def make_folder(workspace: Path) -> Path:
    """A new folder outside the workspace, as a `Sandbox` needs it.

    Raises:
        DoesNotHold: none can be made.
    """
    for place in (tempfile.gettempdir(), *_TEMPORARY, str(Path.home())):
        if not Path(place).resolve().is_relative_to(workspace.resolve()):
            with suppress(OSError):
                folder = Path(tempfile.mkdtemp(prefix="watchkeeper-sandbox-", dir=place)).resolve()
                (folder / "tmp").mkdir()
                (folder / "secret").write_text("secret", encoding="ascii")
                return folder
    raise DoesNotHold("cannot create a temporary folder outside the workspace")


def secret_paths(environ: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """The files and folders that a confined shell cannot read, whether they exist or not. Call it in the host, which has
    all variables.

    Args:
        more: further ones, as the database's files.
    """
    homes = [environ.get("HOME", "")]
    with suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    if os.geteuid() == 0:
        with suppress(OSError):
            homes += [entry.path for entry in os.scandir("/home")]
    paths = [
        os.path.join(home, name) for home in dict.fromkeys(homes) if os.path.isabs(home) for name in SECRETS
    ]
    for variable, usual in (("XDG_CONFIG_HOME", ".config/"), ("XDG_DATA_HOME", ".local/share/")):
        if os.path.isabs(folder := environ.get(variable, "")):
            paths += [
                os.path.join(folder, name.removeprefix(usual)) for name in SECRETS if name.startswith(usual)
            ]
    for variable in SECRET_VARIABLES:
        paths += [path for path in environ.get(variable, "").split(os.pathsep) if os.path.isabs(path)]
    found: dict[str, None] = {}
    for folder in _TEMPORARY:
        paths += [str(path) for name in _SOCKET_FOLDERS for path in Path(folder).glob(name)]
    for path in (*paths, *SYSTEM_SECRETS, *more):
        folder, name = os.path.split(os.path.normpath(path))
        found[os.path.join(os.path.realpath(folder), name)] = None
        if os.path.islink(path):
            found[os.path.realpath(path)] = None
    return [path for path in found if path not in ("/", *homes)]


def find_bubblewrap(environ: Mapping[str, str], sandbox: Sandbox) -> str | None:
    """The path of bubblewrap, unless commands could replace it."""
    program = shutil.which("bwrap", path=environ.get("PATH", ""))
    names = (program, os.path.realpath(program)) if program is not None else ()
    return None if any(_is_below(name, one) for name in names for one in sandbox.writable) else program


def git_folders(workspace: Path) -> tuple[str | None, str | None]:
    """The common git folder of the repository that a workspace is in, and of a linked worktree its own one there.

    Agents can write what is in the workspace, so nothing there may name another folder: of a linked worktree or a
    submodule, the repository itself must name the worktree.
    """
    for folder in (workspace, *workspace.parents):
        entry = folder / ".git"
        if not os.path.lexists(entry):
            continue
        try:
            if entry.is_symlink():
                return None, None
            own = None
            if entry.is_file():
                named = entry.read_text()[:4096].removeprefix("gitdir:").strip()
                own = Path(os.path.realpath(folder / named))
                entry_of_own = (own / "gitdir").read_text()[:4096].strip()
                if own.parent.name != "worktrees" or os.path.realpath(own / entry_of_own) != str(entry):
                    return None, None
                entry = own.parent.parent
            known = all((entry / name).exists() for name in ("HEAD", "objects", "refs", "config"))
            return (str(entry), str(own) if own is not None else None) if known else (None, None)
        except (OSError, ValueError):
            return None, None
    return None, None


def _guarded(workspace: str, git: str | None, own: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Raises DoesNotHold."""
    found = [os.path.join(git, name) for name in GUARDED] if git is not None else []
    if own is not None:
        found += [os.path.join(own, name) for name in ("commondir", "gitdir", "config.worktree")]
    for path in found:
        if not os.path.lexists(path):  # otherwise a command could make it
            with suppress(OSError):
                Path(path).touch() if os.path.basename(path) == "config.worktree" else os.mkdir(path)
    if git is not None:
        top = workspace if own is not None else os.path.dirname(git)
        named = [os.path.normpath(os.path.join(top, path)) for path in _named_in_configuration(top, environ)]
        found += [path for path in named if _is_below(path, workspace) or _is_below(path, git)]
    # The file of a linked worktree or a submodule says which repository, and so which configuration, git uses.
    if os.path.isfile(file := os.path.join(workspace, ".git")):
        found.append(file)
    found = [path for path in dict.fromkeys(found) if os.path.lexists(path)]
    for path in found:
        if os.path.realpath(path) != path:
            raise DoesNotHold(
                f"{path} is a symbolic link or is reached through one, so it cannot be protected"
            )
    return tuple(found)


def _named_in_configuration(folder: str, environ: Mapping[str, str]) -> list[str]:
    """The files of git's configuration, and the folder of hooks that it names. They may be in the workspace."""
    try:
        said = subprocess.run(
            ["git", "config", "--list", "--show-origin", "-z"],
            cwd=folder, env={**environ}, capture_output=True, text=True, errors="surrogateescape", check=False,
        ).stdout.split("\0")  # fmt: skip
    except OSError:  # no git
        return []
    files = [origin.removeprefix("file:") for origin in said[0::2] if origin.startswith("file:")]
    hooks = [entry.partition("\n")[2] for entry in said[1::2] if entry.startswith("core.hookspath\n")]
    return files + hooks


def _sockets(writable: Sequence[str]) -> Iterator[str]:
    """The sockets of services that a path leads to."""
    with suppress(OSError), open(_SOCKETS, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            path = line.rstrip("\n").split(" ", 7)[-1] if line.count(" ") >= 7 else ""
            path = path[path.find("/") :] if "/" in path and "@" not in path else ""
            path = os.path.realpath(path) if path else ""
            if (
                path
                and stat.S_ISSOCK(_mode(path))
                and not any(_is_below(path, one) for one in (*writable, *_RUNTIME, "/dev"))
            ):
                yield path


def _denials() -> re.Pattern[str]:
    """What programs say when the system denies something, in English and in the language of this process."""
    words = {r"permission denied", r"read-only file system", r"operation not permitted", r"resource busy"}
    words |= {r"\bE(?:ACCES|ROFS|PERM)\b", r"invalid cross-device link"}
    with suppress(locale.Error):
        locale.setlocale(locale.LC_MESSAGES, "")
        words |= {
            re.escape(os.strerror(number)) for number in (errno.EACCES, errno.EROFS, errno.EPERM, errno.EBUSY)
        }
    return re.compile("|".join(sorted(words)), re.IGNORECASE)


def _unescaped(path: bytes) -> bytes:
    """A path as `mountinfo` writes it, with octal numbers for blanks."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), path)


def _mode(path: str) -> int:
    with suppress(OSError):
        return os.lstat(path).st_mode
    return 0


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
