r"""Secrets that are known by their own form: the tokens that providers document, URLs with a password, private
keys.

The forms are facts from the providers' documentation; which providers have one was looked up in the rule sets
of gitleaks (MIT) and detect-secrets (Apache-2.0). `docs/redaction.md` names both.

Each form is written once. From it come the expression that replaces a secret in a text, and a wider one for
the search through whole logs, where JSON may have written a slash as `\/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from watchkeeper.records.text import lazily

# --- Which environment variables, headers and options are secret by their name ----------------------------

SECRET_NAMES = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|AUTH|DATABASE_URL|DSN|COOKIE|CONNECTION_STRING"
    r"|(?:^|[_-])(?:PASS|PWD|PW|PAT|CREDS|JWT)(?:$|[_-])|SSHPASS",
    re.IGNORECASE,
)
PUBLIC_NAMES = re.compile(
    r"(SOCK|SOCKET|PATH|FILE|DIR|PID|AUTHORITY|KEYMAP|KEYBOARD\w*|^(?:OLD)?PWD)$", re.IGNORECASE
)
"""Variables that say where something secret lies, or nothing secret at all: `SSH_AUTH_SOCK`, `XAUTHORITY`."""
_PEM = "-----? ?{} (?:[A-Z0-9]+ ){{0,3}}PRIVATE KEY(?: BLOCK)? ?-----?"
_PEM_BREAK = r"(?:\s|[0-9]{1,7}(?:→|\t)|\\{0,7}[\"'+,|>]){1,40}"
"""What may lie between two lines of a key's base64: also a line number, quotes, a `+` of a diff."""
_PEM_TAIL = rf"(?<![A-Za-z0-9+/=])(?>(?:[A-Za-z0-9+/]{{40,80}}{_PEM_BREAK}){{1,100}})(?:[A-Za-z0-9+/=]{{1,80}}{_PEM_BREAK})?"
_PART = r"""[^\s/?#:@\"'<>\\`]"""
"""A character of a URL's user or password."""

WORD, LETTERS, HEX = "[A-Za-z0-9_-]", "[A-Za-z0-9]", "[a-f0-9]"
BASE64 = "[A-Za-z0-9+/]"
_UUID = f"{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}"
_MARKED = "(?:sk|key|tok|token|tkn|secret|sec|pat|oat|auth|pw|api|live|prod|SECRET|TOKEN)"
"""What providers name in a token's prefix: what it is, and of what it is one."""
_LATIN_PART = _PART.replace(r"\s", r" \t\r\n")
"""Without other spaces: where a text is searched by its bytes, they are parts of letters."""
_UUID_START = f"{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}"
_APART = rf"(?<!{LETTERS})"
"""No part of a longer word."""
_GITLAB_KINDS = ("pat", "ptt", "dt", "rt", "rtr", "cbt", "soat", "ft", "imt", "ffct", "agent", "oas", "wt")
_LOGGED_PART = rf"(?:{_LATIN_PART}|\\u00[0-9a-fA-F]{{2}})"
_SLASH = r"\\*/"


@dataclass(frozen=True, slots=True)
class Shape:
    """One form of secret.

    `expression` finds it in a text; what its group `kept` holds is not replaced. `telling` is found in every
    text and in every line of JSON that holds one.
    """

    name: str
    hint: str
    """A part of every match, looked for before the expression."""
    expression: str
    telling: str


_ENOUGH_TO_TELL = 16
"""Characters behind a token's prefix that are searched for: more of them make the search slow, and hardly ever stop
it."""


def _token(name: str, prefix: str, characters: str, least: int) -> Shape:
    """A token that begins with `prefix` and goes on with `characters`, the last of them at least so many
    times."""
    before = _APART if prefix[0].isalnum() else ""
    escaped = prefix.replace(".", r"\.").replace("$", r"\$")
    # JSON may write a slash as `\/`: a telling text only counts what comes before the first one.
    shown = characters.replace("/", r"/\\")
    rest = "=*" if "/" in characters else ""
    begins = escaped.replace("/", _SLASH)
    telling = _SHARED.get(prefix, f"{begins}{shown}{{{min(least, _ENOUGH_TO_TELL)}}}")
    # A longer token than documented is one whole.
    return Shape(
        name, prefix, f"{before}{escaped}{characters}{{{least},}}{rest or '[A-Za-z0-9_-]*'}", telling
    )


_SK = rf"sk-(?:ant-|proj-|svcacct-|admin-|{WORD}*{LETTERS}{{16}})"
_SHARED = {
    **dict.fromkeys(("sk-ant-", "sk-proj-", "sk-svcacct-", "sk-admin-"), _SK),
    **dict.fromkeys(("dop_v1_", "doo_v1_", "dor_v1_"), f"_v1_{HEX}{{64}}"),
    **{
        f"{kind}_{mode}_": f"k_{mode}_{LETTERS}{{10}}"
        for kind in ("sk", "rk")
        for mode in ("live", "test", "prod")
    },
    **dict.fromkeys(("shpat_", "shpca_", "shppa_", "shpss_", "shptka_"), f"shp[a-z]{{2,3}}_{LETTERS}{{32}}"),
    **dict.fromkeys(("sntrys_", "sntryu_", "sntrya_", "sntryi_"), r"sntry[suai]_[A-Za-z0-9+/\\=_-]{40}"),
    **dict.fromkeys(
        ("dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."),
        r"dp\.[a-z]{2,5}\.[A-Za-z0-9_.-]{40}",
    ),
    **dict.fromkeys(("dckr_pat_", "dckr_oat_"), f"dckr_[po]at_{WORD}{{20}}"),
    **dict.fromkeys(("lin_api_", "lin_oauth_"), f"lin_[a-z]{{3,5}}_{LETTERS}{{30}}"),
    **dict.fromkeys(("cfat_", "cfut_", "cfk_"), f"cf[auk]t?_{LETTERS}{{12}}"),
    "ion_": f"ion_{LETTERS}{{40}}",
    **dict.fromkeys(("xkeysib-", "xsmtpsib-"), "sib-[a-zA-Z0-9-]{70}"),
}
"""Prefixes that are looked for together: the fewer beginnings there are, the faster the search is."""

