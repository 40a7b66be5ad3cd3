"""Receipts: what an agent that says it is done claims, and the evidence for it among its stored calls.

Fixed rules, no model. A claim is looked for only where the words are plain: a changed file, a test or build that
passed, a command, a commit, a promised artifact. What is hedged, denied or planned is no claim. Evidence are the calls
of the agent and of the agents below it, and their results. A claim without evidence is not a lie: the work may have
been done outside. An agent that says that it is done and made no call is always flagged. Texts are hostile until
sanitised.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from watchkeeper.records.text import one_line, plural
from watchkeeper.records.tool_inputs import PATH, command_of, edited_files, leaves, path_of
from watchkeeper.store.driver import beginning, decode_or

MOST_CHARACTERS = 20_000
"""Of a report, its end is read: there an agent sums up."""
MOST_CLAIMS = 60
MOST_CALLS = 4_000
"""The newest calls that may be evidence, of one receipt."""
RESULT_CHARACTERS = 20_000


class ClaimKind(StrEnum):
    """What is claimed."""

    FILE = "file"
    TESTS = "tests"
    COMMAND = "command"
    ARTIFACT = "artifact"
    WORK = "work"
    """That something was done, by an agent that made no call."""


class Verdict(StrEnum):
    """What the store says of a claim."""

    EVIDENCE = "evidence"
    NONE = "no evidence"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of a report, and what was found for it."""

    kind: ClaimKind
    subject: str
    """The file, the command, the artifact; for tests empty."""
    said: str
    """The line of the report, one line."""
    verdict: Verdict
    evidence: tuple[str, ...] = ()
    """Pointers to the messages that show it."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one agent claims at its end."""

    agent_id: str
    agent: str
    task: str
    """The name of its task, or empty."""
    report: str
    """Pointer to the message that claims it; empty where it is the task's result alone."""
    calls: int
    """Of the agent and of those below it."""
    claims: tuple[Claim, ...]

    @property
    def proven(self) -> int:
        return sum(claim.verdict is Verdict.EVIDENCE for claim in self.claims)

    @property
    def flagged(self) -> bool:
        """Whether a person should look: some claim has no evidence, or is contradicted."""
        return self.proven < len(self.claims)

    @property
    def mark(self) -> str:
        """`✓` all has evidence, `!` something has none, `✗` something is contradicted, `·` nothing to check."""
        if any(claim.verdict is Verdict.CONTRADICTED for claim in self.claims):
            return "✗"
        return "!" if self.flagged else "✓" if self.claims else "·"

    @property
    def summary(self) -> str:
        """One line: `3 of 4 claims have evidence; no call ran the tests`."""
        if not self.claims:
            return f"nothing claimed that can be checked; {plural(self.calls, 'call')}"
        notes = list(
            dict.fromkeys(claim.note for claim in self.claims if claim.verdict is not Verdict.EVIDENCE)
        )
        more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
        counted = "claim has" if len(self.claims) == 1 else "claims have"
        return "; ".join([f"{self.proven} of {len(self.claims)} {counted} evidence", *notes[:3]]) + more

    def as_json(self) -> dict[str, Any]:
        """As `wk show --json` prints it."""
        return {
            "agent": self.agent_id,
            "name": self.agent,
            "task": self.task,
            "mark": self.mark,
            "flagged": self.flagged,
            "summary": self.summary,
            "report": self.report,
            "calls": self.calls,
            "claims": [
                {"kind": one.kind, "subject": one.subject, "said": one.said, "verdict": one.verdict,
                 "evidence": list(one.evidence), "note": one.note}
                for one in self.claims
            ],
        }  # fmt: skip


def session_receipts(reads: Any, session_id: str, only: Collection[str] | None = None) -> list[Receipt]:
    """A receipt of each agent that has ended and says so, in the order of the agents. `reads` has `one` and `all`;
    `only` are the agents whose receipts are wanted: also those that have not ended, but wait for a person."""
    rows = reads.all(
        "SELECT a.id, a.name, a.parent_agent_id, a.status, t.name, t.status, t.result, t.expected_outputs, t.id,"
        " t.assigned_agent, s.origin IN ('run', 'fork', 'export:run', 'export:fork') FROM agents a"
        " JOIN sessions s ON s.id = a.session_id LEFT JOIN tasks t ON t.id = a.task_id WHERE a.session_id = ? ORDER BY a.ordinal",
        (session_id,),
    )
    below: dict[str, list[str]] = {}
    for row in rows:
        if row[2] and row[2] != row[0]:
            below.setdefault(row[2], []).append(row[0])
    found = []
    for agent_id, name, _, status, task, task_status, result, expected, task_id, assigned, own in rows:
        if status != "done" if only is None else agent_id not in only:
            continue
        mine = task_status == "done" and assigned == agent_id
        said, seq = _report(reads, agent_id)
        said = result if mine and result else said
        if not said and not mine:
            continue
        family = _family(agent_id, below)
        calls = _count_calls(reads, family)
        checked = check_report(reads, family, said)
        if mine:
            checked += _artifacts(reads, agent_id, task_id, decode_or(expected, []))
        if not calls and ((own and mine) or checked or says_done(said, _prompt(reads, agent_id))):
            line = one_line(said, 200) if said else "done"
            checked.append(Claim(ClaimKind.WORK, "", line, Verdict.NONE, (), "no call was made at all"))
        report = f"message://{agent_id}/{seq}" if seq else ""
        found.append(Receipt(agent_id, name, task or "", report, calls, tuple(checked[:MOST_CLAIMS])))
    return found


def check_report(
    reads: Any, agents: Sequence[str], text: str, *, before_seq: int | None = None
) -> list[Claim]:
    """The claims of a report, judged by the calls of these agents; of the first of them, those before a message."""
    return _check(reads, agents, claims_in(text), before_seq)


def _report(reads: Any, agent_id: str) -> tuple[str, int]:
    """The last words of an agent, where no call follows them, and their number."""
    rows = reads.all(
        "SELECT seq, role, content FROM messages WHERE agent_id = ? ORDER BY seq DESC LIMIT 8", (agent_id,)
    )
    for seq, role, content in rows:
        if role != "assistant":
            continue
        blocks = decode_or(content, "")
        if isinstance(blocks, str):
            return blocks, seq
        blocks = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
        if any(block.get("type") == "tool_use" for block in blocks):
            return "", 0
        text = "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
        if text.strip():
            return text, seq
    return "", 0


