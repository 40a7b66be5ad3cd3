"""Secrets that are known by what is written around them: assignments, headers, cookies, options of commands, `.netrc`.

Such a value has no form of its own, so that its name says that it is secret, and the value must look like one: `password: str`,
`token = get_token()` and `API_KEY=${API_KEY}` name no secret. `spans` finds them in any text; `is_secret_value` judges a value
that stands apart from its name, as in a JSON object.

All expressions are bounded or advance with each step, so that a text takes time in proportion to its length.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from watchkeeper.records.secret_search import any_of

KINDS = frozenset({"password", "secret", "token", "key", "credential", "session", "auth", "authorization", "cookie"})
"""What a span may be labelled."""


class Span(NamedTuple):
    """Where a secret is in a text, and what kind it is of."""

    start: int
    end: int
    label: str


LONGEST_VALUE = 8_192
"""Characters. A longer value is none that a person or a program is given as a password."""
_LEAST = 6
_FIRST = re.compile(r"[A-Za-z0-9/+~!@#%^*_.$&?=|\\-]|[^\x00-\x7f]")
"""With what a value begins: so `suspicious` need not look at most that follows a name."""

# --- names ------------------------------------------------------------------------------------------------------------------


_TAILS = {
    "password": "assword|ASSWORD|asswd|ASSWD|assphrase|ASSPHRASE|_pass|-pass|Pass|_PASS|HPASS|"
    "PASS(?==)|pass(?=[\"'=:])|pwd|Pwd|PWD|_pw|_PW|[a-z]Pw",
    "secret": "ecret|ECRET",
    "token": "oken|OKEN|jwt|JWT|_PAT|_pat|Pat",
    "key": r"_key|-key|apikey|pi\.key|ss\.key|et\.key|Key|KEY",
    "credential": "redential|REDENTIAL",
    "session": "SESSID|SESSIONID",
    "auth": "_auth|auth(?=[\"'])",
}
"""The ends of the names of secrets by their kind; `Password`, `dbPassword` and `DB_PASSWORD` end alike, or nearly so."""
_SUFFIX = (
    r"(?:[_.-]?(?:[0-9]{1,2}|[Bb]ase|BASE|[Vv]alue|VALUE|[Pp]rod(?:uction)?|PROD(?:UCTION)?|[Ll]ive|LIVE|[Dd]ev|DEV|[Ss]taging|STAGING"
    r"|[Tt]est|TEST|[Cc]onfirmation|[Pp]rimary|[Ss]econdary|PRIMARY|SECONDARY|[Oo]ld|OLD|[Nn]ew|NEW|[Cc]urrent|[Dd]ata|DATA))?"
)
_QUOTE = r"\\{0,7}[\"'`]"
_SIGN = r"(?:=>|:=|\?=|={1,3}|:)"
_TYPED = (
    r":[ \t]{0,3}(?:Optional\[str\]|SecretStr|[Ss]tr(?:ing)?|&?(?:'static )?str|const char ?\*|char ?\*)"
    r"(?: ?\| ?(?:None|null|undefined))?[ \t]{0,3}="
)
_SEPARATOR = (
    rf"(?::[ \t]{{0,5}}[|>][-+0-9]{{0,2}}[ \t]{{0,5}}(?:\r?\n|\\{{1,7}}n)[ \t]{{1,60}}"  # NAME: | and an indented line of YAML
    rf"|:[ \t]{{0,5}}(?:\r?\n|\\{{1,7}}n)[ \t]{{0,60}}(?={_QUOTE})"  # NAME: and a quote on the next line
    rf"|(?:{_QUOTE}|[\])]){{0,4}}[ \t]{{0,40}}(?:\|\||\?\?)[ \t]{{0,5}}(?={_QUOTE})"  # NAME || "value"
    rf"|(?:{_QUOTE})?[ \t]{{0,60}}\|[ \t]{{1,60}}"  # | NAME | value |
    rf"|(?:{_QUOTE})?[ \t](?:is|was)(?:[ \t]set[ \t]to)?:?[ \t]"  # the password is value
    rf"|(?:{_QUOTE}|[\])]){{0,4}}[ \t]{{0,60}}(?:{_TYPED}|{_SIGN})[ \t]{{0,60}}"  # NAME = , "name": , ["name"] =>
    rf"|(?:{_QUOTE})?[ \t]{{0,5}},?(?:\s|\\{{1,7}}[nrt]){{0,80}}(?:{_QUOTE})?[Vv]alue"  # name: NAME, value: …
    rf"(?:{_QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}"
    rf"|{_QUOTE}[ \t]{{0,5}},[ \t]{{0,5}}(?={_QUOTE})"  # define('NAME', 'value')
    rf"|(?:{_QUOTE})?>"  # <name>value</name>, <property name="name">value</property>
    rf"|\((?={_QUOTE})"  # setName("value")
    rf"|[ \t]{{1,20}}(?=\S))"  # --name value; judged by what comes before the name
)
_NAMED = re.compile(
    "(?:" + "|".join(f"(?P<{kind}>{tails})" for kind, tails in _TAILS.items()) + f"){_SUFFIX}(?P<separator>{_SEPARATOR})"
)
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_.$-]{0,64}\Z")
_LONGEST_NAME = 64
_TAKES_A_WORD = re.compile(
    r"(?:\A|[\s\"'`(])--?[A-Za-z][\w-]*\Z|(?:configure set|config set|config:set|secrets? set|variables? set|ENV|setx|SetEnv"
    r"|set -[a-zA-Z]{1,4})[ \t]+[\w./:-]*\Z"
)
"""What makes `NAME value` an assignment: an option, or a command that sets names."""
_SQL = re.compile(r"(?:(?i:with|encrypted|user|role|set|alter|create)[ \t=]+(?:\S{1,64}[ \t]+){0,2})\Z")
_KNOWN_KEYS = re.compile(
    r"(?:api|access|secret|private|encrypt(?:ion)?|sign(?:ing)?|master|auth|account|shared|client|license|service|deploy|ssh|webhook"
    r"|hmac|session|storage|app(?:lication)?|admin|root|security|integration|ingest|write|rest|server|crypt|cipher|aes|rsa|jwt"
    r"|cookie|token|user|subscription|function|consumer|partner|merchant|live|prod)key[0-9a-z]{0,12}\Z"
)
_OTHER_NAMES = frozenset(
    """
    bos by cache cached cancel cancellation change cls color completion context continuation creation css dedup
    design end eos export foreign group hash host hot i18n idempotency import index input lock lookup map mask max
    min next num object output pad page pagination partition prev previous primary prompt public query registry
    resume route row sep shortcut sort special start starting stop sync syntax theme total translation unk
    """.split()  # noqa: SIM905
)
"""Words before `key`, `token` or `pass` that give it another meaning."""
_NAME_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_FOLDERS = frozenset({"pwd", "oldpwd"})

# --- values -----------------------------------------------------------------------------------------------------------------

_GENERIC = (
    "password|passwd|passwort|pass|pwd|secret|token|key|api|access|auth|user|admin|root|my|the|client|app|id|name|value|string|default"
    "|postgres|mysql|redis|mongo|db|database|server|service|bearer|basic|hash|type|field|input|label|header|required|optional|enabled"
    "|disabled|file|path|url|private|public|credential|session|cookie|refresh|and|or|is|not|for|of|to|in|with|a"
)
_STAND_INS = (
    "your|example|changeme|change|me|replace|insert|dummy|fake|sample|placeholder|todo|testing|tests|test|foo|bar|baz|qux|here|goes"
    "|demo|mock|stub|invalid|valid|wrong|bad|expired|local|host|dev|prod|staging|development|production|none|null|undefined|nil"
    "|true|false|redacted|hidden|masked|removed|secure|safe|strong|random|generated|some|any|new|old|xyz|abcd|abc|def|asdf|qwerty"
    "|lorem|ipsum|x{3,}"
)
_GENERIC_WORD = re.compile(_GENERIC)
_STAND_IN = re.compile(_STAND_INS)
_REFERENCE = re.compile(
    r"\$\{|\{\{|#\{|\$\(|<%|%\(|\A\$[A-Za-z_]\w*\Z|\A\$\w+\W|\A%\w+%\Z|\A<.*>?\Z|\A\[|\A\(|\A\{|\A\.{2}|…|\*{3}|•|\.{3}\Z"
    r"|\A(?:vault|op|ssm|arn|gs|s3|file|env|keyring|secretsmanager|data|https?|ftp|ssh|urn)://?|\Aarn:|\A(?:env|ref|secret|file):"
    r"|environ|process\.env|getenv|\bsecrets\.|\bvars\.|\bconfig\.|\bsettings\.|\bself\.|\bthis\.|\bargs\.|\bparams\.|\breq(?:uest)?\."
)
_MAY_REFER = re.compile(r"[$%{(<[.:*…•]|environ|getenv")
_LONGEST_PLACEHOLDER = 72
_CODE = re.compile(r"[A-Za-z_$][\w$]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][\w$]*)*(?:[([{<].*|[!?]*)\Z", re.DOTALL)
"""An identifier, a chain of them, or the beginning of a call."""
_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\Z")
_RUNS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_EARLY_DIGIT = re.compile(r"[A-Za-z_.]*(?:[0-9]|[^\s\"\\A-Za-z_.0-9\[({<][^\s\"\\]*[0-9])")
"""A digit, before any quote; what begins like an index, a call or a format is code."""
_CHANGES = re.compile(r"[A-Za-z_.]*?(?:[^\s\"\\A-Za-z_.0-9\[({<][^\s\"\\]*?)?(?:[a-z]+[A-Z]+){3}")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
_HASH = re.compile(r"(?:[0-9a-f]{7,128}|[0-9A-F]{32,128})\Z")
_DIGESTS = re.compile(r"(?:sha(?:1|256|384|512)|md5|blake3)[-:]", re.IGNORECASE)
_ORDINARY_PATH = re.compile(r"[A-Za-z0-9_.@+~ :*-]*\Z")
_PATH_STEP = re.compile(r"[^/]+")


def looks_random(value: str) -> bool:
    """Whether letters and digits change as they do in a random text: not in words, names of variables or versions."""
    if len(value) >= 16 and _HASH.match(value):
        return re.search("[0-9]", value) is not None and re.search("[A-Fa-f]", value) is not None
    runs = _RUNS.findall(value)
    if len(value) < 8 or len(runs) < 3:
        return False
    mean = sum(map(len, runs)) / len(runs)
    if any(map(str.isdigit, value)):
        return mean <= 3.2
    return len(value) >= 12 and mean <= 2.6


def is_path(value: str) -> bool:
    """Whether a value that begins with `/`, `./` or `~/` is a path. One in 64 random texts of base64 begins with `/`, too."""
    if not value.startswith(("/", "./", "../", "~/")):
        return False
    steps = _PATH_STEP.findall(value)
    if not all(map(_ORDINARY_PATH.match, steps)):
        return False
    tail = value.partition("/")[2]
    if re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", tail) is None:
        return True
    random_steps = sum(len(step) + 1 for step in steps if looks_random(step) or _is_mixed(step))
    return not ("=" in tail or looks_random(tail.replace("/", "")) or random_steps * 2 >= len(value))


def _is_mixed(step: str) -> bool:
    return bool(re.search("[0-9]", step) and re.search("[A-Z]", step) and re.search("[a-z]", step) and "." not in step)


def is_placeholder(value: str) -> bool:
    """Whether a value stands for one that its reader has to fill in, refers to another, or is a word of documentation."""
    if len(set(value.lower())) <= 3 or (_MAY_REFER.search(value) and _REFERENCE.search(value)) or is_path(value):
        return True
    if "abcdefghij" in value.lower() or "0123456789" in value:
        return True
    if len(value) > _LONGEST_PLACEHOLDER:
        return "EXAMPLE" in value
    lower = value.lower()
    rest = _STAND_IN.sub("", lower) if (stand_in := _STAND_IN.search(lower)) else lower
    rest = _GENERIC_WORD.sub("", rest)
    letters = re.sub("[^a-z]", "", rest)
    digits = re.sub("[^0-9]", "", value)
    if "xxx" in lower or "EXAMPLE" in value or (not digits and any(map(_STAND_IN.fullmatch, re.split(r"[-_. ]", lower)))):
        return True
    if not any(map(str.isalpha, value)):
        return value.isdigit() and (
            "0123456789012345678901234567890".startswith(digits) or "1234567890123456789012".startswith(digits)
        )
    if letters or not value.isascii():
        return False
    return stand_in is not None or len(digits) <= 3 or "12345678901234567890".startswith(digits)


class _Judged(NamedTuple):
    """How a value is written: what it takes to be taken for a secret depends on it."""

    kind: str
    name: str
    """As it stands, with its first words."""
    is_quoted: bool
    is_line: bool
    """Nothing but name and value is on its line, or the value is a shell's `NAME=value`."""
    is_call: bool = False

    @property
    def is_variable(self) -> bool:
        return self.name.isupper() and self.is_line


