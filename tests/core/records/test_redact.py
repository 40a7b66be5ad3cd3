"""No secret reaches a model or the store, and nothing else is changed."""

from __future__ import annotations

import base64
import json
import re
import string
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from benchmarks.redaction import Recall, by_run, corpus, forms, log_lines
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.proportion import in_proportion

from watchkeeper.records import secret_context
from watchkeeper.records.redact import Redactor, known_secrets
from watchkeeper.records.secret_names import KINDS
from watchkeeper.records.secret_rules import RULES, Rule
from watchkeeper.records.secret_search import TELLING
from watchkeeper.records.secret_shapes import SHAPES, Shape
from watchkeeper.records.secret_values import is_given_alone

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc\n-----END RSA PRIVATE KEY-----"
SHAPED = {
    "sk-ant-api03-" + "Ab1_" * 20: "anthropic-key",
    "sk-" + "Ab1c" * 12: "api-key",
    "sk-proj-" + "Ab1c" * 12: "openai-key",
    "sk-or-v1-" + "0a1b" * 16: "api-key",
    "ghp_" + "a1B2" * 9: "github-token",
    "github_pat_" + "a1B2" * 15: "github-token",
    "AKIAIOSFODNN7EXAMPLE": "aws-key",
    "xoxb-123456789012-abcdefGHIJ": "slack-token",
    "AIza" + "a1B2c" * 7: "google-key",
    "sk-proj-" + "aB-_" * 20: "openai-key",
    "ya29." + "a1B2" * 9: "google-token",
    "GOCSPX-" + "a1B2" * 7: "google-secret",
    "hooks.slack.com/services/T0001/B0001/XXXXabcdefgh": "slack-webhook",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123_-abc": "jwt",
    "gsk_" + "a1B2" * 13: "groq-key",
    "xai-" + "a1B2" * 20: "xai-key",
    "pplx-" + "a1B2" * 12: "perplexity-key",
    "SG." + "a1B2c" * 4 + "." + "a1B2_" * 8: "sendgrid-key",
    "dop_v1_" + "0a1b" * 16: "digitalocean-token",
    "shpat_" + "0a1b" * 8: "shopify-token",
    "hvs." + "a1B2" * 20: "vault-token",
    "AGE-SECRET-KEY-1" + "A1B2" * 14: "age-key",
    "sk_test_" + "a1B2" * 6: "stripe-key",
    "whsec_" + "a1B2" * 8: "stripe-secret",
    "r8_" + "a1B2" * 9: "replicate-token",
    "tvly-dev-" + "a1B2" * 8: "tavily-key",
    "nvapi-" + "a1B_" * 16: "nvidia-key",
    "dckr_pat_" + "a1B-" * 7: "docker-token",
    "ATATT3xFfGF0" + "a1B_" * 40 + "=1A2B3C4D": "atlassian-token",
    "glsa_" + "a1B2" * 8 + "_0a1b2c3d": "grafana-token",
    "lin_api_" + "a1B2" * 10: "linear-key",
    "ntn_" + "a1B2" * 12: "notion-token",
    PEM: "private-key",
}


@pytest.mark.parametrize("secret", SHAPED)
def test_what_has_the_shape_of_a_key_is_replaced(secret: str) -> None:
    redactor = Redactor({})
    assert redactor.text(f"before {secret} after") == f"before [redacted:{SHAPED[secret]}] after"
    assert redactor.text(f'KEY="{secret}"') == f'KEY="[redacted:{SHAPED[secret]}]"'
    assert redactor.count == 2


def test_values_of_secret_variables_are_replaced_by_their_name() -> None:
    environ = {
        "DB_PASSWORD": "correct horse",
        "API_TOKEN": "correct horse battery",
        "HOME": "/home/me",
        "A_KEY": "short",
    }
    redactor = Redactor(environ)
    assert (
        redactor.text("correct horse battery, correct horse")
        == "[redacted:API_TOKEN], [redacted:DB_PASSWORD]"
    )
    assert redactor.text("short /home/me") == "short /home/me"


def test_what_is_known_to_be_secret_is_replaced_whatever_its_name() -> None:
    servers = {
        "git": {"command": "x", "env": {"GIT_TOKEN": "token-of-git", "MODE": "read-only-mode"}},
        "web": {
            "url": "http://x/?api_key=in-the-query&page=number-one",
            "headers": {"Authorization": "Bearer abc-def-ghi"},
        },
        "run": {
            "command": "x",
            "args": [
                "--root",
                "/a/long/path",
                "--api-key",
                "of-the-flag",
                "--token=of-the-other",
                "H: x-value",
            ],
        },
        "odd": {"command": "x", "args": 7, "env": [], "headers": None, "url": "http://[", "more": {}},
    }
    environ = {"PLAIN": "plain-value"}
    redactor = Redactor(
        environ, known_secrets({"mcp_servers": servers, "anthropic": {"api_key_env": "PLAIN"}}, environ)
    )
    assert redactor.text("plain-value token-of-git") == "[redacted:PLAIN] [redacted:git.GIT_TOKEN]"
    assert (
        redactor.text("Bearer abc-def-ghi, read-only-mode")
        == "Bearer [redacted:web.Authorization], read-only-mode"
    )
    assert redactor.text("in-the-query number-one") == "[redacted:web.api_key] number-one"
    assert (
        redactor.text("of-the-flag of-the-other x-value")
        == "[redacted:run.api-key] [redacted:run.token] x-value"
    )
    assert known_secrets({"mcp_servers": "none", "anthropic": []}, environ) == {}


@pytest.mark.parametrize(
    ("before", "secret", "name"),
    [
        ("Authorization: Bearer ", "s0me-opaque_token.of~no/shape+at=all"[:-4], "bearer-token"),
        ("AccountName=me;AccountKey=", "Ab1+" * 21 + "==", "azure-key"),
    ],
)
def test_what_follows_a_telling_word_is_replaced_and_the_word_kept(
    before: str, secret: str, name: str
) -> None:
    assert Redactor({}).text(f"{before}{secret}; more") == f"{before}[redacted:{name}]; more"
    line = json.dumps({"header": f"{before}{secret}"}).encode()
    assert secret.encode() not in Redactor({}).line(line)


@pytest.mark.parametrize(
    "text", ["Bearer $TOKEN", "a bearer of extraordinarily-good-tidings", "Bearer <your token goes here 1>"]
)
def test_talk_of_bearers_is_left_alone(text: str) -> None:
    assert Redactor({}).text(text) == text


