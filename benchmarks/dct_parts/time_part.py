"""Time of a step across 4 emulated hosts with slow links, whole and with both compressions.

DLRM of width 128 with the towers of its authors' configuration for the Criteo Kaggle data (bottom 512, 256, 64, top
512, 256) on the synthetic clicks, global batch 8,192, 4 ranks with both roles, one a host, 1 thread each; links of 1
Gbit/s and of 100 Mbit/s both ways, made by the scripts of --cluster. The hosts share the cores of this machine, so
that a step computes for longer than on hosts of their own, and compression too. Step times are medians of ``REPEATS``
runs of each, by turns. ``communication``: share of a step that is not in a step of the same ranks on this machine
without the hosts, less what its messages take there when they are sent again with nothing between them.

``whole`` is uncompressed in form ``pooled`` and float32, as thresholded runs are ``pooled``; ``auto`` is uncompressed,
too, in the form that sends the fewest bytes of these data without a loss.

``dct.time_saved.<link>``: share of the step's time of ``whole``; ``dct.time_saved_auto.<link>``: of ``auto``; both are
medians of the turns.
``compression_ms``: processor time of compression and decompression, kernels and what is around them, without messages,
on the rank where it is most, hidden or not, times the hosts that share a core: so much of the time that passes is
theirs. ``dct.cost_share``: its share of a thresholded step at 1 Gbit/s. ``sections``: processor time of a rank, in ms.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _report import claim, repeated
from dct_parts.quality_part import OF, show
from dct_parts.runs import CONFIG, MODELS, Row
from on_ranks import launch
from on_ranks.launch import RANKS

LINKS = {"1gbit": "1gbit", "100mbit": "100mbit"}
MODEL, TOWERS = "dlrm", "model.options={bottom=[512, 256, 64], top=[512, 256]}"
BATCH, STEPS, AHEAD, REPEATS = 8192, 24, 4, 5
WHOLE, AUTO, LESS = RUNS = ("whole", "auto", "thresholded")
GOALS = {"time": ">= 0.37", "cost": "<= 0.05"}


def measure(data: Path, cluster: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    reason = launch.why_no_hosts(cluster)
    if reason is not None:
        print(f"time: skipped, {reason}", flush=True)
        return [{"hosts": "skipped", "result": reason}], claims([])
    repeats = 1 if quick else REPEATS
    jobs = [job(data, run) for run in RUNS]
    here = medians(list(launch.local([{**job, "again": True} for job in jobs * repeats])))
    rows = []
    for link, rate in LINKS.items():
        there = medians(list(launch.on_hosts(jobs * repeats, cluster, rate)))
        for run, local, across in zip(RUNS, here, there, strict=True):
            compute_s = local["step_s"] - local["exchange_s"]
            row = {"link": link, "run": run, "step_ms": 1e3 * across["step_s"], "compute_ms": 1e3 * compute_s}
            row["turns_ms"] = across["turns_ms"]
            row["communication"] = 1 - compute_s / across["step_s"]
            row["compression_ms"] = 1e3 * sum(across["clocked_s"].values()) * max(1, RANKS / (os.cpu_count() or 1))
            row["bytes"] = float(np.sum(across["bytes_TRR"]))
            row["sections"] = told(across["clocked_s"])
            rows.append(row)
            show(row)
    return rows, claims(rows)


def job(data: Path, run: str) -> Row:
    """A run of ``rank.train``; its first and last steps, in which batches are not read ahead, are not timed."""
    settings = [
        *MODELS[MODEL],
        TOWERS,
        f"model.width={OF[MODEL].width}",
        *(OF[MODEL].thresholded() if run == LESS else OF[MODEL].whole),
        *(["exchange.form=auto"] if run == AUTO else []),
        f"data.train={data}/train.h5",
        f"train.batch_size={BATCH}",
        f"train.steps={STEPS + 2 * AHEAD}",
        "topology.owner_threads=1",
        "topology.dense_threads=1",
        "run.folder=unused",
    ]
    return {
        "kind": "train",
        "config": str(CONFIG),
        "settings": settings,
        "warmup": AHEAD,
        "cooldown": AHEAD,
        "clocked": True,
    }


def medians(found: Sequence[Row]) -> list[Row]:
    """Of each run the first row, with the median times of all its rows; ``found`` has the runs by turns."""
    out = []
    for number in range(len(RUNS)):
        rows = found[number :: len(RUNS)]
        times = [name for name in ("step_s", "exchange_s") if name in rows[0]]
        clocked_s = {name: float(np.median([row["clocked_s"][name] for row in rows])) for name in rows[0]["clocked_s"]}
        out.append({**rows[0], **{name: float(np.median([row[name] for row in rows])) for name in times}})
        out[-1] |= {"clocked_s": clocked_s, "turns_ms": [1e3 * row["step_s"] for row in rows]}
    return out


def told(clocked_s: Mapping[str, float]) -> str:
    """Milliseconds of each section that took any, longest first."""
    longest = sorted(clocked_s.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {1e3 * taken_s:.2f}" for name, taken_s in longest if taken_s)


def claims(rows: Sequence[Row]) -> list[Row]:
    """What thresholds save, and cost."""
    at = {(row["link"], row["run"]): row for row in rows}
    out = []
    for link in LINKS:
        for base, end, goal in ((WHOLE, "", GOALS["time"]), (AUTO, "_auto", None)):
            turns = zip(at[link, LESS]["turns_ms"], at[link, base]["turns_ms"], strict=True) if at else ()
            saved = [1 - less_ms / whole_ms for less_ms, whole_ms in turns]
            out.append(repeated(f"dct.time_saved{end}.{link}", saved, f"of the uncompressed step, {base}", goal))
    row = at.get(("1gbit", LESS))
    share = None if row is None else row["compression_ms"] / row["step_ms"]
    return [*out, claim("dct.cost_share", share, "of the thresholded step at 1 Gbit/s", GOALS["cost"])]
