"""Exported models: read and computed in one process, by torch and NumPy. No MPI, no Horovod, nothing that trains."""

from hpcrec.serving.exported import Exported

__all__ = ["Exported"]
