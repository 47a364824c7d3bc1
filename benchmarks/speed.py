"""Speed of whole training steps beside TorchRec, hand-written FBGEMM and DDP: same cores, model and batches.

    python benchmarks/speed.py [--peers PYTHON] [--only w1,w2] [--ranks 1,2,4] [--rounds 5] [--quick] [--json FILE]

A round launches every contender once, in turn (each round begins with another), as processes of its own: warm-up, then
measured steps from barrier to barrier. 1 rank has 2 threads, 2 and 4 ranks have 1 thread each. Peers have their batches
in memory; hpcrec reads its own from HDF5 as it goes. ``speed_parts/workload.py`` says what is trained, the parts beside
it what each contender does. Data are made once, in --data; ``tools/peers.sh`` installs the peers.

``speed.<workload>.<n>ranks``: hpcrec (fused or split, dense sums by Horovod or by MPI alone) over the fastest peer,
both chosen by the median of their samples/s; the value is the median over rounds of the ratio within a round.
``parity.<workload>``: largest difference among all contenders of the mean loss of the last 5 steps.
``ideal.<workload>``: what ``speed_parts/ideal.py`` takes over what hpcrec's step takes, 2 ranks. ``exchange.local``:
``speed_parts/exchange_rate.py``, the lesser of w1 and w2. ``overhead.step``: a step of 32 samples over one of 16,384,
w1 on 2 ranks; the former without its phases dense_reduce and dense_update, whose work does not depend on the batch. All
else that a step of next to no samples takes is Python, scheduling, and the start of kernels, torch's operations and
messages.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _report import ROOT, claim, finish, repeated
from _report import options as benchmark_options
from speed_parts import hpcrec_data, launch
from speed_parts.launch import HPCREC, PARTS, PEERS, Place

CACHE = Path("~/.cache/hpcrec").expanduser()
GOALS = {"w1": {1: 1.0, 2: 1.4, 4: 1.6}, "w2": {1: 1.0, 2: 1.9, 4: 1.9}, "w3": {1: 1.0, 2: 3.0, 4: 3.0}}
EXTRAS = ("ideal", "exchange", "overhead")
PARITY = 0.005
SMALL_BATCH = 32
QUICK = {"only": "w1,w2", "ranks": "2", "contenders": "hpcrec-fused,tbe", "rounds": 1, "steps": 10, "warmup": 3}

Row = dict[str, Any]


def main() -> None:
    options = parsed()
    place = Place(
        peers=options.peers,
        data=options.data,
        warmup=options.warmup,
        steps=options.steps,
        settings=options.set,
    )
    names = options.only.split(",")
    ranks = [int(number) for number in options.ranks.split(",")]
    for name in names:
        hpcrec_data.prepare(name, options.data)
    raw: list[Row] = []
    for number in range(options.rounds):
        for name in names:
            for n in ranks:
                raw += one_round(place, options, name, n, number)
    rows = summed_up(raw)
    claims = [*speed_claims(raw, rows, names, ranks), *parity_claims(rows, names)]
    claims += ideal_claims(raw, names)
    if "exchange" in options.extras:
        claims.append(exchange_claim(rows, 5 if options.quick else 40))
    if "overhead" in options.extras:
        claims.append(overhead_claim(place, rows, options.rounds))
    if options.quick:
        claims += long_claims({item["id"] for item in claims})
    finish("speed", rows, claims, options.json)
    failed = [row for row in rows if str(row.get("result", "")).startswith("failed")]
    if failed:
        sys.exit(f"speed: {len(failed)} rows failed; what the launches said is above")


def parsed() -> argparse.Namespace:
    """The command line; --quick sets what is not given."""
    parser = benchmark_options(__doc__)
    parser.add_argument("--only", help="workloads (w1,w2,w3)")
    parser.add_argument("--ranks", help="numbers of ranks (1,2,4)")
    parser.add_argument("--contenders", help=f"who runs ({','.join((*HPCREC, *PEERS))})")
    parser.add_argument("--extras", help=f"further measurements ({','.join(EXTRAS)}), '' for none")
    parser.add_argument("--rounds", type=int, help="launches of each contender (5)")
    parser.add_argument("--steps", type=int, help="measured steps of a launch (30)")
    parser.add_argument("--warmup", type=int, help="steps before them (5)")
    parser.add_argument("--peers", type=Path, default=CACHE / "peers/bin/python", help="the peers' Python")
    parser.add_argument("--data", type=Path, default=CACHE / "speed", help="where data are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for hpcrec's configurations")
    options = parser.parse_args()
    everything = {"only": "w1,w2,w3", "ranks": "1,2,4", "contenders": ",".join((*HPCREC, *PEERS))}
    usual = {**everything, "extras": ",".join(EXTRAS), "rounds": 5, "steps": 30, "warmup": 5}
    for key, value in {**usual, **({**QUICK, "extras": "exchange"} if options.quick else {})}.items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    known = {"only": GOALS, "contenders": (*HPCREC, *PEERS), "extras": (*EXTRAS, "")}
    for key, allowed in known.items():
        for word in getattr(options, key).split(","):
            if word not in allowed:
                parser.error(f"--{key} has {word!r}; allowed are {', '.join(allowed)}")
    return options


def one_round(place: Place, options: argparse.Namespace, name: str, ranks: int, number: int) -> list[Row]:
    """One row a contender, and the ideal's."""
    contenders = options.contenders.split(",")
    first = number % len(contenders)
    rows: list[Row] = []

    def add(contender: str, found: Row) -> None:
        rows.append({"workload": name, "ranks": ranks, "contender": contender, **found})
        show(rows[-1])

    for contender in (*contenders[first:], *contenders[:first]):
        add(contender, launch.launch(place, contender, name, ranks))
    if ranks == 2 and "ideal" in options.extras:
        argv = [str(PARTS / "ideal.py"), name, str(place.data)]
        add("ideal", launch.python(argv, lambda out: [str(out), str(min(10, options.steps))]))
    return rows