def _is_strong(kind: str, name: str) -> bool | None:
    """Whether a name is a secret's for certain, may be one's (False), or is not (None)."""
    flat = re.sub(r"[_.$-]", "", name).lower()
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    if (
        kind in ("password", "auth")
        and flat.endswith(("pass", "auth"))
        and words
        and words[-1] not in ("pass", "auth")
        and not name.isupper()
    ):
        return None  # `bypass`, `unauth`
    if flat in _FOLDERS or flat in ("compass", "bypass") or (len(words) > 1 and words[-2] in _OTHER_NAMES):
        return None
    if kind in ("password", "secret", "session"):
        return True
    if kind == "token":
        return len(flat) > len("token") or name.startswith("-")
    if kind == "key":
        return bool(_KNOWN_KEYS.search(flat)) or (False if len(flat) > 3 else None)
    return False


def is_secret_value(value: str, judged: _Judged) -> bool:
    """Whether what a secret's name is given looks like a secret."""
    strong = _is_strong(judged.kind, judged.name)
    if strong is None or not _LEAST <= len(value) <= LONGEST_VALUE or not _FIRST.match(value) or value.startswith("[redacted:"):
        return False
    if any(map(str.isspace, value)):
        return _is_passphrase(value, judged)
    if is_placeholder(value) or _DIGESTS.match(value):
        return False
    if judged.kind in ("auth", "credential"):
        return _is_basic(value) or (
            len(value) >= 16 and looks_random(value) and not _HASH.match(value) and not _UUID.match(value)
        )
    if not strong:
        least = 12 if judged.kind == "token" else 20
        return (
            len(value) >= least
            and looks_random(value)
            and not _UUID.match(value)
            and (judged.is_variable or not _HASH.match(value))
        )
    if value.isdigit():
        return judged.kind == "password" and len(value) >= 8
    if judged.name.lower().endswith("pat") and not re.fullmatch(r"[A-Za-z0-9_.~+/=-]+", value):
        return False  # a pattern
    has_digit = _EARLY_DIGIT.match(value) is not None
    if judged.is_call:
        return has_digit and len(value) >= 10 and looks_random(value)
    if not judged.is_quoted and not judged.is_line:
        return has_digit and len(value) >= 8 and looks_random(value) and not _is_code(value)
    if judged.is_variable and not _CAPITALS.match(value):
        return not _is_code(value)
    if has_digit:
        return judged.is_quoted or not _is_code(value)
    return looks_random(value) and _CHANGES.match(value) is not None


