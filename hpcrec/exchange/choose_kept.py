"""Exchange ``auto`` where dense ranks keep rows: which features leave that form for another.

Features keep it unless another is predicted to cost fewer bytes. A family's features decide together: rows of a table
that is read in two ways are late in one of them, and most optimizers forbid it. Those that cost fewer bytes in another
form leave, as long as there are any: each that leaves changes the room and the rows of those that stay. For those that
left, ``choose`` does what it always does. Knows predicted bytes; knows no MPI.
"""

from collections.abc import Callable

from hpcrec.exchange.choose import WORTH, Choice, Chooser, sum_of
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.offers import Offers


def choose_kept(offers: Offers, chooser: Callable[[Offers], Chooser]) -> Choice:
    """All keep their form, or those that lose by it leave, or all leave: what is fewest bytes, the first of equals.

    Parameters
    ----------
    offers : Offers
        With a form that rows are kept under.
    chooser : callable
        Of other offers, by the same counts.
    """
    every = chooser(offers)
    assert offers.kept is not None, "there is a form that rows are kept under"
    some = frozenset(_leaving(offers, every))
    all_free = frozenset(family.name for family in offers.families if _free(offers, family.features))
    choices = list[Choice]()
    for left in dict.fromkeys((frozenset[str](), some, all_free)):
        kept = {f: offers.kept for f in offers.free if offers.family_of(f).name not in left}
        choices.append(chooser(offers.fixed(kept)).choose())
    totals = [every.total(choice.forms, choice.replicated) for choice in choices]
    enough = min(totals) + WORTH * abs(min(totals))
    best = next(choice for choice, total in zip(choices, totals, strict=True) if total <= enough)
    single = {form: sum(every.predicted(offers.single(form)).values()) for form in (offers.kept, *offers.forms)}
    return Choice(best.forms, best.replicated, best.predicted, single, best.flops)


def _free(offers: Offers, features: tuple[str, ...]) -> list[str]:
    return [f for f in features if f in offers.free]


def _leaving(offers: Offers, every: Chooser) -> set[str]:
    """Names of families that are fewer bytes under a form whose vectors cross."""
    assert offers.kept is not None, "as above"
    separable = [every.by_entry(offers.layout(offers.single(n))) for n in offers.forms if not FORMS[n].stays]
    features = {family.name: mine for family in offers.families if (mine := _free(offers, family.features))}
    others = {name: min(sum_of(of, mine) for of in separable) for name, mine in features.items()}
    left = set[str]()
    while left != set(features):
        first = offers.forms[0]
        forms = {f: first if name in left else offers.kept for name, mine in features.items() for f in mine}
        now = every.by_entry(offers.layout(forms))
        more = {n for n, mine in features.items() if n not in left and others[n] < (1 - WORTH) * sum_of(now, mine)}
        if not more:
            break
        left |= more
    return left
