"""What does not go with several steps in flight. Knows a policy and a layout; knows no configuration."""

from hpcrec.errors import ConfigError
from hpcrec.exchange.layout import Layout
from hpcrec.policy.policy import Policy


def refuse(policy: Policy, name: str, layout: Layout, *, cached: bool, changes: bool) -> None:
    """Refuses what does not go with several steps in flight; on every rank alike.

    Parameters
    ----------
    policy : Policy
    name : str
        As the configuration has it.
    layout : Layout
    cached : bool
        Rows may be cached in a GPU's memory.
    changes : bool
        Forms may be changed between steps.

    Raises
    ------
    ConfigError
    """
    if policy.in_flight == 1:
        return
    why = f"policy.name is {name!r}, under which up to {policy.in_flight} steps are in flight, but "
    if layout.away:
        raise ConfigError(
            f"{why}under form 'partial' owners would train dense parameters of {', '.join(layout.substituted)}, and "
            "use them as they were some steps ago: dense parameters are always current. Set exchange.form = 'pooled'."
        )
    if cached:
        raise ConfigError(f"{why}store.memory_bytes caches rows of one step at a time. Remove one of them.")
    if any(family.dynamic is not None for family in layout.families):
        raise ConfigError(
            f"{why}rows of dynamic tables may be given to other ids between a read and its update. Set policy.name = "
            "'sync', or leave out embedding.tables.<table>.dynamic."
        )
    if changes:
        raise ConfigError(f"{why}exchange.auto_every changes forms between steps. Set exchange.auto_every = 0.")
