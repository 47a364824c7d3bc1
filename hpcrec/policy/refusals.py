"""What a policy may not ask for, and what does not go with several steps in flight. Knows a policy and a layout."""

from hpcrec.errors import ConfigError
from hpcrec.exchange.layout import Layout
from hpcrec.policy.policy import Policy


def refuse(policy: Policy, name: str, layout: Layout) -> None:
    """Refuses what the pipeline does not run, and what does not go with several steps in flight; on every rank alike.

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
        if hasattr(policy, "events") or getattr(policy, "parts", False):
            raise ConfigError(
                f"policy.name is {name!r}, which has an order of its own (events, parts) and one step in flight, where "
                "a step is read and learned as the model asks for it. Let in_flight be 2 or more, or leave both out."
            )
        return
    keeps = getattr(policy, "form", None)
    others = [feature for feature in layout.conditional if layout.form_of[feature] != keeps]
    if others:
        raise ConfigError(
            f"policy.name is {name!r}, under which up to {policy.in_flight} steps are in flight, but features "
            f"{', '.join(others)} have a form whose rows dense ranks keep: what a copy may lack is counted in steps "
            "that are done. Set policy.name = 'sync', or another form."
        )
    dynamic = [feature for feature in layout.conditional if layout.family_of[feature].dynamic is not None]
    if dynamic:
        raise ConfigError(
            f"policy.name is {name!r} with a lookahead, but tables of {', '.join(dynamic)} are dynamic: an id may lose "
            "its row between the ask and the step, while copies of the row are read. Set policy.lookahead = 0."
        )
    why = f"policy.name is {name!r}, under which up to {policy.in_flight} steps are in flight, but "
    if len(layout.away) > len(layout.staged):
        raise ConfigError(
            f"{why}under form 'partial' owners would train dense parameters of {', '.join(layout.substituted)}, and "
            "use them as they were some steps ago: dense parameters are always current. Set exchange.form = 'pooled'."
        )
