"""Data sets: the HDF5 schema with its reader and writer, converters, the global order and the loader."""