def _prompt(reads: Any, agent_id: str) -> str:
    """What an agent without calls was asked last."""
    row = reads.one(
        "SELECT content FROM messages WHERE agent_id = ? AND role = 'user' ORDER BY seq DESC LIMIT 1",
        (agent_id,),
    )
    content = decode_or(row[0], "") if row is not None else ""
    blocks = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(str(one.get("text", "")) for one in blocks if isinstance(one, dict))[:2_000]


def _family(agent_id: str, below: dict[str, list[str]]) -> list[str]:
    found = {agent_id: None}
    waiting = [agent_id]
    while waiting:
        for child in below.get(waiting.pop(), ()):
            if child not in found:
                found[child] = None
                waiting.append(child)
    return list(found)


def _count_calls(reads: Any, family: Sequence[str]) -> int:
    return sum(reads.one("SELECT count(*) FROM tool_calls WHERE agent_id = ?", (one,))[0] for one in family)


# --- Claims in a text ---------------------------------------------------------------------------------------

_FENCED = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[^\n]*$|^[ \t]*>[^\n]*$", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"\*\*|__|\[([^\]\n]{1,200})\]\([^)\n]{1,300}\)")
_SENTENCE = re.compile(r"(?<=[a-z0-9)`\"'])[.!?;](?=\s+[A-Z`*])|\n+")
_HEDGED = re.compile(
    r"\b(?:not|never|cannot|without(?! (?:any )?(?:errors?|issues?|problems?|warnings?|failures?)\b)"
    r"|would|could|should|will|won't|might|may|must|shall|going to|to be|plan(?:s|ned)? to|needs? to"
    r"|want(?:s|ed)? to|let me|let's|i'll|next(?! ?\.?js)|todo:|to do|remaining|if|unless|once|when|until|before|so that|ensure|make sure"
    r"|please|you can|you could|you may|(?:recommend|suggest)(?:ed|s|ing)?|instead of|rather than|unchanged|already"
    r"|previously|earlier|originally|used to|the user|you (?:have )?(?:added|changed|created|wrote)"
    r"|expected|supposed|failed to|unable|tried|attempt(?:ed)?|skipp?ed|example|e\.g)\b|n't\b|\?$|^\W*to (?:run|test|verify|check|use|start)\b",
    re.IGNORECASE,
)  # fmt: skip
_CHANGED = (
    r"(?:created|added|updated|modified|changed|edited|fixed|implemented|wrote|written|rewrote|refactored|removed|deleted|renamed"
    r"|replaced|extended|introduced|rewritten|adjusted|corrected|patched)"
)
_OWN_WORK = (
    r"(?:^\W*|\bI(?:'ve| have)? (?:also |just |now |then )*(?:gone ahead and )?|[,;] (?:and )?|\band )"
)
_REPORTED = (
    r"(?:moved(?! on)|saved|put|converted|migrated|bumped|dropped|switched|rewired|hardened|extracted|generated|regenerated|reformatted"
    r"|documented|inserted|set(?! out)|enabled|disabled|appended|merged|split|simplified|configured|registered|wired|hooked|ported|upgraded"
    r"|tweaked|reworked|optimi[sz]ed|streamlined|restored|reverted|copied|tightened|improved|touched|cleaned up|stubbed|swapped|cached"
    r"|guarded|wrapped(?! up)|deduplicated)"
)
_CHANGE = re.compile(
    rf"\b{_CHANGED}\b|(?:{_OWN_WORK}|\b(?:was|were|has been|have been) (?:now |also )?){_REPORTED}\b"
    r"|\b(?:edits?|changes?|updates?|modifications?) (?:were|have been) made (?:to|in)\b"
    r"|\bmade (?:the |some |several |these |my )?(?:\w+ )?(?:edits?|changes?|updates?|modifications?) (?:to|in)\b"
    r"|\b(?:finished|completed|done) (?:editing|updating|refactoring|writing|fixing|migrating|creating)\b",
    re.IGNORECASE,
)
"""What changed a file. Words that describe as often as they report count only of the agent's own work."""
_REFERS = re.compile(
    r"\b(?:from|using|based on|like|per|via|by|see|against|following|used|uses|matching|match(?:es)?|that|which|where|because|since|than"
    r"|according|described|mentioned|to (?:match|use|call|import)|called|import(?:s|ed|ing)?|with)\b|→|->|=>",
    re.IGNORECASE,
)  # fmt: skip
"""Between a verb and a path: the path is then what the change refers to, not what changed."""
_OF_OTHERS = re.compile(
    r"\balready (?:implement|exist|support|present|in place)"
    r"|\bwhat's (?:already|there)\b|\b(?:this|the|that) (?:pr|pull request|commit|branch|diff|patch)"
    r" (?:already |also )?(?:add|implement|change|introduce|remove|update|fixe|does|contain)|\bcode review\b|\breview of\b",
    re.IGNORECASE,
)  # fmt: skip
"""The report describes what others did: then only what it says in the first person is claimed."""
_I = re.compile(r"\bI(?:'ve| have)?\b")
_FILES_FOLLOW = re.compile(
    r"^\W*(?:key |main |new |all )?(?:files?|components?|modules?) (?:i |that were |that i |were )?"
    r"(?:changed|created|modified|updated|added|edited)\b[^\n]{0,30}$"
    r"|^\W*(?:what (?:i |was |has )?changed|changes made|summary of changes)\W*$|^\W*(?:modified|changed|created|updated|new) files?\W*$",
    re.IGNORECASE,
)  # fmt: skip
_IN_LINE = re.compile(
    r"^\W*(?:files? (?:touched|changed|modified|updated|edited|created|added)|(?:touched|changed|edited|new) files?|changes (?:in|to))\W*[: ]\s*"
    r"(?=[`\"'~./\w])",
    re.IGNORECASE,
)
"""Before a list of changed files in one line."""
_TABLE = re.compile(
    r"^\W*\|?\s*(?:files?|path|module)\s*\|\s*(?:changes?|edits?|what(?: i)? changed|modifications?)\b",
    re.IGNORECASE,
)
"""The head of a table of changed files."""
_TICKED = re.compile(r"^\s*(?:[-*•]\s+)?\[[xX]\]\s+(?:\w+ly )?")
_TO_CHANGE = re.compile(
    r"(?:add|chang|creat|delet|edit|extend|fix|implement|modif|mov|refactor|remov|renam|replac|rewrit|updat|writ)\w*\b",
    re.IGNORECASE,
)
"""What a ticked item says that was to be done."""
_BULLET = re.compile(r"^\s*(?:[-*•✅✓]|\d+[.)])\s+")
_PASSIVE = re.compile(
    rf"[`\"']? (?:(?:has|have) (?:now |also |since )?been|was|were|is now) (?:now |also |successfully )?(?:{_CHANGED}|{_REPORTED})\b",
    re.IGNORECASE,
)
"""Behind a path: the path was changed."""
_BARE_PASSIVE = re.compile(
    rf"[`\"']? (?:now )?(?:{_CHANGED[3:-1]}|migrated|converted|generated)\s*[.!]?$", re.IGNORECASE
)
"""The same, where the path begins its sentence: `a.py updated`."""
_IN = re.compile(r"\bin [`\"']?$", re.IGNORECASE)
_IN_IT = re.compile(
    rf"[`\"']?,? (?:(?:I|we)(?:'ve| have)? (?:\w+ly |also |now |then )*{_CHANGED}\b"
    rf"|(?:the|all) [^.,;\n]{{1,60}}? (?:was|were|has been|have been) (?:\w+ly |now |also )*{_CHANGED}\b)",
    re.IGNORECASE,
)
"""Behind `In a.py`: what was done in it."""
_NOW_DOES = re.compile(
    r"[`\"')*]*(?: *[-–—:])? now (?!that\b)\w+s\b|[`\"')*]* \((?:new(?: file)?|created|added|modified|updated|edited)\)",
    re.IGNORECASE,
)
"""The same: `a.py now retries`, `a.py (new file)`."""
_TAKEN_FROM = re.compile(r"^[^.\n]{1,60}? from [`\"']?$", re.IGNORECASE)
"""Between a verb that removes and a path: the path changed."""
_WORK_IN = re.compile(
    r"\b(?:bug|issue|error|problem|typo|race|leak|crash|refactoring|migration|rewrite|cleanup)s? (?:in|of) [`\"']?$",
    re.IGNORECASE,
)
_IS_DONE = re.compile(
    r"[`\"']? (?:is|are|was|were|has been|have been) (?:now |also )?(?:fixed|resolved|solved|complete[d]?|done|finished)\b",
    re.IGNORECASE,
)
"""Around a path: work in it is done."""
_NO_REPORT = re.compile(r"\b(?:be|being|to|is|are|what|that|which)\s+$", re.IGNORECASE)
"""Before a verb: it describes, or says what is to be done."""
_NEAR = 2_000
"""Characters behind a verb in which its path is, whatever its length."""
_FIRST_PATH = re.compile(r"^[\s`\"'(*]*")
_LINES = re.compile(r":\d[\d,:\-–]*$")
_HAS_EXTENSION = re.compile(
    r"[^/.]\.[A-Za-z][A-Za-z0-9]{0,9}$|(?:^|/)(?:Makefile|Dockerfile|Procfile|Gemfile)$"
)