def show(row: Row) -> None:
    """One line of progress."""
    head = f"{row['workload']:6} {row['ranks']} ranks  {row['contender']:13}"
    if "result" in row:
        print(head, row["result"], flush=True)
    elif "step_ms" in row:
        ms, loss = row["step_ms"], f"loss {row['loss_first']:.4f} -> {row['loss_last']:.4f}"
        steps = f"step {ms['mean']:7.2f} ms (p10 {ms['p10']:.2f}, p50 {ms['p50']:.2f}, p90 {ms['p90']:.2f})"
        cpu = f"cpu {row['cpu_ms']:.1f} ms a rank  load {row['load_before']:.1f}"
        print(head, f"{row['samples_per_s']:9.0f} samples/s  {steps}  {loss}  {cpu}", flush=True)
    else:
        parts = "  ".join(f"{key} {row[key]:.2f}" for key in ("ideal_ms", "gather_ms", "rows_ms"))
        print(head, f"{row['samples_per_s']:9.0f} samples/s  {parts}  dense_ms {row['dense_ms']}", flush=True)
    for role, phases in row.get("phase_ms", {}).items():
        order = sorted(phases, key=lambda phase: -phases[phase])
        print(f"         {role:6} ms/step: " + "  ".join(f"{p} {phases[p]:.2f}" for p in order), flush=True)


def rounds_of(raw: Sequence[Row], name: str, ranks: int, contender: str, key: str = "samples_per_s") -> list[float]:
    """A contender's values, round by round; empty unless it ran in every one."""
    rows = [r for r in raw if (r["workload"], r["ranks"], r["contender"]) == (name, ranks, contender)]
    return [row[key] for row in rows] if all(key in row for row in rows) else []


def summed_up(raw: Sequence[Row]) -> list[Row]:
    """One flat row a contender over its rounds; hpcrec's phases in rows of their own."""
    rows, phases = [], []
    for name, ranks, contender in dict.fromkeys((r["workload"], r["ranks"], r["contender"]) for r in raw):
        same = [r for r in raw if (r["workload"], r["ranks"], r["contender"]) == (name, ranks, contender)]
        head = {"workload": name, "ranks": ranks, "contender": contender}
        ran = [r for r in same if "samples_per_s" in r]
        rows.append({**head, **(medians(ran) if ran else {"result": same[0]["result"]})})
        for role in ran[-1].get("phase_ms", {}) if ran else ():
            of_role = [r["phase_ms"][role] for r in ran]
            every = sorted({phase for r in of_role for phase in r})
            ms = {f"{p}_ms": statistics.median(r.get(p, 0.0) for r in of_role) for p in every}
            phases.append({**head, "role": role, **ms})
    return rows + phases


def medians(ran: Sequence[Row]) -> Row:
    """Over the rounds of one contender."""
    speed = [row["samples_per_s"] for row in ran]
    row: Row = {"samples_per_s": statistics.median(speed), "min": min(speed), "max": max(speed), "rounds": len(ran)}
    keys: dict[str, Callable[[Row], float]] = {
        "step_ms_p50": lambda r: r["step_ms"]["p50"],
        **{key: (lambda r, key=key: r[key]) for key in ("cpu_ms", "peak_rss_mb", "loss_first", "loss_last")},
        **{key: (lambda r, key=key: r[key]) for key in ("ideal_ms", "gather_ms", "rows_ms")},
        "dense_ms_1x2": lambda r: r["dense_ms"]["1x2"],
        "dense_ms_2x1": lambda r: r["dense_ms"]["2x1"],
    }
    present = ("ideal_ms", "gather_ms", "rows_ms", "dense_ms_1x2", "dense_ms_2x1")
    for key, read in keys.items():
        if (key in present) == ("ideal_ms" in ran[0]):
            row[key] = statistics.median(read(r) for r in ran)
    return row


