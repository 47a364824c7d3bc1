"""``hpcrec.train``: a run in this process, and what is known of it when it has ended.

Does what ``hpcrec train`` does; knows configurations and run folders.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcrec import toml
from hpcrec.api import commands
from hpcrec.api.configured import Given, configured
from hpcrec.api.loaded import load
from hpcrec.api.process import ranks, taking_part
from hpcrec.comm.failure import watch
from hpcrec.config import Config
from hpcrec.training import telemetry
from hpcrec.training.callbacks import check
from hpcrec.types import Floats

Keys = Mapping[str, Any]
NOT_GIVEN: Keys = MappingProxyType({})  # by identity: an empty section says no more


class Run:
    """A run that has ended.

    Attributes
    ----------
    folder : Path
        Its run folder.
    config : dict
        Its configuration by section, with every default; ``train`` takes it.
    """

    def __init__(self, config: Config) -> None:
        self.folder = Path(config.run.folder).absolute()
        self.config: dict[str, Any] = toml.plain(config)

    def __repr__(self) -> str:
        return f"<hpcrec run {self.folder}: {self.status}, {self.summary['steps']} steps>"

    def __fspath__(self) -> str:
        """Its folder, so that a run stands for it wherever a path is asked for."""
        return str(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says."""
        return commands.read_summary(self.folder)

    @property
    def status(self) -> str:
        """``finished``, or ``stopped`` where a signal ended it: to train again goes on from there."""
        return str(self.summary["status"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, in order."""
        return telemetry.read_metrics(self.folder)

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last evaluation, by name: ``auc``, ``logloss`` and so on; empty where there was none.

        Beside metrics: ``split`` (``test`` or ``validation``), ``checkpoint`` (``best`` or ``last``) and ``step`` say
        what was evaluated; ``calibration_by_decile`` and ``calibration_by`` are tables, where calibration is measured;
        ``attainable_auc`` is there where the data set says it.
        """
        found = {name: value for name, value in self.summary["eval"].items() if value is not None}
        return found if "split" in found else {}

    def predict(self, frame: Any, dense: Any = None) -> Floats:
        """As of ``hpcrec.load``, which opens the run once for many calls: here each opens it anew."""
        with load(self.folder, trust=True) as model:
            return model.predict(frame, dense)


def train(
    config: Given = None,
    callbacks: Sequence[Any] = (),
    *,
    data: Keys = NOT_GIVEN,
    model: Keys = NOT_GIVEN,
    embedding: Keys = NOT_GIVEN,
    topology: Keys = NOT_GIVEN,
    exchange: Keys = NOT_GIVEN,
    policy: Keys = NOT_GIVEN,
    store: Keys = NOT_GIVEN,
    dense: Keys = NOT_GIVEN,
    schedule: Keys = NOT_GIVEN,
    train: Keys = NOT_GIVEN,
    evaluation: Keys = NOT_GIVEN,
    checkpoint: Keys = NOT_GIVEN,
    run: Keys = NOT_GIVEN,
    **others: Any,
) -> Run:
    """Trains in this process: on one rank, or on all ranks where a launcher has started several (then collective).

    An interrupt (Ctrl-C) ends training after its step and a checkpoint: the run that is returned is ``stopped``, and
    the same call goes on with it. A second one is raised as KeyboardInterrupt, at once.

    Parameters
    ----------
    config : path, or dict of sections, optional
        A TOML file, or what it says (docs/configuration.md).
    callbacks : sequence
        Told of what happens: see ``hpcrec.Callback``.
    data, model, embedding, topology and all others : dict, optional
        Keys by section, put over ``config``, from which None takes them out: ``train={"steps": 100}``.
        ``model={"name": MyModel}`` may be a class or a function, wherever it was made. Other keywords are refused,
        which says where they belong.

    Raises
    ------
    ConfigError, DataError, CheckpointError, NonFiniteError and others of ``hpcrec.errors``
        On one rank the process goes on; of several ranks an error that is not caught ends all.
    """
    sections = dict(locals())
    del sections["config"], sections["callbacks"]
    sections |= sections.pop("others")
    given = {name: keys for name, keys in sections.items() if keys is not NOT_GIVEN}
    with taking_part(os.environ):
        told, checked = check(callbacks), configured(config, given)  # what one rank refuses has to end all
        stop = watch()
        commands.train(checked, environment=os.environ, callbacks=told, goes_on=True)
    if stop.name == "SIGTERM" and ranks() == 1:
        signal.raise_signal(signal.SIGTERM)  # it was for the process, which has saved its run
    return Run(checked)