_TESTS_PASS = re.compile(
    r"\b(?:tests?|specs?|test suites?|suite)\b(?:[^.\n]|\.(?=\w)){0,40}?\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?"
    r"|(?:is|are|came back|comes back|runs?|ran) (?:now |all )*(?:green|clean))\b"
    r"|\ball(?: (?:the|\d+))? checks (?:now )?pass|\beverything (?:now )?pass(?:es|ed)\b"
    r"|^\W*(?:all|everything(?: is)?) green\b|\bci is (?:now )?green\b"
    r"|\b(?:pytest|jest|vitest|go test|cargo test|npm test)\b[^\n`]{0,20} pass(?:es|ed)\b|^\W*passing all tests\b"
    r"|\b(?:no|zero|0) (?:(?:test )?failures?|failing tests?)\b|\btests?:? ?[✅✔✓]"
    r"|^\s*(?:[-*•]\s+)?\[[xX]\] (?:run|re-?run|execute) (?:\w+ ){0,3}tests?\b"
    r"|\b\d[\d,]* (?:tests? )?(?:passed|passing)\b|\b(?:ran|re-?ran|executed) (?:all |the |our |its )*(?:\w+ )?(?:tests?|test suite|specs)\b"
    r"|\bpassing tests?\b(?=[^\n]{0,5}$)|\b(?:tests?|suite|specs?):? *(?:ok\b|\d+ ?/ ?\d+)"
    r"|\b\d+ ?/ ?\d+ (?:tests?|specs?)\b|[✅✔✓]\ufe0f? ?tests?\W*$"
    r"|\bno (?:test )?regressions?\b|\bci (?:now )?pass(?:es|ed)\b"
    r"|\b(?:verified|confirmed|checked)\b[^.\n]{0,40}? (?:with|by running|using|against)"
    r" (?:all |the |our |its )*(?:\w+ )?(?:tests?|test suite|specs)\b",
    re.IGNORECASE,
)  # fmt: skip
_RUNS_TESTS = re.compile(
    r"\b(?:py\.?test|unittest|tox|nox|jest|vitest|mocha|ava|karma|rspec|phpunit|pest|ctest|gtest|go test|cargo (?:nextest|test)|dotnet test"
    r"|mvn|gradlew?|bazel test|mix test|swift test|playwright|cypress|minitest|tests?|specs?|check|verify|ci)\b|tests?[_.\-/:]|[_\-/:.]tests?\b",
    re.IGNORECASE,
)  # fmt: skip
_TESTS_FAILED = re.compile(
    r"\b[1-9]\d* (?:tests? )?fail(?:ed|ures?|ing)\b|\bFAIL(?:ED)?\b(?! *[:=]? *0)|\b(?:errors|failures)=[1-9]|\b[1-9]\d* errors? in \d"
    r"|^Exit code: [1-9]",
    re.MULTILINE,
)

