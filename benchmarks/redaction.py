"""How many planted secrets are taken out, how often something else is, and how fast.

    python benchmarks/redaction.py [--each 40] [--seed 1] [--verbose] [--examples EXAMPLES] [FILE…]

Plants secrets of every kind below with random values, each in the texts in which it comes: a `.env` file,
YAML, JSON, JSON in JSON, source code, a command, a URL, prose. The kinds and their forms are those that
providers document, and that gitleaks and detect-secrets list; none was taken from the rules that are
measured. Prints recall by occurrence, and by kind (a kind counts when at least 95 % of its occurrences are
taken out), once for an import (a log of Claude Code, read back from the database) and once for a run (the
blocks of messages). Of each FILE, a recorded session, it prints the lines that are changed per 10,000, with
`--verbose` each of them: read them, and count what is no secret. Last, how fast lines without a secret are
searched.

EXAMPLES is a file of JSON, `[[set, kind, text, [secret, …]], …]`: what others give as examples for their own
rules. Each text is searched as it is and inside a line of JSON. A secret counts as found when no more than
half of it is left in a row, a kind when 95 % of its secrets are. What nobody draws at random (see
`is_made_up`) is counted apart, since a redactor leaves placeholders alone on purpose.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import re
import string
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from watchkeeper.records.redact import Redactor

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
LETTERS = string.ascii_letters
ALPHANUMERIC = LETTERS + DIGITS
HEX = DIGITS + "abcdef"
BASE64 = ALPHANUMERIC + "+/"
URL_SAFE = ALPHANUMERIC + "-_"
PUNCTUATION = "!@#%^*_-+=?~."
ALPHABETS = {
    "a": ALPHANUMERIC, "h": HEX, "H": HEX.upper(), "u": URL_SAFE, "b": BASE64, "d": DIGITS, "l": LETTERS, "U": UPPER + DIGITS,
    "L": LOWER + DIGITS, "t": LOWER + "234567", "T": UPPER + "234567", "bech": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
}  # fmt: skip


class Random(random.Random):
    """Random texts."""

    def of(self, alphabet: str, length: int) -> str:
        return "".join(self.choices(alphabet, k=length))

    def base64(self, size: int) -> str:
        return base64.b64encode(self.randbytes(size)).decode()

    def password(self) -> str:
        """As password managers make them: 10 to 24 letters, digits and some punctuation, at least two
        digits."""
        length = self.randrange(10, 25)
        letters = [*self.of(DIGITS, 2), *self.of(PUNCTUATION, self.randrange(3)), *self.of(UPPER, 2)]
        letters += self.of(ALPHANUMERIC, length - len(letters))
        self.shuffle(letters)
        return self.choice(ALPHANUMERIC) + "".join(letters)

    def plain_password(self) -> str:
        """One that needs no quotes anywhere."""
        start = self.of(ALPHANUMERIC, 3) + str(self.randrange(10))
        return start + self.of(ALPHANUMERIC + "_-.", self.randrange(6, 16))

    def filled(self, template: str) -> str:
        """The template with random text for each `<alphabet:length>` (see `ALPHABETS`) and `<method:size>`."""

        def part(found: re.Match[str]) -> str:
            name, size = found[1], int(found[2] or 0)
            match name:
                case "uuid":
                    return str(uuid.UUID(int=self.getrandbits(128), version=4))
                case "password":
                    return self.password()
                case "plain":
                    return self.plain_password()
                case "bytes":
                    return self.base64(size)
                case "urlbytes":
                    return base64.urlsafe_b64encode(self.randbytes(size)).decode()
                case "quoted":
                    return quote(self.base64(size), safe="")
                case "basic":
                    return base64.b64encode(f"user{self.of(DIGITS, 2)}:{self.password()}".encode()).decode()
                case "encoded":
                    inner = self.of(DIGITS, size) if size else self.password()
                    return base64.b64encode(inner.encode()).decode()
                case "claims":
                    claims = {
                        "sub": self.of(DIGITS, 10),
                        "name": "somebody",
                        "iat": self.randrange(10**9, 2 * 10**9),
                    }
                    return ".".join(_url_safe(one) for one in ({"alg": "HS256", "typ": "JWT"}, claims))
            return self.of(ALPHABETS[name], size)

        return re.sub(r"<(\w+)(?::(\d+))?>", part, template)


def _url_safe(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _table(text: str) -> dict[str, tuple[list[str], str]]:
    rows = (line.split(" | ") for line in text.strip().splitlines())
    return {kind: (names.split(), template) for kind, names, template in rows}


FORMED = _table("""
Anthropic API key | ANTHROPIC_API_KEY | sk-ant-api03-<u:93>AA
OpenAI project key | OPENAI_API_KEY | sk-proj-<u:74>T3BlbkFJ<u:74>
OpenAI key | OPENAI_API_KEY | sk-<a:20>T3BlbkFJ<a:20>
OpenRouter key | OPENROUTER_API_KEY | sk-or-v1-<h:64>
GitHub personal token | GITHUB_PAT | ghp_<a:36>
GitHub fine-grained token | GH_TOKEN | github_pat_<a:22>_<a:59>
GitHub app token | GITHUB_TOKEN | ghs_<a:36>
GitLab personal token | GITLAB_TOKEN | glpat-<u:20>
GitLab routable token | GITLAB_TOKEN | glpat-<u:27>.<h:2>.<L:9>
GitLab pipeline trigger | TRIGGER_TOKEN | glptt-<h:40>
GitLab deploy token | DEPLOY_TOKEN | gldt-<u:20>
GitLab runner token | RUNNER_TOKEN | glrt-<u:20>
GitLab job token | CI_JOB_TOKEN | glcbt-<h:2>_<u:20>
GitLab feed token | FEED_TOKEN | glft-<u:20>
GitLab agent token | AGENT_TOKEN | glagent-<u:50>
GitLab OAuth secret | GITLAB_SECRET | gloas-<h:64>
GitLab SCIM token | SCIM_TOKEN | glsoat-<u:20>
GitLab incoming mail token | MAIL_TOKEN | glimt-<L:25>
GitLab runner registration | REGISTRATION_TOKEN | GR1348941<u:20>
AWS access key id | AWS_ACCESS_KEY_ID | AKIA<T:16>
Slack bot token | SLACK_BOT_TOKEN | xoxb-<d:12>-<d:12>-<a:24>
Slack app token | SLACK_APP_TOKEN | xapp-1-A<U:10>-<d:13>-<h:64>
Slack webhook | SLACK_WEBHOOK | https://hooks.slack.com/services/T<U:10>/B<U:10>/<a:24>
Google API key | GOOGLE_API_KEY | AIza<u:35>
Google OAuth secret | GOOGLE_CLIENT_SECRET | GOCSPX-<u:28>
Google OAuth token | GOOGLE_TOKEN | ya29.<u:120>
Stripe live key | STRIPE_SECRET_KEY | sk_live_<a:24>
Stripe restricted key | STRIPE_KEY | rk_live_<a:24>
Stripe webhook secret | STRIPE_WEBHOOK_SECRET | whsec_<a:32>
npm token | NPM_TOKEN | npm_<a:36>
PyPI token | TWINE_PASSWORD | pypi-AgEIcHlwaS5vcmc<u:120>
RubyGems token | GEM_HOST_API_KEY | rubygems_<h:48>
Hugging Face token | HF_TOKEN | hf_<l:34>
Groq key | GROQ_API_KEY | gsk_<a:52>
Perplexity key | PERPLEXITY_API_KEY | pplx-<a:48>
Replicate token | REPLICATE_API_TOKEN | r8_<a:37>
SendGrid key | SENDGRID_API_KEY | SG.<u:22>.<u:43>
Brevo key | BREVO_API_KEY | xkeysib-<h:64>-<a:16>
Mailgun key | MAILGUN_API_KEY | key-<h:32>
Mailchimp key | MAILCHIMP_API_KEY | <h:32>-us1<d:1>
DigitalOcean token | DIGITALOCEAN_TOKEN | dop_v1_<h:64>
Shopify token | SHOPIFY_ACCESS_TOKEN | shpat_<h:32>
Shopify shared secret | SHOPIFY_API_SECRET | shpss_<h:32>
Vault token | VAULT_TOKEN | hvs.<u:95>
age key | AGE_KEY | AGE-SECRET-KEY-1<bech:58>
Docker token | DOCKER_TOKEN | dckr_pat_<u:27>
Atlassian token | JIRA_API_TOKEN | ATATT3xFfGF0<u:171>=<H:8>
Bitbucket app password | BITBUCKET_APP_PASSWORD | ATBB<a:32>
Grafana token | GRAFANA_TOKEN | glsa_<a:32>_<h:8>
Linear key | LINEAR_API_KEY | lin_api_<a:40>
Notion token | NOTION_TOKEN | ntn_<d:11><a:35>
Figma token | FIGMA_TOKEN | figd_<u:40>
Telegram bot token | TELEGRAM_BOT_TOKEN | 7<d:9>:AA<u:33>
Discord bot token | DISCORD_TOKEN | <encoded:18>.<u:6>.<u:38>
Discord webhook | DISCORD_WEBHOOK | https://discord.com/api/webhooks/4<d:17>/<u:68>
Twilio key | TWILIO_API_KEY | SK<h:32>
Databricks token | DATABRICKS_TOKEN | dapi<h:32>
Sentry user token | SENTRY_AUTH_TOKEN | sntryu_<h:64>
Sentry organisation token | SENTRY_AUTH_TOKEN | sntrys_eyJpYXQiO<a:120>_<b:43>
Sentry DSN | SENTRY_DSN | https://<h:32>@o<d:6>.ingest.sentry.io/<d:7>
Supabase access token | SUPABASE_ACCESS_TOKEN | sbp_<h:40>
Supabase secret key | SUPABASE_SECRET_KEY | sb_secret_<u:31>
New Relic user key | NEW_RELIC_API_KEY | NRAK-<U:27>
New Relic license key | NEW_RELIC_LICENSE_KEY | <h:36>NRAL
New Relic insert key | NEW_RELIC_INSERT_KEY | NRII-<u:32>
Azure AD client secret | AZURE_CLIENT_SECRET | <a:3>8Q~<u:34>
Azure storage connection | AZURE_STORAGE_CONNECTION_STRING | DefaultEndpointsProtocol=https;AccountName=me;AccountKey=<bytes:64>;EndpointSuffix=core.windows.net
Azure SAS | SAS_URL | https://me.blob.core.windows.net/c/b?sv=2022-11-02&se=2026-01-01T00%3A00%3A00Z&sr=b&sp=r&sig=<quoted:32>
1Password service token | OP_SERVICE_ACCOUNT_TOKEN | ops_eyJ<a:400>
Doppler token | DOPPLER_TOKEN | dp.pt.<a:43>
Dynatrace token | DT_API_TOKEN | dt0c01.<U:24>.<U:64>
Postman key | POSTMAN_API_KEY | PMAK-<h:24>-<h:34>
Pulumi token | PULUMI_ACCESS_TOKEN | pul-<h:40>
PlanetScale token | PLANETSCALE_TOKEN | pscale_tkn_<u:43>
Square token | SQUARE_TOKEN | sq0atp-<u:22>
Terraform Cloud token | TFE_TOKEN | <a:14>.atlasv1.<u:67>
Plaid token | PLAID_ACCESS_TOKEN | access-sandbox-<uuid>
HubSpot token | HUBSPOT_TOKEN | pat-na1-<uuid>
Sonar token | SONAR_TOKEN | squ_<h:40>
JSON web token | ID_TOKEN | <claims>.<u:43>
AWS bearer token | AWS_TOKEN | ABIA<T:16>
Doppler SCIM token | DOPPLER_TOKEN | dp.scim.<a:43>
Doppler audit token | DOPPLER_TOKEN | dp.audit.<a:43>
New Relic query key | NEW_RELIC_QUERY_KEY | NRIQ-<u:32>
Dependency-Track key | DTRACK_API_KEY | odt_<a:32>
Vercel AI Gateway key | AI_GATEWAY_API_KEY | vck_<a:56>
Vercel app token | VERCEL_TOKEN | vca_<a:56>
Facebook app token | FACEBOOK_TOKEN | 1<d:15>|<u:27>
GitHub app token of the new form | GITHUB_TOKEN | ghs_<d:7>_<claims>.<u:86>
Teams webhook | TEAMS_WEBHOOK | https://outlook.office.com/webhook/<uuid>@<uuid>/IncomingWebhook/<h:32>/<uuid>
Scrapfly key | SCRAPFLY_KEY | scp-live-<h:32>
Teamwork token | TEAMWORK_TOKEN | tkn.v1_<u:86>
""")
"""Kinds with a form of their own: the variable that usually holds it, and what a value looks like."""

NAMED = _table("""
database password | DATABASE_PASSWORD DB_PASSWORD POSTGRES_PASSWORD PGPASSWORD | <password>
MySQL password | MYSQL_PWD MYSQL_ROOT_PASSWORD MYSQL_PASSWORD | <password>
short password | REDIS_PASS SMTP_PASS FTP_PASSWD LDAP_BIND_PASSWORD | <password>
application secret | APP_SECRET SESSION_SECRET NEXTAUTH_SECRET COOKIE_SECRET | <bytes:32>
signing secret | JWT_SECRET SIGNING_SECRET WEBHOOK_SECRET | <h:64>
secret key base | SECRET_KEY_BASE RAILS_MASTER_KEY SECRET_KEY | <h:32>
AWS secret key | AWS_SECRET_ACCESS_KEY | <b:40>
AWS session token | AWS_SESSION_TOKEN | <bytes:180>
Twilio auth token | TWILIO_AUTH_TOKEN | <h:32>
Datadog key | DD_API_KEY DATADOG_API_KEY | <h:32>
Heroku key | HEROKU_API_KEY | <uuid>
Snyk token | SNYK_TOKEN | <uuid>
Cloudflare token | CLOUDFLARE_API_TOKEN CF_API_TOKEN | <u:40>
Azure DevOps token | AZURE_DEVOPS_PAT AZURE_DEVOPS_EXT_PAT | <t:52>
CircleCI token | CIRCLE_TOKEN | <h:40>
Codecov token | CODECOV_TOKEN | <uuid>
Fastly key | FASTLY_API_KEY | <u:32>
Algolia key | ALGOLIA_ADMIN_KEY ALGOLIA_API_KEY | <h:32>
Mistral key | MISTRAL_API_KEY | <a:32>
Cohere key | COHERE_API_KEY CO_API_KEY | <a:40>
encryption key | ENCRYPTION_KEY FERNET_KEY | <urlbytes:32>
OAuth client secret | CLIENT_SECRET OAUTH_CLIENT_SECRET AUTH0_CLIENT_SECRET | <u:64>
Vercel token | VERCEL_TOKEN | <a:24>
Sentry old token | SENTRY_AUTH_TOKEN | <h:64>
Twitter secret | TWITTER_ACCESS_TOKEN_SECRET TWITTER_API_SECRET | <a:45>
secret that begins with a slash | API_SECRET ACCESS_TOKEN | /<b:39>
""")
"""Kinds that only their name tells: the names in which they come, and a value as the provider makes it."""

SURROUNDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "Authorization: Basic": ("<basic>", (
        "Authorization: Basic VALUE", '-H "Authorization: Basic VALUE" https://x', "{'Authorization': 'Basic VALUE'}",
        '"authorization":"Basic VALUE"', "> authorization: Basic VALUE\r\n> accept: */*",
    )),
    "Authorization: Bearer": ("<a:40>", (
        "Authorization: Bearer VALUE", "curl -H 'Authorization: Bearer VALUE' https://x",
        'headers = {"Authorization": "Bearer VALUE"}',
    )),
    "Authorization: token": ("<h:40>", (
        "Authorization: token VALUE", '"Authorization": "Token VALUE"', "Authorization: ApiKey VALUE",
    )),
    "X-Api-Key header": ("<a:32>", (
        "X-Api-Key: VALUE", "-H 'x-api-key: VALUE'", '{"X-API-Key": "VALUE"}', "X-Auth-Token: VALUE",
    )),
    "cookie": ("<a:32>", (
        "Cookie: theme=dark; session=VALUE; lang=en", "Set-Cookie: sessionid=VALUE; Path=/; HttpOnly; Secure",
        "curl -b 'sid=VALUE' https://x", '{"cookie": "connect.sid=s%3AVALUE"}', "curl --cookie 'auth_token=VALUE' https://x",
        "set-cookie: JSESSIONID=VALUE; Path=/",
    )),
    "cookie jar": ("<h:32>", ("example.com\tFALSE\t/\tTRUE\t1893456000\tsession\tVALUE",)),
    "curl -u": ("<plain>", (
        "curl -u admin:VALUE https://x", 'curl -s --user "me@x.org:VALUE" https://x', "curl https://x -u 'svc:VALUE' -o out",
    )),
    "--password": ("<plain>", (
        "tool --password=VALUE run", "tool --password VALUE", "tool --db-password 'VALUE'", "tool --api-token=VALUE",
        "tool --secret VALUE",
    )),
    "netrc": ("<plain>", (
        "machine api.example.com login me password VALUE", "machine api.example.com\n  login me\n  password VALUE\n",
        "machine h\nlogin u\npassword VALUE",
    )),
    "pgpass": ("<plain>", ("db.example.com:5432:app:me:VALUE",)),
    "mysql -p": ("<plain>", ("mysql -u root -pVALUE app", "mysqldump -h db -u app -pVALUE app > x.sql")),
    "sshpass": ("<plain>", ("sshpass -p VALUE ssh me@host", "sshpass -p 'VALUE' scp a b:")),
    "docker login": ("<plain>", ("docker login -u me -p VALUE registry.example.com",)),
    "redis-cli": ("<plain>", ("redis-cli -h r -a VALUE ping",)),
    "URL password": ("<plain>", (
        "postgres://app:VALUE@db:5432/app", "https://me:VALUE@git.example.com/x.git", "redis://:VALUE@cache:6379/0",
        "amqp://a:VALUE@q/",
    )),
    "URL query": ("<a:32>", (
        "https://x.org/a?page=2&access_token=VALUE&x=1", "https://x.org/?api_key=VALUE", "wss://x/?token=VALUE",
    )),
    "connection string": ("<plain>", (
        "Server=db;Database=app;User Id=sa;Password=VALUE;Encrypt=True", "host=db user=me password=VALUE dbname=x",
    )),
    "XML": ("<plain>", (
        "<server><username>me</username><password>VALUE</password></server>", "<apiKey>VALUEa9b8c7d6</apiKey>",
    )),
    "PHP define": ("<plain>", ("define('DB_PASSWORD', 'VALUE');", "'password' => 'VALUE',")),
    "SQL": ("<plain>", ("CREATE USER app IDENTIFIED BY 'VALUE';", "ALTER ROLE app WITH PASSWORD 'VALUE';")),
    "Dockerfile": ("<plain>", ("ENV DB_PASSWORD VALUE", "ARG API_TOKEN=VALUE")),
    "kubectl": ("<plain>", ("kubectl create secret generic db --from-literal=password=VALUE",)),
    "Kubernetes secret": ("<encoded>", (
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\ntype: Opaque\ndata:\n  credentials: VALUE\n",
        "apiVersion: v1\ndata:\n  db: VALUE\nkind: Secret\nmetadata:\n  name: db\n",
        '{"apiVersion":"v1","data":{"db":"VALUE"},"kind":"Secret"}',
    )),
    "npmrc": ("<b:44>", ("//registry.example.com/:_authToken=VALUE", "//r.example.com/:_password=VALUE")),
    "docker config": ("<basic>", ('{"auths": {"https://index.docker.io/v1/": {"auth": "VALUE"}}}',)),
    "AWS credentials file": ("<b:40>", (
        "[default]\naws_access_key_id = X\naws_secret_access_key = VALUE\n", "aws configure set aws_secret_access_key VALUE",
    )),
    "AWS signed URL": ("<h:64>", ("https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature=VALUE",)),
}  # fmt: skip
"""Kinds whose surroundings tell: a value, and the texts in which it comes."""


def _camel(name: str) -> str:
    first, *rest = name.lower().split("_")
    return first + "".join(map(str.title, rest))


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_files(name: str, value: str) -> Iterator[str]:
    """A named value as files, programs and commands write it."""
    lower = name.lower()
    yield f"{name}={value}\n"
    yield f"# settings\nDEBUG=1\nexport {name}='{value}'\nPORT=80"
    yield f"{name}: {value}\n"
    yield f'  {lower}: "{value}"\n  other: 1\n'
    yield json.dumps({"host": "db", lower: value, "port": 5432})
    yield json.dumps({"env": {_camel(name): value}}, indent=2)
    yield json.dumps({"body": json.dumps({lower: value})})
    yield json.dumps({"outer": json.dumps({"inner": json.dumps({name: value})})})
    yield f'{lower} = "{value}"  # TODO'
    yield f"const {_camel(name)} = '{value}';"
    yield f'{{ {_camel(name)}: "{value}", debug: true }}'
    yield f"docker run -e {name}={value} -p 80:80 image"
    yield f"- name: {name}\n  value: {value}\n"
    yield f'[{{"name": "{name}", "value": "{value}"}}]'
    yield f'os.environ["{name}"] = "{value}"'
    yield f'$env:{name} = "{value}"'
    yield f"{name.replace('_', '.').lower()}={value}\n"


def _formed(name: str, value: str) -> Iterator[str]:
    yield f"use {value} for it"
    yield f"`{value}`"
    yield json.dumps({"result": f"token: {value}\nnext"})
    yield from list(_in_files(name, value))[:11]


def _private_key(r: Random) -> tuple[str, str]:
    """A line of a key, and a text that holds the whole of it."""
    body = "\n".join(r.of(BASE64, 64) for _ in range(12))
    kind = r.choice(["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"])
    text = f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"
    return body.splitlines()[3], r.choice(
        [text, json.dumps({"private_key": text}), f"cat key.pem\n{text}done"]
    )


@dataclass(frozen=True, slots=True)
class Planted:
    """A secret in a text."""

    kind: str
    secret: str
    text: str


def environment(r: Random) -> dict[str, str]:
    """Variables of the process itself, whose values must not appear in any form."""
    own = {
        "SERVICE_TOKEN": "<bytes:45>",
        "DB_PWD": "/<b:31>",
        "LDAP_PASS": "~/<a:22>",
        "SIGNING_SECRET": "/<b:42>=",
    }
    return {f"OWN_{name}": r.filled(template) for name, template in own.items()}


def _own(r: Random, environ: dict[str, str], each: int) -> Iterator[Planted]:
    for name, value in environ.items():
        for _ in range(max(1, each // 4)):
            yield Planted(f"own variable {name}", value, f"the log says {value} at {r.randrange(60)}")
            before = r.of(ALPHANUMERIC + " \n", r.randrange(20, 160)).encode()
            data = before + value.encode() + b" and more\n" * r.randrange(1, 9)
            whole = base64.b64encode(data).decode()
            wrapped = "\n".join(whole[at : at + 76] for at in range(0, len(whole), 76))
            # What of the value is the same wherever it lies: eight letters in its middle.
            start = -(-len(before) // 3) * 4 + 4
            yield Planted("base64 wrapped at 76 columns", whole[start : start + 12], wrapped)


def corpus(seed: int, each: int) -> tuple[list[Planted], dict[str, str]]:
    """Planted secrets, `each` of a kind, and the variables of the process that some of them are values of."""
    r = Random(seed)
    environ = environment(r)
    found = list(_own(r, environ, each))
    for table, texts_of in ((FORMED, _formed), (NAMED, _in_files)):
        for kind, (names, template) in table.items():
            for number in range(each):
                value = r.filled(template)
                texts = list(texts_of(r.choice(names), value))
                found.append(Planted(kind, value, texts[number % len(texts)]))
    for kind, (template, surroundings) in SURROUNDED.items():
        for _ in range(each):
            value = r.filled(template)
            found.append(Planted(kind, value, r.choice(surroundings).replace("VALUE", value)))
    found += [Planted("private key", *_private_key(r)) for _ in range(each)]
    return found, environ


def forms(secret: str) -> set[str]:
    """A secret as it is and as JSON, and JSON in JSON, may have it."""
    once = _escaped(secret)
    return {secret, once, _escaped(once), secret.replace("/", "\\/")}


def by_run(planted: Iterable[Planted], redactor: Redactor) -> Iterator[tuple[Planted, bool]]:
    """Each with whether it was taken out of a message's blocks."""
    for one in planted:
        try:
            arguments = json.loads(one.text)
        except ValueError:
            arguments = {"command": one.text}
        blocks = [
            {"type": "text", "text": one.text},
            {"type": "tool_use", "id": "t", "name": "x", "input": {"arguments": arguments}},
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [{"type": "text", "text": f"1\t{one.text}"}],
            },
        ]
        yield one, not _holds(json.dumps(redactor(blocks), ensure_ascii=False), one.secret)


