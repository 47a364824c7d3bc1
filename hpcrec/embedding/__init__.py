"""Tables: which rank holds which rows, where rows live, how gradients change them. No MPI here."""
