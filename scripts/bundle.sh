#!/usr/bin/env bash
set -euo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
. "$scripts/venv.sh"
PYTHONPATH=$scripts exec "$venv_python" -P -m patchset bundle "$@"
