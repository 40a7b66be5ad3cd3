"""Secrets are taken out once, before anything reaches a model or the store."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from watchkeeper.records.secret_names import PUBLIC_NAMES, SECRET_NAMES

LEAST_CHARACTERS = 8
"""A shorter value is no secret worth the name, and would be found inside common words."""

_LEAST_ENCODED = 12
"""Bytes."""

MARK = re.compile(r"\[redacted:[A-Za-z0-9_.@/-]{1,100}\]")
"""What a `Redactor` writes in a secret's place."""
_NOT_IN_MARKS = re.compile(r"[^A-Za-z0-9_.@/-]")

_TELLING = 4
"""Characters of a known value that make the end of a text look like its beginning."""
_LAST_WORD = re.compile(r"[A-Za-z0-9_.+/=~-]{8,}")
_LONGEST_WORD = 2_000

_COMMON_VALUES = frozenset(
    {"disabled", "required", "optional", "password", "changeme", "anonymous", "undefined", "keychain", "redacted"}
)

_PEM = "-----{} (?:[A-Z0-9]+ ){{0,3}}PRIVATE KEY(?: BLOCK)?-----"

_AWS_NAMES = ("ecretAccessKey", "ecret_access_key", "ECRET_ACCESS_KEY")
_ASSIGNS = r"""[\"'\\]{0,3}\s{0,3}[:=]\s{0,3}[\"'\\]{0,3}"""
_PART = r"""[^\s/?#:@\"'<>\\`]"""
"""A character of a URL's user or password."""

