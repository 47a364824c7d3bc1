# Every command of hpcrec. Each does what it needs first, from a fresh clone on: `make train` is enough.
# Switches, on the command line of make:
#   MPI=site      the MPI whose mpicc is on the path (module load ...), instead of Open MPI from PyPI
#   MPI=mpich     any target with MPICH from PyPI, in an environment of its own, .venv-mpich
#   HOROVOD=no    make setup without Horovod: dense gradients are summed by MPI (dense.reducer = "mpi")
#   WHEELS=dir    make setup without a network, from what make wheels put there
#   PYTHON=path   the Python (3.11 or newer) that .venv is made from
#   NP=4          ranks of `make train`; its configuration asks for 2 owners and 2 dense ranks, so another number
#                 takes another split: NP=3 ARGS="--set topology.dense=1"
#   ARGS="..."    more arguments: for train those of `hpcrec train`, for test those of pytest
#   QUICK=1       `make bench` with less work
NP ?= 4
ARGS ?=
QUICK ?=
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup cuda test-setup wheels data train test slurm-test soak sanitize lint format docs bench clean clean-venv

venv_folder := .venv$(if $(filter mpich,$(MPI)),-mpich)
venv := . $(venv_folder)/bin/activate;
quickstart := data/quickstart

help:                 ## this table
	@echo "make TARGET [MPI=site|mpich] [PYTHON=python3.12] [WHEELS=dir] [NP=4] [ARGS=...]"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup:                ## .venv with all that training takes: MPI, Horovod, the native module (5 min, then 0.5 s)
	@tools/setup.sh

cuda:                 ## setup, and the kernels of GPUs, which nvcc compiles
	@tools/setup.sh cuda

test-setup:           ## setup, and what tests run besides: the kernels of GPUs on the host, and compiled where nvcc is
	@tools/setup.sh tests docs emulated $(if $(filter mpich,$(MPI)),,$(if $(shell command -v nvcc),cuda))

wheels: setup         ## all that setup installs, in wheels/ (or ARGS), for a machine without a network
	@$(venv) tools/wheels.sh $(ARGS)

data: $(quickstart)   ## the synthetic data set of the quickstart, in data/quickstart; made once

# Made beside its place and renamed, so that an interrupted run leaves no half data set. One recipe, one shell.
$(quickstart): | setup
	@$(venv) rm -rf $@.tmp; mkdir -p $(@D); hpcrec prepare synthetic --out $@.tmp; mv $@.tmp $@

train: setup data     ## trains the quickstart model on NP ranks: runs/quickstart
	@$(venv) rm -rf runs/quickstart; hpcrec run -n $(NP) -- train examples/quickstart/config.toml $(ARGS)
	@echo "result: runs/quickstart/summary.json"

test: test-setup      ## all tests but the slow ones: serial, on 1 to 4 ranks, on a Slurm where one can be had
	@$(venv) python tools/run_tests.py $(ARGS)

slurm-test: test-setup ## those on a Slurm of 5 nodes; as root on Debian installed, started and stopped
	@$(venv) python tools/run_tests.py --slurm only $(ARGS)

soak: test-setup      ## the slow tests, in parts, some with MPICH; goes on where it ended. ARGS="--minutes 55": till then
	@$(MAKE) --no-print-directory test-setup MPI=mpich
	@$(venv) tools/soak.py $(ARGS)

sanitize:             ## the kernel tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup.sh tests
	@$(venv) tools/sanitize.sh $(ARGS)

lint:                 ## every linter
	@tools/setup.sh tests
	@$(venv) tools/lint.sh

format:               ## formats Python, C++ and CUDA
	@tools/setup.sh tests
	@$(venv) ruff format .; ruff check --fix .; find native -regex ".*\.\(cpp\|h\|cu\|cuh\)" | xargs -r clang-format -i

docs:                 ## docs/ as a site, in build/docs/html; fails on a warning, and on what needs a network
	@tools/setup.sh docs
	@$(venv) python tools/docs.py

bench: test-setup     ## every benchmark; JSON in benchmarks/results
	@$(venv) tools/bench.sh $(if $(QUICK),--quick)

clean:                ## removes build folders, caches, the quickstart's data and run; keeps .venv
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis $(quickstart) $(quickstart).tmp runs/quickstart
	@find . -name __pycache__ -not -path './.venv*/*' -prune -exec rm -rf {} +

clean-venv:           ## removes .venv (with MPI=mpich: .venv-mpich)
	@rm -rf $(venv_folder)
