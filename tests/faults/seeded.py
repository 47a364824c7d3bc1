"""Seeded faults: mistakes that a test is known to find, and a plugin of pytest that makes one of them.

``pytest -p tests.faults.seeded`` with HPCREC_FAULT=<name> imports the module of that fault with a piece of its source
replaced, on every rank; nothing is written. ``test_seeded`` runs the test that is named here, which has to fail.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "HPCREC_FAULT"


@dataclass(frozen=True)
class Fault:
    """A piece of a file, which is there once, what stands in its place, and the test that notices on so many ranks."""

    file: str
    right: str
    wrong: str
    test: str
    ranks: int = 2

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


FAULTS: dict[str, Fault] = {
    "a version one too late": Fault(
        "hpcrec/policy/policy.py",
        "policy.version(reading, first) <= step:",
        "min(reading, policy.version(reading, first) + 1) <= step:",
        "tests/policy/test_hybrid.py::test_equals_one_process_that_does_the_same",
    ),
    "an update before the read of its step": Fault(
        "hpcrec/policy/policy.py",
        "            yield READ, reading\n            reading += 1\n",
        "            yield READ, reading\n            reading += 1\n            if policy:\n                break\n",
        "tests/policy/test_hybrid.py::test_equals_one_process_that_does_the_same",
    ),
    "a drain point that is read past": Fault(
        "hpcrec/policy/policy.py",
        "return min([last, *periodic, *(step for step in self.once if step > first)])",
        "return last",
        "tests/policy/test_hybrid.py::test_equals_one_process_that_does_the_same",
    ),
    "rows that are read before an update that comes first": Fault(
        "hpcrec/policy/flight.py",
        "turn = _Turn(name, kind, other, number=seen[kind], before=seen[other])",
        "turn = _Turn(name, kind, other, number=seen[kind], before=seen[other] * (kind == GRADIENTS))",
        "tests/policy/test_hybrid.py::test_rows_are_read_and_learned_in_order_whoever_naps",
    ),
    "an update before a read that comes first": Fault(
        "hpcrec/policy/flight.py",
        "turn = _Turn(name, kind, other, number=seen[kind], before=seen[other])",
        "turn = _Turn(name, kind, other, number=seen[kind], before=seen[other] * (kind == VALUES))",
        "tests/policy/test_hybrid.py::test_rows_are_read_and_learned_in_order_whoever_naps",
    ),
    "copies that another thread changes before they are assembled": Fault(
        "hpcrec/exchange/exchange.py",
        "(way is not None or self.two_lanes)",
        "(way is not None)",
        "tests/policy/test_hybrid.py::test_rows_are_read_and_learned_in_order_whoever_naps",
    ),
    "a pin left out": Fault(
        "hpcrec/embedding/stores/cache_plan.py",
        "            behind.wanted_by[row] = behind.wanted_by.get(row, 0) + 1\n",
        "            behind.wanted_by[row] = 1\n",
        "tests/embedding/test_stores.py",
        0,
    ),
    "rows that are not written back": Fault(
        "hpcrec/embedding/stores/cache_plan.py",
        "self._dirty[self._pinned[step].places] = True",
        "self._dirty[self._pinned[step].places[:1]] = True",
        "tests/embedding/test_stores.py",
        0,
    ),
    "a gradient of an id whose row another has": Fault(
        "hpcrec/embedding/stores/memory.py",
        "        if not lost.any():\n",
        "        if lost.any() or True:\n",
        "tests/embedding/test_stores.py::test_a_row_that_another_id_got_learns_nothing_of_the_first",
        0,
    ),
    "a row that steps twice": Fault(
        "hpcrec/embedding/stores/memory.py",
        "                    beside=narrow,\n                )\n        self.clear_spares()\n",
        "                    beside=narrow,\n                )\n"
        "                again = work.rows, work.states, grouping, gradients, work.asked.source_start\n"
        "                kernels.merge_update(block.spec, *again, weights=work.asked.weights, lr=lr, step=number)\n"
        "        self.clear_spares()\n",
        "tests/exchange/test_exchange.py",
    ),
    "a step left out that is learned": Fault(
        "hpcrec/exchange/verdict.py",
        "    return bool(messages[at] == 0.0)",
        "    return True",
        "tests/exchange/test_verdict.py",
    ),
    "a partial result's gradient that goes to the next rank": Fault(
        "hpcrec/exchange/substitute.py",
        "self._exchange(sent, sent.gradient_at_P, gradients, sent.gradients, write=False)",
        "self._exchange(sent, sent.gradient_at_P[::-1], gradients, sent.gradients, write=False)",
        "tests/exchange/test_partial.py",
        3,
    ),
    "copies that are never too old": Fault(
        "hpcrec/exchange/rules.py",
        "                    ruled.rule.learned(rows_K[mine][known], places[known], pushed.ticks_K[mine][known])\n",
        "                    ruled.rule.learned(rows_K[:0], places[:0], pushed.ticks_K[:0])\n",
        "tests/exchange/test_kept.py::test_kept_is_rows_bit_for_bit",
    ),
    "a copy of a row's earlier life": Fault(
        "hpcrec/exchange/rules.py",
        "                self.rule.restarted(anew)\n",
        "                self.rule.restarted(anew[:0])\n",
        "tests/exchange/test_kept.py::test_no_copy_is_valid_of_a_row_that_was_given_to_an_id_anew",
        0,
    ),
    "gradients that are held back past a drain point": Fault(
        "hpcrec/policy/pipeline.py",
        "lr_scale=lr_scale, drain=drain",
        "lr_scale=lr_scale, drain=False",
        "tests/exchange/test_kept.py::test_late_is_one_process_that_learns_as_late",
    ),
    "a bag that is early though it is being learned": Fault(
        "hpcrec/exchange/parts.py",
        "return ~now.met(before), ",
        "return np.ones(len(now.offsets) - 1, bool), ",
        "tests/policy/test_ahead.py::test_parts_give_the_bits_of_the_whole",
    ),
    "a gradient that comes after its row was read again": Fault(
        "hpcrec/exchange/parts.py",
        "else before.met(now)\n",
        "else np.zeros(len(before.offsets) - 1, bool)\n",
        "tests/policy/test_ahead.py::test_parts_give_the_bits_of_the_whole",
    ),
    "a copy that lacks one tick more than is allowed": Fault(
        "hpcrec/exchange/forms/lags.py",
        "np.asarray(lag > self._staleness)",
        "np.asarray(lag > self._staleness + 1)",
        "tests/policy/test_cached.py::test_it_is_one_process_that_keeps_the_same_copies",
        3,
    ),
    "a read that lacks more than is allowed and ends no run": Fault(
        "hpcrec/exchange/exact.py",
        "missing.max() > self.allowed:",
        "missing.max() > 99 * self.allowed:",
        "tests/policy/test_cached_record.py::test_a_read_that_lacks_more_than_is_allowed_ends_the_run_on_all_ranks",
    ),
    "a rule by which copies lack too much, under the check": Fault(
        "hpcrec/exchange/forms/lags.py",
        "        self._lag[distinct] = np.minimum(lag, self._staleness + 1)\n",
        "        self._lag[distinct] = 0\n",
        "tests/policy/test_cached_record.py::test_what_is_told_is_what_one_process_counts",
    ),
    "own ticks that a copy is to lack": Fault(
        "hpcrec/exchange/forms/lags.py",
        "        np.subtract.at(lag, (at[own], places[own]), ticks[own])\n",
        "",
        "tests/policy/test_cached.py::test_it_is_one_process_that_keeps_the_same_copies",
    ),
    "what is evicted and never pushed": Fault(
        "hpcrec/exchange/forms/cached.py",
        '            self._left.append(self._taken(held, None))\n            self.figures["pushed_eviction"]',
        '            self._taken(held, None)\n            self.figures["pushed_eviction"]',
        "tests/policy/test_cached.py::test_it_is_one_process_that_keeps_the_same_copies",
    ),
    "an accumulator that grows by the square of a sum": Fault(
        "hpcrec/embedding/asked.py",
        "        if ticks is not None and squares is not None and ticks.max() > 1:\n",
        "        if ticks is not None and squares is not None and ticks.max() > 99:\n",
        "tests/policy/test_cached.py::test_it_is_one_process_that_keeps_the_same_copies",
    ),
    "the rest of a step's rows, never learned": Fault(
        "hpcrec/exchange/in_parts.py",
        "works = owner.part_to_learn(served, ahead.served, asked=urgent)",
        "works = owner.part_to_learn(served, ahead.served, asked=True)",
        "tests/policy/test_ahead.py::test_parts_give_the_bits_of_the_whole",
    ),
    "parts of a bag that are not added": Fault(
        "hpcrec/exchange/dense_side.py",
        'meets = "set" if not form.meets(form.family) else',
        'meets = "set" if form.name else',
        "tests/exchange/test_exchange.py",
    ),
    "a hop that is not mirrored": Fault(
        "hpcrec/exchange/way.py",
        "            if stage is not None:\n                self._back(",
        "            if stage is not None and not stage.slices:\n                self._back(",
        "tests/training/test_staged.py::test_learns_as_in_one_process",
    ),
    "an answer that goes to another sample": Fault(
        "hpcrec/exchange/dense_side.py",
        "sample[mine] = sample_of[sample[mine]]",
        "sample[mine] = sample_of[sample[mine]][::-1]",
        "tests/exchange/test_twice.py::test_trains_as_pooled_does",
    ),
    "copies that are read when a later step has been learned": Fault(
        "hpcrec/exchange/exchange.py",
        "            if asked is not None and self._keeps and (way is not None",
        "            if asked is not None and not self._keeps and (way is not None",
        "tests/training/test_staged.py::test_copies_are_as_old_as_rows_are",
    ),
    "a step left out that owners without kept rows learn": Fault(
        "hpcrec/exchange/kept.py",
        "            self._owner.leave_out(served)  # but for what is pushed\n",
        "            pass\n",
        "tests/exchange/test_kept.py::test_a_step_left_out_where_not_all_owners_keep_rows",
    ),
}


class Seeded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from its changed source."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self._fault.module else None

    def exec_module(self, module: ModuleType) -> None:
        file = ROOT / self._fault.file
        module.__file__ = str(file)
        exec(compile(changed(self._fault), str(file), "exec"), module.__dict__)


def changed(fault: Fault) -> str:
    """The file's source with the fault in it."""
    source = (ROOT / fault.file).read_text()
    assert source.count(fault.right) == 1, f"{fault.file} has {source.count(fault.right)} times {fault.right!r}"
    return source.replace(fault.right, fault.wrong)


def pytest_configure() -> None:
    """Before any module of hpcrec is imported."""
    fault = FAULTS[os.environ[VARIABLE]]
    assert fault.module not in sys.modules, "the plugin comes too late"
    sys.meta_path.insert(0, Seeded(fault))
