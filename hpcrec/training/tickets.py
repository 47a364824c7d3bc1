"""Batches of a split in order, submitted to the pipeline ahead of their turn.

Where groups of dense ranks have tables of their own, a batch is submitted for each set of them that it is read of.
Knows a session's parts; what is done with a batch is for ``session``.
"""

from collections.abc import Generator, Iterable

from hpcrec.policy.pipeline import Reading, Ticket
from hpcrec.training.feed import Feed
from hpcrec.training.parts import Parts, Split


def training_tickets(parts: Parts, source: Split, first: int, n: int) -> Generator[Ticket]:
    """Tickets of ``n`` training batches from number ``first`` on; the next is routed while one is worked on.

    Each reads the tables of its rank's group, and beside, where groups teach each other, those of the others.
    """
    copies = parts.exchange.copies
    window = 0 if copies is None else copies.window
    looks, waiting = parts.store is not None and parts.store.window > 0, list[Ticket]()
    with parts.timer("set_up"):
        feed = Feed(parts, source, first, n, affinity=parts.affinity, window=window, looks=looks)
    sets = parts.world.topology.table_sets
    own, *others = [Reading(parts.world.topology.reads(ahead), counted=True) for ahead in range(sets)]
    try:
        number = first
        parts.look_ahead.begin()
        for step in range(first, first + n):
            known = min(step + 1 + parts.look_ahead.before_step(), first + n)
            while number < known:
                with parts.timer("load_wait"):
                    batch, ids, sight = next(feed)
                teaches = parts.teaches_from is not None and number >= parts.teaches_from
                readings = [own, *others] if teaches else [own]
                stop = parts.signal.requested
                failed = parts.save_failed.is_set()
                with parts.timer("submit"):
                    ticket = parts.pipeline.submit(
                        batch, ids, train=True, stop=stop, save_failed=failed, readings=readings, sight=sight
                    )
                waiting.append(ticket)
                number += 1
            yield waiting.pop(0)
    finally:
        # Routes left in flight are of every rank alike; later ones follow them on the same thread.
        feed.close()


def reading_tickets(
    parts: Parts, source: Split, n: int, sets: Iterable[int], *, stoppable: bool, columns: tuple[str, ...] = ()
) -> Generator[Ticket]:
    """Tickets of the first ``n`` batches, of which nothing is learned; read of the first of ``sets``, others beside.

    Parts have the optional ``columns`` besides weights.
    """
    waiting, feed = list[Ticket](), Feed(parts, source, 0, n, columns=columns)
    readings = [Reading((number,) * parts.world.topology.size, counted=False) for number in sets]
    try:
        for _ in range(n):
            with parts.timer("load_wait"):
                batch, ids, _ = next(feed)
            stop = stoppable and parts.signal.requested
            waiting.append(parts.pipeline.submit(batch, ids, train=False, stop=stop, readings=readings))
            if len(waiting) > parts.look_ahead.submitted:
                yield waiting.pop(0)
        yield from waiting
    finally:
        feed.close()
