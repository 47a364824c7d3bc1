"""The Python interface in a real kernel of Jupyter: cells, their errors, an interrupt from outside, Tab."""

import textwrap
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

LIMIT_S = 120.0


class Notebook:
    """Cells of one kernel, run one after the other."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def cell(self, code: str, seen: Callable[[str], object] = lambda text: None) -> tuple[str, str]:
        """What a cell wrote, and the name of its error or ""; ``seen`` is told of all that it has written so far."""
        asked = self.client.execute(textwrap.dedent(code), allow_stdin=False)
        text, error = "", ""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=LIMIT_S)
            except Empty:
                raise AssertionError(f"a cell says nothing for {LIMIT_S:.0f} s after: {text}") from None
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "error":
                error = content["ename"]
                text += "\n".join(content["traceback"][-1:])
            elif message["msg_type"] == "stream":
                text += content["text"]
                seen(text)
            elif content.get("execution_state") == "idle":
                return text, error

    def run(self, code: str) -> str:
        """What a cell wrote that ends well."""
        text, error = self.cell(code)
        assert not error, (error, text)
        return text


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel in a folder of its own, which has a small data set, a model of its own and a way to train it."""
    manager, client = start_new_kernel(startup_timeout=LIMIT_S, cwd=str(tmp_path_factory.mktemp("notebook")))
    try:
        made = Notebook(manager, client)
        made.run(SETTING)
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


SETTING = """
    import numpy as np
    import pyarrow as pa
    from torch import nn

    import hpcrec
    from hpcrec.models import block_operators

    rng = np.random.default_rng(0)
    table = pa.table({"click": rng.integers(0, 2, 400), "item": rng.integers(0, 40, 400)})
    data = hpcrec.prepare(table, "data", labels="click", sparse={"item": {"rows": 40}})

    class Linear(nn.Module):
        def __init__(self, features, n_dense, *, width, n_labels=1):
            super().__init__()
            self.operators = block_operators(features, width)
            self.top = nn.Linear(len(features) * width, n_labels)

        def forward(self, inputs, dense):
            return self.top(inputs["block"].flatten(1)).squeeze(1)

    class Tells:
        def on_step(self, step, line):
            print(f"after step {step}", flush=True)

    def train(folder, steps=6, data=data, **more):
        return hpcrec.train(
            data=data.files, model={"name": Linear, "width": 4}, run={"folder": folder, "progress": False},
            train={"batch_size": 64, "steps": steps, "log_every": 2}, **more,
        )
"""


def test_a_cell_trains_a_model_of_the_notebook(notebook: Notebook) -> None:
    said = notebook.run("""
        run = train("runs/one")
        found = hpcrec.load(run, model=Linear).predict(table)
        print(run.status, 0 <= run.metrics["auc"] <= 1, len(found), Linear.__module__)
    """)
    assert said.splitlines()[-1] == "finished True 400 __main__"


def test_an_error_is_the_cell_s_and_the_next_one_runs(notebook: Notebook) -> None:
    assert notebook.cell('hpcrec.train(data={"train": "absent.h5"}, run={"folder": "runs/none"})')[1] == "DataError"
    assert notebook.cell('hpcrec.train(data=data.files, model={"name": "dlmr"})')[1] == "ConfigError"
    assert notebook.run('print(train("runs/two").status)').splitlines()[-1] == "finished"


def test_an_interrupt_stops_a_run_with_a_checkpoint_and_the_kernel_lives(notebook: Notebook) -> None:
    pressed: list[str] = []

    def press(text: str) -> None:
        if "after step 4" in text and not pressed:
            pressed.append(text)
            notebook.manager.interrupt_kernel()

    notebook.run("kept = np.arange(3)")
    said, error = notebook.cell('run = train("runs/long", steps=1_000_000, callbacks=[Tells()])', press)
    assert pressed and not error, (said, error)
    assert notebook.run("steps = run.summary['steps']; print(run.status, steps >= 4, kept.sum())") == "stopped True 3\n"
    again = notebook.run("""
        import signal

        class Stops:
            def on_step(self, step, line):
                if step == steps // 2 * 2 + 4:
                    signal.raise_signal(signal.SIGINT)

        more = train("runs/long", steps=1_000_000, callbacks=[Stops()])
        print(more.status, more.summary["steps"] > steps)
    """)
    assert again.splitlines()[-1] == "stopped True"


def test_ranks_run_a_function_of_the_notebook(notebook: Notebook) -> None:
    said = notebook.run("""
        def square(n):
            from mpi4py import MPI
            return n * MPI.COMM_WORLD.rank ** 2

        print(hpcrec.launch(square, 3, ranks=2))
    """)
    assert said.splitlines()[-1] == "[0, 3]"


def test_a_run_tells_of_its_steps_in_whole_lines(notebook: Notebook) -> None:
    said = notebook.run("""
        hpcrec.train(data=data.files, model={"name": Linear, "width": 4}, run={"folder": "runs/bar"},
                     train={"batch_size": 64, "steps": 6, "log_every": 2});
    """)
    assert "\r" not in said and "step 6 of 6, loss " in said and "test auc" in said
    assert max(map(len, said.splitlines())) <= 200, said


@pytest.mark.parametrize(
    ("typed", "there", "not_there"),
    [
        ("hpcrec.", {"train", "prepare", "load", "launch", "open_session", "Session"}, {"TYPE_CHECKING", "Any"}),
        ("run.", {"history", "metrics", "summary", "status", "folder", "config"}, set()),
    ],
)
def test_tab_completes_public_names(notebook: Notebook, typed: str, there: set[str], not_there: set[str]) -> None:
    reply: Any = notebook.client.complete(typed, len(typed), reply=True, timeout=LIMIT_S)
    found = {match.rpartition(".")[2] for match in reply["content"]["matches"]}
    assert there <= found and not not_there & found, sorted(found)
