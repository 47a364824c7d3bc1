"""Dealing by affinity as the product does it, by count, beside what could be saved if copies were known.

As ``affinity`` counts: bytes of ``cached`` between ranks, of real samples, copies that begin empty, 128 samples a
rank, 64 columns, rows dealt to all ranks; more steps fill the caches. Arms: ``as it is``, contiguous parts;
``known``, by what ranks have copies of and own, of which nobody pays for knowing; ``history``, the product's rule,
its table emptied where a window of the order begins, of the default 65,536 samples or the file's, where it has fewer;
``history, kept``, never emptied; ``history, owners apart``, without what owners have, of which ``saved_apart`` and
``kept_apart`` tell. ``kept``: of what ``known`` saves, the part that the arm does. ``us_a_sample``: time of a core to
deal a sample of the whole batch, on a shared machine. Knows the arms of ``affinity``; knows no values.
"""

from functools import partial
from pathlib import Path

from _report import claim
from cached_parts import affinity
from cached_parts.placed import Placed
from des_parts.cells import Row, show

NAMES = ("movielens", "criteo", "criteo_once")
RANKS, BATCH, STALENESS = (4, 8), 128, (0, 10, 100)
FILLING, COUNTED = 160, 40  # steps
WINDOW = 4096 * 16  # samples: data.chunk times data.window, by default


def measure(cache: Path, files: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    rows, claims = list[Row](), list[Row]()
    for name in NAMES:
        if not affinity.is_there(name, cache, files):
            continue
        for ranks in RANKS[:1] if quick else RANKS:
            for staleness in STALENESS[-1:] if quick else STALENESS:
                found = _of(name, cache, files, ranks, staleness, quick=quick)
                rows += found
                claims += _claims(found)
    return rows, claims


def _of(name: str, cache: Path, files: Path, ranks: int, s: int, *, quick: bool) -> list[Row]:
    source = affinity.source_of(name, cache, files, quick=quick)
    placed = Placed(source.rows, ranks, affinity.WIDTH, range(len(source.rows)))
    filling, counted = (FILLING // 10, COUNTED // 10) if quick else (FILLING, COUNTED)
    if source.once is not None:
        filling = source.once // (ranks * BATCH) // 2
        counted = source.once // (ranks * BATCH) - filling
    batches = affinity.drawn(source, placed, BATCH, filling + counted)
    assert source.samples is not None, "of a file"
    window = max(1, min(WINDOW, source.samples) // (ranks * BATCH))
    run = partial(affinity.run, source, placed, batches, filling, s, False)
    base = run()
    arms = {
        "as it is": base,
        "known": run(affinity=True),
        "known, owners apart": run(affinity=True, near=False),
        "history": run(window=window),
        "history, kept": run(window=0),
        "history, owners apart": run(window=window, near=False),
    }
    out = list[Row]()
    for arm, found in arms.items():
        about: Row = {"part": "history", "data": name, "ranks": ranks, "staleness": s, "dealt": arm, "window": window}
        figures = affinity.figures(source, placed, s, found, base, BATCH, tells=False)
        told = {key: figures[key] for key in ("kb_a_step", "saved", "saved_apart", "us_a_sample", "halves")}
        known = out[1] if len(out) > 1 else {"saved": figures["saved"]}
        apart = out[2] if len(out) > 2 else {"saved_apart": figures["saved_apart"]}
        told["kept"] = figures["saved"] / known["saved"] if known["saved"] else None
        told["kept_apart"] = figures["saved_apart"] / apart["saved_apart"] if apart["saved_apart"] else None
        out.append({**about, **told})
        show(out[-1])
    return out


def _claims(rows: list[Row]) -> list[Row]:
    """What the rule saves, and which part of what could be saved that is."""
    one = next(row for row in rows if row["dealt"] == "history")
    at = f"{one['data']}.{one['ranks']}.s{one['staleness']}"
    unit = f"of the bytes of cached at s = {one['staleness']}, fewer, on {one['ranks']} ranks"
    kept = "of what is saved where every rank's copies are known"
    return [
        claim(f"het.history.saved.{at}", one["saved"], unit),
        claim(f"het.history.kept.{at}", one["kept"], kept, ">= 0.5" if one["staleness"] else None),
    ]