_TOKENS: tuple[tuple[str, str, str, int], ...] = (
    ("anthropic-key", "sk-ant-", WORD, 16),
    ("openai-key", "sk-proj-", WORD, 40),
    ("openai-key", "sk-svcacct-", WORD, 40),
    ("openai-key", "sk-admin-", WORD, 40),
    *(("github-token", f"gh{kind}_", LETTERS, 30) for kind in "pousr"),
    ("github-token", "github_pat_", "[A-Za-z0-9_]", 30),
    *(("gitlab-token", f"gl{kind}-", "[A-Za-z0-9_.-]", 20) for kind in _GITLAB_KINDS),
    ("gitlab-token", "GR1348941", WORD, 20),
    ("slack-token", "xapp-", "[A-Za-z0-9-]", 20),
    ("google-key", "AIza", WORD, 35),
    ("google-token", "ya29.", WORD, 20),
    ("google-secret", "GOCSPX-", WORD, 20),
    ("stripe-secret", "whsec_", BASE64, 24),
    *(
        ("stripe-key", f"{kind}_{mode}_", f"{LETTERS}{{10}}[A-Za-z0-9+/=_]", 0)
        for kind in ("sk", "rk")
        for mode in ("live", "test", "prod")
    ),
    ("npm-token", "npm_", LETTERS, 36),
    ("pypi-token", "pypi-", WORD, 50),
    ("rubygems-token", "rubygems_", HEX, 48),
    ("huggingface-token", "hf_", LETTERS, 30),
    ("groq-key", "gsk_", LETTERS, 40),
    ("xai-key", "xai-", WORD, 60),
    ("perplexity-key", "pplx-", LETTERS, 40),
    ("replicate-token", "r8_", LETTERS, 30),
    ("tavily-key", "tvly-", WORD, 20),
    ("nvidia-key", "nvapi-", WORD, 40),
    ("pinecone-key", "pcsk_", "[A-Za-z0-9_]", 40),
    ("langsmith-key", "lsv2_", "[A-Za-z0-9_]", 36),
    ("sendgrid-key", "SG.", "[A-Za-z0-9_.-]", 60),
    ("brevo-key", "xkeysib-", "[a-zA-Z0-9-]", 70),
    ("brevo-key", "xsmtpsib-", "[a-zA-Z0-9-]", 70),
    ("mailgun-key", "key-", HEX, 32),
    *(("digitalocean-token", f"do{kind}_v1_", HEX, 64) for kind in "por"),
    *(("shopify-token", f"shp{kind}_", LETTERS, 32) for kind in ("at", "ca", "pa", "ss", "tka")),
    ("vault-token", "hvs.", WORD, 24),
    ("vault-token", "hvb.", WORD, 60),
    ("age-key", "AGE-SECRET-KEY-1", "[A-Z0-9]", 50),
    ("docker-token", "dckr_pat_", WORD, 20),
    ("docker-token", "dckr_oat_", WORD, 20),
    ("atlassian-token", "ATATT3", "[A-Za-z0-9_=-]", 40),
    ("atlassian-token", "ATCTT3", "[A-Za-z0-9_=-]", 40),
    ("bitbucket-token", "ATBB", LETTERS, 28),
    ("trello-token", "ATTA", HEX, 64),
    ("grafana-token", "glsa_", "[A-Za-z0-9_]", 30),
    ("grafana-token", "glc_", BASE64, 32),
    ("grafana-token", "eyJrIjoi", LETTERS, 60),
    ("linear-key", "lin_api_", LETTERS, 30),
    ("linear-key", "lin_oauth_", HEX, 40),
    ("notion-token", "ntn_", LETTERS, 40),
    ("notion-token", "secret_", LETTERS, 43),
    ("figma-token", "figd_", WORD, 36),
    ("databricks-token", "dapi", "[a-fA-F0-9]{31}[a-fA-F0-9-]", 1),
    ("databricks-token", "dose", "[a-fA-F0-9]{31}[a-fA-F0-9-]", 1),
    *(("sentry-token", f"sntry{kind}_", "[A-Za-z0-9+/=_-]", 40) for kind in "suai"),
    ("supabase-token", "sbp_", "[A-Za-z0-9_]", 36),
    ("supabase-key", "sb_secret_", WORD, 20),
    *(("newrelic-key", f"NRA{kind}-", LETTERS, 27) for kind in "KA"),
    *(("newrelic-key", f"NRI{kind}-", WORD, 32) for kind in "IQ"),
    ("newrelic-key", "NRJS-", HEX, 19),
    ("newrelic-key", "NRBR-", HEX, 19),
    ("twilio-key", "SK", HEX, 32),
    ("twilio-id", "AC", HEX, 32),
    ("1password-token", "ops_eyJ", BASE64, 200),
    ("1password-key", "A3-", "[A-Z0-9]{6}-[A-Z0-9-]", 28),
    *(
        ("doppler-token", f"dp.{kind}.", "[A-Za-z0-9_.-]", 40)
        for kind in ("pt", "st", "ct", "sa", "scim", "audit")
    ),
    ("dynatrace-token", "dt0c01.", "[A-Za-z0-9.]", 60),
    ("fly-token", "fo1_", WORD, 43),
    ("fly-token", "fm2_", BASE64, 100),
    ("fly-token", "fm1a_", BASE64, 100),
    ("fly-token", "fm1r_", BASE64, 100),
    ("postman-key", "PMAK-", "[A-Za-z0-9-]", 50),
    ("pulumi-token", "pul-", HEX, 40),
    ("square-token", "sq0atp-", WORD, 22),
    ("square-secret", "sq0csp-", WORD, 43),
    ("square-token", "EAAA", WORD, 56),
    ("openshift-token", "sha256~", WORD, 43),
    ("planetscale-token", "pscale_", "(?:tkn|oauth|pw)_[A-Za-z0-9_=.-]", 32),
    ("plaid-token", "access-", f"(?:sandbox|development|production)-{_UUID_START}", 12),
    ("sonar-token", "squ_", HEX, 40),
    ("sonar-token", "sqp_", HEX, 40),
    ("sourcegraph-token", "sgp_", "(?:[a-fA-F0-9]{16}_|local_){0,2}[a-fA-F0-9]", 40),
    ("alibaba-key", "LTAI", LETTERS, 16),
    ("artifactory-key", "AKCp", LETTERS, 60),
    ("hubspot-token", "pat-", "(?:na|eu|ap)[0-9]-[a-z0-9]{8}-[a-z0-9]{4}-[a-z0-9-]", 22),
    ("circleci-token", "CCIPAT_", "[A-Za-z0-9_]", 40),
    ("heroku-key", "HRKU-", WORD, 36),
    ("netlify-token", "nfp_", LETTERS, 36),
    ("tailscale-key", "tskey-", "[A-Za-z0-9-]", 20),
    ("posthog-key", "phx_", WORD, 40),
    ("aws-bedrock-key", "ABSK", BASE64, 100),
    ("mandrill-key", "md-", WORD, 22),
    ("cloudflare-key", "v1.0-", "[a-f0-9]{24}-[a-f0-9]", 100),
    ("vault-token", "hvr.", WORD, 60),
    ("airtable-token", "pat", rf"[A-Za-z0-9]{{14}}\.{HEX}", 64),
    ("huggingface-token", "api_org_", LETTERS, 30),
    ("fireworks-key", "fw_", LETTERS, 22),
    ("cerebras-key", "csk-", LETTERS, 40),
    ("langfuse-key", "sk-lf-", _UUID_START, 12),
    ("elevenlabs-key", "sk_", HEX, 48),
    ("jina-key", "jina_", WORD, 50),
    ("wandb-key", "wandb_v1_", WORD, 60),
    ("vercel-token", "vercel_blob_rw_", WORD, 40),
    ("render-token", "rnd_", LETTERS, 28),
    ("easypost-key", "EZAK", LETTERS, 54),
    ("easypost-key", "EZTK", LETTERS, 54),
    ("duffel-token", "duffel_live_", "[A-Za-z0-9=_-]", 40),
    ("duffel-token", "duffel_test_", "[A-Za-z0-9=_-]", 40),
    ("buildkite-token", "bkua_", LETTERS, 40),
    ("infracost-key", "ico-", LETTERS, 32),
    ("resend-key", "re_", f"{LETTERS}{{8}}_{LETTERS}", 22),
    ("facebook-token", "EAA", LETTERS, 100),
    ("braintree-token", "access_token$", r"(?:production|sandbox)\$[a-z0-9]{16}\$[a-f0-9]", 32),
    ("neon-key", "napi_", "[a-z0-9]", 60),
    ("contentful-token", "CFPAT-", WORD, 40),
    ("segment-token", "sgp_", LETTERS, 60),
    ("typeform-token", "tfp_", WORD, 40),
    ("launchdarkly-key", "sdk-", _UUID_START, 12),
    ("launchdarkly-key", "api-", _UUID_START, 12),
    ("prefect-token", "pnu_", LETTERS, 36),
    ("readme-key", "rdme_", "[a-z0-9]", 60),
    ("shippo-token", "shippo_live_", HEX, 40),
    ("adafruit-key", "aio_", LETTERS, 28),
    ("lob-key", "live_", HEX, 35),
    ("gocardless-token", "live_", WORD, 28),
    ("aws-bedrock-key", "bedrock-api-key-", "[A-Za-z0-9+/]", 40),
    ("clickup-token", "pk_", "[0-9]{6,12}_[A-Z0-9]", 30),
    ("together-key", "tgp_v1_", WORD, 40),
    ("sonar-token", "sqa_", HEX, 40),
    ("infisical-token", "st.", rf"{HEX}{{20,24}}\.{HEX}{{32}}\.{HEX}", 20),
    ("xata-key", "xau_", LETTERS, 36),
    ("adobe-secret", "p8e-", WORD, 30),
    ("frameio-token", "fio-u-", "[A-Za-z0-9=_-]", 60),
    ("nuget-key", "oy2", "[a-z0-9]", 43),
    ("stytch-secret", "secret-live-", WORD, 30),
    ("crates-token", "cio", LETTERS, 32),
    ("artifactory-key", "cmVmdGtu", LETTERS, 50),
    ("clickhouse-key", "4b1d", LETTERS, 38),
    ("cursor-key", "key_", HEX, 64),
    ("deno-token", "ddp_", LETTERS, 30),
    ("deno-token", "ddo_", LETTERS, 30),
    ("harness-token", "pat.", rf"{WORD}{{22}}\.{LETTERS}{{24}}\.{LETTERS}", 20),
    ("harness-token", "sat.", rf"{WORD}{{22}}\.{LETTERS}{{24}}\.{LETTERS}", 20),
    ("razorpay-key", "rzp_", "(?:live|test)_[A-Za-z0-9]{14}:?[A-Za-z0-9]", 8),
    ("rootly-key", "rootly_", HEX, 60),
    ("zuplo-key", "zpka_", "[a-f0-9_]", 32),
    ("registry-credentials", "eyJhdXRocyI6", "[A-Za-z0-9+/]", 20),
    ("voyage-key", "pa-", WORD, 40),
    ("scaleway-key", "SCW", "[A-Z0-9]", 17),
    ("ory-token", "ory_", "(?:pat|at|st|rt|ac)_[A-Za-z0-9_.-]", 30),
    ("polar-token", "polar_", "[a-z]{2,4}_[A-Za-z0-9]", 30),
    ("wakatime-key", "waka_", _UUID_START, 12),
    ("honeycomb-key", "hcaik_", "[a-z0-9_]", 40),
    ("axiom-token", "xaat-", _UUID_START, 12),
    ("axiom-token", "xapt-", _UUID_START, 12),
    ("runpod-key", "rpa_", LETTERS, 40),
    ("neon-password", "npg_", LETTERS, 10),
    ("aiven-password", "AVNS_", WORD, 15),
    ("mongodb-secret", "mdb_sa_sk_", WORD, 30),
    ("dropbox-token", "sl.", WORD, 100),
    ("octopus-key", "API-", "[A-Z0-9]", 25),
    ("dbt-token", "dbt", "[cstu]_[A-Za-z0-9_=-]", 30),
    *(("vercel-token", f"vc{kind}_", LETTERS, 24) for kind in "piark"),
    ("mapbox-token", "sk.eyJ", r"[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]", 20),
    ("tencent-key", "AKID", LETTERS, 32),
    ("yandex-key", "AQVN", WORD, 35),
    ("yandex-token", "y0_", WORD, 40),
    ("clojars-token", "CLOJARS_", "[a-z0-9]", 60),
    ("firecrawl-key", "fc-", HEX, 32),
    ("e2b-key", "e2b_", HEX, 40),
    ("cal-key", "cal_live_", HEX, 32),
    ("flutterwave-key", "FLWSECK", "(?:_TEST)?-[a-zA-Z0-9-]", 12),
    ("aws-session-token", "IQoJb3JpZ2lu", "[A-Za-z0-9+/]", 100),
    ("aws-session-token", "FwoGZXIvYXdz", "[A-Za-z0-9+/]", 100),
    ("fernet-token", "gAAAAA", "[A-Za-z0-9_-]", 80),
    ("intercom-token", "dG9rO", "[A-Za-z0-9+/]", 50),
    ("snyk-token", "snyk_", r"[a-z]{2,4}\.[a-f0-9]{8}\.[A-Za-z0-9_.-]", 20),
    ("paddle-key", "pdl_", "(?:live|sdbx)_[a-z]{2,8}_[A-Za-z0-9_]", 20),
    ("statsig-key", "secret-", "[A-Za-z0-9]", 40),
    ("posthog-key", "phs_", LETTERS, 40),
    ("checkly-key", "cu_", HEX, 32),
    ("daytona-key", "dtn_", HEX, 64),
    ("llama-key", "llx-", WORD, 40),
    ("mem0-key", "m0-", LETTERS, 40),
    ("dingtalk-secret", "SEC", HEX, 64),
    ("appsync-key", "da2-", "[a-z0-9]", 26),
    ("aws-mws-token", "amzn.mws.", _UUID_START, 12),
    ("defined-key", "dnkey-", "[A-Za-z0-9=_-]", 60),
    ("onesignal-key", "os_v2_", "(?:app|org)_[a-z0-9]", 60),
    ("onfido-token", "api_", r"(?:live|sandbox)(?:_[a-z]{2})?\.[A-Za-z0-9_-]{8,16}\.[A-Za-z0-9_-]", 30),
    ("firebase-key", "AAAA", "[A-Za-z0-9_-]{7}:APA91b[A-Za-z0-9_-]", 100),
    ("tinybird-token", "p.eyJ", r"[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]", 20),
    ("twitter-token", "AAAAAAAAAAAAAAAAAAAA", "[A-Za-z0-9%]", 60),
    ("fauna-secret", "fnA", WORD, 36),
    *(("cloudflare-key", f"cf{kind}_", f"{LETTERS}{{40}}[a-f0-9]", 8) for kind in ("at", "ut", "k")),
    ("klaviyo-key", "pk_", HEX, 34),
    ("artifactory-key", "cmVm", LETTERS, 60),
    ("bitbucket-token", "BBDC-", "[A-Za-z0-9+/@_-]", 40),
    ("dropbox-token", "sl.u.", WORD, 100),
    ("modal-token", "as-", LETTERS, 22),
    ("modal-token", "ak-", LETTERS, 22),
    ("nylas-key", "nyk_", "v[0-9]_[A-Za-z0-9]", 40),
    ("scalingo-token", "tk-us-", WORD, 48),
    ("yandex-token", "t1.", r"[A-Za-z0-9_-]{20,}=*\.[A-Za-z0-9_-]", 80),
    ("unkey-key", "unkey_", LETTERS, 20),
    ("inngest-key", "signkey-", "[a-z]{2,10}-[a-f0-9]", 40),
    ("browserbase-key", "bb_live_", WORD, 24),
    ("settlemint-token", "sm_", "[aps]at_[A-Za-z0-9]", 16),
    ("intra42-secret", "s-s4t2", "(?:ud|af)-[a-f0-9]", 64),
    ("kraken-key", "sk_", "(?:ut|bo)_[A-Za-z0-9]", 40),
    ("ramp-secret", "ramp_sec_", LETTERS, 40),
    ("squarespace-key", "sqco_", LETTERS, 50),
    ("sourcegraph-token", "slk_", HEX, 64),
    ("voiceflow-key", "VF.", r"(?:DM\.|WS\.)?[A-Za-z0-9]{24}\.[A-Za-z0-9]", 16),
    ("bitfinex-key", "BBFF-", LETTERS, 30),
    ("dub-key", "dub_", LETTERS, 24),
    ("jumpcloud-key", "jca_", LETTERS, 36),
    ("mintlify-key", "mint_", LETTERS, 24),
    ("qovery-token", "qov_", LETTERS, 50),
    ("stackhawk-key", "hawk.", r"[A-Za-z0-9]{20}\.[A-Za-z0-9]", 20),
    ("woocommerce-key", "cs_", HEX, 40),
    ("robinhood-key", "rh-api-", _UUID_START, 12),
    ("zoho-token", "1000.", rf"{HEX}{{32}}\.{HEX}", 32),
    ("atlassian-token", "ATSTT3", "[A-Za-z0-9_=-]", 40),
    ("lob-key", "test_", HEX, 35),
    ("github-token", "ghs_", r"[0-9]{1,20}_eyJ[A-Za-z0-9_.-]", 40),
    ("dependency-track-key", "odt_", LETTERS, 32),
    ("flexport-key", "shltm_", WORD, 40),
    ("jwt", "ZXlK", "[A-Za-z0-9+/]", 60),
    ("nightfall-key", "NF-", LETTERS, 32),
    ("telnyx-key", "KEY", WORD, 50),
    ("teamwork-token", "tkn.v1_", WORD, 60),
    ("scrapfly-key", "scp-live-", LETTERS, 32),
    ("ionic-token", "ion_", LETTERS, 40),
    ("tickettailor-key", "sk_", "[0-9]{3,8}_[0-9]{3,8}_[a-f0-9]", 32),
    ("volcengine-key", "AKLT", "[A-Za-z0-9=]", 40),
    ("anyscale-key", "esecret_", "[a-z0-9]", 24),
    ("google-key", "AQ.Ab", WORD, 40),
    *(("nats-seed", f"S{kind}", "[A-Z0-9]", 56) for kind in "UAO"),
    ("bitcoin-key", "xprv", LETTERS, 100),
    ("nostr-key", "nsec1", "[a-z0-9]", 58),
    ("tezos-key", "edsk", LETTERS, 50),
    ("minisign-key", "RWRTY0Iy", BASE64, 60),
    ("configcat-key", "configcat-sdk-1/", "[A-Za-z0-9_/-]", 40),
    *(
        ("mercadopago-token", f"{mode}-", "[0-9]{10,19}-[0-9]{6}-[a-f0-9]", 32)
        for mode in ("APP_USR", "TEST")
    ),
)
"""Name, prefix, the characters behind it, and how often the last of them comes at least."""

