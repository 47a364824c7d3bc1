"""What another process finds before ranks start; and that ranks start where it cannot tell."""

import os
import time

import pytest

from hpcrec.cli import before
from hpcrec.errors import CombinedError, ConfigError, DataError, UnreadableError


def test_an_error_of_the_other_process_is_raised_here() -> None:
    def refuse() -> None:
        raise CombinedError("two", [ConfigError("one"), DataError(f"not {os.getpid()}")])

    with pytest.raises(CombinedError, match="two") as caught:
        before._look(refuse)
    first, second = caught.value.each
    assert (type(first), str(first), type(second)) == (ConfigError, "one", DataError)
    assert str(second).startswith("not ") and str(second) != f"not {os.getpid()}"


def test_a_process_that_cannot_tell_refuses_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def unreadable() -> None:
        raise UnreadableError("just now")

    def broken() -> None:
        print("for nobody")
        raise ValueError("a model that wants a rank")

    for at in (unreadable, broken, lambda: os._exit(1), lambda: None):
        before._look(at)
    assert capfd.readouterr() == ("", "")


def test_a_process_that_waits_for_ever_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "LIMIT_S", 0.2)
    began_s = time.monotonic()
    before._look(lambda: time.sleep(60))
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize(
    ("hostfile", "options", "environment", "here"),
    [
        (None, (), {}, True),
        ("hosts", (), {}, False),
        (None, ("--host a,b",), {}, False),
        (None, ("-H a,b",), {}, False),
        (None, ("--machinefile", "m"), {}, False),
        (None, ("--nodelist=n1",), {}, False),
        (None, (), {"PRTE_MCA_prte_default_hostfile": "m"}, False),
        (None, ("--bind-to core",), {}, True),
        (None, (), {"SLURM_JOB_ID": "7"}, False),
        (None, (), {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, True),
        (None, (), {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_JOB_NUM_NODES": "2"}, False),
    ],
)
def test_where_ranks_will_be(
    hostfile: str | None, options: tuple[str, ...], environment: dict[str, str], here: bool
) -> None:
    assert before.ranks_are_here(hostfile, options, environment) is here
