"""Git worktrees: several agents that write work beside each other, and a merge is a step of the planner.

An agent's worktree is a folder of its own, on a branch of its own, from a recorded commit. What is durable, in this
order: a row that says what is made (`making`), the worktree, `ready`; and for a merge a row with the commit that the
user's branch is moved to (`merging`), the move, `merged`. After a crash the row is compared with what git has.

A merge is computed in git's object store, where it touches no file, and the user's branch is then fast-forwarded to its
result. So a conflict changes nothing. Nothing that is not both committed and merged is ever deleted.

All git commands of one repository run under a lock that each of them inherits: one that outlives a killed host is
waited for. Hooks do not run. A repository that defines filters or merge drivers of its own gets no worktrees.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.agents.tools.contract import Permission, PersonQuestion, ToolContext, ToolResult
from watchkeeper.records import proc
from watchkeeper.records.errors import fault_in, host_fault
from watchkeeper.records.messages import ToolSpec
from watchkeeper.records.states import AGENT_ENDED, TaskStatus
from watchkeeper.records.text import one_line, plural
from watchkeeper.store import agents, plans
from watchkeeper.store.agents import Worktree
from watchkeeper.store.commands import CONFLICT
from watchkeeper.store.driver import make_private
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.place import folder_beside
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import SessionStore, Transaction

if TYPE_CHECKING:
    from watchkeeper.agents.roles import Role

log = logging.getLogger(__name__)

GIT_SECONDS = 600.0
"""How long one git command may run."""
LOCK_SECONDS = 120.0
"""How long to wait for another process that works on the same repository."""
LOOK_SECONDS = 3.0
"""How often at most the diff of a working agent is computed."""
DIFF_BYTES = 200_000
"""A longer diff is cut on the screen."""
HUNK_CHARACTERS = 6_000
"""As much of the conflicting places is sent to a planner."""
QUESTION_CHARACTERS = 200_000
"""As much of the conflicting places is shown to a person."""
MOST_SHOWN = 100
"""Files whose conflicting places a person is shown; more are named."""
MOST_NAMED = 20
MERGE_TRIES = 3

BRANCHES = "watchkeeper"
"""Branches are `watchkeeper/<session>/<task>`."""

_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL")
_PASSED_TO_FETCH = ("SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE")
_SET = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}  # fmt: skip
_OPTIONS = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.bigFileThreshold=2m", "commit.gpgSign=false",
    "gc.auto=0", "maintenance.auto=false", "merge.autoStash=false", "merge.verifySignatures=false",
    "submodule.recurse=false", "core.quotePath=false", "core.safecrlf=false", "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
)  # fmt: skip
_UNDER_WAY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


class GitFailed(Exception):
    """A git command failed, or what was asked cannot be done. The message is for a person."""


class MergeConflict(GitFailed):
    """The changes contradict what the user's branch has; nothing was changed."""

    def __init__(self, message: str, question: PersonQuestion) -> None:
        super().__init__(message)
        self.question = question


# --- Running git --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repository:
    """Where the workspace is in its repository."""

    top: Path
    git_dir: Path
    """The git folder of the workspace's own checkout."""
    common: Path
    """What all worktrees share."""
    prefix: str
    """The workspace below `top`; empty where it is that."""


