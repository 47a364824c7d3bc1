"""``hpcrec config``: checks and shows configurations, and prints the reference of their keys.

Knows options; keys and limits are ``config``'s, what else a run would refuse ``build.check``'s.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from hpcrec.cli.options import File, config_of, examples, set_option, system_option


@click.group("config", short_help="Check or show configurations; print the reference of keys.")
def config_group() -> None:
    """Look at configurations: check one, show it whole, or print the reference of all keys."""


@config_group.command(
    "check", short_help="Check a configuration.", epilog=examples("hpcrec config check my.toml --set train.steps=100")
)
@click.argument("config", type=File)
@system_option
@set_option
@click.option("-n", "ranks", type=click.IntRange(min=1), help="Ranks of the run; by default what [topology] counts.")
@click.option(
    "--reuse", "counted", type=File, help="What 'hpcrec data reuse --json' printed; by default few data are counted."
)
@click.option(
    "--samples-per-s",
    type=click.FloatRange(min=0, min_open=True),
    show_default="of an earlier run in run.folder",
    help="What the run handles with all rows in memory: what a disk costs is held against it.",
)
@click.option(
    "--reads-per-s",
    type=click.FloatRange(min=0, min_open=True),
    show_default="measured where store.path is",
    help="Random reads of a page that each host's disk gives.",
)
def config_check(
    config: Path,
    system: str | None,
    overrides: Sequence[str],
    ranks: int | None,
    counted: Path | None,
    samples_per_s: float | None,
    reads_per_s: float | None,
) -> None:
    """Check all of the TOML file CONFIG that can be known before a job waits in a queue for it.

    Its keys; its data sets, which have to be there and agree; its model, with its options, and its features; its
    dense optimizer, which is built; its roles on the ranks; the checkpoint that it would go on from. The last line is
    the verdict: that it is valid, or what is wrong, with status 2, or 1 where it is a file or a package that is wanted.
    Where several things are wrong that do not follow from each other, each has a line before it.

    Before it comes the memory that each rank will need (docs/memory.md), and with store.name = "disk" what is to be
    expected of the disk: reads and bytes a step, speed, space, writes a day, the memory that takes, and which tables
    should be whole (docs/tiers.md).
    """
    checked = config_of(config, overrides, system)
    on_disk = checked.store.name == "disk"
    if not on_disk and (counted is not None or samples_per_s is not None or reads_per_s is not None):
        raise click.UsageError(
            "--reuse, --samples-per-s and --reads-per-s are about rows on a disk, but store.name is "
            f"{checked.store.name!r}."
        )
    from hpcrec.build.check import check_run

    lines = check_run(checked, ranks)
    if on_disk:
        from hpcrec.build.tier_lines import tier_report

        lines += tier_report(checked, ranks, counted=counted, samples_per_s=samples_per_s, reads_per_s=reads_per_s)
    click.echo("\n".join([*lines, f"{config}: valid"]))


@config_group.command(
    "show", short_help="Print a configuration with every default.", epilog=examples("hpcrec config show my.toml")
)
@click.argument("config", type=File)
@system_option
@set_option
def config_show(config: Path, overrides: Sequence[str], system: str | None) -> None:
    """Print the TOML file CONFIG with every default, as a run folder's config.toml has it."""
    from hpcrec.config import to_toml

    click.echo(to_toml(config_of(config, overrides, system)), nl=False)


@config_group.command(
    "reference",
    short_help="Print every key and what is allowed.",
    epilog=examples("hpcrec config reference > docs/configuration.md"),
)
def config_reference() -> None:
    """Print every key with its default and what is allowed, as Markdown."""
    from hpcrec.config import reference

    click.echo(reference(), nl=False)
