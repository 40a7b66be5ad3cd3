"""Mutation testing of the modules that everything rests on: `.ci/heavy mutants --state FILE` (an hour or more).

Each mutant is one small change (a comparison, a constant, a removed statement, …) in a copy of the tree. The tests
that run the changed line must fail. The mutants are picked by seed from whatever the source is now; the results are
kept in a file and are taken from there while the mutated function stays as it was, so a stopped run continues.

The operators are written here because neither alternative fits. cosmic-ray 8.7 changes annotations, which are never
evaluated (`int | None` in eleven ways: a third of its mutants of these modules), and `is` to `==`; those are
equivalent, and it neither removes statements nor samples. mutmut 3.8 calls each function through a trampoline and
runs the whole suite to learn which test calls which.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import coverage

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.json")

SUBJECTS = {
    "writer": (
        "store/writer.py",
        "",
        "store/test_writer store/test_fencing store/test_postgres faults/test_files_beside",
    ),
    "transaction": (
        "store/transaction.py",
        r"Transaction\.",
        "store/test_transaction store/test_fencing store/test_replaying",
    ),
    "lease": ("store/lease.py", "", "store/test_lease store/test_fencing store/test_postgres"),
    "loop": (
        "agents/loop.py",
        "",
        "runtime/test_loop runtime/test_runs runtime/test_control runtime/test_late_tools runtime/test_ordered"
        " runtime/test_resting messages_api/test_parking test_odd_replies test_marks",
    ),
    "calls": (
        "agents/calls.py",
        "",
        "runtime/test_loop runtime/test_runs runtime/test_questions runtime/test_late_tools test_marks test_host_faults",
    ),
    "recovery of calls": (
        "agents/toolbox.py",
        r"(Toolbox\.(carry_out|_one|_put_back|_start|_end|_apply|_record))$",
        "runtime/test_loop runtime/test_runs runtime/test_questions runtime/test_late_tools test_marks test_host_faults",
    ),
    "resume": (
        "runtime/lifecycle.py",
        r"(open_session|refuse_old_pauses|lift|lift_pauses|pause_\w+|revive_planner|settle_stale)$",
        "runtime/test_lifecycle runtime/test_control",
    ),
    "cuts": (
        "memory/content.py",
        r"(cut_points|newest_group|newest_turn)",
        "memory/test_rendering memory/test_cuts memory/test_context",
    ),
    "splice": (
        "memory/validation.py",
        r"spliced",
        "memory/test_context memory/test_cuts memory/test_compactor",
    ),
    "view": (
        "memory/context.py",
        r"ContextState\.(cut_\w+|publish|undo|redo|_target|_point_at|append|fold)$",
        "memory/test_context memory/test_cuts memory/test_compactor",
    ),
    "compactor": ("memory/compactor.py", r"Compactor\.", "memory/test_compactor memory/test_cuts"),
    "resumable passes": (
        "agents/compaction.py",
        r"CompactionRunner\.",
        "runtime/test_compaction runtime/test_resting runtime/test_ordered runtime/test_observing",
    ),
}
"""The module below `core/watchkeeper`; as a pattern of qualified names, which of its functions; and parts of the
names of the tests that are nearest to it, of which those run first that run the changed line."""

TESTS = (
    "tests/core/store",
    "tests/core/memory",
    "tests/core/runtime",
    "tests/core/messages_api",
    "tests/core/library/test_fork.py",
    "tests/core/roles/test_role_models.py",
    "tests/faults/test_storage.py",
    "tests/faults/test_files_beside.py",
    "tests/faults/test_two_hosts.py",
    "tests/faults/test_marks.py",
    "tests/faults/test_host_faults.py",
)
"""Where a mutant may be noticed. Of these, only the tests that run the changed line are run for it."""

FILES_AT_ONCE = 8
"""Test files that are run between two times that what is known is kept."""

NEAREST_SECONDS, MOST_SECONDS = 120.0, 10.0
"""How long the tests of one mutant may take, the fastest first: those nearest to it, and all others."""

# --- What is changed ----------------------------------------------------------------------------------------

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NEGATES_ITSELF = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


@dataclass(frozen=True)
class Mutant:
    """One change of one place of the source."""

    subject: str
    path: str
    function: str
    line: int
    operator: str
    span: tuple[int, int]
    """The bytes that are replaced."""
    body: tuple[int, int]
    """First line of the function, and the one after its last."""
    before: str
    after: str
    digest: str
    """Of the whole function, so that a result is not taken over into another one."""

    @property
    def key(self) -> str:
        return f"{self.path}::{self.function}|{self.operator}|{self.before}|{self.after}|{self.digest}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.span[0]] + self.after.encode() + source[self.span[1] :]

    def diff(self, source: bytes) -> str:
        old, new = source.decode().splitlines(), self.apply(source).decode().splitlines()
        return "\n".join(difflib.unified_diff(old, new, self.path, self.operator, lineterm="", n=0))


class _Changes(ast.NodeVisitor):
    """Collects, for one module, (function, operator, node that is replaced, its replacement)."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.AST, str, ast.expr | ast.stmt, str]] = []
        self._names: list[str] = []
        self._function: ast.AST | None = None

    def _scope(self, node: Any, function: bool) -> None:
        outer = self._function
        self._names.append(node.name)
        if function:
            if outer is None:
                self._function = node
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()
        self._function = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope(node, function=False)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope(node, function=True)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _add(self, operator: str, node: ast.expr | ast.stmt, after: ast.AST | str) -> None:
        if self._function is not None:
            text = after if isinstance(after, str) else ast.unparse(ast.fix_missing_locations(after))
            if isinstance(node, ast.expr):
                text = f"({text})"
            self.found.append((".".join(self._names), self._function, operator, node, text))

    def visit_Compare(self, node: ast.Compare) -> None:
        for place, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[place] = SWAPPED[type(operator)]()  # type: ignore[call-overload]
            self._add("comparison", node, other)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._add("boolean", node, ast.BoolOp(SWAPPED[type(node.op)](), node.values))  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
                    for side in (node.left, node.right))  # fmt: skip
        if type(node.op) in SWAPPED and not texts:
            self._add("arithmetic", node, ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right))  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add("constant", node, repr(node.value + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are not mutated."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("condition", node, node.operand)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        negates_itself = (
            isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], NEGATES_ITSELF)
        )
        if not negates_itself and not isinstance(test, ast.UnaryOp):
            self._add("condition", test, ast.UnaryOp(ast.Not(), test))

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or ast.unparse(node).startswith("log."):
            return
        if not isinstance(node.value, ast.Yield):
            self._add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if (
            all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
            and self._names[-1] != "__init__"
        ):
            self._add("statement", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _removed(self, node: ast.stmt) -> None:
        self._add("statement", node, "pass")
        self.generic_visit(node)

    visit_AugAssign = visit_Delete = visit_Break = visit_Continue = visit_Raise = _removed

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add("statement", node, "pass")
        elif not isinstance(node.value, ast.Constant):
            self._add("return", node, "return None")
        self.generic_visit(node)


def mutants_of(subject: str) -> list[Mutant]:
    """Every mutant of one subject.

    Raises:
        LookupError: the source has no such module or function: the table is to follow it.
    """
    path, functions = f"core/watchkeeper/{SUBJECTS[subject][0]}", SUBJECTS[subject][1]
    if not (ROOT / path).exists():
        raise LookupError(f"{path} does not exist; say in SUBJECTS where {subject} is now")
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changes = _Changes()
    changes.visit(ast.parse(source))
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for name, function, operator, node, after in changes.found:
        if not re.match(functions, name):
            continue
        span = (
            starts[node.lineno - 1] + node.col_offset,
            starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
        )
        before = " ".join(source[slice(*span)].decode().split())
        same = f"{name}|{operator}|{before}"
        seen[same] += 1
        body = (function.lineno, (function.end_lineno or 0) + 1)  # type: ignore[attr-defined]
        digest = hashlib.sha256(f"{ast.unparse(function)}{seen[same]}".encode()).hexdigest()[:12]
        found.append(Mutant(subject, path, name, node.lineno, operator, span, body, before, after, digest))
    if not found:
        raise LookupError(f"{path} has no function {functions}; say in SUBJECTS where {subject} is now")
    return found


def picked(count: int, seed: int, subjects: Iterable[str] | None = None) -> list[Mutant]:
    """`count` mutants of all subjects, or all there are. A change of one function exchanges its mutants only."""
    every = [mutant for subject in subjects or SUBJECTS for mutant in mutants_of(subject)]
    return sorted(every, key=lambda one: hashlib.sha256(f"{seed}{one.key}".encode()).digest())[:count]


# --- Which tests notice it ----------------------------------------------------------------------------------


class Tree:
    """A copy of the working tree in which one process at a time mutates and tests."""

    def __init__(self, folder: Path, prefix: Iterable[str] = ()) -> None:
        self.folder, self.prefix = folder, prefix
        for name in (
            "core",
            "tui",
            "tests",
            "themes",
            "docs",
            "pyproject.toml",
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
        ):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis")
                )
            elif source.exists():
                shutil.copy2(source, folder / name)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", "core", "tui", "tests"], cwd=folder, check=False
        )

    def pytest(self, arguments: list[str], limit_seconds: float) -> tuple[int | None, str]:
        """The exit code (None: stopped at the limit) and the output of a test run."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(self.folder / part) for part in ("", "core", "tui")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COVERAGE_FILE": str(self.folder / "coverage"),
        }
        options = ["-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command = [*self.prefix, sys.executable, "-m", "pytest", *options, *arguments]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["sh", "-c", 'ulimit -v 8000000; exec "$@"', "sh", *command],
                cwd=self.folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                code = None
            if code is None or process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")


@dataclass(frozen=True)
class Baseline:
    """What the tests do without a mutant. It is kept beside the results: later, only changed test files are run
    again, and of a changed module it is known which tests run it, and not which of its lines."""

    digests: dict[str, str]
    """Of each test file and each module."""
    seconds: dict[str, float]
    """Of each test that passed."""
    of_line: dict[str, dict[str, list[str]]]
    """Module → line → the tests that run it; under no line, all that run the module."""

    def tests_for(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """What runs the line, or the nearest line of its function that was noted: the nearest tests, then others."""
        lines = self.of_line.get(mutant.path, {})
        near = sorted(range(*mutant.body), key=lambda line: (line > mutant.line, abs(line - mutant.line)))
        noted = lines.get("") or next((lines[str(line)] for line in near if lines.get(str(line))), [])
        ran = sorted(
            {test for test in noted if test in self.seconds}, key=lambda test: (self.seconds[test], test)
        )
        nearest = SUBJECTS[mutant.subject][2].split()
        first = self._within(NEAREST_SECONDS, (test for test in ran if any(name in test for name in nearest)))
        return first, self._within(MOST_SECONDS, (test for test in ran if test not in first))

    def _within(self, seconds: float, tests: Iterable[str]) -> list[str]:
        chosen = []
        for test in tests:
            seconds -= self.seconds[test]
            if seconds > 0 or not chosen:
                chosen.append(test)
        return chosen

    @classmethod
    def of(cls, tree: Tree, tests: Iterable[str], kept: Path) -> Baseline:
        """Run what is not known yet, and keep it."""
        known = cls(**json.loads(kept.read_text())) if kept.exists() else cls({}, {}, {})
        for path in _paths():
            digest = _digest(ROOT / path)
            if known.digests.get(path, digest) != digest:  # its lines are others now
                known.of_line[path] = {
                    "": [test for tests in known.of_line.get(path, {}).values() for test in tests]
                }
            known.digests[path] = digest
        files = {str(file.relative_to(ROOT)): _digest(file) for test in tests for file in _files(ROOT / test)}
        for test in [test for test in known.seconds if not (ROOT / test.split("::")[0]).exists()]:
            del known.seconds[test]
        changed = [file for file, digest in files.items() if known.digests.get(file) != digest]
        for at in range(0, len(changed), FILES_AT_ONCE):
            part = changed[at : at + FILES_AT_ONCE]
            known._add(tree, part)
            known.digests.update((file, files[file]) for file in part)
            kept.write_text(json.dumps(asdict(known)))
        return known

    def _add(self, tree: Tree, files: list[str]) -> None:
        """Run some files. Failing tests are left out, and named."""
        for test in [test for test in self.seconds if test.split("::")[0] in files]:
            del self.seconds[test]
        config = tree.folder / "coveragerc"
        config.write_text(
            "[run]\nbranch = false\ninclude =" + "".join(f"\n    */{path}" for path in _paths())
        )
        options = ["-q", "-vv", "--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=", "--durations=0",
                   "--durations-min=0"]  # fmt: skip
        output = tree.pytest([*options, *files], 3_600)[1]
        for took, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(\S.*)$", output, re.MULTILINE):
            self.seconds[test] = self.seconds.get(test, 0.0) + float(took)
        for test in re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE):
            print(f"fails without a mutant, left out: {test}", flush=True)
            self.seconds.pop(test, None)
        data = coverage.CoverageData(str(tree.folder / "coverage"))
        data.read()
        for path in _paths():
            for line, contexts in data.contexts_by_lineno(str(tree.folder / path)).items():
                ran = {one.split("|")[0] for one in contexts if one}
                self.of_line.setdefault(path, {}).setdefault(str(line), []).extend(sorted(ran))


def _paths() -> list[str]:
    return sorted({f"core/watchkeeper/{module}" for module, _, _ in SUBJECTS.values()})


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("test_*.py")) if path.is_dir() else [path]


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def judge(tree: Tree, mutant: Mutant, known: Baseline) -> dict[str, Any]:
    """Whether the tests notice the mutant."""
    path = tree.folder / mutant.path
    source = path.read_bytes()
    entry = {"subject": mutant.subject, "path": mutant.path, "function": mutant.function, "operator": mutant.operator, "line": mutant.line,
             "before": mutant.before, "after": mutant.after, "diff": mutant.diff(source)}  # fmt: skip
    changed = mutant.apply(source)
    try:
        compile(changed, mutant.path, "exec")
    except SyntaxError as error:
        return entry | {"result": "invalid", "by": str(error)}
    stages = [tests for tests in known.tests_for(mutant) if tests]
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()  # the source may have the same size and the same second
    path.write_bytes(changed)
    try:
        for tests in stages:
            chosen = tree.folder / "chosen.txt"
            chosen.write_text("\n".join(tests))
            each = [known.seconds[test] for test in tests]
            limits = f"--timeout={10 + 5 * max(each):.0f}", 30 + 5 * sum(each)
            code, output = tree.pytest(
                ["-x", "-q", "--tb=line", limits[0], "--timeout-method=thread", f"@{chosen}"], limits[1]
            )
            if "ERROR: not found" in output or "file or directory not found" in output:
                raise RuntimeError(output)  # what was known of the tests is out of date
            if code != 0:
                failed = re.search(r"^(?:FAILED|ERROR) (.*)$", output, re.MULTILINE)
                timed_out = code is None or "+ Timeout +" in output
                by = failed[1] if failed else output[-300:]
                return entry | {"result": "timeout" if timed_out else "killed", "by": by[:300]}
    finally:
        path.write_bytes(source)
    return entry | {"result": "survived", "by": f"{sum(map(len, stages))} tests run this line"}


# --- The run and its report ---------------------------------------------------------------------------------


def run(
    mutants: list[Mutant],
    state: Path,
    *,
    tests: Iterable[str] = TESTS,
    processes: int = 1,
    prefixes: Sequence[str] = ("",),
    again: str | None = None,
) -> None:
    """Judge what the state file does not hold yet; each result is written as it comes."""
    results: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    open_ones = [one for one in mutants if results.get(one.key, {"result": again})["result"] == again]
    print(f"{len(mutants)} mutants, {len(open_ones)} to judge", flush=True)
    if not open_ones:
        return
    writing = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        made = [Tree(Path(scratch, str(n)), prefixes[n % len(prefixes)].split()) for n in range(processes)]
        known = Baseline.of(made[0], tests, state.with_suffix(".baseline"))
        print(f"{len(known.seconds)} tests in {sum(known.seconds.values()):.0f} s", flush=True)
        trees: SimpleQueue[Tree] = SimpleQueue()
        for tree in made:
            trees.put(tree)

        def one(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                result = judge(tree, mutant, known)
            finally:
                trees.put(tree)
            with writing:
                results[mutant.key] = result
                new = state.with_suffix(".new")
                new.write_text(json.dumps(results, indent=1))
                new.replace(state)
                print(
                    f"{result['result']:9} {mutant.path}:{mutant.line} {mutant.operator} {result['by'][:90]}",
                    flush=True,
                )

        with ThreadPoolExecutor(processes) as pool:
            for _ in pool.map(one, open_ones):
                pass


def equivalents() -> set[tuple[str, str, str, str]]:
    """(path, function, before, after) of the changes that change nothing that anyone can notice."""
    listed = json.loads(EQUIVALENT.read_text())
    return {(one["path"], one["function"], one["before"], one["after"]) for one in listed}


def report(mutants: list[Mutant], state: Path) -> Iterator[str]:
    """Counts by subject, then every survivor with its diff."""
    results = json.loads(state.read_text())
    judged = [results[one.key] for one in mutants if one.key in results]
    excused = equivalents()
    for entry in judged:
        if (
            entry["result"] == "survived"
            and tuple(entry[name] for name in ("path", "function", "before", "after")) in excused
        ):
            entry["result"] = "equivalent"
    outcomes = ("killed", "timeout", "survived", "equivalent", "invalid")
    yield f"{'':20}" + "".join(f"{name:>11}" for name in outcomes)
    for subject in (*SUBJECTS, None):
        counts = Counter(entry["result"] for entry in judged if subject in (None, entry["subject"]))
        yield f"{subject or 'all':20}" + "".join(f"{counts[name]:11}" for name in outcomes)
    noticed = counts["killed"] + counts["timeout"]
    valid = len(judged) - counts["invalid"]
    yield f"{noticed} of {valid} noticed ({noticed / max(1, valid):.1%}); {len(mutants) - len(judged)} not judged yet"
    for entry in judged:
        if entry["result"] == "survived":
            yield f"\n{entry['path']}:{entry['line']} {entry['function']} ({entry['by']})\n{entry['diff']}"


def main() -> None:
    parser = argparse.ArgumentParser(prog=".ci/heavy mutants", description=__doc__)
    parser.add_argument(
        "--state", type=Path, required=True, help="the file that keeps the results, outside the tree"
    )
    parser.add_argument("--mutants", type=int, default=320)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--prefix", action="append", help="a command before each test run, one for each process"
    )
    parser.add_argument("--again", choices=["survived", "killed", "timeout"], help="judge these once more")
    parser.add_argument("--subject", action="append", choices=list(SUBJECTS), help="these only")
    parser.add_argument(
        "--tests", action="append", help="with these files only, in place of all that concern them"
    )
    parser.add_argument("--report", action="store_true", help="print what is known, and judge nothing")
    options = parser.parse_args()
    mutants = picked(options.mutants, options.seed, subjects=options.subject)
    if not options.report:
        run(mutants, options.state, tests=options.tests or TESTS, processes=options.processes,
            prefixes=options.prefix or [""], again=options.again)  # fmt: skip
    print("\n".join(report(mutants, options.state)))


if __name__ == "__main__":
    main()
