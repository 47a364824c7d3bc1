"""Forty mistakes that users make in their first hour, and what each message has to say.

Written down before the messages were: what is expected here follows from what the user did, not from what was said
about it. They are those found by use, and those that users of comparable libraries ask about; ``asked`` says where.
Knows no messages but the pieces that they must have; ``ground`` has the files, ``caught`` tries the mistakes.
"""

from dataclasses import dataclass, field

RUN = ("run", "-n", "2", "--", "train", "{folder}/run.toml")
CONVERT = ("prepare", "table", "--map", "{folder}/map.toml", "--out", "{folder}/new", "--restart")
VALUES = "values are known once they are read; `hpcrec data verify` reads them all without training"
LINES = "lines are known once they are read, which is what the command does; it trains nothing"
THERE = "the launcher has started the processes before hpcrec begins"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake.

    Attributes
    ----------
    did : str
        What the user did, in words.
    asked : str
        Where users have shown it: ``repository#issue``, or "use" where it was found by using hpcrec.
    names, found, write : tuple of str
        Pieces that the message must have: the key, option or column that it is about; what was found there; what to
        write instead. ``{folder}`` and ``{home}`` stand for where the files are and for the home folder.
    status : int
        Exit status that docs/bad_input.md gives.
    later : str
        Why it is not known before ranks start; empty where it is, and then none may have been started.
    command : tuple of str
        Words after ``hpcrec``.
    script : str
        Lines of Python instead of a command.
    run, map : tuple of (str, str)
        Changes of the text of run.toml and map.toml, which are right without.
    """

    did: str
    asked: str
    names: tuple[str, ...]
    found: tuple[str, ...]
    write: tuple[str, ...]
    status: int = 2
    later: str = ""
    command: tuple[str, ...] = RUN
    script: str = ""
    run: tuple[tuple[str, str], ...] = ()
    map: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    here: bool = False
    """Whether it is known on the ranks' own host alone, which ``config check`` need not be run on."""
    elsewhere: bool = False
    """Whether it is run in another folder than that of the files."""

    @property
    def trains(self) -> tuple[str, ...] | None:
        """What follows ``train`` where it is to be started on ranks: ``config check`` is then asked the same."""
        trains = not self.script and self.command[0] == "run" and self.command[4] == "train"
        return self.command[5:] if trains and not self.here else None

    @property
    def on_ranks(self) -> bool:
        """Whether ranks are really started, since it is they who find it."""
        return self.later == VALUES


