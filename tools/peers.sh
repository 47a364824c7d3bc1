#!/usr/bin/env bash
# Installs what benchmarks/speed.py compares hpcrec with into a Python environment of its own: PyTorch, TorchRec, FBGEMM.
#
#   tools/peers.sh [FOLDER]     default ~/.cache/hpcrec/peers, where the benchmark looks; PYTHON=path names the Python
#
# FBGEMM's CPU build 1.8.0 is the one that loads beside torch 2.13.0. TorchRec asks for FBGEMM's CUDA build, which would
# overwrite it, so both go in without dependencies, and those are named here.
set -euo pipefail
folder=${1:-$HOME/.cache/hpcrec/peers}
if "$folder/bin/python" -c "import torchrec" 2>/dev/null; then
  echo "peers: $folder is complete"
  exit
fi
"${PYTHON:-python3}" -m venv "$folder"
pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.13.0 numpy
"${pip[@]}" --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
"${pip[@]}" torchmetrics==1.0.3 tensordict iopath pyre-extensions tqdm
"$folder/bin/python" -W ignore -c "import fbgemm_gpu, torchrec"
echo "peers: $folder/bin/python"
