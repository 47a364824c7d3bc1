"""Starts runs and watches over them: by mpirun, srun or a batch job. Starts processes; imports no MPI."""