class Git:
    """Runs git commands, while it holds the repository's lock."""

    def __init__(
        self, environ: Mapping[str, str], lock: int | None = None, *, protocols: str = "none"
    ) -> None:
        """`protocols`: those that may be used to fetch, with a colon between them; none by default."""
        self._environ = {name: environ[name] for name in _PASSED if name in environ} | _SET
        self._environ["GIT_ALLOW_PROTOCOL"] = protocols
        if protocols != "none":
            self._environ |= {name: environ[name] for name in _PASSED_TO_FETCH if name in environ}
            self._environ["GIT_SSH_COMMAND"] = "ssh -oBatchMode=yes"
        self._lock = lock

    @classmethod
    @contextmanager
    def exclusive(cls, common: Path, environ: Mapping[str, str]) -> Iterator[Git]:
        """The only one that changes a repository. Its commands inherit the lock.

        Raises:
            GitFailed: the repository is gone, cannot be written, or another process keeps it too long.
        """
        try:
            lock = os.open(common / "watchkeeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise GitFailed(f"cannot write to the repository {common}: {error.strerror}") from error
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise GitFailed(
                            f"another process is using {common}; try again when it has finished"
                        ) from None
                    time.sleep(0.05)
            yield cls(environ, lock)
        finally:
            os.close(lock)

    def __call__(self, folder: Path, *arguments: str, git_dir: Path | None = None, **options: Any) -> str:
        """Run one command; returns its output.

        Raises:
            GitFailed: it failed.
        """
        code, output, errors = self.run(folder, *arguments, git_dir=git_dir, **options)
        if code != 0:
            raise GitFailed(f"git {arguments[0]}: {one_line(errors.strip() or f'exit code {code}', 600)}")
        return output

    def succeeds(self, folder: Path, *arguments: str, git_dir: Path | None = None) -> bool:
        """Whether a command ends with 0."""
        return self.run(folder, *arguments, git_dir=git_dir)[0] == 0

    def run(
        self, folder: Path, *arguments: str, git_dir: Path | None = None, text: str = "", index: str = "",
        config: Sequence[str] = (), most_bytes: int | None = None,
    ) -> tuple[int, str, str]:  # fmt: skip
        """Run one command in a folder; returns exit code, output and errors. `text` is its input, `most_bytes` of its
        output are read.

        Raises:
            GitFailed: it cannot be run, took too long, or met a shortage of the machine (a `HostFault` is the cause).
        """
        where = ["--git-dir", str(git_dir), "--work-tree", str(folder)] if git_dir is not None else []
        options = [part for one in (*_OPTIONS, *config) for part in ("-c", one)]
        environ = self._environ | ({"GIT_INDEX_FILE": index} if index else {})
        try:
            process = subprocess.Popen(
                ["git", *options, *where, *arguments], cwd=folder, env=environ, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                pass_fds=(self._lock,) if self._lock is not None else (),
            )  # fmt: skip
        except OSError as error:
            raise GitFailed(f"cannot run git in {folder}: {error.strerror}") from error
        cut = False
        with process:
            try:
                if most_bytes is not None:
                    assert process.stdout is not None
                    output, errors = process.stdout.read(most_bytes), b""
                    if cut := len(output) == most_bytes:
                        process.kill()
                    else:
                        errors = process.communicate(timeout=GIT_SECONDS)[1]
                else:
                    output, errors = process.communicate(
                        text.encode("utf-8", "surrogateescape"), timeout=GIT_SECONDS
                    )
            except subprocess.TimeoutExpired as late:
                process.kill()
                raise GitFailed(f"git {arguments[0]} took more than {GIT_SECONDS:.0f} s") from late
        reach("worktree.git")
        told = errors.decode("utf-8", "replace")
        if process.returncode and not cut and (fault := fault_in(told)) is not None:
            raise GitFailed(f"git {arguments[0]}: {one_line(told.strip(), 600)}") from fault
        return 0 if cut else process.returncode, output.decode("utf-8", "surrogateescape"), told


def find_repository(workspace: Path, environ: Mapping[str, str]) -> Repository | str:
    """The repository that a workspace is in, or why its agents cannot have worktrees; empty where there is none."""
    git = Git(environ)
    if shutil.which("git", path=environ.get("PATH")) is None:
        return ""
    code, output, errors = git.run(
        workspace, "rev-parse", "--path-format=absolute", "--show-toplevel", "--absolute-git-dir",
        "--git-common-dir", "--show-prefix",
    )  # fmt: skip
    if code != 0:
        return "" if "not a git repository" in errors else one_line(errors, 300)
    top, git_dir, common, prefix = output.split("\n")[:4]
    prefix = prefix.rstrip("/")
    if not git.succeeds(workspace, "rev-parse", "-q", "--verify", "HEAD^{commit}"):
        return "the repository has no commits yet"
    if prefix and not git.succeeds(workspace, "cat-file", "-e", f"HEAD:{prefix}"):
        return "the latest commit does not contain the workspace folder"
    if own := _own_programs(git, workspace):
        return f"the repository's configuration starts programs, which Watchkeeper does not allow: {own}"
    return Repository(Path(top), Path(git_dir), Path(common), prefix)


def _own_programs(git: Git, workspace: Path) -> str:
    """The filters and merge drivers that the repository's own configuration defines, which an agent or the one who packed
    the repository may have written. Those of the user's own configuration are the user's."""
    code, output, errors = git.run(
        workspace, "config", "--show-scope", "--name-only", "-z", "--get-regexp",
        r"^(filter\..*\.(clean|smudge|process)|merge\..*\.driver)$",
    )  # fmt: skip
    if code not in (0, 1):
        return one_line(errors, 200)
    fields = output.split("\0")
    named = {
        name for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in ("local", "worktree")
    }
    return ", ".join(sorted(named)[:5])


# --- What is done with one worktree -------------------------------------------------------------------------


def _admin(tree: Worktree) -> Path:
    """Where git keeps the state of a worktree. Git gets this place, so that what an agent may do to the file `.git`
    in its folder changes nothing."""
    return Path(tree.repository) / "worktrees" / Path(tree.folder).name


def _reference(tree: Worktree) -> str:
    return f"refs/heads/{tree.branch}"


def make(git: Git, tree: Worktree) -> None:
    """Make a worktree whose row is `making`. What an earlier try left is removed first: no agent has been in it.

    Raises:
        GitFailed: it cannot be made; what there was is as it was.
    """
    unmake(git, tree)
    common, folder = Path(tree.repository), Path(tree.folder)
    git(common, "worktree", "add", "-q", "--no-track", "-b", tree.branch, str(folder), tree.base_commit)
    if not (_admin(tree) / "HEAD").is_file():
        raise GitFailed(f"git did not create {folder} as expected")


def unmake(git: Git, tree: Worktree) -> None:
    """Remove what is there of a worktree whose row is `making`."""
    common = Path(tree.repository)
    shutil.rmtree(tree.folder, ignore_errors=True)
    shutil.rmtree(_admin(tree), ignore_errors=True)
    (common / f"{_reference(tree)}.lock").unlink(missing_ok=True)
    if git.succeeds(common, "rev-parse", "-q", "--verify", _reference(tree)):
        # Refused where the branch has more than the worktree began with.
        git(common, "update-ref", "-d", _reference(tree), tree.base_commit)


def is_there(git: Git, tree: Worktree) -> bool:
    """Whether anything is left of a worktree: its folder, or its branch."""
    return os.path.lexists(tree.folder) or git.succeeds(
        Path(tree.repository), "rev-parse", "-q", "--verify", _reference(tree)
    )


def restore(git: Git, tree: Worktree) -> None:
    """Make a worktree that is `ready` usable again, if its folder or git's state of it is missing.

    Raises:
        GitFailed: its branch is gone too.
    """
    folder, admin = Path(tree.folder), _admin(tree)
    pointer = folder / ".git"
    if (admin / "HEAD").is_file() and folder.is_dir():
        if not pointer.is_file() or pointer.read_text("utf-8", "replace").strip() != f"gitdir: {admin}":
            if pointer.is_dir() and not pointer.is_symlink():
                raise GitFailed(f"{pointer} is now a separate repository; move it elsewhere")
            pointer.unlink(missing_ok=True)
            pointer.write_text(f"gitdir: {admin}\n", "utf-8")
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise GitFailed(f"{folder} is no longer a worktree; check its content, then move it elsewhere")
    shutil.rmtree(admin, ignore_errors=True)
    git(Path(tree.repository), "worktree", "add", "-q", "-f", tree.folder, tree.branch)


def changes(git: Git, tree: Worktree) -> tuple[int, str]:
    """What an agent has changed since the recorded commit, new files included: how many files, and `git diff` of it.

    The agent's own index is not touched.
    """
    folder, admin = Path(tree.folder), _admin(tree)
    with tempfile.TemporaryDirectory(prefix="watchkeeper-") as scratch:
        index = os.path.join(scratch, "index")
        with suppress(FileNotFoundError):
            shutil.copyfile(admin / "index", index)
        # Fails where an agent made a repository inside its folder; the others are added all the same.
        git.run(folder, "add", "--intent-to-add", "--ignore-errors", ".", git_dir=admin, index=index)
        _, text, _ = git.run(
            folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "--numstat", "-p",
            tree.base_commit, git_dir=admin, index=index, most_bytes=DIFF_BYTES,
        )  # fmt: skip
    numbers, _, patch = text.partition("\n\n")
    if len(text.encode("utf-8", "surrogateescape")) >= DIFF_BYTES:
        patch += "\n[… truncated; run `git diff` in the worktree for the full diff]"
    return len(numbers.splitlines()), patch


def commit_rest(git: Git, tree: Worktree, message: str) -> str:
    """Commit what an agent that does not run left in its worktree; returns the newest commit, which its branch has.

    Raises:
        GitFailed: its worktree is in the middle of a merge, has a repository inside, or left the branch.
    """
    folder, admin = Path(tree.folder), _admin(tree)
    (admin / "index.lock").unlink(
        missing_ok=True
    )  # of a killed git: no agent runs here, and we hold the lock
    if git(folder, "ls-files", "--unmerged", git_dir=admin):
        raise GitFailed(f"a merge is in progress in the worktree {folder}")
    if left := _status(git, folder, admin):
        if inside := [entry[3:] for entry in left if entry.startswith("?? ") and entry.endswith("/")]:
            # Git would commit the name of its commit, and none of its files.
            raise GitFailed(
                f"{_named(inside)} in {folder} is a separate git repository, and its files cannot be merged. The agent"
                " must remove its .git, or list it in .gitignore"
            )
        git(folder, "add", "-A", git_dir=admin)
        git(folder, "commit", "-q", "--no-verify", "--allow-empty", "-F", "-", git_dir=admin, text=message,
            config=_identity(git, folder, admin))  # fmt: skip
    tip = git(folder, "rev-parse", "HEAD", git_dir=admin).strip()
    known = git.run(folder, "rev-parse", "-q", "--verify", _reference(tree), git_dir=admin)[1].strip()
    if known != tip:
        if known and not git.succeeds(folder, "merge-base", "--is-ancestor", known, tip, git_dir=admin):
            raise GitFailed(
                f"the worktree {folder} is no longer on its branch {tree.branch}; merge it manually"
            )
        git(folder, "update-ref", _reference(tree), tip, known or "0" * len(tip), git_dir=admin)
    return tip


def _status(git: Git, folder: Path, git_dir: Path, *options: str) -> list[str]:
    """What is not committed, an entry each."""
    output = git(folder, "status", "--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=dirty", "--no-renames",
                 *options, git_dir=git_dir)  # fmt: skip
    return [entry for entry in output.split("\0") if entry]


def _submodules(git: Git, folder: Path, git_dir: Path) -> list[str]:
    """The places of submodules and other repositories, in which git looks for no changes."""
    entries = git(folder, "ls-files", "-s", "-z", git_dir=git_dir).split("\0")
    return [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(files for _, _, files in os.walk(folder))


def _identity(git: Git, folder: Path, git_dir: Path) -> list[str]:
    """Options for a commit of a user without a name in git."""
    if git.succeeds(folder, "config", "--get", "user.email", git_dir=git_dir):
        return []
    user = re.sub(r"[^\w.-]", "", os.environ.get("USER", "")) or "user"
    return [f"user.name={user}", f"user.email={user}@localhost"]


@dataclass(frozen=True, slots=True)
class Combined:
    """What a merge in the object store gives."""

    commit: str
    tree: str
    """The tree of the last merge; empty where each was a fast-forward."""
    conflicts: tuple[str, ...] = ()
    """Files that hold both sides between markers, or that git cannot merge."""
    said: tuple[str, ...] = ()
    """What git says of the conflicts."""
    stages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each file that conflicts in the last merge: mode and blob of the base (1), ours (2) and theirs (3)."""
    kinds: frozenset[str] = frozenset()
    """Git's names of the conflicts: `contents`, `modify/delete`, …"""


def combine(git: Git, common: Path, onto: str, tips: Sequence[tuple[str, str]]) -> Combined:
    """Merge commits in the object store; `tips` are a message and a commit each."""
    conflicts: dict[str, None] = {}
    stages: dict[str, dict[str, str]] = {}
    kinds: set[str] = set()
    said, tree = [], ""
    for message, tip in tips:
        if git.succeeds(common, "merge-base", "--is-ancestor", tip, onto):
            continue
        if git.succeeds(common, "merge-base", "--is-ancestor", onto, tip):
            onto = tip
            continue
        code, output, errors = git.run(common, "merge-tree", "--write-tree", "-z", "--messages", onto, tip)
        if code not in (0, 1) or not output:
            raise GitFailed(
                "this version of git cannot merge without a checkout; install git 2.38 or later"
                if "usage:" in errors or "not a valid" in errors.lower()
                else f"git merge-tree: {one_line(errors, 600)}"
            )
        head, _, rest = output.partition("\0\0")
        tree, *entries = head.split("\0")
        stages = {}
        if code == 1:
            for about, _, file in (one.partition("\t") for one in entries if one):
                blob, _, stage = about.rpartition(" ")
                stages.setdefault(file, {})[stage] = blob
            conflicts.update(dict.fromkeys(stages))
            for line in rest.split("\0"):
                if line.startswith("CONFLICT (") and line.endswith(")"):
                    kinds.add(line[len("CONFLICT (") : -1])
                elif line.startswith("CONFLICT") and ": " in line:
                    said.append(line.strip())
        onto = git(common, "commit-tree", tree, "-p", onto, "-p", tip, text=message,
                   config=_identity(git, common, common)).strip()  # fmt: skip
    return Combined(onto, tree, tuple(conflicts), tuple(said), stages, frozenset(kinds))


ONE_SIDE = frozenset({"contents", "modify/delete", "binary"})
"""Conflicts in which a side can be kept; those of renames and folders need more than a choice."""
_FILES = ("100644", "100755")


def keep_side(git: Git, common: Path, found: Combined, side: str) -> str:
    """The tree of a merge whose conflicting places are all of one side, `ours` or `theirs`; what does not conflict is
    of both."""
    kept = "2" if side == "ours" else "3"
    with tempfile.TemporaryDirectory(prefix="watchkeeper-") as scratch:
        index = os.path.join(scratch, "index")
        git(common, "read-tree", found.tree, index=index)
        entries = []
        for file, stages in found.stages.items():
            entry = stages.get(kept)
            if (
                entry is not None
                and len(stages) == 3
                and all(one.split()[0] in _FILES for one in stages.values())
            ):
                entry = f"{entry.split()[0]} {_merged_blob(git, common, stages, side, scratch) or entry.split()[1]}"
            entries.append(
                f"{entry}\t{file}\0" if entry is not None else f"0 {'0' * len(found.commit)}\t{file}\0"
            )
        git(common, "update-index", "-z", "--index-info", index=index, text="".join(entries))
        return git(common, "write-tree", index=index).strip()


def _merged_blob(git: Git, common: Path, stages: Mapping[str, str], side: str, scratch: str) -> str:
    """A text merged with one side's conflicting places; empty where it is no text."""
    files = []
    for stage in "213":
        _, text, _ = git.run(common, "cat-file", "blob", stages[stage].split()[1])
        files.append(os.path.join(scratch, stage))
        Path(files[-1]).write_bytes(text.encode("utf-8", "surrogateescape"))
    code, merged, _ = git.run(common, "merge-file", "-p", f"--{side}", *files)
    return git(common, "hash-object", "-w", "--stdin", text=merged).strip() if code == 0 else ""


def has_markers(git: Git, common: Path, commit: str, file: str) -> bool:
    """Whether a file of a commit still has conflict markers."""
    code, text, _ = git.run(common, "cat-file", "blob", f"{commit}:{file}", most_bytes=10_000_000)
    return code == 0 and re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE) is not None


def hunks(git: Git, common: Path, tree: str, file: str) -> str:
    """The conflicting places of a file of a tree, with their markers; empty where it has none."""
    _, text, _ = git.run(common, "cat-file", "blob", f"{tree}:{file}", most_bytes=2_000_000)
    if "\0" in text:
        return ""
    return "\n".join(re.findall(r"^<{7} .*?^>{7} .*?$", text, re.MULTILINE | re.DOTALL))


def _conflict(git: Git, common: Path, tree: Worktree, head: str, tip: str, found: Combined) -> MergeConflict:
    """What the planner gets of a conflict, and what a person is asked."""
    ours, theirs = tree.target or "the workspace commit", tree.branch

    def named(text: str) -> str:
        return text.replace(head, f"ours ({ours})").replace(tip, f"theirs ({theirs})")

    def author(of: str, other: str, file: str) -> str:
        return git.run(
            common, "log", "-1", "--no-merges", "--format=%h %an: %s", f"{other}..{of}", "--", f":(top,literal){file}"
        )[1].strip() or git.run(common, "log", "-1", "--format=%h %an: %s", of)[1].strip()  # fmt: skip

    left = QUESTION_CHARACTERS
    parts, conflicts = [], []
    for file in found.conflicts[:MOST_SHOWN]:
        text = named(hunks(git, common, found.tree, file))
        parts.append(f"--- {file}\n{text}")
        text = text or "\n".join(named(line) for line in found.said if file in line)
        if len(text) > left:
            text = f"{text[:left]}\n[… truncated; run `git diff {ours}...{theirs}` for the full diff]"
        left -= min(left, len(text))
        about = {"ours": author(head, tip, file), "theirs": author(tip, head, file)}
        conflicts.append({"file": file, **about, "text": text})
    if more := found.conflicts[MOST_SHOWN:]:
        conflicts.append(
            {"file": f"{len(more)} more files", "ours": ours, "theirs": theirs, "text": "\n".join(more)}
        )
    whole = "\n".join(parts)
    whole = whole if len(whole) <= HUNK_CHARACTERS else whole[:HUNK_CHARACTERS] + "\n[…]"
    where = f"{theirs} conflicts with {ours} in {_named(found.conflicts)}"
    message = "\n".join([f"{where}. Nothing was changed.", *map(named, found.said), whole])
    one_side = bool(found.kinds) and found.kinds <= ONE_SIDE
    question = PersonQuestion(
        CONFLICT,
        {"task": "", "conflicts": conflicts, "one_side": one_side},
        one_line(_readable(where), 500),
        hashlib.sha256(repr(sorted((file, sorted(one.items())) for file, one in found.stages.items())).encode(
            "utf-8", "surrogateescape"
        )).hexdigest(),
    )  # fmt: skip
    return MergeConflict(_readable(message), _readable(question))


def plan_merge(
    git: Git, repository: Repository, tree: Worktree, message: str, keep: str = "", answered: str = ""
) -> str:
    """Commit what is left and compute the merge; returns the commit to which the user's branch is to be moved. No file
    of the user's folder is touched.

    `keep`: the side, `ours` or `theirs`, that a person chose for the conflict with the digest `answered`.

    Raises:
        MergeConflict: with the conflicting places.
        GitFailed: the user's folder is not ready for it.
    """
    top, git_dir, common = repository.top, repository.git_dir, repository.common
    tip = commit_rest(git, tree, message)
    if left := [file for file in tree.unresolved if has_markers(git, common, tip, file)]:
        raise GitFailed(
            f"conflict markers remain in {_named(left)}; resolve them in the task's worktree first"
        )
    if under_way := [name for name in _UNDER_WAY if (git_dir / name).exists()]:
        raise GitFailed(
            f"a git operation is in progress in the user's folder {top} ({under_way[0]}); merge when it has finished"
        )
    on = git.run(top, "symbolic-ref", "-q", "--short", "HEAD", git_dir=git_dir)[1].strip()
    if on != tree.target:
        raise GitFailed(
            f"the user's folder is on {on or 'no branch'}, but the work started on "
            f"{tree.target or 'no branch'}. Merge {tree.branch} manually, or wait for the user to switch back"
        )
    head = git(top, "rev-parse", "HEAD", git_dir=git_dir).strip()
    found = combine(git, common, head, [(f"Merge {message}", tip)])
    merged = found.commit
    if found.conflicts:
        conflict = _conflict(git, common, tree, head, tip, found)
        if not keep or conflict.question.digest != answered or not conflict.question.arguments["one_side"]:
            raise conflict
        kept = f"Merge {message}\n\nFor conflicting changes, {keep} is kept, as the user chose."
        merged = git(common, "commit-tree", keep_side(git, common, found, keep), "-p", head, "-p", tip, text=kept,
                     config=_identity(git, common, common)).strip()  # fmt: skip
    touched = set(
        git(common, "diff-tree", "-r", "-z", "--name-only", "--no-renames", head, merged).split("\0")
    ) - {""}
    dirty = [entry[3:] for entry in _status(git, top, git_dir) if _meets(entry[3:], touched)]
    if dirty:
        raise GitFailed(
            f"the user's folder has uncommitted changes to {_named(dirty)}, which the merge would overwrite."
            " Nothing was changed. The user must commit or stash them first"
        )
    return merged


def _meets(path: str, touched: set[str]) -> bool:
    """Whether a changed path, or an untracked folder, is among those that a merge writes."""
    return path in touched or (
        path.endswith("/") and any(one.startswith(path) for one in touched)
    )  # a repository inside the folder


def fast_forward(git: Git, folder: Path, git_dir: Path, commit: str) -> None:
    """Move a checkout's branch and files to a descendant of its commit. Git refuses where that would overwrite a change
    that is not committed, and then changes nothing."""
    on = git.run(folder, "symbolic-ref", "-q", "--short", "HEAD", git_dir=git_dir)[1].strip()
    git(folder, "merge", "-q", "--ff-only", "--no-overwrite-ignore", "--no-autostash", "--no-verify-signatures", "--no-stat",
        commit, git_dir=git_dir, config=[f"branch.{on}.mergeOptions="] if on else [])  # fmt: skip


def undo_cut_merge(git: Git, repository: Repository, commit: str) -> bool:
    """After a crash: whether the user's branch has the commit. If not, files that a killed git had written already
    are put back, and no others."""
    top, git_dir = repository.top, repository.git_dir
    if git.succeeds(top, "merge-base", "--is-ancestor", commit, "HEAD", git_dir=git_dir):
        return True
    lock = git_dir / "index.lock"
    raw = git(top, "diff-tree", "-r", "-z", "--no-renames", "HEAD", commit, git_dir=git_dir).split("\0")
    if not lock.exists():
        # Killed before git began, or after it wrote the index: then the branch alone is missing.
        changed = git(top, "diff-index", "--cached", "-z", "--name-only", commit, git_dir=git_dir).split("\0")
        if set(raw[1::2]) & set(changed):
            return False
        fast_forward(git, top, git_dir, commit)
        return True
    if _is_git_at_work(top):
        return False
    partly: list[tuple[str, bool]] = []
    for about, path in zip(raw[::2], raw[1::2], strict=False):
        old, new = about.split()[2:4]
        is_new = not old.strip("0")
        file = top / path
        try:
            held = file.read_bytes() if file.is_file() and not file.is_symlink() else None
        except OSError:
            continue
        if held is None and (is_new or file.is_symlink()):
            continue
        if held is not None:
            code, text, _ = (
                git.run(top, "cat-file", "blob", new, git_dir=git_dir) if new.strip("0") else (1, "", "")
            )
            ours = code == 0 and text.encode("utf-8", "surrogateescape").startswith(held)
            was = (
                ""
                if is_new
                else git(top, "hash-object", f"--path={path}", str(file), git_dir=git_dir).strip()
            )
            if not ours or was == old:
                continue
        partly.append((path, is_new))
    lock.unlink()
    for path, is_new in partly:
        if is_new:
            (top / path).unlink()
    olds = [path for path, is_new in partly if not is_new]
    if olds:
        git(top, "checkout-index", "-f", "-z", "--stdin", git_dir=git_dir, text="\0".join(olds) + "\0")
    return False


def _is_git_at_work(top: Path) -> bool:
    """Whether a git process runs in a folder."""
    return any(
        proc.file_of(pid, "comm").strip() == b"git" and proc.folder_of(pid) == str(top)
        for pid in proc.processes()
    )


def remove(git: Git, tree: Worktree) -> str:
    """Remove a worktree and its branch, if all that they hold is committed and merged; else why they are kept."""
    common, folder, admin = Path(tree.repository), Path(tree.folder), _admin(tree)
    tip = git.run(common, "rev-parse", "-q", "--verify", _reference(tree))[1].strip()
    if folder.exists():
        if not (admin / "HEAD").is_file():
            return f"{folder} is no longer a worktree"
        head = git(folder, "rev-parse", "HEAD", git_dir=admin).strip()
        if head != tip:
            return f"{folder} is no longer on its branch {tree.branch}"
        if left := _status(git, folder, admin, "--ignored"):
            what = (
                "that git ignores" if all(one.startswith("!!") for one in left) else "that are not committed"
            )
            return f"{folder} has {plural(len(left), 'file')} {what}"
        if inside := [file for file in _submodules(git, folder, admin) if _holds_files(folder / file)]:
            return f"{folder} has files in the submodule path {_named(inside)}"
    into = f"refs/heads/{tree.target}" if tree.target else "HEAD"
    if tip and not git.succeeds(common, "merge-base", "--is-ancestor", tip, into):
        return f"{tree.branch} is not merged; run `git merge {tree.branch}`"
    if folder.exists():
        git(common, "worktree", "remove", str(folder))
    if tip:
        git(common, "update-ref", "-d", _reference(tree), tip)
    return ""


def clean_up(tree: Worktree, environ: Mapping[str, str]) -> str:
    """Remove a worktree of a session that has ended, if nothing is lost by that; else one line that says why it is
    kept. Never raises for what git says."""
    if not Path(tree.repository).is_dir():
        return ""
    try:
        with Git.exclusive(Path(tree.repository), environ) as git:
            return remove(git, tree)
    except (GitFailed, OSError) as error:
        return f"{tree.folder}: {one_line(str(error), 300)}"


T = TypeVar("T")


def _readable(value: T) -> T:
    """Text of files and names that are no UTF-8, for the store: what cannot be read is replaced."""
    found: Any = value
    if isinstance(found, str):
        found = found.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    elif isinstance(found, PersonQuestion):
        found = replace(found, arguments=_readable(found.arguments), note=_readable(found.note))
    elif isinstance(found, dict):
        found = {name: _readable(one) for name, one in found.items()}
    elif isinstance(found, list):
        found = [_readable(one) for one in found]
    return found  # type: ignore[no-any-return]


def _named(files: Sequence[str]) -> str:
    more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
    return _readable(", ".join(files[:MOST_NAMED]) + more)


# --- The worktrees of a session -----------------------------------------------------------------------------


class Worktrees:
    """The worktrees of one session, as rows and as folders.

    They are in a folder `worktrees` beside the database: outside the workspace, so that `git status` there shows
    nothing of them, and not below `.git`, where a sandbox of an agent program may forbid to write.
    """

    def __init__(
        self, store: SessionStore, workspace: Path, environ: Mapping[str, str], redact: Callable[[Any], Any]
    ) -> None:
        self._store = store
        self._workspace = workspace
        self._environ = dict(environ)
        self._redact = redact
        self._looked: dict[str, float] = {}
        self._looking: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()
        self._writers: dict[str, str] = {}

    @property
    def workspace(self) -> Path:
        """The user's folder."""
        return self._workspace

    def folder_of(self, task_id: str | None) -> Path:
        """Where the agents of a task work: its worktree, or the workspace."""
        tree = agents.load_worktree(self._store, task_id) if task_id is not None else None
        return tree.place if tree is not None and tree.is_there else self._workspace

    async def open(self, task: Task, role: Role, *, program: bool) -> Path:
        """The folder for an attempt at a task. It has a worktree if the task or the role says so; by default for an
        agent program whose role may write, and for a task that builds on changes that are not merged.

        Raises:
            GitFailed: it must have one, and git cannot make it.
        """
        tree = agents.load_worktree(self._store, task.id)
        if (
            tree is not None
            and tree.status != "making"
            and await self._locked(tree.repository, is_there, tree)
        ):
            await self.ensure(task.id)
            return tree.place
        chosen = task.isolation or role.isolation
        before = self._unmerged(task)
        writes = role.may_call("write") or role.may_call("edit")
        if chosen == "none" or (chosen is None and not before and not (program and writes)):
            return self._workspace
        repository = await asyncio.to_thread(find_repository, self._workspace, self._environ)
        if isinstance(repository, str):
            why = repository or ("the workspace is not in a git repository" if chosen else "")
            if why and why not in self._warned:
                self._warned.add(why)
                await self._warn(f"agents work directly in the workspace, without worktrees: {why}", task.id)
            return self._workspace
        made, dirty = await asyncio.to_thread(self._begin, repository, task, before, tree)
        await self._save(made)
        reach("worktree.recorded")
        await self._locked(made.repository, make, made)
        ready = replace(made, status="ready")

        def write(tx: Transaction) -> None:
            agents.save_worktree(tx, ready)
            tx.event("worktree.ready", task_id=task.id, branch=made.branch, folder=made.folder, commit=made.base_commit,
                     uncommitted=dirty)  # fmt: skip
            if dirty:
                tx.event("host.warning", task_id=task.id, text=(
                    f"{task.name} works in a worktree from commit {made.base_commit[:10]};"
                    f" {plural(dirty, 'uncommitted file')} in your folder {'is' if dirty == 1 else 'are'} not included"
                ))  # fmt: skip

        await self._store.commit(write)
        reach("worktree.ready")
        return ready.place

    async def ensure(self, task_id: str | None) -> None:
        """Make the worktree of a task usable, if it has one: after a crash, or where its folder was deleted.

        Raises:
            GitFailed: it cannot be.
        """
        tree = agents.load_worktree(self._store, task_id) if task_id is not None else None
        if tree is not None and tree.is_there:
            await self._locked(tree.repository, restore, tree)

    def note_for(self, task: Task) -> str:
        """What an agent reads about its worktree; empty where it has none."""
        tree = agents.load_worktree(self._store, task.id)
        if tree is None or not tree.is_there:
            return ""
        text = (
            f"You are working in {tree.place}, a git worktree on the branch {tree.branch}, from commit "
            f"{tree.base_commit[:10]}. Change files only there, not in {self._workspace}: other agents are working at the same "
            "time. Stay on that branch. You do not need to commit: your changes are committed and merged later."
        )
        if tree.unresolved:
            text += (
                f"\nEarlier tasks changed the same lines. {_named(tree.unresolved)} contain both versions between"
                " conflict markers (<<<<<<<, >>>>>>>): resolve these first."
            )
        return text

    def look(self, task_id: str | None) -> None:
        """Bring the stored diff of a task up to date soon, in the background, at most every few seconds."""
        now = time.monotonic()
        if (
            task_id is None
            or task_id in self._looking
            or now - self._looked.get(task_id, -LOOK_SECONDS) < LOOK_SECONDS
        ):
            return
        self._looked[task_id] = now
        task = asyncio.create_task(self.refresh(task_id))
        self._background.add(task)
        task.add_done_callback(self._looked_at)

    def _looked_at(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("diff not stored: %s", error)  # the host ends by itself where it cannot write

    async def refresh(self, task_id: str | None) -> None:
        """Store what the agent of a task has changed so far."""
        tree = agents.load_worktree(self._store, task_id) if task_id is not None else None
        if tree is None or not tree.is_there or tree.task_id in self._looking:
            return
        self._looking.add(tree.task_id)
        try:
            files, text = await asyncio.to_thread(changes, Git(self._environ), tree)
        except (GitFailed, OSError) as error:
            log.warning("the diff of %s: %s", tree.folder, error)
            return
        finally:
            self._looking.discard(tree.task_id)
        text = self._redact(text.encode("utf-8", "replace").decode())
        if (files, text) != (tree.files_changed, tree.diff):
            await self._store.commit(
                partial(agents.note_changes, task_id=tree.task_id, files_changed=files, diff=text)
            )

    async def merge(self, task: Task, keep: str = "", answered: str = "") -> str:
        """Merge what a task changed into the user's branch; says what was done. Doing it twice does it once.

        `keep` and `answered`: see `plan_merge`.

        Raises:
            GitFailed: it was not merged, with the reason, and nothing in the user's folder was changed.
        """
        tree = agents.load_worktree(self._store, task.id)
        if tree is None or not tree.is_there:
            if tree is not None and tree.merge_commit is not None:
                return f"{task.name} is merged"
            raise GitFailed(f"{task.name} has no worktree: its agent's files are already in the workspace")
        if task.status is TaskStatus.RUNNING:
            raise GitFailed(f"{task.name} is still running; merge it when it has finished")
        if await self._settle(tree):
            return f"{task.name} is merged"
        title = one_line(self._redact(task.title), 100)
        message = f"{one_line(task.name, 60)}: {title}"
        await self.ensure(task.id)
        for last in (False,) * (MERGE_TRIES - 1) + (True,):
            repository = await self._repository()
            try:
                commit = await self._locked(
                    tree.repository, plan_merge, repository, tree, message, keep, answered
                )
            except MergeConflict as conflict:
                conflict.question.arguments["task"] = task.name
                if conflict.question.digest == answered:
                    raise
                text = one_line(str(conflict).partition("\n")[0], 500)
                await self._store.commit(
                    partial(Transaction.event, kind="worktree.conflict", task_id=task.id, text=text)
                )
                raise
            await self._save(replace(tree, status="merging", merge_commit=commit))
            reach("worktree.merging")
            try:
                await self._locked(tree.repository, fast_forward, repository.top, repository.git_dir, commit)
            except GitFailed:
                await self._save(replace(tree, status="ready", merge_commit=None))
                if last:
                    raise
                continue
            break
        merging = replace(tree, status="merging", merge_commit=commit)
        await self._settle(merging)
        files = f": {plural(tree.files_changed, 'file')}" if tree.files_changed else ""
        kept = f"; conflicts resolved with {keep}" if keep else ""
        return f"{task.name} is merged into {tree.target or 'the workspace'} ({commit[:10]}){files}{kept}"

    async def recover(self) -> None:
        """After a crash: find out whether the merges that were under way are done, and put back what was half done."""
        for tree in agents.load_worktrees(self._store, self._store.session_id):
            try:
                if tree.status == "merging":
                    await self._settle(tree)
                elif tree.status == "making":
                    await self._locked(tree.repository, unmake, tree)
                    await self._store.commit(partial(agents.forget_worktree, task_id=tree.task_id))
            except (GitFailed, OSError) as error:
                await self._warn(f"worktree {tree.folder}: {one_line(str(error), 300)}", tree.task_id)

    async def end(self) -> None:
        """The session has ended: commit what agents left, remove what is merged, and say what is kept."""
        for tree in agents.load_worktrees(self._store, self._store.session_id):
            if not tree.is_there:
                continue
            task = plans.load_task(self._store, tree.task_id)
            name = one_line(task.name if task is not None else tree.branch, 60)
            with suppress(GitFailed, OSError):
                if await self._settle(tree):
                    tree = replace(tree, status="merged")
                title = one_line(self._redact(task.title), 100) if task is not None else ""
                await self._locked(tree.repository, commit_rest, tree, f"{name}: {title}")
            kept = await asyncio.to_thread(clean_up, tree, self._environ)
            if kept:
                await self._warn(f"kept the worktree of {name}: {kept}", tree.task_id)
            else:
                await self._store.commit(partial(_removed, tree=tree))

    async def wrote(self, agent_id: str, name: str, task_id: str | None, path: str) -> None:
        """An agent wrote a file. Warn, once for each file, if another one that has not ended wrote it before."""
        whole = _absolute(self.folder_of(task_id), path)
        other = self._writers.get(whole, agent_id)
        self._writers[whole] = agent_id
        if other == agent_id or f"{whole}\0" in self._warned:
            return
        before = agents.load(self._store, other)
        if before is None or before.status in AGENT_ENDED:
            return
        self._warned.add(f"{whole}\0")
        await self._warn(
            f"{before.name} and {name} both write {one_line(path, 300)}; the later write wins", task_id
        )

    async def aclose(self) -> None:
        """Wait for what runs in the background."""
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    # --- parts ------------------------------------------------------------------------------------------------

    def _unmerged(self, task: Task) -> list[Worktree]:
        """The worktrees of the tasks that a task depends on, as far as they are not merged."""
        found = (agents.load_worktree(self._store, need) for need in task.depends_on)
        return [tree for tree in found if tree is not None and tree.status in ("ready", "merging")]

    def _begin(
        self, repository: Repository, task: Task, before: Sequence[Worktree], known: Worktree | None
    ) -> tuple[Worktree, int]:
        """What a new worktree is to be, and how many files of the user are changed and not committed."""
        with Git.exclusive(repository.common, self._environ) as git:
            if known is not None and known.status == "making":
                unmake(git, known)
            top = repository.top
            head = git(top, "rev-parse", "HEAD", git_dir=repository.git_dir).strip()
            target = git.run(top, "symbolic-ref", "-q", "--short", "HEAD", git_dir=repository.git_dir)[
                1
            ].strip()
            tips = []
            for tree in before:
                restore(git, tree)
                message = f"Work for {tree.branch.rpartition('/')[2]}"
                tips.append((f"Merge {tree.branch}", commit_rest(git, tree, message)))
            started = combine(git, repository.common, head, tips)
            session = self._store.session_id
            slug = re.sub(r"[^A-Za-z0-9_-]+", "-", task.name).strip("-")[:60] or "task"
            slug = slug if slug == task.name else f"{slug}-{task.id[:8]}"
            root = folder_beside(self._store.path) / "worktrees"
            make_private(root.parent)
            root.mkdir(mode=0o700, exist_ok=True)
            (root / ".gitignore").write_text("*\n")  # where the data folder itself is in a repository
            number, name = 1, slug
            while (root / f"{session}-{name}").exists() or git.succeeds(
                repository.common, "rev-parse", "-q", "--verify", f"refs/heads/{BRANCHES}/{session}/{name}"
            ):
                number += 1
                name = f"{slug}-{number}"
            made = Worktree(
                task.id, "making", str(repository.common), str(root / f"{session}-{name}"),
                f"{BRANCHES}/{session}/{name}", started.commit, target, unresolved=started.conflicts,
                prefix=repository.prefix,
            )  # fmt: skip
            return made, len(_status(git, top, repository.git_dir))

    async def _repository(self) -> Repository:
        repository = await asyncio.to_thread(find_repository, self._workspace, self._environ)
        if isinstance(repository, str):
            raise GitFailed(repository or "the workspace is no longer in a git repository")
        return repository

    async def _settle(self, tree: Worktree) -> bool:
        """Find out whether a started merge is done. If it is, the worktree continues from its result."""
        if tree.status != "merging" or tree.merge_commit is None:
            return False
        repository = await self._repository()
        done = await self._locked(tree.repository, undo_cut_merge, repository, tree.merge_commit)
        if not done:
            await self._save(replace(tree, status="ready", merge_commit=None))
            return False
        merged = replace(tree, status="merged", base_commit=tree.merge_commit, unresolved=())
        with suppress(GitFailed):
            await self._locked(
                tree.repository, fast_forward, Path(tree.folder), _admin(tree), tree.merge_commit
            )

        def write(tx: Transaction) -> None:
            agents.save_worktree(tx, merged)
            tx.event("worktree.merged", task_id=tree.task_id, branch=tree.branch, commit=tree.merge_commit,
                     into=tree.target)  # fmt: skip

        await self._store.commit(write)
        reach("worktree.merged")
        return True

    async def _locked(self, repository: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do some work of git in a thread, under the repository's lock."""

        def run() -> Any:
            with Git.exclusive(Path(repository), self._environ) as git:
                return work(git, *arguments)

        return await asyncio.to_thread(run)

    async def _save(self, tree: Worktree) -> None:
        await self._store.commit(partial(agents.save_worktree, tree=tree))

    async def _warn(self, text: str, task_id: str | None) -> None:
        text = self._redact(_readable(text))
        await self._store.commit(lambda tx: tx.event("host.warning", task_id=task_id, text=text))


def _absolute(folder: Path, path: str) -> str:
    return os.path.normpath(os.path.join(folder, path))


def _removed(tx: Transaction, *, tree: Worktree) -> None:
    agents.save_worktree(tx, replace(tree, status="removed"))
    tx.event("worktree.removed", task_id=tree.task_id, branch=tree.branch)


# --- The planner's tool -------------------------------------------------------------------------------------

AFTER_CONFLICT = (
    "\nTo resolve it, add a task that depends on {task}: its agent gets both versions, between conflict markers, in its"
    " own worktree. Name the files in its instructions, and merge that task when it is done. Or drop {task}."
)


MERGE_TASK = ToolSpec(
    "merge_task",
    "Merge the changes in a task's worktree into the branch of the workspace, after the task has ended. If they conflict,"
    " a person is asked. If they leave it to you, nothing is changed, and you get the conflicting files.",
    {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "the task's name or id"},
            "keep": {
                "enum": ["ours", "theirs"],
                "description": "a person's answer to a conflict; omit it",
            },
        },
        "required": ["task"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class MergeTool:
    """`merge_task`: merge what a task's agent changed in its worktree into the user's branch."""

    worktrees: Worktrees
    store: SessionStore
    spec: ToolSpec = MERGE_TASK
    idempotent: bool = True
    permission: Permission = Permission.ALLOW

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Merge. What git refuses is a result with `is_error`. A conflict is a question to a person first.

        Raises:
            HostFault: the machine ran out of something.
        """
        wanted = str(arguments["task"])
        tasks = plans.load_tasks(self.store, self.store.session_id)
        task = next((one for one in tasks if wanted in (one.id, one.name)), None)
        if task is None:
            named = ", ".join(one.name for one in tasks) or "none yet"
            return ToolResult(f"no task {wanted!r}; existing tasks: {named}", is_error=True)
        try:
            keep = str(arguments.get("keep") or "") if context.subject_digest else ""
            return ToolResult(await self.worktrees.merge(task, keep, context.subject_digest))
        except MergeConflict as conflict:
            text = f"{conflict}{AFTER_CONFLICT.format(task=task.name)}"
            is_answered = conflict.question.digest == context.subject_digest
            return ToolResult(text, is_error=True, question=None if is_answered else conflict.question)
        except (GitFailed, OSError) as error:
            if (fault := host_fault(error)) is not None:
                raise fault from error
            return ToolResult(_readable(f"{task.name} was not merged: {error}"), is_error=True)
