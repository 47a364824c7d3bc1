"""Ranks, roles, communicators and the collectives on them. The only package that imports mpi4py."""
