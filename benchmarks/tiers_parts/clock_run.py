"""One run on a clock: ``python clock_run.py CONFIG.json FIRST`` prints what its steps from number FIRST on have taken.

And how many pages a second the disk gives to this process, just before. Knows a configuration; judges nothing.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from hpcrec.build.session import open_session
from hpcrec.build.tier_lines import Disk, measured
from hpcrec.config import Config, validate


def main() -> None:
    about = json.loads(Path(sys.argv[1]).read_text())
    config, first = validate(about["config"], "clock"), int(sys.argv[2])
    disk = measured(Path(about["folder"]), about["pages"]) if about["pages"] else None
    if isinstance(disk, str):
        sys.exit(disk)
    print(json.dumps({**_run(config, first), **({} if disk is None else _of(disk))}), flush=True)


def _run(config: Config, first: int) -> dict[str, Any]:
    began_s = cpu_s = reads = pages = 0.0
    with open_session(config) as session:
        store = session.parts.store
        assert store is not None
        for step in session.steps():
            if step.number == first:
                began_s, cpu_s, reads = time.perf_counter(), time.process_time(), _reads(store.figures())
                pages = store.figures().get("disk_pages_read", 0.0)
            step.run()
        steps = config.train.steps or 0
        wall_s, cpu_s, reads = (
            time.perf_counter() - began_s,
            time.process_time() - cpu_s,
            _reads(store.figures()) - reads,
        )
        pages = store.figures().get("disk_pages_read", 0.0) - pages
    n = steps - first
    return {"step_s": wall_s / n, "cpu_s": cpu_s / n, "reads": reads / n, "pages": pages / n}


def _reads(figures: dict[str, float]) -> float:
    return figures.get("disk_reads_a_step", 0.0) * figures.get("disk_steps", 0.0)


def _of(disk: Disk) -> dict[str, Any]:
    return {"reads_per_s": {str(size): n for size, n in disk.reads_per_s.items()}, "page_cpu_s": disk.page_cpu_s}


if __name__ == "__main__":
    main()
