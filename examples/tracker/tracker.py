"""A callback that keeps runs in an SQLite file: their numbers as they come, and how they ended."""

import sqlite3
import sys
from pathlib import Path

import hpcrec


class SqliteTracker:
    """Tells one run's story to ``path``, under ``name``; what the file has of steps that come anew is replaced."""

    def __init__(self, path, name):
        self.name = name
        self.file = sqlite3.connect(path)
        self.file.execute("create table if not exists numbers (run, step, name, value)")
        self.file.execute("create table if not exists runs (run, status, steps, checkpoint)")
        self.checkpoint = None

    def on_begin(self, step):
        """Forgets how the run ended before, and its numbers past the step that it goes on after: all, of a new run."""
        with self.file:
            self.file.execute("delete from numbers where run = ? and step > ?", (self.name, step or -1))
            self.file.execute("delete from runs where run = ?", (self.name,))

    def on_step(self, step, line):
        """Keeps the numbers of a line of metrics.jsonl."""
        rows = [(self.name, step, key, value) for key, value in line.items() if isinstance(value, int | float)]
        with self.file:
            self.file.executemany("insert into numbers values (?, ?, ?, ?)", rows)

    on_evaluation = on_step

    def on_checkpoint(self, step, folder):
        """Keeps where the newest checkpoint is."""
        self.checkpoint = f"{folder} (step {step})"

    def on_end(self, summary):
        """Keeps how the run ended."""
        row = (self.name, summary["status"], summary["steps"], self.checkpoint)
        with self.file:
            self.file.execute("insert into runs values (?, ?, ?, ?)", row)


def main(data, folder):
    tracker = SqliteTracker(f"{folder}.sqlite", "first")
    hpcrec.train(
        callbacks=[tracker],
        data={"train": data / "train.h5", "validation": data / "validation.h5"},
        model={"width": 8, "options": {"bottom": [16], "top": [16]}},
        train={"batch_size": 512, "steps": 20, "log_every": 5, "eval_every": 10},
        run={"folder": folder, "progress": False},
    )
    for row in tracker.file.execute("select step, value from numbers where name = 'loss' order by step"):
        print(*row)
    print(*tracker.file.execute("select * from runs").fetchone())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
