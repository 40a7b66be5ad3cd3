"""What happens in a simulated run, and when: made from a seed, and kept as data, so that parts of it can be left out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MOST_STEPS = 2_000
"""The steps of a run in which something happens. A run without faults takes about 1,500."""


@dataclass(frozen=True)
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

    def without(self, left_out: Iterable[int]) -> Script:
        """The same run without the happenings at these places."""
        gone = set(left_out)
        kept = tuple(one for place, one in enumerate(self.happenings) if place not in gone)
        return Script(self.seed, self.plan, kept, self.settings)

    def as_text(self) -> str:
        """A short script, as an entry of `found.FOUND`."""
        lines = [f"        ({one.step}, {one.kind!r}, {one.seed})," for one in self.happenings]
        tasks = [one["name"] for one in self.plan]
        return "\n".join([f"    Found({self.seed}, {tasks}, [", *lines, "    ]),"])


def make(seed: int, kinds: dict[str, float]) -> Script:
    """The script of a seed. `kinds`: the weight of each kind of happening."""
    rng = random.Random(f"script {seed}")
    names = [f"t{number}" for number in range(rng.randint(2, 6))]
    plan = []
    for place, name in enumerate(names):
        needs = [other for other in names[:place] if rng.random() < 0.5]
        outputs = [f"{name}.md"] if rng.random() < 0.5 else []
        plan.append(
            {
                "name": name, "title": f"Do {name}", "instructions": f"Please do {name}.",
                "role": rng.choice(["explorer", "coder", "writer"]), "depends_on": needs, "expected_outputs": outputs,
                **({"model": "simulated/default"} if rng.random() < 0.15 else {}),
            }
        )  # fmt: skip
    choices, weights = list(kinds), list(kinds.values())
    happenings = sorted(
        (rng.randrange(20, MOST_STEPS), rng.choices(choices, weights)[0], rng.randrange(1 << 30))
        for _ in range(rng.choice([0, 8, 16, 24, 40, 60]))
    )
    settings = {
        "max_parallel": rng.choice([1, 2, 4]),
        "window": rng.choice([7_500, 9_000, 12_000, 60_000]),
        "memory": rng.choice(["summary", "observational"]),
    }
    return Script(seed, plan, tuple(Happening(*one) for one in happenings), settings)


def shortened(seed: int, tasks: Iterable[str], happenings: Iterable[tuple[int, str, int]]) -> Script:
    """The script of a seed with these tasks of its plan and these happenings alone, as `--shrink` prints them."""
    made, kept = make(seed, {"any": 1.0}), set(tasks)
    plan = [
        one | {"depends_on": [name for name in one["depends_on"] if name in kept]}
        for one in made.plan
        if one["name"] in kept
    ]
    return Script(seed, plan, tuple(Happening(*one) for one in happenings), made.settings)


def digest_rng(*parts: Any) -> random.Random:
    """Choices that depend on these parts alone, not on what happened before."""
    return random.Random(json.dumps(parts, default=str))
