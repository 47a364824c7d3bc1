# Sourced by the job scripts here: what a site sets. Nothing in the library reads the environment by itself.
# Edit a copy, and name it by HPCREC_ENV when you submit.

# The modules that .venv was set up with (make setup MPI=site); none with the MPI from PyPI.
# module load gcc openmpi

# The checkout. A job script runs from a copy in Slurm's spool folder, so it cannot tell by its own path.
HPCREC_ROOT=${HPCREC_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}}
if [ ! -f "$HPCREC_ROOT/.venv/bin/activate" ]; then
  echo "slurm/env.sh: no .venv in $HPCREC_ROOT. Submit from the checkout after make setup, or set HPCREC_ROOT." >&2
  exit 1
fi
. "$HPCREC_ROOT/.venv/bin/activate"

# One thread a core that Slurm gave the task.
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# Which network interface Open MPI's TCP uses, where there is no faster fabric and several interfaces: eth0, ib0, ...
# export OMPI_MCA_btl_tcp_if_include=eth0

# HDF5 on a file system without locks (some Lustre mounts).
# export HDF5_USE_FILE_LOCKING=FALSE
