"""What benchmarks/cached.py counts of dealing by affinity: parts are equal, samples go where their rows are."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from cached_parts import affinity, dealing  # noqa: E402 - of the benchmark, which is no package
from cached_parts.decided import Cache, Ranks  # noqa: E402
from cached_parts.placed import Placed  # noqa: E402

del sys.path[:1]


def test_equal_ids_meet_while_there_is_room() -> None:
    ids = np.random.default_rng(2).integers(0, 1000, 4096)
    rank_N = dealing.assign(dealing.hashed(ids, 4))
    of_id = np.array([np.bincount(rank_N[ids == i], minlength=4).max() / (ids == i).sum() for i in np.unique(ids)])
    assert (of_id == 1).mean() > 0.85
    assert dealing.contiguous(6, 3).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(("s", "keeps"), [(0, False), (0, True), (3, False)])
def test_what_is_said_to_be_read_is_not_sent(s: int, keeps: bool) -> None:
    """And at 0, where copies stay, a row is sent where another rank has pushed it since it was read here."""
    rng, rows, ranks = np.random.default_rng(s), 40, 3
    owner = np.zeros(rows, np.uint8)
    both = Ranks(owner, [Cache.empty(rows, "lru", 1) for _ in range(ranks)], [s], keeps=keeps)
    last: list[dict[int, int]] = [{} for _ in range(ranks)]
    valid_once = False
    for t in range(60):
        asked = [np.unique(rng.integers(0, rows, 3)) for _ in range(ranks)]
        held, valid = both.held(np.arange(rows))
        found = both.run([asked])
        for rank, mine in enumerate(asked):
            assert found.sent[0, rank].sum() == (~valid[mine, rank]).sum()
            assert held[mine, rank].tolist() == [row in last[rank] for row in mine.tolist()]
            if s == 0:
                others = [
                    max((last[other].get(row, -1) for other in range(ranks) if other != rank), default=-1)
                    for row in mine.tolist()
                ]
                mine_at = [last[rank].get(row, -1) for row in mine.tolist()]
                fresh = [keeps and own > other for own, other in zip(mine_at, others, strict=True)]
                assert valid[mine, rank].tolist() == fresh, (t, rank)
            valid_once |= bool(valid[mine, rank].any())
        for rank, mine in enumerate(asked):
            last[rank] |= dict.fromkeys(mine.tolist(), t)
    assert valid_once == (s > 0 or keeps)


def test_samples_of_two_kinds_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind has rows of its own: once dealt by affinity, ranks ask for no row of both, and none is sent."""
    kinds, rows = 2, 64
    rng = np.random.default_rng(5)

    def begin() -> affinity.Draw:
        def draw(samples: int) -> np.ndarray:
            kind = rng.permutation(np.arange(samples) % kinds)
            half = rows // 2
            return np.stack([rng.integers(0, half, samples) + half * kind for _ in range(3)], axis=1)

        return draw

    source = affinity.Source("kinds", (rows,) * 3, 0, begin)
    placed = Placed(source.rows, 2, affinity.WIDTH, range(3))
    batches = affinity.drawn(source, placed, 32, 60)
    monkeypatch.setattr(affinity, "CAPACITY", 1.0)
    arms = {
        "as it is": affinity.run(source, placed, batches, 40, 0, True),
        "affinity": affinity.run(source, placed, batches, 40, 0, True, affinity=True, near=False),
    }
    assert arms["as it is"].sent.sum() > 1000
    assert arms["affinity"].sent.sum() == 0
    assert arms["affinity"].top_share == 1.0 > arms["as it is"].top_share
    assert (arms["affinity"].moved.sum(axis=(1, 2)) == 64).all()