_OUTCOME = r"(?:pass(?:es|ed)?|succeed(?:s|ed)?|(?:is|was|are) (?:clean|green|successful)|completed successfully|compiles?|clean)"
_TOPICS: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (name, re.compile(claim, re.IGNORECASE), re.compile(command, re.IGNORECASE))
    for name, claim, command in (
        ("build", rf"\b(?:the )?(?:build|compilation)\b (?:now )?{_OUTCOME}\b",
         r"\b(?:build|compile|make|cmake|ninja|tsc|cargo|gradlew?|mvn|webpack|vite|rollup|esbuild|next|go (?:build|vet|install|test)"
         r"|xcodebuild|docker|gcc|clang|javac)\b"),
        ("build", r"\b(?:project|code|app|crate|package|image|it|everything) (?:now )?(?:builds|compiles)"
         r"(?=[.!]?$| (?:clean|fine|success|without|with no))"
         r"|^\W*build: ?(?:ok|pass|success|green)",
         r"\b(?:build|compile|make|cmake|ninja|tsc|cargo|gradlew?|mvn|webpack|vite|rollup|esbuild|next|go (?:build|vet|install|test|run)"
         r"|xcodebuild|docker|gcc|g\+\+|clang|javac|python|node|npm|yarn|pnpm|bun|dotnet|swift)\b"),
        ("linter", rf"\b(?:lint(?:ing|er)?|eslint|ruff|clippy|flake8|pylint)\b(?: checks?)? (?:now )?{_OUTCOME}\b",
         r"lint|ruff|clippy|flake8|biome|prettier|fmt|format|check|fast-ci|\bci\b|pre-commit|make"),
        ("linter", r"\b(?:no|zero|0) lint(?:er|ing)? (?:errors?|issues?|warnings?)\b|\bran (?:the )?(?:linter|eslint|ruff|clippy)\b"
         r"|\b(?:lint(?:ing|er)?|eslint|ruff|clippy|flake8|pylint) (?:now )?(?:reports?|shows?|finds?|found|has) (?:no|zero|0)\b",
         r"lint|ruff|clippy|flake8|biome|prettier|fmt|format|check|fast-ci|\bci\b|pre-commit|make"),
        ("type check", r"\b(?:no|zero|0) type errors?\b|\btsc is happy\b"
         r"|\b(?:type[- ]?checker|mypy|pyright|tsc) (?:now )?(?:reports?|shows?|finds?|found|has) (?:no|zero|0)\b",
         r"mypy|pyright|\bty\b|tsc|typecheck|type-check|types|flow|check|build|\bci\b|make"),
        ("tested", r"^\W*(?:i(?:'ve| have)? )?(?:also |fully |manually )?tested\b(?=.*\b(?:works?|working|passes|success\w*)\b)", r"\S"),
        ("deployment", r"^\W*(?:i(?:'ve| have)? )?(?:also |successfully )?deployed\b",
         r"deploy|apply|push|publish|rollout|kubectl|helm|terraform|\bfly\b|vercel|netlify|\bssh\b|rsync|\bscp\b|docker|systemctl|wrangler|make"),
        ("pull request", r"\b(?:opened|created|raised|submitted) (?:a |an |the )?(?:new |draft )?(?:pull request\b|PR\b)",
         r"\bgh\b|pull[-_ ]?request|\bpr\b|\bhub\b|glab|\bgt\b|submit"),
        ("merge", r"^\W*(?:i(?:'ve| have)? )?merged (?:it |this |the branch |\S+ )?into\b", r"\bmerge\b|rebase|\bgt\b|\bgh\b|pull"),
        ("tag", r"^\W*(?:i(?:'ve| have)? )?tagged (?:it |this |the release )?(?:as )?`?v?\d", r"\btag\b|release|version|publish"),
        ("type check", rf"\b(?:type[- ]?check(?:s|ing|er)?|mypy|pyright|ty|tsc)\b (?:now )?{_OUTCOME}\b",
         r"mypy|pyright|\bty\b|tsc|typecheck|type-check|types|flow|check|build|\bci\b|make"),
        ("commit", r"^\W*(?:i(?:'ve| have)? )?(?:also )?committed"
         r"(?=[.!]?$| (?:the|all|my|these|this|that|both|everything|it|as|to|and|with|in|`))|^\W*(?:git )?commit created\b"
         r"|\b(?:changes?|work|everything|fix|it) (?:(?:are|is|were|was|have been|has been) )?(?:now |all )?committed\b",
         r"\bcommit\b|\bgt\b|submit|merge|rebase"),
        ("push", r"^\W*(?:i(?:'ve| have)? )?(?:committed and |also )?pushed\b"
         r"|\b(?:changes?|work|everything|fix|branch|it) (?:(?:are|is|were|was|have been|has been) )?(?:now |all )?"
         r"(?:committed and )?pushed\b", r"\bpush\b|submit|\bgt\b|sync"),
    )
)  # fmt: skip
_RAN = re.compile(
    r"\b(?:ran|executed|re-?ran|verified (?:with|by running|using)|checked with|confirmed with|installed (?:with|using|via))\s+`([^`\n]{3,120})`"
    r"|`([^`\n]{3,120})`\s+(?:now )?(?:passes|passed|succeeds|succeeded|exits? (?:with )?0|ran (?:successfully|cleanly|without)"
    r"|(?:completes?|completed|finishes|finished|runs?) (?:successfully|clean|fine|without)|is (?:now )?(?:clean|green))"
    rf"|{_OWN_WORK}(?:ran|executed|installed|formatted|deployed|started|restarted|migrated|built|applied|verified|checked|benchmarked)\b"
    r"[^.`\n]{0,40}? (?:with|using|via|by running) `([^`\n]{3,120})`",
    re.IGNORECASE,
)
_PROGRAM = re.compile(r"^(?:\$ )?(?:\./)?[a-z][\w.+-]*(?:\s|$)")
_ACT = (
    r"(?!(?:need|want|bas|assum|suppos|notic|describ|explain|list|mention|not|outlin|summari[sz]|suggest|recommend|propos|preferr"
    r"|attach|includ|provid|answer|referenc|quot|hop|wonder|learn|believ|guess|concern|interest|confus|limit|allow|refus|declin"
    r"|ask|us|call|nam|relat|compar|requir|deprecat|unsupport|interrupt|agre|inde|spe|fe|se|exce|proce|succe|emb|hundr|shar|train"
    r"|design|intend|detail|overload|advanc|combin|nest|typ|mix|expect|fail|skipp|cach|connect|return|pass|look|point|happen|exist"
    r"|seem|thank|contain|chos|remain|start off|occurr|prefix|suffix|involv|depend|point|observ|discuss|consider|assess|rais)ed\b)"
    r"(?:\w{2,}[^\W\d_e]ed|\w+[^\W\d_]ied|\w{3,}eed(?!\w)|(?:un|re|over)?(?:built|written|wrote|made|done|did|ran|run|set|put|cut|split|sent"
    r"|brought|taken|took|drawn|drew|shrunk|bound|shut|reset|hidden)|sped up|got rid of)\b"
)
"""What an agent did, in the past: no word about speaking, thinking or being."""
_ADVERBS = r"(?:\w+ly |also |just |now |then |already |all |since |both |gone ahead and |went ahead and |taken the liberty of )*"
_STATES = (
    r"(?:done|completed?|finished|fixed|resolved|solved|gone|in place|up to date|sorted(?: out)?|taken care of|implemented|live|shipped"
    r"|good to go|wired(?: \w+)?|(?:all )?set(?: up)?|ready|up|in|working|running|up and running|green|good|over|passing)"
)
_ENDING = (
    r"(?=\W*$| (?:now|and|for (?:you|review)|to (?:go|merge|ship|use|you)|on|at|as|end to end|again|too)\b)"
)
_SAYS_DONE = re.compile(
    rf"\b(?:I|we)(?:'ve|’ve| have)? {_ADVERBS}(?:{_ACT}|addressed|handled)\b(?! (?:it |that )?myself\b)"
    rf"|^\W*(?:(?:and|also|then|now|successfully|just|all|ok|okay|yes|yep|sure|done|great|news|good|perfect|alright"
    r"|right|got it|voil[aà])\b\W*)*"
    rf"(?:{_ACT}|done|completed?|finished|implemented|all set|shipped|published|merged|fixed|accomplished)\b"
    rf"(?! (?:on|by|upon|in \d|with(?! (?:that|this|it)\b)|for|at)\b)[^:]*$"
    rf"|\b(?:has|have|'s|'ve) {_ADVERBS}been {_ADVERBS}(?:{_ACT}|done|completed|finished|fixed|squashed|addressed)\b"
    rf"|^(?!.*\b(?:is|are|be|being|gets?|which|that|who|when|of)\b)\W*(?:[\w'`/.\-#]+ ){{1,6}}{_ADVERBS}"
    rf"(?:{_ACT}|addressed|done|complete|fixed|finished|successful)\W*$"
    r"|\b(?:all|everything|that|this|it|which|work|task|job|project|feature|fix|bug|crash|issue|problem|error|migration|refactoring"
    r"|implementation|setup|change|typo|build|deployment|step|item|todo|conflict|endpoint)s?(?:'s| is| are| looks?)"
    rf" {_ADVERBS}{_STATES}\b{_ENDING}"
    r"|\b(?:task|mission|job|work|deed|setup|project|feature|implementation) (?:accomplished|complete|done)\b|\bdone deal\b"
    r"|\b(?:good to go|ready (?:to merge|for (?:merge|review)|to ship)|as (?:you )?(?:requested|asked)"
    r"|nothing (?:left|more|else)(?: left)? to do|works (?:now|as expected|end to end|fine|perfectly)|ready for you to"
    r"|you(?:'re| are) all set|that's (?:everything|all done)"
    r"|no longer (?:occur|happen|fail|crash)(?:e?s)?|up and running|(?:fix|change|feature|PR)s? (?:is|are) (?:in|up|live|deployed)"
    r"|went through|(?:ran|runs|completed|finished) (?:successfully|fine|without))\b"
    rf"|\b(?:finished|completed|done) \w+ing\b|\b\d+ ?(?:/|of) ?\d+ \w+ (?:done|complete)"
    r"|\bit all works\b|^\W*that (?:should|ought to) (?:do|fix|be) it\b|^\W*(?:it|all|everything|that) (?:all )?works\b"
    r"|^\W*(?:all|we're|we are) good(?: now)?\W*$|^\W*that's (?:it|all|everything)\W*$"
    r"|^\W*(?:accomplished|success|sorted|handled|done|complete|verified|resolved|solved)\b[^:?]*$|[;,] (?:works|done)\W*$"
    r"|\b(?:erledigt|fertig|c['’]est fait|termin[ée]e?|listo|hecho|feito|fatto|gotowe|klaar|hotovo|готово|сделано|выполнено)\b"
    r"|完成|完了|已修复|완료|^\W*[✅✔☑👍🎉]+\W*$",
    re.IGNORECASE,
)
"""A sentence that says that work was done. Read only where no call was made, so a broad look costs nothing."""
_NOT_DONE = re.compile(
    r"\b(?:not|never|nothing (?:was|is|has)|cannot"
    r"|would|could|should|will|won't|might|may|must|shall|going to|to be|plan(?:s|ned)? to|needs? to"
    r"|want(?:s|ed)? to|let me|let's|i'll|if|unless|once|when|until|before|after|so that|please|you (?:can(?! try it now)|have|need)"
    r"|(?:recommend|suggest)(?:ed|s|ing)?|failed|unable|tried|attempt(?:ed)?|upstream|since (?:v?\d|version)|in (?:v|version )?\d[\d.]*\b"
    r"|original(?:ly)?|the (?:user|author)s?|e\.g|no response requested|interrupted by user|api error)\b"
    r"|n't\b|\?\W*$|^\W*(?:to|use|run|see|how|why|what|which|where) ",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"^\W*(?:(?:hi|hello|hey|thanks|ok|okay|so|and|but|please|(?:can|could|would|will) you(?: please)?)\b\W*)*"
    r"(?:what|why|how|when|where|which|who|whose|is|are|was|were|does|do|did|has|have|explain|tell|describe|summari[sz]e|list|compare|translate"
    r"|recommend|suggest|think|imagine|answer|say|reply)\b",
    re.IGNORECASE,
)
_ORDERS = re.compile(r"\b(?:please|(?:can|could|would|will) you)\b", re.IGNORECASE)


