"""What does not go with several steps in flight. Knows a policy and a layout; knows no configuration."""

from hpcrec.errors import ConfigError
from hpcrec.exchange.layout import Layout
from hpcrec.policy.policy import Policy


def refuse(policy: Policy, name: str, layout: Layout) -> None:
    """Refuses what does not go with several steps in flight; on every rank alike.

    Parameters
    ----------
    policy : Policy
    name : str
        As the configuration has it.
    layout : Layout

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
