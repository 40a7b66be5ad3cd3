"""Secrets that are known by what is written around them: assignments, headers, cookies, options of commands,
`.netrc`.

Such a value has no form of its own, so that its name says that it is secret, and the value must look like
one: `password: str`, `token = get_token()` and `API_KEY=${API_KEY}` name no secret. `spans` finds them in any
text; `is_secret_value` judges a value that is apart from its name, as in a JSON object.

All expressions are bounded or advance with each step, so that a text takes time in proportion to its length.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from watchkeeper.records.secret_shapes import SERVICES, Groups, Sought, any_of, one_byte_each
from watchkeeper.records.text import lazily

KINDS = frozenset(
    {"password", "secret", "token", "key", "credential", "session", "auth", "authorization", "cookie"}
)
"""What a span may be labelled."""


class Span(NamedTuple):
    """Where a secret is in a text, and what kind it is of."""

    start: int
    end: int
    label: str


LONGEST_VALUE = 8_192
"""Characters. A longer value is none that a person or a program is given as a password."""
_LEAST = 6
_FIRST = lazily(r"[A-Za-z0-9/+~!@#%^*_.$&?=|\\-]|[^\x00-\x7f]")
"""With what a value begins: so `suspicious` need not look at most that follows a name."""

# --- names --------------------------------------------------------------------------------------------------


_TAILS = {
    "password": "asswords?|ASSWORDS?|asswd|ASSWD|hrase|HRASE|asscode|ASSCODE|nemonic|NEMONIC|_pass|-pass|Pass|_PASS|HPASS|"
    "PASS(?=[=\"'])|pass(?=\\[\\][ =]|["
    " \\t]{0,20}[\\\\\"'=:])|REDISCLI_AUTH|pwd|Pwd|PWD|_pw|_PW|[a-z]Pw|[dt]pw|_psk|_PSK|(?<![A-Za-z0-9])psk|_pepper|_PEPPER"
    r"|(?<![A-Za-z0-9])[Pp][Ww](?=[ \t]{0,5}[=:])|[a-z]pw(?=[ \t]{0,5}[=:])"
    "|asswort|ennwort|mot[_ ]de[_ ]passe|ontrase.a|achtwoord",
    "secret": "ecrets?|ECRETS?",
    "token": r"okens(?=[\"':= ]{1,6}\[)|oken|uthIdent|OKENS?|jwt|JWT|_PAT|_pat|Pat",
    "key": r"_keys?|-key|(?:pi|uth|rite|ccess|ecret|rivate|aster|icense|igning|erver|ccount)key|ey_?string|EY_?STRING"
    r"|(?:pi|PI|ss|et|te|on)[. ](?:[Kk]ey|KEY)|[a-z]\.key(?=[ \t]{0,3}[=:])|Keys?|KEYS?|[_.-]salt|Salt|_SALT|_skey|_SKEY"
    r"|(?:pi|PI)_(?:hash|HASH)(?=[ \t]{0,12}[\"'=:])",
    "credential": "redentials?|REDENTIALS?|[Cc]reds|CREDS",
    "session": "SESSID|SESSIONID",
    "auth": r"_auth|(?<![A-Za-z])AUTH(?==)|_AUTH(?==)|userpass|auth(?=\\{0,7}[\"'])",
}
"""The ends of the names of secrets by their kind; `Password`, `dbPassword` and `DB_PASSWORD` end alike, or
nearly so."""
_SUFFIX_WORDS = (
    r"[Bb]ase|BASE|[Vv]alue|VALUE|[Pp]rod(?:uction)?|PROD(?:UCTION)?|[Ll]ive|LIVE|[Dd]ev|DEV|[Ss]taging|STAGING"
    r"|[Tt]est|TEST|[Cc]onfirmation|[Pp]rimary|[Ss]econdary|PRIMARY|SECONDARY|[Oo]ld|OLD|[Nn]ew|NEW|[Cc]urrent|[Dd]ata|DATA"
)
_SUFFIX = rf"(?:[_.-]?(?:[0-9]{{1,2}}|[ ][0-9]|{_SUFFIX_WORDS})|__)?"
_QUOTE = r"\\{0,7}[\"'`]"
_PRINTED = r"(?:[^\s:\"'\\]{1,100}:[0-9]{1,6}[:-]|[ \t]{0,8}[0-9]{1,6}(?:→|\t)|[+-])"
"""What `grep -n`, `cat -n` and `diff` print before a line."""
_LINE_BREAK = rf"\r?\n{_PRINTED}?"
_PRINTED_HINT = _PRINTED.replace("→", r"\?")
_SIGN = r"(?:=>|:-|:{1,3}=|[?.+]=|={1,3}|:)"
_TYPED = (
    r":[ \t]{0,3}(?:Optional\[str\]|SecretStr|SecureString|[Ss]tr(?:ing)?|&?(?:'static )?str|const char ?\*|char ?\*)"
    r"(?: ?\| ?(?:None|null|undefined))?[ \t]{0,3}=|[ \t]As[ \t]String[ \t]{0,3}="
)
_WRAPPED = (
    rf"(?:(?:new )?(?:String|bytes|Buffer|bytearray|SecretStr|Secret|SecureString|Password|binascii|hex|base64|Base64|Key|Fernet|Some|str|Box)"
    rf"(?:(?:\.|::)[A-Za-z_]\w{{1,20}}){{0,2}}\((?={_QUOTE})|\[\]byte\((?={_QUOTE})"
    rf"|\(?[ \t]?ConvertTo-SecureString[ \t](?:-String[ \t])?(?={_QUOTE}))?"
)
"""What makes bytes or a secret of a value in quotes."""
_SEPARATOR = (
    # NAME: | and an indented line of YAML
    rf"(?::[ \t]{{0,5}}[|>][-+0-9]{{0,2}}[ \t]{{0,5}}\r?\n{_PRINTED}?[ \t]{{1,60}}"
    rf"|:[ \t]{{0,5}}\r?\n{_PRINTED}?[ \t]{{0,60}}- (?=\S)"  # NAMES: and a list of YAML
    rf"|:[ \t]{{0,5}}\r?\n[ \t]{{0,60}}(?={_QUOTE})"  # NAME: and a quote on the next line
    r"|:\*{1,2}[ \t]{1,5}"  # **Name:** value
    r"|[ \t]?\.{3,60}[ \t]{1,3}"  # Name ....... value
    rf"|{_QUOTE}\]=>\s{{1,40}}string\([0-9]{{1,4}}\) (?={_QUOTE})"  # ["name"]=> string(9) "value" of PHP
    rf"|(?:{_QUOTE}|[\])]){{0,4}}[ \t]{{0,40}}(?:\|\||\?\?)=?[ \t]{{0,5}}(?={_QUOTE})"  # NAME || "value", NAME ||= "value"
    rf"|[ \t]\{{[ \t]?get;[^{{}}]{{0,40}}\}}[ \t]=[ \t]{{0,3}}(?={_QUOTE})"  # Name {{ get; set; }} = "value" of C#
    rf"|(?:{_QUOTE})?[ \t]{{0,60}}\|[ \t]{{1,60}}"  # | NAME | value |
    rf"|(?:{_QUOTE})?(?:[ \t](?:for|of)(?:[ \t][^\s:=]{{1,40}}){{1,3}})?(?:[ \t](?:is|was|has|been|now|set|reset|changed|to)){{1,5}}"
    r":?[ \t]{1,3}"  # the password is value, the password for root was set to value
    r"|[ \t](?:for|of)(?:[ \t][^\s:=]{1,40}){1,3}[ \t]?[:=][ \t]{1,3}"  # password for root: value
    r"|[ \t]\([^()\s]{1,40}\):[ \t]{1,3}"  # password (root): value
    rf"|(?:{_QUOTE}|\[?[\])]){{0,4}}[ \t]{{0,60}}(?:{_TYPED}|[ \t](?:string|String|\[\]byte)[ \t]{{1,5}}=|{_SIGN})"
    rf"[ \t]{{0,60}}{_WRAPPED}"
    # NAME = , "name": , ["name"] =>
    rf"(?:[\[(]\s{{0,40}}(?={_QUOTE})|&\w{{1,20}} )?"
    # "names": ["value", …]; name = ("value"); name: &anchor value
    rf"|(?:{_QUOTE})?[ \t]{{0,5}},?\s{{0,80}}(?:{_QUOTE})?[Vv]alue"  # name: NAME, value: …
    rf"(?:{_QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}"
    rf"|(?:{_QUOTE})?[ \t]{{0,5}},[ \t]{{0,20}}(?={_QUOTE})"  # define('NAME', 'value'), setopt(NAME, "value")
    rf"|[ \t]{{1,3}}-[ \t]{{1,3}}(?={_QUOTE})"  # NAME - 'value'
    r"|,(?=[^\s,\"']{6})"  # NAME,value
    rf"|(?:{_QUOTE})?>\s{{0,40}}(?:<[Vv]alue>)?"  # <name>value</name>, <property name="name">value</property>
    rf"|[({{](?={_QUOTE})"  # setName("value"), name{{"value"}}
    r"|(?:\*{1,2}[ \t]?:|:\*{1,2}|:</\w{1,8}>)[ \t]{0,5}"  # **Name:** value
    rf"|(?:[ \t][\w:]{{1,20}}={_QUOTE}[^\"'\n]{{0,160}}{_QUOTE}){{1,3}}>"  # <name type="…">value</name>
    # --name value; judged by what comes before the name
    rf"|[ \t]{{1,20}}(?=\S)(?![Kk]ey\b|KEY\b|[Aa]ccess\b))"
)
_LOOK_AROUND = lazily(r"\(\?<?[=!][^()]*\)")
_NAMED = Sought(
    "(?:"
    + "|".join(f"(?P<{kind}>{tails})" for kind, tails in _TAILS.items())
    + f"){_SUFFIX}(?P<separator>{_SEPARATOR})",
    # Behind a name, letters only continue it: most places are other words, such as `tokens` or `keyboard`.
    f"(?:{_LOOK_AROUND.sub('', '|'.join(_TAILS.values()))})(?:[^A-Za-z]|{_SUFFIX_WORDS})",
)
_NAME_BEFORE = lazily(r"[A-Za-z0-9_.$-]{0,64}\Z")
_LONGEST_NAME = 64
_TAKES_A_WORD = lazily(
    r"(?:\A|[\s\"'`(])--?[A-Za-z][\w-]*\Z|(?:configure set|config set|config:set|secrets? set|variables? set|ENV|setx|SetEnv|setenv|#define"
    r"|set-env[ \t]\S+|env:set|env set"
    r"|set -[a-zA-Z]{1,4}|\b(?:put|set|write|add|push)(?:[ \t]+[\w./:-]+)?)[ \t]+\\{0,7}[\"']?[\w./:-]*\Z"
)
"""What makes `NAME value` an assignment: an option, or a command that sets names."""
_PAIR_COMMAND = lazily(
    r"(?:(?:--set(?:-string)?[ =]|\bansible_|[\s\"'](?:-[DPe]|-{1,2}(?:data|form|var|d|F)[ =])|\b(?:put|write|POST|PUT) )[^\n]*"
    r"|\A|[?&;\"']|\s-[DP]|\b\w+=[^\s,(]+ |[^\s,(=:{] |\buser(?:name)?=[^\s,]+,)\Z"
)
"""A command or a line of an inventory that gives `name=value`."""
_SQL = lazily(r"(?:(?i:with|encrypted|user|role|set|alter|create)[ \t=]+(?:\S{1,64}[ \t]+){0,2})\Z")
_KNOWN_KEYS = lazily(
    r"(?:api|access|secret|private|encrypt(?:ion)?|sign(?:ing)?|master|auth|account|shared|client|license|service|deploy|ssh|webhook"
    r"|hmac|session|storage|app(?:lication)?|admin|root|security|integration|ingest|write|rest|server|crypt|cipher|aes|rsa|jwt"
    r"|cookie|token|user|subscription|function|consumer|partner|merchant|live|prod|nonce|loggedin|unseal|recovery|aes|hash"
    r"|fernet|password)(?:keys?|keystring|salt)[0-9a-z]{0,12}\Z"
)
_CLOUD_KEYS = lazily(r"(?:primary|secondary)(?:master|readonlymaster)?key\Z")
"""Azure's; a database has a primary key, too, but none so long."""
_WORD_BEFORE = lazily(
    r"(?:\A|[^A-Za-z])(?i:api|access|auth|authentication|refresh|bearer|bot|secret|personal|deploy|session|service|security|join"
    r"|registration|reset|verification|unseal|recovery|root|app|client|admin|license|licence|private|encryption|signing|seed) \Z"
)
"""What makes one name of `access token`."""
_OTHER_NAMES = frozenset(
    """
    bos by cache cached cancel dedupe cancellation change cls color completion context continuation creation css dedup
    design end eos export foreign group hash host hot i18n idempotency import index input lock lookup map mask max
    min next num object output pad page pagination partition prev previous primary prompt public query registry
    resume route row sep shortcut sort special start starting stop sync syntax theme total translation unk
    """.split()  # noqa: SIM905
)
"""Words before `key`, `token` or `pass` that give it another meaning."""
_NAME_WORDS = lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_PASS_OF = lazily(
    r"(?:db|remote|user|root|admin|my|smtp|mail|imap|pop|ldap|ftp|login|key|store|http|https|proxy|ssh|sql|bind|become|web"
    r"|basic|api|host)(?:pass|auth)\Z"
)
_FOLDERS = frozenset({"pwd", "oldpwd"})
"""Names that a password shares with the current folder."""