def _is_question(prompt: str) -> bool:
    """Whether a prompt asks for an answer, not for work."""
    first = prompt.strip()[:400]
    return bool(_ASKS.match(first)) or (first.rstrip().endswith("?") and not _ORDERS.search(first))


_WORK = re.compile(
    r"^\W*(?:(?:hi|hello|hey|thanks|ok|okay|yes|so|and|now|then|please|just|also|next|(?:can|could|would|will) you(?: please)?"
    r"|go ahead and|i (?:want|need) you to|you (?:must|should|are to)|your (?:task|job)(?: is)?(?: to)?|task)\b\W*)*"
    r"(?:add|adjust|allow|appl|automat|backup|back up|build|bump|chang|clean|close|commit|configur|continue|convert|copy|correct|creat|cut"
    r"|debug|delet|deploy|disabl|do(?! (?:you|we|i|they|any|the)\b)"
    r"|document|drop|edit|enabl|extend|extract|finish|fix|format|generat|get|go ahead|handl|implement|improv"
    r"|install"
    r"|integrat|introduc|make|merg|migrat|modif|move|open|optimi[sz]|patch|port|proceed|publish|push|put|refactor|releas|remov|renam|repair"
    r"|replac|resolv|restor|revert|rewrit|roll|run|save|set|ship|solve|speed|split|start|stop|store|support|switch|test|turn|upda|upgrad|wire|wrap|writ)"
    r"(?:e|es|y|ing|te)?\b(?! (?:me )?(?:an? |the |some |\d+ )?(?:\w+ )?(?:answer|essay|haiku|joke|list|name|outline|paragraph|plan"
    r"|poem|proposal"
    r"|sentence|story|summary|word)s?\b)",
    re.IGNORECASE,
)
"""A prompt that asks for something that takes calls."""
_DECLINES = re.compile(
    r"\?\s*$|\b(?:can(?:not|['’]t| not)|could(?:n['’]t| not)|unable|won['’]t|(?:do|did|does|have|has|is|was|were|are|am)(?:n['’]t| not)|never"
    r"|need (?:more|you|access|to know|your|the)|please|sorry|afraid|before I|I(?:['’]ll| will)\b|let me|going to|next I|already|instead"
    r"|api error|overloaded|(?:rate|usage|session) limit|limit reached|credit balance|too (?:long|large)|interrupted|/login|no response"
    r"|invalid|timed out|waiting for|would|recommend|suggest|(?<!that )should|you can"
    r"|here(?:['’]s| is) how|which (?:one|file|of)|nothing (?:was|to do)|blocked|refuse)",
    re.IGNORECASE | re.MULTILINE,
)
"""A reply that asks, refuses, plans, or tells of a fault of the program."""
_SHORT_CHARACTERS, _SHORT_LINES = 600, 8


