"""Session: everything a run consists of, and its step. What a user's own loop runs over.

    for step in session.steps():
        step.run()

Every rank runs the same loop: owners serve rows in ``run`` while dense ranks compute. Knows the order of a step
(inputs, forward, backward, learn, reduce, optimizer) and who takes part; when rows are read and learned is for
``policy``, how each is done for ``exchange`` and ``dense``. What to do every n steps is for ``loop``.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional

from hpcrec.comm.start import spare_what_stays
from hpcrec.comm.topology import Topology
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.policy.pipeline import Inputs, Ticket
from hpcrec.training.evaluation import Predicted, logits_of, models_of_groups
from hpcrec.training.groups import begin, distillation, group_weight, refuse_without_logits
from hpcrec.training.metrics import named_by_label
from hpcrec.training.nonfinite import Guard, describe, nonfinite_gradients, zero_nonfinite
from hpcrec.training.parts import Parts, Samples, Split
from hpcrec.training.tickets import reading_tickets, training_tickets
from hpcrec.training.update import refuse_strays, update_dense
from hpcrec.types import Batch

Losses = Callable[[Mapping[str, Tensor], Samples], Tensor]


class Step:
    """One training step, not yet run.

    Attributes
    ----------
    number : int
        Steps done before it.
    batch : Batch or None
        This rank's part; None on ranks that are not dense.
    """

    def __init__(self, session: "Session", ticket: Ticket, number: int) -> None:
        self._session = session
        self._ticket = ticket
        self.number = number
        self.batch = ticket.batch

    def run(self, losses: Losses | None = None) -> float:
        """See ``Session.run_step``; once."""
        if self._session.step != self.number:
            raise HpcrecError(f"step {self.number} was run already")
        return self._session.run_step(self._ticket, losses)


class Session:
    """A run's parts and its position.

    Attributes
    ----------
    topology : Topology
    step : int
        Steps done so far; a resumed session starts where its checkpoint was.
    guard : Guard
        What is done about losses and gradients that are not finite.
    stopped : bool
        Whether the ranks agreed to stop before the last step (a signal).
    save_failed : bool
        Whether a rank knew of a checkpoint that could not be written when the last step's batch was routed; the same on
        every rank.
    last_logits : Tensor or None
        The model's logits of the last training step on this rank; None where a user's own loss was used, and
        after a step that was left out because of a loss or gradient that is not finite.
    """

    def __init__(self, parts: Parts, guard: Guard) -> None:
        self.parts = parts
        self.guard = guard
        self.topology: Topology = parts.world.topology
        self.step = 0
        self.stopped = False
        self.save_failed = False
        self.last_logits: Tensor | None = None
        self._dropped: list[str] = []  # features whose gradients the step leaves out here
        self._closed = False

    # Position.

    @property
    def batches_per_epoch(self) -> int:
        """Global batches in one epoch of the training data."""
        return self._split("train").order.n_batches

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        steps = self.parts.steps
        return self.parts.epochs * self.batches_per_epoch if steps is None else steps

    @property
    def model(self) -> nn.Module | None:
        """The dense model, that of this rank's group; None on ranks that are not dense. See ``gather_model``."""
        return None if self.parts.dense is None else self.parts.dense.model

    def gather_model(self) -> nn.Module | None:
        """The dense model with every parameter as it is; collective. Of several groups, the first one's.

        Under form ``partial`` some are trained by the owners (``hpcrec.operators.Folded``): in ``model`` they are what
        they were when it was last gathered.
        """
        if self.parts.slices.away:
            self.parts.slices.gather()
        dense = self.parts.dense
        return self.model if dense is None or dense.codistillation is None else dense.codistillation.first()

    # Training.

    def steps(self) -> Iterator[Step]:
        """The steps that are left, in order; ends early when a rank was asked to stop. Call ``run`` on each.

        Collective: every rank runs through the same steps, and leaves at the same one if it leaves early.
        """
        if self.parts.chosen is not None:
            self.parts.chosen.begin(self.step)
        first, last, pipeline, timer = self.step, self.total_steps, self.parts.pipeline, self.parts.timer
        with timer("set_up"):
            spare_what_stays()
            pipeline.begin(first, last)
        tickets = training_tickets(self.parts, self._split("train"), first, last - first)
        try:
            for ticket in tickets:
                step = Step(self, ticket, self.step)
                yield step
                if self.step != step.number + 1:
                    raise HpcrecError(f"step {step.number} was left without run(), which every rank must call")
                if ticket.routed.result().stop:
                    self.stopped = self.step < last
                    break
            with timer("drain"):
                pipeline.drain()
        finally:
            pipeline.give_up()  # where the loop was left, perhaps by an error
            with timer("drain"):
                tickets.close()

    def run_step(self, ticket: Ticket, losses: Losses | None) -> float:
        """One training step on a routed batch; returns this rank's share of the global mean loss (0 if not dense).

        Parameters
        ----------
        losses : callable, optional
            ``(inputs, samples) -> Tensor [B]``, a loss for each sample; the session weighs and averages them over the
            global batch. Default: ``default_losses``.
        """
        parts, step, pipeline = self.parts, self.step, self.parts.pipeline
        parts.world.progress.step = step
        scale = parts.schedule.multiplier(step)
        begin(parts, ticket, step)
        inputs = pipeline.inputs(ticket)
        loss, found, gradients, verdict = 0.0, None, None, None
        if inputs is not None:
            loss, found = self._compute(ticket, inputs, losses)
            with parts.timer("agree"):
                verdict = self.guard.agree(here=found is None)
            with parts.timer("disassemble"):
                gradients = inputs.gradients()
        lr_scale = scale if parts.scale_embeddings else 1.0
        verdict = pipeline.learn(ticket, gradients, verdict, step=step, lr_scale=lr_scale)  # owners are told
        if verdict:
            self.guard.in_a_row = 0
            self.guard.note_dropped(step, self._dropped)
            update_dense(parts, step, scale)
        else:
            if parts.dense is not None:
                with parts.timer("dense_reduce"):
                    parts.dense.reducer.cancel()  # sums under way have to end on every dense rank
            with parts.timer("agree"):
                self.guard.skip(found)
            self.last_logits = None
        self.step += 1
        self.save_failed = ticket.routed.result().save_failed
        return loss

    def _compute(self, ticket: Ticket, inputs: Inputs, losses: Losses | None) -> tuple[float, str | None]:
        """Forward and backward on a dense rank: its share of the loss; and, where not all is finite, what it found."""
        parts, timer, step, dense = self.parts, self.parts.timer, self.step, self.parts.dense
        assert dense is not None and ticket.batch is not None
        with timer("samples"):
            # the seed depends on the step alone, so dropout in a resumed run goes on as it would have
            dense.place.seed(hash((parts.seed, step, self.topology.dense_index)) & 0x7FFFFFFF)
            dense.model.train()
            dense.reducer.zero_grad()
            self.last_logits, self._dropped = None, []
            samples = Samples.of(ticket.batch, parts.dtype, dense.place)
        with timer("forward"), dense.place.casting():
            losses_B = (losses or self.default_losses)(inputs, samples)
            if losses_B.shape != samples.label.shape[:1]:
                raise HpcrecError(
                    f"the loss function returned shape {tuple(losses_B.shape)}; expected one loss for each of "
                    f"the {samples.label.shape[0]} samples: the mean over the global batch is taken here"
                )
            if samples.weight is not None:
                losses_B = losses_B * samples.weight
            refuse_without_logits(parts, self.last_logits)
            routed = ticket.routed.result()
            weight, share = group_weight(parts, routed.total_weight, routed.weights_R)
            total = losses_B.sum() / weight
            loss = float(total.detach()) * share
        with timer("backward"):
            total.backward()
            refuse_strays(parts)
            if share != 1.0 and self.topology.table_sets == 1:
                inputs.scale_gradients(share)  # rows learn from all groups' samples
            dense.reducer.send()
        with timer("finite"):
            bad = nonfinite_gradients(inputs.leaves, inputs.vectors(), inputs.results(), dense.reducer.nonfinite)
            others = nonfinite_gradients((), (), inputs.results(), dense.reducer.nonfinite) if bad else []
            if bad and not others and self.guard.drops and math.isfinite(loss):
                self._dropped, bad = zero_nonfinite(inputs.leaves, inputs.vectors()), []
            del total
            losses_B = losses_B.detach()  # the graph goes here, and not when this returns, where it is of no phase
        if not bad and math.isfinite(loss):
            return loss, None
        seen = (ticket.batch, samples, inputs.vectors(), losses_B, self.last_logits)
        return loss, describe(step, self._split("train"), *seen, bad if math.isfinite(loss) else ())

    def default_losses(self, inputs: Mapping[str, Tensor], samples: Samples) -> Tensor:
        """Binary cross-entropy of the model's logits: [B], the mean over labels where there are several.

        With several groups of dense ranks, that against their predictions is added (``dense.codistillation``).
        """
        assert self.parts.dense is not None
        logits = self.parts.dense.model(inputs, samples.dense).to(self.parts.dtype)
        self.last_logits = logits.detach()
        losses = functional.binary_cross_entropy_with_logits(logits, samples.label, reduction="none")
        distilled = distillation(self.parts, logits, inputs, samples)
        losses = losses if distilled is None else losses + distilled
        return losses.mean(dim=1) if losses.ndim == 2 else losses

    # Evaluation.

    def evaluate(self, split: str, max_batches: int | None = None) -> dict[str, Any]:
        """The metrics of ``evaluation.metrics`` over a split; collective, same result on every rank.

        Of several labels they are means, and ``by_label`` has those of each label by its name.

        Raises
        ------
        ConfigError
            One of them is by group, and the data set has no ``/group``.
        """
        found = self._evaluate(split, max_batches, stoppable=False)
        assert found is not None
        return found

    def evaluate_unless_stopped(self, split: str, max_batches: int | None = None) -> dict[str, Any] | None:
        """The same; None, and ``stopped`` set, where a rank was asked to stop meanwhile."""
        return self._evaluate(split, max_batches, stoppable=True)

    def _evaluate(self, split: str, max_batches: int | None, *, stoppable: bool) -> dict[str, Any] | None:
        measures = self.parts.measures
        seen, columns = Predicted(measures), measures.columns(self._split(split).dataset)
        for _, batch, outs in self._outputs(split, max_batches, stoppable=stoppable, columns=columns):
            seen.add(batch, outs)
        if stoppable and self.stopped:
            return None
        return named_by_label(seen.metrics(self.parts.world), self._split(split).dataset.label_names)

    def outputs(
        self, split: str, max_batches: int | None = None, *, stoppable: bool = False
    ) -> Iterator[tuple[int, Batch, Tensor]]:
        """(first position, batch, logits) of this rank's part of each batch of a split, in order; collective.

        Yields on dense ranks only; on the others it serves rows and ends. With ``stoppable`` it ends early, on every
        rank at the same batch, where a rank was asked to stop, and sets ``stopped``. Logits are of the first group's
        model, where dense ranks are in several.
        """
        for first, batch, outs in self._outputs(split, max_batches, stoppable=stoppable, groups=1):
            yield first, batch, outs[0]

    def _outputs(
        self,
        split: str,
        max_batches: int | None,
        *,
        stoppable: bool,
        groups: int | None = None,
        columns: tuple[str, ...] = (),
    ) -> Iterator[tuple[int, Batch, list[Tensor]]]:
        """The same by the models of the first so many groups, of all by default; with columns that metrics need."""
        order = self._split(split).order
        n = order.n_batches if max_batches is None else min(max_batches, order.n_batches)
        parts = self.parts
        wanted = range(self.topology.groups if groups is None else groups)
        sets = range(min(len(wanted), self.topology.table_sets))
        tickets = reading_tickets(parts, self._split(split), n, sets, stoppable=stoppable, columns=columns)
        with models_of_groups(parts) as forward:
            for ticket in tickets:
                if ticket.routed.result().stop:
                    self.stopped = True
                    return
                logits = logits_of(parts, ticket, forward, wanted)
                if ticket.batch is not None:
                    yield order.batch_range(ticket.batch.index)[0] + ticket.batch.start, ticket.batch, logits

    # Batches.

    def _split(self, name: str) -> Split:
        if name not in self.parts.splits:
            raise ConfigError(
                f"data.{name} is not set, but is asked for. Set data.{name} to an HDF5 file. "
                f"There are: {', '.join(self.parts.splits)}."
            )
        return self.parts.splits[name]

    # End.

    def close(self) -> None:
        """Waits for every rank, then takes everything down in order; collective."""
        if not self._closed:
            self._closed = True
            try:
                self.parts.pipeline.close()
            except BaseException:
                self.parts.world.abandon()
                raise
            self.parts.world.main.barrier()  # nothing of any rank is in flight any more
            self.parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # after an error the other ranks will not come to a barrier
            self.close()
        elif self.topology.size == 1:
            self._let_go()
        else:
            self.parts.world.abandon()

    def _let_go(self) -> None:
        """After an error on the only rank, whose process may go on: ends threads and closes files.

        What fails meanwhile says nothing, for it comes of the first error.
        """
        if not self._closed:
            self._closed = True
            for end in (self.parts.pipeline.close, self.parts.close):
                with contextlib.suppress(Exception):
                    end()