# --- values -------------------------------------------------------------------------------------------------

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
_CODE = lazily(r"[A-Za-z_$][\w$]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][\w$]*)*(?:[([{<].*|[!?]*)\Z", re.DOTALL)
"""An identifier, a chain of them, or the beginning of a call."""
_CAPITALS = lazily(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\Z")
_RUNS = lazily(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_EARLY_DIGIT = lazily(r"[A-Za-z_.]*(?:[0-9]|[^\s\"\\A-Za-z_.0-9\[({<][^\s\"\\]*[0-9])")
"""A digit, before any quote; what begins like an index, a call or a format is code."""
_CHANGES = lazily(r"[A-Za-z_.]*?(?:[^\s\"\\A-Za-z_.0-9\[({<][^\s\"\\]*?)?(?:[a-z]+[A-Z]+){3}")
_UUID = lazily(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
_USER_AND = lazily(r"[A-Za-z][\w.@-]{1,60}:([^\s:/]{6,128})\Z")
_HASH = lazily(r"(?:[0-9a-f]{7,128}|[0-9A-F]{32,128})\Z")
_DIGESTS = lazily(r"(?:sha(?:1|256|384|512)|md5|blake3)[-:]", re.IGNORECASE)
_ORDINARY_PATH = lazily(r"[A-Za-z0-9_.@+~ :*-]*\Z")
_PATH_STEP = lazily(r"[^/]+")


def looks_random(value: str) -> bool:
    """Whether letters and digits change as they do in a random text: not in words, names of variables or
    versions."""
    if len(value) >= 16 and _HASH.match(value):
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
            len(_DIGIT.findall(value)) >= 2
            or (len(value) >= 12 and any(map(str.isdigit, value)) and looks_random(value))
        )
        and _SMALL_LETTER.search(value) is not None
        and _CAPITAL.search(value) is not None
        and _SIGNS_OF_CODE.search(value) is None
        and not is_placeholder(value)
    )


_DIGIT, _SMALL_LETTER, _CAPITAL = lazily("[0-9]"), lazily("[a-z]"), lazily("[A-Z]")
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


_ORDINARY = frozenset(
    """
    wachtwoord parola losenord adgangskode salasana haslo heslo jelszo parole sifre lozinka passord geslo senha geheimnis contrasenya
    control dto entity component provider factory encoder validators model list map controller handler builder
    absent accepted bearer credit cookie cookies tokens keys secrets admin again allowed alphanumeric always
    answer any argon array ask asterisks attempt auth authentication auto
    automatic autofill backup base64 basic bcrypt before blank blob block body bool boolean both broken buffer bytea bytes callback
    case changed char characters checked cipher ciphertext clear cleared cleartext click code column combo comment complex config
    configured confirm confirmation confirmed const contrasena copied copy correct credential credentials current custom data
    database decrypt decrypted default defaults delete deleted denied description digest display does double email empty encoded
    encrypt encrypted encryption entry env environment error event every exact expression extends external failed failure
    false feature fetch field file filled filter final first fixed fixture float follow forbidden forgot forgotten form format
    from full function generate generated get global got group guess hash hashed hashing hidden hide hint ignore ignored
    imported incorrect inherit input instead int integer integration interactive internal interface issue item kennwort key
    keychain keyring last leaked ldap length less letters level literal loaded local locked login lookup lower lowercase
    manager mandatory manual mapping mask masked match matched matches member message method min minimum mismatch missing
    mixed mock must name native needed never nonnull not nothing null nullable number numbers numeric oauth object off omitted once
    only open option optional options other output owner page param parameter params pass passed passkey passphrase passwd password
    passwords passwort pattern people permission pgcrypto phrase plain plaintext plugin policy present previous primary print private
    process prompt prompted property protected provided public query raw read readable readonly ready record recovery ref
    reference regex rejected remember removed repeat request require required reset result return rotate rotated salt
    salted same save saved schema scram screen script scrypt secret section secure secured see select self send senha sensitive
    sent service session set setting settings shadow shared short should show signin signup simple single skip skipped
    source specified ssl static status stdin still store stored string strings strong struct submit success sudo support switch
    symbol system table target template temporary test text that then there they this three time title token true tuple type typed
    unavailable unchanged undefined unicode union unique unknown unlock unset unsupported update updated upper uppercase usage user
    username using utf8 valid validate validated validation validator value values varchar variable vault verify visible void warning
    weak when where which will with without word words write writeonly wrong yaml your zero secretstr textfield charfield passwordfield
    """.split()  # noqa: SIM905
)
"""Types, words of code and of messages: what follows `password:` where no password does."""
_TALK = frozenset(
    """
    a an and any are at be been by can cannot change characters check confirm contain do enter failed field for forgot from has have
    if in incorrect input invalid is it least match may must my need new no not of on one or password passwords passphrase please
    required reset should that the this to too type use user username using valid was we will with wrong you your
    """.split()  # noqa: SIM905
)
"""Words of sentences about passwords, none of which is in a passphrase."""
_CODE_LINE = lazily(
    r"[;{(,][ \t]*\Z|=>|->|\A[ \t]*(?:def|class|import|from|return|if|elif|else|for|while|with|try|except|const|let|var"
    r"|function|func|fn|use|package"
    r"|public|private|protected|static|interface|type|struct|enum|async|await|impl|module|namespace|@\w+|\}|\)|//|/?\*)(?![\w:=.-])"
)
"""A line of a program, not of a file of settings."""
_LINE_END = lazily(r"\r?\n|\\+r?\\*n")
"""Where nothing of a line goes on, also in a text whose escapes are not decoded."""


class _Judged(NamedTuple):
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
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    return len(words) > 1 and words[-2] in _OTHER_NAMES


@lru_cache(maxsize=4_096)
def _is_strong(kind: str, name: str) -> bool | None:
    """Whether a name is a secret's for certain, may be one's (False), or is not (None)."""
    flat = re.sub(r"[_.$ -]", "", name).lower()
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    if (
        kind in ("password", "auth")
        and flat.endswith(("pass", "auth"))
        and words
        and words[-1] not in ("pass", "auth")
        and not name.isupper()
        and not _PASS_OF.search(flat)
    ):
        return None  # `bypass`, `unauth`
    if flat in ("compass", "bypass"):
        return None
    if (
        len(words) > 1
        and words[-2] in _OTHER_NAMES
        and words[-1] not in ("password", "passwd", "passphrase", "salt")
    ):
        return False if _CLOUD_KEYS.search(flat) else None
    if words and words[0] == "existing":
        return None
    if kind == "password" and "hrase" in name.lower():
        return True if re.search("pass|seed|recovery|secret|mnemonic", flat) else None
    if kind in ("password", "secret", "session"):
        return True
    if kind == "token":
        return len(flat.removesuffix("s")) > len("token") or name.startswith("-")
    if kind == "key":
        return bool(_KNOWN_KEYS.search(flat)) or (False if len(flat) > 3 or name.startswith("-") else None)
    return False


def is_secret_value(value: str, judged: _Judged) -> bool:
    """Whether what a secret's name is given looks like a secret."""
    strong = _is_strong(judged.kind, judged.name)
    if (
        strong is None
        or not _LEAST <= len(value) <= LONGEST_VALUE
        or not _FIRST.match(value)
        or value.startswith("[redacted:")
    ):
        return False
    if any(map(str.isspace, value)):
        return _is_passphrase(value, judged)
    if is_placeholder(value) or _DIGESTS.match(value) or value.startswith(("pk_live_", "pk_test_")):
        return False
    if judged.name.lower() in _FOLDERS and re.search(r"[/\\]|\A[A-Z]:", value):
        return False
    is_uuid = _UUID.match(value) is not None
    if judged.kind in ("auth", "credential"):
        if judged.is_line and (pair := _USER_AND.match(value)) is not None:
            return not is_placeholder(pair[1])
        of_npm = judged.name.endswith("_auth") and judged.is_line
        is_mixed = judged.is_line and _is_mixed(value)
        if judged.is_line and judged.kind == "credential" and is_chosen(value):
            return True
        return _is_basic(value) or (
            len(value) >= 16
            and (judged.is_quoted or not _is_code(value))
            and (is_mixed or looks_random(value))
            and not _HASH.match(value)
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
            or _CLOUD_KEYS.search(judged.name.replace("_", "").lower()) is not None
        )
        if is_uuid:
            return judged.is_variable and judged.kind == "key"
        if len(value) < least or not looks_random(value) or (not is_key and _HASH.match(value)):
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
        return 3 * sum(word in _ORDINARY or word in _OTHER_NAMES for word in words) <= len(words)
    if not value.isascii() or (not is_quoted and _is_code(value)):
        return False
    parts = [part.lower() for part in _PARTS.findall(value)]
    ordinary = sum(part in _ORDINARY for part in parts)
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
    return _CODE.match(value) is not None and (
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


def _is_sentence(words: list[str]) -> bool:
    """Whether words speak of passwords; four in a hundred of those that seeds are made of do, too."""
    talk = sum(word.lower() in _TALK for word in words)
    return talk > (len(words) // 4 if _is_seed(words) else 0)


def _is_words_and_number(value: str) -> bool:
    """Whether a value is two words and a number between them, as people choose: `harbor_4929_walnut`."""
    match = _WORDS_AND_NUMBER.match(value)
    return match is not None and not any(
        word.lower() in _ALGORITHMS or word.lower() in _ORDINARY
        for word in (match["first"], match["last"] or match["next"])
    )


_APP_PASSWORD = lazily(r"[A-Za-z0-9]{4}(?: [A-Za-z0-9]{4}){3,5}(?![A-Za-z0-9 ])")
"""As Google and WordPress give them to applications."""


def _is_passphrase(value: str, judged: _Judged) -> bool:
    """Whether a value with spaces is one: words of no sentence, or the salts that WordPress generates."""
    if not judged.is_quoted or judged.is_call:
        return False
    words = value.split()
    if judged.kind == "password":
        if _APP_PASSWORD.fullmatch(value) or _is_seed(words):
            return not _is_sentence(words)
        if len(words) < 3 or not 12 <= len(value) <= 300 or re.search(r"[.,;:?!(){}<>=|]| -", value):
            return False
        return not any(word.lower() in _TALK for word in words)
    letters = sum(map(str.isalpha, value))
    return (
        40 <= len(value) <= 128 and letters < 0.75 * len(value) and len(set(value)) >= 24 and len(words) <= 8
    )


def _is_basic(value: str) -> bool:
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
    if not _LEAST <= len(value) <= LONGEST_VALUE:
        return None
    kind = _kind_by_name(name)
    if kind is None:
        return None
    judged = _Judged(kind, name, is_quoted=True, is_line=True, takes_words=True)
    return kind if is_secret_value(value, judged) else None


@lru_cache(maxsize=4_096)
def _kind_by_name(name: str) -> str | None:
    tail = name[-_LONGEST_NAME:]
    match = next((each for each in _NAMED.finditer(f'{tail}": ') if each.end() == len(tail) + 3), None)
    return None if match is None else _kind_of(match)


def _kind_of(match: re.Match[str]) -> str:
    return next(kind for kind in _TAILS if match[kind] is not None)


# --- assignments --------------------------------------------------------------------------------------------

_OPENS = lazily(r"(?:[bru@$]|rb)?(\"\"\"|\'\'\'|(?:\\{1,7}\"){3}|\\{0,7}[\"'`])")
_BARE = lazily(
    r"[A-Za-z0-9_+/.%~-]{128,4096}={0,2}(?![^\s\"'`,;&)}\]<|\\])|[^\s\"'`]{1,128}(?![^\s\"'`])|[^\s\"'`,;&=:)}\]<>|\\]{1,128}(?=[,;&)}\]<>|\\])"
)
"""A value without quotes: what is long is letters and digits, so that no text is read once for each name in
it."""
_ESCAPE = lazily(r"\\+(?:[nrtu\"'\\]|$)")
_INSIDE = lazily(r"[,;&)}\]|<>]")
_REST_OF_LINE = lazily(r"[ \t]*(?:#.*)?(?:\r?\n|\\*\"|\Z)")
_CELL_END = lazily(r"[ \t]*\|")
_CELL_BEFORE = lazily(
    r"(?:[^\s:]{1,60}:[0-9]{1,7}:)?[^\w|]{0,20}(?:[0-9]{1,7}(?:→|\t))?[^\w|]{0,20}(?:\||\Z)"
)
_CLOSING_TAG = lazily(r"\s{0,40}</")
_LINE_NUMBER = lazily(r":[0-9]{1,6}::\Z")
_LINE_BEFORE = lazily(
    r"(?:\A|\n|\\+\"|: ?\")(?:[^\s:\"']{1,100}[:-])?[ \t]*(?:[0-9]{1,7}(?:→|\t|[:"
    r"|-]))?[ \t]*[+>-]?[ \t]*(?:[-*] )?(?:\*{1,2}|<\w{1,8}>)?(?:- |export |set "
    r"|declare -x )?[ \t]*\Z"
)
"""The beginning of a line, also as `cat -n`, `grep -n` and `diff` print it."""
_SHELL_BEFORE = lazily(r"(?:\A|[\s;&|({,\"'`→=]|[0-9][:-])\Z")


_GETTER = lazily(
    r"(?i:get|has|is|find|show|input|by|label|prompt|ask|read|use|new|check|valid|verif|forgot|reset|hash|encrypt|gen|test|t\Z)|[A-Z][a-z]"
)
_SETTER = lazily(
    r"(?i:put|string|var|set|define|field|add|env|header|append|setdefault|property|export|insert|pair|entry)\w{0,20}\(\s{0,5}"
    r"(?:\\{0,7}\"String\\{0,7}\",\s?)?\\{0,7}[\"']?\Z"
)
"""Calls that take a name and its value."""
_TOLD = lazily(
    r"(?i:with|using|and|use|the|set|generated|temporary|temp|initial|default|random|new|one-time|root|admin|your"
    r"|bootstrap|my|our)[ \t]+(?:[a-z]+[ \t]+)?\Z|(?i:user|username|login|email)[:=]?[ ]\S{1,60}[ ](?:and |/ |, |with )?\Z"
)
"""What a program says before it names a password that it made."""


def _is_told(ahead: str) -> bool:
    """Whether a text ends with one of `_TOLD`, each of which ends with a space."""
    return ahead.endswith((" ", "\t")) and _TOLD.search(ahead) is not None


_PHRASE = lazily(r"[a-z]{2,12}(?: [a-z]{2,12}){3,24}(?=[ \t]*(?:\r?\n|\\*\"|\Z))")
_USER_TOLD = lazily(r"(?i:username|user|in as|account) \S{1,60} (?:and|with|using) \Z")
_REST_OF_WORD = lazily(r"[.,;]?(?:\s|\\*[\"'`]|\Z)")
_NEXT_ITEM = lazily(rf"{_QUOTE},\s{{0,40}}(?={_QUOTE})")
_NEXT_LINE_ITEM = lazily(rf"(?:{_QUOTE})?\r?\n{_PRINTED}?[ \t]{{0,60}}- (?=\S)")


def _is_settings(text: str, begin: int, end: int) -> bool:
    """Whether the lines around this place are none of a program."""
    lines = _LINE_END.split(text[max(0, begin - 300) : begin])[-4:] if begin else []
    lines += _LINE_END.split(text[end : end + 300])[:4]
    return not any(map(_CODE_LINE.search, lines))


def _assigned(text: str) -> Iterator[Span]:
    for match in _NAMED.finditer(text):
        kind = _kind_of(match)
        before = _NAME_BEFORE.search(text, max(0, match.start() - _LONGEST_NAME), match.start())
        begin = before.start() if before is not None else match.start()
        name = text[begin : match.start("separator")]
        separator = match["separator"]
        if (
            name.lower().rstrip(" 0123456789") in ("token", "tokens", "key", "phrase")
            and (word := _WORD_BEFORE.search(text, max(0, begin - 24), begin)) is not None
        ):
            name = f"{word[0].strip()}_{name}"
        if (
            text.startswith("::", begin - 2) and _LINE_NUMBER.search(text, max(0, begin - 9), begin) is None
        ) or (separator == ":" and text.startswith(":", begin - 1)):
            continue  # a part of a longer name, as in `AWS::IAM::AccessKey` and `arn:aws:…:secret:name`
        at = match.end()
        found = _value(text, begin, name, kind, separator, at)
        while found is not None:
            yield Span(found[0], found[1], kind)
            follows = (
                _NEXT_ITEM if "[" in separator else _NEXT_LINE_ITEM if separator.endswith("- ") else None
            )
            item = follows.match(text, found[1]) if follows is not None else None
            found = _value(text, begin, name, kind, separator, item.end()) if item is not None else None


def _value(text: str, begin: int, name: str, kind: str, separator: str, at: int) -> tuple[int, int] | None:
    bare = separator.strip()
    if not bare:
        return _word_behind(text, begin, name, kind, at)
    opened = _OPENS.match(text, at)
    if opened is not None:
        nested = _OPENS.match(text, opened.end())
        if (
            nested is not None
            and nested.start(1) == opened.end()
            and (len(nested[1]) > len(opened[1]) or nested[1] not in opened[1])
        ):
            opened = nested  # a string in a string
        end = _closing(text, opened[1], opened.end())
        start, value = opened.end(), text[opened.end() : end]
        if value[:1].isspace() and not any(map(str.isspace, value.strip())):
            start += len(value) - len(value.lstrip())
            value = value.strip()
            end = start + len(value)
        is_line = (
            "=" in bare
            or ":" in bare
            or "alue" in bare
            or (bare.endswith(",") and name.isupper() and not separator.startswith(","))
            or bare == "-"
        )
        ahead = text[max(0, begin - 80) : begin]
        if re.search(" (?:is|was|to)\\b", separator):
            is_line = True
        if (
            bare == "{"
            or (bare == "(" and not _GETTER.match(name))
            or (bare.endswith(",") and _SETTER.search(ahead))
        ):
            is_line = True
        is_call = (bare == "(" or bare.endswith(",")) and not is_line
        takes_words = is_line and "==" not in bare
        judged = _Judged(
            kind, name, is_quoted=True, is_line=is_line, is_call=is_call, takes_words=takes_words
        )
        return (start, end) if is_secret_value(value, judged) else None
    whole = _BARE.match(text, at)
    if whole is None:
        return None
    if (
        kind == "password"
        and (phrase := _PHRASE.match(text, at)) is not None
        and (
            re.search("hrase|nemonic", name)
            or (
                bare in ("=", ":")
                and _LINE_BEFORE.search(text, max(0, begin - 160), begin)
                and _is_settings(text, begin, phrase.end())
            )
        )
    ):
        return None if any(word in _TALK for word in phrase[0].split()) else (at, phrase.end())
    if (
        kind == "password"
        and (app := _APP_PASSWORD.match(text, at)) is not None
        and _REST_OF_LINE.match(text, app.end()) is not None
        and not any(word.lower() in _TALK for word in app[0].split())
    ):
        return at, app.end()
    value = whole[0]
    if escape := _ESCAPE.search(value):
        value = value[: escape.start()]
    if bare.endswith(">") and "=" not in bare and ":" not in bare:
        inner = value.partition("</")[0]
        judged = _Judged(kind, name, is_quoted=True, is_line=True, takes_words=True)
        closes = _CLOSING_TAG.match(text, at + len(inner)) is not None
        return (at, at + len(inner)) if closes and is_secret_value(inner, judged) else None
    ahead = text[max(0, begin - 160) : begin]
    is_variable = (
        bare == "="
        and not separator.startswith((" ", "\t"))
        and (name.isupper() or name.startswith("TF_VAR_"))
        and _SHELL_BEFORE.search(ahead) is not None
    )
    is_line = _REST_OF_LINE.match(text, at + len(value)) is not None and (
        "alue" in bare or _LINE_BEFORE.search(ahead[max(0, ahead.rfind("\n")) :]) is not None
    )
    if bare == ",":
        is_line = (
            _LINE_BEFORE.search(ahead) is not None and text[at + len(value) : at + len(value) + 1] != ")"
        )
        if not is_line:
            return None
    if bare.endswith("|"):
        is_line = is_line or (
            _CELL_BEFORE.match(_LINE_END.split(ahead)[-1].rpartition('"')[2]) is not None
            and _CELL_END.match(text, at + len(value)) is not None
        )
    if re.search("[a-z(]", bare) or _is_told(ahead):
        is_line = is_line or (kind == "password" and _REST_OF_WORD.match(text, at + len(value)) is not None)
    is_option = bare in ("=", ":") and bare == separator and name.startswith("-")
    if not (is_variable or is_line) and (cut := _INSIDE.search(value)):
        value = value[: cut.start()]
    value = value.rstrip(",;)}]|&>") if not is_line else value
    end = at + len(value)
    is_pair = (
        bare == "=" == separator
        and not is_line
        and (_PAIR_COMMAND.search(ahead) is not None or name.startswith("ansible_"))
    )
    judged = _Judged(
        kind, name, is_quoted=False, is_line=is_variable or is_line or is_option or is_pair or bare == ":-"
    )
    if bare != ":-" and is_secret_value(value, judged):
        return at, end
    if (
        bare == "=" == separator
        and kind in ("password", "secret")
        and text[end : end + 1].isspace()
        and is_chosen(value)
    ):
        return at, end  # in a message
    if bare == ":-" or text.startswith("${", begin - 2):
        value = value.partition("}")[0]
        end = at + len(value)
        is_option = True
    if re.search("[a-z]", bare) and ":" not in bare and len(re.findall("[-_.]", value)) < 2:
        return None  # `the password is wrong`
    takes_words = (
        is_option
        or is_pair
        or (is_line and not re.search("==|[)|]", bare) and _is_settings(text, begin, end))
    )
    judged = judged._replace(takes_words=takes_words, is_quoted=is_option or is_pair)
    return (at, end) if takes_words and is_secret_value(value, judged) else None


def _word_behind(text: str, begin: int, name: str, kind: str, at: int) -> tuple[int, int] | None:
    """The value of `--password VALUE`, `ENV PASSWORD VALUE` and `WITH PASSWORD 'VALUE'`."""
    ahead = text[max(0, begin - 80) : begin + len(name)]
    opened = _OPENS.match(text, at)
    takes = _TAKES_A_WORD.search(ahead) is not None
    takes = takes or (kind == "password" and _USER_TOLD.search(text, max(0, begin - 90), begin) is not None)
    if (
        not takes
        and re.fullmatch(r"(?:[\w.-]*[_.-])?(?:password|passwd|pass|secret)", name.lower())
        and opened is None
    ):
        word = _BARE.match(text, at)
        takes = (
            word is not None
            and _LINE_BEFORE.search(text, max(0, begin - 160), begin) is not None
            and _REST_OF_LINE.match(text, word.end()) is not None
            and _is_settings(text, begin, word.end())
        )
    if (
        opened is not None
        and not takes
        and kind == "password"
        and _LINE_BEFORE.search(text, max(0, begin - 160), begin)
    ):
        takes = (
            _REST_OF_LINE.match(text, _closing(text, opened[1], opened.end()) + len(opened[1])) is not None
        )
    if opened is not None and not takes and kind == "password" and _is_told(text[max(0, begin - 40) : begin]):
        end = _closing(text, opened[1], opened.end())
        value = text[opened.end() : end]
        judged = _Judged(kind, name, is_quoted=True, is_line=True)
        if any(map(str.isdigit, value)) and is_secret_value(value, judged):
            return opened.end(), end
    if not takes and not (
        opened is not None
        and opened[1] == "'"
        and kind == "password"
        and _SQL.search(text, max(0, begin - 200), begin)
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
    if text[start:end].rstrip(".,\"'").lower() in _ORDINARY:
        return None  # `set NAME instead`
    judged = _Judged(kind, name, is_quoted=True, is_line=takes, takes_words=True)
    return (start, end) if is_secret_value(text[start:end], judged) else None


def _closing(text: str, quote: str, at: int) -> int:
    """Where a quoted value ends: before the same quote with as many backslashes, or where its line does."""
    limit = min(len(text), at + LONGEST_VALUE + 1)
    end = text.find(quote, at, limit)
    while end > at and text[end - 1] == "\\" and len(quote) == 1:
        end = text.find(quote, end + 1, limit)
    line = text.find("\n", at, limit if end == -1 else end)
    return line if line != -1 else limit if end == -1 else end


# --- headers, cookies, commands -----------------------------------------------------------------------------

_HEADER_SIGN = (
    rf"(?:{_QUOTE})?[ \t]{{0,5}}(?:[:=,]|=>|(?:{_QUOTE})?,?\s{{0,40}}(?:{_QUOTE})?[Vv]alue(?:{_QUOTE})?[ \t]{{0,3}}[:=])"
    rf"[ \t]{{0,5}}(?:[bruf]?{_QUOTE})?"
)
_AUTHORIZATION = lazily(
    rf"(?:[Aa]uthorization|AUTHORIZATION){_HEADER_SIGN}(?:([A-Za-z][A-Za-z0-9-]{{1,20}})[ \t]{{1,3}})?([A-Za-z0-9._~+/=:@!-]{{8,4096}})"
)
_BASIC = lazily(r"(?<![A-Za-z])[Bb]asic[ \t]([A-Za-z0-9+/]{8,2048}={0,2})")
_BASIC_SIGN = lazily("[A-Z0-9=]")
_COOKIE = lazily(
    rf"(?:(?:[Cc]ookies?|COOKIES?){_HEADER_SIGN}|--cookie[ =](?:{_QUOTE})?|(?<= )-b[ =]?{_QUOTE})(?=[^\s=\"';]{{1,64}}=)"
)
_COOKIE_DICT = lazily(rf"[Cc]ookies?(?:{_QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}\{{([^{{}}]{{1,4000}})\}}")
_COOKIE_ITEM = lazily(
    rf"({_QUOTE})([^\s\"'`\\]{{1,64}}){_QUOTE}\s{{0,5}}:\s{{0,5}}{_QUOTE}([^\s\"'\\]{{8,4096}})"
)
_PAIR = lazily(r"([^\s=\"';,\\]{1,64})=([^\s\"';,\\]{1,4096})(?:;[ \t]*)?")
_ATTRIBUTES = frozenset({"path", "domain", "expires", "max-age", "samesite", "priority", "version"})
_SESSION = lazily(
    r"sess|sid\b|auth|token|jwt|csrf|xsrf|remember|login|secret|ticket|_id\b|\bid\b|key", re.IGNORECASE
)
_USER = lazily(
    rf"(?<=[\s\"'\\,\[])(?:-(?:[sSkLi][A-Za-z]{{0,5}})?[ua]|--user|--proxy-user|-U|--?auth|--(?:\w+-)?creds"
    rf"|--basic-auth)[\"',=\s]{{0,5}}(?:{_QUOTE})?([^\s:\"'=\\]{{0,100}}):(?:{_QUOTE})?([^\s\"'\\]{{4,256}})"
)
_LONGEST_COMMAND = 2_000
_HTTP_CLIENT = lazily(r"\b(?:curl|wget|https?|xhs?|httpie|ab|siege|java|hey|ngrok|etcdctl|skopeo|oras|wrk)\b")
_FLAGS = r"(?:-[\w-]+(?:=\S+)?[ \t]+)*"
_WORD = r"[^\s-]\S*[ \t]+"


def _with_option(name: str, letters: str) -> str:
    """Patterns of a command with an option, perhaps behind other words."""
    return rf"{name}[a-z-]* -{letters}|{name}[a-z-]*[ \t\\][^\r\n]* -{letters}"


_COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("mysql[a-z]*|mariadb[a-z-]*", "…-p", f"{_with_option('mysql', 'p')}|{_with_option('mariadb', 'p')}"),
    ("mongo[a-z]*", r"…-p[ \t]*", _with_option("mongo", "p")),
    ("sshpass", r"…-p[ \t]*", "sshpass "),
    ("login", r"…-p(?:[ \t]+|=)", _with_option(" login", "p")),
    ("twine upload|cqlsh|snowsql|rabbitmqadmin|impala-shell", r"…-p[ \t]*", "twine upload|cqlsh|snowsql|rabbitmqadmin|impala-shell"),
    ("redis-cli", r"…(?:-a[ \t]+|(?i:auth)[ \t]+(?:[\w-]+[ \t]+(?=[^\s-]))?|(?i:requirepass|masterauth)[ \t]+)", "redis-cli "),
    ("sqlcmd|zip|unzip|mosquitto_[ps]ub|mosquitto_rr|ipmitool", r"…-P[ \t]*", "sqlcmd |zip -|mosquitto_|ipmitool"),
    ("ldap[a-z]+|slappasswd", r"…-[ws][ \t]*", "ldap[a-z]* -|slappasswd -"),
    ("keytool|jarsigner", r"…-(?:src|dest)?(?:store|key)pass[ \t]+", "keytool |jarsigner "),
    ("apksigner", r"…--(?:ks|key)-pass[ \t]+(?:pass:)?", "apksigner"),
    ("smbclient|rpcclient|smbmap|net rpc", r"…(?:-U|--user)[ =\t]*\\{0,7}[\"']?[^\s%\"']{1,100}%", "smbclient |rpcclient |net rpc"),
    ("7z[az]?|unrar|rar", r"…-h?p", "7z [a-z] |7za [a-z] |7zz [a-z] |rar [a-z]+ -h?p"),
    ("openssl (?:enc|aes|des)[\\w-]*", r"…-k[ \t]+", "openssl enc|openssl aes|openssl des"),
    ("openssl passwd", rf"{_FLAGS}(?:-salt[ \t]+\S+[ \t]+)?", "openssl passwd"),
    (
        "vault login|cargo login|snyk auth|ngrok authtoken|add-authtoken|cloudflared service install|bw"
        " unlock|doppler login",
        rf"{_FLAGS}(?:token=)?",
        "vault login|cargo login|snyk auth|authtoken |cloudflared service install|bw unlock|doppler login",
    ),
    ("bw login", _WORD, "bw login"),
    ("add_user|change_password|authenticate_user", rf"{_FLAGS}{_WORD}", "add_user |change_password |authenticate_user "),
    ("lftp|ncftp", r"…-u[ \t]*[\"']?[^\s,\"'\\]{1,100}[\"']?,", "lftp |ncftp "),
    ("gh secret set|gh variable set", r"…(?:--body|-b)[ =\t]*", "gh secret set|gh variable set"),
    (
        "secrets create|create-secret|put-secret-value|put-parameter|keyvault secret set",
        r"…--(?:secret-string|value|secret-value)[ =\t]+",
        "secrets create|create-secret|put-secret-value|put-parameter|keyvault secret",
    ),
    ("net use", r"(?:[^\n]{0,200}?/(?i:user):\S+[ \t]+|(?:[A-Za-z]:|\*)?[ \t]*\\{2,16}\S+[ \t]+(?!/))", "net use "),
    ("net user", _WORD, "net user "),
    ("cmdkey|runas", r"[^\n]{0,200}?/(?i:pass):", "cmdkey |runas "),
    ("htpasswd", r"-(?:\w*n\w*b|\w*b\w*n)\w*[ \t]+(?:-\w+[ \t]+)*\S+[ \t]+", "htpasswd -"),
    ("htpasswd", rf"-\w*b\w*[ \t]+(?:-\w+[ \t]+)*{_WORD}{_WORD}", ""),
    ("set-initial-password|wandb login", _FLAGS, "set-initial-password |wandb login "),
    ("user-secrets set", rf"(?:--?\w+[ \t]+\S+[ \t]+)*{_WORD}", "user-secrets set "),
    ("-setairportnetwork", rf"{_WORD}{_WORD}", "setairportnetwork "),
    ("vncdo|vncdotool", r"…-p[ \t]*", "vncdo"),
    ("user:password|user-password", rf"{_FLAGS}{_WORD}", "drush [^ ]*user.password|drush upwd"),
    ("reset-admin-password|resetpassword", _FLAGS, "reset-admin-password |resetpassword "),
    ("(?:np|pnp|yar)[mn] (?:config )?set", r"\S*(?:_auth\w*|_password)[ =\t]+", "npm set [^ ]*_auth|npm set [^ ]*_password"),
    ("mosquitto_passwd", rf"-\w*b[ \t]+{_WORD}{_WORD}", ""),
    ("ssh-keygen", r"…-[NP][ \t]*", "ssh-keygen "),
    ("xfreerdp|wfreerdp|mstsc|rdesktop", r"…(?:/p:|-p[ \t]+)", "freerdp |rdesktop "),
    ("security add-[a-z]+-password", r"…-w[ \t]+", "security add-"),
    ("security (?:un|create|set|import)[\\w-]*", r"…-[pPk][ \t]+", "security unl|security cre|security set|security imp"),
    ("altool|notarytool", r"…-p[ \t]+(?!@)", f"{_with_option('altool', 'p')}|{_with_option('notarytool', 'p')}"),
    ("wifi connect", r"[^\n]{1,100}?password[ \t]+", "wifi connect"),
    ("wpa_passphrase", _WORD, "wpa_passphrase "),
    (
        "influx|doctl|vercel|netlify|codecov|hcloud",
        r"…(?:-t|--auth)[ =\t]+",
        "|".join(_with_option(name, "[t-]") for name in ("influx", "doctl", "vercel", "netlify", "codecov")),
    ),
    ("mc alias set|mc config host add", rf"{_WORD}{_WORD}{_WORD}", "mc alias set|mc config host"),
    (
        r"(?:http-basic|pypi-token|github-oauth|gitlab-token)\.[\w.-]+",
        r"(?:[\w@.-]+[ \t]+(?=[^\s-]))?",
        r"http-basic\.|pypi-token\.|github-oauth\.|gitlab-token\.",
    ),
    ("dotnet nuget|nuget push|nuget sources", r"…-(?:-api-key|k|ApiKey|-password|p|Password)[ \t]+", "nuget push|nuget sources|dotnet nuget"),
    ("nuget setapikey", "", "nuget setapikey"),
    ("sqlplus|rman target|impdp|expdp|sqlldr", r"(?:-\w+[ \t]+)*[\w.$#-]+/(?!@)", "sqlplus |rman target|impdp |expdp |sqlldr "),
    (
        "requirepass|masterauth|bindpw|rootpw|enable password|enable secret|wpa-psk|olcRootPW:",
        r"(?:(?:[0-9]|--?[\w-]+)[ \t]+){0,3}",
        "requirepass |masterauth |bindpw |rootpw |olcRootPW|enable password|enable secret|wpa-psk ",
    ),
    ("useradd|usermod", r"…-p[ \t]+", f"{_with_option('useradd', 'p')}|{_with_option('usermod', 'p')}"),
    ("dscl", r"[^\n]{1,100}?-passwd[ \t]+\S+[ \t]+", "dscl "),
)  # fmt: skip
"""Commands, what is between one and the password that it takes (`…` for other words), and how a log has
them."""
_COMMAND = lazily(
    r"(?<![A-Za-z0-9])(?:"
    + "|".join(rf"(?P<c{number}>{names})" for number, (names, _, _) in enumerate(_COMMANDS))
    + r")(?=[ \t])"
)
_OPTIONS_OF_ONE = 3
"""Secrets that one command may take."""
_GIVEN = r"(\\{0,7}[\"']?)([^\s\"'\\]{4,256})"
_TAKEN_BY = [
    lazily(r"[ \t]*?" + option.replace("…", r"[^\n]{0,300}?[ \t]") + _GIVEN) for _, option, _ in _COMMANDS
]
_SECRET_PAIRS = lazily(
    r"\b(?:(?:fly|flyctl|doppler|supabase|wrangler|encore) secrets? (?:set|put|import)|(?:kubectl|oc)\b[^\n]{0,80} create secret"
    r"|vault (?:kv (?:put|patch)|write))[ \t]([^\n]{1,2000})"
)
_SECRET_PAIR = lazily(rf"(?<![^\s=\"'])((?!--)[\w./-]{{1,64}})=(?:{_QUOTE})?([^\s\"'\\]{{6,512}})")
_PUBLIC_PAIRS = frozenset(
    {
        "username",
        "user",
        "host",
        "url",
        "path",
        "ttl",
        "policies",
        "policy",
        "type",
        "namespace",
        "email",
        "server",
    }
)
_NEXT_COMMAND = lazily("[|;&]")
_PIPED = lazily(
    rf"\b(?:echo|printf)[ \t](?:-n[ \t]|'%s(?:\\{{1,4}}n)?'[ \t]|\\*\"%s(?:\\{{1,4}}n)?\\*\"[ \t])?(?:{_QUOTE})?"
    rf"(?:(?<![:\w])[\w.-]{{1,64}}:(?=[^\n]{{1,300}}chpasswd))?([^\s\"'\\|:]{{6,256}})(?:{_QUOTE})?[ \t]{{0,5}}\|[ \t]{{0,5}}"
    r"(?:(?:sudo[ \t])?(?:chpasswd|passwd[ \t]|su[ \t]|kinit|cryptsetup)|sudo[ \t]+-[A-Za-z]*S"
    r"|[^\n|]{1,200}(?:password-stdin|with-token|passphrase-fd|passwd-on-stdin|stdinpass|pass stdin"
    r"|realm join|lpass login|secrets? (?:put|set|create|add)|variable set|env add|pass insert|data-file=-))"
)
"""`echo value | docker login --password-stdin`."""
_OPENSSL = lazily(r"(?<=[\s\"'=])pass:([^\s\"'\\]{4,256})")
_IDENTIFIED = lazily(
    rf"(?:identified|IDENTIFIED)\s{{1,5}}(?:(?:with|WITH)\s{{1,5}}\S{{1,64}}\s{{1,5}})?(?:by|BY)\s{{1,5}}({_QUOTE})([^\s\"'`\\]{{4,256}})"
)
_GAP = rf"(?:\r?\n{_PRINTED}|\s){{1,40}}"
_NETRC = lazily(
    rf"\bmachine{_GAP}[^\s\\]{{1,200}}(?:{_GAP}(?:login|account|port){_GAP}[^\s\\]{{1,200}}){{0,3}}{_GAP}password{_GAP}([^\s\"\\]{{4,512}})"
    rf"|\blogin{_GAP}[^\s\\]{{1,200}}{_GAP}password{_GAP}([^\s\"\\]{{4,512}})"
)
_PGPASS = lazily(
    r"(?:\A|(?<=[\s\"'→+-])|(?<=[0-9]:))[\w.*-]{1,200}:(?:543[0-9]|6432|\*):[^:\s]{1,64}:[^:\s]{1,64}:([^\s\"'\\]{4,256})"
)
_CONNECTION = lazily(
    r"(?:; ?(?:Pwd|PWD|pwd)=\\{0,7}[\"']?|\boracle:thin:[^\s/@\"']{1,64}/)([^\s;\"'\\@]{4,256})"
)
"""The password of a connection string; elsewhere, `PWD` is a folder."""
_COOKIE_JAR = lazily(r"\t(?:TRUE|FALSE)\t[0-9]{1,12}\t[^\t\s\\]{1,128}\t([^\s\\\"]{8,4096})")
_AUTH_PAIR = lazily(
    rf"\bauth(?:=|{_QUOTE}:[ ]?|: ?)[\[(]\s{{0,20}}{_QUOTE}[^\s\"']{{1,100}}{_QUOTE},\s{{0,20}}{_QUOTE}([^\s\"'\\]{{6,256}})"
)
"""`auth=("user", "password")`, as in Python's requests."""
_SIGNATURE = lazily(r"(?:\bAWS4-HMAC-SHA256\b[^\n]{0,600}?Signature=)([0-9a-f]{64})")
_LONGEST_MANIFEST = 4_000
_KUBERNETES = lazily(r"\\*[\"']?kind\\*[\"']?[ \t]*:[ \t]*\\*[\"']?[Ss]ecret\b")
_DATA_LINES = lazily(
    rf"(?:^|\n)(?:{_PRINTED})?([ \t]*)(?:data|stringData):[ \t]*((?:{_LINE_BREAK}\1[ \t]+(?:[\w.-]+:|#)[ \t]*[^\n\\]*)+)"
)
_DATA_LINE = lazily(rf"{_LINE_BREAK}[ \t]+[\w.-]+:[ \t]*[\"']?([^\s\"'\\]{{6,4096}})")
_DATA_OBJECT = lazily(r"\\*[\"'](?:data|stringData)\\*[\"'][ \t]*:\s*\{([^{}]{1,20000})\}")
_DATA_ITEM = lazily(r"\\*[\"'][\w.-]+\\*[\"']\s*:\s*\\*[\"']([^\"'\\]{6,4096})")


_V = rf"(?:{_QUOTE})?([^\s\"'\\`]{{6,256}})"
_MIXED = r"(?=\S{0,60}[0-9])(?=\S{0,60}[A-Z])"
_FOREIGN_WORDS = ("密码", "密碼", "パスワード", "비밀번호", "ароль")
"""`password` in languages whose letters a line of JSON may write as numbers."""


def _bytes_or_numbers(word: str) -> str:
    """The patterns of the bytes of a word, and of their numbers in JSON."""
    inside = "".join(f"\\x{byte:02x}" for byte in word.encode())
    return inside + "\n" + "\\\\+".join(f"u{ord(each):04x}" for each in word)


_PRINTS_SECRET = (
    *(
        "openssl rand ",
        "wg genkey",
        "wg genpsk",
        "pwgen ",
        "urandom",
        "token_urlsafe",
        "token_hex",
        "key:generate",
    ),
    *(
        "print-access-token",
        "print-identity-token",
        "get-access-token",
        "gh auth token",
        "auth:token",
        "print token",
        "whoami -t",
    ),
    *(
        r"get secrets? [^\r\n]{1,160}base64 -",
        r"get secrets? [^\r\n]{1,160}jsonpath",
        "pulumi config get [a-z]*(?:[pP]ass|[sS]ecret|[tT]oken|[kK]ey)",
    ),
    *(
        "versions access",
        "get-secret-value",
        "keyvault secret show",
        "vault kv get -field",
        "vault read -field",
    ),
    *(
        "secrets? get ",
        "op read ",
        "pass show ",
        "find-generic-password",
        "get-login-password",
        "initial-admin-password",
    ),
    *("admin initial-password", "create token ", "tokens? create"),
    *(
        "bw get (?:password|totp|notes)",
        "rails secret",
        "rake secret",
        r"random_secret_key\(",
        r"Fernet\.generate_key\(",
        "enrollment token:",
    ),
)
"""Commands that print a secret: the word on the next line is one."""
_PLACES: tuple[tuple[str, str], ...] = (
    # The user, then the password: psexec, cypher-shell, bcp, …
    (
        "\n".join(f' -{letter}[ \\t]+[^ \\t\\r\\n"]+[ \\t]+-[pPw]' for letter in "uU"),
        rf"\s-[uU][ \t]+\S{{1,100}}[ \t]+-[pPw][ \t]*(?![0-9]*:){_V}(?![:])",
    ),
    (" -pw ", rf"\s-pw[ \t]+{_V}"),
    (
        "<<< ",
        rf"\b(?:sudo|passwd|chpasswd|vncpasswd|smbpasswd|age|keyring|pdbedit|realm|lpass|login|secrets?|vault|token|stdin|kinit|insert|gpg|auth"
        rf"|cryptsetup)\b[^\n]{{0,200}}<<<[ \t]*(?:(?<=[\"' ])\w{{1,32}}:)?{_V}",
    ),
    (
        "\\| passwd\n\\| sudo passwd\n\\| smbpasswd\n\\| sudo smbpasswd",
        rf"\(echo[ \t]{_V}(?:{_QUOTE})?;[ \t]*echo[ \t]",
    ),
    ("ConvertTo-SecureString", rf"ConvertTo-SecureString[ \t]+(?:-\w+[ \t]+){{0,3}}(?=\\*[\"']){_V}"),
    ("hash-password", rf"hash-password\b[^\n]{{0,60}}?(?:--plaintext|-p)[ =]{_V}"),
    ("user_pw \nowner_pw ", rf"\b(?:user_pw|owner_pw)[ \t]+{_V}"),
    (
        "rclone config\nrclone obscure",
        rf"rclone[ \t](?:[^\n]{{1,200}}?\b)?(?:pass(?:word)?|obscure)[ \t=]+{_V}",
    ),
    (r"ommand[ =]\\*[\"']?echo", rf"(?:password|passphrase|pass)-?[cC]ommand[ =](?:{_QUOTE})?echo[ \t]+{_V}"),
    # <secret>{…}</secret>, as Jenkins writes it
    (
        r"(?:ecret|assword|oken|[kK]ey)(?:>|\\+u003[eE])(?:[ \r\n\t]|\\+[rnt])*\{",
        r"<\w{0,40}(?:[sS]ecret|[pP]assword|[tT]oken|[kK]ey)>\s{0,20}\{(?:[^\s{}<>]{1,60} ){0,3}([^\s{}<>\"']{8,2048})\}",
    ),
    ("certutil ", rf"certutil[^\n]{{0,100}}?[ \t]-p[ \t]+{_V}"),
    ("mysqladmin ", rf"mysqladmin\b[^\n]{{0,200}}?[ \t]password[ \t]+{_V}"),
    (
        r"username [^ \"]+ (?:privilege|password|secret)",
        rf"username \S{{1,64}} (?:privilege [0-9]{{1,2}} (?:password|secret)(?: [0-9])?|(?:password|secret) [0-9]) {_V}",
    ),
    # `Login: admin / password`, as people and chats have it
    (
        "\n".join(
            rf"{word}(?: [a-z]+)*[:=]? [^ \"]+ ?[/|:] ?[^ \"]{{6}}"
            for word in ("ogin", "creds", "dentials", "ser/[Pp]ass[a-z]*", "name/pass[a-z]*")
        ),
        rf"(?:[Ll]og ?in|[Cc]red(?:ential)?s|[Uu]ser(?:name)?/[Pp]ass(?:word)?)(?: (?:with|as|is|are|for"
        rf"|via) ?\w{{0,20}}){{0,2}}[:=]? [\w.@-]{{1,60}} ?[/:] ?(?=[^\s/]{{0,200}}[0-9-]){_V}",
    ),
    (
        '[uU]se [a-z_-]+:[^ "]{8}\nog in as [a-z_-]+:[^ "]{8}\nogin: [a-z_-]+:[^ "]{8}',
        rf"\b(?:[Uu]se|[Ww]ith|[Ii]n as|[Ll]ogin:) [a-z][\w.-]{{1,40}}:{_MIXED}{_V}",
    ),
    (
        "psexec\nwmiexec\nsmbexec\natexec\nsecretsdump",
        rf"\b(?:impacket-|)(?:\w+exec|secretsdump)\b(?: -\S+){{0,4}} [\w.-]{{1,60}}/[\w.$-]{{1,60}}:{_V}(?=@)",
    ),
    (
        'ecret_?[iI][dD]["\\\\:= \t]+[0-9a-f]{8}-\nccessor',
        rf"[Ss]ecret_?[Ii][Dd](?:{_QUOTE})?[ \t]*[:=]?[ \t]*(?:{_QUOTE})?([0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}})(?![0-9a-f-])",
    ),
    (
        "\n".join(
            rf"[xX]-[A-Za-z-]*{word}[A-Za-z-]*:? ?[A-Za-z0-9+/=_.~-]{{12}}"
            for word in ("[aA]pi", "[aA]uth", "[kK]ey", "[tT]oken", "[sS]ecret", "[aA]ccess")
        ),
        r"\b[xX]-[A-Za-z-]{0,40}(?:[aA]pi|[aA]uth|[kK]ey|[tT]oken|[sS]ecret|[aA]ccess)[A-Za-z-]{0,40}(?::[ \t]*|[ \t])"
        r"((?=[^\s]{0,60}[0-9])[A-Za-z0-9_.~+/=-]{16,2048})(?=[\s;]|\\|[\"']|\Z)",
    ),
    (
        'user create [^ ]+ [^ "-]\nuser add [^ ]+ [^ "-]\nuser setpassword ',
        rf"\buser (?:create|add|setpassword) [\w.@-]{{1,60}} {_MIXED}{_V}",
    ),
    (
        r"(?:[\r\n\t+]|\\+[nt]|\x92|^)[ ]*key[ ]*=[ ]*\\*[\"']?[A-Za-z0-9]",
        rf"(?:\A|[\n+\t→])[ ]*key[ ]*=[ ]*(?:{_QUOTE})?({_MIXED}(?=\S{{0,60}}[a-z])[A-Za-z0-9_.+=-]{{14,128}})"
        r"(?=\\?[\"'\s]|\Z)",
    ),
    (
        "[\"']-p[^ \"',-]{6}",
        rf"(?<=[\"'])-p({_MIXED}[^\s\"'\\]{{8,128}})(?=\\{{0,7}}[\"'])",
    ),
    ("nstrumentationKey=", r"InstrumentationKey=([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"),
    (
        r"BEGIN OpenVPN",
        r"BEGIN OpenVPN Static key V1-----((?:\s|[^\s\"]{1,60}:[0-9]{1,7}:|[0-9]{1,7}→|[+-]|[0-9a-f]{32}){16,200})",
    ),
    (
        "WIF\\\\*[\"']?[ :=]+\\\\*[\"']?[5KL][A-Za-z0-9]{20}\nwif\\\\*[\"']?[ :=]+\\\\*[\"']?[5KL][A-Za-z0-9]{20}\n"
        "rivkey [5KL]\n: [5KL][A-Za-z0-9]{50}",
        rf"(?<![A-Za-z0-9])(?:WIF|wif|[\w-]{{1,20}}_(?:WIF|wif)|[Ii]mport(?:privkey)?|[Pp]riv(?:ate )?key)(?:{_QUOTE})?[ :=]{{1,3}}(?:{_QUOTE})?"
        r"(5[HJK][1-9A-HJ-NP-Za-km-z]{49}|[KL][1-9A-HJ-NP-Za-km-z]{51})(?![A-Za-z0-9])",
    ),
    (
        "allet\\(\nrivate Keys\nrom_key\\(\nromKey\\(\n\\([0-9]\\) 0x",
        rf"(?:[Ww]allet\(|from_?[kK]ey\(|\([0-9]{{1,2}}\) )(?:{_QUOTE})?(0x[0-9a-f]{{64}})(?![0-9a-f])",
    ),
    (
        r"(?:hook|key|/v[0-9])\\*/[A-Za-z0-9_-]{12}",
        r"https://[^\s\"'<>]{4,120}/(?:hook|webhook|key|v[0-9])/((?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{24,128})(?=[\s\"'\\]|\Z)",
    ),
    (
        "value=\\\\*'[^']{6}[^']*' (?:where|WHERE)",
        rf"value\s?=\s?{_QUOTE}([^\s\"']{{6,256}}){_QUOTE} (?i:where) [^\n;]{{0,80}}(?:key|token|secret|password)",
    ),
    (
        "og in as [a-z]",
        rf"[Ll]og in as [\w.-]{{1,40}}[/:]{_MIXED}{_V}",
    ),
    (
        "@localhost: ",
        rf"password [^\n]{{0,60}}@localhost: {_V}",
    ),
    ('/passw[a-z]*:[^ "]{6}', rf"[ \t]/passw\w{{0,6}}:{_V}"),
    (' login=[^ :"]+:', rf"[ \t]login=[\w.-]{{1,40}}:(?!PASS\b){_V}"),
    ("_authtok", rf"\w_authtok[ \t]*=[ \t]*{_V}"),
    ("ookieParser\\(\\\\*[\"']", rf"cookieParser\({_V}(?=\\{{0,7}}[\"'])"),
    ("ew value: ", rf"New value: {_MIXED}{_V}"),
    (' -p:[^ "]{6}\n/p:', rf"[ \t][-/]p:(?![0-9]+:){_MIXED}{_V}"),
    (
        "assword-file <\\(",
        rf"<\((?:echo|printf)[ \t]+(?:-n[ \t]+)?{_V}(?=\\{{0,7}}[\"']?\))",
    ),
    (
        "keyFileData ",
        rf"keyFileData[ \t]+{_V}",
    ),
    (
        "<<< ",
        rf"(?:PASSWORD|SECRET|TOKEN|KEY)(?: \S{{1,40}}){{0,2}} <<<[ \t]*{_V}",
    ),
    (
        "pass(?:wd|word)?(?:: ?| )<- \nassword <- \necret <- \noken <- \n_key <- ",
        rf"(?:pass|password|passwd|secret|token|_key) <- {_QUOTE}([^\s\"']{{6,256}})",
    ),
    (
        '\\((?:def|setq|defparameter|define) [a-z*-]*(?:pass|secret|token|key)\n:(?:password|secret|token|api-key) \\\\*"',
        rf"(?:\((?:def|setq|defparameter|define) [\w*-]{{0,40}}(?:password|passwd|pass|secret|token|key)\*?"
        rf"|(?<=[{{ ]):(?:[\w-]{{0,40}}-)?(?:password|secret|token|key)) "
        rf"{_QUOTE}([^\s\"'\\]{{6,256}})",
    ),
    (
        "alue\\(\\\\*[\"']\\$\\{[A-Za-z0-9_.-]+:[^}]{6}",
        rf"\$\{{[\w.-]{{1,80}}:{_MIXED}([^\s\"'}}]{{8,256}})\}}[^\n]{{0,60}}(?:assword|ecret|oken|[kK]ey)",
    ),
    (
        "lient_assertion\nlientAssertion\node_verifier\nodeVerifier\nalidationKey=\necryptionKey=",
        rf"(?:[Cc]lient_?[Aa]ssertion|[Cc]ode_?[Vv]erifier|(?:validation|decryption)Key)\\{{0,7}}[\"']?[ \t]*[:=][ \t]*{_V}",
    ),
    ("\\(password\\)\n\\(pass\\)", rf"(?<=[/:|])[ ]?{_V}(?:{_QUOTE})? \((?:password|pw|pass)\)"),
    (" \\* \\\\*[\"']", rf"\S[ \t]+\*[ \t]+{_QUOTE}([^\s\"'\\]{{6,128}}){_QUOTE}[ \t]+\*"),
    (
        "github-oauth\ngitlab-oauth\ngitlab-token",
        rf"(?:github|gitlab)-(?:oauth|token)(?:{_QUOTE})?\s?:\s?\{{\s{{0,20}}(?:{_QUOTE})?[\w.-]{{3,60}}(?:{_QUOTE})?\s?:\s?{_V}",
    ),
    ("BUNDLE_[A-Z_]+", r"BUNDLE_\w{1,60}\\*[\"']?[ \t]?(?::|=)[ \t]?\\*[\"']?([0-9a-f]{8}:[0-9a-f]{8})"),
    (r"/t\\*/[a-z0-9-]{20}", r"/t/((?:[a-z]{2}-)?[0-9a-f-]{20,64})(?=/)"),
    (": PSK \n: EAP \n: XAUTH ", rf":[ \t]*(?:PSK|EAP|XAUTH)[ \t]+{_QUOTE}([^\s\"'\\]{{6,128}})"),
    ("otpauth:", r"otpauth://[^\s\"']{1,200}?secret=([A-Z2-7]{16,128})"),
    (
        "\\]:587[ \\t]\n\\]:465[ \\t]\n\\]:25[ \\t]\n\\]:2525[ \\t]",
        rf"\]:[0-9]{{2,5}}[ \t]+[^\s:]{{1,100}}:{_V}",
    ),
    (
        "terraform output \ntofu output ",
        rf"output[ \t](?:-raw[ \t])?\w*(?:key|token|secret|pass|pw)\w*{_LINE_BREAK}{_V}",
    ),
    (r"\.key(?:[\r\n]|\\+[nr])[0-9a-f]{32}", rf"\.key{_LINE_BREAK}([0-9a-f]{{32}})(?![0-9a-f])"),
    (
        r"cat [^ \r\n\"]*(?:key|token|secret|pass|pw)[^ \r\n\"\\]*(?:[\r\n]|\\+[nr])",
        rf"\bcat [^\s\"']{{0,100}}(?:key|token|secret|pass"
        rf"|pw)[^\s\"'/\\]{{0,20}}{_LINE_BREAK}([A-Za-z0-9!-~]{{8,256}}?)(?={_LINE_BREAK}|\Z|\\*\")",
    ),
    ("random_password", rf"random_password[^\n]{{0,600}}?{_QUOTE}result{_QUOTE}\s?:\s?{_V}"),
    (
        "UserPassword\\(\nuth\\(\\\\*[\"']\nuthentication\\(\\\\*[\"']\nbasic\\(\\\\*[\"']\nogin\\(\\\\*[\"']\nentials?\\(\\\\*[\"']",
        rf"(?:\b[Aa]uth|BasicAuth|basic_auth|UserPassword|basicAuth|\b[Ll]ogin|[Cc]redentials?"
        rf"|authenticate)\({_QUOTE}[^\s\"'\\]{{1,100}}{_QUOTE},\s?(?:Some\()?{_QUOTE}([^\s\"'\\]{{6,256}})",
    ),
    (
        "\\?key=\n&key=\n\\?code=\n\\?auth=\n\\?appid=\n&appid=",
        r"[?&](?:key|code|auth|appid)=((?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]"
        r"{24,256})(?=[&\s\"'\\]|\Z)",
    ),
    ("x-oauth-basic@", r"://([^\s\"'\\:/@]{6,256}):x-oauth-basic@"),
    ("snmpwalk \nsnmpget \nsnmpbulk", rf"snmp[a-z]+[^\n]{{0,200}}?[ \t]-[AXc][ \t]+(?!public\b){_V}"),
    ("mkpasswd ", rf"mkpasswd[ \t]+(?:-{{1,2}}[\w-]+[ \t]+(?:sha-?[0-9]+[ \t]+)?){{0,4}}(?!-){_V}"),
    ("gem push ", rf"gem push[^\n]{{0,100}}?[ \t]-k[ \t]+{_V}"),
    ("operator unseal ", rf"operator unseal[ \t]+(?!-){_V}"),
    ("swaks ", rf"swaks[^\n]{{0,300}}?[ \t]-ap[ \t]+{_V}"),
    ("schtasks ", rf"schtasks[^\n]{{0,300}}?[ \t]/rp[ \t]+{_V}"),
    ("walletpassphrase ", rf"walletpassphrase[ \t]+{_V}"),
    ("wifi-sec.psk \nwireless-security.psk ", rf"(?:wifi-sec|wireless-security)\.psk[ \t]+{_V}"),
    ("pk12util ", rf"pk12util[^\n]{{0,200}}?[ \t]-[WK][ \t]+{_V}"),
    ("veracrypt ", rf"veracrypt[^\n]{{0,200}}?[ \t]-p[ \t=]+{_V}"),
    ("encrypt_string ", rf"encrypt_string[ \t]+(?!-){_V}"),
    ("SETUSER ", r"SETUSER[ \t][^\n]{1,100}?>([^\s\"'\\]{6,256})"),
    ("createUser ", rf"createUser[ \t]+\S{{1,60}}[ \t]+(?:SHA|MD5)\S*[ \t]+{_V}"),
    ("rocommunity \nrwcommunity ", rf"r[ow]community6?[ \t]+{_V}"),
    ("insecure-password ", rf"insecure-password[ \t]+{_V}"),
    ("-password password \n-again password ", rf"(?:-password|-again) password[ \t]+{_V}"),
    ("userPassword:: ", r"userPassword:: ([A-Za-z0-9+/]{8,512}={0,2})"),
    ("@tcp\\(\n@unix\\(", r"[\w.-]{1,60}:([^\s\"'\\:/]{6,128})@(?:tcp|unix)\("),
    (
        "getConnection\\(\nnew PDO\\(\nmysqli\nmysql_connect\nDBI->connect",
        rf"(?:getConnection|PDO|DBI->connect|mysqli(?:_connect)?"
        rf"|mysql_connect)\([^,()\n]{{1,200}},\s?{_QUOTE}[^\s\"'\\]{{1,60}}{_QUOTE},\s?{_QUOTE}([^\s\"'\\]{{6,128}})",
    ),
    (
        "USER [a-z]",
        rf"\bUSER \S{{1,60}}?{_LINE_BREAK}(?:[^\n\\]{{0,60}}{_LINE_BREAK})?PASS {_V}",
    ),
    ("isql ", rf"\bisql[ \t]+\S+[ \t]+\S+[ \t]+{_V}"),
    ("signtool ", rf"signtool[^\n]{{0,200}}?[ \t]/p[ \t]+{_V}"),
    (
        "\\| passwd\n\\| sudo passwd\n\\| smbpasswd\n\\| sudo smbpasswd",
        rf";[ \t]*echo[ \t]{_V}(?:{_QUOTE})?\)[ \t]*\|",
    ),
    (
        "\\| passwd\n\\| sudo passwd\n\\| smbpasswd\n\\| sudo smbpasswd",
        rf"(?:printf|echo -e)[ \t](?:{_QUOTE})?([^\s\"'\\|]{{6,128}}\\+n[^\s\"'\\|]{{6,128}})(?:\\+n)?(?:{_QUOTE})?[ \t]*\|",
    ),
    (
        "ap-secrets",
        rf"ap-secrets[^\n\\]{{0,80}}{_LINE_BREAK}(?:[^\s:]{{1,60}}:[0-9]{{1,6}}:)?\S{{1,60}}[ \t]+\S{{1,60}}[ \t]+{_V}",
    ),
    ("snmp-server community ", rf"snmp-server community (?!public\b|private\b){_V}"),
    ("user [^ ]+ on ", rf"\buser \S{{1,60}} on [^\n>]{{0,100}}>{_V}"),
    (
        "[sS][oO][nN][aA][rR][._-]?[lL][oO][gG][iI][nN]",
        rf"(?i:sonar[._-]?login)(?:{_QUOTE})?\s?(?:,|[:?]{{0,3}}=)\s?(?:{_QUOTE})?((?:sq[a-z]_)?[A-Fa-f0-9]{{40}})",
    ),
    (
        r"api\\*/v1\\*/[a-z0-9]{20}\\*/",
        r"/api/v1/((?=[a-z]*[0-9])[a-z0-9]{20})(?=/(?:telemetry|attributes|rpc|claim))",
    ),
    ("login_with_api_key", rf"login_with_api_key{_QUOTE}[^\[\]\n]{{1,80}}\[\s?{_V}"),
    ("enkins-Crumb", rf"Jenkins-Crumb(?:{_QUOTE})?[:=,]\s?(?:{_QUOTE})?([a-f0-9]{{32,64}})"),
    ("stats auth ", rf"stats auth [\w.-]{{1,60}}:{_V}"),
    ("PASSWORD [a-z_]+ = ", rf"PASSWORD \w{{1,40}} = {_V}"),
    ("Fernet\\(", rf"Fernet\([bru]?{_QUOTE}{_V}"),
    ("SecretString", rf"SecretString{_QUOTE}\s?:\s?{_QUOTE}{_V}"),
    ("requirepass\\\\*[\"'],", rf"(?:requirepass|masterauth){_QUOTE},\s?{_V}"),
    ("ccess Key \\[\nession Token \\[", rf"(?:Secret Access Key|Session Token) \[[^\]\n]{{0,40}}\]: {_V}"),
    (
        "AUTH [A-Za-z0-9_.-]{8}\nAUTH [a-z]+ [^ ]{8}",
        rf"(?:\A|> ?|\n|[\t→+\"-])AUTH (?:[a-z][\w-]{{0,40}} )?(?!CRAM|XOAUTH|SCRAM|DIGEST|GSSAPI|EXTERNAL){_V}",
    ),
    (
        '-Key:[^ "/]{6}\n-Token:[^ "/]{6}\n-Secret:[^ "/]{6}',
        rf"\b(?:http|https|xh|xhs)[ \t][^\n]{{1,200}}?[ \"'](?:X-)?[A-Za-z-]{{1,30}}-(?:Key|Token|Secret):{_V}",
    ),
    ("bearer -a ", rf"\b(?:http|https|xh|xhs)[ \t][^\n]{{0,200}}?bearer -a {_V}"),
    (
        '\\.py [A-Za-z0-9.]+\\\\*/[^ :"/]+:',
        rf"\w\.py (?:-\w+ )*[\w.-]{{1,60}}/[\w.$-]{{1,60}}:{_V}{_QUOTE}?@",
    ),
    (
        "Pass encoding\n:Password Type",
        r"<(?:\w+:)?[Pp]ass(?:word)? \w+=\\*[\"'][^\"'<>]{1,160}[\"']>([^<>\s]{6,256})</",
    ),
    (
        "kty\\\\*[\"']",
        rf"kty{_QUOTE}[^{{}}]{{1,2000}}?{_QUOTE}[dk]{_QUOTE}\s?:\s?{_QUOTE}([A-Za-z0-9_-]{{22,700}})",
    ),
    (
        "fa_seed\ntp_seed\ntp_key",
        rf"(?:mfa|otp|totp|2fa)_?(?:seed|key)(?:{_QUOTE})?\s?[:=]\s?(?:{_QUOTE})?([A-Z2-7]{{16,128}})",
    ),
    ("appid\\\\*[\"']", rf"appid(?:{_QUOTE})?\s?[:=]\s?(?:{_QUOTE})?([0-9a-f]{{32}})(?![0-9a-f])"),
    (
        'httpOnly\nsameSite\nSESSID\nSESSIONID\nconnect\\.sid\nname\\\\*": ?\\\\*"[A-Za-z_.-]*[sS]ess',
        rf"name{_QUOTE}:\s?{_QUOTE}(?i:[^\"'\\]{{0,40}}(?:sess|sid|auth|token|jwt)[^\"'\\]{{0,40}}){_QUOTE},\s{{0,40}}"
        rf"{_QUOTE}value{_QUOTE}:\s?{_QUOTE}{_V}",
    ),
    (
        "basic_auth \nSecurityKey\\(",
        rf"(?:\bbasic_auth[ (]{_QUOTE}[^\s\"'\\]{{1,100}}{_QUOTE},\s?|SymmetricSecurityKey\([\w.]{{0,40}}\(?){_QUOTE}([^\s\"'\\]{{6,256}})",
    ),
    (
        "oken: [A-Za-z0-9_+/.=-]{20}\n key: [A-Za-z0-9_+/.=-]{20}\necret: [A-Za-z0-9_+/.=-]{20}",
        r"(?:[Hh]ere(?: is|'s)|[Tt]he|[Yy]our|[Mm]y) (?:[\w-]{1,20} ){0,4}(?:token|key|secret): "
        r"((?=(?:[^\s\"']*?[0-9]){3})[A-Za-z0-9_+/.=-]{20,512}?)(?=[.,;]?(?:\s|\\*\"|\Z))",
    ),
    ("oken: [a-z0-9]{6}\\.[a-z0-9]{16}", r"token: ([a-z0-9]{6}\.[a-z0-9]{16})(?![a-z0-9.])"),
    ("horization:[A-Z][a-z]+ [^ ]{6}", rf"Authorization:[A-Z][a-z]+ {_V}"),
    (
        "jwt\\.sign\\(\njwt\\.encode\\(\njwt\\.verify\\(\njwt\\.decode\\(",
        rf"jwt\.(?:sign|encode|verify|decode)\([^,()]{{1,80}},\s?{_QUOTE}([^\s\"'`]{{6,256}}){_QUOTE}",
    ),
    (
        r"\.fill\(" "\n" r"\.send_keys\(" "\n" r"\.setValue\(" "\n" r"page\.type\(",
        rf"\.(?:fill|type|send_keys|setValue)\({_QUOTE}[^\"'\n]{{0,60}}(?:pass|pwd|PASS)[^\"'\n]{{0,30}}{_QUOTE},\s?{_QUOTE}([^\s\"'`\\]{{6,256}}){_QUOTE}",
    ),
    (
        'Jwt\\\\*": ?\\{\njwt\\\\*": ?\\{',
        rf"[Jj]wt{_QUOTE}\s?:\s?\{{[^{{}}]{{0,200}}?{_QUOTE}(?:Key|Secret|SigningKey){_QUOTE}\s?:\s?{_QUOTE}([^\s\"'\\]{{6,256}})",
    ),
    (
        "\n".join(
            rf"{word} \\*[\"'`][A-Za-z0-9_+/.=:~-]{{16}}"
            for word in ("oken", "ecret", "ecret key", "PI key", "pi key")
        ),
        rf"\b(?:token|secret|secret key|api key|API key|access key) {_QUOTE}((?=(?:[^\s\"']*?[0-9]){{3}})[A-Za-z0-9_+/.=:~-]{{16,512}}){_QUOTE}",
    ),
    (
        "\n".join(rf"{word}:? [A-Za-z0-9_+/.-]{{16}}" for word in ("oken", " key", "ecret", "sword")),
        r"\b(?:the|this|new|your|temporary) (?:token|key|api key|API key|secret|password):? "
        r"((?=[^\s]*[0-9])(?=[^\s]*[A-Z])(?=[^\s]*[a-z])[A-Za-z0-9_+/.=-]{16,512}?)(?=[.,;]?(?:\s|\Z))",
    ),
    (
        "\n".join(_PRINTS_SECRET),
        rf"(?:{'|'.join(_PRINTS_SECRET)})[^\n\\]{{0,200}}{_LINE_BREAK}(?:base64:)?"
        rf"[ \t]*b?(?:{_QUOTE})?((?=[A-Za-z+/_.=!@#$%^&*(){{}}<>,:;?~-]{{0,200}}[0-9])[^\s\"'`\\]{{10,2048}}?)(?={_LINE_BREAK}|\s*\Z|\\*[\"'])",
    ),
    (
        r">>> [^\r\n\"\\]*(?:[kK]ey|KEY|ecret|ECRET|oken|OKEN|assword|ASSWORD)[^\r\n\"\\]*(?:[\r\n]|\\+[nr])b?\\*['\"]",
        rf">>> (?![^\n]{{0,80}}(?i:pub|finger|hash))[^\n\"'\\]{{0,200}}(?:[kK]ey|KEY|ecret|ECRET|oken|OKEN|assword|ASSWORD)"
        rf"[^\n\"'\\]{{0,40}}{_LINE_BREAK}b?{_QUOTE}"
        rf"([^\s\"'\\]{{8,512}}){_QUOTE}(?={_LINE_BREAK}|\s*\Z)",
    ),
    ("BW_SESSION=", rf"BW_SESSION=(?:{_QUOTE})?{_V}"),
    ("::add-mask::", r"::add-mask::([^\s\"'\\%$]{6,512})"),
    ("pplication key \\[", r"pplication key \[((?:base64:)?[A-Za-z0-9+/]{32,100}={0,2})\]"),
    ("oken was successfully created", rf"oken was successfully created:? {_V}"),
    (
        "auth-user-pass>",
        rf"<auth-user-pass>{_LINE_BREAK}[^\n\\]{{1,100}}{_LINE_BREAK}{_V}",
    ),
    ("> PASS ", rf"> PASS {_V}"),
    ("AUTH PLAIN ", r"AUTH PLAIN ([A-Za-z0-9+/]{12,400}={0,2})"),
    (
        "[0-9] LOGIN ",
        rf"\b[A-Za-z]{{0,8}}[0-9]{{1,6}} LOGIN (?:{_QUOTE})?[^\s\"'\\]{{1,100}}(?:{_QUOTE})? {_V}",
    ),
    ("IDENTIFY ", rf"(?i:NickServ)[^\n]{{0,20}} IDENTIFY (?:\w{{1,30}} )?{_V}"),
    ("oauth:[a-z0-9]{20}", r"\boauth:([a-z0-9]{25,40})(?![A-Za-z0-9])"),
    ("ationHeaderValue\\(", rf"AuthenticationHeaderValue\({_QUOTE}[A-Za-z]{{1,20}}{_QUOTE},\s?{_QUOTE}{_V}"),
    (
        "forHTTPHeaderField",
        rf"\({_QUOTE}(?:Bearer |Token |Basic )?([^\s\"'\\]{{8,2048}}){_QUOTE},\s?forHTTPHeaderField:"
        rf"\s?{_QUOTE}(?i:[\w-]{{0,40}}(?:key|token|secret|auth)[\w-]{{0,40}}){_QUOTE}",
    ),
    ("[ \"'=:]S[A-Z0-9]{20}", r"(?<![A-Za-z0-9])(S[A-Z2-7]{55})(?![A-Za-z0-9])"),
    (";[ ]?[Pp]assword=", r"(?i:;[ ]?password)=([^\s;\"'\\]{6,128})(?=;|\\|[\"']|\s|\Z)"),
    ("USERPWD", rf"USERPWD{_QUOTE}?\s?[,=>]{{1,2}}\s?{_QUOTE}[^\s\"':\\]{{1,100}}:{_V}"),
    (" --cert ", rf"[ \t]--cert[ \t]+[^\s:\"']{{1,200}}:(?![\\/]){_V}"),
    (" -K [0-9a-fA-F]{32}", r"\benc\b[^\n]{1,200}? -K ([0-9a-fA-F]{32,64})(?![0-9A-Fa-f])"),
    (
        "DENTIFIED BY [A-Za-z0-9]\ndentified by [A-Za-z0-9]*[0-9]",
        r"(?:IDENTIFIED BY (?!(?i:values|externally|globally|password|via|random)\b)|identified by (?=[^\s;]{0,60}[0-9]))"
        r"([^\s;\"'`\\]{6,128})(?=[\s;]|\\|\Z)",
    ),
    (
        'name=\\\\*"(?:pass|pwd|secret|token|api)',
        rf"form-data; name={_QUOTE}(?i:[^\"']{{0,30}}(?:pass|pwd|secret|token|api_?key)[^\"']{{0,30}}){_QUOTE}\s{{2,12}}{_V}",
    ),
    (
        r"--(?:password|token|secret|api-key|access-token|auth-token)\\*[\"']?(?:[\r\n]|\\+[nr])",
        rf"- (?:{_QUOTE})?--[a-z-]{{0,40}}(?:password|token|secret|key)(?:{_QUOTE})?{_LINE_BREAK}[ \t]{{0,60}}- (?:{_QUOTE})?(?!-){_V}",
    ),
    ("createHm", rf"createHmac\({_QUOTE}\w{{1,20}}{_QUOTE},\s?{_QUOTE}{_MIXED}{_V}"),
    ("hmac\\.new\\(", rf"hmac\.new\(b?{_QUOTE}{_MIXED}{_V}"),
    (r"\)\.type\(\\*[\"']", rf"(?:pass|pwd)[^\n]{{0,30}}\)\.type\({_QUOTE}{_V}"),
    ("bundle config ", rf"bundle config [^\n]{{1,120}}? [\w.-]{{1,60}}:{_V}"),
    (
        r' -u [A-Za-z0-9_]{24}[A-Za-z0-9_]*:(?:[ "\\]|$)',
        r"\bcurl\b[^\n]{0,300}? -u ((?=[A-Za-z_]{0,60}[0-9])[A-Za-z0-9_]{24,200}):(?=[\s\"'\\]|\Z)",
    ),
    (
        r'"username\\*": ?\\*"[^"]+", ?\\*"key\\*": ?\\*"[0-9a-f]{32}',
        rf"{_QUOTE}username{_QUOTE}:\s?{_QUOTE}[^\"']{{1,60}}{_QUOTE},\s?{_QUOTE}key{_QUOTE}:\s?{_QUOTE}([0-9a-f]{{32}})(?![0-9a-f])",
    ),
    (
        "\n".join(_bytes_or_numbers(word) for word in _FOREIGN_WORDS),
        rf"(?:{'|'.join(_FOREIGN_WORDS)})[ \t]?(?:[:：=]|是|为|は|[ \t]-[ \t])[ \t]?(?:{_QUOTE})?"
        rf"((?![^\s]{{0,60}}[(){{}}\[\]<>])[!-~]{{6,128}})",
    ),
    ("sswor[dt] lautet", rf"[Pp]asswor[dt] lautet:? (?:{_QUOTE})?{_V}"),
    (
        r"key[12](?:[ \t]|\\+t)",
        r"\bkey[12][ \t]+\w{1,12}[ \t]+([A-Za-z0-9+/]{40,100}={0,2})",
    ),
    (
        r"assword [^\r\n\"\\]*:(?:[\r\n]|\\+[nr])",
        rf"assword [^\n\"\\]{{0,80}}:(?:{_LINE_BREAK}){{1,3}}([A-Za-z0-9!-~]{{8,128}}?"
        rf")(?={_LINE_BREAK}|\Z|\\*\")",
    ),
)
"""What else gives a password: how a log has it, and the expression whose first group is the password."""
_SOUGHT = [(telling.split("\n"), lazily(expression)) for telling, expression in _PLACES]
_OTHER_P = lazily(r"(?:mysql|mariadb|docker|podman|psql|mkdir|\bssh|\bscp|nmap|\bcp|useradd|rsync)[^\n|;]*\Z")
_OTHER_OPTION = lazily(
    r"\b(?:git|hg|docker|podman|nerdctl|kubectl|ssh|scp|tar|mkdir|cp|mv|ls|ps|grep|rg|find|make|python[0-9.]*|pytest|perl|ruby|node|patch"
    r"|tmux|screen|date|touch|install|rsync|nmap|lsof|netstat|ss|kill|pgrep|pkill|xargs|cut|sort|head|tail)\b[^\n|;]*\Z"
)
"""Commands whose short options take no secret."""
_SHORT_OPTION = lazily(r"(?<=[ \t])-[tkpwPW][ \t]+\\{0,7}[\"']?([^\s\"'\\/]{10,256})")
"""Commands whose `-p` is no password, or one that is asked for."""
_SENT = lazily(
    rf"(?:\bsend(?:_user)?[ \t]+(?:--[ \t]+)?|\.send(?:line)?\()(?:[bru])?{_QUOTE}([^\s\"'\\]{{6,128}})"
)
_ASKED = 300
_CODES = lazily(
    rf"(?:[Rr]ecovery|[Bb]ackup|[Ss]cratch)[ _-]codes?[^\n\\]{{0,80}}(?={_LINE_BREAK})|(?:recovery|backup)_?[cC]odes?(?:{_QUOTE})?\s?[:=]\s?\["
)
_CODE_ITEM = lazily(
    r"(?:\s|[\"',]|[0-9]{1,4}(?:[.)] |→)"
    r"|[-*] ){1,40}((?=[a-zA-Z-]{0,12}[0-9]|[a-z]{4}-[a-z]{4}-[a-z]{4}(?![a-z]))[A-Za-z0-9]{4,12}(?:[- ][A-Za-z0-9]{4,12}){0,3})(?![A-Za-z0-9])"
)
_CALL = lazily(r"\b([A-Za-z_][\w.]{2,60})\((?=[^\n(),]{1,100},)")
_CALL_NAME = lazily(
    r"[Aa]uth|[Ll]og_?[Ii]n|[Ss]ign_?[Ii]n|[Cc]onnect|[Cc]redential|[Ss]equelize|[Bb]ind|[Uu]ser|[Aa]ccount|[Bb]asic|[Pp]ass|_pw_"
)
_EMAIL = lazily(r"@[\w-]+\.")
_ARGUMENT = lazily(r"(?<=,)\s{0,3}\\{0,7}[\"'`]([^\s\"'`\\]{8,128})(?=\\{0,7}[\"'`]\s{0,3}[,).])")


def _call_end(text: str, at: int) -> int:
    """Where the arguments of a call end, on its line."""
    ends = [text.find(sign, at, at + 400) for sign in ")\n"]
    return min([end + 1 for end in ends if end != -1], default=min(len(text), at + 400))


_USERS_OF = lazily(
    rf"chpasswd(?:{_QUOTE})?:(?:[^\n\\]{{0,60}}{_LINE_BREAK}){{1,4}}?[^\n\\]{{0,60}}\b(?:list|users):[ \t]*["
    rf"|>]?[+-]?{_LINE_BREAK}"
)
_USER_LINE = lazily(
    rf"(?:[^\s:]{{1,60}}:[0-9]{{1,6}}:|[ \t]*[0-9]{{1,6}}(?:→"
    rf"|\t))?[ \t-]{{1,40}}[a-z_][\w-]{{0,31}}:([^\s\"'\\]{{6,128}})(?:{_LINE_BREAK})?"
)


def _places(text: str) -> Iterator[Span]:
    data = text.encode("utf-8", "replace")
    for telling, expression in _SOUGHT:
        if any_of(telling)(data):
            for match in expression.finditer(text):
                if telling[0].startswith(" -u") and _OTHER_P.search(
                    text, max(0, match.start() - 200), match.start()
                ):
                    continue
                if _is_given(match[1]) and not match[1].startswith("[redacted:"):
                    yield Span(match.start(1), match.end(1), "password")
    for match in _SHORT_OPTION.finditer(text):
        if (
            is_chosen(match[1])
            or _UUID.match(match[1])
            or (len(match[1]) >= 32 and match[1].isalnum() and looks_random(match[1]))
        ) and _OTHER_OPTION.search(text, max(0, match.start() - 200), match.start()) is None:
            yield Span(match.start(1), match.end(1), "secret")
    for match in _CALL.finditer(text):
        if _CALL_NAME.search(match[1]):
            for argument in _ARGUMENT.finditer(text, match.end(), _call_end(text, match.end())):
                if is_chosen(argument[1]) and _EMAIL.search(argument[1]) is None:
                    yield Span(argument.start(1), argument.end(1), "password")
    for match in _SENT.finditer(text):
        around = text[max(0, match.start() - _ASKED) : match.end() + _ASKED]
        if (
            ("assword" in around or "assphrase" in around)
            and _is_given(match[1])
            and match[1] not in ("assword", "password")
        ):
            yield Span(match.start(1), match.end(1), "password")
    for listed in _CODES.finditer(text):
        at = listed.end()
        while (item := _CODE_ITEM.match(text, at)) is not None:
            yield Span(item.start(1), item.end(1), "secret")
            at = item.end()
    for users in _USERS_OF.finditer(text):
        at = users.end()
        while (user := _USER_LINE.match(text, at)) is not None:
            if _is_given(user[1]):
                yield Span(user.start(1), user.end(1), "password")
            at = user.end()


_COLUMNS = lazily(
    rf"(?:(?:^|\n|\\?\")(?:{_PRINTED})?(?=[^\n\\]{{0,300}}(?:assword|ecret|oken|[Kk]ey|pwd|PASSWORD"
    rf"|SECRET))([\w .@/\"-]{{0,40}}(?:[,;\t][\w .@/\"-]{{0,40}}){{1,15}})(?={_LINE_BREAK}))"
    r"|(?i:insert)[ \t]+(?i:into)[ \t]+[\w.\"`\[\]]{1,80}[ \t]*\(([^()\n]{1,300})\)\s{0,5}(?i:values)\s{0,5}"
)
_CELLS = lazily(rf"{_LINE_BREAK}([^\n\\]{{1,1000}})")
_TUPLE = lazily(r"(?:,\s{0,5})?\(([^()\n]{1,1000})\)")


_RULED = lazily(
    rf"(?:\A|(?<=\n)){_PRINTED}?([^\n\\]{{0,200}}(?:assword|ecret|oken|[Kk]ey|PASSWORD|SECRET)[^\n\\]{{0,200}}){_LINE_BREAK}"
    r"[|+ -]{0,3}-{3}[-|+: ]{0,300}(?=\r?\n|\\)"
)
_RULED_ROW = lazily(rf"{_LINE_BREAK}([^\n\\]{{3,400}})")
_RULED_CELL = lazily(r"[^\s|](?:[^\s|]| (?![ |]))*")


_RULED_HINT = rf"(?:assword|ecret|oken|[Kk]ey|PASSWORD|SECRET)[^\n\\]*\r?\n{_PRINTED_HINT}?[|+ -]{{0,3}}---"
_COLUMNS_HINTS = (
    rf"(?:^|\n|\"){_PRINTED_HINT}?[\w .@/\",;\t?-]*(?:assword|ecret|oken|[Kk]ey|pwd|PASSWORD|SECRET)[\w .@/\",;\t?-]*(?:\r|\n|\\)",
    r"(?i:insert[ \t]+into)",
)


def _ruled(text: str) -> Iterator[Span]:
    at = 0
    while (
        match := _RULED.search(text, at)
    ) is not None:  # past the rows of the table before: each is read once
        names = [cell[0].strip().replace(" ", "_") for cell in _RULED_CELL.finditer(match[1])]
        at = match.end()
        for _ in range(200):
            row = _RULED_ROW.match(text, at)
            cells = list(_RULED_CELL.finditer(row[1])) if row is not None else []
            if row is None or len(cells) != len(names):
                break
            at = row.end()
            for name, cell in zip(names, cells, strict=True):
                kind = named_secret(name, cell[0]) if may_be_named(name) else None
                if kind is not None:
                    yield Span(row.start(1) + cell.start(), row.start(1) + cell.end(), kind)


_ALIGNED = lazily(
    rf"(?:\A|(?<=\n))({_PRINTED})?((?:[A-Z][A-Z0-9_-]{{0,40}}(?: [A-Z0-9_-]{{1,40}}){{0,4}}[ ]{{2,40}}){{0,10}})"
    r"((?:API |ACCESS )?(?:TOKEN|PASSWORD|SECRET|APIKEY|KEY))"
    r"(?=[ ]{2,}[A-Z]|[ ]{0,40}\r?(?:\n|\Z))[^\n]{0,200}"
)


_ALIGNED_HINT = r"(?:TOKEN|PASSWORD|SECRET|APIKEY) *(?:  [A-Z][A-Z0-9_ -]*)?(?:[\r\n]|\\+[nr])"


def _aligned(text: str) -> Iterator[Span]:
    """The column of a table that a command prints with spaces between its columns."""
    for head in _ALIGNED.finditer(text):
        at, column, name = head.end(), head.end(2) - head.start(2), head[3].replace(" ", "_")
        if not column and name != "PASSWORD":
            continue
        for _ in range(200):
            row = _RULED_ROW.match(text, at)
            if row is None or row[1][max(0, column - 1) : column].strip():
                break
            at, value = row.end(), row[1][column:].partition(" ")[0]
            if name != "KEY" and (kind := named_secret(name, value)) is not None:
                yield Span(row.start(1) + column, row.start(1) + column + len(value), kind)


def _tables(text: str) -> Iterator[Span]:
    """The column of a table, a CSV file or an INSERT whose name is a secret's."""
    data = one_byte_each(text)
    if any_of([_ALIGNED_HINT])(data):
        yield from _aligned(text)
    if any_of([_RULED_HINT])(data):
        yield from _ruled(text)
    at = 0 if any_of(_COLUMNS_HINTS)(data) else len(text)
    while (match := _COLUMNS.search(text, at)) is not None:
        at = match.end()
        group = 1 if match[1] is not None else 2
        sign = next((sign for sign in "\t;" if sign in match[group]), ",") if group == 1 else ","
        names = [name.strip(" \"`[]'\\") for name in match[group].split(sign)]
        if group == 1 and (len(set(names)) < len(names) or not all(names) or ", " in match[1]):
            continue  # code
        columns = [(at, name.replace(" ", "_")) for at, name in enumerate(names) if may_be_named(name)]
        row = _CELLS if group == 1 else _TUPLE
        for _ in range(200 if columns else 0):
            cells = row.match(text, at)
            if cells is None or cells[1].count(sign) != len(names) - 1:
                break
            at = cells.end()
            for column, name in columns:
                start = cells.start(1)
                for _ in range(column):
                    start = text.index(sign, start) + 1
                end = text.find(sign, start, cells.end(1))
                cell = text[start : cells.end(1) if end == -1 else end]
                value = cell.strip(" \r\"'\\")
                kind = named_secret(name, value)
                if kind is not None:
                    start += cell.index(value)
                    yield Span(start, start + len(value), kind)


def _plausible(value: str) -> bool:
    return is_secret_value(value, _Judged("password", "password", is_quoted=True, is_line=True))


def _is_given(value: str) -> bool:
    """Whether the text at the place where a command takes a password may be one, also of letters only."""
    return (
        len(value) >= _LEAST
        and any(map(str.isalpha, value))
        and _FIRST.match(value) is not None
        and not is_placeholder(value)
    )


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
            "geniekey",
        )
        digit = any(map(str.isdigit, value))
        if (
            _is_basic(value)
            or looks_random(value)
            or (known and digit and (not _CODE.match(value) or value.isalnum()))
        ):
            yield Span(match.start(2), match.end(2), "authorization")
    for match in _BASIC.finditer(text):
        if _BASIC_SIGN.search(match[1]) and _is_basic(match[1]):
            yield Span(match.start(1), match.end(1), "authorization")
    for match in _COOKIE.finditer(text):
        at = match.end()
        while (pair := _PAIR.match(text, at)) is not None:
            name, value = pair[1], pair[2]
            at = pair.end()
            if is_cookie(name, value):
                yield Span(pair.start(2), pair.end(2), "cookie")
    for jar in _COOKIE_DICT.finditer(text):
        for item in _COOKIE_ITEM.finditer(text, jar.start(1), jar.end(1)):
            if is_cookie(item[2], item[3]):
                yield Span(item.start(3), item.end(3), "cookie")
    for match in _COOKIE_JAR.finditer(text):
        if not is_placeholder(match[1]):
            yield Span(match.start(1), match.end(1), "cookie")
    for match in _AUTH_PAIR.finditer(text):
        if _is_given(match[1]):
            yield Span(match.start(1), match.end(1), "password")
    for match in _SIGNATURE.finditer(text):
        yield Span(match.start(1), match.end(1), "authorization")


_NEAR_NAME = (
    "login|auth|authenticate|unlock|activate|nemonic|seed|Seed|asswords?|ASSWORD|asswd|hrase|mot de passe|ecret|ECRET|oken|OKEN"
    "|redentials?|(?:pi|th|te|ss|et|er|se|ng|nt)key|_key|_KEY|-key|(?:pi|PI|ss|et|te) (?:[Kk]ey|KEY)"
)
_NEAR = Sought(rf"(?:{_NEAR_NAME})(?![A-Za-z])", rf"(?:{_NEAR_NAME})(?:[^A-Za-z]|$)")
_NEAR_GAP = 60
_SEED = lazily(r"[^\n]{0,60}?[\"'`]([a-z]{3,8}(?: [a-z]{3,8}){11,23})\\{0,7}[\"'`]")
_NEAR_QUOTED = lazily(r"(?<=[\"'`])([^\s\"'`\\]{8,256})(?=\\{0,7}[\"'`])")
_NEAR_WORD = lazily(
    r"[\"'`*)\]]{0,3}(?:[ \t]{1,40}|[ \t]?:[ \t]{1,20})((?![A-Za-z-]+[.,:;]?(?:\s|\Z))[^\s\"'`\\,;(){}<>]{8,256})(?=[.]?(?:\s|\\|\"|\Z))"
)
_RANDOM_WORD = lazily(r"[A-Za-z0-9]{16,}")
_NAME_WORDS_BEFORE = lazily(r"[A-Za-z0-9_]*\Z")


def _is_near(kind: str, value: str) -> bool:
    """Whether a word behind a secret's name is one, whatever is between them."""
    if is_placeholder(value) or value.startswith("[redacted:"):
        return False
    if kind == "password" and is_chosen(value):
        return True
    word = _RANDOM_WORD.search(value)
    return (
        word is not None
        and len(value) >= 20
        and "/" not in value
        and _CAPITAL.search(word[0]) is not None
        and _SMALL_LETTER.search(word[0]) is not None
        and _DIGIT.search(word[0]) is not None
        and looks_random(word[0])
    )


_CAPITAL_NAME = "ECRET|OKEN|ACCESS|PRIVATE|KEY"
_FULL_NAME = f"{_CAPITAL_NAME}|ecret|oken|[Kk]ey"
_NAMED_NEXT = Sought(
    rf"(?:(?:{_FULL_NAME})(?:[ \t]{{1,4}}|[ \t]{{0,2}}[=:][ \t]{{0,3}})|(?:{_CAPITAL_NAME})[.-])"
    r"(?P<value>(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,128})(?=[.,;]?(?:\s|\\|[\"'`]|\Z))",
    rf"(?:{_FULL_NAME})[ \t]*[=: \t]|(?:{_CAPITAL_NAME})[.-]",
)
"""A name in full, and behind it a word that only a program writes: no capitals are needed."""
_NAME_BEFORE_WORD = lazily(r"(?:[A-Za-z0-9]{1,20} )?[A-Za-z0-9_.-]{0,20}\Z")
_KNOWN_KEY_END = lazily("(?:api|access|secret|private)[ _-]?key$", re.IGNORECASE)
_VERBS = frozenset({"login", "auth", "authenticate", "unlock", "activate"})
"""Subcommands that take a secret."""


def _is_made(name: str, value: str) -> bool:
    """Whether a word of letters and digits is random; behind `key` alone, digests, UUIDs and dates are keys of
    something else, and `AAAA` begins a public one."""
    is_plain = name.endswith("key") and not _KNOWN_KEY_END.search(name)
    if is_placeholder(value) or (
        is_plain and (not value.isalnum() or _HASH.match(value) is not None or value.startswith("AAAA"))
    ):
        return False
    return _UUID.match(value) is not None or looks_random(value.replace("-", ""))


def _near(text: str) -> Iterator[Span]:
    """What looks like a secret behind the name of one, on its line: an argument of a call or a command that no rule
    knows, the next column of a listing."""
    for match in _NAMED_NEXT.finditer(text):
        begin, end = match.span("value")
        before = _NAME_BEFORE_WORD.search(text, max(0, match.start() - 40), match.start())
        name = f"{before[0] if before is not None else ''}{text[match.start() : begin]}".rstrip(" \t=:.-")
        if not is_other_name(name) and _is_made(name, match["value"]):
            yield Span(begin, end, _kind_by_name(name) or "secret")
    for match in _NEAR.finditer(text):
        kind = "password" if match[0].lower().startswith(("assw", "hrase", "mot")) else "secret"
        if match[0] in ("nemonic", "hrase", "seed", "Seed"):
            if (seed := _SEED.match(text, match.end())) is not None and not _is_sentence(seed[1].split()):
                yield Span(seed.start(1), seed.end(1), "password")
            continue
        if match[0] in ("oken", "_key") and is_other_name(
            _NAME_WORDS_BEFORE.search(text, max(0, match.start() - 30), match.end())[0]  # type: ignore[index]
        ):
            continue
        is_verb = match[0] in _VERBS
        word = _NEAR_WORD.match(text, match.end())
        if word is not None and (
            _is_near(kind, word[1])
            or (
                (_HASH.match(word[1]) is not None or (is_verb and _UUID.match(word[1]) is not None))
                and len(word[1]) in (32, 36, 40, 64)
                and looks_random(word[1].replace("-", ""))
                and text[match.end()] in " \t"
                and match[0].lower() != "ecret"
                and (
                    is_verb or _TAKES_A_WORD.search(text, max(0, match.start() - 80), match.end()) is not None
                )
            )
        ):
            yield Span(word.start(1), word.end(1), kind)
        if is_verb:
            continue
        line = _LINE_END.search(text, match.end(), match.end() + _NEAR_GAP)
        end = line.start() if line is not None else min(len(text), match.end() + _NEAR_GAP)
        for quoted in _NEAR_QUOTED.finditer(text, match.end(), min(len(text), end + 256)):
            if (
                quoted.start(1) <= end
                and "\n" not in text[match.end() : quoted.start()]
                and _is_near(kind, quoted[1])
            ):
                yield Span(quoted.start(1), quoted.end(1), kind)


_SERVICE_NAMES = f"(?i:{'|'.join(sorted(SERVICES))})"
_SERVICE_GAP = 44
"""Characters between the name of a service and its key, at most."""
_SERVICE = Sought(rf"(?:\A|[^A-Za-z]){_SERVICE_NAMES}", rf"(?:^|[^A-Za-z]){_SERVICE_NAMES}")
_WORD_BEGINS = lazily("(?<![A-Za-z0-9+/@#])[A-Za-z0-9]")
_SERVICE_VALUE = lazily(
    r"(?=[A-Za-z_-]*[0-9]|[A-Za-z]{20})[A-Za-z0-9][A-Za-z0-9_+/.=-]{11,2047}(?=[.,;]?(?:\s|\\|[\"'`)}\]<|,;&]|\Z))"
)
_BETWEEN = lazily(r"[A-Za-z0-9_.\s-]*\\{0,7}[\"'`]?\s*(?:=>|:=|->|[=:,>(|])?\s*\\{0,7}[\"'`({\[]*\Z")
"""What may be between a service's name and its key: a few words, a sign, a quote."""
_KEY_WORDS = lazily(
    r"key|token|secret|pass|pat\b|api|auth|access|private|credential|cred|bearer|pwd|(?<![a-z])pw(?![a-z])",
    re.IGNORECASE,
)
_KEY_PREFIX = lazily(
    r"(?i:(?:[a-z]{0,20}(?:key|token|secret|access|private|pat)|api)[-_.])+(?=[A-Za-z0-9]{4})"
)
_ID_WORDS = lazily(
    r"(?i:commit|sha|md5|hash|digest|checksum|integrity|etag|revision|version|branch|merge|tree|blob|uuid|guid|trace|span"
    r"|event|session|request|message|thread|issue|public|publish|fingerprint|image|build|release|tag|file|path|url|host"
    r"|user|name|folder|dir|project|org|account|tenant|workspace)|(?<![A-Za-z])id(?![a-z])|[a-z_-]I[dD](?![a-z])|_id(?![a-z])|(?<![a-z])ID(?![a-z])"
)
"""What makes an id, a digest or a path of what follows."""


def _is_services(gap: str, value: str) -> bool:
    """Whether a word behind a service's name, with this between them, is its key."""
    plain = value.strip("=-_.")
    if is_placeholder(value) or value.startswith("redacted") or "//" in value:
        return False
    last = max((match.end() for match in _KEY_WORDS.finditer(gap)), default=0)
    is_told = last > 0
    if _ID_WORDS.search(gap, last) or len(gap.split()) > (4 if is_told else 1):
        return False
    if _UUID.match(plain):
        return True
    if (
        sum(part.isalpha() and len(part) >= 4 and not _is_unspoken(part) for part in re.split("[-_.]", plain))
        > 1
    ):
        return False  # a name of words
    letters = re.sub("[^A-Za-z0-9]", "", plain)
    digits = len(_DIGIT.findall(plain))
    if _HASH.match(plain):
        return len(plain) >= (20 if digits in (0, len(plain)) else 15 if is_told else 32) and (
            is_told or digits > 0
        )
    if not is_told:
        return len(plain) >= 20 and digits > 1 and looks_random(letters)
    if digits == 0 or len(plain) >= 20:
        return len(plain) >= 20 and (_is_unspoken(letters) or (digits > 1 and looks_random(letters)))
    return len(plain) >= 12 and digits > 1 and (looks_random(letters) or digits * 4 >= len(letters))


_CONSONANTS = lazily("[b-df-hj-np-tv-z]{5}", re.IGNORECASE)


def _is_unspoken(letters: str) -> bool:
    """Whether letters are at random, and no words: five consonants in a row, or capitals anywhere."""
    return _CONSONANTS.search(letters) is not None or looks_random(letters)


def _of_services(text: str) -> Iterator[Span]:
    """A key without a form of its own behind the name of the service that it is for."""
    for match in _SERVICE.finditer(text):
        line = _LINE_END.search(text, match.end(), match.end() + _SERVICE_GAP)
        end = line.start() if line is not None else min(len(text), match.end() + _SERVICE_GAP)
        at = match.end()
        while (begins := _WORD_BEGINS.search(text, at, end)) is not None:
            value = _SERVICE_VALUE.match(text, begins.start())
            prefix = _KEY_PREFIX.match(value[0]) if value is not None else None
            start = begins.start() + (prefix.end() if prefix is not None else 0)
            gap = text[match.end() : start]
            if _BETWEEN.match(gap) is None:
                break
            at = begins.end() if value is None else value.end()
            if value is not None and _is_services(gap, text[start:at]):
                yield Span(start, at, "key")
                break


def _commands(text: str) -> Iterator[Span]:
    clients: list[int] | None = None
    for match in _USER.finditer(text):
        value = match[2]
        if clients is None:
            clients = [client.start() for client in _HTTP_CLIENT.finditer(text)]
        nearest = bisect_left(clients, match.start())
        near = (
            "auth" in match[0]
            or "creds" in match[0]
            or (nearest > 0 and match.start() - clients[nearest - 1] <= _LONGEST_COMMAND)
        )
        if near and not is_placeholder(value) and not value.startswith(("//", "[redacted:")):
            yield Span(match.start(2), match.end(2), "password")
    for match in _COMMAND.finditer(text):
        number = int(str(match.lastgroup)[1:])
        option = _TAKEN_BY[number].match(text, match.end())
        if (
            option is None
            and number + 1 < len(_COMMANDS)
            and _COMMANDS[number][0] == _COMMANDS[number + 1][0]
        ):
            option = _TAKEN_BY[number + 1].match(text, match.end())
        for _ in range(_OPTIONS_OF_ONE):
            if option is None or option[2].startswith("-"):
                break
            if _plausible(option[2]) or (
                _is_given(option[2]) and _NEXT_COMMAND.search(text, match.end(), option.start(2)) is None
            ):
                yield Span(option.start(2), option.end(2), "password")
            repeats = _COMMANDS[number][1].startswith("…")  # `keytool -storepass VALUE -keypass VALUE`
            option = _TAKEN_BY[number].match(text, option.end()) if repeats else None
    for match in _SECRET_PAIRS.finditer(text):
        for pair in _SECRET_PAIR.finditer(text, match.start(1), match.end(1)):
            if pair[1].lower() not in _PUBLIC_PAIRS and _is_given(pair[2]) and not pair[2].startswith("@"):
                yield Span(pair.start(2), pair.end(2), "secret")
    for match in _PIPED.finditer(text):
        if _is_given(match[1]) and not match[1].startswith("[redacted:"):
            yield Span(match.start(1), match.end(1), "password")
    for match in _OPENSSL.finditer(text):
        if _is_given(match[1]):
            yield Span(match.start(1), match.end(1), "password")
    for match in _IDENTIFIED.finditer(text):
        if _is_given(match[2]) and not match[1].endswith("`"):
            yield Span(match.start(2), match.end(2), "password")


_SECRET_WORDS = (
    r"pass|pwd|pw\b|secret|token|jwt|pat\b|key|cred|sess|\.sid|auth|cookie|phrase|mnemonic|salt|psk"
)
_SECRET_KEYS = lazily(_SECRET_WORDS, re.IGNORECASE)
_A_VALUE = rf"(?:({_QUOTE})([^\"'`\\\n]{{6,512}})|([^\s\"'`,;}}<>\\]{{6,512}}))"
_VALUE_FIRST = Sought(
    rf"[Vv]alue(?:{_QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}{_A_VALUE}(?:{_QUOTE})?[,;]?\s{{0,80}}(?:{_QUOTE})?"
    rf"(?:name|key|Name|Key)(?:{_QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}(?:{_QUOTE})?([A-Za-z][A-Za-z0-9_.:-]{{2,63}})",
    "[Vv]alue",
)
_NAME_FIRST = Sought(
    rf"(?:(?:\b[Nn]ame|\b[Kk]ey|\bKEY|\bNAME|(?:Parameter|Output)(?:Key|Name))(?:{_QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}(?:{_QUOTE})?"
    rf"|<(?:name|key)>|\bvariable[ \t]+(?:{_QUOTE})|{_QUOTE}(?=[\w.-]{{3,63}}{_QUOTE}\s?:\s?\{{))([A-Za-z/][A-Za-z0-9_.:/-]{{2,63}})",
    # Only where the name is a secret's.
    rf"(?:(?:[Nn]ame|[Kk]ey|KEY|NAME|(?:Parameter|Output)(?:Key|Name))(?:{_QUOTE})?[ \t]*[:=][ \t]*(?:{_QUOTE})?|<(?:name|key)>"
    rf"|variable[ \t]+{_QUOTE}|{_QUOTE})[A-Za-z0-9_.:/?-]*(?i:{_SECRET_WORDS})",
)
_VALUE_NEXT = lazily(
    rf"(?:(?:\b[Vv]alue|(?:Parameter|Output)Value)|\bdefault|\bcontent|\bsecret_?[Ss]tring|\bVALUE"
    rf"|<string)(?:{_QUOTE})?(?:[ \t]{{0,10}}[:=][ \t]{{0,5}}|>){_A_VALUE}"
)
_FIELDS_APART = 300


def _fields(text: str) -> Iterator[Span]:
    """Name and value in two fields, in any order: environment variables in lists, variables of Terraform."""
    for match in _VALUE_FIRST.finditer(text) if "alue" in text else ():
        yield from _of_field(match[4], match)
    for name in _NAME_FIRST.finditer(text):
        if may_be_named(name[1]):
            end = min(len(text), name.end() + _FIELDS_APART)
            value = _VALUE_NEXT.search(text, name.end(), end)
            if value is not None and _NAME_FIRST.expression.search(text, name.end(), value.start()) is None:
                yield from _of_field(name[1], value)


def _of_field(name: str, match: re.Match[str]) -> Iterator[Span]:
    group = 2 if match[2] is not None else 3
    kind = named_secret(name, match[group])
    if kind is not None:
        yield Span(match.start(group), match.end(group), kind)


@lru_cache(maxsize=4_096)
def may_be_named(name: str) -> bool:
    return len(name) <= 200 and _SECRET_KEYS.search(name) is not None


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
            start, done = (
                max(done, match.start() - _LONGEST_MANIFEST),
                min(len(text), match.end() + _LONGEST_MANIFEST),
            )
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


def spans(text: str, groups_in: Groups, groups: Collection[str] | None = None) -> list[Span]:
    """Every secret of the text that is known by what is around it, in order; none overlaps another.

    Args:
        groups_in: names the groups of `TELLING`, perhaps among others, of which one is found in a text.
        groups: those of this text, where they are known.
    """
    found: list[Span] = []
    end = 0
    plain = text.replace("│", "|").replace("┃", "|").replace("\0", "\n")
    if groups is None or plain != text:
        groups = groups_in(plain.encode("utf-8", "replace"))
    text = plain
    sources: dict[Callable[[str], Iterator[Span]], set[str]] = {
        _places: {"places"},
        _tables: {"names"},
        _assigned: {"names", "settings"},
        _fields: {"names", "fields"},
        _headers: {"headers"},
        _commands: {"commands"},
        _files: {"files"},
        _near: {"near"},
        _of_services: {"services", "near", "names"},
    }
    for span in sorted(
        span
        for source, tellings in sources.items()
        if not tellings.isdisjoint(groups)
        for span in source(text)
    ):
        if span.start >= end and not text.startswith("[redacted:", span.start):
            found.append(_whole(text, span))
            end = found[-1].end
    return _with_repeats(text, found) if found else found


_LINE_ENDS = r"(?=[ \t]*(?:[\r\n\\\"'`]|\Z))"
_MORE_BASE64 = lazily(
    rf"={{0,2}}(?:(?:{_LINE_BREAK}[ \t]{{0,40}}[A-Za-z0-9+/]{{40,128}}{_LINE_ENDS}){{1,400}}"
    rf"(?:{_LINE_BREAK}[ \t]{{0,40}}[A-Za-z0-9+/]{{1,128}}={{0,2}}{_LINE_ENDS})?"
    rf"|{_LINE_BREAK}[ \t]{{0,40}}(?=[A-Za-z+/]{{0,128}}[0-9=])[A-Za-z0-9+/]{{4,128}}(?:==?|(?<=[A-Za-z0-9+/]{{16}})){_LINE_ENDS})"
)
_MORE_QUOTED = lazily(
    rf"{_QUOTE}(?:\s?(?:\+|\.\.?)(?:\s|\\{{1,7}}[nr]){{0,40}}[bruf]?{_QUOTE}(?=[^\s\"'`]{{0,60}}[0-9])[^\s\"'`\\]{{4,512}}"
    rf"|\r?\n[ \t]{{0,60}}[bruf]?{_QUOTE}{_MIXED}(?=[^\s\"'`]{{0,60}}[a-z])[A-Za-z0-9+/=_-]{{12,512}})(?={_QUOTE})"
)
"""`"…" + "…"`, and strings under each other."""
_MORE_ESCAPED = lazily(
    r"(?:\\{1,2}[=:#!\"'][^\s\"'`\\]{1,256})+|\\\r?\n[ \t]{0,8}[A-Za-z0-9+/=_.-]{8,512}(?=\s|\\|[\"'`]|\Z)"
)
"""An escaped sign inside the value, or a line that goes on behind a backslash."""
_BASE64_LINE = lazily(r"[A-Za-z0-9+/]{60,8192}\Z")


def _whole(text: str, span: Span) -> Span:
    """The span to the end of a value that goes on: on further lines of base64, in further strings, behind an
    escaped sign."""
    start, end, label = span
    more: re.Match[str] | None = None
    if _BASE64_LINE.match(text[start:end]):
        more = _MORE_BASE64.match(text, end)
    is_quoted = text[start - 1 : start] in ("'", '"', "`")
    while is_quoted and (joined := _MORE_QUOTED.match(text, end)) is not None:
        end = joined.end()
    if text[start - 2 : start - 1] != "\\" and (
        not is_quoted or text[end + 1 : end + 2] == text[start - 1 : start]
    ):
        more = more or _MORE_ESCAPED.match(text, end)
    return Span(start, more.end() if more is not None else end, label)


_IN_A_WORD = lazily("[A-Za-z0-9_-]")
_MOST_REPEATED = 50
"""Different values that are looked for in the rest of a text."""


def _with_repeats(text: str, found: list[Span]) -> list[Span]:
    """The spans, and wherever else in the text the same random values stand, without a name."""
    values: dict[str, str] = {}
    for span in found:
        value = text[span.start : span.end]
        if len(value) >= 12 and len(values) < _MOST_REPEATED and _is_random_value(value):
            values[value] = span.label
    taken = {span.start for span in found}
    more = []
    for value, label in values.items():
        at = text.find(value)
        while at != -1:
            end = at + len(value)
            if (
                at not in taken
                and not _IN_A_WORD.match(text[at - 1 : at])
                and not _IN_A_WORD.match(text[end : end + 1])
            ):
                more.append(Span(at, end, label))
            at = text.find(value, end)
    if not more:
        return found
    kept: list[Span] = []
    for span in sorted(found + more, key=lambda one: (one.start, -one.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def _is_random_value(value: str) -> bool:
    return any(map(str.isdigit, value)) and (
        looks_random(value) or _UUID.match(value) is not None or is_chosen(value)
    )


_OPENING = lazily(
    rf"(?:[Aa]uthorization|AUTHORIZATION){_HEADER_SIGN}(?:[A-Za-z][A-Za-z0-9-]{{1,20}}[ \t]{{1,3}})?|[Bb]asic[ \t]"
    rf"|(?:-u|-U|-user|-proxy-user)[\"',=\s]{{1,4}}(?:{_QUOTE})?[^\s:\"'=\\]{{1,100}}:|[ \t]-[paPw][ \t]*(?=\S)"
    rf"|password{_GAP}|pass:|(?:by|BY)[ \t]{{1,5}}(?={_QUOTE})"
)


def open_value(text: str) -> int | None:
    """Where a value begins that goes on to the end of this text, if what is written next may belong to it."""
    starts = [match.end() for match in _NAMED.finditer(text) if match["separator"].strip()]
    starts += [match.end() for match in _COOKIE.finditer(text)] + [
        match.end() for match in _OPENING.finditer(text)
    ]
    for start in sorted(starts):
        opened = _OPENS.match(text, start)
        if opened is not None and opened[1] not in text[opened.end() :] and "\n" not in text[start:]:
            return start
        if opened is None and not any(map(str.isspace, text[start:])):
            return start
    return None


# --- the search through whole logs --------------------------------------------------------------------------

_Q = r"(?:\\*(?:[\"'`]|u00(?:22|27|60)))"
_W = r"(?:[ \t\r\n]|\\+[nrt])"
_EQUALS = r"(?:[:=>]|[?.+]=|\\+u003[dDeE])"
_G = rf"(?:{_W}|[^ \t\r\n:\"']+:[0-9]+[:-]|[0-9]+(?:\x{{e2}}\x{{86}}\x{{92}}|\\+u2192|\t|\\+t))+"
_ANY = f"(?:{_Q}|{_W})*"
_LETTER = r"(?:[^ \t\r\n\"\\]|\\+[/\\]|\\+u00[0-9a-fA-F]{2})"
_ODD_LETTER = r"(?:[^ \t\r\n\"\\A-Za-z_.0-9\[({<]|\\+[/\\]|\\+u00[0-9a-fA-F]{2})"
_VALUE = rf"[A-Za-z_.]*(?:[0-9]|{_ODD_LETTER}(?:{_LETTER}*[0-9]|{_LETTER}*(?:[a-z]+[A-Z]+){{3}})|(?:[a-z]+[A-Z]+){{3}})"
"""What `is_secret_value` asks of a value at least, if it is no variable's."""
_LAST_LETTER = r"(?:[^ \t\r\n\"\\,;({:'`]|['`](?:[^ \t\r\n\"\\,;)}\]'`]|\\*\")|\\+[/\\]|\\+u00[0-9a-fA-F]{2})"
_ANY_VALUE = (
    rf"[A-Za-z0-9~!@#%^_.$?\\-](?:{_LETTER}{{4}}[,;({{:]*{_LAST_LETTER}|{_LETTER}{{2,4}} [a-z]+ [a-z]+ [a-z])"
)
"""Also one of letters only, where a name says that it is a password; not `sort_keys=False,`."""
_FIELD_APART = (
    rf"{_Q}*[ \t]*(?:[\r\n,<>]|:?[ \t]*\{{|\\+[nr])[^}}]*(?:alue|default|<string){_ANY}(?:{_EQUALS}|>)"
)
"""A name in a field of its own, and behind it the field with its value."""
_TELLS = (
    r"[ \t](?:is|was|has|for|of|to|set|reset|changed|now):?[ \t](?:[^\r\n:=\"\\]*[ \t:=])?[ \t]*" + f"{_Q}*"
)
_ASSIGNS = (
    rf"{_SUFFIX}(?:{_Q}|[\]\[)])*(?:[ \t]|\\+t)*"
    rf"(?:(?:{_EQUALS}(?:[ \t]|\\+t|{_EQUALS}|@?{_Q})*|[({{]{_Q}|,[ \t]*{_Q}+|-[ \t]+{_Q}+"
    rf"|:[ \t]*(?:Optional|SecretStr|[Ss]tr|&|const char|char)[^\r\n:]*=[ \t]*{_Q}*"
    rf"|,?{_ANY}[Vv]alue{_ANY}{_EQUALS}{_ANY}|:[ \t]*[|>]?[-+0-9]*{_W}+(?:[+-]{_W}*)?{_Q}*|[ \t]*(?:\|\|?|\?\?)=?[ \t]*{_Q}*"
    rf"|{_EQUALS}[ \t]*(?:\[{_ANY}|\({_W}*{_Q})|[ \t]\([^()\s]+\):[ \t]+|[ \t]?\.\.\.+[ \t]+|{_TELLS}){_VALUE}"
    rf"|(?:{_ANY}\x{{1b}}|{_ANY}\\+u001[bB]|[ \t]\{{[ \t]?get;|[ \t]*\x{{e2}}\x{{94}}|[ \t]*\\+u250[23])"
    rf"|{_TELLS}[A-Za-z]+[-_.][A-Za-z]+[-_.][A-Za-z]|{_FIELD_APART})"
)
_ASSIGNS_WORD = (
    rf"(?:{_SUFFIX}(?:{_Q}|[\]\[)])*[ \t]*(?:[|]{_W}*|,[ \t]*{_Q}+|>{_W}*|\*\*[ \t]?:[ \t]*{_Q}*|[ \t][A-Za-z:]+(?:="
    rf"|\\+u003[dD]){_Q}[^>\r\n]*(?:>|u003[eE])|{_EQUALS}(?:[ \t]|{_EQUALS}|{_Q}|[\[|*]|</[a-z]+>|{_W})*(?:[bruf@]{_Q}+"
    rf"|(?:\[\])?[A-Za-z_.:]*\({_Q}+|\(?ConvertTo-SecureString[^\"'\\]*{_Q}+)?){_ANY_VALUE}"
    rf"|[ \t](?:(?:As[ \t])?[Ss]tring|\[\]byte)[ \t]*=|:[ \t]*(?:Optional|SecretStr|[Ss]tr|&|const char|char)[^\r\n:=]*=[ \t]*{_Q}+"
    rf"|{_SUFFIX}(?:[({{]{_Q}+|:-){_ANY_VALUE}"
    rf"|{_SUFFIX}{_Q}+[ \t]+[Vv]alue{_EQUALS}|[ \t]is(?:[ \t]set[ \t]to)?:?[ \t]{_Q}+{_ANY_VALUE})"
)

_UPPER_TAILS = (
    "ASSWORDS?|ASSWD|HRASE|ASSCODE|NEMONIC|_PASS|HPASS|ECRETS?|OKENS?|_PAT|_KEYS?"
    "|_PWD|_JWT|REDENTIAL|SESSI|_SALT|EY_?STRING|PI [Kk]ey|PI KEY|_PSK"
)
_LOWER_TAILS = (
    "asswor[dt]s?|asswd|hrase|asscode|nemonic|Pass|passe?|ecrets?|oken|_keys?|-key|ey_?string"
    "|pikey|thkey|tekey|sskey|etkey|erkey|sekey|ngkey|ntkey"
    "|pi[. ][Kk]ey|ss[. ][Kk]ey|et[. ][Kk]ey|te[. ][Kk]ey|on[. ][Kk]ey|_pat|redentials?|auth|[_.-]salt|Salt|_psk|achtwoord"
    '|ontrase[^"\\\\][^"\\\\]a|ontrase\\\\+u00[fF]1a|ontrasena'
)
_PASSWORD_TAILS = "asswords?|asswd|hrase|asscode|nemonic|Pass|pass"
_SHORT_TAILS = "pwd|Pwd|PWD|_pw|_PW|Pw|PW|pw|psk|Pat|jwt|JWT|Keys?|KEYS?"
_ANY_TAILS = "|".join(sorted(f"{_LOWER_TAILS}|{_UPPER_TAILS}|{_SHORT_TAILS}".split("|")))
_USER_OPTION = rf"(?:{_Q}|{_W}|[=,]|\\+u003[dD])*(?:[^ \t\r\n:\"'=\\-][^ \t\r\n:\"'=\\]*)?:[^ \t\r\n\"']"
_NAME_FIELD = rf"(?:name|key|Name|Key|KEY|NAME|ariable){_Q}*[ \t]*(?:{_EQUALS}|>)[ \t]*{_Q}*[A-Za-z0-9_.-]*"

_SHORT_USER_OPTIONS = [
    rf"{_Q}-u{_USER_OPTION}",
    *(rf"(?:[ \n]|\\n)-{letter}{_USER_OPTION}" for letter in "uUa"),
    *(rf" -{letter}[A-Za-z]*u{_USER_OPTION}" for letter in "sSkLi"),
]
TELLING: dict[str, list[str]] = {
    "names": [
        # RE2 shares how alternatives begin, but not how they end.
        rf"(?:{_ANY_TAILS})(?:{_ASSIGNS}|{_ASSIGNS_WORD}|,{_VALUE})",
        rf"(?:{_PASSWORD_TAILS})[ \t]+(?:{_Q}*{_VALUE}"
        rf"|[A-Za-z-]{{6}}[A-Za-z-]*(?:[\r\n\"]|\\+[nr\"]|$))"
        rf"|(?:_key|assword|ecret|oken)(?:s?{_Q}?(?:(?:[,;\t]|\\+t)(?:[^\r\n\\]|\\+t)*)?(?:[\r\n]|\\+[nr])(?:[^\r\n\\]|\\+t)*(?:[,;\t]|\\+t)"
        rf"|[^():\r\n]*\)[ \t\\nr]*(?:values|VALUES)"
        rf"|s?(?:[^\r\n\\\"]|\"[^\r\n\\:])*\"?(?:[\r\n]|\\+[nr])[^\r\n\\-]*---)|uthIdent",
        rf"(?:{_UPPER_TAILS})(?:[A-Z0-9_]*(?:=|\\+u003[dD]){_Q}*[^ \t\r\n\"'`$<(\[{{*]{_LETTER}{{5}}|,{_LETTER}{{6}})"
        rf"|(?:assword|ASSWORD)[ \t]+\\*(?:'|u0027)"
        rf"|-(?:password|passwd|passphrase|pass|pw|pwd|secret|token|key|credential|auth|auth-?key|api[_-]?key|access[_-]?token|auth[_-]?token)"
        rf"[ \t]+{_Q}*{_ANY_VALUE}|PASS={_Q}*{_ANY_VALUE}"
        rf"|AUTH=|[Cc]reds{_Q}*[ \t]*{_EQUALS}|CREDS{_Q}*[ \t]*{_EQUALS}|ennwort{_Q}*[ \t]*{_EQUALS}"
        rf"|mot_de_passe|-[Pp]ass(?:word|wd|phrase)?[ \t]+{_Q}*{_ANY_VALUE}",
        rf"okens{_Q}*[ \t]*{_EQUALS}[ \t]*\[{_ANY}{_VALUE}",
        _ALIGNED_HINT,
        rf"(?:_pepper|_PEPPER|_skey|_SKEY|pi_hash|PI_HASH){_Q}*[ \t]*{_EQUALS}",
        rf"\]=>{_W}+string\([0-9]",
        r"(?:assword|ecret|oken|ey): &[A-Za-z]",
        rf"(?:assword|ASSWORD){_Q}*[ \t]*{_EQUALS}[ \t]*{_Q}*[A-Za-z0-9]{{4}} [A-Za-z0-9]{{4}} [A-Za-z0-9]{{4}} ",
        rf"\.key ?[=:] ?{_Q}*[A-Za-z0-9]{{6}}",
    ],
    "settings": [
        rf"(?:configure set|config set|config:set|secrets? set|variables? set|ENV |setx|SetEnv|setenv|#define|set-env [^ \"]+|env:set"
        rf"|env set)[ \t]*{_Q}?[A-Za-z0-9_./:-]*"
        rf"(?:{_ANY_TAILS}){_Q}?[ \t]+{_Q}*{_ANY_VALUE}",
        rf"set -[a-zA-Z]+[ \t]+[A-Za-z0-9_]*(?:{_ANY_TAILS})[ \t]+{_Q}*{_ANY_VALUE}",
    ],
    "headers": [
        rf"(?:uthorization|UTHORIZATION|ookies?|OOKIES?){_ANY}(?:[:=,]|\\+u003[dDeE]|[Vv]alue)"
        r"|asic[ \t][A-Za-z0-9+/\\]{6,}[A-Z0-9=]"
        r"|-cookie(?:[ =]|\\+u003[dD])"
        r"| -b(?:[ =]?\\*[\"']|[ =]?\\+u002[27])[^ \t\r\n=\"']+(?:=|\\+u003[dD])"
        r"|(?:TRUE|FALSE)(?:\t|\\+t)[0-9]+(?:\t|\\+t)"
        rf"|AWS4-HMAC-SHA256|auth{_Q}*{_EQUALS} ?[\[(]",
    ],
    "commands": [
        r"(?:dentified|DENTIFIED)[ \t\\nr]+(?:(?:with|WITH)[ \t\\nr]+[^ \t\r\n\\]+[ \t\\nr]+)?(?:by|BY)[ \t\\nr]+\\*(?:[\"'`]|u00(?:22|27|60))"
        rf"|-user{_USER_OPTION}|-(?:auth|creds){_USER_OPTION}"
        r"|pass:[^ \t\r\n\"'\\]{4}",
        *_SHORT_USER_OPTIONS,
        *(
            "sudo -[A-Za-z]*S",
            "password-stdin",
            "passwd-on-stdin",
            "realm join",
            "with-token",
            "chpasswd",
            "passwd --stdin",
            "passphrase-fd",
            r"\| su ",
            r"\| cryptsetup ",
            "kinit",
            "env add ",
            "pass insert",
            "data-file=-",
            "create secret ",
            "secrets? (?:set|put|import|create|add) ",
            "vault kv p",
            "vault write",
        ),
        *(pattern for _, _, patterns in _COMMANDS for pattern in patterns.split("|") if pattern),
    ],
    "files": [
        rf"(?:machine{_G}[^ \t\r\n\\]+{_G}(?:login|account|port|password)|login{_G}[^ \t\r\n\\]+{_G}password){_G}"
        rf"|kind{_ANY}:{_ANY}[Ss]ecret"
        r"|:(?:543[0-9]|6432):[^:\s]+:[^:\s]+:[^ \t\r\n]",
        r":\*:[^:\s]+:[^:\s]+:[^ \t\r\n]",
        *(f"{name}(?:=|\\\\+u003[dD])" for name in (";Pwd", ";PWD", ";pwd", "; Pwd", "; PWD", "; pwd")),
        "oracle:thin:",
    ],
    "near": [
        rf"(?:{_NEAR_NAME})(?:[^A-Za-z\"\\\r\n]|[\"\\]+[ )\]]|\\+t)(?:[^\"\\\r\n]|\\+[\"'])*\"?"
        r"(?:[A-Z][A-Za-z0-9@!#$_.+-]*[0-9]|[0-9][A-Za-z0-9@!#$_.+-]*[A-Z])",
        rf"(?:{_FULL_NAME})(?:(?:[ \t]|\\+t)+|[ \t]*[=:.-][ \t]*)(?:[A-Za-z_-]*[0-9][A-Za-z0-9_-]{{12}}|[A-Za-z]{{20}})",
        r"(?:oken|(?:pi|th|te|ss|et|er|se|ng|nt)key|_key|login|auth|unlock|activate|authenticate)[ \t]+"
        r"(?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-)",
        r"(?:nemonic|hrase|seed|Seed)[^\"\\\r\n]*\\*[\"'`][a-z]+(?: [a-z]+){11}",
    ],
    "fields": [
        rf"alue{_Q}*[ \t]*{_EQUALS}[ \t]*{_Q}*{_ANY_VALUE}{_LETTER}*{_Q}*[ ,;/]*{_ANY}{_NAME_FIELD}"
        rf"(?:{_ANY_TAILS})",
    ],
}
_HEX_WORD = "(?:[0-9a-f]{16}|[0-9a-f]{8}-[0-9a-f]{4}-)"
_QUOTED = r"(?:\\+[\"'`]|['`])?"
TELLING["services"] = [
    rf"[A-Za-z]{_QUOTED}(?: ?[=:>(] ?| ){_QUOTED}{_HEX_WORD}|[g-zG-Z]-{_HEX_WORD}",
    # In a line of JSON, quotes without a backslash are its own, and most such values are ids.
    rf"(?:[^iI][A-Za-z]|[iI][A-Za-ce-z])\" ?[=:>] ?\"{_HEX_WORD}|[A-Za-z]\"?(?: [=:>] ?|[=:>] |=)\"{_HEX_WORD}",
    # Letters and digits, where a sign or a quote is before them; behind a word such as `key`, other groups find them.
    r"[A-Za-z] ?[=:] ?\\*[\"'`][A-Za-z]*[0-9][A-Za-z0-9]{12}|[A-Za-z]=[A-Za-z]*[0-9][A-Za-z0-9]{12}|[A-Za-z] [0-9][A-Za-z0-9]{14}",
]
CONFIRMING: dict[str, list[str]] = {
    "services": [
        rf"(?:^|[^A-Za-z]|\\+[nrt]){_SERVICE_NAMES}[^\r\n/@#]{{0,{_SERVICE_GAP + 6}}}[^A-Za-z0-9+/@#]"
        rf"(?:{_HEX_WORD}|[A-Za-z_]*[0-9][A-Za-z0-9_]{{10}}|[A-Za-z]{{20}}|[A-Za-z0-9_-]{{20}})"
    ]
}
"""What else is found where a pattern of the group is: the names of all services would make the search for all groups
slow."""
_NO_SIGN = r"[^ \t\r\n\"'`\\(){},]"
TELLING["places"] = [
    r" -[tkpwPW][ \t]+\\*[\"']?[^ \t\r\n\"'\\/0-9]*[0-9][^ \t\r\n\"'\\/]{5}",
    rf"(?:[Aa]uth(?:entication)?|ogin|onnect(?:ion)?|redentials?|equelize|[uU]ser|ccount|asic|[Bb]ind(?:_s)?|pw_set)\({_Q}?"
    rf"(?:[$A-Za-z0-9_@.=:/-]*{_Q}?,[ ]?{_Q}?)+{_NO_SIGN}*(?:[A-Z]{_NO_SIGN}*[0-9]|[0-9]{_NO_SIGN}*[A-Z])",
    *(pattern for tellings, _ in _SOUGHT for pattern in tellings),
    *(
        r"\.sendline\(",
        r"send \\*[\"']",
        "ecovery[ _]codes?",
        "ackup[ _]codes?",
        "cratch codes?",
        "chpasswd:",
    ),
]
"""One of these is found in whatever `spans` finds something in, also in a line of JSON, where a quote is
`\\"` or `\\u0022`. By what finds it."""
