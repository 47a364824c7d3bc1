"""hpcrec trains recommendation models whose embedding tables outgrow a node, over MPI."""
