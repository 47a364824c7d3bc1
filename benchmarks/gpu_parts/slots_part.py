"""The slot map at three quarters full: ids found, and ids admitted.

2^26 slots (0.8 GB, beyond any cache), calls of 2^24 distinct ids, nine tenths of which have a slot. ``gpu.hash.find``
is of ``find``, ``gpu.hash.insert`` of ``admit`` under LRU; before each call of that the map is as it was, by a copy
that is not timed. What ``find`` has to move are ids, slots, and the 256 bytes of each id's set.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from gpu_parts.bench import Found, Machine, Part, Work
from gpu_parts.by_definition import same_bits

from hpcrec import kernels
from hpcrec.kernels import NO_ID

FIND, ADMIT = "SlotMap.find, 90 % hits", "SlotMap.admit under LRU, 90 % hits"
CHECK = "SlotMap admit and find, NumPy's bits"
FOUND, ADMITTED = "SlotMap.find at the timed size", "SlotMap.admit at the timed size"
ODD = -7046029254386353131  # times it, numbers become ids that are spread over all 64 bits
SET_BYTES = 256


def check(machine: Machine) -> bool:
    """Calls that fill a small map past its sets, on the device and by the definition."""
    rng, good = np.random.default_rng(5), True
    maps = [kernels.SlotMap(320, evict="lru", seed=3, device=device) for device in (machine.device, None)]
    for clock in range(1, 5):
        ids = rng.permutation(600)[:150] * ODD
        there, here = maps[0].admit(machine.device.array(ids), clock), maps[1].admit(ids, clock)
        good &= all(same_bits(np.asarray(a), b) for a, b in zip(there[:2], here[:2], strict=True))
        good &= there.n_new == here.n_new
        good &= same_bits(np.asarray(maps[0].find(machine.device.array(ids))), maps[1].find(ids))
    return good


def measure(machine: Machine) -> Found:
    """Both rows."""
    found = Found(checks={CHECK: check(machine)})
    capacity, n = machine.pick(1 << 26, 1 << 10), machine.pick(1 << 24, 200)
    slots = kernels.SlotMap(capacity, evict="lru", seed=1, device=machine.device)
    n_given = capacity * 3 // 4
    for first in range(0, n_given, n):
        given = machine.arange(first, min(first + n, n_given)) * ODD
        slots.admit(machine.array(given), clock=1, keep_from=0)  # where a set is full, an id stays without a slot
    held = slots.items()[0].tensor  # type: ignore[attr-defined] # an array on a device
    n_hits = n * 9 // 10
    hits = held[torch.randperm(len(held), generator=machine.random, device=machine.place)[:n_hits]]
    misses = machine.arange(n_given, n_given + n - n_hits) * ODD
    ids = torch.cat([hits, misses])[torch.randperm(n, generator=machine.random, device=machine.place)]
    there = slots.find(machine.array(ids)).tensor  # type: ignore[attr-defined]
    found.checks[FOUND] = bool((there >= 0).sum() == n_hits)
    found.checks[ADMITTED], restore = admitted(machine, slots, ids, misses)
    said = f"{n:,} ids, {capacity:,} slots, {len(held) / capacity:.3f} of them taken"
    timed = machine.time(
        {
            FIND: Work(run=partial(slots.find, machine.array(ids)), n_bytes=n * (SET_BYTES + 16), n_ids=n, work=said),
            ADMIT: Work(run=partial(slots.admit, machine.array(ids), 3), n_ids=n, work=said, before=restore),
        }
    )
    found.rows = [timed.row(case) for case in (FIND, ADMIT)]
    found.values = {"gpu.hash.find": timed.ids_per_s(FIND), "gpu.hash.insert": timed.ids_per_s(ADMIT)}
    return found


def admitted(
    machine: Machine, slots: kernels.SlotMap, ids: torch.Tensor, misses: torch.Tensor
) -> tuple[bool, Callable]:
    """Whether ids lie where they were put and no others are gone than is said; and what makes the map what it was."""
    own = [slots._map.ids.tensor, slots._map.uses.tensor]  # its public calls cannot bring back what was evicted
    copies = [tensor.clone() for tensor in own]
    n_before = len(slots)
    placed = slots.admit(machine.array(ids), clock=2)
    there, evicted = placed.slots.tensor, placed.evicted.tensor
    good = bool((own[0][there[there >= 0]] == ids[there >= 0]).all()) and placed.n_new <= len(misses)
    good &= bool((there < 0).sum() == len(misses) - placed.n_new)
    good &= len(slots) == n_before + placed.n_new - int((evicted != NO_ID).sum())

    def restore() -> None:
        for tensor, copy in zip(own, copies, strict=True):
            tensor.copy_(copy)

    restore()
    return good, restore


PART = Part(
    name="slots",
    cases=(FIND, ADMIT),
    checks=(CHECK, FOUND, ADMITTED),
    claims=(("gpu.hash.find", "ids/s", ">= 2e9"), ("gpu.hash.insert", "ids/s", ">= 0.8e9")),
    measure=measure,
)
