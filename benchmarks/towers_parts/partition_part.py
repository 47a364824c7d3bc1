"""Towers that ``hpcrec towers plan`` finds in data of planted groups, and what they are worth.

Five seeds of the data of ``quality_part``. ``towers.rand_index``: the mean adjusted Rand index of the towers that are
found with the groups that were planted, after 700 steps of 2,048 samples; beside it that of the published signals, mean
|cos| of pooled vectors, coherent and diverse. ``towers.partition_gain_interval``: lower end of the 95 % interval, over
seeds, of the AUC of DLRM with these towers at r = 8, less that with features in their order or with random towers, the
lower of both. ``towers.uneven``: how far bytes of a tower are from an even share, at most; tables are alike here, and 4
towers are asked for, with loads within 15 % of even, so that sizes are those planted. The same towers come from the
same seed: the first is planned twice.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _report import claim
from des_parts.cells import Row, show
from towers_parts.data import Planted, Towers
from towers_parts.planned import planned
from towers_parts.quality_part import PILOT, SEEDS, SHARE, STEPS, Arm, Measured
from towers_parts.trained import Kept, gap

from hpcrec.plan.towers import adjusted_rand

RATIO, N_TOWERS, PLAN_STEPS, MODEL = 8, 4, 700, "dmt_dlrm"
BLOCKS = 22  # of 65,536 samples: each of a plan's is seen once
UNEVEN = 0.15
SIGNALS = ("interactions", "coherent", "diverse")


def measure(kept: Kept, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    pilot = Planted(SHARE, PILOT)
    measured = Measured(kept, pilot, pilot.groups, *((100, 0) if quick else (STEPS, STEPS)))
    rows, found = list[Row](), dict[str, list[float]]()
    for seed in SEEDS[: 2 if quick else 5]:
        data = Planted(SHARE, seed)
        towers_of = plans(data, kept.cache, 50 if quick else PLAN_STEPS, again=seed == SEEDS[0])
        names = sorted((name for group in data.groups for name in group), key=lambda name: int(name[1:]))
        arms = {"learned": towers_of["interactions"], "in order": dealt(names)}
        arms["random"] = dealt(np.random.default_rng(seed).permutation(names).tolist())
        cases = {name: measured.case(Arm(name, "towers", MODEL, RATIO, towers), seed) for name, towers in arms.items()}
        kept.run(data, cases.values())
        row: Row = {"part": "partition", "seed": seed, "ratio": RATIO}
        row |= {f"rand_{signal}": rand(towers_of[signal], data.groups) for signal in SIGNALS}
        row |= {f"rand_{name}": rand(arms[name], data.groups) for name in ("in order", "random")}
        for name, case in cases.items():
            found.setdefault(name, []).append(kept.auc(data, case))
            row[f"auc_{name}"] = found[name][-1]
        row["uneven"] = max(abs(len(tower) * N_TOWERS / len(names) - 1) for tower in towers_of["interactions"])
        rows.append(row)
        show(row)
    return rows, claims(rows, found)


def claims(rows: Sequence[Row], found: Mapping[str, Sequence[float]]) -> list[Row]:
    """Of all seeds."""
    gains = [gap(found["learned"], found[other])["low"] for other in ("in order", "random")]
    seeds = f"mean over {len(rows)} seeds"
    return [
        claim("towers.rand_index", statistics.mean(row["rand_interactions"] for row in rows), seeds, ">= 0.9"),
        claim("towers.partition_gain_interval", min(gains), f"of AUC at r = {RATIO}, lower end", "> 0"),
        claim("towers.uneven", max(row["uneven"] for row in rows), "of an even share", f"<= {UNEVEN}"),
    ]


def plans(data: Planted, cache: Path, steps: int, *, again: bool) -> dict[str, Towers]:
    """Towers by each signal; with ``again`` seen to be the same a second time."""
    found = dict[str, Towers]()
    with data.files(cache / "plans", blocks=(BLOCKS, 1)) as folder:
        for signal in (*SIGNALS, *(SIGNALS[:1] if again else ())):
            mine = planned(folder, N_TOWERS, steps, data.seed, UNEVEN, signal=signal)
            assert found.get(signal, mine) == mine, f"{data.name}: the same seed gave other towers"
            found[signal] = mine
    return found


def dealt(names: Sequence[str]) -> Towers:
    """Towers of so many names each, one after the other."""
    size = len(names) // N_TOWERS
    return tuple(tuple(names[first : first + size]) for first in range(0, len(names), size))


def rand(towers: Towers, groups: Towers) -> float:
    """Adjusted Rand index of two ways to part the same features."""
    of = [{name: at for at, tower in enumerate(some) for name in tower} for some in (towers, groups)]
    names = sorted(of[0])
    return adjusted_rand([of[0][name] for name in names], [of[1][name] for name in names])