def test_a_known_value_is_found_inside_a_url() -> None:
    redactor = Redactor({"DB_PASSWORD": "pl4in/value+12345?x y&z"})
    assert (
        redactor.text("http://h/?p=pl4in%2Fvalue%2B12345%3Fx%20y%26z") == "http://h/?p=[redacted:DB_PASSWORD]"
    )
    assert redactor.text("p=pl4in%2Fvalue%2B12345%3Fx+y%26z&q=1") == "p=[redacted:DB_PASSWORD]&q=1"
    assert Redactor({"DB_PASSWORD": "no \udcff text at all"}).text("no text") == "no text"


@pytest.mark.parametrize("before", ["", "x", "user:", "a long text before it: "])
def test_a_known_value_is_found_in_base64_wherever_it_lies(before: str) -> None:
    value = "correct horse ~battery?? staple"
    redactor = Redactor({"MY_PASSWORD": value})
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(f"{before}{value} after".encode()).decode()
        clean = redactor.text(f"Basic {text}")
        assert "[redacted:MY_PASSWORD]" in clean
        assert len(clean) < len(text)


def test_the_password_of_a_url_is_replaced_and_the_rest_of_it_stays() -> None:
    redactor = Redactor({})
    assert (
        redactor.text("postgres://app:hunter2x@db:5432/x")
        == "postgres://app:[redacted:url-password]@db:5432/x"
    )
    assert redactor.text("https://:hunter2x@[::1]/") == "https://:[redacted:url-password]@[::1]/"
    assert redactor.line(b'{"u": "amqp://a:hunter2x@q"}') == b'{"u": "amqp://a:[redacted:url-password]@q"}'
    for text in (
        "postgres://user:password@localhost", "http://$USER:$PASSWORD@x", "http://a:${SECRET}@x", "http://<user>:<password>@x",
        "http://host:8080/@scope/name", "see http://host:8080, mail me@x.org", "git@github.com:me/it.git",
    ):  # fmt: skip
        assert redactor.text(text) is text


@pytest.mark.parametrize("value", ['s3cret"with\\all/of+it', "/7Zt+q/LwpR3kX29aB", "~/7Zt+q/LwpR3kX29aB"])
def test_a_known_value_is_found_in_json_in_json_with_escaped_slashes_and_in_the_path_of_a_url(
    value: str,
) -> None:
    redactor = Redactor({"MY_SECRET": value})
    twice = json.dumps(json.dumps({"a": value}))
    slashed = json.dumps({"a": value}).replace("/", "\\/")  # as PHP writes it
    for text in (
        twice,
        json.dumps(twice),
        slashed,
        "https://h/" + quote(value),
        "https://h/" + quote(value, safe=""),
    ):
        assert "[redacted:MY_SECRET]" in redactor.text(text)
        assert b"[redacted:MY_SECRET]" in redactor.line(json.dumps({"m": text}).encode())


def test_a_secret_is_found_as_it_stands_inside_json_too() -> None:
    redactor = Redactor({"MY_SECRET": 'with "quotes" and \\'})
    assert "quotes" not in redactor.text(json.dumps({"a": 'with "quotes" and \\'}))


@pytest.mark.parametrize(
    "text",
    [
        "import sklearn  # sk-learn-is-a-library-with-a-long-dashed-name",
        "task-0123456789abcdef0123456789",
        "ghp_short, AKIA, eyJ.eyJ.x, xox, sk-, sk-ant-",
        "SSH_AUTH_SOCK=/tmp/ssh-XXXX/agent.1 password required",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    redactor = Redactor(
        {"SSH_AUTH_SOCK": "/tmp/ssh-XXXX/agent.1", "AUTH_MODE": "required", "TOKEN_LIMIT": "10000000"}
    )
    assert redactor.text(text) is text
    assert redactor.count == 0


def test_blocks_are_searched_throughout_but_signatures_and_data_are_left() -> None:
    key = "sk-ant-" + "Ab1_" * 20
    blocks = [
        {"type": "thinking", "thinking": f"the key is {key}", "signature": key},
        {"type": "redacted_thinking", "data": key},
        {
            "type": "tool_use",
            "id": "t",
            "name": "bash",
            "input": {"command": f"curl -H {key}", "list": [key, 1, None]},
        },
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": key}]},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": key}},
    ]
    before = json.dumps(blocks)
    clean = Redactor({})(blocks)
    assert json.dumps(blocks) == before
    assert clean[0]["signature"] == clean[1]["data"] == clean[4]["source"]["data"] == key
    for part in ("thinking", "tool_use", "tool_result"):
        block = next(block for block in clean if block["type"] == part)
        block.pop("signature", None)
        assert key not in json.dumps(block)
        assert "[redacted:anthropic-key]" in json.dumps(block)


def test_a_key_in_a_field_called_data_of_a_tool_call_is_replaced() -> None:
    clean = Redactor({})({"type": "tool_use", "input": {"data": "sk-ant-" + "Ab1_" * 20}})
    assert clean["input"]["data"] == "[redacted:anthropic-key]"


def test_what_holds_no_secret_is_the_same_object() -> None:
    blocks = [{"type": "text", "text": "plain"}, {"type": "tool_use", "input": {"a": [1, 2.5, None, True]}}]
    assert Redactor({"A_TOKEN": "12345678x"})(blocks) is blocks


pieces = [
    "value-one",
    "one-value-two",
    "redacted",
    "[redacted:",
    "MY_TOKEN",
    "sk-",
    "eyJ",
    " ",
    "\n",
    "-",
    "x1",
]
words = st.sampled_from([*SHAPED, *pieces])


@given(st.lists(words, max_size=12), st.text(max_size=20))
def test_redacting_twice_changes_nothing_more(parts: list[str], noise: str) -> None:
    redactor = Redactor(
        {
            "MY_TOKEN": "value-one",
            "OTHER_SECRET": "one-value-two",
            "ODD_KEY": "redacted",
            "NAME_KEY": "MY_TOKEN",
        }
    )
    once = redactor.text(noise.join(parts))
    assert redactor.text(once) == once


HARD = [
    "://",
    "://a:",
    "://a:aaaaaa",
    "ecretAccessKey=",
    "sk-",
    "sk-ab-",
    "sk-" + "a" * 30 + " ",
    "eyJ",
    "eyJaaaaaaaaaaaa-",
    "A",
    "-----BEGIN PRIVATE KEY-----",
    "gh",
    "AKIA",
    " ",
]


