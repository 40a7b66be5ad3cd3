"""Short scripts of faults that the simulation has found: `--shrink` prints such an entry. Each is played by the tests."""

from __future__ import annotations

from tests.simulate.script import PROGRAM, Happening, Script, task

# fmt: off
FOUND: dict[str, Script] = {
    "an agent whose inputs are there again, after a crash, is not started, and its host spins": Script(
        3002,
        [
            task("t0", "explorer", model=PROGRAM), task("t1", "writer", ["t0"], ["t1.md"]),
            task("t3", "coder", ["t0"], ["t3.md"]), task("t4", "explorer", ["t0"]),
        ],
        (Happening(21, "file_changes", 496924054), Happening(833, "model_faults", 434511570), Happening(1083, "rerun", 152102000)),
        {"max_parallel": 2, "window": 12_000, "memory": "summary"},
    ),
    "a question of an agent program fails with the lease, and nothing takes its error": Script(
        3082,
        [task("t0", "coder", model=PROGRAM)],
        (Happening(344, "deny", 707630371), Happening(352, "lost_lease", 886513921)),
        {"max_parallel": 1, "window": 60_000, "memory": "observational"},
    ),
    "a person revises a task between the planner's last call and the end": Script(
        20434,
        [
            task("t0", "explorer", [], ["t0.md"]), task("t1", "explorer", ["t0"]),
            task("t2", "coder", ["t0"], ["t2.md"]),
        ],
        (
            Happening(171, "compact", 814163922), Happening(224, "pin_fact", 232446651), Happening(274, "compact", 758713601),
            Happening(323, "cancel_task", 228692876), Happening(350, "compact", 27562741),
            Happening(507, "plan_revise", 143161088),
        ),
        {"max_parallel": 1, "window": 9_000, "memory": "summary"},
    ),
    "a question that a crash cut is answered, its call ends without it, and the agent waits for ever": Script(
        23,
        [
            task("t0", "writer", [], ["t0.md"], model=PROGRAM), task("t1", "explorer"), task("t2", "coder", ["t0"]),
            task("t3", "coder", ["t0", "t1", "t2"], ["t3.md"]), task("t4", "writer", ["t0", "t1"]),
            task("t5", "coder", ["t1", "t2", "t4"], ["t5.md"], model=PROGRAM),
        ],
        (
            Happening(36, "crash", 316862682), Happening(207, "pause_agent", 863796158), Happening(396, "approve", 837490169),
            Happening(405, "memory_sync", 7556185), Happening(443, "crash_at_a_point", 199883709),
            Happening(726, "crash_at_a_point", 551055492), Happening(832, "compact", 532169153),
            Happening(919, "plan_add", 873770748), Happening(1023, "crash", 365355587), Happening(1120, "tool_faults", 728593611),
            Happening(1292, "crash", 897197776), Happening(1742, "crash", 368400371), Happening(1843, "clock_jumps", 1014179998),
        ),
        {"max_parallel": 2, "window": 9_000, "memory": "observational"},
    ),
    "a task that is dropped while the run pauses goes on with its call": Script(
        50113,
        [task("t0", "explorer", [], ["t0.md"], model=PROGRAM), task("t1", "writer")],
        (Happening(151, "pause", 969718794), Happening(169, "plan_drop", 412307514)),
        {"max_parallel": 2, "window": 7_500, "memory": "observational", "budgets": {"tokens": 120_000}, "same_agent": 0.6},
    ),
    "what a call of a compaction may use, which met a limit before it was made, stays reserved": Script(
        50148,
        [
            task("t0", "writer", [], ["t0.md"]), task("t1", "coder", [], ["t1.md"]), task("t2", "coder", ["t1"]),
            task("t3", "coder", ["t1", "t2"], ["t3.md"]), task("t4", "coder", ["t1", "t2", "t3"], ["t4.md"]),
        ],
        (
            Happening(505, "pause", 4889375), Happening(762, "model_faults", 296556456), Happening(908, "compact", 799549303),
            Happening(915, "approve", 922494379),
        ),
        {"max_parallel": 1, "window": 12_000, "memory": "observational", "budgets": {"tokens": 120_000}, "slow": 0.05},
    ),
    "a compaction's call that is given up while it reserves stays reserved when its host ends": Script(
        71017,
        [task("t0", "explorer", [], ["t0.md"]), task("t1", "coder", ["t0"], ["t1.md"])],
        (
            Happening(113, "rerun", 864306145), Happening(249, "deny", 628203910), Happening(319, "rerun", 995890557),
            Happening(320, "rerun", 672975386), Happening(336, "edit_memory", 1028055628),
            Happening(366, "compact", 987471606), Happening(652, "plan_revise", 853345796),
            Happening(753, "pause_agent", 144184932), Happening(757, "set_budget", 173594261),
            Happening(762, "plan_revise", 1038235990), Happening(800, "set_budget", 429191643),
            Happening(805, "plan_add", 482163178), Happening(821, "tool_faults", 384379574),
            Happening(835, "plan_add", 529568336), Happening(846, "crash_at_a_point", 75470478),
            Happening(850, "resume", 1028688767), Happening(869, "resume", 716541546),
            Happening(924, "pause_agent", 266751141), Happening(933, "resume_agent", 469215678),
            Happening(1008, "resume", 472421309), Happening(1022, "model_faults", 792969263),
            Happening(1025, "crash_at_a_point", 604694351), Happening(1148, "deny", 173366066),
            Happening(1195, "edit_memory", 760481343), Happening(1244, "rerun", 1037664424),
            Happening(1248, "crash", 717097375), Happening(1291, "set_budget", 196929401),
            Happening(1479, "full_disk", 531320005), Happening(1501, "edit_memory", 70544463),
            Happening(1504, "pause", 824204270), Happening(1514, "set_budget", 182583076),
            Happening(1520, "compact", 499158865),
        ),
        {"max_parallel": 1, "window": 4500, "memory": "observational", "budgets": {}, "slow": 0.0, "hasty": 0.0, "resumes": 0.8, "same_agent": 0.6},
    ),
    "a question that a pause and a crash cut waits on after its call has ended: its shell was lost": Script(
        795896976, [task("t0", "coder", [], []), task("t1", "coder", ["t0"], ["t1.md"], model="simulated/default"), task("t2", "explorer", [], []), task("t3", "explorer", ["t0"], ["t3.md"])],
        (
            Happening(41, "tool_faults", 613638645),
            Happening(358, "crash", 592194717),
            Happening(444, "plan_add", 1043068337),
            Happening(457, "crash_at_a_point", 904644805),
            Happening(510, "pause_agent", 704590078),
            Happening(753, "crash", 469031299),
            Happening(772, "deny", 863237972),
            Happening(839, "crash_at_a_point", 460752123),
            Happening(851, "compact", 134143494),
            Happening(894, "plan_revise", 544112478),
            Happening(1011, "crash_at_a_point", 900016157),
            Happening(1095, "plan_add", 371923774),
            Happening(1121, "cancel_task", 796281590),
            Happening(1442, "steer", 1051829712),
            Happening(1600, "pause_agent", 69784183),
            Happening(1622, "lost_lease", 507290064),
            Happening(1707, "steer_all", 470506089),
        ),
        {"max_parallel": 2, "window": 4500, "memory": "observational", "budgets": {}, "slow": 0.05, "hasty": 0.0, "resumes": 0.8, "same_agent": 0.0},
    ),
    "a person redoes a compaction while another one runs, which is published after a crash": Script(
        930011, [task("t0", "coder", [], ["t0.md"]), task("t1", "coder", [], ["t1.md"])],
        (
            Happening(102, "compact", 167348960),
            Happening(365, "crash", 380073056),
            Happening(368, "steer", 780833287),
            Happening(592, "crash", 1013017175),
            Happening(710, "crash", 691284870),
            Happening(1309, "undo", 156733151),
            Happening(1396, "compact", 78427027),
            Happening(1714, "redo", 723987),
            Happening(1770, "crash", 265631429),
        ),
        {"max_parallel": 1, "window": 4500, "memory": "observational", "budgets": {}, "slow": 0.0, "hasty": 0.0, "resumes": 0.0, "same_agent": 0.6},
    ),
}
# fmt: on
"""By what went wrong."""
