"""Where a database is, a file of SQLite or the address of a PostgreSQL database; and where a user's configuration is.

`--db` and `WATCHKEEPER_DB` take either. An address is never taken for the name of a file.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from watchkeeper.records.errors import BadInput

if TYPE_CHECKING:
    from watchkeeper.records.redact import Redactor


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//?)")
_SECRET = frozenset({"password", "sslpassword", "oauth_client_secret"})
"""Parameters of a connection whose values are never shown."""


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """The address of a PostgreSQL database, as libpq takes it. Its text shows no password.

    Attributes:
        shown: the address without passwords: for messages, logs and the arguments of a process.
        dsn: what libpq is given.
    """

    shown: str
    dsn: str = field(repr=False)

    def __str__(self) -> str:
        return self.shown

    @property
    def holds_password(self) -> bool:
        """Whether the address itself contains a password, which no argument of a process may show."""
        return self.dsn != self.shown


Place = Path | DatabaseUrl
"""A file, or an address."""


def place_of(text: str | os.PathLike[str]) -> Place:
    """What a person wrote for a database, as a place. A path may not exist and may be relative.

    Raises:
        BadInput: an address of another kind than PostgreSQL's, or one that cannot be read.
    """
    name = os.fspath(text)
    found = _SCHEME.match(name)
    if found is None:
        return Path(name)
    scheme = found[1].lower()
    if scheme not in ("postgresql", "postgres"):
        if found[2] != "//":
            return Path(name)  # a folder whose name ends with a colon
        raise BadInput(f"{scheme}:// is not a supported database; give a file or postgresql://HOST/NAME")
    if found[2] != "//":
        raise BadInput("a PostgreSQL address starts with postgresql://, as in postgresql://HOST/NAME")
    try:
        return _url("postgresql" + name[len(scheme) :])
    except ValueError:
        raise BadInput(
            "the database address is not valid; use the form postgresql://USER@HOST:PORT/NAME"
        ) from None


def absolute(place: Place) -> Place:
    """The place for every working directory: an absolute path, `~` resolved."""
    return place.expanduser().absolute() if isinstance(place, Path) else place


def is_writable(place: Place) -> bool:
    """Whether this user may write to the file; of a missing file or a server, nothing says otherwise."""
    return not isinstance(place, Path) or not place.exists() or os.access(place, os.W_OK)


def folder_beside(place: Place) -> Path:
    """This machine's folder for files that belong to a database: that of the file itself, or one in the user's
    data folder for a database on a server. It may not exist."""
    if isinstance(place, Path):
        return place.parent.resolve()
    from platformdirs import user_data_path

    digest = hashlib.sha256(place.shown.encode()).hexdigest()[:16]
    return user_data_path("watchkeeper", appauthor=False) / f"server-{digest}"


def arguments_for(place: Place) -> list[str]:
    """What a process of ours is started with so that it uses this database: a file as `--db`, an address in
    `WATCHKEEPER_DB`, which is set here (a password in it goes by a pipe: `records.process_secrets`)."""
    if isinstance(place, Path):
        return ["--db", str(place)]
    os.environ["WATCHKEEPER_DB"] = place.dsn
    return []


def file_of(place: Place, action: str, instead: str) -> Path:
    """The file of the database, for what only SQLite does.

    Args:
        action: what is asked for, as `a backup`.
        instead: what to do on PostgreSQL, as "use `pg_dump`".

    Raises:
        BadInput: the database is on PostgreSQL.
    """
    if isinstance(place, Path):
        return place
    raise BadInput(f"{place} is on PostgreSQL, where Watchkeeper does not support {action}; {instead}")


def _url(text: str) -> DatabaseUrl:
    parts = urlsplit(text)
    user, _, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = parse_qsl(parts.query, keep_blank_values=True)
    if any(ord(character) < 32 for character in unquote(text)):
        raise ValueError("control characters")
    kept = [(key, value) for key, value in query if key.lower() not in _SECRET]
    hidden = urlencode(kept, quote_via=quote, safe="/,:") if len(kept) != len(query) else parts.query
    netloc = f"{name}@{hosts}" if colon else parts.netloc
    return DatabaseUrl(f"postgresql://{netloc}{parts.path}" + (f"?{hidden}" if hidden else ""), text)


# --- A user's configuration, and the secrets that no row may hold ---------------------------------------
#
# A host has the configuration at hand. A writer without one (a command line, the dashboard) reads only the secrets from
# it. If the file is damaged, the writer continues without them; the host reports the damage.


def config_folder() -> Path:
    """`WATCHKEEPER_CONFIG_DIR`, else the user's configuration folder."""
    chosen = os.environ.get("WATCHKEEPER_CONFIG_DIR")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_config_path

    return user_config_path("watchkeeper", appauthor=False)


def config_text() -> str:
    """The user's configuration as written; empty if none can be read."""
    try:
        return (config_folder() / "config.toml").read_text("utf-8")
    except (OSError, ValueError, RuntimeError):
        return ""


def user_redactor() -> Redactor:
    """Knows the secret variables of this process, and what the user's configuration holds."""
    from watchkeeper.records.redact import Redactor, known_secrets

    config: dict[str, Any] = {}
    if text := config_text():
        import tomllib

        with suppress(ValueError, RecursionError):
            config = tomllib.loads(text)
    return Redactor(os.environ, known_secrets(config, os.environ))
