"""From a run's configuration and a checkpoint to a session that evaluates and predicts, and trains nothing."""

from dataclasses import replace
from pathlib import Path

from hpcrec.build.datasets import refuse_other_columns
from hpcrec.build.session import open_session
from hpcrec.build.tables import as_read
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.files import checkpoints_in
from hpcrec.comm.failure import end_by_signals
from hpcrec.config import Config
from hpcrec.errors import HpcrecError
from hpcrec.training.compression import advise_reader
from hpcrec.training.ranks import on_root
from hpcrec.training.session import Session


def open_for_reading(config: Config, data: str | None, checkpoint: str) -> Session:
    """A session with a checkpoint's weights whose split ``test`` is ``data``; every rank has both roles.

    So a run is read on any number of ranks, one included, whatever it was trained on; ``[topology]`` but for its
    threads, ``[store]``, and placements on certain owners, do not count.
    """
    path = data or config.data.test or config.data.validation or config.data.train
    run = Path(config.run.folder)
    try:
        session = open_session(as_read(replace(config, data=replace(config.data, test=path))), reading=True)
    except HpcrecError:
        if data is not None:
            refuse_other_columns(config, data)  # which says better what is wrong
        raise
    end_by_signals()  # nothing is trained that a stop would save
    main = session.parts.world.main
    if data is not None:
        on_root(main, lambda: refuse_other_columns(config, data))
    if checkpoint == "best" and not on_root(main, (checkpoints_in(run) / "best.json").exists):
        checkpoint = "last"
    found = find_checkpoint(run, checkpoint, main)
    state.load(session, found, resume=False)
    session.step = found.step  # what predictions are of
    if main.rank == 0 and config.exchange.codec == "dct" and config.exchange.dct.evaluate:
        auto = config.exchange.chooses_forms
        features, embedding = session.parts.splits["test"].dataset.features, config.embedding
        named = {name for name, table in embedding.tables.items() if table.shard == "table"}
        whole = {f.name for f in features if embedding.share.get(f.name, f.name) in named}
        advise_reader(session, found, auto=auto, whole=whole)
    return session