@pytest.mark.parametrize("piece", HARD)
def test_no_text_takes_long(piece: str) -> None:
    redactor = Redactor({"MY_TOKEN": "value-one"})

    assert in_proportion(lambda size: redactor.text(piece * (size // len(piece))), 62_500)


ODD_VALUE = 'pä/"s+s\\wörd'


WAYS = ["as it is", "by number", "BY NUMBER", "slashes escaped"]
URL = "postgres://app:hunter2x@db.internal/main"


@given(st.sampled_from([*SHAPED, ODD_VALUE, URL]), st.lists(st.sampled_from(WAYS), min_size=1, max_size=5))
def test_a_secret_is_found_in_a_line_of_json_however_its_letters_are_written(
    secret: str, ways: list[str]
) -> None:
    def written(place: int, letter: str) -> str:
        way = ways[place % len(ways)]
        plain = json.dumps(letter, ensure_ascii=False)[1:-1]
        number = f"{ord(letter):04x}"
        slashed = r"\/" if letter == "/" else plain
        return dict(zip(WAYS, [plain, rf"\u{number}", rf"\u{number.upper()}", slashed], strict=True))[way]

    letters = "".join(written(place, letter) for place, letter in enumerate(secret))
    line = f'{{"said": "before {letters} after"}}'
    assert secret in json.loads(line)["said"]
    clean = Redactor({"MY_TOKEN": ODD_VALUE}).line(line.encode())
    assert secret not in json.loads(clean)["said"]


@pytest.mark.parametrize(
    "line",
    [r'{"a": "pä\/\"s+s\\wörd"}', r'{"a": "p\u00e4/\"s+s\\w\u00F6rd"}', r'{"a": "pä/\u0022s+s\\wörd"}'],
)
def test_a_value_is_found_as_other_writers_of_json_escape_it(line: str) -> None:
    assert json.loads(Redactor({"MY_TOKEN": ODD_VALUE}).line(line.encode())) == {"a": "[redacted:MY_TOKEN]"}


def test_a_line_that_is_nested_too_deeply_loses_its_secrets_all_the_same() -> None:
    line = "[" * 700 + '"sk-' + "Ab1c" * 12 + '"' + "]" * 700
    assert b"[redacted:api-key]" in Redactor({}).line(line.encode())


def test_of_the_planted_secrets_95_percent_are_taken_out_by_occurrence_and_by_kind() -> None:
    """The whole corpus and an import are `python benchmarks/redaction.py`."""
    planted, environ = corpus(seed=5, each=6)
    redactor = Redactor(environ)
    lines = zip(*[iter(log_lines(planted))] * 2, strict=True)
    clean = ("".join(redactor.line(line.encode()).decode() for line in pair) for pair in lines)
    of_logs = Recall.of(
        (one, not any(form in text for form in forms(one.secret)))
        for one, text in zip(planted, clean, strict=True)
    )
    for recall in (of_logs, Recall.of(by_run(planted, redactor))):
        assert recall.by_occurrence >= 0.95, recall.missed
        assert recall.by_kind >= 0.95, recall.missed


NO_SECRETS = r"""
password: str
The type of a row is identified by row_key in this table.
>>> settings.PUBKEY_FINGERPRINT
page_token: 4Oo0e8585ftk6SU5g1L_KpDJpQoa4sw0HcqtpyJo
dedupe_key=012adaf76add05c18974ac5597cf7b67f727811a
API_KEY=abcdefghij
WATCHKEEPER_SESSION=k7qz2mxw9ltb4vnc
password: string;
token: str | None = None
api_key: Optional[str] = None
password = get_password()
self.password = password
password=password, token=token
token = response.json()["token"]
secret = hashlib.sha256(data).hexdigest()
api_key = os.environ["API_KEY"]
const token = process.env.GITHUB_TOKEN;
API_KEY=${API_KEY}
API_KEY=$API_KEY
PASSWORD=$(cat /run/secrets/password)
DB_PASSWORD=***
DB_PASSWORD=<password>
DB_PASSWORD=your-password-here
DATABASE_PASSWORD=changeme
def load_private_key(self) -> Ed25519PrivateKey | X25519PrivateKey | Ed448PrivateKey: ...
docker run -p 8080:80 Image2Name3 && git log -p 4Fa9bC2d1E0f7A6b
tokenizer = get("Qwen2.5-7B-Instruct-GPTQ-Int4")
cache_key_4Fa9bC2d1E0f7A6b4Fa9bC2d1E0f7A6b toolu_01Ab2Cd3Ef4Gh5Ij6Kl7Mn8
auth 2 of 3 passed; login Utf8Decoder
OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxx
GH_TOKEN="github_pat_xxxx"
STRIPE_API_KEY=phc_your_production_key
password: "{{ vault_password }}"
token: ${{ secrets.GITHUB_TOKEN }}
"password": "Please enter your password"
"token": "access_token"
PASSWORD_FILE=/run/secrets/db_password
SSH_KEY=~/.ssh/id_ed25519
PWD=/home/me/project2
sort_key = row2.key
cache_key = "user:profile:12345"
next_token: "abc123def456"
input_tokens: 150000, "output_tokens":123456,
max_tokens = 100000
commit 3f786850e387550fdab836ed7e6dc881de23001b
"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"id": "123e4567-e89b-12d3-a456-426614174000", "sessionId": "123e4567-e89b-12d3-a456-426614174000"
--- PASS: TestToken2 (0.00s)
Authorization: Bearer $TOKEN
Authorization: Bearer <token>
curl -u "$USER:$PASSWORD" https://x
docker run -u 1000:1000 image
Cookie: theme=dark; lang=en
def test_password_reset_2(token: str, secret: bytes) -> None:
the password must have at least 8 characters
cache key 3f786850e387550fdab836ed7e6dc881de23001b
the key 123e4567-e89b-12d3-a456-426614174000 is taken
pod/web-secret-5f6d8c7b9c-x2x4z is running
partition_key=k3x9k3x9k3x9k3x9k3x9k3x9
ssh key AAAAC3NzaC1lZDI1NTE5AAAAIGqq0xYz1Ab2Cd3Ef4
S3 key: uploads-2026-11-23-a1b2c3d4e5f6
job_key: 123e4567-e89b-12d3-a456-426614174000
"password": "Wachtwoord"
"password": "Passwort"
password: PasswordField
password: string | undefined
existingSecret: web-credentials
secret: gateway-tls
mysql -u root -p billing
echo "$DB_PASSWORD" | docker login -u ci --password-stdin
vault login -method=oidc
CREATE INDEX idx_password ON sessions (password);
credentials: AccessTokenProvider | AsyncAccessTokenProvider | None
credentials: z.string().min(8),
is used for the username and password quoting. For the joint
if token.value == "trimmed":
docker run -u 1000 -p 8080:80 image
[redacted:token] and password=[redacted:password]
sentry event id: 123e4567-e89b-12d3-a456-426614174000
wandb commit 36dc22211c2f909a0e37e9aef1c390702107f98a
cd wandb && git checkout 36dc22211c2f909a0e37e9aef1c390702107f98a
"wandb": {"sha256": "36dc22211c2f909a0e37e9aef1c390702107f98a36dc22211c2f909a0e37e9ae"}
id='databricks-qwen3-next-80b-a3b-instruct'
github.com/acme/36dc22211c2f909a0e37e9aef1c390702107f98a
image: postman/newman@sha256:36dc22211c2f909a0e37e9aef1c390702107f98a36dc22211c2f909a0e37e9ae
"algolia": "<your key>"
findl = 36dc222
<secret>{id}</secret>
"""


@pytest.mark.parametrize("text", [line for line in NO_SECRETS.splitlines() if line])
def test_code_placeholders_hashes_and_ids_are_left_alone(text: str) -> None:
    redactor = Redactor({})
    for form in (text, f"first\n{text}\nlast", json.dumps({"a": text})):
        assert redactor.text(form) is form
    assert redactor.line(json.dumps({"a": text}).encode()) == json.dumps({"a": text}).encode()


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("/Xk3a9Qz+Lm/7dWpR2sT1vYb", True),
        ("/x9Kd82mZq4Tn5Lw=", True),
        ("~/x9Kd82mZq4Tn5L", True),
        ("/pa$$w0rd!x", True),
        ("/home/me/.config/gcloud/key.json", False),
        ("/run/secrets/db_password", False),
        ("~/.ssh/id_ed25519", False),
        ("/nix/store/8x1gkz7aq3vj2c9d0w5y4s6r-openssl/key.pem", False),
    ],
)
def test_a_value_that_begins_like_a_path_is_a_secret_unless_it_is_one(value: str, is_secret: bool) -> None:
    assert (
        Redactor({"MY_SECRET": value}).text(f"it is {value}, is it?") != f"it is {value}, is it?"
    ) is is_secret


@pytest.mark.parametrize("name", ["MYSQL_PWD", "REDIS_PASS", "GITHUB_PAT", "DB_PW", "SSHPASS"])
def test_variables_with_short_names_of_secrets_are_taken(name: str) -> None:
    assert Redactor({name: "correct horse", "OLDPWD": "/home/me/x", "COMPASS": "north-east"}).text(
        "correct horse /home/me/x north-east"
    ) == (f"[redacted:{name}] /home/me/x north-east")


def test_the_password_of_a_variable_that_holds_a_url_is_known_elsewhere_too() -> None:
    assert (
        Redactor({"BROKER": "amqp://app:n1ghtf4ll@q/"}).text("it is n1ghtf4ll") == "it is [redacted:BROKER]"
    )


@given(
    st.binary(max_size=90),
    st.binary(max_size=90),
    st.sampled_from([60, 64, 76]),
    st.sampled_from(["\n", "\r\n", "\n    ", "\\n"]),
)
@example(b"\0" * 33, b"", 64, "\n")
def test_a_known_value_is_found_in_wrapped_base64(
    before: bytes, after: bytes, width: int, between: str
) -> None:
    value = "correct horse ~battery?? staple, and some more of it so that it goes over a line"
    redactor = Redactor({"MY_PASSWORD": value})
    text = base64.b64encode(before + value.encode() + after).decode()
    wrapped = between.join(text[at : at + width] for at in range(0, len(text), width))
    clean = redactor.text(f"$ base64 file\n{wrapped}\n$")
    assert "[redacted:MY_PASSWORD]" in clean
    middle = base64.b64encode(b"\0" * (len(before) % 3) + value.encode()).decode()[8:40]
    assert middle not in re.sub(r"\s|\\n", "", clean)
    assert redactor.text(clean) == clean


NAMED = [
    "DATABASE_PASSWORD=hunter2xyz",
    'password: "hunter2xyz"',
    "curl -u me:hunter2xyz x",
    "Cookie: session=hunter2xyz",
    "--token=hunter2xyz9",
]


@given(st.sampled_from(NAMED), st.lists(st.sampled_from(WAYS), min_size=1, max_size=5))
def test_a_named_secret_is_found_in_a_line_of_json_however_its_letters_are_written(
    text: str, ways: list[str]
) -> None:
    def written(place: int, letter: str) -> str:
        plain = json.dumps(letter, ensure_ascii=False)[1:-1]
        number = f"{ord(letter):04x}"
        return dict(zip(WAYS, [plain, rf"\u{number}", rf"\u{number.upper()}", plain], strict=True))[
            ways[place % len(ways)]
        ]

    line = f'{{"said": "{"".join(written(place, letter) for place, letter in enumerate(text))}"}}'
    assert json.loads(line)["said"] == text
    assert "hunter2xyz" not in json.loads(Redactor({}).line(line.encode()))["said"]


@pytest.mark.parametrize("text", [*NAMED, "Authorization: Basic dXNlcjpodW50ZXIyeHl6Nzc="])
def test_a_named_secret_that_is_being_written_is_not_shown_in_part(text: str) -> None:
    redactor = Redactor({})
    for end in range(len(text) + 1):
        shown = redactor.streamed(f"Then it says {text[:end]}")
        assert "hunter" not in shown
        assert "dXNlcj" not in shown


ADVERSARIAL = [
    "PRIVATE KEY " + "Ab1+" * 12 + "1\t2\t",
    "password: |\n | is ",
    "echo a:b" + "c" * 9 + " | ",
    "password=", "password=\"", "password: '", "password=a1", "PASSWORD=a1b2c3 ", '\\"password\\": \\"', "token ", "--token ", "-u a:b1cd ",
    "curl -u ", "Authorization: ", "Authorization: Basic ", "Cookie: a=b;", "Basic QWxh", "machine a login b password ", "kind: Secret\n",
    "kind: Secret\ndata:\n  a: b\n", "mysql -u a ", "sshpass -p ", "eyJabc.", "MTk4", "://a:", "\\", '"', "=", "a" * 99 + "=", "key=key",
    "name: A_TOKEN\n  value: ", "<password>", "identified by '", "AWS4-HMAC-SHA256 ", "\tTRUE\t/\tTRUE\t1\ta\t", "x:5432:a:b:", "name: A_KEY ", "value: abcdef1 name: ", "password,a\nb,c\n", "password  x\n--- ---\n",
    "echo abcdefg | ", "psexec -u me -p ", "assword x:\n", ";password=", "?key=a1", "login('a', '", "sonar.login=", "IDENTIFIED BY ", "password (x): ",
    "password for a b is ", "sudo x ", "INSERT INTO t (password) VALUES ", "$6$a$", "A  B  TOKEN\n", "AA ", 'key = "a1b2c3d4" + ', "secret: |\n  " + "Ab1+" * 15 + "\n  ", "password=a1b2c3d4\\=",
    "api_keys:\n  - a1b2c3d4e5f6a7b8\n", "://a:b@",
    "wandb ", "wandb a1b2c3d4e5f6 ", "algolia key: ", "<secret>{", "token - 'a1B2c3D4e5F6g7' ",
]  # fmt: skip


UNSEEN_FORMS = [
    "\x1b[32mHF_TOKEN\x1b[0m=\x1b[33m{}\x1b[0m",
    "I set API_TOKEN to `{}` in the deployment.",
    'ENV["API_TOKEN"] ||= "{}"',
    "│ API_TOKEN │ {} │",
    'public string ApiToken {{ get; set; }} = "{}";',
    "setenv API_TOKEN {}",
    "+ password: |\n+   {}",
    "keytool -genkey -storepass {} -keypass {} -alias a",
    'std::string api_token{{"{}"}};',
    "API_TOKEN\t{}",
    "Api Token ....... {}",
    'API_TOKEN = (\n    "{}"\n)',
    "api_token: &anchor {}",
    '["api_token"]=>\n  string(20) "{}"',
    "NAME      TOKEN     AGE\nci        {}  3d",
    "window.__TOKEN__ = '{}';",
]


@pytest.mark.parametrize("form", UNSEEN_FORMS)
def test_a_value_is_taken_out_of_output_and_code_that_names_it(form: str) -> None:
    value = "q7Zk2mXw9LtB4vNc8RyD"
    text = form.replace("{}", value).replace("{{", "{").replace("}}", "}")
    assert value not in Redactor({}).text(text)
    assert value.encode() not in Redactor({}).line(json.dumps({"said": text}).encode())


@pytest.mark.parametrize(
    "form",
    ["{n} {v}", "{n}={v}", "{N}_KEY: '{v}'", '"{n}_key": "{v}"', "{n}-secret-{v}", "use {n} token {v}."],
)
@pytest.mark.parametrize("service", ["wandb", "algolia", "findl"])
@given(seed=st.integers(0, 2**32))
def test_a_key_without_a_form_is_found_behind_the_name_of_its_service(
    service: str, form: str, seed: int
) -> None:
    random = Random(seed)
    value = random.choice(
        [f"{random.getrandbits(128):032x}", str(UUID(int=random.getrandbits(128), version=4))]
    )
    text = form.format(n=service, N=service.upper(), v=value)
    redactor = Redactor({})
    assert value not in redactor.text(text)
    line = json.dumps({"said": f"first\n{text}\nlast"}).encode()
    assert redactor.suspects(line)
    assert value.encode() not in redactor.line(line)


@pytest.mark.parametrize("between", [" | ", "\nsent ", "') and then ('", " → "])
def test_a_random_value_is_taken_out_wherever_else_it_stands_in_the_text_that_names_it(between: str) -> None:
    value = "q7Zk2mXw9LtB4vNc8RyD"
    text = f"api_token = '{value}'{between}{value} end; x{value}y"
    assert Redactor({}).text(text).count("[redacted:secret]") == 2
    assert f"x{value}y" in Redactor({}).text(text), "a part of a longer word"


@pytest.mark.parametrize("piece", ADVERSARIAL)
def test_a_text_takes_time_in_proportion_to_its_length(piece: str) -> None:
    redactor = Redactor({"MY_TOKEN": "value-one"})

    def redact(size: int) -> None:
        redactor.text((piece * (size // len(piece) + 1))[:size] + " AKIAIOSFODNN7EXAMPLE")

    assert in_proportion(redact, 6_250)


_KEY_LINES = [chr(65 + at) + "q7Zt/9Lw" * 7 + "pR3+kX2" for at in range(4)]
_V = "t7Qz9LmX2vKe"
_LONG = "Zk9qL2x/Rv7" * 6 + "Ab"
BY_STRUCTURE = {
    f"api_keys:\n  - a1B2c3D4e5F6g7H8\n  - {_V}": _V,
    f"secret: |\n  {_LONG[:64]}\n  {_LONG[:64]}\n  {_V}8q9W=\nnext: 1": f"{_V}8q9W",
    f'KEY="a"\nSIGNING_KEY="{_LONG[:64]}\n{_LONG[::-1][:64]}"\n': _LONG[::-1][:64],
    f'api_key = "x7Kq9Lm2" + "{_V}"': _V,
    f'password = "x7Kq9Lm2\\"{_V}"': _V,
    f"API_KEY=x7Kq9Lm2x7Kq9Lm2\\\n{_V}\n": _V,
    "postgres://app:p5S1@ZEzS5Vlb@db:5432/x": "ZEzS5Vlb",
    "const url = `postgres://app:ZEzS5Vlb7428@${host}/db`": "ZEzS5Vlb7428",
    "Config(user=bob, password=harbor_4929_walnut, host=db)": "harbor_4929_walnut",
    "bob@h's password: Harbor-Walnut-4929\n": "Harbor-Walnut-4929",
    "DB_PASSWORD=secret123": "secret123",
    "API_SECRET=abc123def456": "abc123def456",
    "API_TOKEN=0123456789abcdef0123456789abcdef": "0123456789abcdef",
    "GMAIL_PASSWORD=hyto vpsg oxme azph\n": "hyto vpsg oxme azph",
    "a=1\0DB_PASSWORD=harbor_4929_walnut\0b=2": "harbor_4929_walnut",
    "redirect=%2Fcb%3Faccess_token%3D5bm7gzbk8JHYNJlm%26x%3D1": "5bm7gzbk8JHYNJlm",
    f"{_KEY_LINES[2]}\n    13→{_KEY_LINES[3]}\n    14→-----END RSA PRIVATE KEY-----": _KEY_LINES[2],
    f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{_KEY_LINES[0]}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----": _KEY_LINES[
        0
    ],
    "tls: "
    + base64.b64encode(
        f"-----BEGIN EC PRIVATE KEY-----\n{_KEY_LINES[0]}".encode()
    ).decode(): "cTdadC85THdxN1p0",
    f"    client-key-data: {'Zk9' + 'qL2x/Rv7' * 12}\n": "qL2x/Rv7" * 12,
    f"db_password: |\n  {_V}\n": _V,
    f"api_token: >-\n    {_V}\nnext: 1": _V,
    f"- name: VAULT_TOKEN\n  value: {_V}": _V,
    f"set -gx REDIS_PASSWORD {_V}": _V,
    f'<property name="dbPassword">{_V}</property>': _V,
    f"process.env.AUTH_TOKEN || '{_V}'": _V,
    f"| `API_TOKEN` | `{_V}` |": _V,
    f"the admin password is {_V}": _V,
    f"LDAP_BIND_PW={_V}": _V,
    f"SMTP_PASS=Summer.rain{_V[:1]}482": f"Summer.rain{_V[:1]}482",
    f"https://{_V * 2}@git.example.com/x.git": _V * 2,
    f"db.example.com:*:app:me:{_V}": _V,
    f"Server=h;Uid=u;Pwd={_V};Port=1": _V,
    f"Driver={{ODBC}};UID=u;PWD='{_V}'": _V,
    f"jdbc:oracle:thin:scott/{_V}@//h:1521/s": _V,
    "tool --db-password=Summer!rain482 run": "Summer!rain482",
    "config/.env:12:API_KEY=Summer_rain482, then": "Summer_rain482",
    f"curl -su me:{_V} https://x": _V,
    "mysql -u root -pswordfishes app": "swordfishes",
    f"echo {_V} | docker login -u me --password-stdin": _V,
    f"echo 'me:{_V}' | sudo chpasswd": _V,
    f"smbclient //h/s -U me%{_V}": _V,
    f"keytool -list -storepass {_V}": _V,
    f"unzip -P {_V} a.zip": _V,
    f'Client("AC{"0a1b" * 8}", "{"9c8d" * 8}")': "9c8d" * 8,
    f"https://f.azurewebsites.net/api/x?a=1&code={_V * 4}": _V * 4,
    "access_token$production$a1b2c3d4e5f6g7h8$" + "0a1b" * 8: "0a1b" * 8,
    "pat" + "aB3dE6gH9jK2mN"[:14] + "." + "0a1b" * 16: "0a1b" * 16,
    # No rule knows these names, commands and calls: the words around them tell.
    f"name,value\nACME_API_KEY,{_V}": _V,
    f"| ACME_KEY | {'0a1b' * 8} |": "0a1b" * 8,
    f"acme.openai.key={'0a1b' * 8}": "0a1b" * 8,
    "ACME_RECORD_KEY=6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e": "6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e",
    f"(401): db_password={_V} is not valid": _V,
    f"acmectl put /db/password {_V}": _V,
    "acme set token " + "0a1b" * 10: "0a1b" * 10,
    "acme auth " + "0a1b" * 10: "0a1b" * 10,
    "page.getByLabel('Password').fill('Harbor_4021')": "Harbor_4021",
    "proxy_password Harbor_4021": "Harbor_4021",
    'Dim password As String = "Harbor_4021"': "Harbor_4021",
    'NSString *apiSecret = @"Harbor_4021"': "Harbor_4021",
    "Passwort: Harbor_4021": "Harbor_4021",
    "ldap.bind.credentials=Harbor.4021": "Harbor.4021",
    f"Mnemonic.fromPhrase('{'zoo abuse wolf ' * 4}zoo')": "zoo abuse wolf zoo",
    f"acme_api_{_V * 2}": _V * 2,
    f"BBDC-{_V * 4}-{_V}": f"{_V}-{_V}",
    f'ACME_TOKEN ?= "{_V}"': _V,
    f'acme_token :::= "{_V}"': _V,
    f'$acmeToken .= "{_V}";': _V,
    f"<acmeToken>\n    {_V}\n</acmeToken>": _V,
    f"acme SECRET {'0a1b' * 10}": "0a1b" * 10,
    f"acme access key: {'k3x9' * 6}": "k3x9" * 6,
    f"acmeKEY-{'k3x9' * 6}": "k3x9" * 6,
    "ACME_SECRET=" + "7190" * 8: "7190" * 8,
    f'SONAR_LOGIN := "{"0a1b" * 10}"': "0a1b" * 10,
    f"curl -u :{_V} https://x": _V,
    f"SECRET_KEY = 'x7%(^k{_V}'": _V,
}


@pytest.mark.parametrize("text", BY_STRUCTURE)
def test_a_secret_is_known_by_the_structure_around_it(text: str) -> None:
    secret = BY_STRUCTURE[text]
    redactor = Redactor({})
    assert secret not in redactor.text(text)
    for inner in (text, json.dumps({"content": text})):
        line = json.dumps({"message": inner}).encode()
        assert redactor.suspects(line)
        assert secret.encode() not in redactor.line(line)


PASSWORDS = ("t7Qz9LmX2vKe", "swordfish", "harbor-hazel-ember")
GIVEN = r"""
password: VALUE
+  db_password: VALUE
spring.datasource.password=VALUE
[client]\nuser = root\npassword = VALUE
{"password": "VALUE"}
password = "VALUE"
var dbPassword string = "VALUE"
std::string password("VALUE");
props.put("redis_secret", "VALUE");
DB_PASSWORD=${DB_PASSWORD:-VALUE}
- value: VALUE\n  name: DB_PASSWORD
variable "db_password" {\n  type = string\n  default = "VALUE"\n}
{"db_password": {"sensitive": true, "type": "string", "value": "VALUE"}}
<add key="ClearTextPassword" value="VALUE" />
<server><username>me</username><password>VALUE</password></server>
<AdministratorPassword><Value>VALUE</Value></AdministratorPassword>
<key>Password</key>\n<string>VALUE</string>
host1 ansible_user=me ansible_password=VALUE
requirepass VALUE
account work\nuser me\npassword VALUE
machine h\n    12\tlogin me\n    13\tpassword VALUE
email,password,role\nme@x.org,VALUE,admin
| user | password |\n|---|---|\n| me | VALUE |
INSERT INTO users (name, password) values ('me', 'VALUE');
CREATE USER me WITH PASSWORD 'VALUE';
CREATE USER me IDENTIFIED BY 'VALUE';
vault login VALUE
vault kv put secret/db username=me password=VALUE
rabbitmqctl change_password me VALUE
lftp -u me,VALUE sftp://x
fly secrets set DB_PASSWORD=VALUE
gh secret set NAME --body VALUE
heroku config:set DB_PASSWORD=VALUE -a x
kubectl create secret generic x --from-literal=any=VALUE
http -a me:VALUE x.org
curl -ume:VALUE x.org
net use Z: \\srv\share /user:me VALUE
htpasswd -bc file me VALUE
wget --user=me --password=VALUE x
psexec -u me -p VALUE cmd
echo VALUE | passwd --stdin me
openssl rsa -passout pass:VALUE
helm install x y --set auth.rootPassword=VALUE
ConvertTo-SecureString "VALUE" -AsPlainText -Force
Generated password: VALUE
"""


@pytest.mark.parametrize("text", GIVEN.strip().splitlines())
def test_a_password_of_any_letters_is_found_where_one_is_given(text: str) -> None:
    redactor = Redactor({})
    for value in PASSWORDS:
        given_text = text.replace("\\n", "\n").replace("\\t", "\t").replace("VALUE", value)
        assert value not in redactor.text(given_text)
        line = json.dumps({"content": given_text}).encode()
        assert value.encode() not in redactor.line(line)


HASHED = "q7ZtLw9pR3kX2mVb8YdNf4Hs1GjTc6Ue5WaQoDiPxKzS0vJyMnBrEgFhCuIlAO7tRw3Zk9Xp2LmQvT8bY4NdHs1G"
OTHERS = {
    f"me:$2y$05${HASHED[:53]}": HASHED[:53],
    f"me:$apr1${HASHED[:8]}${HASHED[8:30]}": HASHED[8:30],
    f"root:$6${HASHED[:16]}${HASHED[:86]}:19000:0:99999:7:::": HASHED[:86],
    "//r.example.org/:_auth=6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e": "6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e",
    "token: 6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e": "6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e",
    "password = 'correct horse battery staple'": "correct horse battery staple",
    "mnemonic: cousin acoustic album alarm anchor blade": "cousin acoustic album alarm anchor blade",
    "cookies = {'session': 't7Qz9LmX2vKet7Qz'}": "t7Qz9LmX2vKet7Qz",
    f'{{"keyName":"key1","value":"{HASHED[:40]}=="}}': HASHED[:40],
    f'"primaryKey": "{HASHED[:40]}=="': HASHED[:40],
    f"Your new API key is {HASHED[:32]}": HASHED[:32],
}


@pytest.mark.parametrize("text", OTHERS)
def test_hashes_passphrases_and_keys_are_found(text: str) -> None:
    redactor = Redactor({})
    assert OTHERS[text] not in redactor.text(text)
    assert OTHERS[text].encode() not in redactor.line(json.dumps({"content": text}).encode())


@pytest.mark.parametrize(
    "rest",
    [' "db1_name"', ' "https://a.example.com/v1/x"', '\n"file1.txt"', ', "b2": 1}', " # x1", ' + "n1 of m2"'],
)
def test_what_follows_a_secret_in_quotes_stays(rest: str) -> None:
    text = f'--password="t7Qz9LmX2vKe"{rest}'
    assert Redactor({}).text(text) == f'--password="[redacted:password]"{rest}'


@pytest.mark.parametrize("rest", ["Done", "Step1", "DEBUG=false", f"{'0a' * 32}  a.tar.gz", "next: 1"])
def test_the_line_behind_a_long_secret_stays(rest: str) -> None:
    assert Redactor({}).text(f"API_KEY={_LONG[:64]}\n{rest}\n") == f"API_KEY=[redacted:key]\n{rest}\n"


def test_a_known_value_is_found_as_html_and_xml_write_it() -> None:
    redactor = Redactor({"MY_SECRET": "p&ss<w'rd>12"})
    for text in ("p&amp;ss&lt;w'rd&gt;12", "p&amp;ss&lt;w&#39;rd&gt;12", "p&amp;ss&lt;w&apos;rd&gt;12"):
        assert redactor.text(f"<x>{text}</x>") == "<x>[redacted:MY_SECRET]</x>"


def test_a_certificate_a_public_key_and_plain_talk_are_no_private_key() -> None:
    for text in (
        base64.b64encode(b"-----BEGIN CERTIFICATE-----\n" + _KEY_LINES[0].encode()).decode(),
        base64.b64encode(b"-----BEGIN PUBLIC KEY-----\n" + _KEY_LINES[0].encode()).decode(),
        "the password is wrong", "| token | string |", "password:\n  type: string", "https://example.org/@scope/name-1",
        "mysql -u root -p app", "cd x; PWD=/home/me/project make",
        "tool --password=get_password(1) --token=args.token --password-file=a1", "echo $TOKEN | docker login --password-stdin", "mysql -u a; mkdir -parents x",
    ):  # fmt: skip
        assert Redactor({}).text(text) == text


# --- Text inside JSON, and with a terminal's styles -------------------------------------------------------------

LAYOUTS = {
    "lines": "first\n{}\nlast",
    "tabs": "first\t{}\tlast",
    "CRLF": "first\r\n{}\r\nlast",
    "colour": "first \x1b[32m{}\x1b[0m last",
    "colours between words": "first\x1b[1;31m{}\x1b[m\x1b[Klast",
    "alone": "{}",
}


_LINE_BREAK = re.compile(r"(?<!\\)((?:\\\\)*)\\n")


def written(text: str) -> dict[str, str]:
    """A text as it is, and as JSON has it."""
    once = json.dumps(text)[1:-1]
    return {
        "plain": text,
        "JSON": once,
        "JSON in JSON": json.dumps(once)[1:-1],
        "an object": json.dumps({"output": text}),
        "other escapes": _LINE_BREAK.sub(
            r"\1\\u000A", json.dumps(text, ensure_ascii=False)[1:-1].replace("/", r"\/")
        ),
    }


def generated(expression: str, random: Random) -> str:
    """A random text for an expression, whose look-arounds it may fail, but for one at its end."""

    def sequence(items: Any, is_all: bool = False) -> str:
        return "".join(
            item(operator, argument, is_all and place == len(items) - 1)
            for place, (operator, argument) in enumerate(items)
        )

    def item(operator: Any, argument: Any, is_last: bool) -> str:
        match str(operator):
            case "LITERAL":
                return chr(argument)
            case "IN":
                return random.choice(sorted(characters(argument)))
            case "ANY":
                return random.choice(string.ascii_letters)
            case "BRANCH":
                consuming = [one for one in argument[1] if one and str(one[0][0]) not in ("AT", "ASSERT")]
                return sequence(random.choice(consuming)) if consuming else ""
            case "SUBPATTERN":
                return sequence(argument[3])
            case "ATOMIC_GROUP":
                return sequence(argument)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = argument
                if least == 0 and str(inner) == str(re._parser.parse(r"\\")):  # type: ignore[attr-defined]
                    return ""  # backslashes before a quote are escapes
                count = random.randint(
                    least, min(int(most), least + (0 if least > 30 else 12 if int(most) >= 80 else 1))
                )
                return "".join(sequence(inner) for _ in range(count))
            case "ASSERT" if is_last and argument[0] > 0:
                return sequence(argument[1])
            case _:
                return ""

    def characters(items: Any) -> set[str]:
        found: set[str] = set()
        for operator, argument in items:
            match str(operator):
                case "LITERAL":
                    found.add(chr(argument))
                case "RANGE":
                    found |= set(map(chr, range(argument[0], argument[1] + 1)))
                case "CATEGORY":
                    found |= set(string.digits if str(argument) == "CATEGORY_DIGIT" else " \n")
        found.discard("\\")
        is_negated = str(items[0][0]) == "NEGATE"
        return set(string.ascii_letters + string.digits) - found if is_negated else found

    return sequence(re._parser.parse(expression, re.DOTALL), is_all=True)  # type: ignore[attr-defined]


def longest_run(text: str) -> str:
    return max(re.findall("[A-Za-z0-9]+", text), key=len, default="")


@cache
def example_of(shape: Shape) -> tuple[str, str]:
    """A text that holds a secret of the form, and the longest run of letters and digits of the secret."""
    random = Random(shape.name)
    for _ in range(400):
        text = generated(shape.expression, random)
        match = re.search(shape.expression, text, re.DOTALL)
        run = longest_run(match[0][len(match.groupdict().get("kept") or "") :]) if match is not None else ""
        if len(run) >= 6 and run not in Redactor({}).text(f"see {text} now"):
            return text, run
    raise AssertionError(f"no example of {shape.name}: {shape.expression}")


def leaks(text: str, run: str) -> Iterator[str]:
    """In which layouts and forms a text keeps a secret, read as a text and in a line of a log."""
    redactor = Redactor({})
    for layout, template in LAYOUTS.items():
        plain = template.replace("{}", text)
        if run in redactor.text(plain):
            yield layout
            continue
        for form, inside in written(plain).items():
            if run in redactor.text(inside):
                yield f"{layout}, {form}"
            line = json.dumps({"content": inside}).encode()
            if not redactor.suspects(line) or (form == "plain" and run.encode() in redactor.line(line)):
                yield f"{layout}, {form}, in a line"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_secret_of_any_form_is_found_however_json_and_a_terminal_write_what_is_around_it(
    shape: Shape,
) -> None:
    assert list(leaks(*example_of(shape))) == []


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_json_stays_json_and_the_same_is_taken_out_of_it_as_of_its_text(shape: Shape) -> None:
    redactor = Redactor({})
    for template in LAYOUTS.values():
        text = template.replace("{}", f'{example_of(shape)[0]} then: "C:\\new\\table" \t \u2713 /')
        clean = redactor.text(text)
        once, twice = json.dumps(text), json.dumps(json.dumps(text))
        assert json.loads(redactor.text(once)) == clean
        assert json.loads(json.loads(redactor.text(twice))) == clean


AROUND = {
    **BY_STRUCTURE,
    **OTHERS,
    **{form.replace("{}", "q7Zk2mXw9LtB4vNc8RyD").replace("{{", "{").replace("}}", "}"): "q7Zk2mXw9LtB4vNc8RyD"
       for form in UNSEEN_FORMS},
    **{text.replace("\\n", "\n").replace("VALUE", PASSWORDS[0]): PASSWORDS[0] for text in GIVEN.strip().splitlines()},
    **{one.text: one.secret for one in corpus(seed=3, each=1)[0] if not one.kind.startswith(("own ", "base64 "))},
}  # fmt: skip
"""Texts with secrets that what is around them tells, and of each kind of the corpus one."""


@pytest.mark.long  # its shorter sibling tries every form in every layout
@pytest.mark.parametrize("text", AROUND)
def test_a_secret_that_its_context_tells_is_found_however_json_and_a_terminal_write_it(text: str) -> None:
    # Where a layout changes what the text says, nothing is found in it as it is either.
    assert [found for found in leaks(text, longest_run(AROUND[text])) if ", " in found] == []


@pytest.mark.parametrize(
    "value",
    [ODD_VALUE, "line one of it\nand the\ttail", 'sla/sh "quo\\ses" \\x', 'C:\\new "table"', "pl41n-value-x"],
)
def test_a_known_value_is_found_through_escapes_and_styles(value: str) -> None:
    redactor = Redactor({"MY_SECRET": value})
    for template in LAYOUTS.values():
        for form, inside in written(template.replace("{}", value)).items():
            assert "[redacted:MY_SECRET]" in redactor.text(inside), form
            assert redactor.suspects(inside.encode())
    numbers = "".join(f"\\\\u{ord(letter):04x}" for letter in value)
    assert redactor.text(f"it is {numbers}.") == "it is [redacted:MY_SECRET]."
    styled = f"it is {value[:4]}\x1b[01;31m\x1b[K{value[4:]}\x1b[m."
    assert redactor.text(styled) == "it is [redacted:MY_SECRET]\x1b[m."
    assert b"[redacted:MY_SECRET]" in redactor.line(json.dumps({"out": styled}).encode())


@pytest.mark.parametrize("begins", ["\x1b[", "\\u001b[", "\\\\u001B[", "\\x1b[", "\\033[", "\\e["])
def test_a_token_is_found_behind_and_around_a_style_of_any_form(begins: str) -> None:
    token = "xoxb-123456789012-abcdefGHIJ"
    redactor = Redactor({})
    for style in ("0m", "38;5;196m", "1;31m", "K"):
        assert (
            redactor.text(f"a{begins}{style}{token}{begins}m")
            == f"a{begins}{style}[redacted:slack-token]{begins}m"
        )
    styled = f"{token[:4]}{begins}m{begins}K{token[4:]}"
    if begins.lower().endswith("1b["):
        assert redactor.text(f"see {styled} now") == "see [redacted:slack-token] now"


def test_an_escaped_backslash_before_a_letter_is_left_as_it_is() -> None:
    for text in (r"C:\\new\\table\\names", r"\\\\srv\\share\n", r"a\u0041b \ud83d\ude00 \/ \\/", "\\" * 99):
        assert Redactor({}).text(text) == text
        assert Redactor({}).text(f"{text} AKIAIOSFODNN7EXAMPLE") == f"{text} [redacted:aws-key]"


def test_a_row_is_enough_for_a_new_kind_of_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "acmectl enrol t7Qz9LmX2vKe now"
    assert Redactor({}).text(text) == text
    row = Rule("enrolment", "acmectl enrol ", r"acmectl enrol (\S{6,60})", is_given_alone, "token")
    monkeypatch.setattr(secret_context, "RULES", (row,))
    monkeypatch.setitem(TELLING, "rules", [row.near])
    secret_context.compiled_rules.cache_clear()
    try:
        redactor = Redactor({})
        assert redactor.text(text) == "acmectl enrol [redacted:token] now"
        assert redactor.suspects(json.dumps({"said": text}).encode())
    finally:
        secret_context.compiled_rules.cache_clear()


def test_every_row_has_a_name_of_its_own_and_a_mark_that_is_known() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.mask for rule in RULES} <= KINDS
    assert all(re.compile(rule.expression).groups for rule in RULES)
