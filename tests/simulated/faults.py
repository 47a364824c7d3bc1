"""Seeded faults that schedules have to find: mistakes in the order of things between ranks.

See ``tests.faults.seeded``; ``Fault.test`` is the scenario that finds it here.
"""

from tests.faults.seeded import Fault

FAULTS: dict[str, Fault] = {
    "a manifest before all ranks have written": Fault(
        "hpcrec/checkpoint/checkpoint.py",
        "        parts = ranks.allgather((self._written, self._segments, self._failure))\n",
        "        parts = [(self._written, self._segments, self._failure)]\n",
        "commit",
    ),
    "a commit that returns before the checkpoint has its name": Fault(
        "hpcrec/checkpoint/checkpoint.py",
        "        on_root(ranks, finish)\n",
        "        finish() if ranks.rank == 0 else None\n",
        "commit",
    ),
    "every rank names the checkpoint": Fault(
        "hpcrec/checkpoint/checkpoint.py",
        "        on_root(ranks, finish)\n",
        "        finish()\n",
        "commit",
    ),
    "files before their folder": Fault(
        "hpcrec/checkpoint/checkpoint.py",
        "        on_root(self._ranks, lambda: files.make_hidden(",
        "        self._ranks.rank == 0 and (lambda work: work())(lambda: files.make_hidden(",
        "commit",
    ),
    "an error of a write that one rank raises": Fault(
        "hpcrec/checkpoint/checkpoint.py",
        "        if failure is not None:\n",
        "        if self._failure is not None:\n",
        "commit",
    ),
    "what is removed before what replaces it is whole": Fault(
        "hpcrec/checkpoint/saver.py",
        "            writer.commit()\n            on_root(main, lambda: _of_disk(lambda: then(main.comes_on)))\n",
        "            then(lambda: None) if session.topology.rank == 0 else None\n            writer.commit()\n",
        "commit",
    ),
    "a save beside steps that nobody waits for": Fault(
        "hpcrec/checkpoint/saver.py",
        "                self._thread.join()\n",
        "                self._thread.join(0.0)\n",
        "commit",
    ),
    "a rank whose error the others do not learn": Fault(
        "hpcrec/training/ranks.py",
        "            error = CheckpointError, str(caught)\n",
        "            raise\n",
        "commit",
    ),
    "another rank than the first removes what is left": Fault(
        "hpcrec/checkpoint/resume.py",
        "    on_root(ranks, lambda: remove_leftovers(folder",
        "    ranks.rank == ranks.size - 1 and (lambda work: work())(lambda: remove_leftovers(folder",
        "commit",
    ),
    "a base that is removed": Fault(
        "hpcrec/checkpoint/files.py",
        "        kept |= {base for step in kept if (base := bases[step]) is not None}\n",
        "",
        "commit",
    ),
    "what was about to be replaced, not brought back": Fault(
        "hpcrec/checkpoint/files.py",
        "            (folder / name).rename(final)\n",
        "            pass\n",
        "commit",
    ),
    "a vocabulary that is read before it is numbered": Fault(
        "hpcrec/preparation/stages.py",
        "        self.ranks.allgather(None)  # all are numbered\n",
        "",
        "prepare",
    ),
    "a piece that is noted before it is written": Fault(
        "hpcrec/preparation/stages.py",
        "                fresh[_name(piece)] = work(piece)\n                self.journal.record(",
        "                if stage == 'counted':\n"
        "                    nothing = {n: [] for n in self.job.table.counted}\n"
        "                    self.journal.record(stage, _name(piece), {'runs': nothing})\n"
        "                fresh[_name(piece)] = work(piece)\n                self.journal.record(",
        "prepare",
    ),
    "a lock that an error keeps": Fault(
        "hpcrec/preparation/journal.py",
        "                lock.close()  # also",
        "                pass  # also",
        "prepare",
    ),
    "work that comes on is a stall": Fault(
        "hpcrec/comm/stall_report.py",
        "            elif all(r in standings and",
        "            elif not missing and all(r in standings and",
        "stall",
    ),
    "a rank that does not answer has come": Fault(
        "hpcrec/comm/stall_report.py",
        "r for r in ranks if r not in standings or standings[r]",
        "r for r in ranks if r in standings and standings[r]",
        "stall",
    ),
    "a restart that clears what the run has saved": Fault(
        "hpcrec/launcher/restarts.py",
        """ if attempts.last_begin(run.folder) != before[0] else ()\n    return""",
        """ if attempts.last_begin(run.folder) == before[0] else ()\n    return""",
        "restart",
    ),
    "restarts without end": Fault(
        "hpcrec/launcher/restarts.py",
        "    if failed is not None and (failed.step, failed.newest) == (now.step, now.newest):\n",
        "    if failed is not None and failed is now:\n",
        "restart",
    ),
    "a claim that two can make": Fault(
        "hpcrec/training/claim.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL,",
        "os.O_WRONLY | os.O_CREAT,",
        "claim",
    ),
    "the token looked at too early": Fault(
        "hpcrec/checkpoint/files.py",
        "    replaces = is_there(final)\n    if replaces:\n        move(final, old, claim)\n"
        "    try:\n        claim.check()\n",
        "    claim.check()\n    sync(hidden)\n    sync(hidden.parent)\n    replaces = is_there(final)\n"
        "    if replaces:\n        move(final, old, claim)\n    try:\n",
        "claim",
    ),
    "the token not looked at again after a rename": Fault(
        "hpcrec/checkpoint/files.py",
        "    try:\n        claim.check()\n    except Exception:\n        _put_back(path, away)\n        raise\n",
        "",
        "claim",
    ),
    "a claim that is a lock of one host only": Fault(
        "hpcrec/training/claim.py",
        "            return (str(found) if there else None), there\n",
        "            return (str(found) if there else None), there\n        return None, False\n",
        "claim",
    ),
    "a token that is not compared": Fault(
        "hpcrec/training/claim.py",
        '        if found is not None and found.token == self.token:\n            return ""\n',
        '        return ""\n',
        "claim",
    ),
    "a claim that is not renewed": Fault(
        "hpcrec/training/claim.py",
        "            os.utime(claim.path)\n",
        "",
        "claim",
    ),
}
