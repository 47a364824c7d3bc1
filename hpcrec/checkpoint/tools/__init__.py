"""What is done with checkpoints outside of a run: looked at, checked, compared, converted. No MPI, no session."""
