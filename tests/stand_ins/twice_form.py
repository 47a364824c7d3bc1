"""A form that asks every bag in two halves, the first of its ids and the rest: twice the vectors of form ``pooled``.

How a form is added: a class that says what is asked and what others have to know of it, and a line in ``FORMS``.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from hpcrec.exchange.columns import Column, Dealt
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.forms.form import Form
from hpcrec.exchange.forms.pooled import Pooled
from hpcrec.types import Ints


class Twice(Pooled):
    """See ``Form``. A half that is empty is not asked."""

    name = "twice"
    sends = "halves of bags"
    simplicity = 3
    whole = "whose halves are thresholded one by one, so that other elements cross than of whole vectors"
    answers = 2

    def ask(self, columns: Mapping[str, Column]) -> tuple[Dealt, Ints | None]:
        """See ``Form``."""
        whole, _ = super().ask(columns)
        halves = np.stack([(whole.lengths + 1) // 2, whole.lengths // 2], axis=1).reshape(-1)
        return replace(whole, lengths=halves, sample=np.repeat(np.arange(len(whole.lengths)), 2)), None


def put_twice(monkeypatch: pytest.MonkeyPatch, form: type[Form] = Twice) -> None:
    """Puts it into the list of forms, under its name."""
    monkeypatch.setitem(FORMS, form.name, form)
