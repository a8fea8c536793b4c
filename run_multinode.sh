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
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh run_multinode.sh
set -euo pipefail
self="$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")" # a link may lie anywhere
here="$(cd "$(dirname "$self")" && pwd)"
cd "$here"
python="${PYTHON:-$here/.venv/bin/python}"
[[ -n "${PYTHON:-}" || -x "$python" ]] || python=python3
if ! "$python" -c 'from importlib.util import find_spec
raise SystemExit(not all(map(find_spec, ("psutil", "pydantic", "torch", "transformers"))))' 2>/dev/null; then
  echo "run_multinode.sh: $python lacks webrl's packages: run \`make setup\` in $here, or name a Python by PYTHON=…" >&2
  exit 2
fi
exec "$python" -m webrl.cli.launch "$@"
