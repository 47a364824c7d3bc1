"""Checks of a configuration against this set-up: its data sets, its roles, its memory. Only with ``--config``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrec.build.memory import memory_lines, predict_memory, topology_of
from hpcrec.config import Config
from hpcrec.data.reader import DataSet
from hpcrec.doctor.base import Finding, Site, fail, odd_ones, ok, warn
from hpcrec.doctor.machine import limit_bytes, measure_memory
from hpcrec.errors import HpcrecError
from hpcrec.units import format_bytes

_TIGHT = 0.85  # of a rank's share of memory: the formula is held to 15 % by tests


def measure_roles(site: Site) -> str | None:
    """Why the configuration's roles do not fit this world; None where they do."""
    try:
        topology_of(_config(site), site.probe.host_of)
    except HpcrecError as error:
        return str(error)
    return None


def judge_roles(answers: Sequence[str | None], site: Site) -> Iterator[Finding]:
    """Every rank has a role."""
    if answers[0] is not None:
        yield fail("topology", answers[0], "start another number of ranks, or change [topology]")
        return
    topology = topology_of(_config(site), site.probe.host_of)
    yield ok("topology", f"{topology.size} ranks: {len(topology.owners)} owners, {len(topology.dense)} dense")


def measure_data(site: Site) -> dict[str, Any]:
    """Fingerprint, or what is wrong, of each data set, as this rank sees it."""
    found: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        path = getattr(_config(site).data, name)
        if path is None:
            continue
        try:
            with DataSet(Path(path)) as dataset:
                found[name] = {"path": path, "samples": dataset.samples, "fingerprint": dataset.fingerprint}
        except (HpcrecError, OSError) as error:
            found[name] = {"path": path, "error": str(error)}
    return found


def judge_data(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Every rank can read every data set, and sees the same one."""
    for name in answers[0]:
        seen = [a[name] for a in answers]
        bad = [rank for rank, s in enumerate(seen) if "error" in s]
        if bad:
            yield fail(
                f"data.{name}",
                f"{site.who(bad)}: {seen[bad[0]]['error']}",
                "put the data on a file system that all hosts share, and give its path there",
            )
            continue
        _, odd = odd_ones([s["fingerprint"] for s in seen])
        if odd:
            do = "put one copy on a file system that all hosts share"
            yield fail(f"data.{name}", f"{seen[0]['path']} is another data set on {site.who(odd)}", do)
        else:
            yield ok(f"data.{name}", f"{seen[0]['path']}, {seen[0]['samples']:,} samples")


def measure_need(site: Site) -> dict[str, Any]:
    """What each rank will need, and what this host has."""
    here = measure_memory(site)
    try:
        predicted = predict_memory(_config(site), site.probe.host_of)
    except (HpcrecError, OSError) as error:
        return {"error": str(error), **here}
    return {"error": None, "predicted": predicted if site.probe.rank == 0 else None, **here}


def judge_need(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """The ranks of each host fit into its memory."""
    what = "memory of a run"
    if answers[0]["error"]:
        yield fail(what, f"cannot be predicted: {answers[0]['error']}", "mend what the message says")
        return
    predicted = answers[0]["predicted"]
    by_rank = [p.total_bytes for p in predicted]
    short = False
    tight = [r for r, a in enumerate(answers) if a["process"] and by_rank[r] > a["process"]]
    if tight:
        short, rank = True, tight[0]
        yield fail(
            what,
            f"{site.who(tight)} may have {format_bytes(answers[rank]['process'])} (ulimit -v, -d) and will need "
            f"{format_bytes(by_rank[rank])}",
            "ulimit -v unlimited and ulimit -d unlimited, before the launch and on every host",
            bytes_by_rank=by_rank,
        )
    for ranks in site.by_host().values():
        has = min(limit_bytes(answers[ranks[0]]), answers[ranks[0]]["available"])
        need = sum(by_rank[r] for r in ranks)
        if need > _TIGHT * has:
            short = True
            yield (fail if need > has else warn)(
                what,
                f"{len(ranks)} ranks on {site.hosts[ranks[0]]} will need {format_bytes(need)} of {format_bytes(has)}",
                "use more hosts or owners, fewer rows or columns, or an optimizer with less state "
                "(rowwise_adagrad); ask for more memory (--mem)",
                bytes_by_rank=by_rank,
            )
    if not short:
        lines = memory_lines(predicted, topology_of(_config(site), site.probe.host_of))
        yield ok(what, ("\n" + " " * 22).join(lines), bytes_by_rank=by_rank)


def _config(site: Site) -> Config:
    assert site.config is not None, "these checks are only made with a configuration"
    return site.config
