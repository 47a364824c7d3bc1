"""Checks and times the kernels on a GPU: lookups, updates, whole embedding steps, the slot map, thresholds, copies.

    python benchmarks/gpu.py [--quick] [--json FILE] [--only lookup64,w2,...] [--device emulated]

Each part first compares results with NumPy's definition and with torch, then times its calls in turn with torch's copy
of 1 GiB, whose bandwidth most claims are shares of. What a part counts is said by its module in ``gpu_parts``. Without
a GPU that torch can use, or without the kernels for it, every row and claim is there without a value, and says why.
``--device emulated`` runs the same code at tiny sizes on the host, for tests: its times mean nothing and claim nothing.

Ends with 1 where a comparison or a part failed; the claims of such a part have no value.
"""

import argparse
import time
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from _report import claim, finish, options
from gpu_parts import lookup_part, slots_part, step_part, values_part
from gpu_parts.bench import KEYS, Found, Machine, Part, Row, unmeasured

from hpcrec import kernels
from hpcrec.errors import MissingError

PARTS = {
    part.name: part
    for part in (
        lookup_part.part(64), lookup_part.part(128), step_part.part("W1"), step_part.part("W2"), slots_part.PART,
        values_part.PART, values_part.STAGING,
    )
}  # fmt: skip
NO_GPU = "no GPU that torch can use"
NOT_ASKED = "not asked for"
CHECK_FAILED = "a check failed"
EMULATED = "emulated: times mean nothing"


def missing(device: str) -> str | None:
    """Why nothing can be measured here; None where it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return NO_GPU
    try:
        kernels.device(device)  # type: ignore[arg-type]
    except MissingError as error:
        return str(error).split(" (")[0]
    return None


def claims_of(part: Part, found: Found | None, reason: str | None) -> list[Row]:
    """Its claims: with values, or with the reason why they have none."""
    values = found.values if found and reason is None else {}
    return [claim(name, values.get(name), unit, goal, reason) for name, unit, goal in part.claims]


def run(part: Part, machine: Machine) -> tuple[list[Row], list[Row], bool]:
    """Rows and claims of a part, and whether all went well. One that fails does not keep the others from running."""
    try:
        found = part.measure(machine)
    except Exception as error:  # whatever it is, the other parts' figures are wanted
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return unmeasured(part, "failed", reason), claims_of(part, None, reason), False
    checks = [{"check": name, "status": "agrees" if good else "DIFFERS"} for name, good in found.checks.items()]
    good = all(found.checks.values())
    reason = CHECK_FAILED if not good else EMULATED if machine.emulated else None
    return [*found.rows, *checks], claims_of(part, found, reason), good


def measure(device: str, only: Iterable[str], *, quick: bool) -> tuple[list[Row], list[Row], bool]:
    """Rows and claims of all parts, and whether all went well."""
    none = missing(device)
    machine = None if none else Machine(device, quick=quick)
    rows, claims, good = [], [], True
    for part in PARTS.values():
        if machine is None or part.name not in only:
            reason = none or NOT_ASKED
            found = unmeasured(part, "skipped", reason), claims_of(part, None, reason), True
        else:
            began = time.perf_counter()
            found = run(part, machine)
            print(f"{part.name}: {time.perf_counter() - began:.1f} s", flush=True)
        rows += found[0]
        claims += found[1]
        good &= found[2]
    # rows with figures first, checks after them: two tables
    return sorted(rows, key=lambda row: "check" in row), claims, good


def show(rows: list[Row]) -> None:
    """Checks, then figures."""
    for row in rows:
        if "check" in row:
            print(f"{row['check']:64} {said(row)}")
    numbers = KEYS[2:-1]
    print("\n" + f"{'case':36}" + "".join(f"{key:>14}" for key in numbers) + "  work")
    for row in rows:
        if "case" in row:
            cells = "".join(" " * 14 if row[key] is None else f"{row[key]:14.4g}" for key in numbers)
            print(f"{row['case']:36}{cells}  {row['work'] or said(row)}")
    print()


def said(row: Row) -> str:
    """What has become of a row, and why."""
    return f"{row['status']}: {row['reason']}" if "reason" in row else row["status"]


def gpu() -> dict[str, Any]:
    """Which GPU it is."""
    if not torch.cuda.is_available():
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(0)
    return {"gpu": properties.name, "gpu_bytes": properties.total_memory, "cuda": torch.version.cuda}


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = options(__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts that are run (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda", help="emulated: tiny, for tests")
    given = parser.parse_args()
    given.only = given.only.split(",")
    for name in given.only:
        if name not in PARTS:
            parser.error(f"--only has {name!r}; allowed are {', '.join(PARTS)}")
    return given


def main() -> int:
    given = arguments()
    rows, claims, good = measure(given.device, given.only, quick=given.quick)
    show(rows)
    finish("gpu", rows, claims, given.json, gpu())
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
