"""How many planted secrets are taken out, how often something else is, and how fast.

    python tests/benchmarks/redaction.py [--each 40] [--seed 1] [--verbose] [FILE…]

Plants secrets of every kind below with random values, each in the texts in which it comes: a `.env` file,
YAML, JSON, JSON in JSON, source code, a command, a URL, prose. The kinds and their forms are those that
providers document, and that gitleaks and detect-secrets list; none was taken from the rules that are
measured. Prints recall by occurrence, and by kind (a kind counts when at least 95 % of its occurrences are
taken out), once for an import (a log of Claude Code, read back from the database) and once for a run (the
blocks of messages). Of each FILE, a recorded session, it prints the lines that are changed per 10,000, with
`--verbose` each of them: read them, and count what is no secret. Last, how fast lines without a secret are
searched.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import string
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.records.redact import Redactor

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
LETTERS = string.ascii_letters
ALPHANUMERIC = LETTERS + DIGITS
HEX = DIGITS + "abcdef"
BASE64 = ALPHANUMERIC + "+/"
URL_SAFE = ALPHANUMERIC + "-_"
PUNCTUATION = "!@#%^*_-+=?~."


class Random(random.Random):
    """Random texts of an alphabet."""

    def of(self, alphabet: str, length: int) -> str:
        return "".join(self.choices(alphabet, k=length))

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.getrandbits(128), version=4))

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

    def jwt(self) -> str:
        def part(value: dict[str, Any]) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        claims = {"sub": self.of(DIGITS, 10), "name": "somebody", "iat": self.randrange(10**9, 2 * 10**9)}
        return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}.{self.of(URL_SAFE, 43)}"


# Kinds with a form of their own: what a value looks like, and the variable that usually holds it.
FORMED: dict[str, tuple[str, Callable[[Random], str]]] = {
    "Anthropic API key": ("ANTHROPIC_API_KEY", lambda r: f"sk-ant-api03-{r.of(URL_SAFE, 93)}AA"),
    "OpenAI project key": (
        "OPENAI_API_KEY",
        lambda r: f"sk-proj-{r.of(URL_SAFE, 74)}T3BlbkFJ{r.of(URL_SAFE, 74)}",
    ),
    "OpenAI key": (
        "OPENAI_API_KEY",
        lambda r: f"sk-{r.of(ALPHANUMERIC, 20)}T3BlbkFJ{r.of(ALPHANUMERIC, 20)}",
    ),
    "OpenRouter key": ("OPENROUTER_API_KEY", lambda r: f"sk-or-v1-{r.of(HEX, 64)}"),
    "GitHub personal token": ("GITHUB_PAT", lambda r: f"ghp_{r.of(ALPHANUMERIC, 36)}"),
    "GitHub fine-grained token": (
        "GH_TOKEN",
        lambda r: f"github_pat_{r.of(ALPHANUMERIC, 22)}_{r.of(ALPHANUMERIC, 59)}",
    ),
    "GitHub app token": ("GITHUB_TOKEN", lambda r: f"ghs_{r.of(ALPHANUMERIC, 36)}"),
    "GitLab personal token": ("GITLAB_TOKEN", lambda r: f"glpat-{r.of(URL_SAFE, 20)}"),
    "GitLab routable token": (
        "GITLAB_TOKEN",
        lambda r: f"glpat-{r.of(URL_SAFE, 27)}.{r.of(HEX, 2)}.{r.of(DIGITS + LOWER, 9)}",
    ),
    "GitLab pipeline trigger": ("TRIGGER_TOKEN", lambda r: f"glptt-{r.of(HEX, 40)}"),
    "GitLab deploy token": ("DEPLOY_TOKEN", lambda r: f"gldt-{r.of(URL_SAFE, 20)}"),
    "GitLab runner token": ("RUNNER_TOKEN", lambda r: f"glrt-{r.of(URL_SAFE, 20)}"),
    "GitLab job token": ("CI_JOB_TOKEN", lambda r: f"glcbt-{r.of(HEX, 2)}_{r.of(URL_SAFE, 20)}"),
    "GitLab feed token": ("FEED_TOKEN", lambda r: f"glft-{r.of(URL_SAFE, 20)}"),
    "GitLab agent token": ("AGENT_TOKEN", lambda r: f"glagent-{r.of(URL_SAFE, 50)}"),
    "GitLab OAuth secret": ("GITLAB_SECRET", lambda r: f"gloas-{r.of(HEX, 64)}"),
    "GitLab SCIM token": ("SCIM_TOKEN", lambda r: f"glsoat-{r.of(URL_SAFE, 20)}"),
    "GitLab incoming mail token": ("MAIL_TOKEN", lambda r: f"glimt-{r.of(LOWER + DIGITS, 25)}"),
    "GitLab runner registration": ("REGISTRATION_TOKEN", lambda r: f"GR1348941{r.of(URL_SAFE, 20)}"),
    "AWS access key id": ("AWS_ACCESS_KEY_ID", lambda r: f"AKIA{r.of(UPPER + '234567', 16)}"),
    "Slack bot token": (
        "SLACK_BOT_TOKEN",
        lambda r: f"xoxb-{r.of(DIGITS, 12)}-{r.of(DIGITS, 12)}-{r.of(ALPHANUMERIC, 24)}",
    ),
    "Slack app token": (
        "SLACK_APP_TOKEN",
        lambda r: f"xapp-1-A{r.of(UPPER + DIGITS, 10)}-{r.of(DIGITS, 13)}-{r.of(HEX, 64)}",
    ),
    "Slack webhook": (
        "SLACK_WEBHOOK",
        lambda r: (
            f"https://hooks.slack.com/services/T{r.of(UPPER + DIGITS, 10)}/B{r.of(UPPER + DIGITS, 10)}/{r.of(ALPHANUMERIC, 24)}"
        ),
    ),
    "Google API key": ("GOOGLE_API_KEY", lambda r: f"AIza{r.of(URL_SAFE, 35)}"),
    "Google OAuth secret": ("GOOGLE_CLIENT_SECRET", lambda r: f"GOCSPX-{r.of(URL_SAFE, 28)}"),
    "Google OAuth token": ("GOOGLE_TOKEN", lambda r: f"ya29.{r.of(URL_SAFE, 120)}"),
    "Stripe live key": ("STRIPE_SECRET_KEY", lambda r: f"sk_live_{r.of(ALPHANUMERIC, 24)}"),
    "Stripe restricted key": ("STRIPE_KEY", lambda r: f"rk_live_{r.of(ALPHANUMERIC, 24)}"),
    "Stripe webhook secret": ("STRIPE_WEBHOOK_SECRET", lambda r: f"whsec_{r.of(ALPHANUMERIC, 32)}"),
    "npm token": ("NPM_TOKEN", lambda r: f"npm_{r.of(ALPHANUMERIC, 36)}"),
    "PyPI token": ("TWINE_PASSWORD", lambda r: f"pypi-AgEIcHlwaS5vcmc{r.of(URL_SAFE, 120)}"),
    "RubyGems token": ("GEM_HOST_API_KEY", lambda r: f"rubygems_{r.of(HEX, 48)}"),
    "Hugging Face token": ("HF_TOKEN", lambda r: f"hf_{r.of(LETTERS, 34)}"),
    "Groq key": ("GROQ_API_KEY", lambda r: f"gsk_{r.of(ALPHANUMERIC, 52)}"),
    "Perplexity key": ("PERPLEXITY_API_KEY", lambda r: f"pplx-{r.of(ALPHANUMERIC, 48)}"),
    "Replicate token": ("REPLICATE_API_TOKEN", lambda r: f"r8_{r.of(ALPHANUMERIC, 37)}"),
    "SendGrid key": ("SENDGRID_API_KEY", lambda r: f"SG.{r.of(URL_SAFE, 22)}.{r.of(URL_SAFE, 43)}"),
    "Brevo key": ("BREVO_API_KEY", lambda r: f"xkeysib-{r.of(HEX, 64)}-{r.of(ALPHANUMERIC, 16)}"),
    "Mailgun key": ("MAILGUN_API_KEY", lambda r: f"key-{r.of(HEX, 32)}"),
    "Mailchimp key": ("MAILCHIMP_API_KEY", lambda r: f"{r.of(HEX, 32)}-us{r.randrange(1, 22)}"),
    "DigitalOcean token": ("DIGITALOCEAN_TOKEN", lambda r: f"dop_v1_{r.of(HEX, 64)}"),
    "Shopify token": ("SHOPIFY_ACCESS_TOKEN", lambda r: f"shpat_{r.of(HEX, 32)}"),
    "Shopify shared secret": ("SHOPIFY_API_SECRET", lambda r: f"shpss_{r.of(HEX, 32)}"),
    "Vault token": ("VAULT_TOKEN", lambda r: f"hvs.{r.of(URL_SAFE, 95)}"),
    "age key": ("AGE_KEY", lambda r: f"AGE-SECRET-KEY-1{r.of('QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L', 58)}"),
    "Docker token": ("DOCKER_TOKEN", lambda r: f"dckr_pat_{r.of(URL_SAFE, 27)}"),
    "Atlassian token": (
        "JIRA_API_TOKEN",
        lambda r: f"ATATT3xFfGF0{r.of(URL_SAFE, 171)}={r.of(HEX.upper(), 8)}",
    ),
    "Bitbucket app password": ("BITBUCKET_APP_PASSWORD", lambda r: f"ATBB{r.of(ALPHANUMERIC, 32)}"),
    "Grafana token": ("GRAFANA_TOKEN", lambda r: f"glsa_{r.of(ALPHANUMERIC, 32)}_{r.of(HEX, 8)}"),
    "Linear key": ("LINEAR_API_KEY", lambda r: f"lin_api_{r.of(ALPHANUMERIC, 40)}"),
    "Notion token": ("NOTION_TOKEN", lambda r: f"ntn_{r.of(DIGITS, 11)}{r.of(ALPHANUMERIC, 35)}"),
    "Figma token": ("FIGMA_TOKEN", lambda r: f"figd_{r.of(URL_SAFE, 40)}"),
    "Telegram bot token": (
        "TELEGRAM_BOT_TOKEN",
        lambda r: f"{r.randrange(10**8, 10**10)}:AA{r.of(URL_SAFE, 33)}",
    ),
    "Discord bot token": (
        "DISCORD_TOKEN",
        lambda r: (
            f"{base64.b64encode(str(r.randrange(10**17, 10**18)).encode()).decode().rstrip('=')}"
            f".{r.of(URL_SAFE, 6)}.{r.of(URL_SAFE, 38)}"
        ),
    ),
    "Discord webhook": (
        "DISCORD_WEBHOOK",
        lambda r: f"https://discord.com/api/webhooks/{r.randrange(10**17, 10**18)}/{r.of(URL_SAFE, 68)}",
    ),
    "Twilio key": ("TWILIO_API_KEY", lambda r: f"SK{r.of(HEX, 32)}"),
    "Databricks token": ("DATABRICKS_TOKEN", lambda r: f"dapi{r.of(HEX, 32)}"),
    "Sentry user token": ("SENTRY_AUTH_TOKEN", lambda r: f"sntryu_{r.of(HEX, 64)}"),
    "Sentry organisation token": (
        "SENTRY_AUTH_TOKEN",
        lambda r: f"sntrys_eyJpYXQiO{r.of(ALPHANUMERIC, 120)}_{r.of(BASE64, 43)}",
    ),
    "Sentry DSN": (
        "SENTRY_DSN",
        lambda r: f"https://{r.of(HEX, 32)}@o{r.of(DIGITS, 6)}.ingest.sentry.io/{r.of(DIGITS, 7)}",
    ),
    "Supabase access token": ("SUPABASE_ACCESS_TOKEN", lambda r: f"sbp_{r.of(HEX, 40)}"),
    "Supabase secret key": ("SUPABASE_SECRET_KEY", lambda r: f"sb_secret_{r.of(URL_SAFE, 31)}"),
    "New Relic user key": ("NEW_RELIC_API_KEY", lambda r: f"NRAK-{r.of(UPPER + DIGITS, 27)}"),
    "New Relic license key": ("NEW_RELIC_LICENSE_KEY", lambda r: f"{r.of(HEX, 36)}NRAL"),
    "New Relic insert key": ("NEW_RELIC_INSERT_KEY", lambda r: f"NRII-{r.of(URL_SAFE, 32)}"),
    "Azure AD client secret": (
        "AZURE_CLIENT_SECRET",
        lambda r: f"{r.of(ALPHANUMERIC, 3)}8Q~{r.of(URL_SAFE, 34)}",
    ),
    "Azure storage connection": (
        "AZURE_STORAGE_CONNECTION_STRING",
        lambda r: (
            f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={r.base64(64)};EndpointSuffix=core.windows.net"
        ),
    ),
    "Azure SAS": (
        "SAS_URL",
        lambda r: (
            "https://me.blob.core.windows.net/c/b?sv=2022-11-02&se=2026-01-01T00%3A00%3A00Z&sr=b&sp=r&sig="
            + r.base64(32).replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
        ),
    ),
    "1Password service token": ("OP_SERVICE_ACCOUNT_TOKEN", lambda r: f"ops_eyJ{r.of(ALPHANUMERIC, 400)}"),
    "Doppler token": ("DOPPLER_TOKEN", lambda r: f"dp.pt.{r.of(ALPHANUMERIC, 43)}"),
    "Dynatrace token": (
        "DT_API_TOKEN",
        lambda r: f"dt0c01.{r.of(UPPER + DIGITS, 24)}.{r.of(UPPER + DIGITS, 64)}",
    ),
    "Postman key": ("POSTMAN_API_KEY", lambda r: f"PMAK-{r.of(HEX, 24)}-{r.of(HEX, 34)}"),
    "Pulumi token": ("PULUMI_ACCESS_TOKEN", lambda r: f"pul-{r.of(HEX, 40)}"),
    "PlanetScale token": ("PLANETSCALE_TOKEN", lambda r: f"pscale_tkn_{r.of(URL_SAFE, 43)}"),
    "Square token": ("SQUARE_TOKEN", lambda r: f"sq0atp-{r.of(URL_SAFE, 22)}"),
    "Terraform Cloud token": (
        "TFE_TOKEN",
        lambda r: f"{r.of(ALPHANUMERIC, 14)}.atlasv1.{r.of(URL_SAFE, 67)}",
    ),
    "Plaid token": ("PLAID_ACCESS_TOKEN", lambda r: f"access-sandbox-{r.uuid()}"),
    "HubSpot token": ("HUBSPOT_TOKEN", lambda r: f"pat-na1-{r.uuid()}"),
    "Sonar token": ("SONAR_TOKEN", lambda r: f"squ_{r.of(HEX, 40)}"),
    "JSON web token": ("ID_TOKEN", lambda r: r.jwt()),
}

# Kinds that only their name tells: the names in which they come, and a value as the provider makes it.
NAMED: dict[str, tuple[tuple[str, ...], Callable[[Random], str]]] = {
    "database password": (
        ("DATABASE_PASSWORD", "DB_PASSWORD", "POSTGRES_PASSWORD", "PGPASSWORD"),
        Random.password,
    ),
    "MySQL password": (("MYSQL_PWD", "MYSQL_ROOT_PASSWORD", "MYSQL_PASSWORD"), Random.password),
    "short password": (("REDIS_PASS", "SMTP_PASS", "FTP_PASSWD", "LDAP_BIND_PASSWORD"), Random.password),
    "application secret": (
        ("APP_SECRET", "SESSION_SECRET", "NEXTAUTH_SECRET", "COOKIE_SECRET"),
        lambda r: r.base64(32),
    ),
    "signing secret": (("JWT_SECRET", "SIGNING_SECRET", "WEBHOOK_SECRET"), lambda r: r.of(HEX, 64)),
    "secret key base": (("SECRET_KEY_BASE", "RAILS_MASTER_KEY", "SECRET_KEY"), lambda r: r.of(HEX, 32)),
    "AWS secret key": (("AWS_SECRET_ACCESS_KEY",), lambda r: r.of(BASE64, 40)),
    "AWS session token": (("AWS_SESSION_TOKEN",), lambda r: r.base64(180)),
    "Twilio auth token": (("TWILIO_AUTH_TOKEN",), lambda r: r.of(HEX, 32)),
    "Datadog key": (("DD_API_KEY", "DATADOG_API_KEY"), lambda r: r.of(HEX, 32)),
    "Heroku key": (("HEROKU_API_KEY",), Random.uuid),
    "Snyk token": (("SNYK_TOKEN",), Random.uuid),
    "Cloudflare token": (("CLOUDFLARE_API_TOKEN", "CF_API_TOKEN"), lambda r: r.of(URL_SAFE, 40)),
    "Azure DevOps token": (
        ("AZURE_DEVOPS_PAT", "AZURE_DEVOPS_EXT_PAT"),
        lambda r: r.of(LOWER + "234567", 52),
    ),
    "CircleCI token": (("CIRCLE_TOKEN",), lambda r: r.of(HEX, 40)),
    "Codecov token": (("CODECOV_TOKEN",), Random.uuid),
    "Fastly key": (("FASTLY_API_KEY",), lambda r: r.of(URL_SAFE, 32)),
    "Algolia key": (("ALGOLIA_ADMIN_KEY", "ALGOLIA_API_KEY"), lambda r: r.of(HEX, 32)),
    "Mistral key": (("MISTRAL_API_KEY",), lambda r: r.of(ALPHANUMERIC, 32)),
    "Cohere key": (("COHERE_API_KEY", "CO_API_KEY"), lambda r: r.of(ALPHANUMERIC, 40)),
    "encryption key": (
        ("ENCRYPTION_KEY", "FERNET_KEY"),
        lambda r: base64.urlsafe_b64encode(r.randbytes(32)).decode(),
    ),
    "OAuth client secret": (
        ("CLIENT_SECRET", "OAUTH_CLIENT_SECRET", "AUTH0_CLIENT_SECRET"),
        lambda r: r.of(URL_SAFE, 64),
    ),
    "Vercel token": (("VERCEL_TOKEN",), lambda r: r.of(ALPHANUMERIC, 24)),
    "Sentry old token": (("SENTRY_AUTH_TOKEN",), lambda r: r.of(HEX, 64)),
    "Twitter secret": (
        ("TWITTER_ACCESS_TOKEN_SECRET", "TWITTER_API_SECRET"),
        lambda r: r.of(ALPHANUMERIC, 45),
    ),
    "secret that begins with a slash": (("API_SECRET", "ACCESS_TOKEN"), lambda r: "/" + r.of(BASE64, 39)),
}


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


def _structures() -> dict[str, Callable[[Random], tuple[str, str]]]:
    """Kinds whose surroundings tell: the secret and the text in which it comes."""

    def basic(r: Random) -> str:
        return base64.b64encode(f"user{r.of(DIGITS, 2)}:{r.password()}".encode()).decode()

    def with_password(*texts: str) -> Callable[[Random], tuple[str, str]]:
        def make(r: Random) -> tuple[str, str]:
            value = (
                r.of(ALPHANUMERIC, 3) + str(r.randrange(10)) + r.of(ALPHANUMERIC + "_-.", r.randrange(6, 16))
            )
            return value, r.choice(texts).replace("VALUE", value)

        return make

    def with_value(make_value: Callable[[Random], str], *texts: str) -> Callable[[Random], tuple[str, str]]:
        def make(r: Random) -> tuple[str, str]:
            value = make_value(r)
            return value, r.choice(texts).replace("VALUE", value)

        return make

    def private_key(r: Random) -> tuple[str, str]:
        body = "\n".join(r.of(BASE64, 64) for _ in range(12))
        kind = r.choice(["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"])
        text = f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"
        return body.splitlines()[3], r.choice(
            [text, json.dumps({"private_key": text}), f"cat key.pem\n{text}done"]
        )

    return {
        "Authorization: Basic": with_value(
            basic,
            "Authorization: Basic VALUE",
            '-H "Authorization: Basic VALUE" https://x',
            "{'Authorization': 'Basic VALUE'}",
            '"authorization":"Basic VALUE"',
            "> authorization: Basic VALUE\r\n> accept: */*",
        ),
        "Authorization: Bearer": with_value(
            lambda r: r.of(ALPHANUMERIC, 40),
            "Authorization: Bearer VALUE",
            "curl -H 'Authorization: Bearer VALUE' https://x",
            'headers = {"Authorization": "Bearer VALUE"}',
        ),
        "Authorization: token": with_value(
            lambda r: r.of(HEX, 40),
            "Authorization: token VALUE",
            '"Authorization": "Token VALUE"',
            "Authorization: ApiKey VALUE",
        ),
        "X-Api-Key header": with_value(
            lambda r: r.of(ALPHANUMERIC, 32),
            "X-Api-Key: VALUE",
            "-H 'x-api-key: VALUE'",
            '{"X-API-Key": "VALUE"}',
            "X-Auth-Token: VALUE",
        ),
        "cookie": with_value(
            lambda r: r.of(ALPHANUMERIC, 32),
            "Cookie: theme=dark; session=VALUE; lang=en",
            "Set-Cookie: sessionid=VALUE; Path=/; HttpOnly; Secure",
            "curl -b 'sid=VALUE' https://x",
            '{"cookie": "connect.sid=s%3AVALUE"}',
            "curl --cookie 'auth_token=VALUE' https://x",
            "set-cookie: JSESSIONID=VALUE; Path=/",
        ),
        "cookie jar": with_value(
            lambda r: r.of(HEX, 32), "example.com\tFALSE\t/\tTRUE\t1893456000\tsession\tVALUE"
        ),
        "curl -u": with_password(
            "curl -u admin:VALUE https://x",
            'curl -s --user "me@x.org:VALUE" https://x',
            "curl https://x -u 'svc:VALUE' -o out",
        ),
        "--password": with_password(
            "tool --password=VALUE run",
            "tool --password VALUE",
            "tool --db-password 'VALUE'",
            "tool --api-token=VALUE",
            "tool --secret VALUE",
        ),
        "netrc": with_password(
            "machine api.example.com login me password VALUE",
            "machine api.example.com\n  login me\n  password VALUE\n",
            "machine h\nlogin u\npassword VALUE",
        ),
        "pgpass": with_password("db.example.com:5432:app:me:VALUE"),
        "mysql -p": with_password("mysql -u root -pVALUE app", "mysqldump -h db -u app -pVALUE app > x.sql"),
        "sshpass": with_password("sshpass -p VALUE ssh me@host", "sshpass -p 'VALUE' scp a b:"),
        "docker login": with_password("docker login -u me -p VALUE registry.example.com"),
        "redis-cli": with_password("redis-cli -h r -a VALUE ping"),
        "URL password": with_password(
            "postgres://app:VALUE@db:5432/app",
            "https://me:VALUE@git.example.com/x.git",
            "redis://:VALUE@cache:6379/0",
            "amqp://a:VALUE@q/",
        ),
        "URL query": with_value(
            lambda r: r.of(ALPHANUMERIC, 32),
            "https://x.org/a?page=2&access_token=VALUE&x=1",
            "https://x.org/?api_key=VALUE",
            "wss://x/?token=VALUE",
        ),
        "connection string": with_password(
            "Server=db;Database=app;User Id=sa;Password=VALUE;Encrypt=True",
            "host=db user=me password=VALUE dbname=x",
        ),
        "XML": with_password(
            "<server><username>me</username><password>VALUE</password></server>",
            "<apiKey>VALUEa9b8c7d6</apiKey>",
        ),
        "PHP define": with_password("define('DB_PASSWORD', 'VALUE');", "'password' => 'VALUE',"),
        "SQL": with_password(
            "CREATE USER app IDENTIFIED BY 'VALUE';", "ALTER ROLE app WITH PASSWORD 'VALUE';"
        ),
        "Dockerfile": with_password("ENV DB_PASSWORD VALUE", "ARG API_TOKEN=VALUE"),
        "kubectl": with_password("kubectl create secret generic db --from-literal=password=VALUE"),
        "Kubernetes secret": with_value(
            lambda r: base64.b64encode(r.password().encode()).decode(),
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\ntype: Opaque\ndata:\n  credentials:"
            " VALUE\n",
            "apiVersion: v1\ndata:\n  db: VALUE\nkind: Secret\nmetadata:\n  name: db\n",
            '{"apiVersion":"v1","data":{"db":"VALUE"},"kind":"Secret"}',
        ),
        "npmrc": with_value(
            lambda r: r.of(BASE64, 44),
            "//registry.example.com/:_authToken=VALUE",
            "//r.example.com/:_password=VALUE",
        ),
        "docker config": with_value(basic, '{"auths": {"https://index.docker.io/v1/": {"auth": "VALUE"}}}'),
        "AWS credentials file": with_value(
            lambda r: r.of(BASE64, 40),
            "[default]\naws_access_key_id = X\naws_secret_access_key = VALUE\n",
            "aws configure set aws_secret_access_key VALUE",
        ),
        "AWS signed URL": with_value(
            lambda r: r.of(HEX, 64), "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature=VALUE"
        ),
        "private key": private_key,
    }


@dataclass(frozen=True, slots=True)
class Planted:
    """A secret in a text."""

    kind: str
    secret: str
    text: str


def environment(r: Random) -> dict[str, str]:
    """Variables of the process itself, whose values must not appear in any form."""
    return {
        "OWN_SERVICE_TOKEN": r.base64(45),
        "OWN_DB_PWD": "/" + r.of(BASE64, 31),
        "OWN_LDAP_PASS": "~/" + r.of(ALPHANUMERIC, 22),
        "OWN_SIGNING_SECRET": "/" + r.of(BASE64, 42) + "=",
    }


def _own(r: Random, environ: dict[str, str], each: int) -> Iterator[Planted]:
    for name, value in environ.items():
        for _ in range(max(1, each // 4)):
            yield Planted(f"own variable {name}", value, f"the log says {value} at {r.randrange(60)}")
            before = r.of(ALPHANUMERIC + " \n", r.randrange(20, 160)).encode()
            data = before + value.encode() + b" and more\n" * r.randrange(1, 9)
            whole = base64.b64encode(data).decode()
            line = max(whole[at : at + 8] for at in range(0, len(whole), 8))
            del line
            wrapped = "\n".join(whole[at : at + 76] for at in range(0, len(whole), 76))
            # What of the value is the same wherever it lies: eight letters in its middle.
            start = -(-len(before) // 3) * 4 + 4
            yield Planted("base64 wrapped at 76 columns", whole[start : start + 12], wrapped)


def corpus(seed: int, each: int) -> tuple[list[Planted], dict[str, str]]:
    """Planted secrets, `each` of a kind, and the variables of the process that some of them are values of."""
    r = Random(seed)
    environ = environment(r)
    found = list(_own(r, environ, each))
    for kind, (name, make) in FORMED.items():
        for number in range(each):
            value = make(r)
            texts = list(_formed(name, value))
            found.append(Planted(kind, value, texts[number % len(texts)]))
    for kind, (names, make) in NAMED.items():
        for number in range(each):
            value = make(r)
            texts = list(_in_files(r.choice(names), value))
            found.append(Planted(kind, value, texts[number % len(texts)]))
    for kind, make_both in _structures().items():
        for _ in range(each):
            value, text = make_both(r)
            found.append(Planted(kind, value, text))
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
            own = f"{kind}-{number}"
            record = {
                "type": kind,
                "uuid": own,
                "parentUuid": last,
                "message": message,
                "timestamp": "2026-01-01T00:00:00.000Z",
            }
            yield json.dumps(about | record, separators=(",", ":"))
            last = own


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
    arguments = parser.parse_args()
    planted, environ = corpus(arguments.seed, arguments.each)
    kinds = len({one.kind for one in planted})
    print(f"{len(planted):,} secrets of {kinds} kinds")
    for name, judged in (
        ("import", by_import(planted, Redactor(environ))),
        ("run", by_run(planted, Redactor(environ))),
    ):
        recall = Recall.of(judged)
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
