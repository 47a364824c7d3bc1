"""Converts a table to a data set: piece by piece, on any number of ranks, going on where it was cut short.

Stages, each over pieces that are dealt to the ranks: lines are counted (only for a split by order), values are counted
and numbered (only for vocabularies), samples are written. What a stage gives is in the journal. No two ranks write one
file, and what is written does not depend on who writes it.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from hpcrec.comm import failure
from hpcrec.comm.ranks import Alone, Ranks
from hpcrec.data import layout
from hpcrec.errors import ConfigError
from hpcrec.preparation import pieces, publish, table, vocabulary
from hpcrec.preparation.blocks import Block, Reader
from hpcrec.preparation.job import Job
from hpcrec.preparation.journal import Journal, Record
from hpcrec.preparation.numbering import Numbering, Uncounted
from hpcrec.preparation.parts import Parts
from hpcrec.preparation.pieces import Piece
from hpcrec.preparation.rejects import Rejects
from hpcrec.preparation.split import Samples, Summary
from hpcrec.preparation.table import Maker
from hpcrec.types import Ints

_PIECE_SHIFT = 40  # for hash splits, sample i of piece p has the number (p << 40) + i


def run(job: Job, ranks: Ranks | None = None, *, restart: bool = False) -> Summary:
    """Convert, or go on with it; collective. The same command again, once it is finished, does nothing.

    Raises
    ------
    ConfigError
        The map does not fit the sources, or the folder holds another conversion.
    DataError
        A source that cannot be read, or too many bad lines.
    """
    ranks = ranks or Alone()
    job.table.check()
    for kind in ("group", "time"):
        if job.split.kind == kind and getattr(job.table, kind) is None:
            raise ConfigError(f'split {job.split.describe()!r}: the map names no {kind}; add {kind} = "COLUMN" to it.')
    if not job.sources:
        raise ConfigError(f"prepare {job.command}: no source file; name at least one.")
    if not 0 <= job.max_bad <= 1:
        raise ConfigError(f"prepare {job.command}: max_bad is {job.max_bad}; a share from 0 to 1 is allowed.")
    journal: Journal | None = None
    error: Exception | None = None
    finished: Record | None = None
    plan: list[Piece] = []
    if ranks.rank == 0:
        try:
            plan = pieces.cut(job.sources, job.piece_bytes)
            journal = Journal(job.out, job.identity())
            finished = journal.open(restart=restart)
        except Exception as caught:
            error = caught
    failure.agree(ranks, error)
    plan, finished = ranks.bcast((plan, finished))
    try:
        if finished is None:
            try:
                finished = _Conversion(job, ranks, journal or Journal(job.out, {}), plan).run()
            except BaseException:
                if ranks.size == 1 and journal is not None and not journal.has_records("counted", "written"):
                    journal.clear()
                raise
        return publish.summary(job.out, finished)
    finally:
        if journal is not None:
            journal.close()


@dataclass
class _Meter:
    """Takes the bytes that are read: their checksum, and the progress bar."""

    bar: Any
    digest: Any = field(default_factory=hashlib.sha256)

    def update(self, data: bytes, /) -> None:
        self.digest.update(data)
        self.bar.update(len(data))


class _Conversion:
    """One rank's part of a conversion."""

    def __init__(self, job: Job, ranks: Ranks, journal: Journal, plan: list[Piece]) -> None:
        self.job, self.ranks, self.journal, self.plan = job, ranks, journal, plan
        self.reader = Reader(job.table, list(job.sources))
        self._starts = [piece.number << _PIECE_SHIFT for piece in plan]
        self._total = 0
        self._bar: Any = None

    def run(self) -> Record:
        """All stages; the result, on every rank."""
        if self.job.split.kind == "order":
            self._number_lines()
        counted: dict[str, Numbering] = {}
        if self.job.table.counted:
            counted = self._vocabularies()
        self._maker = Maker(self.job.table, table.numberings(self.job.table, counted))
        records = self._stage("written", self._write, publish.are_there(self.journal))
        result: Record | None = None
        error: Exception | None = None
        if self.ranks.rank == 0:
            try:
                result = publish.publish(self.job, self.journal, self.plan, records, self._maker.features)
            except Exception as caught:
                error = caught
        failure.agree(self.ranks, error)
        return dict(self.ranks.bcast(result))

    def _stage(
        self, stage: str, work: Callable[[Piece], Record], valid: Callable[[Record], bool] = lambda _: True
    ) -> list[Record]:
        """Do what is not done of a stage; the records of all pieces, in order."""
        done = {k: r for k, r in self.journal.records(stage).items() if valid(r)} if self.ranks.rank == 0 else {}
        done = self.ranks.bcast(done)
        todo = [piece for piece in self.plan if _name(piece) not in done][self.ranks.rank :: self.ranks.size]
        shown = self.job.progress and self.ranks.rank == 0
        total = sum(piece.n_bytes for piece in todo)
        fresh: dict[str, Record] = {}
        with tqdm(total=total, unit="B", unit_scale=True, desc=stage, disable=not shown, leave=False) as self._bar:
            for piece in todo:
                fresh[_name(piece)] = work(piece)
                self.journal.record(stage, _name(piece), fresh[_name(piece)])
        for theirs in self.ranks.allgather(fresh):
            done.update(theirs)
        return [done[_name(piece)] for piece in self.plan]

    def _number_lines(self) -> None:
        def count(piece: Piece) -> Record:
            meter = _Meter(self._bar)
            return {"lines": sum(self.reader.count(span, meter) for span in piece.spans)}

        lines = [record["lines"] for record in self._stage("lines", count)]
        self._starts = [sum(lines[:i]) for i in range(len(lines))]
        self._total = sum(lines)

    def _vocabularies(self) -> dict[str, Numbering]:
        names = self.job.table.counted
        records = self._stage("counted", self._count)
        paths = {name: self.journal.work / f"vocabulary-{number}" for number, name in enumerate(names)}
        done = self.ranks.bcast(self.journal.records("numbered") if self.ranks.rank == 0 else None)
        for number, name in list(enumerate(names))[self.ranks.rank :: self.ranks.size]:
            if str(number) in done:
                continue
            runs = [
                vocabulary.Run(self.journal.work / file, offset, n)
                for record in records
                for file, offset, n in record["runs"][name]
            ]
            spec = self.job.table.sparse[name]
            most = None if spec.rows is None else spec.rows - vocabulary.FIRST
            counts = vocabulary.merged(runs, self.journal.work / f"merging-{number}")
            words = vocabulary.number(counts, paths[name], min_count=spec.min_count, most=most)
            self.journal.record("numbered", str(number), {"feature": name, "words": words})
        self.ranks.allgather(None)  # all are numbered
        hold = vocabulary.HOLD_BYTES // len(names)
        return {name: vocabulary.Vocabulary(path, hold) for name, path in paths.items()}

    def _count(self, piece: Piece) -> Record:
        """Count the words of the train samples of a piece."""
        names = self.job.table.counted
        seen = {name: Uncounted() for name in names}
        maker = Maker(self.job.table, table.numberings(self.job.table, seen))
        counter = vocabulary.Counter(self.journal.work / f"counts-{_name(piece)}", names)
        rejects = Rejects(self.journal.work / f"counts-{_name(piece)}.tsv", self.job.max_bad)
        for columns, _, part_S in self._samples(piece, maker, _Meter(self._bar), rejects):
            train = part_S == 0
            for name, kept in seen.items():
                offsets = columns.sparse[name].offsets
                of_train = train if offsets is None else np.repeat(train, np.diff(offsets))
                counter.add(name, kept.words[of_train & ~kept.missing])
        rejects.path.unlink(missing_ok=True)
        runs = counter.close()
        return {"runs": {name: [(run.path.name, run.offset, run.n) for run in found] for name, found in runs.items()}}

    def _write(self, piece: Piece) -> Record:
        """Write the samples of a piece."""
        base = self.journal.pieces if len(self.plan) > 1 else self.journal.work
        maker, spec = self._maker, self.job.table
        names = {layout.LABELS_ATTRIBUTE: list(spec.labels)}
        parts = Parts(
            {name: base / f"{name}-{_name(piece)}.h5" for name in self.job.split.names},
            maker.features,
            split=self.job.split,
            n_dense=len(spec.dense),
            n_labels=len(spec.labels),
            jagged=spec.jagged,
            optional=spec.optional,
            compression=self.job.compression,
            attributes={layout.CONVENTIONS_ATTRIBUTE: self.job.conventions or maker.conventions(), **names},
        )
        meter = _Meter(self._bar)
        rejects = Rejects(self.journal.work / f"rejects-{_name(piece)}.tsv", self.job.max_bad)
        lines, n = [0] * len(piece.spans), 0
        try:
            for columns, (span, block), part_S in self._samples(piece, maker, meter, rejects):
                parts.append(columns, part_S)
                lines[span] = block.first + block.n
                n += block.n
            written = parts.close({layout.SOURCE_ATTRIBUTE: meter.digest.hexdigest()})
        finally:
            parts.abort()
        found = {name: [path.name, path.stat().st_size] for name, path in written.items()}
        return {
            "files": found,
            "samples": parts.samples,
            "label_sums": parts.label_sums,
            "lines": lines,
            "rows": n,
            "bad": rejects.n,
            "sha256": meter.digest.hexdigest(),
        }

    def _samples(
        self, piece: Piece, maker: Maker, meter: _Meter, rejects: Rejects
    ) -> Iterator[tuple[layout.Columns, tuple[int, Block], Ints]]:
        """Samples of a piece, block by block; the number of the span and the block; the part of each (-1: bad)."""
        rejects.path.unlink(missing_ok=True)  # of a conversion that was cut short
        seen = 0
        for number, span in enumerate(piece.spans):
            for block in self.reader.blocks(span, meter):
                columns, problems = maker.columns(block)
                start = self._starts[piece.number] + seen
                part_S = self.job.split.part(Samples(columns, span.path, start, self._total))
                seen += block.n
                rejects.take(block, problems, number, seen)
                part_S[list(problems.found)] = -1
                yield columns, (number, block), part_S


def _name(piece: Piece) -> str:
    return f"{piece.number:05d}"
