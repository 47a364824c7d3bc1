"""The stages that messages may pass between owners and dense ranks, by name: each a class, and a line here."""

from hpcrec.exchange.stages.stage import Stage

STAGES: dict[str, type[Stage]] = {}