_DIGITS_AT_END = re.compile("[0-9]{3}$")
"""No chain of names ends so, but a person's password may."""


def _is_code(value: str) -> bool:
    """Whether it is a call, an index or a chain of names."""
    return _CODE.match(value) is not None and (
        any(sign in value for sign in "([{<")
        or ("." in value and not looks_random(value) and _DIGITS_AT_END.search(value) is None)
    )


def _is_passphrase(value: str, judged: _Judged) -> bool:
    if judged.is_quoted and judged.kind == "password" and "phrase" in judged.name.lower():
        return len(value.split()) >= 4 and not re.search(r"[.,;:?!(){}]", value)
    return False


def _is_basic(value: str) -> bool:
    """Whether this is `user:password` in base64."""
    if len(value) < 8:
        return False
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    user, colon, password = plain.partition(":")
    return bool(colon) and plain.isprintable() and bool(user or password) and not is_placeholder(password or user)


def named_secret(name: str, value: str) -> str | None:
    """The kind of secret that `value` is under this name of a JSON object, or None."""
    if not _LEAST <= len(value) <= LONGEST_VALUE:
        return None
    tail = name[-_LONGEST_NAME:]
    match = next((each for each in _NAMED.finditer(f'{tail}": ') if each.end() == len(tail) + 3), None)
    if match is None:
        return None
    kind = _kind_of(match)
    judged = _Judged(kind, name, is_quoted=True, is_line=True)
    return kind if is_secret_value(value, judged) else None


