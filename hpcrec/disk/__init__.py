"""Rows of fixed size in a folder on a disk, by number: what a cache in memory can lie over. Source: [MTRAINS]."""