def by_import(planted: list[Planted], redactor: Redactor) -> Iterator[tuple[Planted, bool]]:
    """Each with whether it is absent from the database, after an import of a log that holds it."""
    from watchkeeper.store import database
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.importer import Importer

    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "11111111-1111-4111-8111-111111111111.jsonl"
        log.write_text("".join(f"{line}\n" for line in log_lines(planted)), "utf-8")
        writer = Writer(Path(name) / "watchkeeper.db")
        importer = Importer(writer, redactor=redactor)
        importer.run([log])
        importer.close()
        writer.close()
        connection = database.open_readonly(Path(name) / "watchkeeper.db")
        try:
            stored = "\n".join(str(row[0]) for row in connection.execute("SELECT content FROM messages"))
            stored += "\n".join(str(row[0]) for row in connection.execute("SELECT data FROM raw_records"))
        finally:
            connection.close()
        for one in planted:
            yield one, not _holds(stored, one.secret)


def log_lines(planted: Iterable[Planted]) -> Iterator[str]:
    """A log of Claude Code in which a tool gives each text."""
    about = {"sessionId": "11111111-1111-4111-8111-111111111111", "version": "2.0.0", "cwd": "/work", "isSidechain": False,
             "userType": "external", "gitBranch": ""}  # fmt: skip
    last: str | None = None
    for number, one in enumerate(planted):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": one.text}}
        reply = {
            "id": f"m{number}",
            "model": "claude-x",
            "role": "assistant",
            "content": [call],
            "usage": {"input_tokens": 1},
        }
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": one.text}
        for kind, message in (("assistant", reply), ("user", {"role": "user", "content": [result]})):
            record = {"type": kind, "uuid": f"{kind}-{number}", "parentUuid": last, "message": message,
                      "timestamp": "2026-01-01T00:00:00.000Z"}  # fmt: skip
            yield json.dumps(about | record, separators=(",", ":"))
            last = f"{kind}-{number}"


