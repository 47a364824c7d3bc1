"""The end of a conversion: from the pieces to a data set under its names, with its rejects and vocabularies.

Can be cut short anywhere and done again. On one rank; knows nothing of how pieces were made.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hpcrec.again import is_there, read_numbers
from hpcrec.data import checksum, files, layout
from hpcrec.data.hdf5_out import Output
from hpcrec.errors import DataError
from hpcrec.preparation import rejects
from hpcrec.preparation.job import Job
from hpcrec.preparation.journal import Journal, Record
from hpcrec.preparation.parts import no_sample
from hpcrec.preparation.pieces import Piece
from hpcrec.preparation.schema import write_index
from hpcrec.preparation.split import Summary
from hpcrec.preparation.tablemap import SparseColumn
from hpcrec.types import Feature

_SLICE = 1 << 18


def are_there(journal: Journal) -> Callable[[Record], bool]:
    """Whether the files of a written piece are still there, at their size."""

    def check(record: Record) -> bool:
        if "label_sums" not in record:  # of a release that did not note them
            return False
        for part, (name, size) in record["files"].items():
            places = (journal.pieces / name, journal.work / name, journal.folder / f"{part}.h5")
            if not any(path.is_file() and path.stat().st_size == size for path in places):
                return False
        return True

    return check


def publish(
    job: Job, journal: Journal, plan: Sequence[Piece], records: Sequence[Record], features: Sequence[Feature]
) -> Record:
    """Give the data set its names; the result, for `summary`.

    Raises
    ------
    DataError
        More bad lines than allowed (the pieces stay), or a part without samples (they do not).
    """
    lines, bad = sum(record["rows"] for record in records), sum(record["bad"] for record in records)
    if bad > job.max_bad * lines:
        raise DataError(rejects.too_many(bad, lines, job.max_bad))
    samples = {name: sum(record["samples"][name] for record in records) for name in job.split.names}
    for name, n in samples.items():
        if not n:
            journal.clear()
            raise no_sample(str(job.out / name), name, job.split, lines)
    ending = ".h5" if len(records) == 1 else layout.INDEX_SUFFIX
    others = [*(["rejects.tsv"] if bad else []), *([layout.VOCABULARY] if job.table.counted else [])]
    journal.intend([*(f"{name}{ending}" for name in job.split.names), *others])
    labels = job.table.labels
    rates = {part: [total / samples[part] for total in _label_sums(records, part)] for part in job.split.names}
    written = [_join(job, journal, name, records) for name in job.split.names]
    result: Record = {
        "files": {name: path.name for name, path in zip(job.split.names, written, strict=True)},
        "samples": samples,
        "label_rate": {part: float(np.mean(rates[part])) for part in job.split.names},
        "label_rates": {p: dict(zip(labels, rates[p], strict=True)) for p in job.split.names if len(labels) > 1},
        "cardinalities": {feature.name: feature.cardinality for feature in features},
        "rejected": bad,
    }
    rejected = job.out / "rejects.tsv"
    rejected.unlink(missing_ok=True)
    if bad:
        parts = [(journal.work / f"rejects-{piece.number:05d}.tsv", r) for piece, r in zip(plan, records, strict=True)]
        rejects.write_all(rejected, plan, parts)
        written.append(rejected)
    if job.table.counted:
        written.append(_write_vocabularies(job, journal))
    if len(plan) > 1:
        written += [journal.pieces / name for record in records for name, _ in record["files"].values()]
    journal.finish(result, written)
    return result


def summary(folder: Path, result: Record) -> Summary:
    """What a conversion gave."""
    return Summary(
        files={part: str(folder / name) for part, name in result["files"].items()},
        samples=result["samples"],
        label_rate=result["label_rate"],
        label_rates=result.get("label_rates", {}),  # of a conversion of before, nothing
        cardinalities=result["cardinalities"],
        rejected=result["rejected"],
    )


def _label_sums(records: Sequence[Record], part: str) -> list[float]:
    """Of each label over all pieces, in their order."""
    return [sum(of_label) for of_label in zip(*(record["label_sums"][part] for record in records), strict=True)]


def _join(job: Job, journal: Journal, part: str, records: Sequence[Record]) -> Path:
    """One file takes the part's name; several are joined by an index."""
    if len(records) == 1:
        target = job.out / f"{part}.h5"
        source = journal.work / records[0]["files"][part][0]
        if is_there(source):
            files.publish(source, target)
        return target
    target = job.out / f"{part}{layout.INDEX_SUFFIX}"
    paths = [journal.pieces / record["files"][part][0] for record in records if part in record["files"]]
    digest = hashlib.sha256("".join(record["sha256"] for record in records).encode())
    write_index(target, paths, {layout.SOURCE_ATTRIBUTE: digest.hexdigest()})
    return target


def _write_vocabularies(job: Job, journal: Journal) -> Path:
    """The values of each vocabulary, by id."""
    target = job.out / layout.VOCABULARY
    temporary = files.temporary_beside(target)
    try:
        with Output(temporary, target, layout.FILE_FORMAT) as out:
            for number, name in enumerate(job.table.counted):
                path = journal.work / f"vocabulary-{number}.values"
                dtype = _type_of(job.table.sparse[name])
                data = out.file.create_dataset(name, (path.stat().st_size // 8,), dtype)
                crc = 0
                for start in range(0, len(data), _SLICE):
                    values = read_numbers(path, np.uint64, _SLICE, offset=8 * start)
                    data[start : start + len(values)] = values.view(np.int64 if dtype == np.int64 else np.uint64)
                    crc = checksum.update(crc, values.astype(dtype), dtype)
                    out.check()
                data.attrs[layout.CHECKSUM_ATTRIBUTE] = np.uint32(crc)
        files.publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _type_of(spec: SparseColumn) -> type:
    if spec.value == "integer":
        return np.int64
    return np.uint32 if spec.value == "hex" and 0 < spec.digits <= 8 else np.uint64
