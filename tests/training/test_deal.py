"""Another dealing of samples to dense ranks trains the same, and owners that read ids cut batches as dense ranks do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.data.deal import Deal, equal_parts
from hpcrec.errors import ConfigError
from hpcrec.training.session import Session
from tests.training.runs import config_for, train, write_data


def first_but_one(samples: int, parts: int) -> np.ndarray:
    """All but one sample to the first, that one to the last; those between have none."""
    return np.array([0, *[samples - 1] * (parts - 1), samples])


def last_alone(samples: int, parts: int) -> np.ndarray:
    """All to the last."""
    return np.array([0] * parts + [samples])


def sizes(config: Any, deal: Deal) -> list[int]:
    """Samples of each dense rank's part of the first batch."""
    with open_session(config, deal=deal) as session:
        step = next(iter(session.steps()))
        mine = None if step.batch is None else len(step.batch.label)
        step.run()
        return [n for n in session.parts.world.main.allgather(mine) if n is not None]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", ["pooled", "rows", "partial"])
@pytest.mark.parametrize("deal", [first_but_one, last_alone])
def test_another_dealing_trains_the_same(folder: Path, deal: Deal, form: str) -> None:
    """As by equal parts, but for the order of sums; with ids that owners read as with those sent, bit for bit."""
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size
    for roles in [{"mode": "fused"}, {"mode": "split", "owners": 1, "dense": size - 1}][: 1 + (size > 2)]:
        found = {}
        for ids in ("routed", "read"):
            config = config_for(
                folder,
                topology=roles,
                model={"name": "deepfm"},
                exchange={"form": form, "ids": ids},
                train={"steps": 6},
            )
            found[ids] = train(config, deal=deal)
        expected = train(config)
        assert found["read"][0] == found["routed"][0]
        np.testing.assert_allclose(found["read"][0], expected[0], rtol=0, atol=1e-12)
        for read, routed, by_default in zip(found["read"][1:], found["routed"][1:], expected[1:], strict=True):
            assert read.keys() == by_default.keys()
            for name in by_default:
                assert read[name].tobytes() == routed[name].tobytes(), name
                np.testing.assert_allclose(read[name], by_default[name], rtol=0, atol=1e-12, err_msg=name)
        n = size if roles["mode"] == "fused" else size - 1
        assert sizes(config, deal) == np.diff(deal(13, n)).tolist()


@pytest.mark.parallel([2, 4])
def test_groups_of_dense_ranks_deal_their_batches_likewise(folder: Path) -> None:
    """On 4 ranks two groups of two, each with a batch of its own of which one rank has all samples."""
    write_data(folder / "data.h5")
    found = []
    for deal in (equal_parts, last_alone):
        for ids in ("routed", "read"):
            config = config_for(
                folder,
                exchange={"ids": ids},
                train={"batch_size": 14, "steps": 5},
                dense={"codistillation": {"groups": 2}},
            )
            found.append(train(config, deal=deal))
    for dealt, other, atol in ((found[1], found[0], 0), (found[3], found[2], 0), (found[3], found[1], 1e-12)):
        np.testing.assert_allclose(dealt[0], other[0], rtol=0, atol=atol)
        for mine, theirs in zip(dealt[1:], other[1:], strict=True):
            for name in theirs:
                np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=atol, err_msg=name)


def predictions(session: Session) -> np.ndarray:
    """Of the whole validation split, by position; each has to come once."""
    out = np.full(session.parts.splits["validation"].order.samples, np.nan)
    mine = [(first, logits.numpy().ravel().copy()) for first, _, logits in session.outputs("validation")]
    for first, logits in (one for theirs in session.parts.world.main.allgather(mine) for one in theirs):
        assert np.isnan(out[first : first + len(logits)]).all()
        out[first : first + len(logits)] = logits
    return out


@pytest.mark.parallel([1, 2, 3, 4])
def test_predictions_stand_where_their_samples_do(folder: Path) -> None:
    write_data(folder / "data.h5")
    config, found = config_for(folder, data={"validation": str(folder / "data.h5")}, train={"steps": 2}), []
    for deal in (equal_parts, first_but_one):
        with open_session(config, deal=deal) as session:
            found.append((predictions(session), session.evaluate("validation")["logloss"]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=0, atol=1e-12)


@pytest.mark.parallel([1, 2, 3])
def test_what_is_no_dealing_is_refused_on_every_rank(folder: Path) -> None:
    """Whichever rank it comes from, of the last batch of an epoch too, which has 5 samples; before any step."""
    write_data(folder / "data.h5")
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    config = config_for(folder)

    def of_one_rank(samples: int, parts: int) -> np.ndarray:
        return equal_parts(samples, parts) + (rank == size - 1 and samples == 5)

    def by_rank(samples: int, parts: int) -> np.ndarray:
        return equal_parts(samples, parts) if rank == 0 else last_alone(samples, parts)

    with pytest.raises(ConfigError, match=r"cuts a batch of 5 samples for . dense ranks at array\(\[1"):
        open_session(config, deal=of_one_rank)
    if size > 1:
        wanted = r"a batch of 13 samples .* on rank 0, at \[0, .*13\] on rank 1\. Allowed: the same on all ranks\."
        with pytest.raises(ConfigError, match=wanted):
            open_session(config, deal=by_rank)
