#!/bin/sh
# Time the kernels on this machine's GPU: scripts/bench.sh kernel [--case NAME] [--out FILE]
# PYTHON names an interpreter that has torch and triton (default: python3).
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 70
PYTHONPATH="$root/scripts${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m patchset.bench "$@"
