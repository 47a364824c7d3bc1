"""Runs of ``benchmarks/dct.py``: one ``hpcrec train`` each, and what it says of quality and bytes.

Knows command lines and summaries alone.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _report import trained, write_config

ABLATED = Path(__file__).resolve().parent / "ablated.py"
CONFIG = Path(__file__).resolve().parent / "dct.toml"
MODELS = {
    "dlrm": ("model.name=dlrm", "model.options={bottom=[64], top=[128, 64]}"),
    "deepfm": ("model.name=deepfm", "model.options={hidden=[128, 64]}"),
}
CROSSING = ("values", "gradients", "control")  # tags of the exchange, but for ids, which are not compressed here
Row = dict[str, Any]


def train(
    data: Path,
    ranks: int,
    settings: Sequence[str],
    *,
    without: str | None = None,
    config: Path = CONFIG,
    eval_batches: int | None = None,
) -> Row:
    """One run: AUC and log-loss on test data, bytes a step of all ranks, and what compression tells of itself.

    Parameters
    ----------
    data : Path
        Folder of ``train.h5`` and ``test.h5``.
    ranks : int
    settings : sequence of str
        Beside those of ``config``.
    without : str, optional
        What is taken out of dense sums: see ``ablated``.
    config : Path
    eval_batches : int, optional
        Batches of the test data that are evaluated; all by default.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = write_config(folder, config.read_text().split("[run]")[0])
        begin = () if without is None else (str(ABLATED), without)
        files = (f"data.train={data}/train.h5", f"data.test={data}/test.h5")
        few = () if eval_batches is None else (f"train.eval_batches={eval_batches}",)
        summary = trained(written, ranks, *files, *few, *settings, begin=begin)
        row = {name: summary["eval"][name] for name in ("auc", "logloss")} | _bytes(summary)
        row["auc_unmasked"] = summary["eval"].get("unmasked_auc")  # where vectors are thresholded
    return row


def _bytes(summary: Row) -> Row:
    """A step's, of the exchange, of ids and of dense sums; shares of elements that crossed."""
    steps = summary["steps"]
    by_tag = {tag: sum(n.values()) / steps for tag, n in summary["wire_bytes"].items()}
    return {
        "steps": steps,
        "exchange_bytes": sum(by_tag[tag] for tag in CROSSING),
        "id_bytes": by_tag["ids"],
        "dense_bytes": by_tag["dense"],
        "exchange_density": summary["exchange_thresholds"].get("density", 1.0),
        "dense_density": summary["dense_compression"].get("density", 1.0),
        "step_ms": summary["throughput"]["step_ms"]["p50"],
    }