def _holds(text: str, secret: str) -> bool:
    return any(form in text for form in forms(secret))


@dataclass(frozen=True, slots=True)
class Recall:
    """What share was taken out, and what was not."""

    by_occurrence: float
    by_kind: float
    missed: dict[str, list[Planted]]

    @classmethod
    def of(cls, judged: Iterable[tuple[Planted, bool]]) -> Recall:
        total: dict[str, int] = defaultdict(int)
        missed: dict[str, list[Planted]] = defaultdict(list)
        for one, gone in judged:
            total[one.kind] += 1
            if not gone:
                missed[one.kind].append(one)
        lost = sum(map(len, missed.values()))
        kinds = sum(len(missed[kind]) <= 0.05 * count for kind, count in total.items())
        return cls(
            1 - lost / sum(total.values()),
            kinds / len(total),
            {kind: found for kind, found in missed.items() if found},
        )


_MADE_UP = re.compile(
    r"example|x{4}|fake|dummy|sample|placeholder|changeme|your[-_]|testkey|redacted|insert|foobar",
    re.IGNORECASE,
)
_BY_HAND = re.compile(r"a1b2c3d4|1a2b3c4d|abc123|abcd1234|1234abcd|(.{2,8})\1\1\1|(.{1,4})\2{4}")
_RUN_OF = 5


