"""Which model a role runs on: only the user makes a run dearer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.agents.roles import Role, load_roles
from watchkeeper.models.registry import SURVEYOR, rates
from watchkeeper.runtime.config import costs_more, role_models, task_model, warning

CHEAP, MIDDLE, DEAR = "anthropic/claude-haiku-4-5", "anthropic/claude-sonnet-4-6", "anthropic/claude-opus-4-8"
UNPRICED = "anthropic/claude-unheard-of"
MODELS = st.sampled_from([CHEAP, MIDDLE, DEAR, UNPRICED, SURVEYOR, "acme/fast"])


def put(folder: Path, name: str, model: str | None, *, text: str = "Work.") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    line = f"model: {model}\n" if model else ""
    (folder / f"{name}.md").write_text(f"---\nname: {name}\n{line}---\n{text}\n")


def total(ref: str) -> tuple[float, ...]:
    found = rates(ref)
    assert found is not None
    return (found.input_usd, found.output_usd, found.cache_read_usd, found.cache_write_usd)


@given(
    session=st.sampled_from([CHEAP, MIDDLE, DEAR, UNPRICED, SURVEYOR]),
    user=st.none() | MODELS,
    workspace=st.none() | MODELS,
    planner=st.none() | MODELS,
    confirmed=st.lists(
        st.builds(lambda prefix, ref: prefix + ref, st.sampled_from(["", "r=", "other="]), MODELS), max_size=3
    ),
)
def test_no_choice_but_the_users_own_costs_more_or_leaves_the_provider(
    session: str, user: str | None, workspace: str | None, planner: str | None, confirmed: list[str]
) -> None:
    own = user or session
    if SURVEYOR in (own, session):
        own = session
    role = Role(
        "r", "", None, workspace or user, "p", trusted=False, place=".claude/agents/r.md", user_model=user
    )
    choice = role_models({"r": role}, session, confirmed)["r"]
    assert choice.own == own
    model, said = task_model(choice, planner, confirmed)
    for used in (choice.model, model):
        if used == own or used == "acme/fast":
            continue  # no such model is known: the task fails with its name
        assert used.partition("/")[0] == own.partition("/")[0]
        assert SURVEYOR not in (used, own)
        allowed = used in confirmed or f"r={used}" in confirmed
        assert allowed or all(mine <= other for mine, other in zip(total(used), total(own), strict=True))
    assert (choice.unconfirmed is None) is (warning(choice) is None)
    assert (model == planner or planner is None) is (said is None)


def test_a_role_of_the_users_own_may_cost_what_it_likes() -> None:
    mine = Role("r", "", None, DEAR, "p")
    assert role_models({"r": mine}, CHEAP)["r"].model == DEAR


@pytest.mark.parametrize(("ref", "than", "more"), [(DEAR, CHEAP, True), (CHEAP, DEAR, False), (CHEAP, CHEAP, False),
                                                   (UNPRICED, DEAR, True), (CHEAP, UNPRICED, True), (UNPRICED, UNPRICED, False)])  # fmt: skip
def test_a_model_without_a_price_counts_as_dearer(ref: str, than: str, more: bool) -> None:
    assert costs_more(ref, than) is more


def test_files_are_named_without_the_folders_of_this_machine(tmp_path: Path) -> None:
    workspace, user = tmp_path / "workspace", tmp_path / "config"
    put(user / "agents", "mine", None)
    put(workspace / ".claude/agents/deep", "theirs", None)
    put(workspace / ".watchkeeper/agents", "ours", None)
    places = {role.name: role.place for role in load_roles(workspace, user).values()}
    assert places["explorer"] == "built-in"
    assert places["mine"] == "agents/mine.md (yours)"
    assert places["theirs"] == ".claude/agents/deep/theirs.md"
    assert places["ours"] == ".watchkeeper/agents/ours.md"


def test_a_workspaces_file_without_a_model_keeps_the_users(tmp_path: Path) -> None:
    workspace, user = tmp_path / "workspace", tmp_path / "config"
    put(user / "agents", "coder", CHEAP)
    put(workspace / ".claude/agents", "coder", None, text="Theirs.")
    choice = role_models(load_roles(workspace, user), DEAR)["coder"]
    assert (choice.model, choice.unconfirmed) == (CHEAP, None)
    put(workspace / ".claude/agents", "coder", MIDDLE)
    choice = role_models(load_roles(workspace, user), DEAR)["coder"]
    assert (choice.model, choice.unconfirmed) == (CHEAP, MIDDLE), (
        "dearer than the user's, though not than the session's"
    )
    put(workspace / ".watchkeeper/agents", "coder", None)
    assert role_models(load_roles(workspace, user), DEAR)["coder"].unconfirmed == MIDDLE


@pytest.mark.parametrize("allowed", ["anthropic/*", "r=anthropic/*"])
@pytest.mark.parametrize("own", [CHEAP, "codex/default"])
def test_all_models_of_a_provider_are_allowed_as_those_of_a_program(own: str, allowed: str) -> None:
    choice = role_models({"r": Role("r", "", None, None, "p")}, own)["r"]
    assert task_model(choice, DEAR, [allowed], {"codex": True}) == (DEAR, None)
    model, said = task_model(choice, DEAR, ["openai/*"], {"codex": True})
    assert (model, said is None) == (own, False)
    asking = Role("r", "", None, DEAR, "p", trusted=False, user_model=CHEAP)
    assert role_models({"r": asking}, CHEAP, [allowed])["r"].model == DEAR
