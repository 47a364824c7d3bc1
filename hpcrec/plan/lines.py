"""Predicted memory as text. Knows terms, not what they are of."""

from collections.abc import Mapping

from hpcrec.plan.memory import RankMemory
from hpcrec.units import format_bytes


def lines_of(role: str, predicted: Mapping[int, RankMemory]) -> list[str]:
    """A line on the ranks of one role, by world rank: the largest of them; and one on its GPU, if it has rows there."""
    worst = max(predicted, key=lambda rank: predicted[rank].total_bytes)
    ranks_text = f"rank {worst}" + (f", the most of {len(predicted)}" if len(predicted) > 1 else "")
    gpu_terms = predicted[worst].gpu_terms
    return [
        f"{role} ({ranks_text}): {_sum_text(predicted[worst].terms)}",
        *([f"{role}, on its GPU: {_sum_text(gpu_terms)}"] if gpu_terms else []),
    ]


def _sum_text(terms: Mapping[str, int]) -> str:
    """The sum, and each term that is not 0, the largest first."""
    shown = ", ".join(f"{name} {format_bytes(n)}" for name, n in sorted(terms.items(), key=lambda i: -i[1]) if n)
    return f"{format_bytes(sum(terms.values()))}: {shown}"
