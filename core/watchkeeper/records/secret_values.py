"""Whether a value looks like a secret: not like a word, a placeholder, a path or code."""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import NamedTuple

from watchkeeper.records.secret_names import (
    CLOUD_KEYS,
    FIRST,
    FOLDERS,
    KNOWN_KEYS,
    LEAST,
    LONGEST_NAME,
    LONGEST_VALUE,
    NAME_WORDS,
    NAMED,
    ORDINARY,
    OTHER_NAMES,
    PASS_OF,
    TALK,
    kind_of,
)
from watchkeeper.records.text import lazily

_GENERIC = (
    "password|passwd|passwort|pass|pwd|secret|token|key|api|access|auth|user|admin|root|my|the|client|app|id|name|value|string|default"
    "|postgres|mysql|redis|mongo|db|database|server|service|bearer|basic|hash|type|field|input|label|header|required|optional|enabled"
    "|disabled|file|path|url|private|public|credential|session|cookie|refresh|and|or|is|not|for|of|to|in|with|a"
)
_STAND_INS = (
    "your|example|changeme|change|me|replace|insert|dummy|fake|sample|placeholder|todo|testing|tests|test|foobared|foo|bar|baz|qux|here|goes"
    "|demo|mock|stub|invalid|valid|wrong|bad|expired|local|host|dev|prod|staging|development|production|none|null|undefined|nil"
    "|true|false|redacted|hidden|masked|removed|secure|safe|strong|random|generated|some|any|new|old|lorem|ipsum|x{3,}"
)
_GENERIC_WORD = lazily(_GENERIC)
_STAND_IN = lazily(f"{_STAND_INS}|xyz|abcd|abc|def|asdf|qwerty")
_STAND_IN_WORD = lazily(_STAND_INS)
_REFERENCE = lazily(
    r"\$\{|\{\{|#\{|\$\(|<%|%\(\w|\A\$[A-Za-z_]\w*\Z|\A\$\w+\W|\A%\w+%\Z|\A<.*>?\Z|\A\[|\A\(|\A\{|\A\.{2}|…|\*{3}|•|\.{3}\Z"
    r"|\A(?:vault|op|ssm|arn|gs|s3|file|env|keyring|secretsmanager|data|https?|ftp|ssh|urn)://?|\Aarn:|\A(?:env|ref|secret|file):"
    r"|environ|process\.env|getenv|\bsecrets\.|\bvars\.|\bconfig\.|\bsettings\.|\bself\.|\bthis\.|\bargs\.|\bparams\.|\breq(?:uest)?\."
)
_MAY_REFER = lazily(r"[$%{(<[.:*…•]|environ|getenv")
_LONGEST_PLACEHOLDER = 72
CODE = lazily(r"[A-Za-z_$][\w$]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][\w$]*)*(?:[([{<].*|[!?]*)\Z", re.DOTALL)
"""An identifier, a chain of them, or the beginning of a call."""
_CAPITALS = lazily(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\Z")
_RUNS = lazily(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_EARLY_DIGIT = lazily(r"[A-Za-z_.]*(?:[0-9]|[^\s\"\\A-Za-z_.0-9\[({<][^\s\"\\]*[0-9])")
"""A digit, before any quote; what begins like an index, a call or a format is code."""
_CHANGES = lazily(r"[A-Za-z_.]*?(?:[^\s\"\\A-Za-z_.0-9\[({<][^\s\"\\]*?)?(?:[a-z]+[A-Z]+){3}")
UUID = lazily(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
_USER_AND = lazily(r"[A-Za-z][\w.@-]{1,60}:([^\s:/]{6,128})\Z")
HASH = lazily(r"(?:[0-9a-f]{7,128}|[0-9A-F]{32,128})\Z")
_DIGESTS = lazily(r"(?:sha(?:1|256|384|512)|md5|blake3)[-:]", re.IGNORECASE)
_ORDINARY_PATH = lazily(r"[A-Za-z0-9_.@+~ :*-]*\Z")
_PATH_STEP = lazily(r"[^/]+")


def looks_random(value: str) -> bool:
    """Whether letters and digits change as they do in a random text: not in words, names of variables or
    versions."""
    if len(value) >= 16 and HASH.match(value):
        return re.search("[0-9]", value) is not None and re.search("[A-Fa-f]", value) is not None
    runs = _RUNS.findall(value)
    if len(value) < 8 or len(runs) < 3:
        return False
    mean = sum(map(len, runs)) / len(runs)
    if any(map(str.isdigit, value)):
        return mean <= 3.2 or (
            mean <= 4
            and len(runs) >= 5
            and value.isalnum()
            and ((value.isupper() and len(value) >= 16) or (value.islower() and len(value) >= 20))
        )
    return len(value) >= 12 and mean <= 2.6


def is_chosen(value: str) -> bool:
    """Whether a word is what people and password managers choose, and no name in a program: capitals, small
    letters and at least two digits, or a sign between them."""
    return (
        8 <= len(value) <= 128
        and (
            len(DIGIT.findall(value)) >= 2
            or (len(value) >= 12 and any(map(str.isdigit, value)) and looks_random(value))
        )
        and SMALL_LETTER.search(value) is not None
        and CAPITAL.search(value) is not None
        and _SIGNS_OF_CODE.search(value) is None
        and not is_placeholder(value)
    )


DIGIT, SMALL_LETTER, CAPITAL = lazily("[0-9]"), lazily("[a-z]"), lazily("[A-Z]")
_SIGNS_OF_CODE = lazily(r"[(){}\[\]<>/\\,;|\s]|::|\A\w+\.\w+\.")


def is_path(value: str) -> bool:
    """Whether a value that begins with `/`, `./` or `~/` is a path. One in 64 random texts of base64 begins
    with `/`, too."""
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
    return bool(
        re.search("[0-9]", step) and re.search("[A-Z]", step) and re.search("[a-z]", step) and "." not in step
    )


def is_placeholder(value: str) -> bool:
    """Whether a value is a placeholder for one that its reader has to fill in, refers to another, or is a word of
    documentation."""
    if (
        len(set(value.lower())) <= 3
        or (_MAY_REFER.search(value) and _REFERENCE.search(value))
        or is_path(value)
    ):
        return True
    if len(value) < 16 and ("abcdefghij" in value.lower() or "0123456789" in value):
        return True
    if len(value) > _LONGEST_PLACEHOLDER:
        return "EXAMPLE" in value
    lower = value.lower()
    digits = re.sub("[^0-9]", "", value)
    filler = _STAND_IN_WORD if len(value) >= 12 and len(digits) >= 4 else _STAND_IN
    rest = filler.sub("", lower) if (stand_in := filler.search(lower)) else lower
    rest = _GENERIC_WORD.sub("", rest)
    letters = re.sub("[^a-z]", "", rest)
    if (
        ("xxx" in lower and (len(value) < 24 or "xxxx" in lower))
        or "EXAMPLE" in value
        or (not digits and any(map(_STAND_IN.fullmatch, re.split(r"[-_. ]", lower))))
    ):
        return True
    if not any(map(str.isalpha, value)):
        return value.isdigit() and (
            "0123456789012345678901234567890".startswith(digits)
            or "1234567890123456789012".startswith(digits)
        )
    if letters or not value.isascii():
        return False
    if stand_in is None and len(value) >= 8 and len(digits) >= 2:
        return False  # `secret123`: weak, and chosen all the same
    return stand_in is not None or len(digits) <= 3 or "12345678901234567890".startswith(digits)


class Judged(NamedTuple):
    """How a value is written: what it takes to be taken for a secret depends on it."""

    kind: str
    name: str
    """Unchanged, with its first words."""
    is_quoted: bool
    is_line: bool
    """Nothing but name and value is on its line, or the value is a shell's `NAME=value`."""
    is_call: bool = False
    takes_words: bool = False
    """What is given here is no name of anything: a string, or a value of a file of settings or of a
    command."""

    @property
    def is_variable(self) -> bool:
        return self.name.isupper() and self.is_line


def is_other_name(name: str) -> bool:
    """Whether a name such as `cache_key` ends like a secret's and is none."""
    words = [word.lower() for word in NAME_WORDS.findall(name)]
    return len(words) > 1 and words[-2] in OTHER_NAMES


@lru_cache(maxsize=4_096)
def _is_strong(kind: str, name: str) -> bool | None:
    """Whether a name is a secret's for certain, may be one's (False), or is not (None)."""
    flat = re.sub(r"[_.$ -]", "", name).lower()
    words = [word.lower() for word in NAME_WORDS.findall(name)]
    if (
        kind in ("password", "auth")
        and flat.endswith(("pass", "auth"))
        and words
        and words[-1] not in ("pass", "auth")
        and not name.isupper()
        and not PASS_OF.search(flat)
    ):
        return None  # `bypass`, `unauth`
    if flat in ("compass", "bypass"):
        return None
    if (
        len(words) > 1
        and words[-2] in OTHER_NAMES
        and words[-1] not in ("password", "passwd", "passphrase", "salt")
    ):
        return False if CLOUD_KEYS.search(flat) else None
    if words and words[0] == "existing":
        return None
    if kind == "password" and "hrase" in name.lower():
        return True if re.search("pass|seed|recovery|secret|mnemonic", flat) else None
    if kind in ("password", "secret", "session"):
        return True
    if kind == "token":
        return len(flat.removesuffix("s")) > len("token") or name.startswith("-")
    if kind == "key":
        return bool(KNOWN_KEYS.search(flat)) or (False if len(flat) > 3 or name.startswith("-") else None)
    return False


def is_secret_value(value: str, judged: Judged) -> bool:
    """Whether what a secret's name is given looks like a secret."""
    strong = _is_strong(judged.kind, judged.name)
    if (
        strong is None
        or not LEAST <= len(value) <= LONGEST_VALUE
        or not FIRST.match(value)
        or value.startswith("[redacted:")
    ):
        return False
    if any(map(str.isspace, value)):
        return _is_passphrase(value, judged)
    if is_placeholder(value) or _DIGESTS.match(value) or value.startswith(("pk_live_", "pk_test_")):
        return False
    if judged.name.lower() in FOLDERS and re.search(r"[/\\]|\A[A-Z]:", value):
        return False
    is_uuid = UUID.match(value) is not None
    if judged.kind in ("auth", "credential"):
        if judged.is_line and (pair := _USER_AND.match(value)) is not None:
            return not is_placeholder(pair[1])
        of_npm = judged.name.endswith("_auth") and judged.is_line
        is_mixed = judged.is_line and _is_mixed(value)
        if judged.is_line and judged.kind == "credential" and is_chosen(value):
            return True
        return is_basic(value) or (
            len(value) >= 16
            and (judged.is_quoted or not _is_code(value))
            and (is_mixed or looks_random(value))
            and not HASH.match(value)
            and (of_npm or not is_uuid)
        )
    if not strong:
        if (
            judged.kind == "token"
            and judged.is_line
            and judged.name.lower() == "token"
            and (is_uuid or len(value) in (32, 40, 64))
        ):
            return looks_random(value)
        least = 12 if judged.kind == "token" else 16
        is_key = (
            judged.is_variable
            or (judged.is_line and len(value) >= 32)
            or CLOUD_KEYS.search(judged.name.replace("_", "").lower()) is not None
        )
        if is_uuid:
            return judged.is_variable and judged.kind == "key"
        if len(value) < least or not looks_random(value) or (not is_key and HASH.match(value)):
            return False
        return judged.is_quoted or not _is_code(value)
    if value.isdigit():
        return len(value) >= (8 if judged.kind == "password" else 20)
    if judged.name.lower().endswith("pat") and not re.fullmatch(r"[A-Za-z0-9_.~+/=:-]+", value):
        return False  # a pattern
    if judged.kind == "password" and _is_words_and_number(value):
        return True
    has_digit = _EARLY_DIGIT.match(value) is not None or (
        judged.is_quoted and judged.is_line and _is_dense(value)
    )
    if judged.is_call:
        return has_digit and len(value) >= 10 and looks_random(value)
    if not judged.is_quoted and not judged.is_line:
        if not has_digit and len(value) >= 20 and value.isalpha():
            return looks_random(value)
        return has_digit and len(value) >= 8 and looks_random(value) and not _is_code(value)
    if judged.is_variable and not _CAPITALS.match(value):
        return not _is_code(value) or (judged.is_quoted and has_digit)
    if has_digit:
        return judged.is_quoted or not _is_code(value)
    if judged.takes_words and _is_word(value, judged.is_quoted):
        return (
            judged.kind != "secret" or judged.is_quoted or "-" not in value or _RESOURCE.match(value) is None
        )
    return looks_random(value) and _CHANGES.match(value) is not None


_RESOURCE = lazily(
    r"[a-z0-9]+(?:-[a-z0-9]+)?(?:-(?:tls|secrets?|credentials?|creds|auth|keys?|config|cert|password|token))?\Z"
)
"""A Kubernetes object, which `secret:` names."""
_WORDS_JOINED = lazily(r"[a-z]{4,12}(?:([._-])[a-z]{4,12})(?:\1[a-z]{4,12}){1,7}\Z")
"""Three words or more, as those who make a passphrase join them."""
_PARTS = lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def _is_dense(value: str) -> bool:
    """Whether signs, digits and letters change so often that it is no text and no code."""
    signs = sum(not each.isalnum() for each in value)
    runs = re.findall(r"[A-Za-z]+", value)
    return (
        len(value) >= 10
        and signs >= 2
        and any(map(str.isdigit, value))
        and value.lower() != value
        and max(map(len, runs), default=0) <= 6
        and len(runs) >= 3
    )


def _is_word(value: str, is_quoted: bool) -> bool:
    """Whether a value without digits may be the password that a person chose: no type, no name, no word of a
    message."""
    if (
        value[-1] in ";,{(:"
        or re.search(r"[|<>(\[{]|://|\A--?[a-z]", value)
        or (_CAPITALS.match(value) and ("_" in value or len(value) < 8))
    ):
        return False
    if _WORDS_JOINED.match(value):
        words = re.split("[._-]", value)
        if "." in value and not is_quoted and len(words) < 4:
            return False  # a chain of names
        return 3 * sum(word in ORDINARY or word in OTHER_NAMES for word in words) <= len(words)
    if not value.isascii() or (not is_quoted and _is_code(value)):
        return False
    parts = [part.lower() for part in _PARTS.findall(value)]
    ordinary = sum(part in ORDINARY for part in parts)
    is_name = (
        ordinary > 0
        and re.fullmatch(r"[\w.:-]+", value) is not None
        and re.search("[_.:]|[a-z][A-Z]", value) is not None
    )
    return bool(parts) and ordinary < len(parts) and not is_name


_DIGITS_AT_END = lazily("[0-9]{3}$")
"""No chain of names ends so, but a person's password may."""


def _is_code(value: str) -> bool:
    """Whether it is a call, an index or a chain of names."""
    return CODE.match(value) is not None and (
        any(sign in value for sign in "([{<")
        or ("." in value and not looks_random(value) and _DIGITS_AT_END.search(value) is None)
    )


_WORDS_AND_NUMBER = lazily(
    r"(?P<first>[A-Za-z]{3,12})(?:(?P<sign>[_-]?)[0-9]{2,5}(?P=sign)(?P<last>[A-Za-z]{3,12})|-(?P<next>[A-Za-z]{3,12})-[0-9]{3,5})[!.@#$*]{0,2}\Z"
)
_ALGORITHMS = frozenset(
    "sha aes rsa hmac base utf int uint win oauth ascii latin crypt hash des enc lib".split()  # noqa: SIM905
)


def _is_seed(words: list[str]) -> bool:
    """Whether these are as many small words as the seed of a wallet has."""
    return len(words) in (12, 15, 18, 21, 24) and all(re.fullmatch("[a-z]{3,8}", word) for word in words)


def is_sentence(words: list[str]) -> bool:
    """Whether words speak of passwords; four in a hundred of those that seeds are made of do, too."""
    talk = sum(word.lower() in TALK for word in words)
    return talk > (len(words) // 4 if _is_seed(words) else 0)


def _is_words_and_number(value: str) -> bool:
    """Whether a value is two words and a number between them, as people choose: `harbor_4929_walnut`."""
    match = _WORDS_AND_NUMBER.match(value)
    return match is not None and not any(
        word.lower() in _ALGORITHMS or word.lower() in ORDINARY
        for word in (match["first"], match["last"] or match["next"])
    )


APP_PASSWORD = lazily(r"[A-Za-z0-9]{4}(?: [A-Za-z0-9]{4}){3,5}(?![A-Za-z0-9 ])")
"""As Google and WordPress give them to applications."""


def _is_passphrase(value: str, judged: Judged) -> bool:
    """Whether a value with spaces is one: words of no sentence, or the salts that WordPress generates."""
    if not judged.is_quoted or judged.is_call:
        return False
    words = value.split()
    if judged.kind == "password":
        if APP_PASSWORD.fullmatch(value) or _is_seed(words):
            return not is_sentence(words)
        if len(words) < 3 or not 12 <= len(value) <= 300 or re.search(r"[.,;:?!(){}<>=|]| -", value):
            return False
        return not any(word.lower() in TALK for word in words)
    letters = sum(map(str.isalpha, value))
    return (
        40 <= len(value) <= 128 and letters < 0.75 * len(value) and len(set(value)) >= 24 and len(words) <= 8
    )


def is_basic(value: str) -> bool:
    """Whether this is `user:password` in base64."""
    if len(value) < 8:
        return False
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    user, colon, password = plain.partition(":")
    return (
        bool(colon)
        and plain.isprintable()
        and bool(user or password)
        and not is_placeholder(password or user)
    )


def named_secret(name: str, value: str) -> str | None:
    """The kind of secret that `value` is under this name of a JSON object, or None."""
    if not LEAST <= len(value) <= LONGEST_VALUE:
        return None
    kind = kind_by_name(name)
    if kind is None:
        return None
    judged = Judged(kind, name, is_quoted=True, is_line=True, takes_words=True)
    return kind if is_secret_value(value, judged) else None


@lru_cache(maxsize=4_096)
def kind_by_name(name: str) -> str | None:
    tail = name[-LONGEST_NAME:]
    match = next((each for each in NAMED.finditer(f'{tail}": ') if each.end() == len(tail) + 3), None)
    return None if match is None else kind_of(match)


_ATTRIBUTES = frozenset({"path", "domain", "expires", "max-age", "samesite", "priority", "version"})
_SESSION = lazily(
    r"sess|sid\b|auth|token|jwt|csrf|xsrf|remember|login|secret|ticket|_id\b|\bid\b|key", re.IGNORECASE
)


def plausible(value: str) -> bool:
    return is_secret_value(value, Judged("password", "password", is_quoted=True, is_line=True))


def is_given(value: str) -> bool:
    """Whether the text at the place where a command takes a password may be one, also of letters only."""
    return (
        len(value) >= LEAST
        and any(map(str.isalpha, value))
        and FIRST.match(value) is not None
        and not is_placeholder(value)
    )


def is_filled(value: str) -> bool:
    """Whether a value is neither a placeholder nor was redacted before."""
    return not is_placeholder(value) and not value.startswith("[redacted:")


def is_given_alone(value: str) -> bool:
    """As `is_given`, of a text that may have been redacted before."""
    return is_given(value) and not value.startswith("[redacted:")


def is_cookie(name: str, value: str) -> bool:
    """Whether a cookie of this name and value opens a session."""
    if (
        name.lower() in _ATTRIBUTES
        or len(value) < 8
        or is_placeholder(value)
        or value.startswith("[redacted:")
    ):
        return False
    return looks_random(value) or (_SESSION.search(name) is not None and any(map(str.isdigit, value)))