def _kind_of(match: re.Match[str]) -> str:
    return next(kind for kind in _TAILS if match[kind] is not None)


# --- assignments ------------------------------------------------------------------------------------------------------------

_OPENS = re.compile(r"(?:[bru@$]|rb)?(\\{0,7}[\"'`])")
_BARE = re.compile(
    r"[A-Za-z0-9_+/.%~-]{128,4096}={0,2}(?![^\s\"'`,;&)}\]<|\\])|[^\s\"'`]{1,128}(?![^\s\"'`])|[^\s\"'`,;&=:)}\]<>|\\]{1,128}(?=[,;&)}\]<>|\\])"
)
"""A value without quotes: what is long is letters and digits, so that no text is read once for each name in it."""
_ESCAPE = re.compile(r"\\+(?:[nrtu\"'\\]|$)")
_INSIDE = re.compile(r"[,;&)}\]|<>]")
_REST_OF_LINE = re.compile(r"[ \t]*(?:#.*)?(?:\r?\n|\\+[rn]|\Z)")
_LINE_BEFORE = re.compile(
    r"(?:\A|\n|\\n)(?:[^\s:\"']{1,100}[:-])?[ \t]*(?:[0-9]{1,7}(?:→|\t|\\t|[:|-]))?[ \t]*[+-]?[ \t]*(?:- |export |set |declare -x )?[ \t]*\Z"
)
"""The beginning of a line, also as `cat -n`, `grep -n` and `diff` print it."""
_SHELL_BEFORE = re.compile(r"(?:\A|[\s;&|(\"'`→]|[0-9][:-]|\\n|\\t)\Z")


def _assigned(text: str) -> Iterator[Span]:
    for match in _NAMED.finditer(text):
        kind = _kind_of(match)
        before = _NAME_BEFORE.search(text, max(0, match.start() - _LONGEST_NAME), match.start())
        begin = before.start() if before is not None else match.start()
        if begin and text[begin - 1] == "\\" and begin < match.start():
            begin += 1  # the letter of an escape, as in `\nNAME=`
        name = text[begin : match.start("separator")]
        separator = match["separator"]
        if text.startswith("::", begin - 2) or (separator == ":" and text.startswith(":", begin - 1)):
            continue  # a part of a longer name, as in `AWS::IAM::AccessKey` and `arn:aws:…:secret:name`
        at = match.end()
        found = _value(text, begin, name, kind, separator, at)
        if found is not None:
            yield Span(found[0], found[1], kind)


def _value(text: str, begin: int, name: str, kind: str, separator: str, at: int) -> tuple[int, int] | None:
    bare = separator.strip()
    if not bare:
        return _word_behind(text, begin, name, kind, at)
    opened = _OPENS.match(text, at)
    if opened is not None:
        end = _closing(text, opened[1], opened.end())
        value = text[opened.end() : end]
        is_line = "=" in bare or ":" in bare or "alue" in bare
        judged = _Judged(kind, name, is_quoted=True, is_line=is_line, is_call=bare == "(" or bare.endswith(","))
        return (opened.end(), end) if is_secret_value(value, judged) else None
    whole = _BARE.match(text, at)
    if whole is None:
        return None
    value = whole[0]
    if escape := _ESCAPE.search(value):
        value = value[: escape.start()]
    if bare.endswith(">") and "=" not in bare and ":" not in bare:
        inner, closes, _ = value.partition("</")
        judged = _Judged(kind, name, is_quoted=True, is_line=True)
        return (at, at + len(inner)) if closes and is_secret_value(inner, judged) else None
    ahead = text[max(0, begin - 160) : begin]
    is_variable = (
        bare == "=" and not separator.startswith((" ", "\t")) and name.isupper() and _SHELL_BEFORE.search(ahead) is not None
    )
    is_line = (_LINE_BEFORE.search(ahead) is not None or "alue" in bare) and _REST_OF_LINE.match(
        text, at + len(value)
    ) is not None
    is_option = bare == "=" == separator and name.startswith("--")
    if not (is_variable or is_line) and (cut := _INSIDE.search(value)):
        value = value[: cut.start()]
    value = value.rstrip(",;)}]|&>") if not is_line else value
    judged = _Judged(kind, name, is_quoted=False, is_line=is_variable or is_line or is_option)
    return (at, at + len(value)) if is_secret_value(value, judged) else None


def _word_behind(text: str, begin: int, name: str, kind: str, at: int) -> tuple[int, int] | None:
    """The value of `--password VALUE`, `ENV PASSWORD VALUE` and `WITH PASSWORD 'VALUE'`."""
    ahead = text[max(0, begin - 80) : begin + len(name)]
    opened = _OPENS.match(text, at)
    takes = _TAKES_A_WORD.search(ahead) is not None
    if not takes and not (
        opened is not None and opened[1] == "'" and kind == "password" and _SQL.search(text, max(0, begin - 200), begin)
    ):
        return None
    if opened is not None:
        end = _closing(text, opened[1], opened.end())
        start = opened.end()
    else:
        whole = _BARE.match(text, at)
        if whole is None or whole[0].startswith("-"):
            return None
        start, end = at, at + len(whole[0])
        if escape := _ESCAPE.search(whole[0]):
            end = at + escape.start()
        end = start + len(text[start:end].rstrip(",;)|&"))
    judged = _Judged(kind, name, is_quoted=True, is_line=takes)
    return (start, end) if is_secret_value(text[start:end], judged) else None