def says_done(text: str, prompt: str = "") -> bool:
    """Whether a report says that work was done, in whatever words: for an agent that made no call.

    A short reply to a prompt that asks for work says so unless it asks back, refuses or plans. What is longer, or holds
    code, may be the answer itself: its words are looked at.
    """
    short = len(text) <= _SHORT_CHARACTERS and text.count("\n") < _SHORT_LINES and "```" not in text
    asks = prompt.rstrip().endswith("?") and not _ORDERS.search(prompt)
    if short and text.strip() and _WORK.match(prompt) and not asks and not _DECLINES.search(text):
        return True
    plain = re.sub(r"(?<=[^\s.!?:;|])\n(?=[a-z])", " ", _plain(text))
    sentences = [one for one in _SENTENCE.split(plain) if one.strip(" \t#*-") and one[0] not in "#|<"]
    answers = _is_question(prompt)
    ends = 2 if answers else 4  # there a report says so; between, a text explains
    sentences = [*sentences[:ends], *sentences[ends:][-ends:]]
    for sentence in sentences:
        if len(sentence) > (100 if answers else 300) or _NOT_DONE.search(
            sentence.removeprefix("That should ")
        ):
            continue
        if _SAYS_DONE.search(sentence):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Said:
    kind: ClaimKind
    subject: str
    line: str
    topic: re.Pattern[str] | None = None


def _plain(text: str) -> str:
    return _MARKUP.sub(lambda match: match[1] or "", _FENCED.sub("", text[-MOST_CHARACTERS:]))


def claims_in(text: str) -> list[_Said]:
    """What a report claims, each once."""
    found: dict[tuple[ClaimKind, str], _Said] = {}

    def add(kind: ClaimKind, subject: str, line: str, topic: re.Pattern[str] | None = None) -> None:
        found.setdefault((kind, subject), _Said(kind, subject, one_line(line[:1_000], 300), topic))

    plain = _plain(text)
    of_others = _OF_OTHERS.search(plain) is not None
    listing = table = False
    titled = ""
    """A path that is a line of its own: what the items below it changed."""
    for line in plain.split("\n"):
        bullet = _BULLET.match(line)
        if not line.strip():
            continue
        if _FILES_FOLLOW.match(line.strip().rstrip(":").lstrip("# ")):
            listing = True
            continue
        if _TABLE.match(line):
            table = True
            continue
        table = table and line.lstrip().startswith("|")
        if table and not of_others and (path := PATH.match(line.lstrip("| `"))) and not _HEDGED.search(line):
            _add_path(add, path[0], line)
        if titled and bullet is not None and not of_others and not _HEDGED.search(line):
            if _CHANGE.match(line[bullet.end() :]):
                _add_path(add, titled, line)
        else:
            alone = PATH.match(line.strip(" \t#*`:"))
            titled = alone[0] if alone and alone.end() == len(line.strip(" \t#*`:")) else ""
        if not of_others and not _HEDGED.search(line):
            _read_line(add, line)
        listing = listing and bullet is not None
        if bullet is not None and not of_others and not _HEDGED.search(line):
            rest = _FIRST_PATH.sub("", line[bullet.end() :])
            path = PATH.match(rest)
            after = rest[path.end() :] if path else ""
            if path and (
                listing or re.match(rf"[`\"')*:\d,\-– ]*[-–—:]\s*{_CHANGED}\b", after, re.IGNORECASE)
            ):
                _add_path(add, path[0], line)
        for sentence in _SENTENCE.split(line):
            if sentence and not _HEDGED.search(sentence) and (not of_others or _I.search(sentence)):
                _read_sentence(add, sentence)
    return list(found.values())[:MOST_CLAIMS]


def _read_line(add: Any, line: str) -> None:
    """What a whole line claims by its form: a list of files, a ticked item, a path and what was done to it."""
    if heads := _IN_LINE.match(line):
        place = heads.end()
        while (path := PATH.search(line, place)) and re.fullmatch(
            r"[\s`'\",*]*(?:and|&|,)?[\s`'\"*]*", line[place : path.start()]
        ):
            _add_path(add, path[0], line)
            place = path.end()
    if ticked := _TICKED.match(line):
        verb = _TO_CHANGE.match(line, ticked.end())
        path = PATH.search(line, verb.end()) if verb else None
        if (
            verb
            and path
            and path.start() - verb.end() < 40
            and not _REFERS.search(line[verb.end() : path.start()])
        ):
            _add_path(add, path[0], line)
    rest = _FIRST_PATH.sub("", re.sub(r"^[\s✅✓•*-]+", "", line))
    path = PATH.match(rest)
    if path and re.match(
        rf"[`\"')*:\d,\- ]*[-–—:]\s*(?:\w+ ){{0,3}}{_CHANGED}\b", rest[path.end() :], re.IGNORECASE
    ):
        _add_path(add, path[0], line)


