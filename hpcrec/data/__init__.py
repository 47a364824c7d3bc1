"""Data sets: the HDF5 files with their reader, the global order and the loader: what training reads."""
