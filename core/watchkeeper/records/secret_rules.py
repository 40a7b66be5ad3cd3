"""The table of what is written around secrets: headers, cookies, commands, files and services.

A new row needs no other code. What has a form of its own is a row of `secret_shapes`, and a service whose keys
only its name tells is a word of `SERVICES` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from watchkeeper.records.secret_names import GAP, LINE_BREAK, QUOTE
from watchkeeper.records.secret_values import (
    is_basic,
    is_filled,
    is_given_alone,
)

_FLAGS = r"(?:-[\w-]+(?:=\S+)?[ \t]+)*"
_WORD = r"[^\s-]\S*[ \t]+"


def _with_option(name: str, letters: str) -> str:
    """Patterns of a command with an option, perhaps behind other words."""
    return rf"{name}[a-z-]* -{letters}|{name}[a-z-]*[ \t\\][^\r\n]* -{letters}"


COMMANDS: tuple[tuple[str, str, str], ...] = (
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


@dataclass(frozen=True, slots=True)
class Rule:
    """What is written around one kind of secret."""

    name: str
    near: str
    """Patterns as `any_of` takes them, one a line: one of them is in every text, and in every line of JSON, that holds
    such a secret. The expression is tried nowhere else."""
    expression: str
    """Its first group that matches is the secret."""
    check: Callable[[str], bool]
    """Whether that is one."""
    mask: str
    """What the mark in its place says: one of `KINDS`."""


_V = rf"(?:{QUOTE})?([^\s\"'\\`]{{6,256}})"
LOGGED_SPACE = r"(?:[ \t\r\n]|\\+[nrt])"
"""As a log of JSON has it."""
_G = rf"(?:{LOGGED_SPACE}|[^ \t\r\n:\"']+:[0-9]+[:-]|[0-9]+(?:\x{{e2}}\x{{86}}\x{{92}}|\\+u2192|\t|\\+t))+"
_STDIN = (
    "sudo -[A-Za-z]*S\npassword-stdin\npasswd-on-stdin\nrealm join\nwith-token\nchpasswd\npasswd --stdin\npassphrase-fd"
    "\n\\| su \n\\| cryptsetup \nkinit\nenv add \npass insert\ndata-file=-\nsecrets? (?:set|put|create|add) "
    "\nstdinpass\npass stdin\nlpass login\nvariable set"
)


def _is_basic_header(value: str) -> bool:
    return re.search("[A-Z0-9=]", value) is not None and is_basic(value)


RULES: tuple[Rule, ...] = (
    Rule(
        "HTTP basic authentication",
        r"asic[ \t][A-Za-z0-9+/\\]{6,}[A-Z0-9=]",
        r"(?<![A-Za-z])[Bb]asic[ \t]([A-Za-z0-9+/]{8,2048}={0,2})",
        _is_basic_header,
        "authorization",
    ),
    Rule(
        "cookie jar",
        r"(?:TRUE|FALSE)(?:\t|\\+t)[0-9]+(?:\t|\\+t)",
        r"\t(?:TRUE|FALSE)\t[0-9]{1,12}\t[^\t\s\\]{1,128}\t([^\s\\\"]{8,4096})",
        is_filled,
        "cookie",
    ),
    Rule(
        "credentials for Python Requests",
        r"auth(?:\\*(?:[\"'`]|u00(?:22|27|60)))*(?:[:=>]|[?.+]=|\\+u003[dDeE]) ?[\[(]",
        rf"\bauth(?:=|{QUOTE}:[ ]?|: ?)[\[(]\s{{0,20}}{QUOTE}[^\s\"']{{1,100}}{QUOTE},\s{{0,20}}{QUOTE}([^\s\"'\\]{{6,256}})",
        is_given_alone,
        "password",
    ),
    Rule(
        "AWS signature",
        "AWS4-HMAC-SHA256",
        r"(?:\bAWS4-HMAC-SHA256\b[^\n]{0,600}?Signature=)([0-9a-f]{64})",
        is_filled,
        "authorization",
    ),
    Rule(
        "value piped into a command",
        _STDIN,
        rf"\b(?:echo|printf)[ \t](?:-n[ \t]|'%s(?:\\{{1,4}}n)?'[ \t]|\\*\"%s(?:\\{{1,4}}n)?\\*\"[ \t])?(?:{QUOTE})?"
        rf"(?:(?<![:\w])[\w.-]{{1,64}}:(?=[^\n]{{1,300}}chpasswd))?([^\s\"'\\|:]{{6,256}})(?:{QUOTE})?[ \t]{{0,5}}\|[ \t]{{0,5}}"
        r"(?:(?:sudo[ \t])?(?:chpasswd|passwd[ \t]|su[ \t]|kinit|cryptsetup)|sudo[ \t]+-[A-Za-z]*S"
        r"|[^\n|]{1,200}(?:password-stdin|with-token|passphrase-fd|passwd-on-stdin|stdinpass|pass stdin"
        r"|realm join|lpass login|secrets? (?:put|set|create|add)|variable set|env add|pass insert|data-file=-))",
        is_given_alone,
        "password",
    ),
    Rule(
        "OpenSSL password",
        r"pass:[^ \t\r\n\"'\\]{4}",
        r"(?<=[\s\"'=])pass:([^\s\"'\\]{4,256})",
        is_given_alone,
        "password",
    ),
    Rule(
        "SQL password",
        r"(?:dentified|DENTIFIED)[ \t\\nr]+(?:(?:with|WITH)[ \t\\nr]+[^ \t\r\n\\]+[ \t\\nr]+)?(?:by|BY)[ \t\\nr]+\\*(?:[\"'`]|u00(?:22|27|60))",
        r"(?:identified|IDENTIFIED)\s{1,5}(?:(?:with|WITH)\s{1,5}\S{1,64}\s{1,5})?(?:by|BY)\s{1,5}\\{0,7}[\"']([^\s\"'`\\]{4,256})",
        is_given_alone,
        "password",
    ),
    Rule(
        "netrc",
        rf"(?:machine{_G}[^ \t\r\n\\]+{_G}(?:login|account|port|password)|login{_G}[^ \t\r\n\\]+{_G}password){_G}",
        rf"\bmachine{GAP}[^\s\\]{{1,200}}(?:{GAP}(?:login|account|port){GAP}[^\s\\]{{1,200}}){{0,3}}{GAP}password{GAP}([^\s\"\\]{{4,512}})"
        rf"|\blogin{GAP}[^\s\\]{{1,200}}{GAP}password{GAP}([^\s\"\\]{{4,512}})",
        is_filled,
        "password",
    ),
    Rule(
        "pgpass",
        r":(?:543[0-9]|6432|\*):[^:\s]+:[^:\s]+:[^ \t\r\n]",
        r"(?:\A|(?<=[\s\"'→+-])|(?<=[0-9]:))[\w.*-]{1,200}:(?:543[0-9]|6432|\*):[^:\s]{1,64}:[^:\s]{1,64}:([^\s\"'\\]{4,256})",
        is_filled,
        "password",
    ),
    Rule(
        "connection string with Pwd",
        "; ?(?:Pwd|PWD|pwd)(?:=|\\\\+u003[dD])\noracle:thin:",
        r"(?:; ?(?:Pwd|PWD|pwd)=\\{0,7}[\"']?|\boracle:thin:[^\s/@\"']{1,64}/)([^\s;\"'\\@]{4,256})",
        is_given_alone,
        "password",
    ),
    Rule(
        "psexec credentials",
        "[pP][sS][eE][xX][eE][cC]",
        rf"(?i:\bpsexec)[^\n]{{0,300}}?\s-[uU][ \t]+\S{{1,100}}[ \t]+-[pPw][ \t]*{_V}",
        is_given_alone,
        "password",
    ),
    Rule(
        "PowerShell secure string",
        "ConvertTo-SecureString",
        rf"ConvertTo-SecureString[ \t]+(?:-\w+[ \t]+){{0,3}}(?=\\*[\"']){_V}",
        is_given_alone,
        "password",
    ),
    Rule(
        "call with credentials",
        "UserPassword\\(\nuth\\(\\\\*[\"']\nuthentication\\(\\\\*[\"']\nbasic\\(\\\\*[\"']\nogin\\(\\\\*[\"']\nentials?\\(\\\\*[\"']",
        rf"(?:\b[Aa]uth|BasicAuth|basic_auth|UserPassword|basicAuth|\b[Ll]ogin|[Cc]redentials?|authenticate)"
        rf"\({QUOTE}[^\s\"'\\]{{1,100}}{QUOTE},\s?(?:Some\()?{QUOTE}([^\s\"'\\]{{6,256}})",
        is_given_alone,
        "password",
    ),
    Rule(
        "key in a URL",
        "\\?key=\n&key=\n\\?code=\n\\?auth=\n\\?appid=\n&appid=",
        r"[?&](?:key|code|auth|appid)=((?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{24,256})(?=[&\s\"'\\]|\Z)",
        is_given_alone,
        "password",
    ),
    Rule(
        "Vault unseal key",
        "operator unseal ",
        rf"operator unseal[ \t]+(?!-){_V}",
        is_given_alone,
        "password",
    ),
    Rule(
        "Sonar token",
        "[sS][oO][nN][aA][rR][._-]?[lL][oO][gG][iI][nN]",
        rf"(?i:sonar[._-]?login)(?:{QUOTE})?\s?(?:,|[:?]{{0,3}}=)\s?(?:{QUOTE})?((?:sq[a-z]_)?[A-Fa-f0-9]{{40}})",
        is_given_alone,
        "password",
    ),
    Rule(
        "ThingsBoard token",
        r"api\\*/v1\\*/[a-z0-9]{20}\\*/",
        r"/api/v1/((?=[a-z]*[0-9])[a-z0-9]{20})(?=/(?:telemetry|attributes|rpc|claim))",
        is_given_alone,
        "password",
    ),
    Rule(
        "TrueNAS key",
        "login_with_api_key",
        rf"login_with_api_key{QUOTE}[^\[\]\n]{{1,80}}\[\s?{_V}",
        is_given_alone,
        "password",
    ),
    Rule(
        "Jenkins crumb",
        "enkins-Crumb",
        rf"Jenkins-Crumb(?:{QUOTE})?[:=,]\s?(?:{QUOTE})?([a-f0-9]{{32,64}})",
        is_given_alone,
        "password",
    ),
    Rule(
        "password on the next line",
        r"assword [^\r\n\"\\]*:(?:[\r\n]|\\+[nr])",
        rf"assword [^\n\"\\]{{0,80}}:(?:{LINE_BREAK}){{1,3}}([A-Za-z0-9!-~]{{8,128}}?)(?={LINE_BREAK}|\Z|\\*\")",
        is_given_alone,
        "password",
    ),
    Rule(
        "connection string",
        ";[ ]?[Pp]assword=",
        r"(?i:;[ ]?password)=([^\s;\"'\\]{6,128})(?=;|\\|[\"']|\s|\Z)",
        is_given_alone,
        "password",
    ),
    Rule(
        "SQL password without quotes",
        "DENTIFIED BY [A-Za-z0-9]\ndentified by [A-Za-z0-9]*[0-9]",
        r"(?:IDENTIFIED BY (?!(?i:values|externally|globally|password|via|random)\b)|identified by (?=[^\s;]{0,60}[0-9]))"
        r"([^\s;\"'`\\]{6,128})(?=[\s;]|\\|\Z)",
        is_given_alone,
        "password",
    ),
)
"""A row for each; `Shape` is the row of what has a form of its own."""
