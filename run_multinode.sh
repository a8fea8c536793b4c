#!/usr/bin/env bash
# Train the current phase: one process on a laptop, all GPUs of a node, or many nodes.
#
#   bash run_multinode.sh                              # newest run folder; in a clean clone, the sample records
#   bash run_multinode.sh CONFIG key=value …           # as for `webrl train`
#   bash run_multinode.sh sft CONFIG --data PATH …   # the supervised start, as for `webrl sft`
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash run_multinode.sh     # on each node, with its own NODE_RANK
#   srun --ntasks-per-node=1 bash run_multinode.sh     # Slurm; Kubernetes PyTorchJob and MLP_* are read as well
#
# NNODES=2:4 is elastic; MAX_RESTARTS, WEBRL_LOG_DIR and WEBRL_JOB_ID are optional (webrl/cli/launch.py).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
  if [[ -x "$here/.venv/bin/python" ]]; then python="$here/.venv/bin/python"; else python="$(command -v python3)"; fi
fi
cd "$here"
exec "$python" -m webrl.cli.launch "$@"