def _closing(text: str, quote: str, at: int) -> int:
    """Where a quoted value ends: before the same quote with as many backslashes, or where its line does."""
    limit = min(len(text), at + LONGEST_VALUE + 1)
    end = text.find(quote, at, limit)
    while end > at and text[end - 1] == "\\" and len(quote) == 1:
        end = text.find(quote, end + 1, limit)
    line = text.find("\n", at, limit if end == -1 else end)
    return line if line != -1 else limit if end == -1 else end


# --- headers, cookies, commands ---------------------------------------------------------------------------------------------

_HEADER_SIGN = (
    rf"(?:{_QUOTE})?[ \t]{{0,5}}(?:[:=,]|=>|(?:{_QUOTE})?,?\s{{0,40}}(?:{_QUOTE})?[Vv]alue(?:{_QUOTE})?[ \t]{{0,3}}[:=])"
    rf"[ \t]{{0,5}}(?:[bruf]?{_QUOTE})?"
)
_AUTHORIZATION = re.compile(
    rf"(?:[Aa]uthorization|AUTHORIZATION){_HEADER_SIGN}(?:([A-Za-z][A-Za-z0-9-]{{1,20}})[ \t]{{1,3}})?([A-Za-z0-9._~+/=:@!-]{{8,4096}})"
)
_BASIC = re.compile(r"(?<![A-Za-z])[Bb]asic[ \t]([A-Za-z0-9+/]{8,2048}={0,2})")
_BASIC_SIGN = re.compile("[A-Z0-9=]")
_COOKIE = re.compile(
    rf"(?:(?:[Cc]ookies?|COOKIES?){_HEADER_SIGN}|--cookie[ =](?:{_QUOTE})?|(?<= )-b[ =]?{_QUOTE})(?=[^\s=\"';]{{1,64}}=)"
)
_PAIR = re.compile(r"([^\s=\"';,\\]{1,64})=([^\s\"';,\\]{1,4096})(?:;[ \t]*)?")
_ATTRIBUTES = frozenset({"path", "domain", "expires", "max-age", "samesite", "priority", "version"})
_SESSION = re.compile(r"sess|sid\b|auth|token|jwt|csrf|xsrf|remember|login|secret|ticket|_id\b|\bid\b|key", re.IGNORECASE)
_USER = re.compile(
    rf"(?<=[\s\"'\\,\[])(?:-(?:[sSkL][A-Za-z]{{0,5}})?u|--user|--proxy-user|-U)[\"',=\s]{{1,4}}(?:{_QUOTE})?([^\s:\"'=\\]{{1,100}}):([^\s\"'\\]{{4,256}})"
)
_LONGEST_COMMAND = 2_000
_HTTP_CLIENT = re.compile(r"\b(?:curl|wget|https?|xh|httpie|ab)\b")
_SHORT_OPTIONS = re.compile(
    r"\b(?:(?P<mysql>mysql|mysqldump|mysqladmin|mysqlimport|mariadb|mariadb-dump)|(?P<sshpass>sshpass)"
    r"|(?P<login>(?:docker|podman|helm registry|az|oc|skopeo|buildah|crane auth|nerdctl) login"
    r"|twine upload|mongosh|mongo|mongodump|mongorestore|cqlsh)"
    r"|(?P<keytool>keytool|jarsigner)|(?P<smb>smbclient|rpcclient)|(?P<zip>(?:un)?zip)|(?P<sevenzip>7za?|7zz)"
    r"|(?P<openssl>openssl (?:enc|aes|des)[\w-]*)"
    r"|(?P<redis>redis-cli)|(?P<sqlcmd>sqlcmd)|(?P<ldap>ldapsearch|ldapadd|ldapmodify))(?=[ \t])"
)
_OPTION_OF = {
    "mysql": r"-p",
    "sshpass": r"-p[ \t]*",
    "login": r"-p(?:[ \t]+|=)",
    "redis": r"-a[ \t]+",
    "sqlcmd": r"-P[ \t]*",
    "ldap": r"-w[ \t]*",
    "keytool": r"-(?:store|key)pass[ \t]+",
    "zip": r"-P[ \t]*",
    "sevenzip": r"-p",
    "openssl": r"-k[ \t]+",
    "smb": r"(?:-U|--user)[ =\t]*[^\s%\"']{1,100}%",
}
_OPTIONS = {
    kind: re.compile(rf"[^\n]{{0,300}}?[ \t]{option}(\\{{0,7}}[\"']?)([^\s\"'\\]{{4,256}})")
    for kind, option in _OPTION_OF.items()
}
_NEXT_COMMAND = re.compile("[|;&]")
_PIPED = re.compile(
    rf"\b(?:echo|printf)[ \t](?:-n[ \t])?(?:{_QUOTE})?"
    rf"(?:(?<![:\w])[\w.-]{{1,64}}:(?=[^\n]{{1,300}}chpasswd))?([^\s\"'\\|:]{{6,256}})(?:{_QUOTE})?[ \t]{{0,5}}\|[ \t]{{0,5}}"
    r"(?:(?:sudo[ \t])?chpasswd|sudo[ \t]+-[A-Za-z]*S|[^\n|]{1,200}(?:password-stdin|with-token))"
)
"""`echo value | docker login --password-stdin`."""
_OPENSSL = re.compile(r"(?<=[\s\"'])pass:([^\s\"'\\]{4,256})")
_IDENTIFIED = re.compile(
    rf"(?:identified|IDENTIFIED)\s{{1,5}}(?:(?:with|WITH)\s{{1,5}}\S{{1,64}}\s{{1,5}})?(?:by|BY)\s{{1,5}}({_QUOTE})([^\s\"'`\\]{{4,256}})"
)
_GAP = r"(?:\s|\\+[nrt]){1,40}"
_NETRC = re.compile(
    rf"\bmachine{_GAP}[^\s\\]{{1,200}}(?:{_GAP}(?:login|account|port){_GAP}[^\s\\]{{1,200}}){{0,3}}{_GAP}password{_GAP}([^\s\"\\]{{4,512}})"
    rf"|\blogin{_GAP}[^\s\\]{{1,200}}{_GAP}password{_GAP}([^\s\"\\]{{4,512}})"
)
_PGPASS = re.compile(
    r"(?:\A|(?<=[\s\"'])|(?<=\\n))[\w.*-]{1,200}:(?:543[0-9]|6432|\*):[^:\s]{1,64}:[^:\s]{1,64}:([^\s\"'\\]{4,256})"
)
_CONNECTION = re.compile(r"(?:; ?(?:Pwd|PWD|pwd)=\\{0,7}[\"']?|\boracle:thin:[^\s/@\"']{1,64}/)([^\s;\"'\\@]{4,256})")
"""The password of a connection string; elsewhere, `PWD` is a folder."""
_COOKIE_JAR = re.compile(
    r"(?:\t|\\+t)(?:TRUE|FALSE)(?:\t|\\+t)[0-9]{1,12}(?:\t|\\+t)[^\t\s\\]{1,128}(?:\t|\\+t)([^\s\\\"]{8,4096})"
)
_SIGNATURE = re.compile(r"(?:\bAWS4-HMAC-SHA256\b[^\n]{0,600}?Signature=)([0-9a-f]{64})")
_LONGEST_MANIFEST = 4_000
_KUBERNETES = re.compile(r"\\*[\"']?kind\\*[\"']?[ \t]*:[ \t]*\\*[\"']?Secret\b")
_DATA_LINES = re.compile(r"(?:^|\n)([ \t]*)(?:data|stringData):[ \t]*((?:\n\1[ \t]+[\w.-]+:[ \t]*[^\n]*)+)")
_DATA_LINE = re.compile(r"\n[ \t]+[\w.-]+:[ \t]*[\"']?([^\s\"']{6,4096})")
_DATA_OBJECT = re.compile(r"\\*[\"'](?:data|stringData)\\*[\"'][ \t]*:\s*\{([^{}]{1,20000})\}")
_DATA_ITEM = re.compile(r"\\*[\"'][\w.-]+\\*[\"']\s*:\s*\\*[\"']([^\"'\\]{6,4096})")


