"""Synthetic clicks for training and, of the same truth, a million and more for the test, made once in a cache."""

import shutil
import tempfile
from pathlib import Path

import numpy as np

from hpcrec.data import layout
from hpcrec.preparation.synthetic import BLOCK_SAMPLES, SyntheticSpec, Teacher, auc
from hpcrec.preparation.writer import Writer

SEED = 0
TEST_BLOCKS = 16  # 1,048,576 samples


def prepare(train_blocks: int, cache: Path, test_blocks: int = TEST_BLOCKS) -> Path:
    """Folder of ``train.h5``, of so many blocks of 65,536 samples, and ``test.h5``, which knows the attainable AUC."""
    folder = cache / f"dct-clicks-{train_blocks}-{test_blocks}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as hidden:
            made = Path(hidden) / "made"
            made.mkdir()
            teacher = Teacher(SyntheticSpec(), SEED)
            write(teacher, made / "train.h5", range(train_blocks))
            write(teacher, made / "test.h5", range(train_blocks, train_blocks + test_blocks))
            shutil.move(made, folder)
    return folder


def write(teacher: Teacher, path: Path, blocks: range) -> None:
    """One file, with the AUC of its probabilities."""
    jagged = [feature.name for feature in teacher.spec.features if feature.jagged]
    known = []
    with Writer(path, teacher.features, n_dense=teacher.spec.n_dense, jagged=jagged) as out:
        for number in blocks:
            columns, probability = teacher.block(number, BLOCK_SAMPLES)
            known.append(np.stack([columns.label, probability]))
            out.append(columns)
        out.set_attributes({layout.ATTAINABLE_ATTRIBUTE: auc(*np.concatenate(known, axis=1))})
