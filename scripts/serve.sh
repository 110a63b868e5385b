#!/usr/bin/env bash
set -euo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# The server keeps the PYTHONPATH of the caller, which venv.sh unsets.
export PATCHSET_CALLERS_PYTHONPATH=${PYTHONPATH:-}
. "$scripts/venv.sh"
PYTHONPATH=$scripts exec "$venv_python" -P -m patchset serve "$@"
