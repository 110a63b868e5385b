#!/usr/bin/env bash
# Records of the checkpoints: scripts/checkpoint.sh verify|render|compare|measure|record
set -euo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
. "$scripts/venv.sh"
. "$scripts/probe_python.sh"
if [ -n "$probe_python" ] && [ "${1:-}" = measure ]; then
    shift
    set -- measure --python "$probe_python" "$@"
fi
PYTHONPATH=$scripts exec "$venv_python" -P -m patchset checkpoint "$@"
