"""What each rank of ``hpcrec.launch`` does: ``python -m hpcrec.api.on_rank FOLDER``.

Rank 0 reads what there is to do and writes what all have given; a rank on which it fails says so in a file of its own
and ends the job. Knows nothing of what is done.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path

from hpcrec.api.launched import FAILED, GIVEN, WORK, cloudpickle_at_hand
from hpcrec.comm.everyone import everyone
from hpcrec.comm.ranks import Ranks


def main(folder: Path) -> None:
    """Collective."""
    ranks = everyone(os.environ)
    work = ranks.bcast((folder / WORK).read_bytes() if ranks.rank == 0 else None)
    given = ranks.allgather(_done(work, folder, ranks))
    if ranks.rank == 0:
        hidden = folder / f".{GIVEN}"
        hidden.write_bytes(pickle.dumps(given))
        hidden.rename(folder / GIVEN)
    ranks.allgather(None)  # none leaves, and is taken for one that fell out, before it is written


def _done(work: bytes, folder: Path, ranks: Ranks) -> bytes:
    try:
        function, arguments = pickle.loads(work)
        packed: bytes = (cloudpickle_at_hand() or pickle).dumps(function(*arguments))
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        (folder / FAILED.format(ranks.rank)).write_bytes(pickle.dumps((text, _packed(error))))
        if isinstance(error, SystemExit):  # Python tells no hook of it, so the other ranks would wait for this one
            raise RuntimeError(f"what was launched asked to exit, with {error.code!r}; return instead") from error
        raise
    return packed


def _packed(error: BaseException) -> bytes | None:
    """The error itself, where it can be pickled."""
    try:
        return pickle.dumps(error)
    except Exception:  # whatever its parts do as they are pickled
        return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