def _plausible(value: str) -> bool:
    return is_secret_value(value, _Judged("password", "password", is_quoted=True, is_line=True))


def _is_given(value: str) -> bool:
    """Whether what stands where a command takes a password may be one, also of letters only."""
    return len(value) >= _LEAST and any(map(str.isalpha, value)) and _FIRST.match(value) is not None and not is_placeholder(value)


def _headers(text: str) -> Iterator[Span]:
    for match in _AUTHORIZATION.finditer(text):
        value = match[2]
        if is_placeholder(value) or value.startswith("redacted"):
            continue
        known = match[1] is not None and match[1].lower() in (
            "basic",
            "bearer",
            "token",
            "apikey",
            "bot",
            "digest",
            "key",
            "ssws",
        )
        digit = any(map(str.isdigit, value))
        if _is_basic(value) or looks_random(value) or (known and digit and not _CODE.match(value)):
            yield Span(match.start(2), match.end(2), "authorization")
    for match in _BASIC.finditer(text):
        if _BASIC_SIGN.search(match[1]) and _is_basic(match[1]):
            yield Span(match.start(1), match.end(1), "authorization")
    for match in _COOKIE.finditer(text):
        at = match.end()
        while (pair := _PAIR.match(text, at)) is not None:
            name, value = pair[1], pair[2]
            at = pair.end()
            if name.lower() in _ATTRIBUTES or len(value) < 8 or is_placeholder(value):
                continue
            if looks_random(value) or (_SESSION.search(name) and any(map(str.isdigit, value))):
                yield Span(pair.start(2), pair.end(2), "cookie")
    for match in _COOKIE_JAR.finditer(text):
        if not is_placeholder(match[1]):
            yield Span(match.start(1), match.end(1), "cookie")
    for match in _SIGNATURE.finditer(text):
        yield Span(match.start(1), match.end(1), "authorization")


def _commands(text: str) -> Iterator[Span]:
    clients: list[int] | None = None
    for match in _USER.finditer(text):
        value = match[2]
        if clients is None:
            clients = [client.start() for client in _HTTP_CLIENT.finditer(text)]
        nearest = bisect_left(clients, match.start())
        near = nearest > 0 and match.start() - clients[nearest - 1] <= _LONGEST_COMMAND
        if near and not is_placeholder(value) and not value.startswith(("//", "[redacted:")):
            yield Span(match.start(2), match.end(2), "password")
    for match in _SHORT_OPTIONS.finditer(text):
        option = _OPTIONS[str(match.lastgroup)].match(text, match.end())
        if option is not None and (
            _plausible(option[2]) or (_is_given(option[2]) and _NEXT_COMMAND.search(text, match.end(), option.start(2)) is None)
        ):
            yield Span(option.start(2), option.end(2), "password")
    for match in _PIPED.finditer(text):
        if _is_given(match[1]) and not match[1].startswith("[redacted:"):
            yield Span(match.start(1), match.end(1), "password")
    for match in _OPENSSL.finditer(text):
        if _plausible(match[1]):
            yield Span(match.start(1), match.end(1), "password")
    for match in _IDENTIFIED.finditer(text):
        if _plausible(match[2]):
            yield Span(match.start(2), match.end(2), "password")


