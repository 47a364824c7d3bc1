"""What a newcomer meets: whether a run says what held it up, where something does, and nothing where nothing does.

    python benchmarks/first_hour.py [--quick] [--json FILE] [--parts causes,init,newcomer,mistakes,blocks,page]
        [--cluster DIR] [--data DIR]

Part ``causes`` (``first_hour_parts/causes_part.py``): six causes are planted in runs on 2 and on 4 ranks, five times
each, at a strength that costs about a fifth of samples/s; the strength is found by trial, and what it costs is in the
table. ``first_hour.causes_named`` is how many of the six are the sentence at the end of every one of their runs, and on
top of its page, where the median cost of these runs is 10 to 35 %; but that of too few threads, which has one strength
on these cores (all ranks on one of them), may be any. ``first_hour.false_blame`` is how many of twenty runs with
nothing planted are told of a cause, or of a slow rank. Slow links need emulated hosts, which are those of
``--cluster``; without them that cause is not planted, and not named. More ranks than cores, and whatever else the
machine does, are seen by these runs: it has to be quiet.

Part ``init`` (``first_hour_parts/init_part.py``, JSON in <FILE>_init): ``hpcrec init`` on both MovieLens tables of
ratings, which are in ``--data``, as it drafts them, beside a map and a configuration that are written by hand.
``first_hour.init_auc_loss`` is how much less AUC the draft has on the same test part, a mean of paired seeds, of the
table where it is more.

Part ``newcomer`` (``first_hour_parts/newcomer_part.py``, JSON in <FILE>_newcomer): a stranger with a CSV in an empty
home goes from a clone to a test AUC by the first block of docs/tutorial.md. ``first_hour.minutes_cold`` is what
cloning, an environment and that take where nothing has been fetched, ``first_hour.minutes_warm`` the same again;
``first_hour.commands`` and ``first_hour.lines`` are what the block has to be typed and written by hand. With
``--make-train`` that way is gone too, and what of it downloads take is measured apart.

Part ``mistakes`` (JSON in <FILE>_mistakes): ``first_hour.mistakes_caught`` is how many of the forty of docs/mistakes.md
are caught.

Part ``blocks`` (``first_hour_parts/blocks_part.py``, JSON in <FILE>_blocks): ``docs.blocks_run`` is how many blocks of
commands and of Python, in README and docs/, did what their page says. Part ``page`` (``first_hour_parts/page_part.py``,
JSON in <FILE>_page): ``report.overflow_px`` is how far anything of the report page stands out of a window of 360, 800
or 1,400 px, in Chromium, in any theme and in print.
"""

from pathlib import Path

from _report import asked, options
from first_hour_parts import blocks_part, causes_part, init_part, mistakes_part, newcomer_part, page_part

PARTS = ("causes", "init", "newcomer", "mistakes", "blocks", "page")


def main() -> None:
    parser = options(__doc__, PARTS)
    parser.add_argument("--cluster", type=Path, default=Path("../shared/cluster"), help="has hosts/up.sh")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="has the samples of MovieLens")
    parser.add_argument("--causes", help=f"only these ({','.join(causes_part.PLANTED)})")
    parser.add_argument("--make-train", action="store_true", help="part newcomer: also by make train (10 minutes)")
    arguments = parser.parse_args()
    chosen = arguments.causes.split(",") if arguments.causes else list(causes_part.PLANTED)
    if unknown := [name for name in chosen if name not in causes_part.PLANTED]:
        parser.error(f"--causes has {', '.join(unknown)}; allowed are {', '.join(causes_part.PLANTED)}")
    for part, path in asked(parser, arguments, PARTS):
        if part == "causes":
            causes_part.run(chosen, arguments.cluster, path, quick=arguments.quick)
        elif part == "init":
            init_part.run(arguments.data, path, quick=arguments.quick)
        elif part == "newcomer":
            newcomer_part.run(path, quick=arguments.quick, make_train=arguments.make_train)
        else:
            {"mistakes": mistakes_part, "blocks": blocks_part, "page": page_part}[part].run(path)


if __name__ == "__main__":
    main()
