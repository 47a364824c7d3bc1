"""``hpcrec towers``: finds the towers of a data set. Knows options and lines; the work is ``build.towers``'s."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrec.cli.options import File, Target, examples, run_config, set_option

if TYPE_CHECKING:
    from hpcrec.build.towers import Inside, PlannedTowers

_MORE = 0.05  # of the signal, beyond what sizes explain: more than that is worth a word


@click.group(short_help="Find which features belong to one tower.")
def towers() -> None:
    """Find which features belong to one tower (docs/towers.md)."""


@towers.command(
    short_help="Train a flat model for a short while and print towers.",
    epilog=examples(
        "hpcrec towers plan my.toml --towers 4 --out towers.toml --page towers.html",
        "hpcrec run -n 4 -- towers plan my.toml --towers 8 --steps 2000 --set train.batch_size=8192",
    ),
)
@click.argument("config", type=File)
@set_option
@click.option("--towers", "n_towers", type=click.IntRange(min=1), required=True, help="How many.")
@click.option("--steps", type=click.IntRange(min=1), default=700, show_default=True, help="Of the short run.")
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Of these, the last that are looked at.",
)
@click.option(
    "--signal",
    type=click.Choice(["interactions", "coherent", "diverse"]),
    default="interactions",
    show_default=True,
    help="interactions: features that move the logit together belong together. coherent: those whose vectors are "
    "alike; diverse: those whose vectors are not.",
)
@click.option(
    "--uneven",
    type=click.FloatRange(min=0, max=1, max_open=True),
    default=0.15,
    show_default=True,
    help="How far features, bytes and lookups of a tower may be from an even share.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the search for clusters.")
@click.option("--out", type=Target, help="TOML file to write, with model.options.towers; else it is printed.")
@click.option(
    "--page", type=Target, help="HTML file to write: a picture of the pairs of features, and the towers' loads."
)
def plan(
    config: Path,
    overrides: Sequence[str],
    n_towers: int,
    steps: int,
    batches: int,
    signal: str,
    uneven: float,
    seed: int,
    out: Path | None,
    page: Path | None,
) -> None:
    """Train a DLRM on the data of the TOML file CONFIG for some steps, and print which features belong together.

    Runs on one rank; start it by 'hpcrec run', mpirun or srun for more. Nothing is saved but what --out and --page
    name. Features that share a table are in one tower.
    """
    from hpcrec.comm.start import start

    _refuse_files(out, page)
    rank = start(os.environ)
    from hpcrec.build.towers import plan_towers
    from hpcrec.data.files import write_text

    found = plan_towers(
        run_config(config, overrides),
        n_towers,
        steps=steps,
        batches=batches,
        signal=signal,  # type: ignore[arg-type]
        most_uneven=uneven,
        seed=seed,
    )
    if rank:
        return
    text = _toml(found, signal)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)
        click.echo(f"{out}: {n_towers} towers; put its lines into the configuration of the run.")
    for line in _told(found):
        click.echo(line, err=True)
    if page is not None:
        from hpcrec.report_page.towers import write_towers

        about = {"configuration": str(config), "signal": signal, "steps": str(found.steps), "seed": str(seed)}
        about["signal inside towers"] = _inside(found)
        about["less even than was asked for"] = found.found.reason
        write_towers(page, found.features, found.near_FF, found.towers, found.found.loads_TL, about)
        click.echo(f"{page}: the picture", err=out is None)


def check_plan(arguments: Sequence[str]) -> None:
    """Refuse a command line of ``hpcrec towers`` that every rank would refuse."""
    name, *rest = arguments or [""]
    if name != "plan":
        raise click.UsageError(f"'hpcrec run' starts towers plan on several ranks, not towers {name!r}.")
    given = plan.make_context("hpcrec towers plan", list(rest)).params
    _refuse_files(given["out"], given["page"])
    run_config(given["config"], given["overrides"])


def _refuse_files(out: Path | None, page: Path | None) -> None:
    """Refuses files that could not be written after the run."""
    for name, path in (("--out", out), ("--page", page)):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"{name} {path}: there is no folder {path.absolute().parent}. Make it first.")
    if out is not None and page is not None and out.absolute() == page.absolute():
        raise click.UsageError(f"--out and --page are both {out}. Give them files of their own.")


def _toml(found: "PlannedTowers", signal: str) -> str:
    """What a configuration has to have of them."""
    rows = "".join(f"    {json.dumps(tower, ensure_ascii=False)},\n" for tower in found.towers)
    return (
        f"# Found by hpcrec towers plan: signal {signal}, {found.steps} steps.\n"
        f'[model]\nname = "dmt_dlrm"\n\n[model.options]\ntowers = [\n{rows}]\n'
    )


def _told(found: "PlannedTowers") -> list[str]:
    """How even they are."""
    lines = []
    for number, (names, (_, n_bytes, ids)) in enumerate(zip(found.towers, found.found.loads_TL.tolist(), strict=True)):
        even = f"of an even share {100 * n_bytes:.0f} % of bytes, {100 * ids:.0f} % of lookups"
        lines.append(f"tower {number}: {len(names)} features; {even}")
    lines.append(f"signal of pairs of features inside towers: {_inside(found)}")
    return [*lines, *([f"They are less even than was asked for: {found.found.reason}."] if found.found.reason else [])]


def _inside(found: "PlannedTowers") -> str:
    """How much of the signal is inside towers, and could be."""

    def said(of: "Inside") -> str:
        return f"{100 * of.signal:.0f} %, of {100 * of.pairs:.0f} % of the pairs"

    own, free = found.inside, found.inside_any
    more = free.signal - free.pairs > own.signal - own.pairs + _MORE
    return said(own) + (f"; in towers of any loads it would be {said(free)} (raise --uneven)" if more else "")
