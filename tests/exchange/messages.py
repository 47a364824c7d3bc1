"""Bytes of the ids message to one owner, for tests that count them by hand; and a read as one call."""

from collections.abc import Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.inputs import Inputs
from hpcrec.exchange.route import Route

Bags = Sequence[Sequence[int]]


def message_bytes(asked: Sequence[tuple[int, Bags]], weighted: Sequence[bool], item: int) -> int:
    """Of bags (number of the bundle, bags as they are sent) to an owner of all rows on this host; without padding."""
    some = [(bundle, bags) for bundle, bags in asked if len(bags)]
    ids = np.array([i for _, bags in some for bag in bags for i in bag], np.int64)
    lengths = np.array([len(bag) for _, bags in some for bag in bags], np.int64)
    cells = np.array([(0, b, sum(map(len, bags)), len(bags)) for b, bags in some], np.int64).reshape(len(some), 4)
    plan = kernels.plan_requests(ids, lengths, cells, np.zeros(1, bool), np.array(weighted, bool), item)
    return int(plan.bytes_R[0])


def read(exchange: Exchange, route: Route) -> Inputs | None:
    """What the model receives, as where one step is in flight."""
    exchange.read(route)
    return exchange.inputs(route)
