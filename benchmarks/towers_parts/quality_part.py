"""AUC of towers beside the flat model's, over paired seeds, on test sets that were not trained on.

16 features of 40 ids in 4 planted groups of 4, latent rank 8, width 16; each pair of features has a weight of its own,
sign included, and a share of the interactions' variance lies between groups. A seed is one of the data and of the run,
of 6 million samples (an epoch and a half); rows have the attainable AUC beside flat's, and
``towers.flat_below_attainable`` is how far flat is below it: intervals of gaps say little where it has not learned.
Rates of rows and of dense parameters are those of ``RATES`` than which no next ones have a better AUC, on a seed that
nothing else uses (``at_edge`` where one is the least or the largest of all): of ``flat``, of towers by ratio, and of
``narrow``, the flat model with rows of width 16 / r, of which as many bytes cross hosts as of towers of ratio r, or
more. They are sought at a share of 5 %, by steps of 2 to 3.3 times, from two places; and where smaller dense rates
have an AUC that is less by no more than ``TIE``, the least of them is taken, for the largest rate by which one seed
learns is too large for some others. (Where it is better by more than that it is taken all the same, and some seeds may
learn badly by it.) A gap is the mean difference over seeds, its interval the 95 % one of Student's t.

``planted``   share 5 %, 8 seeds, towers those planted, r = 2, 4, 8, DLRM: ``towers.auc_interval.planted.<model>`` is
              the lower end at r = 4 of AUC - flat's, ``towers.over_narrow_interval.planted.<model>`` over narrow rows;
              ``towers.largest_ratio.planted.<model>`` the largest r whose ends hold both; and
              ``towers.half_width_gap.planted.<model>`` what flat loses by rows of half the width: as long as that is
              less than the margin, width is padding. ``planted_dcn``: the same of DCN, whose runs take twice as long
``share``     shares from 0 to 1, and data without groups, 5 seeds, r = 2 and 4, DLRM:
              ``towers.largest_cross_share.r<r>`` is the largest share up to which the lower end is above the margin,
              and flat has learned
``towers``    2 to 16 towers, r = 2, 8, 16, 3 seeds, DLRM: a table. Fewer towers than groups have two groups each, more
              have a part of one
``long``      as ``planted``, of twice the samples, at r = 4 over 4 of the seeds, DLRM, by the rates of ``planted``: a
              table, by which to judge whether gaps shrink or grow where models learn for longer
``movielens`` users, their attributes and history, films, genres and years (``data``): two towers, 24 seeds of the
              split and of the run, no share; margin 0.001. Of 8 other seeds, 1 to 8, the gap at r = 4 had a standard
              deviation of 0.0024, whose interval over 24 is as wide as the margin on each side. The towers are those
              that ``hpcrec towers plan`` finds on each seed's training part, however uneven, for the history has most
              of the lookups: rows say what they have. Beside them ``sides``, a tower of what is known of users and one
              of films, over 8 of the seeds. Splits of one file overlap, so that its intervals are narrower than those
              of other users would be
``criteo``    the sample of Criteo's logs, 4 towers that the plan finds, r = 4, 8 splits, DLRM: 2,500 lines for the test
              decide nothing, so that there is a table alone
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _report import claim
from des_parts import shapes
from des_parts.cells import Row, show
from towers_parts.data import FILES, Criteo, MovieLens, Planted, Towers, as_option
from towers_parts.planned import planned
from towers_parts.trained import Case, Data, Kept, gap

WIDTH, SHARE, RATIO = 16, 0.05, 4
RATIOS = (2, 4, 8)
SEEDS, PILOT = tuple(range(1, 9)), 100
ML_SEEDS, SIDES_SEEDS = tuple(range(9, 33)), tuple(range(9, 17))
STEPS, LONG = 3000, 6000  # of 2,048 samples
SHARES = (0.0, 0.02, 0.05, 0.2, 1.0)
LEARNED = 0.01  # how far flat may be below what is attainable, or nothing is said
MARGIN = {"planted": 0.0005, "movielens": 0.001, "movielens_sides": 0.001}
RATES = (  # of rows, of dense parameters
    (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
)
TIE = 0.0002  # of AUC on a pilot's seed
FIRST = ((3, 1), (3, 3))  # where searches for them begin
MODELS = {
    "dmt_dlrm": ("dlrm", "bottom=[64], top=[128, 64]"),
    "dmt_dcn": ("dcn", "hidden=[128, 64]"),
}
ML_STEPS, ML_PLAN_STEPS, ML_UNEVEN = 1200, 400, 0.95  # three epochs; and one
CRITEO_STEPS, CRITEO_PLAN_STEPS, CRITEO_BATCH = 120, 60, 256  # three epochs; and twelve, of larger batches
PLANTED = {"planted": "dmt_dlrm", "planted_dcn": "dmt_dcn"}
PARTS = (*PLANTED, "share", "towers", "long", "movielens", "criteo")


@dataclass(frozen=True)
class Arm:
    """A model: ``kind`` says whose rates it has."""

    name: str
    kind: str
    model: str
    ratio: float = 1.0
    towers: Towers = ()

    def settings(self, steps: int) -> tuple[str, ...]:
        """But for rates."""
        flat, options = MODELS[self.model]
        if self.kind == "towers":
            said = f"{options}, ratio={self.ratio:g}, towers={as_option(self.towers)}"
            return (f"model.name={self.model}", f"model.options={{{said}}}", f"train.steps={steps}")
        width = WIDTH if self.kind == "flat" else max(1, round(WIDTH / self.ratio))
        narrow = (f"model.width={width}",) if width != WIDTH else ()
        return (f"model.name={flat}", f"model.options={{{options}}}", f"train.steps={steps}", *narrow)


FLAT = Arm("flat", "flat", "dmt_dlrm")


def _settings(place: tuple[int, int]) -> tuple[str, ...]:
    """Of rates at a place in ``RATES``."""
    rows, dense = (rates[at] for rates, at in zip(RATES, place, strict=True))
    return (f"embedding.optimizer.lr={rows}", f"dense.optimizer.lr={dense}")


def _next_to(place: tuple[int, int]) -> list[tuple[int, int]]:
    """Those beside it, one rate as it is."""
    rows, dense = place
    beside = [(rows - 1, dense), (rows + 1, dense), (rows, dense - 1), (rows, dense + 1)]
    return [at for at in beside if all(0 <= n < len(rates) for n, rates in zip(at, RATES, strict=True))]


class Measured:
    """AUC of arms of so many steps, by rates that are theirs: the best of ``tried`` steps; of 0 they are not sought."""

    def __init__(
        self, kept: Kept, pilot: Data, pilot_towers: Towers, steps: int, tried: int, every: Sequence[str] = ()
    ) -> None:
        self._kept, self._pilot, self._towers = kept, pilot, pilot_towers
        self._steps, self._tried, self._every = steps, tried, tuple(every)  # settings of all runs
        self._rates: dict[Arm, tuple[int, int]] = {}

    def case(self, arm: Arm, seed: int, more: Sequence[str] = (), ranks: int = 1) -> Case:
        """Of an arm; its rates are looked for if nobody has."""
        return Case((*arm.settings(self._steps), *self.rates(arm), *self._every, *more), seed, ranks)

    def rates(self, arm: Arm) -> tuple[str, ...]:
        """The best of an arm, whatever its towers: those that no next ones are better than."""
        return _settings(self._sought(replace(arm, name="", towers=self._towers if arm.kind == "towers" else ())))

    def _sought(self, arm: Arm) -> tuple[int, int]:
        if arm not in self._rates:
            like = replace(arm, ratio=float(RATIO))
            first = FIRST if arm.kind == "flat" or arm == like else (self._sought(like),)
            ends = [self._climbed(arm, place) for place in first[: None if self._tried else 1]]
            self._rates[arm] = self._calm(arm, ends[0] if len(ends) == 1 else self._best(arm, ends))
        return self._rates[arm]

    def _climbed(self, arm: Arm, best: tuple[int, int]) -> tuple[int, int]:
        """From there to rates that no next ones are better than."""
        while self._tried and (better := self._best(arm, [best, *_next_to(best)])) != best:
            best = better
        return best

    def _calm(self, arm: Arm, best: tuple[int, int]) -> tuple[int, int]:
        """Those rates, or smaller dense ones by which it learns as well."""
        rows, dense = best
        while self._tried and dense > 0:
            own, less = self._tries(arm, [best, (rows, dense - 1)])
            if less < own - TIE:
                break
            dense -= 1
        return rows, dense

    def _best(self, arm: Arm, tried: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Of these places in ``RATES``; the first of equal ones."""
        found = self._tries(arm, tried)
        return tried[max(range(len(found)), key=found.__getitem__)]

    def _tries(self, arm: Arm, tried: Sequence[tuple[int, int]]) -> list[float]:
        """AUC of the pilot by rates at these places."""
        own = arm.settings(self._tried)
        cases = [Case((*own, *_settings(place), *self._every), PILOT) for place in tried]
        self._kept.run(self._pilot, cases)
        return [self._kept.auc(self._pilot, case) for case in cases]

    def auc(self, runs: Iterable[tuple[int, Data, Sequence[Arm]]]) -> dict[str, list[float]]:
        """By name of an arm, seed by seed; what is run are arms on data, by a seed."""
        found: dict[str, list[float]] = {}
        for seed, data, arms in runs:
            cases = {arm.name: self.case(arm, seed) for arm in arms}
            self._kept.run(data, cases.values())
            for name, case in cases.items():
                row = self._kept.row(data, case)
                found.setdefault(name, []).append(row["auc"])
            found.setdefault("attainable", []).append(row["attainable"])
        return found


