"""Writes synthetic clicks with a planted truth (`synthetic`) as a data set of train, validation and test files.

One block is in memory at a time; for validation and test also 16 bytes a sample, its label and probability, from which
the attainable AUC is computed.
"""

import json
from pathlib import Path

import numpy as np
from tqdm import tqdm

from hpcrec.data import layout
from hpcrec.errors import ConfigError
from hpcrec.preparation.parts import SplitWriter
from hpcrec.preparation.split import Split, Summary
from hpcrec.preparation.synthetic import BLOCK_SAMPLES, SyntheticSpec, Teacher, auc

GROUPS_ATTRIBUTE = "planted_groups"
_CONVENTIONS = {
    "labels": "drawn from the planted probabilities of hpcrec.preparation.synthetic",
    "ids": "raw: below the cardinality, frequent ids spread at random",
    "dense": "standard normal, no transform",
    "missing": "none; a multi-hot feature may have no id in a sample",
}


def prepare_synthetic(
    out_dir: Path | str,
    *,
    samples: int = 1_000_000,
    seed: int = 0,
    spec: SyntheticSpec | None = None,
    progress: bool = False,
) -> Summary:
    """Write `samples` train samples, a twentieth of that for validation and three twentieths for test.

    Parameters
    ----------
    out_dir : Path
        Gets ``train.h5``, ``validation.h5`` and ``test.h5``; the latter two carry the attribute ``attainable_auc``, all
        of them ``planted_groups``, in JSON, where there are such.
    samples : int
        Of train; 40 or more.
    seed : int
        Equal seeds give equal samples; of different sizes, too, the train samples start alike.
    spec : SyntheticSpec, optional
    progress : bool

    Raises
    ------
    ConfigError
        When `samples` is too small.
    """
    if samples < 40:
        raise ConfigError(f"prepare synthetic: samples is {samples}; 40 or more are needed for three files.")
    sizes = (samples, samples // 20, 3 * samples // 20)
    total = sum(sizes)
    teacher = Teacher(spec or SyntheticSpec(), seed)
    split = Split("order", (sizes[0] / total, sizes[1] / total, 1 - (sizes[0] + sizes[1]) / total))
    attributes = {
        layout.CONVENTIONS_ATTRIBUTE: _CONVENTIONS,
        "generator": f"hpcrec.data.synthetic, seed {seed}, {teacher.spec}",
    }
    if teacher.spec.groups:
        attributes[GROUPS_ATTRIBUTE] = json.dumps(teacher.spec.groups)
    features = teacher.features
    jagged = [feature.name for feature in teacher.spec.features if feature.jagged]
    known: dict[str, list[np.ndarray]] = {"validation": [], "test": []}
    with (
        SplitWriter(
            out_dir, split, features, n_dense=teacher.spec.n_dense, jagged=jagged, total=total, attributes=attributes
        ) as out,
        tqdm(total=total, unit=" samples", unit_scale=True, disable=not progress, leave=False) as bar,
    ):
        for number, start in enumerate(range(0, total, BLOCK_SAMPLES)):
            columns, probability = teacher.block(number, min(BLOCK_SAMPLES, total - start))
            part_S = split.assign(start, columns.samples, total)
            for code, name in ((1, "validation"), (2, "test")):
                chosen = part_S == code
                known[name].append(np.stack([columns.label[chosen], probability[chosen]]))
            out.append(columns)
            bar.update(columns.samples)
        summary = out.summary()
        for name, parts in known.items():
            label, probability = np.concatenate(parts, axis=1)
            value = auc(label, probability)
            if np.isfinite(value):  # tiny files may have labels of one class only
                summary.attainable_auc[name] = value
                out.set_attributes({layout.ATTAINABLE_ATTRIBUTE: value}, name)
    return summary