def _read_sentence(add: Any, sentence: str) -> None:
    word = re.search(r"[\w~./]", sentence)
    first = word.start() if word else 0
    for named in PATH.finditer(sentence):
        begins = named.start() <= first
        if (
            _PASSIVE.match(sentence, named.end())
            or (
                begins
                and (_BARE_PASSIVE.match(sentence, named.end()) or _NOW_DOES.match(sentence, named.end()))
            )
            or (
                _WORK_IN.search(sentence, max(0, named.start() - 40), named.start())
                and _IS_DONE.match(sentence, named.end())
            )
            or (
                _IN.search(sentence, max(0, named.start() - 5), named.start())
                and _IN_IT.match(sentence, named.end())
            )
        ):
            _add_path(add, named[0], sentence)
    for verb in _CHANGE.finditer(sentence):
        if _NO_REPORT.search(sentence, max(0, verb.start() - 30), verb.start()):
            continue
        place = verb.end()
        while (path := PATH.search(sentence, place, place + _NEAR)) is not None:
            between = sentence[place : path.start()]
            is_first = place == verb.end()
            if is_first and verb[0].casefold() in ("removed", "deleted") and _TAKEN_FROM.match(between):
                _add_path(add, path[0], sentence)
                break
            if is_first and (len(between) > 60 or _REFERS.search(between) or _CHANGE.search(between)):
                break
            if not is_first and not re.fullmatch(r"[\s`'\",]*(?:and|&|,)?[\s`'\"]*", between):
                break
            _add_path(add, path[0], sentence)
            place = path.end()
    if _TESTS_PASS.search(sentence):
        add(ClaimKind.TESTS, "", sentence)
    for name, claim, command in _TOPICS:
        if claim.search(sentence):
            add(ClaimKind.COMMAND, name, sentence, command)
    for match in _RAN.finditer(sentence):
        command_text = (match[1] or match[2] or match[3]).strip()
        if not _PROGRAM.match(command_text):
            continue
        if _RUNS_TESTS.search(command_text):
            if match[2]:
                add(ClaimKind.TESTS, "", sentence)
        elif " " in command_text:
            words = [re.escape(word) for word in command_text.removeprefix("$ ").split()[:2]]
            add(ClaimKind.COMMAND, command_text, sentence, re.compile(r"\s+(?:\S+\s+)*?".join(words)))


def _add_path(add: Any, path: str, line: str) -> None:
    path = _LINES.sub("", path.rstrip(".,:;"))
    if _HAS_EXTENSION.search(path) and "*" not in path and not path.startswith("http"):
        add(ClaimKind.FILE, path, line)


# --- Evidence among the calls -------------------------------------------------------------------------------

_READS_ONLY = re.compile(
    r"^\s*(?:cd \S+ *(?:&&|;) *)*(?:ls|cat|head|tail|wc|grep|rg|ag|find|tree|pwd|echo(?![^|]*>)|which|file|stat|du|df|ps|env|date|sed -n|awk"
    r"|less|more|type|git (?:status|diff|log|show|blame|branch|rev-parse|remote|ls-files|fetch))\b(?!.*(?:[^2&]>|\btee\b|-exec|-delete|&&|;))",
    re.DOTALL,
)  # fmt: skip
_READING_TOOLS = re.compile(
    r"read|view|open|grep|glob|search|list|fetch|todo|recall|plan|^ls$|^cat$", re.IGNORECASE
)
_LOOKS = re.compile(r"explor|plan|research|review|search|read|investigat|analy", re.IGNORECASE)
"""The kind of an agent that changes nothing."""
_DELEGATES = re.compile(r"^(?:task|agent|spawn\w*|delegate\w*|subagent\w*)$", re.IGNORECASE)


@dataclass(slots=True)
class _Call:
    agent_id: str
    seq: int
    name: str
    given: Any
    failed: bool
    result: str

    @property
    def pointer(self) -> str:
        return f"message://{self.agent_id}/{self.seq}"

    @property
    def acts(self) -> bool:
        """Whether the call may have changed something."""
        command = command_of(self.given)
        if command:
            return not _READS_ONLY.match(command)
        if _DELEGATES.match(self.name) and isinstance(self.given, dict):
            return not _LOOKS.search(str(self.given.get("subagent_type") or self.given.get("role") or ""))
        return not _READING_TOOLS.search(self.name)


def _check(
    reads: Any, family: Sequence[str], said: Sequence[_Said], before_seq: int | None = None
) -> list[Claim]:
    if not said:
        return []
    calls = [
        call
        for call in _calls(reads, family, said)
        if before_seq is None or call.agent_id != family[0] or call.seq < before_seq
    ]
    return [_verdict(one, calls) for one in said]


def _words(said: Iterable[_Said]) -> list[str]:
    """Each call that is evidence for one of the claims holds one of these, or its result does."""
    words: dict[str, None] = {}
    for one in said:
        if one.kind is ClaimKind.FILE:
            words[one.subject.rpartition("/")[2]] = None
    return list(words)


def _calls(reads: Any, family: Sequence[str], said: Sequence[_Said]) -> Iterator[_Call]:
    """The newest calls that may be evidence, oldest first within an agent."""
    names = _words(said)
    shells = any(one.kind is not ClaimKind.FILE for one in said)
    for agent_id in family:
        rows = reads.all(
            "SELECT seq, result_seq, tool_use_id, name, is_error FROM tool_calls WHERE agent_id = ? ORDER BY id DESC LIMIT ?",
            (agent_id, MOST_CALLS),
        )
        if not rows:
            continue
        wanted: dict[int, list[Any]] = {}
        for row in reversed(rows):
            wanted.setdefault(row[0], []).append(row)
        halves: dict[int, set[int]] = {}
        for seq, result_seq, *_ in rows:
            if result_seq is not None:
                halves.setdefault(seq, set()).add(result_seq)
                halves.setdefault(result_seq, set()).add(seq)
        contents = _contents(reads, agent_id, min(wanted), names, shells=shells, halves=halves)
        blocks = {
            (seq, block.get("id") or block.get("tool_use_id")): block
            for seq, found in contents.items()
            for block in found
        }
        for seq, calls in wanted.items():
            for _, result_seq, use_id, name, is_error in calls:
                block = blocks.get((seq, use_id))
                if block is None:
                    continue
                answer = blocks.get((result_seq, use_id), {})
                yield _Call(agent_id, seq, name, block.get("input"), bool(is_error), _result_text(answer))