def measure(kept: Kept, files: Path, part: str, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the part of this name, and claims."""
    if part == "movielens":
        return movielens(kept, files, quick=quick)
    if part == "criteo":
        return criteo(kept, files, quick=quick), []
    pilot = Planted(SHARE, PILOT)
    if part == "long":
        longer = Measured(kept, pilot, pilot.groups, *((200, 0) if quick else (LONG, STEPS)))
        return on_planted(longer, part, SEEDS[: 2 if quick else 4], (RATIO,)), []
    measured = Measured(kept, pilot, pilot.groups, *((100, 0) if quick else (STEPS, STEPS)))
    if part in PLANTED:
        rows = on_planted(measured, part, SEEDS[:2] if quick else SEEDS, RATIOS)
        return rows, claims_of(rows, "planted", PLANTED[part])
    if part == "share":
        return by_share(measured, SHARES[:2] if quick else SHARES, SEEDS[: 2 if quick else 5])
    return by_towers(measured, SEEDS[: 1 if quick else 3]), []


def arms_of(model: str, towers: Towers, ratios: Sequence[int] = RATIOS) -> list[Arm]:
    """Flat, towers and narrow rows."""
    towered = [Arm(f"r{r}", "towers", model, r, towers) for r in ratios]
    return [Arm("flat", "flat", model), *towered, *(Arm(f"narrow {r}", "narrow", model, r) for r in ratios)]


def lines(about: Row, found: dict[str, list[float]], ratios: Sequence[int], measured: Measured) -> list[Row]:
    """Of each ratio: beside flat, and beside narrow rows; with the rates that were measured by."""
    rows = []
    for r in ratios:
        row = {**about, "ratio": r, "seeds": len(found["flat"]), "flat_auc": statistics.mean(found["flat"])}
        row |= gap(found[f"r{r}"], found["flat"])
        row |= {f"{name}_over_narrow": of for name, of in gap(found[f"r{r}"], found[f"narrow {r}"]).items()}
        if not math.isnan(found["attainable"][0]):
            row["attainable"] = statistics.mean(found["attainable"])
        row |= {"narrow_gap": statistics.mean(found[f"narrow {r}"]) - row["flat_auc"]}
        row |= rates_of(measured, row["model"], r)
        rows.append(row)
        show(row)
    return rows


def holds(row: Row, margin: float) -> bool:
    """Whether both conditions do, by their intervals."""
    return bool(row["low"] > -margin and row["low_over_narrow"] > 0)


def rates_of(measured: Measured, model: str, ratio: int) -> Row:
    """Of a line: which rates were taken, and whether others might have been better."""
    found: Row = {}
    for kind, name in (("towers", "rates"), ("flat", "flat_rates"), ("narrow", "narrow_rates")):
        rates = measured.rates(Arm("", kind, model, 1.0 if kind == "flat" else ratio))
        found[name] = " ".join(rates)
        values = [float(rate.rpartition("=")[2]) for rate in rates]
        found[f"{name}_at_edge"] = any(v in (of[0], of[-1]) for v, of in zip(values, RATES, strict=True))
    return found


def claims_of(rows: Sequence[Row], data: str, model: str) -> list[Row]:
    """Of a model on some data."""
    own = next(row for row in rows if row["ratio"] == RATIO)
    largest = max((row["ratio"] for row in rows if holds(row, MARGIN[data])), default=None)
    margin = f"> -{MARGIN[data]:g}"
    about = f"of AUC at r = {RATIO}, lower end of the 95 % interval over {own['seeds']} seeds"
    none = None if largest else f"no r of {', '.join(map(str, RATIOS))} holds"
    return [
        claim(f"towers.auc_interval.{data}.{model}", own["low"], about, margin),
        claim(
            f"towers.over_narrow_interval.{data}.{model}", own["low_over_narrow"], f"{about}, over narrow rows", "> 0"
        ),
        claim(f"towers.largest_ratio.{data}.{model}", largest, "both intervals hold", reason=none),
        claim(
            f"towers.half_width_gap.{data}.{model}",
            next(row["narrow_gap"] for row in rows if row["ratio"] == RATIOS[0]),
            "of AUC, of flat with half the columns",
            f"<= -{MARGIN[data]:g}",
        ),
        *_learned(own, data, model),
    ]


def _learned(own: Row, data: str, model: str) -> list[Row]:
    """Whether flat has learned what can be known, where that is known."""
    if "attainable" not in own:
        return []
    below = own["attainable"] - own["flat_auc"]
    return [claim(f"towers.flat_below_attainable.{data}.{model}", below, "of AUC", f"<= {LEARNED}")]


def on_planted(measured: Measured, part: str, seeds: Sequence[int], ratios: Sequence[int]) -> list[Row]:
    """Towers that are planted, at a share of 5 %."""
    model, each = PLANTED.get(part, "dmt_dlrm"), [(seed, Planted(SHARE, seed)) for seed in seeds]
    found = measured.auc((seed, data, arms_of(model, data.groups, ratios)) for seed, data in each)
    return lines({"part": part, "model": model}, found, ratios, measured)


def by_share(measured: Measured, shares: Sequence[float], seeds: Sequence[int]) -> tuple[list[Row], list[Row]]:
    """Shares of the interactions between groups, and none that are planted."""
    ratios, rows, claims = (2, RATIO), list[Row](), list[Row]()
    kinds: list[tuple[Row, list[Planted]]] = [
        ({"data": "groups", "share": share}, [Planted(share, seed) for seed in seeds]) for share in shares
    ]
    kinds.append(({"data": "no groups", "share": None}, [Planted(0.0, seed, grouped=False) for seed in seeds]))
    for about, each in kinds:
        found = measured.auc((data.seed, data, arms_of("dmt_dlrm", data.groups, ratios)) for data in each)
        rows += lines({"part": "share", "model": "dmt_dlrm", **about}, found, ratios, measured)
    for r in ratios:
        largest = None
        for row in (row for row in rows if row["ratio"] == r and row["share"] is not None):
            if row["low"] <= -MARGIN["planted"] or row["attainable"] - row["flat_auc"] > LEARNED:
                break
            largest = row["share"]
        none = None if largest is not None else "not even at a share of 0"
        claims.append(claim(f"towers.largest_cross_share.r{r}", largest, "of the interactions' variance", reason=none))
    return rows, claims


def by_towers(measured: Measured, seeds: Sequence[int]) -> list[Row]:
    """Numbers of towers, and ratios."""
    shapes_of = {f"{n} towers, r{r}": (n, r) for n, r in itertools.product((2, 4, 8, 16), (2, 8, 16))}

    def arms(data: Planted) -> list[Arm]:
        of = [Arm(name, "towers", "dmt_dlrm", r, cut(data.groups, n)) for name, (n, r) in shapes_of.items()]
        return [FLAT, *of]

    each = [Planted(SHARE, seed) for seed in seeds]
    found, rows = measured.auc((data.seed, data, arms(data)) for data in each), list[Row]()
    for name, (n_towers, r) in shapes_of.items():
        gaps = [own - flat for own, flat in zip(found[name], found["flat"], strict=True)]
        row: Row = {"part": "towers", "n_towers": n_towers, "ratio": r, "seeds": len(seeds)}
        row |= {"gap": statistics.mean(gaps), "least": min(gaps), "most": max(gaps)}
        rows.append(row)
        show(row)
    return rows


def cut(groups: Towers, n_towers: int) -> Towers:
    """So many towers of these groups: some of them together, or parts."""
    names = [name for group in groups for name in group]
    size = len(names) // n_towers
    return tuple(tuple(names[first : first + size]) for first in range(0, len(names), size))


def movielens(kept: Kept, files: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Real users and films, in two towers."""
    pilot = MovieLens(files, PILOT)
    if not _there("movielens", files / FILES["pairs"]):
        return [], []
    steps, plan_steps = ((100, 0), 40) if quick else ((ML_STEPS, ML_STEPS), ML_PLAN_STEPS)
    seeds, fewer = (ML_SEEDS[:2], SIDES_SEEDS[:2]) if quick else (ML_SEEDS, SIDES_SEEDS)
    towers_of = {}
    for seed in (PILOT, *seeds):
        with MovieLens(files, seed).files(kept.cache) as folder:
            towers_of[seed] = planned(folder, 2, plan_steps, seed, ML_UNEVEN, "embedding.optimizer.lr=0.005")
    measured = Measured(kept, pilot, towers_of.pop(PILOT), *steps)
    sides = dict.fromkeys(fewer, pilot.groups)
    rows, claims = list[Row](), list[Row]()
    for model, (name, of) in itertools.product(MODELS, {"planned": towers_of, "sides": sides}.items()):
        found = measured.auc((seed, MovieLens(files, seed), arms_of(model, towers)) for seed, towers in of.items())
        features = "; ".join(dict.fromkeys(as_option(towers) for towers in of.values()))
        about = {"part": "movielens", "model": model, "towers": name, "features": features}
        mine = lines(about, found, RATIOS, measured)
        claims += claims_of(mine, "movielens" if name == "planned" else "movielens_sides", model) if not quick else []
        rows += mine
    return rows, claims


def criteo(kept: Kept, files: Path, *, quick: bool) -> list[Row]:
    """Real clicks, too few of them."""
    pilot = Criteo(files, PILOT)
    if not _there("criteo", files / shapes.FILES["criteo"]):
        return []
    with pilot.files(kept.cache) as folder:
        towers = planned(folder, 4, 10 if quick else CRITEO_PLAN_STEPS, PILOT, ML_UNEVEN)
    steps = (20, 0) if quick else (CRITEO_STEPS, CRITEO_STEPS)
    measured = Measured(kept, pilot, towers, *steps, every=(f"train.batch_size={CRITEO_BATCH}",))
    each = [(seed, Criteo(files, seed)) for seed in SEEDS[: 2 if quick else None]]
    found = measured.auc((seed, data, arms_of("dmt_dlrm", towers, (RATIO,))) for seed, data in each)
    return lines({"part": "criteo", "model": "dmt_dlrm"}, found, (RATIO,), measured)


def _there(part: str, path: Path) -> bool:
    """Whether the part's data are; says so where they are not."""
    if not path.exists():
        print(f"{part}: skipped, there is no {path}; --data names the folder that has it", flush=True)
    return path.exists()
