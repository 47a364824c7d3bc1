"""The layout of every message, fixed before the first step and computed alike by every rank.

A dense rank sends each holder of rows one message a phase. It consists of *entries*: the ids of one feature, or the
distinct ids of features that read the same tables (forms that are ``bundled``), in an order that both ends know. Each
entry is answered by one *stream* of vectors for each table that it reads at that holder, and the gradients come back as
the same streams. Streams that only substituted operators read stay at the holder, which answers them with one *partial
result* a sample and operator. Knows tables, shards, forms and what operators say of themselves; knows nothing of a
batch or of MPI.

Legend: ``E`` entries, ``S`` streams, ``R`` ranks.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hpcrec.embedding.shards import Family
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms import FORMS, of_copies, settable
from hpcrec.exchange.forms.form import Form
from hpcrec.exchange.meetings import Places, plan_meetings
from hpcrec.exchange.stages import STAGES
from hpcrec.exchange.stages.stage import Stage
from hpcrec.exchange.stay import Stay
from hpcrec.operators.base import Operator, check_pooled, elements_of, module_weights, weights_of
from hpcrec.types import POOLINGS, Lookup, TableSpec


@dataclass(frozen=True)
class LeafGroup:
    """Lookups of equal width, whose pooled vectors are one leaf tensor [B, F, D]."""

    width: int
    lookups: tuple[Lookup, ...]


@dataclass(frozen=True)
class Entry:
    """Ids that travel together to one holder.

    ``features`` is one feature unless the form is ``bundled``; ``part`` is the holder's part of the family.
    ``every_bag``: empty bags are sent too, because the holder has to know which sample a bag is of: it computes
    operators of them, or adds their vectors to those of other holders (``host_sums``): ``added``. ``merged``: dense
    ranks of a host ask together for rows of it that are on other hosts (``host_rows``).
    """

    family: Family
    form: type[Form]
    features: tuple[str, ...]
    part: int
    every_bag: bool = False
    added: bool = False
    merged: bool = False


@dataclass(frozen=True)
class Stream:
    """Vectors of one table that answer (and whose gradients follow) one entry: one for each of its bags."""

    entry: int
    table: str
    columns: tuple[int, int]

    @property
    def width(self) -> int:
        """Columns that this holder has of the table."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True)
class Partial:
    """An operator's partial result at one holder, over the lookups of which it has the same columns.

    Of an operator that meets, ``elements`` are its whole result's, which one of the holders makes (``meetings``).
    ``hidden`` are the numbers of those lookups, in the leg's hidden streams.
    """

    operator: str
    elements: int
    columns: tuple[int, int]
    hidden: tuple[int, ...]


@dataclass(frozen=True)
class Leg:
    """What passes between any dense rank and one holder, and what stays there.

    Entries and streams of ``local`` forms come last: they have gradients but no values. Hidden streams, ordered by
    width, do not travel; the partial results do, after all streams. Streams apart are of conditional forms, and travel
    in messages of their own (``copies``).
    """

    entries: tuple[Entry, ...]
    streams: tuple[Stream, ...]
    hidden: tuple[Stream, ...]
    partials: tuple[Partial, ...]
    apart: tuple[Stream, ...] = ()

    @property
    def n_value_streams(self) -> int:
        """Streams that the values phase carries."""
        return sum(not self.entries[s.entry].form.local for s in self.streams)


