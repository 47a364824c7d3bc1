"""Trains the quickstart over 2 owners + 2 dense ranks: its AUC against what is attainable, and what routing costs.

    python benchmarks/quickstart.py [--quick] [--json FILE]

Each launch is ``hpcrec run -n 4 -- train examples/quickstart/config.toml`` on data that is prepared first; --quick
trains once. ``hidden`` is the share of the routing time of dense ranks in which the step did not wait for it.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from _report import ROOT, claim, finish, hpcrec, options, repeated

LAUNCHES = 3


def main() -> None:
    arguments = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hpcrec("prepare", "synthetic", "--out", str(folder / "data"))
        dlrm = [train(folder, f"dlrm-{i}") for i in range(1 if arguments.quick else LAUNCHES)]
        lr = train(folder, "lr", "model.name=lr", "model.options={}", "embedding.optimizer.lr=0.1")
    rows = [*dlrm, lr]
    for row in rows:
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items()))
    shares, hidden, speed = ([row[key] for row in dlrm] for key in ("share", "hidden", "samples_per_s"))
    finish(
        "quickstart",
        rows,
        [
            repeated("quickstart.auc_share", shares, "of attainable (AUC - 0.5)", ">= 0.97"),
            claim("quickstart.lr_share", lr["share"], "of attainable (AUC - 0.5), LR", "<= 0.9"),
            repeated("quickstart.route_hidden", hidden, "of routing time", ">= 0.8"),
            repeated("quickstart.samples_per_s", speed, "samples/s"),
        ],
        arguments.json,
    )


def train(folder: Path, name: str, *settings: str) -> dict[str, Any]:
    """One run; what its summary says."""
    paths = [f"data.{part}={folder}/data/{part}.h5" for part in ("train", "validation", "test")]
    run = folder / name
    every = [*paths, f"run.folder={run}", "run.progress=false", "run.tensorboard=false", *settings]
    config = str(ROOT / "examples/quickstart/config.toml")
    hpcrec("run", "-n", "4", "--", "train", config, *(word for text in every for word in ("--set", text)))
    summary = json.loads((run / "summary.json").read_text())
    found, phase_s = summary["eval"], summary["phase_s"]
    return {
        "run": name,
        "auc": found["auc"],
        "attainable_auc": found["attainable_auc"],
        "share": (found["auc"] - 0.5) / (found["attainable_auc"] - 0.5),
        "hidden": 1 - (phase_s["route_wait"] + phase_s.get("evaluate/route_wait", 0.0)) / phase_s["route"],
        "samples_per_s": summary["throughput"]["samples_per_s"],
        "step_ms_p50": summary["throughput"]["step_ms"]["p50"],
    }


if __name__ == "__main__":
    main()
