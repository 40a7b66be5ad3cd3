"""What names a secret, and what is written between a name and its value."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from watchkeeper.records.secret_shapes import Sought
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
LEAST = 6
FIRST = lazily(r"[A-Za-z0-9/+~!@#%^*_.$&?=|\\-]|[^\x00-\x7f]")
"""With what a value begins: so `suspicious` need not look at most that follows a name."""

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
SUFFIX = rf"(?:[_.-]?(?:[0-9]{{1,2}}|[ ][0-9]|{_SUFFIX_WORDS})|__)?"
QUOTE = r"\\{0,7}[\"'`]"
PRINTED = r"(?:[^\s:\"'\\]{1,100}:[0-9]{1,6}[:-]|[ \t]{0,8}[0-9]{1,6}(?:→|\t)|[+-])"
"""What `grep -n`, `cat -n` and `diff` print before a line."""
LINE_BREAK = rf"\r?\n{PRINTED}?"
PRINTED_HINT = PRINTED.replace("→", r"\?")
_SIGN = r"(?:=>|:-|:{1,3}=|[?.+]=|={1,3}|:)"
_TYPED = (
    r":[ \t]{0,3}(?:Optional\[str\]|SecretStr|SecureString|[Ss]tr(?:ing)?|&?(?:'static )?str|const char ?\*|char ?\*)"
    r"(?: ?\| ?(?:None|null|undefined))?[ \t]{0,3}=|[ \t]As[ \t]String[ \t]{0,3}="
)

_WRAPPED = (
    rf"(?:(?:new )?(?:String|bytes|Buffer|bytearray|SecretStr|Secret|SecureString|Password|binascii|hex|base64|Base64|Key|Fernet|Some|str|Box)"
    rf"(?:(?:\.|::)[A-Za-z_]\w{{1,20}}){{0,2}}\((?={QUOTE})|\[\]byte\((?={QUOTE})"
    rf"|\(?[ \t]?ConvertTo-SecureString[ \t](?:-String[ \t])?(?={QUOTE}))?"
)
"""What makes bytes or a secret of a value in quotes."""

_SEPARATOR = (
    # NAME: | and an indented line of YAML
    rf"(?::[ \t]{{0,5}}[|>][-+0-9]{{0,2}}[ \t]{{0,5}}\r?\n{PRINTED}?[ \t]{{1,60}}"
    rf"|:[ \t]{{0,5}}\r?\n{PRINTED}?[ \t]{{0,60}}- (?=\S)"  # NAMES: and a list of YAML
    rf"|:[ \t]{{0,5}}\r?\n[ \t]{{0,60}}(?={QUOTE})"  # NAME: and a quote on the next line
    r"|:\*{1,2}[ \t]{1,5}"  # **Name:** value
    r"|[ \t]?\.{3,60}[ \t]{1,3}"  # Name ....... value
    rf"|{QUOTE}\]=>\s{{1,40}}string\([0-9]{{1,4}}\) (?={QUOTE})"  # ["name"]=> string(9) "value" of PHP
    rf"|(?:{QUOTE}|[\])]){{0,4}}[ \t]{{0,40}}(?:\|\||\?\?)=?[ \t]{{0,5}}(?={QUOTE})"  # NAME || "value", NAME ||= "value"
    rf"|[ \t]\{{[ \t]?get;[^{{}}]{{0,40}}\}}[ \t]=[ \t]{{0,3}}(?={QUOTE})"  # Name {{ get; set; }} = "value" of C#
    rf"|(?:{QUOTE})?[ \t]{{0,60}}\|[ \t]{{1,60}}"  # | NAME | value |
    rf"|(?:{QUOTE})?(?:[ \t](?:for|of)(?:[ \t][^\s:=]{{1,40}}){{1,3}})?(?:[ \t](?:is|was|has|been|now|set|reset|changed|to)){{1,5}}"
    r":?[ \t]{1,3}"  # the password is value, the password for root was set to value
    r"|[ \t](?:for|of)(?:[ \t][^\s:=]{1,40}){1,3}[ \t]?[:=][ \t]{1,3}"  # password for root: value
    r"|[ \t]\([^()\s]{1,40}\):[ \t]{1,3}"  # password (root): value
    rf"|(?:{QUOTE}|\[?[\])]){{0,4}}[ \t]{{0,60}}(?:{_TYPED}|[ \t](?:string|String|\[\]byte)[ \t]{{1,5}}=|{_SIGN})"
    rf"[ \t]{{0,60}}{_WRAPPED}"
    # NAME = , "name": , ["name"] =>
    rf"(?:[\[(]\s{{0,40}}(?={QUOTE})|&\w{{1,20}} )?"
    # "names": ["value", …]; name = ("value"); name: &anchor value
    rf"|(?:{QUOTE})?[ \t]{{0,5}},?\s{{0,80}}(?:{QUOTE})?[Vv]alue"  # name: NAME, value: …
    rf"(?:{QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}"
    rf"|(?:{QUOTE})?[ \t]{{0,5}},[ \t]{{0,20}}(?={QUOTE})"  # define('NAME', 'value'), setopt(NAME, "value")
    rf"|[ \t]{{1,3}}-[ \t]{{1,3}}(?={QUOTE})"  # NAME - 'value'
    r"|,(?=[^\s,\"']{6})"  # NAME,value
    rf"|(?:{QUOTE})?>\s{{0,40}}(?:<[Vv]alue>)?"  # <name>value</name>, <property name="name">value</property>
    rf"|[({{](?={QUOTE})"  # setName("value"), name{{"value"}}
    r"|(?:\*{1,2}[ \t]?:|:\*{1,2}|:</\w{1,8}>)[ \t]{0,5}"  # **Name:** value
    rf"|(?:[ \t][\w:]{{1,20}}={QUOTE}[^\"'\n]{{0,160}}{QUOTE}){{1,3}}>"  # <name type="…">value</name>
    # --name value; judged by what comes before the name
    rf"|[ \t]{{1,20}}(?=\S)(?![Kk]ey\b|KEY\b|[Aa]ccess\b))"
)

_LOOK_AROUND = lazily(r"\(\?<?[=!][^()]*\)")

NAMED = Sought(
    "(?:"
    + "|".join(f"(?P<{kind}>{tails})" for kind, tails in _TAILS.items())
    + f"){SUFFIX}(?P<separator>{_SEPARATOR})",
    # Behind a name, letters only continue it: most places are other words, such as `tokens` or `keyboard`.
    f"(?:{_LOOK_AROUND.sub('', '|'.join(_TAILS.values()))})(?:[^A-Za-z]|{_SUFFIX_WORDS})",
)

NAME_BEFORE = lazily(r"[A-Za-z0-9_.$-]{0,64}\Z")
LONGEST_NAME = 64

TAKES_A_WORD = lazily(
    r"(?:\A|[\s\"'`(])--?[A-Za-z][\w-]*\Z|(?:configure set|config set|config:set|secrets? set|variables? set|ENV|setx|SetEnv|setenv|#define"
    r"|set-env[ \t]\S+|env:set|env set"
    r"|set -[a-zA-Z]{1,4}|\b(?:put|set|write|add|push)(?:[ \t]+[\w./:-]+)?)[ \t]+\\{0,7}[\"']?[\w./:-]*\Z"
)
"""What makes `NAME value` an assignment: an option, or a command that sets names."""

PAIR_COMMAND = lazily(
    r"(?:(?:--set(?:-string)?[ =]|\bansible_|[\s\"'](?:-[DPe]|-{1,2}(?:data|form|var|d|F)[ =])|\b(?:put|write|POST|PUT) )[^\n]*"
    r"|\A|[?&;\"']|\s-[DP]|\b\w+=[^\s,(]+ |[^\s,(=:{] |\buser(?:name)?=[^\s,]+,)\Z"
)
"""A command or a line of an inventory that gives `name=value`."""
SQL = lazily(r"(?:(?i:with|encrypted|user|role|set|alter|create)[ \t=]+(?:\S{1,64}[ \t]+){0,2})\Z")

KNOWN_KEYS = lazily(
    r"(?:api|access|secret|private|encrypt(?:ion)?|sign(?:ing)?|master|auth|account|shared|client|license|service|deploy|ssh|webhook"
    r"|hmac|session|storage|app(?:lication)?|admin|root|security|integration|ingest|write|rest|server|crypt|cipher|aes|rsa|jwt"
    r"|cookie|token|user|subscription|function|consumer|partner|merchant|live|prod|nonce|loggedin|unseal|recovery|aes|hash"
    r"|fernet|password)(?:keys?|keystring|salt)[0-9a-z]{0,12}\Z"
)

CLOUD_KEYS = lazily(r"(?:primary|secondary)(?:master|readonlymaster)?key\Z")
"""Azure's; a database has a primary key, too, but none so long."""
WORD_BEFORE = lazily(
    r"(?:\A|[^A-Za-z])(?i:api|access|auth|authentication|refresh|bearer|bot|secret|personal|deploy|session|service|security|join"
    r"|registration|reset|verification|unseal|recovery|root|app|client|admin|license|licence|private|encryption|signing|seed) \Z"
)
"""What makes one name of `access token`."""

