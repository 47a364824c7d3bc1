"""What the commands of ``hpcrec`` have in common: arguments and options, and examples in help texts."""

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcrec.errors import ConfigError
from hpcrec.systems import SYSTEMS

if TYPE_CHECKING:
    from hpcrec.config import Config

F = TypeVar("F", bound=Callable[..., Any])

HELP = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP, "max_content_width": 100}


def examples(*lines: str) -> str:
    """Command lines for the end of a help text, kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


File = click.Path(exists=True, dir_okay=False, path_type=Path)
Target = click.Path(dir_okay=False, path_type=Path)
Anything = click.Path(exists=True, path_type=Path)
EXPORT = "export.json"  # of an export, in its folder
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # what they say how many ranks there are in
_HDF5, _DATA_SET = b"\x89HDF\r\n\x1a\n", (".h5", ".hdf5", ".json")  # its first bytes, and how names end
_UNSET = "hpcrec.unset"  # where what --unset took waits for --set, which hands both on


def _keep_unset(context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> None:
    context.meta[_UNSET] = given


def _overrides(context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """What ``load_config`` takes of --unset and --set."""
    unset = context.meta.pop(_UNSET, ())
    if not unset:
        return tuple(given)
    from hpcrec.config import Unset

    return (*map(Unset, unset), *given)


def set_option(command: F) -> F:
    """--set and --unset, as the parameter ``overrides``."""
    for option in (
        click.option(
            "--unset",
            multiple=True,
            metavar="A.B",
            is_eager=True,
            expose_value=False,
            callback=_keep_unset,
            help="Take a key out of the configuration, so that its default holds, before any --set; repeatable.",
        ),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="A.B=VALUE",
            callback=_overrides,
            help="Change a key of the configuration; repeatable.",
        ),
    ):
        command = option(command)
    return command


def words_of(overrides: Sequence[str]) -> tuple[str, ...]:
    """The command line by which ``set_option`` gives the same again."""
    from hpcrec.config import Unset

    return tuple(word for one in overrides for word in ("--unset" if isinstance(one, Unset) else "--set", str(one)))


def _pairs(_context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> list[tuple[str, str]]:
    """FOLDER=COPY taken apart, both absolute."""
    found = []
    for text in given:
        folder, equals, copy = text.rpartition("=")  # a folder may be named day=3
        if not (folder and equals and copy):
            raise click.BadParameter(f"{text!r} is not FOLDER=COPY.")
        found.append((str(Path(folder).absolute()), str(Path(copy).absolute())))
    return found


data_copy_option = click.option(
    "--data-copy",
    "copies",
    multiple=True,
    metavar="FOLDER=COPY",
    callback=_pairs,
    help="Read the data sets in FOLDER from COPY, a folder of the same files on each node; repeatable. The run folder "
    "remembers FOLDER.",
)
checkpoint_option = click.option(
    "--checkpoint",
    default="best",
    show_default=True,
    metavar="best|last|PATH",
    help="Which checkpoint of the run; best is the last one where none was marked.",
)


class WithKeys(click.Command):
    """A command on ranks, of a configuration: says what to write for an option that is a key, or the launcher's."""

    RANKS = ("-n", "-np", "--np", "--ranks")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of any command; an option that is not there is refused with what was meant by it."""
        given = list(args)  # which parsing takes apart
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = self._meant(error.option_name, given)
            if meant is None:
                raise
            raise click.UsageError(f"{error.format_message().rstrip('.')}: {meant}", ctx) from error

    def _meant(self, option: str, given: list[str]) -> str | None:
        from hpcrec.config import keys_named

        at = next(number for number, word in enumerate(given) if word.startswith(option))
        name, equals, value = given[at].partition("=")
        after = given[at + 1 :]
        if not equals:
            value, after = (after[0], after[1:]) if after else ("VALUE", after)
        if name in self.RANKS:
            words = shlex.join([str(self.name), *given[:at], *after])
            return f"{self.name} is one rank by itself. Write: hpcrec run -n {value} -- {words}"
        keys = keys_named(name.lstrip("-").replace("-", "_"))
        return f"keys are set by --set. Write: {' or '.join(f'--set {key}={value}' for key in keys)}" if keys else None


class WithFiles(click.Command):
    """A command whose options of files, --validation and --test, take all files up to the next option.

    So a shell may expand a pattern there: with one file an option, the others would be taken for training data.
    """

    OPTIONS = ("--validation", "--test")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The option is repeated for each file; without one it stays as it is, for click to refuse."""
        spread, option, has_files = list[str](), "", True
        for arg in args:
            if not arg.startswith("-"):
                spread += [option, arg] if option else [arg]
                has_files = True
                continue
            spread += [] if has_files else [option]
            option, has_files = (arg, False) if arg in self.OPTIONS else ("", True)
            spread += [] if option else [arg]
        return super().parse_args(ctx, spread if has_files else [*spread, option])


def parts_options(command: F) -> F:
    """Files of their own for validation and test; of a `WithFiles`."""
    for name in WithFiles.OPTIONS[::-1]:
        told = f"Files of their own for {name[2:]}, up to the next option; FILES are then for training alone."
        command = click.option(name, name[2:], type=File, multiple=True, metavar="FILE...", help=told)(command)
    return command


system_option = click.option(
    "--system",
    type=click.Choice(list(SYSTEMS)),
    help="Start from the recipe of a published system (hpcrec/systems): its keys hold where CONFIG has no others.",
)


def config_of(path: Path, overrides: Sequence[str], system: str | None = None) -> "Config":
    """The configuration of a file, from the recipe of a system on."""
    from hpcrec.config import load_config

    if system is None:
        return load_config(path, overrides)
    return load_config(path, overrides, recipe=SYSTEMS[system](), recipe_source=f"--system {system}")


def is_table(path: Path) -> bool:
    """Whether a file is a table: text, Parquet or Arrow. By its name, or its first bytes, a data set is none."""
    if path.suffix.lower() in _DATA_SET:
        return False
    with path.open("rb") as file:
        return file.read(len(_HDF5)) != _HDF5


def run_config(path: Path, overrides: Sequence[str]) -> "Config":
    """The configuration of a run folder, or a file's."""
    from hpcrec.config import load_config

    if path.is_dir() and not (path / "config.toml").is_file():
        raise ConfigError(f"{path}: has no config.toml, so it is no run folder. Give a run.folder, or a TOML file.")
    if not path.is_dir():
        return load_config(path, overrides)
    config = load_config(path / "config.toml", overrides)
    if any(override.split("=")[0].strip() == "run.folder" for override in overrides):
        return config
    # The folder may have been moved, or be a copy, since the run wrote where it was.
    return dataclasses.replace(config, run=dataclasses.replace(config.run, folder=str(path.absolute())))