class Layout:
    """Entries and streams by holder, and the leaves that the dense side fills.

    Parameters
    ----------
    tables : mapping of str to TableSpec
    families : sequence of Family
    lookups : sequence of Lookup
        What the model reads.
    forms : mapping of str to str
        Feature -> form, for features that are not replicated.
    default_form : str
        The form of the other features.
    operators : mapping of str to Operator
        What the model receives.
    one_hot : set of str
        Features of which every sample has exactly one id.
    most_stay : bool
        Every vector stays that can, also where more crosses so (``stay``).
    learned : bool
        Whether operators with dense parameters may be computed at holders.
    added : set of str
        Features of which the owners of a host may add the parts of a bag.
    merged : set of str
        Features of which dense ranks of a host may ask together for rows.
    places : Places, optional
        Where operators that meet may be computed by owners; default: nowhere.

    Raises
    ------
    ConfigError
        A form that a feature cannot have, or an operator that no form serves.

    Attributes
    ----------
    legs : dict of int to Leg
        By world rank of the holder.
    groups : tuple of LeafGroup
    place : dict of (feature, table) to (int, int)
        Leaf group and position in it.
    pooling : dict of str to str
        That of each feature.
    substituted : dict of str to tuple of Lookup
        Operator -> those of its lookups that it is computed of where their rows are.
    way : tuple of type of Stage
        What all messages pass between holders and dense ranks.
    added : frozenset of str
        Features of which they do: whose vectors are sums of parts, and travel.
    merged : frozenset of str
        Features of which they do: whose rows travel.
    left : dict of str to Operator
        Operators of which stages leave something else for dense ranks to compute: that.
    staged : tuple of nn.Parameter
        Dense parameters of these operators that are used and trained in stages, and on no dense rank.
    meetings : tuple of Meeting
        Of operators that meet, as owners compute them.
    apart : dict of str to str
        Operators that meet on dense ranks, though owners might compute them: and why.
    away : tuple of nn.Parameter
        These, and those of ``substituted`` operators, which are used and trained at holders.
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        families: Sequence[Family],
        lookups: Sequence[Lookup],
        *,
        forms: Mapping[str, str],
        default_form: str,
        operators: Mapping[str, Operator],
        one_hot: AbstractSet[str] = frozenset(),
        most_stay: bool = False,
        learned: bool = True,
        added: AbstractSet[str] = frozenset(),
        merged: AbstractSet[str] = frozenset(),
        places: Places | None = None,
    ) -> None:
        check_pooled(operators)
        self.tables = dict(tables)
        self.families = tuple(families)
        self.tables_of: dict[str, tuple[str, ...]] = {}
        for lookup in lookups:
            names = self.tables_of.get(lookup.feature, ())
            self.tables_of[lookup.feature] = names if lookup.table in names else (*names, lookup.table)
        self.family_of = {f: family for family in families for f in family.features}
        self.form_of = {f: self._form(f, forms.get(f, default_form), chosen=f in forms) for f in self.tables_of}
        self.pooling = _poolings(lookups)
        stay = Stay(self.tables, self.family_of, self.form_of, operators, learned=learned, places=places)
        hidden = stay.of(lookups, one_hot, most=most_stay)
        self.substituted = {
            name: tuple(k for k in operator.lookups if k in hidden)
            for name, operator in operators.items()
            if any(k in hidden for k in operator.lookups)
        }
        self._operators = {name: operators[name] for name in self.substituted}
        self.way = self._way()
        self.left = self._left(operators, learned=learned)
        self.staged = tuple(w for stage in self.way for name in self.left for w in stage.weights(operators[name]))
        folded = [w for name, some in self.substituted.items() for w in weights_of(operators[name], some)]
        folded += [w for name in self.substituted for w in module_weights(operators[name])]
        self.away = (*folded, *self.staged)
        self.groups, self.place = _leaves(tables, [k for k in lookups if k not in hidden])
        stays = {k.feature for k in hidden}
        self.added = frozenset(f for f in added if f not in stays and self._adds(f)) if not self.way else frozenset()
        self.merged = frozenset(f for f in merged if self._asks_rows(f)) if not self.way else frozenset()
        ranks = sorted({rank for family in families for rank in family.holders})
        self.legs = {rank: self._leg(rank) for rank in ranks}
        wanted = () if places is None else places.wanted
        given = {name: self._given(name) for name in wanted if name in self.substituted}
        self.meetings = () if places is None else plan_meetings(given, operators, places)
        self._add_roots()
        left = {name: stay.why_apart(name) for name in wanted if name not in self.substituted}
        self.apart = {name: why or "another operator reads vectors of it" for name, why in left.items()}

    @property
    def copied(self) -> bool:
        """Whether every dense rank has some rows, whose copies stay alike only where all get the same gradients."""
        return any(family.kind == "replicate" for family in self.families)

    def _form(self, feature: str, form: str, *, chosen: bool) -> str:
        if self.family_of[feature].kind == "replicate":
            if chosen:
                raise ConfigError(
                    f"exchange.forms.{feature} is {form!r}, but its table {self.family_of[feature].name!r} is "
                    "replicated on every dense rank, so that no values cross. Remove it, or set "
                    "embedding.tables.<table>.shard to 'table', 'row' or 'column'."
                )
            return of_copies()
        if form not in FORMS:
            raise ConfigError(f"exchange: feature {feature!r} has form {form!r}. Allowed: {', '.join(settable())}.")
        if FORMS[form].local:
            raise ConfigError(
                f"exchange: feature {feature!r} has form {form!r}, but its table is sharded "
                f"({self.family_of[feature].kind}). Set embedding.tables.<table>.shard = 'replicate' instead."
            )
        return form

    def _adds(self, feature: str) -> bool:
        """Whether the vectors that answer a bag of a feature are added up, one from each part of its tables' rows."""
        form, family = FORMS[self.form_of[feature]], self.family_of[feature]
        sums = form.meets(family) and form.answers == 1 and not form.conditional
        return sums and family.kind == "row" and self.pooling[feature] != "max"

    def _asks_rows(self, feature: str) -> bool:
        """Whether rows of a feature cross, for whoever asks."""
        form = FORMS[self.form_of[feature]]
        return form.pools and not form.local and not form.conditional

    def _way(self) -> tuple[type[Stage], ...]:
        ways = {FORMS[form].stages: feature for feature, form in self.form_of.items() if FORMS[form].stages}
        if len(ways) > 1:
            first, second = list(ways.items())[:2]
            raise ConfigError(
                f"exchange: vectors of feature {first[1]!r} pass stages {', '.join(first[0])}, those of {second[1]!r} "
                f"{', '.join(second[0])}, but all messages have one way. Give both features forms of the same stages."
            )
        names = next(iter(ways), ())
        for name in names:
            if name not in STAGES:
                raise ConfigError(
                    f"exchange: vectors of feature {ways[names]!r} pass stage {name!r}, which there is not. There are: "
                    f"{', '.join(STAGES) or 'none'}. Give the feature another form."
                )
        return tuple(STAGES[name] for name in names)

    def _left(self, operators: Mapping[str, Operator], *, learned: bool) -> dict[str, Operator]:
        """See ``left``; refuses what cannot be computed on the way."""
        left: dict[str, Operator] = {}
        passes = {f for f, form in self.form_of.items() if FORMS[form].stages}
        for name, operator in operators.items() if self.way else ():
            after, through = operator, [k for k in operator.lookups if k.feature in passes]
            for stage in self.way:
                after = stage.left_of(after)
            if after is operator or not through:
                continue
            shared = [n for n, other in operators.items() if n != name and set(other.lookups) & set(through)]
            outside = [k.feature for k in operator.lookups if k not in through]
            said = f"model: operator {name!r} would be computed in stage {', '.join(s.name for s in self.way)}, but "
            if outside:
                raise ConfigError(
                    f"{said}vectors of its feature {outside[0]!r} do not pass there. Give all its features a form that "
                    "does, and tables that are not replicated; or none of them."
                )
            split = [k.feature for k in through if self.family_of[k.feature].kind == "row"]
            if split and not operator.splits_bags:
                raise ConfigError(
                    f"{said}bags of its feature {split[0]!r} are split over owners, which it does not allow. Set "
                    f"embedding.tables.{self.family_of[split[0]].name}.shard = 'table', or give it another form."
                )
            if shared:
                raise ConfigError(
                    f"{said}operator {shared[0]!r} reads a table of it by the same feature, whose vectors cross once. "
                    "Let no other operator read them, or give the feature another form."
                )
            if not learned:
                raise ConfigError(
                    f"{said}each group of dense ranks has one of its own. Set dense.codistillation.groups = 1, or give "
                    "its features another form."
                )
            left[name] = after
        return left

    def _leg(self, rank: int) -> Leg:
        entries: list[Entry] = []
        for family in sorted(self.families, key=lambda f: f.kind == "replicate"):
            if rank in family.holders:
                part = family.holders.index(rank)
                entries += [Entry(family, FORMS[form], feats, part) for form, feats in self._bundles(family)]
        entries.sort(key=lambda e: e.form.local)
        kept: list[Entry] = []
        streams: list[Stream] = []
        apart: list[Stream] = []
        hidden: list[tuple[Stream, Lookup]] = []
        lookups = {(k.feature, k.table): k for some in self.substituted.values() for k in some}
        for entry in entries:
            own = []
            for table in self.tables_of[entry.features[0]]:
                columns = entry.family.part_columns(self.tables[table].width, entry.part)
                if columns[0] < columns[1]:
                    own.append(Stream(len(kept), table, columns))
            if own:  # a table narrower than its column parts leaves some holders nothing to answer
                stay = [
                    (s, lookups[entry.features[0], s.table]) for s in own if (entry.features[0], s.table) in lookups
                ]
                adds = entry.features[0] in self.added
                merged = entry.features[0] in self.merged
                kept.append(replace(entry, every_bag=bool(stay) or adds, added=adds, merged=merged))
                if entry.form.conditional:
                    apart += own
                    continue
                streams += [s for s in own if (entry.features[0], s.table) not in lookups]
                hidden += stay
        hidden.sort(key=lambda item: item[0].width)
        number = {lookup: i for i, (_, lookup) in enumerate(hidden)}
        partials = []
        for name, some in self.substituted.items():
            mine = [number[k] for k in some if k in number]
            for columns in sorted({hidden[h][0].columns for h in mine}):
                elements = elements_of(self._operators[name], columns[1] - columns[0])  # of one that meets: its result
                these = tuple(h for h in mine if hidden[h][0].columns == columns)
                partials.append(Partial(name, elements, columns, these))
        return Leg(tuple(kept), tuple(streams), tuple(s for s, _ in hidden), tuple(partials), tuple(apart))

    def _given(self, name: str) -> dict[int, int]:
        """Elements of a sample's vectors of an operator, by holder."""
        mine = {rank: [p for p in leg.partials if p.operator == name] for rank, leg in self.legs.items()}
        return {
            r: sum(self.legs[r].hidden[h].width for p in some for h in p.hidden) for r, some in mine.items() if some
        }

    def _add_roots(self) -> None:
        """Has owners that compute an operator without any vectors of it say so: a result of no lookup of theirs."""
        for m in self.meetings:
            leg = self.legs[m.root]
            if all(partial.operator != m.operator for partial in leg.partials):
                columns = (0, self._operators[m.operator].width)
                added = Partial(m.operator, m.elements, columns, ())
                self.legs[m.root] = replace(leg, partials=(*leg.partials, added))

    def _bundles(self, family: Family) -> list[tuple[str, tuple[str, ...]]]:
        """(form, features) of the entries of one family: by the tables they read where the form is bundled, else apart.

        Those pooled by max are not bundled with others: each occurrence of theirs has a gradient of its own.
        """
        bundles: dict[tuple[object, ...], tuple[str, tuple[str, ...]]] = {}
        for feature in family.features:
            form = self.form_of[feature]
            largest = self.pooling[feature] == "max"
            key = (form, self.tables_of[feature], largest) if FORMS[form].bundled else (form, feature)
            old = bundles.get(key, (form, ()))[1]
            bundles[key] = (form, (*old, feature))
        return list(bundles.values())

    def held(self, rank: int) -> tuple[str, ...]:
        """Features whose rows, or some of them, a rank holds."""
        leg = self.legs.get(rank)
        return () if leg is None else tuple(dict.fromkeys(f for e in leg.entries for f in e.features))

    def weights_at(self, rank: int) -> tuple[int, int]:
        """Elements of operators' dense parameters that a rank has as a holder, and columns of the vectors they meet."""
        elements, columns = 0, 0
        for partial in self.legs[rank].partials if rank in self.legs else ():
            leg, operator = self.legs[rank], self._operators[partial.operator]
            start, stop = partial.columns
            read = {(leg.entries[leg.hidden[h].entry].features[0], leg.hidden[h].table) for h in partial.hidden}
            if any(m.operator == partial.operator and m.root == rank for m in self.meetings):
                elements += sum(weight.numel() for weight in module_weights(operator))
            for weight in weights_of(operator, [k for k in operator.lookups if (k.feature, k.table) in read]):
                elements += (stop - start) * weight.numel() // len(weight)
                columns += stop - start
        return elements, columns

    @property
    def visible(self) -> tuple[str, ...]:
        """Features of which vectors or rows reach dense ranks."""
        shown = {k.feature for group in self.groups for k in group.lookups}
        return tuple(f for f in self.form_of if f in shown)

    @property
    def conditional(self) -> tuple[str, ...]:
        """Features whose rows dense ranks keep."""
        return tuple(f for f, form in self.form_of.items() if FORMS[form].conditional)

    def bundled(self) -> list[Form]:
        """Each bundle once, under its form, in the order in which every owner has those that it is asked for."""
        families = sorted(self.families, key=lambda f: f.kind == "replicate")
        forms = [FORMS[form](family, feats) for family in families for form, feats in self._bundles(family)]
        return sorted(forms, key=lambda form: form.local)

    def bundles(self, form: str) -> list[tuple[Family, tuple[str, ...]]]:
        """Every (family, features) that travels together under ``form``, once."""
        return [(fam, feats) for fam in self.families for f, feats in self._bundles(fam) if f == form]


def _leaves(
    tables: Mapping[str, TableSpec], lookups: Sequence[Lookup]
) -> tuple[tuple[LeafGroup, ...], dict[tuple[str, str], tuple[int, int]]]:
    by_width: dict[int, dict[Lookup, None]] = {}  # in order, each once
    for lookup in lookups:
        by_width.setdefault(tables[lookup.table].width, {})[lookup] = None
    groups = tuple(LeafGroup(width, tuple(known)) for width, known in by_width.items())
    place = {(k.feature, k.table): (g, i) for g, group in enumerate(groups) for i, k in enumerate(group.lookups)}
    return groups, place


def _poolings(lookups: Sequence[Lookup]) -> dict[str, str]:
    pooling: dict[str, str] = {}
    for lookup in lookups:
        if lookup.pooling not in POOLINGS:
            raise ConfigError(
                f"model: feature {lookup.feature!r} is pooled by {lookup.pooling!r}. Allowed: 'sum', 'mean', 'max'."
            )
        first = pooling.setdefault(lookup.feature, lookup.pooling)
        if first != lookup.pooling:
            raise ConfigError(
                f"model: feature {lookup.feature!r} is pooled both by {first} and by {lookup.pooling}. "
                "Use one pooling a feature."
            )
    return pooling