def _files(text: str) -> Iterator[Span]:
    for match in _NETRC.finditer(text):
        group = 1 if match[1] is not None else 2
        if not is_placeholder(match[group]) and not match[group].startswith("[redacted:"):
            yield Span(match.start(group), match.end(group), "password")
    for match in _CONNECTION.finditer(text):
        if _is_given(match[1]) and not match[1].startswith("[redacted:"):
            yield Span(match.start(1), match.end(1), "password")
    for match in _PGPASS.finditer(text):
        if not is_placeholder(match[1]) and not match[1].startswith("[redacted:"):
            yield Span(match.start(1), match.end(1), "password")
    done = 0
    for match in _KUBERNETES.finditer(text):
        if match.end() > done:
            start, done = max(done, match.start() - _LONGEST_MANIFEST), min(len(text), match.end() + _LONGEST_MANIFEST)
            yield from _kubernetes(text, start, done)


def _kubernetes(text: str, start: int, end: int) -> Iterator[Span]:
    for block in _DATA_LINES.finditer(text, start, end):
        for line in _DATA_LINE.finditer(text, block.start(2), block.end(2)):
            if not is_placeholder(line[1]):
                yield Span(line.start(1), line.end(1), "secret")
    for block in _DATA_OBJECT.finditer(text, start, end):
        for item in _DATA_ITEM.finditer(text, block.start(1), block.end(1)):
            if not is_placeholder(item[1]):
                yield Span(item.start(1), item.end(1), "secret")


def spans(text: str) -> list[Span]:
    """Every secret of the text that is known by what is around it, in order; none overlaps another."""
    found: list[Span] = []
    end = 0
    sources = {"assigned": _assigned, "headers": _headers, "commands": _commands, "files": _files}
    for span in sorted(
        span for name, source in sources.items() if any_of([[each] for each in TELLING[name]])(text) for span in source(text)
    ):
        if span.start >= end and not text.startswith("[redacted:", span.start):
            found.append(span)
            end = span.end
    return found


_OPENING = re.compile(
    rf"(?:[Aa]uthorization|AUTHORIZATION){_HEADER_SIGN}(?:[A-Za-z][A-Za-z0-9-]{{1,20}}[ \t]{{1,3}})?|[Bb]asic[ \t]"
    rf"|(?:-u|-U|-user|-proxy-user)[\"',=\s]{{1,4}}(?:{_QUOTE})?[^\s:\"'=\\]{{1,100}}:|[ \t]-[paPw][ \t]*(?=\S)"
    rf"|password{_GAP}|pass:|(?:by|BY)[ \t]{{1,5}}(?={_QUOTE})"
)


def open_value(text: str) -> int | None:
    """Where a value begins that goes on to the end of this text, if what is written next may belong to it."""
    starts = [match.end() for match in _NAMED.finditer(text) if match["separator"].strip()]
    starts += [match.end() for match in _COOKIE.finditer(text)] + [match.end() for match in _OPENING.finditer(text)]
    for start in sorted(starts):
        opened = _OPENS.match(text, start)
        if opened is not None and opened[1] not in text[opened.end() :] and "\n" not in text[start:]:
            return start
        if opened is None and not any(map(str.isspace, text[start:])):
            return start
    return None


# --- the search through whole logs ------------------------------------------------------------------------------------------

_Q = r"(?:\\*(?:[\"'`]|u00(?:22|27|60)))"
_W = r"(?:[ \t\r\n]|\\+[nrt])"
_EQUALS = r"(?:[:=>]|\\+u003[dDeE])"
_G = f"{_W}+"
_ANY = f"(?:{_Q}|{_W})*"
_LETTER = r"(?:[^ \t\r\n\"\\]|\\+[/\\]|\\+u00[0-9a-fA-F]{2})"
_ODD_LETTER = r"(?:[^ \t\r\n\"\\A-Za-z_.0-9\[({<]|\\+[/\\]|\\+u00[0-9a-fA-F]{2})"
_VALUE = rf"[A-Za-z_.]*(?:[0-9]|{_ODD_LETTER}(?:{_LETTER}*[0-9]|{_LETTER}*(?:[a-z]+[A-Z]+){{3}})|(?:[a-z]+[A-Z]+){{3}})"
"""What `is_secret_value` asks of a value at least, if it is no variable's."""
_ASSIGNS = (
    rf"{_SUFFIX}(?:{_Q}|[\])])*(?:[ \t]|\\+t)*"
    rf"(?:{_EQUALS}(?:[ \t]|\\+t|{_EQUALS}|{_Q})*{_VALUE}|\({_Q}{_VALUE}|,[ \t]*{_Q}+{_VALUE}"
    rf"|:[ \t]*(?:Optional|SecretStr|[Ss]tr|&|const char|char)[^\r\n:]{{0,40}}=[ \t]*{_Q}*{_VALUE}"
    rf"|,?{_ANY}[Vv]alue{_ANY}{_EQUALS}{_ANY}{_VALUE}"
    rf"|:[ \t]*[|>]?[-+0-9]*{_W}+{_Q}*{_VALUE}|[ \t]*(?:\|\|?|\?\?)[ \t]*{_Q}*{_VALUE}"
    rf"|[ \t](?:is|was)(?:[ \t]set[ \t]to)?:?[ \t]{_Q}*{_VALUE})"
)
_VARIABLE_TAILS = "ASSWORD|ASSWD|ASSPHRASE|PASS|ECRET|OKEN|_PAT|_KEY|_PWD|_JWT|SESSI"
_OPTIONS_TOLD = (
    "password|passwd|passphrase|pass|pw|pwd|secret|token|key|credential|auth|api[_-]?key|access[_-]?token|auth[_-]?token"
)