_DISCORD_ID = "(?:[MNO][DTjz][AEIMQUYcgk][w-z0-5])"
"""Four letters of base64 that represent three digits: a Discord token starts with the account's number."""
URL = rf":{_SLASH}{_SLASH}(?:{WORD}{{20,}}|{_LOGGED_PART}*:(?:{_LOGGED_PART}{{6,}}|{_LOGGED_PART}+@{_LOGGED_PART}+))@"
_AZURE_MARKS = r"AzFu|AzSe|AzCa|ACDb|\+ASt|\+AEh|\+ASb|\+ACR|AIoT|APIM"
"""What Azure writes into its keys so that they are recognised."""
_AZURE = "[A-Za-z0-9_~.-]"
_TEAMS = "[A-Za-z0-9@-]{20,90}/IncomingWebhook/[A-Za-z0-9-]{20,40}/[A-Za-z0-9-]{20,40}"

_CRYPT = (
    "2a",
    "2b",
    "2y",
    "2x",
    "8",
    "9",
    "apr1",
    "scrypt",
    "gy",
    "1",
    "5",
    "6",
    "7",
    "y",
    "argon2id",
    "argon2i",
    "pbkdf2-sha256",
    "pbkdf2-sha512",
)
"""How `crypt(3)` and others name their methods."""
_SALTED = "[./A-Za-z0-9]"
_HASH = (
    rf"\$2[abxy]\$[0-9]{{2}}\${_SALTED}{{53}}|\$(?:apr1|1)\${_SALTED}{{1,8}}\${_SALTED}{{22}}"
    rf"|\$[89]\${_SALTED}{{14}}\${_SALTED}{{43}}|\$[56]\$(?:rounds=[0-9]{{1,9}}\$)?{_SALTED}{{1,16}}\${_SALTED}{{43,86}}|\$(?:y|gy"
    rf"|7)\${_SALTED}{{1,16}}\${_SALTED}{{1,86}}(?:\${_SALTED}{{43}})?"
    r"|\$argon2(?:id|i|d)\$v=[0-9]{1,3}\$[mtpk=0-9,]{1,40}\$[A-Za-z0-9+/]{8,86}\$[A-Za-z0-9+/]{16,86}"
    rf"|\$(?:pbkdf2-sha(?:1|256|512)|pbkdf2|scrypt)\$[A-Za-z0-9,=]{{1,30}}\${_SALTED}{{8,86}}\${_SALTED}{{16,90}}"
    r"|pbkdf2_sha(?:1|256)\$[0-9]{1,8}\$[A-Za-z0-9]{1,40}\$[A-Za-z0-9+/]{27,44}=?"
    r"|SCRAM-SHA-(?:1|256)\$[0-9]{1,7}:[A-Za-z0-9+/=]{8,64}\$[A-Za-z0-9+/=]{20,64}:[A-Za-z0-9+/=]{20,64}"
)
"""Hashes of passwords, as `crypt(3)`, `htpasswd`, Django, PostgreSQL and argon2 write them."""

