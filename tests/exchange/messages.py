"""Bytes of the ids message to one owner, for tests that count them by hand."""

from collections.abc import Sequence

import numpy as np

from hpcrec import kernels

Bags = Sequence[Sequence[int]]


def message_bytes(asked: Sequence[tuple[int, Bags]], weighted: Sequence[bool], item: int) -> int:
    """Of bags (number of the bundle, bags as they are sent) to an owner of all rows on this host; without padding."""
    some = [(bundle, bags) for bundle, bags in asked if len(bags)]
    ids = np.array([i for _, bags in some for bag in bags for i in bag], np.int64)
    lengths = np.array([len(bag) for _, bags in some for bag in bags], np.int64)
    cells = np.array([(0, b, sum(map(len, bags)), len(bags)) for b, bags in some], np.int64).reshape(len(some), 4)
    plan = kernels.plan_requests(ids, lengths, cells, np.zeros(1, bool), np.array(weighted, bool), item)
    return int(plan.bytes_R[0])
