"""Dense gradients: flat buckets summed over the dense ranks, and the optimizer. The only package with Horovod."""