SHAPES: tuple[Shape, ...] = (
    Shape("private-key", "PRIVATE KEY", rf"{_PEM.format('BEGIN')}.*?(?:{_PEM.format('END')}|\Z)", "PRIVATE KEY"),
    # The end of a key whose beginning was read before.
    Shape("private-key", "PRIVATE KEY", rf"{_PEM_TAIL}(?={_PEM.format('END')})", "PRIVATE KEY"),
    # A whole key in base64, as in a kubeconfig: no certificate and no public key.
    Shape("private-key", "LS0tLS1CRUdJTiB", r"LS0tLS1CRUdJTiB(?!DRVJU|QVUJMSU|SU0EgUFVC|FQyBQVU|YNTA5|QR1Ag(?!UFJJ))"
          rf"(?:{BASE64}{{60,}}\s{{1,40}}){{0,400}}{BASE64}{{20,}}=*",
          f"LS0tLS1CRUdJTiB{LETTERS}"),
    Shape("private-key", "Private-Lines:", r"(?P<kept>Private-Lines: [0-9]{1,4}\r?\n)"
                                           r"(?:(?:[^\s:]{1,100}:[0-9]{1,6}:|[ \t]*[0-9]{1,6}(?:→|\t))?"
                                           r"[+ -]?[A-Za-z0-9+/=]{1,80}(?:\r?\n|(?=\\*\"|\Z)))+", "Private-Lines:"),
    Shape("password-hash", "$", rf"(?<![A-Za-z0-9$\\])(?:{_HASH})(?![./A-Za-z0-9$])",
          "\n".join((*(rf"\${mark}\$" for mark in _CRYPT), "pbkdf2_sha", "SCRAM-SHA-"))),
    Shape("password-hash", "SHA}", r"(?P<kept>\{S?SHA\})[A-Za-z0-9+/]{27,60}={0,2}", r"SHA\}[A-Za-z0-9+/\\]{20}"),
    Shape("azure-key", "A", rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{30,80}}(?:{_AZURE_MARKS})[A-Za-z0-9+/_-]{{4,16}}={{0,2}}(?!"
                            rf"[A-Za-z0-9+/=_-])",
          "\n".join(f"{mark}[A-Za-z0-9+/\\\\_-]{{4}}" for mark in _AZURE_MARKS.replace(r"\+", "").split("|"))),
    Shape("azure-key", "JQQJ9", rf"{_APART}{LETTERS}{{40,60}}JQQJ9{LETTERS}{{15,40}}(?!{LETTERS})", "JQQJ9"),
    Shape("rapidapi-key", "msh", rf"{_APART}{HEX}{{10}}msh{HEX}{{15}}p1{HEX}{{6}}jsn{HEX}{{12}}", f"msh{HEX}{{15}}p1"),
    Shape("mailgun-key", "-", rf"(?<![A-Za-z0-9-]){HEX}{{32}}-{HEX}{{8}}-{HEX}{{8}}(?![A-Za-z0-9-])", f"-{HEX}{{8}}-{HEX}{{8}}"),
    Shape("salesforce-token", "00D", rf"{_APART}00D{LETTERS}{{12}}(?:{LETTERS}{{3}})?![A-Za-z0-9_.]{{60,}}", f"00D{LETTERS}{{12,15}}!"),
    Shape("authress-key", ".acc", rf"{_APART}(?:sc|ext|scauth|authress)_[A-Za-z0-9]{{5,30}}\.[A-Za-z0-9]{{4,6}}"
          r"\.acc[_-][A-Za-z0-9-]{10,32}\.[A-Za-z0-9+/_=-]{30,}", r"\.acc[_-]"),
    Shape("maxmind-key", "_mmk", rf"{_APART}{LETTERS}{{6}}_{LETTERS}{{29}}_mmk", "_mmk"),
    Shape("url-token", "@", r"(?P<kept>https://)(?=[^\s/:@\"']{0,100}[0-9])[^\s/:@\"'<>\\$]{8,200}(?=@(?:github\.com"
                            r"|gitlab\.com|bitbucket\.org|dev\.azure\.com))",
          "@github\\.com\n@gitlab\\.com\n@bitbucket\\.org\n@dev\\.azure"),
    Shape("azure-key", "keyName", r"(?P<kept>keyName[^{}]{1,200}?[Vv]alue\\{0,7}[\"']?\s*[:=]\s*\\{0,7}[\"']?)[A-Za-z0-9+/]{40,}=*", "keyName"),
    Shape("twilio-token", "AC",
          rf"""(?P<kept>{_APART}AC{HEX}{{32}}[\"'`\\]{{0,8}}[ ,:]{{1,4}}[\"'`\\]{{0,8}}){HEX}{{32}}(?!{LETTERS})""", f"AC{HEX}{{32}}"),
    *(_token(*token) for token in _TOKENS),
    Shape("api-key", "sk-", rf"{_APART}sk-{WORD}{{20,}}", _SK),
    *(Shape("aws-key", name[:3], rf"(?P<kept>{_APART}{name}[A-Z0-9]{{16}}(?!{WORD})[^\n]{{0,60}}?[\s,;|:\"'])(?=[^\s]{{0,39}}[0-9])"
                             rf"(?=[^\s]{{0,39}}[a-z]){BASE64}{{40}}(?![A-Za-z0-9+/=])", f"{name}[A-Z0-9]{{16}}")
      for name in ("AKIA", "ASIA", "ABIA", "ACCA", "A3T[A-Z0-9]")),
    *(Shape("aws-key", name[:3], rf"{_APART}{name}[A-Z0-9]{{16}}(?!{WORD})", f"{name}[A-Z0-9]{{16}}")
      for name in ("AKIA", "ASIA", "ABIA", "ACCA", "A3T[A-Z0-9]")),
    Shape("slack-token", "xox", r"\bxox(?:[abeoprscd]|e\.xox[bp])-[A-Za-z0-9%-]{10,}", r"xox(?:[abeoprscd]|e\.xox[bp])-[A-Za-z0-9%-]{10}"),
    Shape("slack-webhook", "hooks.slack.com/", r"\bhooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{20,}",
          "hooks\\.slack\\.com"),
    Shape("discord-webhook", "/webhooks/", rf"(?P<kept>\bdiscord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d{{15,22}}/){WORD}{{50,}}",
          rf"webhooks{_SLASH}[0-9]{{15}}"),
    Shape("teams-webhook", "office.com/", rf"(?P<kept>(?:webhook|outlook)\.office\.com/webhook(?:b2?)?/){_TEAMS}",
          "webhook\\.office\\.com\noutlook\\.office\\.com"),
    Shape("tines-webhook", "tines.com/", rf"(?P<kept>\btines\.com/webhook/{HEX}{{32}}/){HEX}{{32}}", rf"tines\.com{_SLASH}webhook"),
    Shape("discord-token", ".", rf"(?<!{WORD}){_DISCORD_ID}{{5,7}}{WORD}{{0,4}}\.{WORD}{{6}}\.{WORD}{{25,110}}", f"{_DISCORD_ID}{{5}}"),
    Shape("telegram-token", ":", rf"(?<![0-9A-Fa-f-])(?<![0-9]:)(?P<kept>(?:bot)?)[0-9]{{6,16}}:A{WORD}{{33,36}}(?!{WORD})", f":A{WORD}{{33}}"),
    Shape("facebook-app-token", "", rf"{_APART}[0-9]{{15,16}}(?:\||%7[cC]){WORD}{{27,40}}(?!{WORD})", f"[0-9](?:\\||%7[cC]){WORD}{{27}}"),
    Shape("mailchimp-key", "-us", rf"{_APART}{HEX}{{32}}-us[0-9]{{1,2}}(?!{WORD})", "-us[0-9]"),
    Shape("terraform-token", ".atlasv1.", rf"{_APART}{LETTERS}{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{60,}}", r"\.atlasv1\."),
    Shape("azure-secret", "Q~", rf"(?<!{_AZURE}){_AZURE}{{3}}[0-9]Q~{_AZURE}{{31,34}}(?!{_AZURE})", f"Q~{_AZURE}{{31}}"),
    Shape("azure-token", "AZDO", rf"{_APART}{LETTERS}{{76}}AZDO{LETTERS}{{4}}(?!{LETTERS})", f"AZDO{LETTERS}{{4}}"),
    Shape("azure-key", "AccountKey=", r"(?P<kept>AccountKey=)[A-Za-z0-9+/]{40,}=*", "AccountKey"),
    Shape("azure-key", "SharedAccessKey=", r"(?P<kept>SharedAccessKey=)[A-Za-z0-9+/]{40,}=*", "SharedAccessKey"),
    Shape("azure-signature", "sig=", r"(?P<kept>\bsig=)[A-Za-z0-9%+/_-]{40,}=*", r"sig=[A-Za-z0-9%+/\\_-]{40}|sig\\u003[dD]"),
    Shape("aws-signature", "X-Amz-S", r"(?P<kept>X-Amz-(?:Signature|Security-Token)=)[A-Za-z0-9%+/_-]{40,}=*", "X-Amz-S"),
    Shape("cloudfront-signature", "Signature=", r"(?P<kept>[?&]Signature=)[A-Za-z0-9~_%+/-]{40,}=*", "\\?Signature=\n&Signature="),
    Shape("google-signature", "X-Goog-Signature=", r"(?P<kept>X-Goog-Signature=)[A-Fa-f0-9]{40,}", "X-Goog-Signature"),
    Shape("google-refresh-token", "1//0", rf"(?<!{WORD})1//0{WORD}{{40,}}", rf"1{_SLASH}{_SLASH}0{WORD}{{40}}"),
    Shape("azure-key", "azurewebsites.net",
          r"(?P<kept>azurewebsites\.net/[^\s\"'<>?]{0,200}\?(?:[^\s\"'<>]{0,200}&)?code=)[A-Za-z0-9_%=/+-]{40,}",
          r"azurewebsites\.net"),
    Shape("zapier-webhook", "hooks.zapier.com/",
          r"(?P<kept>hooks\.zapier\.com/hooks/(?:catch|standard)/(?:\d{3,12}/)?)[a-z0-9]{5,}", r"hooks\.zapier"),
    Shape("google-code", "4/0", rf"(?P<kept>\bcode=)4/0{WORD}{{40,}}", rf"code=4{_SLASH}0|code=4%2F0"),
    Shape("ifttt-key", "/with/key/", rf"(?P<kept>/with/key/){WORD}{{20,}}", rf"with{_SLASH}key{_SLASH}"),
    Shape("mattermost-webhook", "/hooks/", r"(?P<kept>[a-z0-9]/hooks/)[a-z0-9]{26}(?![A-Za-z0-9])", rf"hooks{_SLASH}[a-z0-9]{{26}}"),
    Shape("quicknode-key", "quiknode.pro/", rf"(?P<kept>quiknode\.pro/){HEX}{{32,}}", r"quiknode\.pro"),
    Shape("vercel-webhook", "/integrations/deploy/", rf"(?P<kept>/integrations/deploy/prj_){LETTERS}{{20,}}/{LETTERS}{{8,}}",
          rf"integrations{_SLASH}deploy"),
    Shape("netlify-webhook", "netlify.com/build_hooks/", rf"(?P<kept>netlify\.com/build_hooks/){HEX}{{20,}}", "build_hooks"),
    Shape("google-calendar", "/private-", rf"(?P<kept>/private-){HEX}{{32}}(?=/)", f"private-{HEX}{{32}}"),
    Shape("otp-seeds", "otpauth-migration:", r"(?P<kept>otpauth-migration://offline\?data=)[A-Za-z0-9%+/=_-]{20,}", "otpauth-migration"),
    Shape("saml-response", "SAMLResponse=", r"(?P<kept>SAMLResponse=)[A-Za-z0-9%+/=_-]{60,}", "SAMLResponse"),
    Shape("url-token", "%3D", rf"(?P<kept>(?:token|secret|password|api_key|apikey|access_key)%3D)(?=[A-Za-z_-]{{0,60}}[0-9]){WORD}{{12,}}",
          "(?:oken|ecret|assword|pi_key|pikey|ss_key)%3D"),
    Shape("newrelic-key", "NRAL", rf"{_APART}(?:[a-f0-9]{{36}}|(?:[a-z]{{2}}[0-9]{{2}}xx)?[a-f0-9]{{30,32}}F{{4}})NRAL(?!{WORD})", "NRAL"),
    Shape("sentry-dsn", "://", r"(?P<kept>://)[a-f0-9]{32}(?::[a-f0-9]{32})?(?=@[A-Za-z0-9.-]+(?::\d+)?/\d)", URL),
    Shape("url-token", "://", rf"(?P<kept>://)(?=[A-Za-z_-]*\d){WORD}{{20,200}}(?=(?::x-oauth-basic)?@[A-Za-z0-9\[])", URL),
    Shape("bearer-token", "earer ", r"(?P<kept>\b[Bb]earer )(?=[A-Za-z_.~+/-]*\d)[A-Za-z0-9_.~+/-]{20,}=*", r"earer [A-Za-z0-9_.~+/\\-]{20}"),
    Shape("jwt", "eyJ", rf"(?<!{WORD})eyJ{WORD}{{10,}}=*\.(?:eyJ{WORD}{{10,}}=*(?:\.{WORD}*)?"
          rf"|(?:{WORD}{{40,}}|{WORD}*\.{WORD}{{10,}}\.{WORD}{{10,}})\.{WORD}{{10,}})",
          rf"eyJ{WORD}{{10,}}=*\."),
    Shape("url-password", "://", rf"(?P<kept>://{_PART}{{0,200}}:)(?![$<{{*\[]|%[^0-9A-Fa-f])(?:{_PART}|@(?={_PART}{{1,200}}@)){{6,200}}(?=@[A-Za-z0-9\[$])",
          URL),
    Shape("prefixed-key", "", rf"(?<![A-Za-z0-9_-])(?!p(?:k|ub)_)(?:[A-Za-z][A-Za-z0-9]{{0,14}}[_-]){{0,3}}[a-z0-9]{{0,12}}"
          rf"{_MARKED}[_-](?:{_UUID}|{LETTERS}{{20,}}{WORD}*)",
          rf"{_MARKED}[_-](?:{LETTERS}{{20}}|{_UUID_START})"),
)  # fmt: skip
"""In this order: what comes first names what two would find."""

