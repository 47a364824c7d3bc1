"""The forms in which a feature's vectors cross, by name: each is a class in a file of its own, and a line here."""

from hpcrec.exchange.forms.form import Form
from hpcrec.exchange.forms.pooled import Partial, Pooled
from hpcrec.exchange.forms.rows import Replicate, Rows

FORMS: dict[str, type[Form]] = {"replicate": Replicate, "rows": Rows, "pooled": Pooled, "partial": Partial}