OTHER_NAMES = frozenset(
    """
    bos by cache cached cancel dedupe cancellation change cls color completion context continuation creation css dedup
    design end eos export foreign group hash host hot i18n idempotency import index input lock lookup map mask max
    min next num object output pad page pagination partition prev previous primary prompt public query registry
    resume route row sep shortcut sort special start starting stop sync syntax theme total translation unk
    """.split()  # noqa: SIM905
)
"""Words before `key`, `token` or `pass` that give it another meaning."""

NAME_WORDS = lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
PASS_OF = lazily(
    r"(?:db|remote|user|root|admin|my|smtp|mail|imap|pop|ldap|ftp|login|key|store|http|https|proxy|ssh|sql|bind|become|web"
    r"|basic|api|host)(?:pass|auth)\Z"
)
FOLDERS = frozenset({"pwd", "oldpwd"})
"""Names that a password shares with the current folder."""

ORDINARY = frozenset(
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

TALK = frozenset(
    """
    a an and any are at be been by can cannot change characters check confirm contain do enter failed field for forgot from has have
    if in incorrect input invalid is it least match may must my need new no not of on one or password passwords passphrase please
    required reset should that the this to too type use user username using valid was we will with wrong you your
    """.split()  # noqa: SIM905
)
"""Words of sentences about passwords, none of which is in a passphrase."""

CODE_LINE = lazily(
    r"[;{(,][ \t]*\Z|=>|->|\A[ \t]*(?:def|class|import|from|return|if|elif|else|for|while|with|try|except|const|let|var"
    r"|function|func|fn|use|package"
    r"|public|private|protected|static|interface|type|struct|enum|async|await|impl|module|namespace|@\w+|\}|\)|//|/?\*)(?![\w:=.-])"
)
"""A line of a program, not of a file of settings."""

LINE_END = lazily(r"\r?\n|\\+r?\\*n")
"""Where nothing of a line goes on, also in a text whose escapes are not decoded."""


def kind_of(match: re.Match[str]) -> str:
    return next(kind for kind in _TAILS if match[kind] is not None)


OPENS = lazily(r"(?:[bru@$]|rb)?(\"\"\"|\'\'\'|(?:\\{1,7}\"){3}|\\{0,7}[\"'`])")
HEADER_SIGN = (
    rf"(?:{QUOTE})?[ \t]{{0,5}}(?:[:=,]|=>|(?:{QUOTE})?,?\s{{0,40}}(?:{QUOTE})?[Vv]alue(?:{QUOTE})?[ \t]{{0,3}}[:=])"
    rf"[ \t]{{0,5}}(?:[bruf]?{QUOTE})?"
)
GAP = rf"(?:\r?\n{PRINTED}|\s){{1,40}}"
SECRET_WORDS = (
    r"pass|pwd|pw\b|secret|token|jwt|pat\b|key|cred|sess|\.sid|auth|cookie|phrase|mnemonic|salt|psk"
)
_SECRET_KEYS = lazily(SECRET_WORDS, re.IGNORECASE)


@lru_cache(maxsize=4_096)
def may_be_named(name: str) -> bool:
    return len(name) <= 200 and _SECRET_KEYS.search(name) is not None