NUMBERED_LETTERS = r"\\u00(?:0[9aAdD]|2[013-589ac-fAC-F]|3[0-9abfABF]|[457]|6[1-9a-fA-F])"
"""A letter that a line of JSON writes as its number, so that nothing can be known by looking. Many writers do
so with ``"&'+<=>` ``, which a telling expression allows for wherever it looks for one."""

SERVICES = frozenset(
    """
    1password adafruit adobe airbrake airtable aiven algolia alibaba anypoint apifonica apify apilayer
    apimetrics apitemplate appfollow appointedd appoptics appsync appsynergy artifactory asana assemblyai
    atera atlassian audd auth0 authress autoklose autopilot avaza aviationstack axonaut ayrshare azure
    bannerbear baremetrics beamer beebole besnappy besttime betterstack bitbar bitbucket bitcoinaverage
    bitly bittrex blazemeter blitapp blocknative blynk bombbomb boostnote borgbase brandfetch browshot
    bscscan buddyns budibase bugherd bugsnag buildkite bulbul buttercms caflou calendarific calendly
    calorieninja campayn cannyio capsulecrm carboninterface centralstationcrm chartmogul chatfuel checio
    checklyhq circleci cisco clarifai clearbit clickhouse clickup cliengo clockify clojars closecrm
    cloudconvert cloudflare cloudimage cloudmersive cloudplan cloudsight cloudsmith cloverly clustdoc codacy
    codeclimate codecov codemagic codequiry cohere coinapi coinbase coinlayer coinlib collect2 commercejs
    confluent contentful conversiontools convertapi convertkit countrylayer coveralls craftmypdf cratesio
    crowdin cryptocompare currencyfreaks currencylayer currencyscoop currentsapi d7network dailyco dandelion
    dareboost databox databricks datadog datagov debounce deepai deepgram detectify detectlanguage dfuse
    diffbot diggernaut digitalocean discord disqus dockerhub docparser documo doppler dronahq droneci
    dropbox dtrack duffel dynalist dynatrace dyspatch eagleeyenetworks easypost ecostruxureit edenai
    elasticemail elevenlabs etherscan ethplorer etsy eventbrite everhour exchangerateapi exchangeratesapi
    extractorapi facebook fastforex fastly feedier fetchrss figma finage financialmodelingprep findl
    finicity finnhub firecrawl fixerio flatio fleetbase flexport flickr flightapi flightlabs flutterwave
    flyio formbucket formcraft formio foursquare frameio freemius freshbooks fulcrum fullstory fxmarket
    geckoboard geoapify geocode geocodify geoipifi getemail getgeoapi getgist getresponse gitalk github
    gitlab gitter glassnode gocardless google grafana graphhopper groovehq groq gtmetrix gumroad gyazo
    happyscribe hashicorp hellosign helpcrunch helpscout hereapi heroku hiveage holidayapi honeycomb
    html2pdf hubspot huggingface hybiscus iconfinder iexapis iexcloud imagekit imagga infracost infura
    insightly instabot intercom interseller intra42 intrinio ip2location ipapi ipgeolocation ipinfo
    ipqualityscore ipstack jfrog jira jotform jumpcloud jupiterone juro kagi karma kickbox klaviyo klipfolio
    knapsackpro kontent kucoin kylas languagelayer launchdarkly leadfeeder lemlist lemonsqueezy lendflow
    lessannoyingcrm lexigram linkedin linkpreview livestorm loadmill loginradius logz lokalise lunchmoney
    madkudu mailboxlayer mailchimp mailerlite mailgun mailjet mailmodo mailsac mandrill mapbox mapquest
    marketstack mattermost mavenlink maxmind mediastack meistertask mesibo messagebird metrilo mindmeister
    miro mixmax mockaroo mongodb monkeylearn moonclerk moosend moralis msteams myintervals nasdaqdatalink
    netcore netlify newrelic newsapi newscatcher nftport ngrok nicereply nightfall notion nozbe nuget
    numverify nvapi nylas nytimes oanda okta omnisend onesignal onfleet oopspam openai opencagedata
    openshift openuv openweather opsgenie optimizely overloop owlbot packagecloud pagarme pagerduty pandadoc
    pandascore paperform paralleldots parseur particleio partnerstack pastebin paydirtapp paymoapp paymongo
    paypal paystack pdflayer pdfshift peopledatalabs pepipost phpmailer pipedream pipedrive pixabay plaid
    planetscale planyo podio pollsapi positionstack postageapp posthog postman postmark powrbot prefect
    privateai prodpad prospectcrm protocolsio proxycrawl pubnub pulumi pushbullet pyowm qase qualaroo qubole
    rabbitmq rapidapi rawg reachmail reactapp reallysimplesystems rebrandly rentman replicate replyio
    requestfinance restpack ritekit rocketreach rockset route4me rubygems runscope salesblink salescookie
    salesflare salesforce scaleway scalingo scrapeowl scraperapi scraperbox scrapestack scrapfly scrapingant
    scrapingbee screenshotapi screenshotlayer scrutinizerci securitytrails selectpdf sendbird sendgrid
    sendinblue sentry serphouse serpstack settlemint sherpadesk shipday shippo shodan shopify shotstack
    shutterstock signaturit signupgenius sigopt simfin simplesat simplynoted simvoly skrapp smartsheets
    snipcart snowflake snyk sonar sourcegraph sparkpost speechtextai splunk spoonacular sportsmonk spotify
    squarespace squareup sslmate stackhawk statuscake statuspage statuspal stitchdata stockdata storecove
    stormboard stormglass storyblok storychief stripe stripo sumologic supabase supernotes surveybot
    surveysparrow survicate swiftype tailscale tallyfy tatumio tavily taxjar teamcity teamworkcrm
    teamworkdesk teamworkspaces technicalanalysisapi tefter telegram teletype telnyx terraform theoddsapi
    thingsboard ticketmaster tickettailor tiingo timecamp timezoneapi tmetric todoist toggltrack tomtom
    tradier transferwise travelpayouts travisci trello truenas twelvedata twilio twitch twitter tyntec
    typeform ubidots uclassify unplugg unsplash upcdatabase uplead uptimerobot upwave urlscan userflow
    userstack vagrantcloud vatlayer vbout vercel verimail veriphone versioneye viewneo virustotal
    visualcrossing voiceflow voicegain voodoosms vpnapi vultr vyte walkscore wandb weatherbit weatherstack
    webflow webscraper webscraping whoxy wistia worksnaps workstack worldcoinindex worldweather wrike yandex
    yelp youneedabudget yousign zendesk zenkit zenrows zenscrape zeplin zerobounce zerotier zipcodeapi
    zipcodebase zohocrm zonkafeedback
    """.split()  # noqa: SIM905
)
"""Services whose keys are plain hexadecimal, UUIDs or letters and digits, so that only the name beside one tells, or how
their names begin. Which services have such keys was looked up in the rule sets of kingfisher (Apache-2.0) and gitleaks
(MIT); words of plain English are left out."""