SHAPES: tuple[tuple[str, str, str], ...] = (
    # name, what any match holds (looked for first: it is much faster than the expression), expression
    ("private-key", "PRIVATE KEY", rf"{_PEM.format('BEGIN')}.*?(?:{_PEM.format('END')}|\Z)"),
    ("anthropic-key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{16,}"),
    ("openai-key", "sk-", r"\bsk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}"),
    ("api-key", "sk-", r"\bsk-[A-Za-z0-9_-]{20,}"),
    *(("github-token", f"gh{kind}_", rf"\bgh{kind}_[A-Za-z0-9]{{30,}}") for kind in "pousr"),
    ("github-token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{30,}"),
    ("gitlab-token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    *(("aws-key", name, rf"\b{name}[A-Z0-9]{{16}}\b") for name in ("AKIA", "ASIA")),
    ("slack-token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("slack-token", "xapp-", r"\bxapp-[A-Za-z0-9-]{20,}"),
    ("slack-webhook", "hooks.slack.com/", r"\bhooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,}"),
    ("google-key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}"),
    ("google-token", "ya29.", r"\bya29\.[A-Za-z0-9_-]{20,}"),
    ("google-secret", "GOCSPX-", r"\bGOCSPX-[A-Za-z0-9_-]{20,}"),
    ("stripe-key", "k_live_", r"\b[rs]k_live_[A-Za-z0-9]{16,}"),
    ("npm-token", "npm_", r"\bnpm_[A-Za-z0-9]{36}"),
    ("pypi-token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("huggingface-token", "hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    ("groq-key", "gsk_", r"\bgsk_[A-Za-z0-9]{40,}"),
    ("xai-key", "xai-", r"\bxai-[A-Za-z0-9]{60,}"),
    ("perplexity-key", "pplx-", r"\bpplx-[A-Za-z0-9]{40,}"),
    ("sendgrid-key", "SG.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{30,}"),
    ("digitalocean-token", "dop_v1_", r"\bdop_v1_[a-f0-9]{64}"),
    ("shopify-token", "shpat_", r"\bshpat_[a-fA-F0-9]{32}"),
    ("vault-token", "hvs.", r"\bhvs\.[A-Za-z0-9_-]{24,}"),
    ("age-key", "AGE-SECRET-KEY-1", r"\bAGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("stripe-key", "k_test_", r"\b[rs]k_test_[A-Za-z0-9]{16,}"),
    ("stripe-secret", "whsec_", r"\bwhsec_[A-Za-z0-9+/]{24,}=*"),
    ("replicate-token", "r8_", r"\br8_[A-Za-z0-9]{30,}"),
    ("tavily-key", "tvly-", r"\btvly-[A-Za-z0-9_-]{20,}"),
    ("nvidia-key", "nvapi-", r"\bnvapi-[A-Za-z0-9_-]{40,}"),
    ("docker-token", "dckr_", r"\bdckr_[po]at_[A-Za-z0-9_-]{20,}"),
    ("atlassian-token", "ATATT3", r"\bATATT3[A-Za-z0-9_=-]{40,}"),
    ("grafana-token", "glsa_", r"\bglsa_[A-Za-z0-9]{30,}(?:_[a-f0-9]{8})?"),
    ("linear-key", "lin_api_", r"\blin_api_[A-Za-z0-9]{30,}"),
    ("notion-token", "ntn_", r"\bntn_[A-Za-z0-9]{40,}"),
    ("azure-key", "AccountKey=", r"(?P<kept>AccountKey=)[A-Za-z0-9+/]{60,}=*"),
    ("bearer-token", "earer ", r"(?P<kept>\b[Bb]earer )(?=[A-Za-z_.~+/-]*\d)[A-Za-z0-9_.~+/-]{20,}=*"),
    ("jwt", "eyJ", r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    *(("aws-secret", name, rf"(?P<kept>{name}{_ASSIGNS})[A-Za-z0-9/+]{{40}}(?![A-Za-z0-9/+])") for name in _AWS_NAMES),
    ("url-password", "://", rf"(?P<kept>://{_PART}{{0,200}}:)(?![$%<{{*\[]){_PART}{{6,200}}(?=@[A-Za-z0-9\[])"),
)  # fmt: skip
"""A group `kept` stays as it is."""

_WORD, _LETTERS = "[A-Za-z0-9_-]", "[A-Za-z0-9]"
TELLING: tuple[tuple[str, str], ...] = (
    *((name, "") for name in (*_AWS_NAMES, "hooks.slack.com", "PRIVATE KEY", "AccountKey")),
    *((f"gh{kind}_", f"{_LETTERS}{{30}}") for kind in "pousr"),
    *((name, "[A-Z0-9]{16}") for name in ("AKIA", "ASIA")),
    ("ya29.", f"{_WORD}{{20}}"), ("GOCSPX-", f"{_WORD}{{20}}"), ("sk-", f"{_WORD}{{16}}"), ("github_pat_", "[A-Za-z0-9_]{30}"),
    ("glpat-", f"{_WORD}{{20}}"), ("xox", "[abeoprs]-[A-Za-z0-9-]{10}"), ("xapp-", "[A-Za-z0-9-]{20}"),
    ("AIza", f"{_WORD}{{35}}"), ("k_live_", f"{_LETTERS}{{16}}"), ("k_test_", f"{_LETTERS}{{16}}"), ("npm_", f"{_LETTERS}{{36}}"),
    ("pypi-", f"{_WORD}{{50}}"), ("hf_", f"{_LETTERS}{{30}}"), ("eyJ", rf"{_WORD}{{10,}}\.eyJ{_WORD}{{10,}}\."),
    ("gsk_", f"{_LETTERS}{{40}}"), ("xai-", f"{_LETTERS}{{60}}"), ("pplx-", f"{_LETTERS}{{40}}"),
    ("SG.", rf"{_WORD}{{16,}}\.{_WORD}{{30}}"), ("dop_v1_", "[a-f0-9]{64}"), ("shpat_", "[a-fA-F0-9]{32}"),
    ("hvs.", f"{_WORD}{{24}}"), ("AGE-SECRET-KEY-1", "[A-Z0-9]{50}"), ("earer ", r"[A-Za-z0-9_.~+/\\-]{20}"),
    ("whsec_", r"[A-Za-z0-9+/\\]{24}"), ("r8_", f"{_LETTERS}{{30}}"), ("tvly-", f"{_WORD}{{20}}"), ("nvapi-", f"{_WORD}{{40}}"),
    ("dckr_", f"[po]at_{_WORD}{{20}}"), ("ATATT3", "[A-Za-z0-9_=-]{40}"), ("glsa_", f"{_LETTERS}{{30}}"),
    ("lin_api_", f"{_LETTERS}{{30}}"), ("ntn_", f"{_LETTERS}{{40}}"),
)  # fmt: skip
"""Of what has one of `SHAPES`, one of these is a part, or `SUSPICIOUS`, also in a line of JSON, which may have a backslash
before a slash: a text, and the expression that goes on behind it. `sk-` alone is in every `task-list`."""
_TELLING_SHAPES = tuple((text.encode(), re.compile(re.escape(text).encode() + more.encode())) for text, more in TELLING)

_OPEN_URL = re.compile(rf"://{_PART}{{0,200}}:{_PART}{{0,200}}@?\Z")
_LOGGED_PART = rf"(?:{_PART}|\\u00[0-9a-fA-F]{{2}})"
SUSPICIOUS = (
    rf":\\?/\\?/{_LOGGED_PART}{{0,200}}:{_LOGGED_PART}{{6,200}}@|\\u00(?:2[013-589ac-fAC-F]|3[0-9abfABF]|[457]|6[1-9a-fA-F])"
)
"""A URL with a password; a letter that a line of JSON writes as its number, so that nothing can be told by looking. Many writers
do so with ``"&'+<=>` ``, which are in nothing else that is looked for."""
_SUSPICIOUS = re.compile(SUSPICIOUS.encode())

_RUN = re.compile(r"""[^"\\/&'+<=>`\x00-\x1f\x7f]+""")
_ASCII_RUN = re.compile(r"[ !#-%(-*,-.0-;?-\[\]-_a-~]+")
"""What no writer of JSON writes otherwise than as it is, or else by the numbers that `SUSPICIOUS` finds."""
_TELLING_RUN = 5

_LEFT_ALONE = frozenset({"signature", "encrypted_content", "encrypted_index"})
"""Fields that a provider checks byte for byte."""


class Redactor:
    """Replaces secrets with `[redacted:NAME]`: the values of secret variables, and whatever has a key's shape.

    Applying it again changes nothing. `signature` fields and base64 data are left as they are.

    Args:
        environ: variables; those with the name of a secret are taken.
        secrets: name → value of what is known to be secret, whatever its name.
    """

    def __init__(self, environ: Mapping[str, str], secrets: Mapping[str, str] | None = None) -> None:
        self.count = 0
        """How many texts and kinds of secret were replaced so far."""
        names = {
            value.strip(): name
            for name, value in sorted(environ.items(), reverse=True)
            if SECRET_NAMES.search(name) and not PUBLIC_NAMES.search(name) and _is_secret(value.strip())
        }
        names |= {value.strip(): name for name, value in (secrets or {}).items() if _is_secret(value.strip())}
        names = {value: _NOT_IN_MARKS.sub("_", name)[:100] for value, name in names.items()}
        labels = " ".join(f"[redacted:{name}]" for name in (*names.values(), *(shape[0] for shape in SHAPES)))
        # What occurs in a label itself would be replaced again and again.
        self._values = {form: name for value, name in names.items() for form in _forms(value) if form not in labels}
        longest_first = sorted(self._values, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        hints = {hint for form in self._values for hint in _tellings(form)}
        self._hints = [hint.encode("utf-8", "replace") for hint in sorted(hints)]
        self._shapes = [(name, hint, re.compile(shape, re.DOTALL)) for name, hint, shape in SHAPES]

    def text(self, text: str) -> str:
        """The text without secrets; the very same object when it holds none."""
        # Again after each replacement: what stood right before a secret may have hidden where the next one begins.
        while len(text) >= LEAST_CHARACTERS and (clean := self._once(text)) != text:
            text = clean
        return text

    def streamed(self, text: str) -> str:
        """A text that is still being written: without secrets, and without an end that may be the beginning of one."""
        text = self.text(text)
        end = len(text)
        for form in self._values:
            at = text.find(form[:_TELLING], max(0, len(text) - len(form) + 1))
            while at != -1 and at < end:
                if form.startswith(text[at:]):
                    end = at
                at = text.find(form[:_TELLING], at + 1)
        word = _LAST_WORD.match(text[:end][::-1][:_LONGEST_WORD])
        end -= len(word[0]) if word is not None else 0
        open_url = _OPEN_URL.search(text[-_LONGEST_WORD:])
        if open_url is not None:
            end = min(end, len(text) - len(open_url[0]))
        return text if end == len(text) else text[:end] + "…"

    def _once(self, text: str) -> str:
        if self._known is not None:
            text, found = self._known.subn(lambda match: f"[redacted:{self._values[match[0]]}]", text)
            self.count += found
        for name, hint, shape in self._shapes:
            if hint in text and (replaced := shape.sub(_label(name), text)) != text:
                text = replaced
                self.count += 1
        return text

    def __call__(self, value: Any) -> Any:
        """Any JSON-like value (content, blocks, arguments) without secrets; what holds none is the same object."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            items = [self(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            if isinstance(value, list):
                return items
            return value._make(items) if hasattr(value, "_make") else tuple(items)
        return value

    @property
    def hints(self) -> tuple[bytes, ...]:
        """Bytes one of which is in whatever holds a value that is known to be secret, if `SUSPICIOUS` is not."""
        return tuple(self._hints)

    def suspects(self, data: bytes) -> bool:
        """Whether these bytes may hold a secret: quick, and wrong only in saying yes."""
        return (
            any(hint in data for hint in self._hints)
            or any(text in data and shape.search(data) is not None for text, shape in _TELLING_SHAPES)
            or _SUSPICIOUS.search(data) is not None
        )

    def line(self, data: bytes) -> bytes:
        """A line of a log, most often of JSON, without secrets; the very same object when it holds none."""
        if not self.suspects(data):
            return data
        text = data.decode("utf-8", "replace")
        try:
            value = json.loads(text)
            found = self(value)
            clean = text if found is value else json.dumps(found, ensure_ascii=False)
        except (ValueError, RecursionError):
            clean = self.text(text)
        return data if clean is text else clean.encode("utf-8", "replace")

    def _mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        opaque = _LEFT_ALONE | {"data"} if value.get("type") in ("base64", "redacted_thinking") else _LEFT_ALONE
        changed = False
        result: dict[Any, Any] = {}
        for key, old in value.items():
            new_key = self.text(key) if isinstance(key, str) else key
            new = old if key in opaque and isinstance(old, str) else self(old)
            changed = changed or new is not old or new_key is not key
            result[new_key] = new
        return result if changed else value


def _label(name: str) -> Callable[[re.Match[str]], str]:
    if name == "api-key":
        # `sk-learn-and-its-many-friends` has the letters of a key, but not its randomness.
        return lambda match: f"[redacted:{name}]" if any(map(_is_random, re.split("[-_]", match[0]))) else match[0]
    if name in ("aws-secret", "url-password", "azure-key", "bearer-token"):
        return lambda match: _kept(name, match)
    return lambda match: f"[redacted:{name}]"


def _kept(name: str, match: re.Match[str]) -> str:
    kept = match["kept"]
    if match[0][len(kept) :].lower() in _COMMON_VALUES:
        return match[0]  # `postgres://user:password@localhost`, as manuals have it
    return f"{kept}[redacted:{name}]"


def _is_random(part: str) -> bool:
    return len(part) >= 16 and any(map(str.isdigit, part))


def _is_secret(value: str) -> bool:
    if len(value) < LEAST_CHARACTERS or value.lower() in _COMMON_VALUES:
        return False
    if value.isdigit() and len(value) < 12:
        return False
    return not value.startswith(("[redacted:", "/", "~/"))


def _forms(value: str) -> list[str]:
    """A value as it stands, inside a JSON string, inside a URL, and each long line of one that has several."""
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    forms |= {escape(value, safe="", errors="replace") for escape in (quote, quote_plus)}
    if "\n" in value:
        forms |= {line.strip() for line in value.splitlines() if len(line.strip()) >= 20}
    forms |= _encoded(value)
    return [form for form in forms if len(form) >= LEAST_CHARACTERS]


def _tellings(form: str) -> set[str]:
    """Texts one of which is in every line of JSON that holds `form`, however its writer escapes, unless it is `SUSPICIOUS`."""
    run = max(_ASCII_RUN.findall(form), key=len, default="")
    if len(run) < _TELLING_RUN:
        run = max(_RUN.findall(form), key=len, default="")
    numbers = {json.dumps(letter)[1:-1] for letter in run if not letter.isascii()}
    return {run, *numbers, *(number.upper().replace(r"\U", r"\u") for number in numbers)} - {""}


def _encoded(value: str) -> set[str]:
    """What of a value is the same in every base64 text that holds it, at each of the three ways in which it may lie there.

    `Authorization: Basic …`, a Kubernetes secret, `echo $TOKEN | base64`. A short value leaves too little to be known by.
    """
    data = value.encode("utf-8", "replace")
    if len(data) < _LEAST_ENCODED:
        return set()
    found = set()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode()
        whole = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        found |= {whole, whole.replace("+", "-").replace("/", "_")}
    return found