def fastest(raw: Sequence[Row], name: str, ranks: int, contenders: Iterable[str]) -> tuple[str, list[float]] | None:
    """The contender with the largest median, and its samples/s by round."""
    ran = {c: rounds_of(raw, name, ranks, c) for c in contenders}
    ran = {c: values for c, values in ran.items() if values}
    return max(ran.items(), key=lambda item: statistics.median(item[1])) if ran else None


def speed_claims(raw: Sequence[Row], rows: list[Row], names: Sequence[str], ranks: Sequence[int]) -> list[Row]:
    """Ratios of hpcrec to the fastest peer; adds a row of the ratios by round."""
    claims = []
    for name in names:
        for n in ranks:
            ours, theirs = fastest(raw, name, n, HPCREC), fastest(raw, name, n, tuple(PEERS))
            ratios = list[float]()
            if ours and theirs:
                ratios = [a / b for a, b in zip(ours[1], theirs[1], strict=True)]
                shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
                rows.append({"workload": name, "ranks": n, "hpcrec": ours[0], "peer": theirs[0], "ratios": shown})
            unit = f"{ours[0]} / {theirs[0]}" if ours and theirs else "hpcrec / best peer"
            claims.append(repeated(f"speed.{name}.{n}ranks", ratios, unit, f">= {GOALS[name].get(n, 1.0):g}"))
    return claims


def parity_claims(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """All train the same: their losses agree."""
    claims = []
    for name in names:
        losses = [row["loss_last"] for row in rows if row["workload"] == name and "loss_last" in row]
        gap = max(losses) - min(losses) if len(losses) > 1 else None
        claims.append(claim(f"parity.{name}", gap, "difference of loss", f"<= {PARITY:g}"))
    return claims


def ideal_claims(raw: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """What of a step's time is what it costs at least, by round."""
    claims = []
    for name in names:
        ours, ideal = fastest(raw, name, 2, HPCREC), rounds_of(raw, name, 2, "ideal")
        if ours and ideal:
            shares = [a / b for a, b in zip(ours[1], ideal, strict=True)]
            claims.append(repeated(f"ideal.{name}", shares, f"of the ideal samples/s, {ours[0]}", ">= 0.85"))
    return claims


def exchange_claim(rows: list[Row], rounds: int) -> Row:
    """Exchange of pooled values on 2 ranks of one host."""
    argv = [*launch.hpcrec_run(2), str(PARTS / "exchange_rate.py")]
    found = launch.run(lambda out: [*argv, str(out), str(rounds)], {})
    if "result" in found:
        rows.append({"exchange": "2 ranks", **found})
        return claim("exchange.local", None, "of simultaneous copies", ">= 0.5")
    rows += [{"exchange": name, **found[name]} for name in ("w1", "w2")]
    return claim("exchange.local", min(found[n]["share"] for n in ("w1", "w2")), "of simultaneous copies", ">= 0.5")


def overhead_claim(place: Place, rows: list[Row], rounds: int) -> Row:
    """A step of next to no work beside one of 16,384 samples, of hpcrec's contender that is faster at the latter."""
    hpcrec_data.prepare("w1-16k", place.data)
    small = [f"train.batch_size={SMALL_BATCH}", f"data.chunk={SMALL_BATCH * 64}"]
    raw: list[Row] = []
    for _ in range(rounds):
        for contender in HPCREC:
            for size, settings, steps in (("16384", (), 10), (str(SMALL_BATCH), small, 100)):
                at = replace(place, settings=(*place.settings, *settings), steps=min(steps, 4 * place.steps))
                row = launch.launch(at, contender, "w1-16k", 2)
                raw.append({"workload": "w1-16k", "ranks": 2, "contender": f"{contender}, batch {size}", **row})
                show(raw[-1])
    rows += summed_up(raw)
    best = fastest(raw, "w1-16k", 2, [f"{contender}, batch 16384" for contender in HPCREC])
    shares = list[float]()
    if best is not None:
        little = best[0].replace("16384", str(SMALL_BATCH))
        whole = [row for row in raw if row["contender"] == best[0]]
        parts = [row for row in raw if row["contender"] == little and "step_ms" in row]
        shares = [fixed_ms(a) / b["step_ms"]["mean"] for a, b in zip(parts, whole, strict=False)]
    return repeated("overhead.step", shares, "of a step of 16,384 samples", "<= 0.05")


def fixed_ms(row: Row) -> float:
    """A small step, less what the batch's size does not change: the sum and the step of dense parameters."""
    dense = next(phases for role, phases in row["phase_ms"].items() if role != "owner")
    return float(row["step_ms"]["mean"] - dense["dense_reduce"] - dense["dense_update"])


def long_claims(measured: set[str]) -> list[Row]:
    """What --quick has no time for, from the committed figures of a full run, with the commit that they are of."""
    path = ROOT / "benchmarks/results/speed.json"
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    kept = [item for item in before["claims"] if item["id"] not in measured]
    return [{**item, "long": True, "commit": item.get("commit", before["versions"]["commit"])} for item in kept]


if __name__ == "__main__":
    main()
