"""The forms in which a feature's vectors cross, by name: each is a class in a file of its own, and a line here.

What is asked of the list is asked of the list as it is then: a class that is put into it is one of them.
"""

from hpcrec.exchange.forms.cached import Cached
from hpcrec.exchange.forms.form import Form
from hpcrec.exchange.forms.pooled import Partial, Pooled
from hpcrec.exchange.forms.rows import Replicate, Rows

FORMS: dict[str, type[Form]] = {
    "pooled": Pooled,
    "rows": Rows,
    "partial": Partial,
    "replicate": Replicate,
    "cached": Cached,
}


def settable() -> tuple[str, ...]:
    """Those of tables that are sharded: a configuration may ask for them."""
    return tuple(name for name, form in FORMS.items() if not form.local)


def of_copies() -> str:
    """That of tables that every dense rank has."""
    return next(name for name, form in FORMS.items() if form.local)


def offered(*, thresholded: bool = False) -> tuple[str, ...]:
    """Those that ``auto`` chooses from, the simplest first; ``thresholded``: where vectors are.

    None with stages: all messages would have to pass them.
    """
    ranked = [
        (form.simplicity, name)
        for name, form in FORMS.items()
        if form.simplicity is not None and not form.stages and not (thresholded and form.whole)
    ]
    return tuple(name for _, name in sorted(ranked))
