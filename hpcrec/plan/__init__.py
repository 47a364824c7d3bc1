"""What a run will need, by formula, before it starts. No MPI, no torch."""
