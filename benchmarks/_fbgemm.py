"""FBGEMM's CPU tables as a peer process: times one forward and one backward with update whenever it is asked to.

    PYTHON benchmarks/_fbgemm.py FOLDER THREADS ROWS,ROWS,...

Run by any Python that has torch and fbgemm_gpu; imports nothing of hpcrec. FOLDER holds ids.npy, int64 [tables, batch,
pooling], and gradients.npy, float32 [batch, tables x width]. Each line on standard input runs one step and answers
with a line: milliseconds of the forward, milliseconds of the backward with row-wise Adagrad. The first line written
names the versions.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from fbgemm_gpu.split_embedding_configs import EmbOptimType  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (  # noqa: E402
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)


def main() -> None:
    folder, threads, rows = Path(sys.argv[1]), int(sys.argv[2]), [int(n) for n in sys.argv[3].split(",")]
    torch.set_num_threads(threads)
    ids_TBL = np.load(folder / "ids.npy")
    gradient = torch.from_numpy(np.load(folder / "gradients.npy"))
    width = gradient.shape[1] // len(rows)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.02,
        eps=1e-8,
        stochastic_rounding=False,
    )
    tables.init_embedding_weights_uniform(-0.01, 0.01)
    ids = torch.from_numpy(ids_TBL.reshape(-1))
    offsets = torch.arange(0, ids.numel() + 1, ids_TBL.shape[2])

    def step() -> tuple[float, float]:
        start = time.perf_counter()
        pooled = tables(ids, offsets)
        middle = time.perf_counter()
        pooled.backward(gradient)
        return (middle - start) * 1e3, (time.perf_counter() - middle) * 1e3

    for _ in range(2):
        step()
    print("ready torch", torch.__version__, flush=True)
    for _ in sys.stdin:
        print(*step(), flush=True)


main()
