"""What happens in a simulated run, and when: made from a seed, and kept as data, so that parts of it can be left out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MOST_STEPS = 2_000
"""The steps of a run in which something happens. A run without faults takes about 1,500."""
PROGRAM = "simulated/default"
"""The model of a task that an agent program does."""


@dataclass(frozen=True, order=True)
class Happening:
    """At a step of the event loop (counted over all hosts): what happens, and the seed of its choices."""

    step: int
    kind: str
    seed: int


@dataclass(frozen=True)
class Script:
    """A run, to be played by `world.World`."""

    seed: int
    plan: list[dict[str, Any]]
    happenings: tuple[Happening, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    """`max_parallel`, `window`, `memory` and `budgets` are those of the session. The others are shares, none where they are
    missing: `slow`, of the calls of a model that take long; `hasty`, of the turns in which a planner asks for the end early;
    `resumes`, of what happens to a session at rest after which a person resumes it; `same_agent`, of what people do to the
    agent to which they did something last."""

    def without(self, left_out: Iterable[int]) -> Script:
        """The same run without the happenings at these places."""
        gone = set(left_out)
        kept = tuple(one for place, one in enumerate(self.happenings) if place not in gone)
        return Script(self.seed, self.plan, kept, self.settings)

    def as_text(self) -> str:
        """A short script, as an entry of `found.FOUND`."""
        tasks = ", ".join(
            f"task({one['name']!r}, {one['role']!r}, {one['depends_on']}, {one['expected_outputs']}"
            + (f", model={one['model']!r})" if "model" in one else ")")
            for one in self.plan
        )
        lines = "\n".join(
            f"            Happening({one.step}, {one.kind!r}, {one.seed})," for one in self.happenings
        )
        return (
            f"    Script(\n        {self.seed}, [{tasks}],\n        (\n{lines}\n        ),\n"
            f"        {self.settings},\n    ),"
        )


def task(
    name: str, role: str, depends_on: Iterable[str] = (), outputs: Iterable[str] = (), *, model: str = ""
) -> dict[str, Any]:
    """A task of a plan."""
    return {
        "name": name, "title": f"Do {name}", "instructions": f"Please do {name}.", "role": role,
        "depends_on": list(depends_on), "expected_outputs": list(outputs), **({"model": model} if model else {}),
    }  # fmt: skip


def make(seed: int, kinds: dict[str, float]) -> Script:
    """The script of a seed. `kinds`: the weight of each kind of happening."""
    rng = random.Random(f"script {seed}")
    names = [f"t{number}" for number in range(rng.randint(2, 6))]
    density = rng.choice([0.5, 0.5, 0.15])  # of what tasks need of each other: few run side by side, or many
    plan = []
    for place, name in enumerate(names):
        needs = [other for other in names[:place] if rng.random() < density]
        outputs = [f"{name}.md"] if rng.random() < 0.5 else []
        role = rng.choice(["explorer", "coder", "writer"])
        plan.append(task(name, role, needs, outputs, model=PROGRAM if rng.random() < 0.15 else ""))
    settings = {
        "max_parallel": rng.choice([1, 2, 4]),
        "window": rng.choice([7_500, 9_000, 12_000, 60_000]),
        "memory": rng.choice(["summary", "observational"]),
        "budgets": rng.choice([{}, {}, {}, {"tokens": 40_000}, {"tokens": 120_000}, {"turns": 30}]),
        "slow": rng.choice([0.0, 0.0, 0.05, 0.3]),
        "hasty": rng.choice([0.0, 0.0, 0.3]),
        "resumes": rng.choice([0.0, 0.3, 0.8]),
        "same_agent": rng.choice([0.0, 0.0, 0.6]),
    }
    choices, weights = list(kinds), list(kinds.values())
    # People and faults come at any time, or most of them soon after another.
    gap = rng.choice([None, None, 30, 120])
    happenings, step = [], 0
    for _ in range(rng.choice([0, 8, 16, 24, 40, 60])):
        if gap is not None and step and rng.random() < 0.6:
            step = min(MOST_STEPS, step + rng.randint(1, gap))
        else:
            step = rng.randrange(20, MOST_STEPS)
        happenings.append(Happening(step, rng.choices(choices, weights)[0], rng.randrange(1 << 30)))
    if rng.random() < 0.4:
        settings["window"] = 4_500  # most agents are compacted
    return Script(seed, plan, tuple(sorted(happenings)), settings)


def digest_rng(*parts: Any) -> random.Random:
    """Choices that depend on these parts alone, not on what happened before."""
    return random.Random(json.dumps(parts, default=str))
