"""The patterns that are searched for through whole logs, in one pass."""

from __future__ import annotations

from watchkeeper.records.secret_names import SUFFIX
from watchkeeper.records.secret_near import FULL_NAME, NEAR_NAME, SERVICE_GAP, SERVICE_NAMES
from watchkeeper.records.secret_rules import COMMANDS, LOGGED_SPACE, RULES
from watchkeeper.records.secret_tables import ALIGNED_HINT

_Q = r"(?:\\*(?:[\"'`]|u00(?:22|27|60)))"
_EQUALS = r"(?:[:=>]|[?.+]=|\\+u003[dDeE])"
_ANY = f"(?:{_Q}|{LOGGED_SPACE})*"
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
    rf"{SUFFIX}(?:{_Q}|[\]\[)])*(?:[ \t]|\\+t)*"
    rf"(?:(?:{_EQUALS}(?:[ \t]|\\+t|{_EQUALS}|@?{_Q})*|[({{]{_Q}|,[ \t]*{_Q}+|-[ \t]+{_Q}+"
    rf"|:[ \t]*(?:Optional|SecretStr|[Ss]tr|&|const char|char)[^\r\n:]*=[ \t]*{_Q}*"
    rf"|,?{_ANY}[Vv]alue{_ANY}{_EQUALS}{_ANY}|:[ \t]*[|>]?[-+0-9]*{LOGGED_SPACE}+(?:[+-]{LOGGED_SPACE}*)?{_Q}*|[ \t]*(?:\|\|?|\?\?)=?[ \t]*{_Q}*"
    rf"|{_EQUALS}[ \t]*(?:\[{_ANY}|\({LOGGED_SPACE}*{_Q})|[ \t]\([^()\s]+\):[ \t]+|[ \t]?\.\.\.+[ \t]+|{_TELLS}){_VALUE}"
    rf"|(?:{_ANY}\x{{1b}}|{_ANY}\\+u001[bB]|[ \t]\{{[ \t]?get;|[ \t]*\x{{e2}}\x{{94}}|[ \t]*\\+u250[23])"
    rf"|{_TELLS}[A-Za-z]+[-_.][A-Za-z]+[-_.][A-Za-z]|{_FIELD_APART})"
)

