"""Which environment variables, headers and options are secret by their name."""

from __future__ import annotations

import re

SECRET_NAMES = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|AUTH|DATABASE_URL|DSN|COOKIE|CONNECTION_STRING"
    r"|(?:^|[_-])(?:PASS|PWD|PW|PAT|CREDS|JWT)(?:$|[_-])|SSHPASS",
    re.IGNORECASE,
)
PUBLIC_NAMES = re.compile(
    r"(SOCK|SOCKET|PATH|FILE|DIR|PID|AUTHORITY|KEYMAP|KEYBOARD\w*|^(?:OLD)?PWD)$", re.IGNORECASE
)
"""Variables that say where something secret lies, or nothing secret at all: `SSH_AUTH_SOCK`, `XAUTHORITY`."""