# --- Whether a text may hold a secret, asked of every line of a gigabyte -----------------------------------
#
# RE2 reads a text once for hundreds of patterns, three times as fast as searches for groups of them one after
# another. It works on bytes, so that a line of a log need not be decoded.

Search = Callable[[bytes], bool]
Groups = Callable[[bytes], Collection[str]]
"""Names the groups of patterns of which one is found in the bytes of a text."""

_MEMORY = 64 << 20
"""Bytes that RE2 may use to remember what it has worked out for one search; logs of all kinds need some 20 MB.
When they do not suffice, a search is slower and as right."""


def any_of(patterns: Iterable[str]) -> Search:
    r"""A function that says whether one of the patterns is found in the bytes of a text.

    In a pattern, a character is a byte, and `\s`, `\w` and `\d` are those of ASCII. There is no look-around.
    """
    return _any_of(tuple(patterns))


class Sought:
    """A regular expression of Python that is tried only where RE2 finds its beginning: in a long text, Python
    takes most of its time to try hundreds of alternatives at every character.

    Args:
        begins: for `any_of`; each match of the expression begins with one of it. A character that is not
            ASCII is a `?` there.
    """

    def __init__(self, expression: str, begins: str) -> None:
        self.expression = lazily(expression)
        self._begins = begins

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """The matches, as `re.finditer` gives them."""
        find, match = _compiled((self._begins,)).search, self.expression.match
        data = one_byte_each(text)
        at = 0
        while (place := find(data, at)) is not None:
            at = place.start() + 1
            if (found := match(text, at - 1)) is not None:
                at = max(at, found.end())
                yield found