_ASSIGNS_WORD = (
    rf"(?:{SUFFIX}(?:{_Q}|[\]\[)])*[ \t]*(?:[|]{LOGGED_SPACE}*|,[ \t]*{_Q}+|>{LOGGED_SPACE}*|\*\*[ \t]?:[ \t]*{_Q}*|[ \t][A-Za-z:]+(?:="
    rf"|\\+u003[dD]){_Q}[^>\r\n]*(?:>|u003[eE])|{_EQUALS}(?:[ \t]|{_EQUALS}|{_Q}|[\[|*]|</[a-z]+>|{LOGGED_SPACE})*(?:[bruf@]{_Q}+"
    rf"|(?:\[\])?[A-Za-z_.:]*\({_Q}+|\(?ConvertTo-SecureString[^\"'\\]*{_Q}+)?){_ANY_VALUE}"
    rf"|[ \t](?:(?:As[ \t])?[Ss]tring|\[\]byte)[ \t]*=|:[ \t]*(?:Optional|SecretStr|[Ss]tr|&|const char|char)[^\r\n:=]*=[ \t]*{_Q}+"
    rf"|{SUFFIX}(?:[({{]{_Q}+|:-){_ANY_VALUE}"
    rf"|{SUFFIX}{_Q}+[ \t]+[Vv]alue{_EQUALS}|[ \t]is(?:[ \t]set[ \t]to)?:?[ \t]{_Q}+{_ANY_VALUE})"
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
_USER_OPTION = (
    rf"(?:{_Q}|{LOGGED_SPACE}|[=,]|\\+u003[dD])*(?:[^ \t\r\n:\"'=\\-][^ \t\r\n:\"'=\\]*)?:[^ \t\r\n\"']"
)
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
        ALIGNED_HINT,
        rf"(?:_pepper|_PEPPER|_skey|_SKEY|pi_hash|PI_HASH){_Q}*[ \t]*{_EQUALS}",
        rf"\]=>{LOGGED_SPACE}+string\([0-9]",
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
        r"|-cookie(?:[ =]|\\+u003[dD])"
        r"| -b(?:[ =]?\\*[\"']|[ =]?\\+u002[27])[^ \t\r\n=\"']+(?:=|\\+u003[dD])"
    ],
    "commands": [
        rf"-user{_USER_OPTION}|-(?:auth|creds){_USER_OPTION}",
        *_SHORT_USER_OPTIONS,
        *(
            "create secret ",
            "secrets? (?:set|put|import|create|add) ",
            "vault kv p",
            "vault write",
        ),
        *(pattern for _, _, patterns in COMMANDS for pattern in patterns.split("|") if pattern),
    ],
    "files": [rf"kind{_ANY}:{_ANY}[Ss]ecret"],
    "near": [
        rf"(?:{NEAR_NAME})(?:[^A-Za-z\"\\\r\n]|[\"\\]+[ )\]]|\\+t)(?:[^\"\\\r\n]|\\+[\"'])*\"?"
        r"(?:[A-Z][A-Za-z0-9@!#$_.+-]*[0-9]|[0-9][A-Za-z0-9@!#$_.+-]*[A-Z])",
        rf"(?:{FULL_NAME})(?:(?:[ \t]|\\+t)+|[ \t]*[=:.-][ \t]*)(?:[A-Za-z_-]*[0-9][A-Za-z0-9_-]{{12}}|[A-Za-z]{{20}})",
        r"(?:oken|(?:pi|th|te|ss|et|er|se|ng|nt)key|_key|login|auth|unlock|activate|authenticate)[ \t]+"
        r"(?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-)",
        r"(?:nemonic|hrase|seed|Seed)[^\"\\\r\n]*\\*[\"'`][a-z]+(?: [a-z]+){11}",
    ],
    "fields": [
        rf"alue{_Q}*[ \t]*{_EQUALS}[ \t]*{_Q}*{_ANY_VALUE}{_LETTER}*{_Q}*[ ,;/]*{_ANY}{_NAME_FIELD}"
        rf"(?:{_ANY_TAILS})",
    ],
}
"""One of these is found in whatever `spans` finds something in, also in a line of JSON, where a quote is
`\\"` or `\\u0022`. By what finds it."""

_HEX_WORD = "(?:[0-9a-f]{16}|[0-9a-f]{8}-[0-9a-f]{4}-)"
_QUOTED = r"(?:\\+[\"'`]|['`])?"

TELLING["services"] = [
    rf"[A-Za-z]{_QUOTED}(?: ?[=:>(] ?| ){_QUOTED}{_HEX_WORD}|[g-zG-Z]-{_HEX_WORD}",
    # In a line of JSON, quotes without a backslash are its own, and most such values are ids.
    rf"(?:[^iI][A-Za-z]|[iI][A-Za-ce-z])\" ?[=:>] ?\"{_HEX_WORD}|[A-Za-z]\"?(?: [=:>] ?|[=:>] |=)\"{_HEX_WORD}",
    # Letters and digits, where a sign or a quote is before them; behind a word such as `key`, other groups find them.
    r"[A-Za-z] ?[=:] ?\\*[\"'`][A-Za-z]*[0-9][A-Za-z0-9]{12}|[A-Za-z]=[A-Za-z]*[0-9][A-Za-z0-9]{12}|[A-Za-z] [0-9][A-Za-z0-9]{14}",
]

TELLING["rules"] = [pattern for rule in RULES for pattern in rule.near.split("\n")]

CONFIRMING: dict[str, list[str]] = {
    "services": [
        rf"(?:^|[^A-Za-z]|\\+[nrt]){SERVICE_NAMES}[^\r\n/@#]{{0,{SERVICE_GAP + 6}}}[^A-Za-z0-9+/@#]"
        rf"(?:{_HEX_WORD}|[A-Za-z_]*[0-9][A-Za-z0-9_]{{10}}|[A-Za-z]{{20}}|[A-Za-z0-9_-]{{20}})"
    ]
}
"""What else is found where a pattern of the group is: the names of all services would make the search for all groups
slow."""