MISTAKES: dict[str, Mistake] = {
    # ---- run.toml ----------------------------------------------------------------------------------------------------
    "a key misspelt": Mistake(
        did="`batchsize` for `batch_size`",
        asked="RUCAIBox/RecBole#949",
        run=(("batch_size = 64", "batchsize = 64"),),
        names=("train.batchsize",),
        found=("64",),
        write=("Did you mean train.batch_size?",),
    ),
    "a number in quotes": Mistake(
        did='`lr = "0.01"`',
        asked="meta-pytorch/torchrec#2953",
        run=(("lr = 0.01", 'lr = "0.01"'),),
        names=("dense.optimizer.lr",),
        found=('"0.01"',),
        write=("a number", "without quotes"),
    ),
    "a key in another section": Mistake(
        did="`lr` in `[train]`",
        asked="meta-pytorch/torchrec#2953",
        run=(("batch_size = 64", "batch_size = 64\nlr = 0.01"),),
        names=("train.lr",),
        found=("0.01",),
        write=("embedding.optimizer.lr", "dense.optimizer.lr"),
    ),
    "an option of another model": Mistake(
        did="`bottom`, an option of dlrm's, for deepfm",
        asked="meta-pytorch/torchrec#1057",
        run=(("hidden = [8]", "bottom = [8]"),),
        names=("model.options",),
        found=("'bottom'",),
        write=("hidden",),
    ),
    "text without quotes": Mistake(
        did="`name = deepfm`",
        asked="use",
        run=(('name = "deepfm"', "name = deepfm"),),
        names=("run.toml", "line 6"),
        found=("name = deepfm",),
        write=("takes quotes",),
    ),
    "an early stop without validation data": Mistake(
        did="`train.early_stop` without `data.validation`",
        asked="jeongyoonlee/Kaggler#37",
        run=(
            ('validation = "{folder}/data/validation.h5"\n', ""),
            ("batch_size = 64", "batch_size = 64\neval_every = 2\nearly_stop = { patience = 2 }"),
        ),
        names=("train.early_stop",),
        found=("data.validation",),
        write=("Set data.validation",),
    ),
    "a metric misspelt": Mistake(
        did='`metrics = ["AUC"]`',
        asked="RUCAIBox/RecBole#1440",
        run=(("[run]", '[evaluation]\nmetrics = ["AUC"]\n[run]'),),
        names=("evaluation.metrics",),
        found=("AUC",),
        write=('Did you mean "auc"?',),
    ),
    "a feature that the data lacks": Mistake(
        did='`features = ["user", "items"]`',
        asked="meta-pytorch/torchrec#3305",
        run=(("[model]", 'features = ["user", "items"]\n[model]'),),
        names=("data.features",),
        found=("'items'",),
        write=("Did you mean 'item'?",),
    ),
    "any ids without a dynamic table": Mistake(
        did='a feature of `ids = "raw"` whose table is not declared dynamic',
        asked="meta-pytorch/torchrec#575",
        run=(("{folder}/data/", "{folder}/raw/"),),
        names=("user",),
        found=("cardinality",),
        write=("embedding.tables.user.dynamic",),
    ),
    "roles for other ranks": Mistake(
        did="2 owners and 2 dense ranks on 8 ranks",
        asked="horovod/horovod#2090",
        run=(("[run]", '[topology]\nmode = "split"\nowners = 2\ndense = 2\n[run]'),),
        command=("run", "-n", "8", "--", "train", "{folder}/run.toml"),
        names=("topology.owners", "topology.dense"),
        found=("8 ranks",),
        write=("hpcrec run -n 4",),
    ),
    "a GPU that is not there": Mistake(
        did='`dense.device = "cuda"` on a host without a GPU',
        asked="mit-han-lab/once-for-all#19",
        run=(('reducer = "mpi"', 'reducer = "mpi"\ndevice = "cuda"'),),
        environment={"CUDA_VISIBLE_DEVICES": ""},
        status=1,
        here=True,
        names=("dense.device",),
        found=("cuda", "no GPU"),
        write=("dense.device = 'cpu'",),
    ),
    "Horovod that is not there": Mistake(
        did='`reducer = "horovod"` where Horovod is not installed',
        asked="horovod/horovod#2589",
        run=(('reducer = "mpi"', 'reducer = "horovod"'),),
        absent=("horovod",),
        status=1,
        names=("dense.reducer",),
        found=("horovod", "cannot be imported"),
        write=("dense.reducer = 'mpi'",),
    ),
    # ---- files -------------------------------------------------------------------------------------------------------
    "a file that is not there": Mistake(
        did="`trian.h5` for `train.h5`",
        asked="facebookresearch/dlrm#352",
        run=(("data/train.h5", "data/trian.h5"),),
        status=1,
        names=("data.train",),
        found=("{folder}/data/trian.h5",),
        write=("Did you mean {folder}/data/train.h5?",),
    ),
    "a path from another folder": Mistake(
        did='`train = "data/train.h5"`, started in another folder than the file\'s',
        asked="RUCAIBox/RecBole#949",
        run=(('train = "{folder}/', 'train = "'),),
        elsewhere=True,
        status=1,
        names=("data.train",),
        found=("data/train.h5", "{folder}/elsewhere"),
        write=("{folder}/data/train.h5",),
    ),
    "a path with ~": Mistake(
        did='`train = "~/data/train.h5"`',
        asked="use",
        run=(('train = "{folder}/', 'train = "~/'),),
        status=1,
        names=("data.train",),
        found=("~/data/train.h5",),
        write=("{home}/data/train.h5",),
    ),
    "a table for a data set": Mistake(
        did='`train = "clicks.csv"`, a table that was not prepared',
        asked="shenweichen/DeepCTR-Torch#202",
        run=(("data/train.h5", "clicks.csv"),),
        status=1,
        names=("data.train",),
        found=("{folder}/clicks.csv",),
        write=("hpcrec prepare table",),
    ),
    "a data set of another vocabulary": Mistake(
        did="training and validation data that were prepared one by one",
        asked="use",
        run=(("data/validation.h5", "other/validation.h5"),),
        names=("data.validation", "data.train", "'user'"),
        found=("cardinality",),
        write=("Prepare both in one go",),
    ),
    "a run folder of another model": Mistake(
        did="`width = 8` in the folder of a run with `width = 4`",
        asked="horovod/horovod#1382",
        run=(("width = 4", "width = 8"),),
        status=1,
        names=("model.width",),
        found=("8", "4"),
        write=("run.folder", "checkpoint.resume = 'never'"),
    ),
    "a negative id": Mistake(
        did="an HDF5 file of one's own with id -1 for missing",
        asked="meta-pytorch/torchrec#575",
        run=(("data/train.h5", "negative.h5"), ("runs/mine", "runs/own")),
        status=1,
        later=VALUES,
        names=("/sparse/hour/ids", "sample 5"),
        found=("-1",),
        write=("[0, 24)", "hpcrec data verify"),
    ),
    "labels of -1 and 1": Mistake(
        did="an HDF5 file of one's own with labels -1 and 1",
        asked="shenweichen/DeepCTR-Torch#308",
        run=(("data/train.h5", "signs.h5"), ("runs/mine", "runs/own")),
        status=1,
        later=VALUES,
        names=("/label", "sample"),
        found=("-1",),
        write=("from 0 to 1",),
    ),
    # ---- map.toml and tables -----------------------------------------------------------------------------------------
    "another delimiter": Mistake(
        did="a table with semicolons, `delimiter` not given",
        asked="RUCAIBox/RecBole#1195",
        command=("run", "-n", "2", "--", *CONVERT, "{folder}/semicolons.csv"),
        names=("semicolons.csv", "delimiter"),
        found=("click;user;item",),
        write=('delimiter = ";"',),
    ),
    "no header": Mistake(
        did="a table without a header, `header` not given",
        asked="reczoo/RecZoo#37",
        command=("run", "-n", "2", "--", *CONVERT, "{folder}/no_header.csv"),
        names=("no_header.csv", "click"),
        found=("u",),
        write=("header = false", "columns = ["),
    ),
    "a header that was not expected": Mistake(
        did="`header = false` for a table that has one",
        asked="reczoo/RecZoo#37",
        map=(("labels =", 'header = false\ncolumns = ["click", "user", "item", "price", "hour", "rating"]\nlabels ='),),
        command=(*CONVERT, "{folder}/clicks.csv"),
        status=1,
        later=LINES,
        names=("clicks.csv", "line 1", "click"),
        found=("'click'",),
        write=("header = true",),
    ),
    "a comma in quotes": Mistake(
        did='`"Hammer, large"` in a table, `quotes` not given',
        asked="use",
        command=(*CONVERT, "{folder}/quoted.csv"),
        status=1,
        later=LINES,
        names=("quoted.csv", "line 3"),
        found=("7 columns",),
        write=("quotes = true",),
    ),
    "the label among the features": Mistake(
        did="`[sparse.click]`, where `click` is the label",
        asked="use",
        map=(("[sparse.user]", "[sparse.click]\n[sparse.user]"),),
        command=("run", "-n", "2", "--", *CONVERT, "{folder}/clicks.csv"),
        names=("sparse.click",),
        found=("label",),
        write=("Remove",),
    ),
    "ratings for labels": Mistake(
        did='`labels = ["rating"]`, from 1 to 5',
        asked="shenweichen/DeepCTR-Torch#308",
        map=(('labels = ["click"]', 'labels = ["rating"]'),),
        command=(*CONVERT, "{folder}/clicks.csv"),
        status=1,
        later=LINES,
        names=("line", "rating"),
        found=("'5'",),
        write=("label_from",),
    ),
    "text for integers": Mistake(
        did='`ids = "integer"` for a column of text',
        asked="shenweichen/DeepCTR-Torch#202",
        map=(('ids = "vocabulary"', 'ids = "integer"\nrows = 1000'),),
        command=(*CONVERT, "{folder}/clicks.csv"),
        status=1,
        later=LINES,
        names=("line", "user"),
        found=("'u",),
        write=('ids = "vocabulary"', '"hash"'),
    ),
    "an empty number": Mistake(
        did="an empty price, `missing` not given",
        asked="reczoo/RecZoo#37",
        command=(*CONVERT, "{folder}/gaps.csv"),
        status=1,
        later=LINES,
        names=("line 7", "price"),
        found=("''",),
        write=("missing =",),
    ),
    "a column misspelt": Mistake(
        did="`[sparse.usr]` for `[sparse.user]`",
        asked="RUCAIBox/RecBole#1124",
        map=(("[sparse.user]", "[sparse.usr]"),),
        command=("run", "-n", "2", "--", *CONVERT, "{folder}/clicks.csv"),
        names=("sparse.usr",),
        found=("click, user, item",),
        write=("Did you mean 'user'?",),
    ),
    "fractions without a kind": Mistake(
        did="`--split 0.8,0.1,0.1`",
        asked="RUCAIBox/RecBole#1195",
        command=("run", "-n", "2", "--", *CONVERT, "--split", "0.8,0.1,0.1", "{folder}/clicks.csv"),
        names=("--split",),
        found=("0.8,0.1,0.1",),
        write=("hash:0.8,0.1,0.1", "order:0.8,0.1,0.1"),
    ),
    "another name for the label": Mistake(
        did="`hpcrec init --label clicked`, where the column is `click`",
        asked="RUCAIBox/RecBole#1124",
        command=("init", "{folder}/clicks.csv", "--label", "clicked", "--out", "{folder}/drafted"),
        names=("--label",),
        found=("clicked",),
        write=("Did you mean 'click'?",),
    ),
    # ---- command line, MPI, Slurm ------------------------------------------------------------------------------------
    "the program named again": Mistake(
        did="`hpcrec run -n 2 -- hpcrec train ...`, as for mpirun",
        asked="NVIDIA/apex#482",
        command=("run", "-n", "2", "--", "hpcrec", "train", "{folder}/run.toml"),
        names=("hpcrec run",),
        found=("'hpcrec'",),
        write=("hpcrec run -n 2 -- train",),
    ),
    "ranks asked of train": Mistake(
        did="`hpcrec train run.toml -n 4`",
        asked="horovod/horovod#2567",
        command=("train", "{folder}/run.toml", "-n", "4"),
        names=("-n",),
        found=("train",),
        write=("hpcrec run -n 4 -- train",),
    ),
    "a key for an option": Mistake(
        did="`hpcrec train run.toml --batch-size 512`",
        asked="use",
        command=("train", "{folder}/run.toml", "--batch-size", "512"),
        names=("--batch-size",),
        found=("train",),
        write=("--set train.batch_size=512",),
    ),
    "mpirun of another MPI": Mistake(
        did="`mpirun -n 2 hpcrec train` by the mpirun of another MPI than mpi4py's",
        asked="mpi4py/mpi4py#280",
        command=("train", "{folder}/run.toml"),
        environment={"PMI_SIZE": "2"},
        status=1,
        later=THERE,
        names=("PMI_SIZE",),
        found=("2 tasks", "1 rank"),
        write=("hpcrec run -n 2 -- train",),
    ),
    "srun without PMIx": Mistake(
        did="`srun -n 4 hpcrec train`, where srun needs `--mpi=pmix`",
        asked="open-mpi/ompi#13523",
        command=("train", "{folder}/run.toml"),
        environment={"SLURM_STEP_NUM_TASKS": "4"},
        status=1,
        later=THERE,
        names=("SLURM_STEP_NUM_TASKS",),
        found=("4 tasks", "1 rank"),
        write=("srun --mpi=pmix -n 4",),
    ),
    "a time that Slurm does not read": Mistake(
        did="`hpcrec submit --time 4h`",
        asked="use",
        command=("submit", "{folder}/run.toml", "--nodes", "1", "--time", "4h", "--dry-run"),
        names=("--time",),
        found=("4h",),
        write=("HH:MM:SS",),
    ),
    "predictions of other columns": Mistake(
        did="`hpcrec predict` of a data set without a feature that the model reads",
        asked="meta-pytorch/torchrec#3305",
        command=(
            *RUN[:4],
            "predict",
            "{folder}/runs/mine",
            "--data",
            "{folder}/fewer/test.h5",
            "--out",
            "{folder}/out.csv",
        ),
        names=("--data", "'item'"),
        found=("{folder}/fewer/test.h5",),
        write=("hpcrec prepare",),
    ),
    # ---- Python ------------------------------------------------------------------------------------------------------
    "a key for a section": Mistake(
        did="`hpcrec.train(..., batch_size=32)`",
        asked="use",
        script='import hpcrec\nhpcrec.train("{folder}/run.toml", batch_size=32)',
        status=1,
        names=("batch_size",),
        found=("32",),
        write=('train={"batch_size": 32}',),
    ),
    "a frame without a column": Mistake(
        did="`model.predict(frame)` of a frame without a column that the model reads",
        asked="meta-pytorch/torchrec#3305",
        script=(
            "import hpcrec, pyarrow as pa\n"
            'frame = pa.table({"user": ["u1"], "item": ["i1"], "price": [1.0], "hours": [3]})\n'
            'with hpcrec.load("{folder}/runs/mine") as model:\n'
            "    model.predict(frame)"
        ),
        status=1,
        names=("'hour'",),
        found=("user, item, price, hours",),
        write=("Did you mean 'hours'?",),
    ),
}
