#!/usr/bin/env bash
# Measure: scripts/bench.sh kernel [--case NAME] [--out FILE]    the kernels on this machine's GPU
#          scripts/bench.sh serving --arm NAME=URL...            running servers, taking turns
#          scripts/bench.sh steps --arm NAME=URL... --out FILE   their decode steps
# For `kernel`, PYTHON names an interpreter that has torch and triton (default: python3).
set -euo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
if [ "${1:-}" = serving ] || [ "${1:-}" = steps ]; then
    # The benchmark keeps the PYTHONPATH of the caller, which venv.sh unsets.
    export PATCHSET_CALLERS_PYTHONPATH=${PYTHONPATH:-}
    . "$scripts/venv.sh"
    PYTHONPATH=$scripts exec "$venv_python" -P -m patchset bench "$@"
fi
. "$scripts/require_python.sh"
require_python "${PYTHON:-python3}" PYTHON "$@"
PYTHONPATH="$scripts${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m patchset.bench "$@"
