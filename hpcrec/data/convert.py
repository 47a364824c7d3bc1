"""The converters behind ``hpcrec prepare``, in one place to import from."""

from hpcrec.data.criteo import prepare_criteo
from hpcrec.data.movielens import prepare_movielens
from hpcrec.data.prepare_synthetic import prepare_synthetic
from hpcrec.data.split import Split, Summary

__all__ = ["Split", "Summary", "prepare_criteo", "prepare_movielens", "prepare_synthetic"]
