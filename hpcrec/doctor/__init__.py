"""``hpcrec doctor``: is this set-up ready for a run? Small checks, each with what it found and what to do about it."""