def _contents(
    reads: Any,
    agent_id: str,
    first: int,
    names: Sequence[str],
    *,
    shells: bool,
    halves: dict[int, set[int]],
) -> dict[int, list[dict[str, Any]]]:
    """The messages with calls that may be evidence, and their results. `halves`: by message, those with the other half
    of its calls."""
    held = [*names, *(('"command"', '"cmd"', "test") if shells else ())]
    any_of = " OR ".join(["content LIKE ? ESCAPE '\\'"] * len(held))
    rows = reads.all(
        f"SELECT seq, content FROM messages WHERE agent_id = ? AND seq >= ? AND content LIKE '%tool\\_%' ESCAPE '\\' AND ({any_of})",
        (agent_id, first, *("%" + beginning(one) for one in held)),
    )
    found = {row[0]: decode_or(row[1], []) for row in rows}
    # A result may name what its call does not (and the other way round): each needs its other half.
    missing = {other for seq in found for other in halves.get(seq, ())} - set(found)
    for seq in sorted(missing):
        row = reads.one("SELECT content FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, seq))
        if row is not None:
            found[seq] = decode_or(row[0], [])
    return {
        seq: [block for block in blocks if isinstance(block, dict)]
        for seq, blocks in found.items()
        if isinstance(blocks, list)
    }


def _result_text(block: dict[str, Any]) -> str:
    return "\n".join(leaves(block.get("content")))[-RESULT_CHARACTERS:]


def _verdict(said: _Said, calls: Sequence[_Call]) -> Claim:
    if said.kind is ClaimKind.FILE:
        return _judge_file(said, calls)
    wanted = said.topic or _RUNS_TESTS
    run = [call for call in calls if _ran(call, wanted)]
    what = (
        "the tests"
        if said.kind is ClaimKind.TESTS
        else f"the {said.subject}"
        if said.topic and " " not in said.subject
        else said.subject
    )
    if said.kind is ClaimKind.COMMAND and said.subject in ("commit", "push"):
        missing = f"no call made the {said.subject}"
    else:
        missing = f"no call ran {one_line(what, 60)}"
    if not run:
        return Claim(said.kind, said.subject, said.line, Verdict.NONE, (), missing)
    last = run[-1]
    pointers = tuple(dict.fromkeys(call.pointer for call in run[-3:]))
    if said.kind is ClaimKind.TESTS:
        tested = [call for call in run if not _DELEGATES.match(call.name)]
        if tested and _tests_failed(tested[-1]):
            return Claim(
                said.kind,
                "",
                said.line,
                Verdict.CONTRADICTED,
                (tested[-1].pointer,),
                "the last run of the tests failed",
            )
        edited = [
            call
            for call in calls
            if call.agent_id == last.agent_id and call.seq > last.seq and edited_files(call.given)
        ]
        note = "files were edited after the last run of the tests" if edited else ""
        return Claim(said.kind, "", said.line, Verdict.EVIDENCE, pointers, note)
    return Claim(said.kind, said.subject, said.line, Verdict.EVIDENCE, pointers)


def _tests_failed(call: _Call) -> bool:
    return call.failed or (_TESTS_FAILED.search(call.result) is not None and "test" in command_of(call.given))


def _ran(call: _Call, wanted: re.Pattern[str]) -> bool:
    """Whether a call ran what is looked for, or asked another agent or a test tool to."""
    command = command_of(call.given)
    if command:
        return wanted.search(command) is not None and (not _READS_ONLY.match(command))
    if _DELEGATES.match(call.name) or (not _READING_TOOLS.search(call.name) and not edited_files(call.given)):
        return any(wanted.search(leaf) for leaf in (call.name, *leaves(call.given)))
    return False


def _judge_file(said: _Said, calls: Sequence[_Call]) -> Claim:
    path = said.subject.removeprefix("./").lstrip("~/")
    name = path.rpartition("/")[2]

    def same(other: str) -> bool:
        other = other.removeprefix("./")
        return other == path or other.endswith("/" + path) or path.endswith("/" + other) or (
            other.rpartition("/")[2] == name and path.count("/") < 1
        )  # fmt: skip

    writes = [call for call in calls if any(same(one) for one in edited_files(call.given))]
    done = [call for call in writes if not call.failed]
    if not done:
        done = [
            call
            for call in calls
            if not call.failed and call.acts and not edited_files(call.given) and _names_file(call, name)
        ]
    if done:
        return Claim(
            said.kind,
            said.subject,
            said.line,
            Verdict.EVIDENCE,
            tuple(dict.fromkeys(call.pointer for call in done[-3:])),
        )
    shown = one_line(said.subject, 80)
    if writes:
        return Claim(
            said.kind,
            said.subject,
            said.line,
            Verdict.CONTRADICTED,
            (writes[-1].pointer,),
            f"every write of {shown} failed",
        )
    read = next(
        (
            call
            for call in reversed(calls)
            if path_of(call.given if isinstance(call.given, dict) else {}).endswith(name)
        ),
        None,
    )
    note = f"{shown} was read, never written" if read else f"no call wrote {shown}"
    return Claim(said.kind, said.subject, said.line, Verdict.NONE, (read.pointer,) if read else (), note)


def _names_file(call: _Call, name: str) -> bool:
    """Whether a call that may write files names this one, or its result does."""
    return name in call.result or any(name in leaf for leaf in leaves(call.given))


def _artifacts(reads: Any, agent_id: str, task_id: str, expected: Any) -> list[Claim]:
    """What the task promised, against what its agents saved."""
    promised = [str(name) for name in expected] if isinstance(expected, list) else []
    if not promised:
        return []
    rows = reads.all(
        "SELECT name, digest FROM outputs WHERE (task_id = ? OR agent_id = ?) AND kind <> 'result' ORDER BY id",
        (task_id, agent_id),
    )
    saved = {row[0]: f"artifact://sha256/{row[1]}" for row in rows}
    found = []
    for name in promised:
        ref = saved.get(name)
        verdict, note = (
            (Verdict.EVIDENCE, "")
            if ref
            else (Verdict.NONE, f"{one_line(name, 80)} was promised, and not saved")
        )
        found.append(
            Claim(
                ClaimKind.ARTIFACT,
                name,
                f"promised: {one_line(name, 200)}",
                verdict,
                (ref,) if ref else (),
                note,
            )
        )
    return found
