"""A stand-in for forms whose rows dense ranks keep, and what one process does in its place.

Form ``kept``: every row that was read is kept, and owners send those that have changed since. Form ``late`` besides
holds back the gradients of every second row (those of odd number, as their part calls them) until the step after, or a
drain point.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.forms.conditional import Asked, Conditional, Keeping, Push
from hpcrec.exchange.forms.missing import Missing
from hpcrec.types import Floats, Ints
from tests.reference import GlobalBatch, Reference, update_rows

Key = tuple[int, int]


class ChangedSince:
    """The owner's rule: a copy will do where its row was not learned since."""

    def __init__(self, rows: int, keeping: Keeping) -> None:
        self._changed = np.zeros((rows, len(keeping.dense)), bool)
        self.missing = Missing(0)

    def figures(self) -> dict[str, float]:
        return {}

    def answer(self, rows: Ints, places: Ints) -> np.ndarray:
        return self._changed[rows, places]

    def sent(self, rows: Ints, places: Ints) -> None:
        self._changed[rows, places] = False

    def learned(self, rows: Ints, places: Ints, ticks: Ints) -> None:
        assert (ticks > 0).all()
        self._changed[rows] = True

    def changed(self, rows: Ints) -> None:
        self._changed[rows] = True

    restarted = changed


class OfBundle:
    """What is kept of one."""

    def __init__(self, tables: Sequence[str], *, late: bool) -> None:
        self.copies: dict[Key, dict[str, Floats]] = {}
        self.held_back: dict[Key, dict[str, Floats]] = {}
        self.asked = self.sent = 0
        self._tables, self._late = tables, late

    def kept(self, asked: Asked) -> np.ndarray:
        return np.array([key in self.copies for key in _keys(asked)], bool)

    def read(self, asked: Asked, sent: np.ndarray, came: Mapping[str, Floats]) -> Mapping[str, Floats]:
        self.asked += len(sent)
        self.sent += int(sent.sum())
        for i, (key, it_came) in enumerate(zip(_keys(asked), sent.tolist(), strict=True)):
            if it_came:
                self.copies[key] = {table: rows[i].copy() for table, rows in came.items()}
        copies = [self.copies[key] for key in _keys(asked)]
        return {t: np.stack([of[t] for of in copies]) if copies else rows for t, rows in came.items()}

    def push(self, asked: Asked, gradients: Mapping[str, Floats] | None, *, drain: bool) -> Push:
        out, self.held_back = self.held_back, {}
        ticks = dict.fromkeys(out, 1)
        for i, key in enumerate(_keys(asked) if gradients is not None else ()):
            assert gradients is not None
            own = {table: of[i] for table, of in gradients.items()}
            if self._late and key[1] % 2 and not drain:
                self.held_back[key] = own
            else:
                ticks[key] = ticks.get(key, 0) + 1
                out[key] = {t: out[key][t] + g for t, g in own.items()} if key in out else own
        keys = sorted(out)  # part after part, as ``rows`` has them
        of = np.array(keys, np.int64).reshape(len(keys), 2)
        return Push(
            Asked(of[:, 1].copy(), of[:, 0].copy()),
            {t: np.stack([out[key][t] for key in keys]) for t in self._tables if keys},
            np.array([ticks[key] for key in keys], np.int64),
        )


class KeptCopies:
    """See ``hpcrec.exchange.forms.conditional.Copies``: each bundle by itself."""

    late = False

    def __init__(self, bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping) -> None:
        self.of = [OfBundle(names, late=self.late) for names in tables]

    def kept(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        return [of.kept(one) for of, one in zip(self.of, asked, strict=True)]

    def foresee(self, asked: Sequence[Asked]) -> None:
        raise AssertionError(f"no rule of these looks ahead: {asked}")

    def read(self, asked: Any, sent: Any, came: Any, accumulators: Any, rowless: Any) -> list[Mapping[str, Floats]]:
        assert not any(accumulators), "of staleness 0"
        return [of.read(*some) for of, *some in zip(self.of, asked, sent, came, strict=True)]

    def push(self, asked: Sequence[Asked], gradients: Any, *, drain: bool, lr_scale: float) -> list[Push]:
        given = [None] * len(self.of) if gradients is None else gradients
        return [of.push(one, g, drain=drain) for of, one, g in zip(self.of, asked, given, strict=True)]

    def empty(self) -> None:
        for of in self.of:
            of.held_back.clear()
            of.copies.clear()

    def give_up(self) -> None:
        """Nothing is kept of a step between its verbs."""

    def figures(self) -> dict[str, float]:
        return {"kept_asked": sum(of.asked for of in self.of), "kept_sent": sum(of.sent for of in self.of)}


class LateCopies(KeptCopies):
    """The same, every second row a step late."""

    late = True


class Kept(Conditional):
    """See ``hpcrec.exchange.forms.conditional``."""

    name = "kept"
    Owner = ChangedSince
    Dense = KeptCopies


class Late(Kept):
    """The same, every second row a step late."""

    name = "late"
    Dense = LateCopies


def put_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms ``kept`` and ``late``."""
    for form in (Kept, Late):
        monkeypatch.setitem(FORMS, form.name, form)


def _keys(asked: Asked) -> list[Key]:
    return list(zip(asked.part.tolist(), asked.rows.tolist(), strict=True))


class LateReference:
    """Trains a reference on global batches, rows that ``late`` names by table a step late.

    Parameters
    ----------
    reference : Reference
    late : mapping of str to callable
        Table -> ids [U] -> bool [U].
    drains : sequence of int
        Numbers of steps after which nothing is held back.
    """

    def __init__(self, reference: Reference, late: Mapping[str, Callable[[Ints], np.ndarray]], drains: Sequence[int]):
        self._reference, self._late, self._drains = reference, late, set(drains)
        self._done = 0
        self._held: dict[str, dict[int, torch.Tensor]] = {name: {} for name in reference.tables}

    def step(self, batch: GlobalBatch, *, left_out: bool = False) -> float:
        """Loss before the step."""
        reference = self._reference
        reference.module.zero_grad()
        for table in reference.tables.values():
            table.bags.weight.grad = None
        loss = reference.loss(reference.logits(batch), batch)
        loss.backward()
        self._done += 1
        if not left_out:
            assert reference.dense_optimizer is not None
            reference.dense_optimizer.step()
        for name, touched in reference.touched(batch).items():
            table, out = reference.tables[name], self._held[name]
            self._held[name] = {}
            late = self._late[name](touched.numpy()) & (self._done not in self._drains)
            for i, row in enumerate(touched.tolist() if not left_out else ()):
                assert table.bags.weight.grad is not None
                own = table.bags.weight.grad[row].clone()
                if late[i]:
                    self._held[name][row] = own
                else:
                    out[row] = out[row] + own if row in out else own
            if out:
                rows = torch.tensor(sorted(out))
                with torch.no_grad():
                    update_rows(
                        table, rows, torch.stack([out[r] for r in rows.tolist()]), lr_scale=1.0, step=self._done
                    )
        return loss.item()