def is_made_up(value: str) -> bool:
    """Whether nobody draws this at random: it says so, a third of it is runs of the alphabet or of digits (five or more
    in order), it repeats itself or has hardly any different letters, or it is a word of fewer than 16 letters."""
    letters = re.sub("[^a-z0-9]", "", value.lower())
    in_runs = at = 0
    while at < len(letters):
        length = max(_run(letters, at, step) for step in (1, -1))
        in_runs += length if length >= _RUN_OF else 0
        at += length if length >= _RUN_OF else 1
    return (
        _MADE_UP.search(value) is not None
        or _BY_HAND.search(letters) is not None
        or in_runs * 3 >= len(letters)
        or len(set(letters)) <= max(3, len(letters) // 16)
        or (len(value) < 16 and not any(map(str.isdigit, value)))
    )


def _run(letters: str, at: int, step: int) -> int:
    end = at + 1
    while end < len(letters) and (
        ord(letters[end]) - ord(letters[end - 1]) == step
        or (step == 1 and letters[end - 1 : end + 1] == "90")
    ):
        end += 1
    return end - at


def by_examples(rows: Iterable[tuple[str, str, str, list[str]]]) -> Iterator[tuple[str, Planted, bool]]:
    """The set of each example, the example, and whether it was taken out."""
    redactor = Redactor({})
    for group, kind, text, secrets in rows:
        record = json.dumps({"type": "user", "content": [{"type": "tool_result", "content": text}]}).encode()
        line = redactor.line(record) if redactor.suspects(record) else record
        clean = [redactor.text(text), json.loads(line)["content"][0]["content"]]
        for secret in dict.fromkeys(secrets):
            size = len(secret) // 2 + 1
            left = any(secret[at : at + size] in one for at in range(len(secret) - size + 1) for one in clean)
            yield group, Planted(kind, secret, text), not left


def _print_examples(path: Path, verbose: bool) -> None:
    judged = list(by_examples(json.loads(path.read_text("utf-8"))))
    for group in dict.fromkeys(one[0] for one in judged):
        for what, among in (
            ("all", lambda _: True),
            ("drawn at random", lambda secret: not is_made_up(secret)),
            ("made up", is_made_up),
        ):
            of = [(one, gone) for name, one, gone in judged if name == group and among(one.secret)]
            if of:
                recall = Recall.of(of)
                print(
                    f"{group}, {what}: {len(of):,} of {len({one.kind for one, _ in of})} kinds, recall"
                    f" {recall.by_occurrence:.1%} by occurrence, {recall.by_kind:.1%} by kind"
                )
        for name, one, gone in judged if verbose else ():
            if name == group and not gone and not is_made_up(one.secret):
                print(f"    {one.kind}: {one.secret[:60]!r}")


def changed(lines: Iterable[bytes], redactor: Redactor) -> Iterator[tuple[int, bytes, bytes]]:
    """Each line that is changed: its number, and how it was and is."""
    for number, line in enumerate(lines, 1):
        clean = redactor.line(line)
        if clean is not line and _marks(clean) != _marks(line):
            yield number, line, clean


def _marks(line: bytes) -> int:
    return line.count(b"[redacted:")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="recorded sessions, for false alarms and speed"
    )
    parser.add_argument("--each", type=int, default=40, help="secrets of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--verbose", action="store_true", help="print what was missed, and what was changed in FILEs"
    )
    parser.add_argument("--examples", type=Path, help="examples of other programs' rules")
    arguments = parser.parse_args()
    if arguments.examples:
        _print_examples(arguments.examples, arguments.verbose)
        return
    planted, environ = corpus(arguments.seed, arguments.each)
    kinds = len({one.kind for one in planted})
    print(f"{len(planted):,} secrets of {kinds} kinds")
    for name, judge in (("import", by_import), ("run", by_run)):
        recall = Recall.of(judge(planted, Redactor(environ)))
        print(f"{name}: recall {recall.by_occurrence:.2%} by occurrence, {recall.by_kind:.1%} by kind")
        for kind, missed in recall.missed.items():
            print(f"  missed {len(missed)} of {kind}")
            for one in missed[: 5 if arguments.verbose else 0]:
                print(f"    {one.text[:200]!r}")
    if arguments.files:
        _print_files(arguments.files, arguments.verbose)


def _print_files(files: list[Path], verbose: bool) -> None:
    redactor = Redactor({})
    lines = [line for path in files for line in path.read_bytes().split(b"\n") if line]
    found = list(changed(lines, redactor))
    if verbose:
        for number, _, clean in found:
            for part in clean.split(b"[redacted:")[:-1]:
                print(f"  line {number}: …{part[-60:].decode('utf-8', 'replace')}[redacted:…")
    print(
        f"{len(lines):,} recorded lines: {len(found)} changed, {len(found) / len(lines) * 10_000:.1f} in"
        " 10,000"
    )
    size = sum(map(len, lines)) / 1e6
    seconds = []
    for _ in range(3):
        began = time.process_time()
        for line in lines:
            redactor.suspects(line)
        seconds.append(time.process_time() - began)
    print(f"search: {size / min(seconds):,.0f} MB/s")


if __name__ == "__main__":
    main()