_UPPER_TAILS = "ASSWORD|ASSWD|ASSPHRASE|_PASS|HPASS|ECRET|OKEN|_PAT|_KEY|_PWD|_JWT|REDENTIAL|SESSI"
_LOWER_TAILS = r"assword|asswd|assphrase|Pass|pass|ecret|oken|_key|-key|apikey|pi\.key|ss\.key|et\.key|_pat|redential|auth"
_SHORT_TAILS = "pwd|Pwd|PWD|_pw|_PW|Pw|Pat|jwt|JWT|Key|KEY"
"""Apart from the long ones: what is looked for together is compared by as many bytes as the shortest has."""
_USER_OPTION = rf"(?:{_Q}|{_W}|[=,]|\\+u003[dD])+[^ \t\r\n:\"'=\\]+:[^ \t\r\n\"']"

TELLING: dict[str, list[str]] = {
    "assigned": [
        rf"(?:{_LOWER_TAILS}){_ASSIGNS}",
        rf"(?:{_UPPER_TAILS})(?:{_ASSIGNS}|[A-Z0-9_]*(?:=|\\+u003[dD]){_Q}*[^ \t\r\n\"'`$<(\[{{*]{_LETTER}{{5}})"
        rf"|(?:assword|ASSWORD)[ \t]+\\*(?:'|u0027)|(?:assphrase|ASSPHRASE){_ANY}{_EQUALS}"
        rf"|-(?:password|passwd|passphrase|pass|pw|pwd|secret|token|key|credential|auth|api[_-]?key|access[_-]?token|auth[_-]?token)"
        rf"[ \t]+{_Q}*{_VALUE}",
        f"(?:{_SHORT_TAILS}){_ASSIGNS}",
        rf"(?:configure set|config set|config:set|secrets? set|variables? set|ENV |setx|SetEnv)[ \t]*[A-Za-z0-9_./:-]*"
        rf"(?:{_LOWER_TAILS}|{_UPPER_TAILS}|{_SHORT_TAILS})[ \t]+{_Q}*{_VALUE}",
        rf"set -[a-zA-Z]+[ \t]+[A-Za-z0-9_]*(?:{_LOWER_TAILS}|{_UPPER_TAILS}|{_SHORT_TAILS})[ \t]+{_Q}*{_VALUE}",
    ],
    "headers": [
        rf"(?:uthorization|UTHORIZATION|ookies?|OOKIES?){_ANY}(?:[:=,]|\\+u003[dDeE]|[Vv]alue)"
        r"|asic[ \t][A-Za-z0-9+/\\]{6,}[A-Z0-9=]"
        r"|-cookie(?:[ =]|\\+u003[dD])"
        r"| -b(?:[ =]?\\*[\"']|[ =]?\\+u002[27])[^ \t\r\n=\"']+(?:=|\\+u003[dD])"
        r"|(?:TRUE|FALSE)(?:\t|\\+t)[0-9]+(?:\t|\\+t)"
        r"|AWS4-HMAC-SHA256",
    ],
    "commands": [
        r"(?:dentified|DENTIFIED)[ \t\\nr]+(?:(?:with|WITH)[ \t\\nr]+[^ \t\r\n\\]+[ \t\\nr]+)?(?:by|BY)[ \t\\nr]+\\*(?:[\"'`]|u00(?:22|27|60))"
        rf"|-user{_USER_OPTION}"
        r"|sshpass[ \t]|redis-cli[ \t]|sqlcmd[ \t]|ldap(?:search|add|modify)[ \t]|twine upload[ \t]"
        r"| login[ \t](?:[^ \t\r\n\\]+[ \t])?-"
        r"|(?:mysql|mariadb|mongo)(?:dump|admin|import|restore|sh|-dump)?[ \t][^\r\n]*-p"
        r"|pass:[^ \t\r\n\"'\\]{4}",
        rf"-u{_USER_OPTION}|-U{_USER_OPTION}",
        *(f"-{letter}[A-Za-z]*u{_USER_OPTION}" for letter in "sSkL"),
        *("keytool ", "jarsigner ", "smbclient ", "rpcclient ", "cqlsh ", "sudo -[A-Za-z]*S", "password-stdin", "with-token"),
        *("chpasswd", "zip -", "openssl enc", "openssl aes", "openssl des", "7z [a-z] "),
    ],
    "files": [
        rf"(?:machine{_G}[^ \t\r\n\\]+{_G}(?:login|account|port|password)|login{_G}[^ \t\r\n\\]+{_G}password){_G}"
        rf"|kind{_ANY}:{_ANY}Secret"
        r"|:(?:543[0-9]|6432):[^:\s]+:[^:\s]+:[^ \t\r\n]",
        r":\*:[^:\s]+:[^:\s]+:[^ \t\r\n]",
        *(f"{name}(?:=|\\\\+u003[dD])" for name in (";Pwd", ";PWD", ";pwd", "; Pwd", "; PWD", "; pwd")),
        "oracle:thin:",
    ],
}
"""One of these is found in whatever `spans` finds something in, also in a line of JSON, where a quote is `\\"` or `\\u0022`.

By what finds it. Each is one search; together they begin with no more texts than a search is fast with.
"""
SEARCHED_TOGETHER: list[list[str]] = [
    [TELLING["assigned"][0]],
    [TELLING["assigned"][1]],
    [TELLING["assigned"][2]],
    [TELLING["assigned"][3], *TELLING["commands"][:1], *TELLING["headers"], TELLING["files"][0]],
]
"""Most of them, in as few searches as are fast."""
SEARCHED_WITH_SHAPES = [*TELLING["commands"][1:], *TELLING["assigned"][4:], *TELLING["files"][1:]]
"""The others: what begins like the tokens of providers."""