@lru_cache(maxsize=1)
def one_byte_each(text: str) -> bytes:
    """A text as bytes, at whose places the same characters are. The last one is remembered: each text is searched
    for one thing after another."""
    return text.encode("ascii", "replace")


def literal(text: bytes) -> str:
    """The pattern of some bytes."""
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in text
    )


def groups_in(
    groups: Mapping[str, Iterable[str]],
    rare: Collection[str] = (),
    confirming: Mapping[str, Iterable[str]] | None = None,
) -> Groups:
    """A function that names the groups of patterns, as `any_of` takes them, of which one is found in a text: one
    pass for all of them.

    Args:
        rare: groups that are searched for as one, and distinguished in a second pass where it is found: RE2 prepares
            a search in time that grows with how many patterns begin alike in different groups.
        confirming: patterns one of which must be found, too, for a group to count: what would make the one pass slow.
    """
    named = _groups_in(tuple((name, tuple(patterns)) for name, patterns in groups.items()), frozenset(rare))
    confirmed = {name: any_of(patterns) for name, patterns in (confirming or {}).items()}

    def names(text: bytes) -> list[str]:
        return [name for name in named(text) if name not in confirmed or confirmed[name](text)]

    return names


@lru_cache(maxsize=8)
def _groups_in(groups: tuple[tuple[str, tuple[str, ...]], ...], rare: frozenset[str]) -> Groups:
    import re2

    common = [group for group in groups if group[0] not in rare]
    seldom = tuple(group for group in groups if group[0] in rare)
    found = re2.Set.SearchSet(_options())
    for _, patterns in common:
        found.Add(_alternatives(patterns))
    if seldom:
        found.Add(_alternatives(pattern for _, patterns in seldom for pattern in patterns))
    found.Compile()
    match = found.Match

    def names(text: bytes) -> list[str]:
        numbers = match(text)
        if not numbers:
            return []
        known = [common[number][0] for number in numbers if number < len(common)]
        return known if len(known) == len(numbers) else [*known, *_groups_in(seldom, frozenset())(text)]

    return names


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> Search:
    search = _compiled(patterns).search
    return lambda text: search(text) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> Any:
    import re2  # late: many a command never looks into a text

    return re2.compile(_alternatives(patterns), _options())


def _alternatives(patterns: Iterable[str]) -> bytes:
    # RE2 puts neighbours that begin alike together: in order, they take half of the time to prepare.
    return "|".join(sorted(patterns)).encode("ascii")


def _options() -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MEMORY
    return options
