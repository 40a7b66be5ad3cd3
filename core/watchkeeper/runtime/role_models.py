"""Which model each role runs on. Nobody but the user makes a run dearer.

The user's own choice for a role is the model that the user's role file names, else the session's. A role file
of the workspace, or the planner, may choose another model of the same provider. If that costs more, it is
used only where the user confirmed it; otherwise the role runs on the user's own choice, and the run says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from watchkeeper.agents.roles import Role
from watchkeeper.models.prices import rates
from watchkeeper.models.registry import SURVEYOR

BUILT_IN = "built-in"
MOST_CHARACTERS = 120
"""Of a model's name in a message: a workspace or a model wrote it."""


@dataclass(frozen=True, slots=True)
class RoleModel:
    """What a role runs on, and what it would run on if the user confirmed it."""

    role: str
    source: str
    """Where the role comes from: `built-in`, or its file."""
    model: str
    own: str
    """The user's own choice."""
    unconfirmed: str | None = None
    """The workspace's choice, which costs more than `own` (or has no known price) and was not confirmed."""

    def as_record(self) -> dict[str, Any]:
        """As a session's row and `--json` have it."""
        return {
            "role": self.role,
            "source": self.source,
            "model": self.model,
            "unconfirmed": self.unconfirmed,
        }


def role_models(
    roles: Mapping[str, Role], session_model: str, confirmed: Collection[str] = ()
) -> dict[str, RoleModel]:
    """The model of each role in a session that runs on `session_model`, by the role's name.

    `confirmed`: what the user allowed although it costs more: a model (`provider/model`) for any role, or one
    for a role (`role=provider/model`).
    """
    return {name: _role_model(role, session_model, confirmed) for name, role in roles.items()}


def task_model(
    choice: RoleModel, wanted: str | None, confirmed: Collection[str] = ()
) -> tuple[str, str | None]:
    """The model of a task for which the planner asked for `wanted`, and a warning where that is not what it
    gets."""
    if wanted is None or wanted == choice.model:
        return choice.model, None
    if _provider(wanted) not in ("anthropic", "offline"):
        return wanted, None  # no such model: the task fails with its name
    if _provider(wanted) == _provider(choice.own) and _may_use(choice.role, wanted, choice.own, confirmed):
        return wanted, None
    return (
        choice.model,
        f"the planner asks for {_dearer(wanted, choice.own)}; the task runs on {_short(choice.model)}",
    )


def warning(choice: RoleModel) -> str | None:
    """A line about a choice of the workspace that is not used, with the flag that allows it."""
    if choice.unconfirmed is None:
        return None
    return (
        f"role {choice.role} ({choice.source}) asks for {_dearer(choice.unconfirmed, choice.own)}; it runs on"
        f" {_short(choice.model)} unless you allow it: --allow-model {_short(choice.unconfirmed)}"
    )


def price_of(ref: str) -> str:
    """`$2 in, $10 out per million tokens`, or that no price is known."""
    found = rates(ref)
    return str(found) if found is not None else "no known price"


def costs_more(ref: str, than: str) -> bool:
    """Whether any kind of token costs more with `ref`. A model without a known price counts as dearer than
    any other."""
    if ref == than:
        return False
    mine, other = rates(ref), rates(than)
    if mine is None or other is None:
        return True
    return (
        mine.input_usd > other.input_usd
        or mine.output_usd > other.output_usd
        or mine.cache_read_usd > other.cache_read_usd
        or mine.cache_write_usd > other.cache_write_usd
    )


def _role_model(role: Role, session_model: str, confirmed: Collection[str]) -> RoleModel:
    # The surveyor costs nothing and needs no network: a session on it stays on it, and no other session uses
    # it.
    own = (role.model if role.trusted else role.user_model) or session_model
    if SURVEYOR in (own, session_model):
        own = session_model
    wanted = own if role.trusted else role.model_for(own)
    if wanted == own or _may_use(role.name, wanted, own, confirmed):
        return RoleModel(role.name, role.place, wanted, own)
    return RoleModel(role.name, role.place, own, own, wanted)


def _may_use(role: str, ref: str, own: str, confirmed: Collection[str]) -> bool:
    return ref in confirmed or f"{role}={ref}" in confirmed or not costs_more(ref, own)


def _dearer(ref: str, own: str) -> str:
    return f"{_short(ref)} ({price_of(ref)}), which costs more than your {_short(own)} ({price_of(own)})"


def _provider(ref: str) -> str:
    return ref.strip().partition("/")[0]


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
