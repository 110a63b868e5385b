# Sourced by the scripts beside it. Makes the virtual environment that they share, once, and sets
# venv_python to its interpreter. PATCHSET_PYTHON chooses the interpreter it is made with,
# PATCHSET_VENV another place than .venv at the top of the repository. A script that needs more than
# requirements.txt sets venv_requirements before it sources this.
# shellcheck shell=bash

unset PYTHONHOME PYTHONPATH
# Paths beyond ASCII must not depend on the locale, in what we start either.
export PYTHONUTF8=1
venv_scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
venv_directory=${PATCHSET_VENV:-${venv_scripts%/*}/.venv}
venv_requirements=${venv_requirements:-$venv_scripts/requirements.txt}
venv_python=$venv_directory/bin/python

# make_venv.py writes the stamp last, as a copy of the requirements.
if ! { [ -x "$venv_python" ] && cmp -s "$venv_requirements" "$venv_directory/.patchset-venv"; }; then
    venv_maker=
    venv_tried=
    for venv_candidate in ${PATCHSET_PYTHON:+"$PATCHSET_PYTHON"} python3 python3.13 python3.12 python3.11; do
        if venv_found=$("$venv_candidate" -c '
import sys
new = sys.version_info >= (3, 11)
try:
    import ensurepip, venv
    print("" if new else "older than 3.11")
except ImportError:
    print("has no venv module: install python3-venv" if new else "older than 3.11")
' 2>/dev/null); then
            if [ -z "$venv_found" ]; then
                venv_maker=$venv_candidate
                break
            fi
        else
            venv_found="not found"
        fi
        venv_tried="$venv_tried${venv_tried:+; }$venv_candidate: $venv_found"
        # A chosen interpreter is used or refused, never silently replaced.
        if [ -n "${PATCHSET_PYTHON:-}" ]; then break; fi
    done
    if [ -z "$venv_maker" ]; then
        {
            echo "error: no Python 3.11 or newer with its venv module was found"
            echo "where: $venv_tried"
            echo "state: nothing was changed"
            echo "next:  install one, or name it: PATCHSET_PYTHON=/path/to/python3 $(printf '%q ' "$0" "$@")"
        } >&2
        exit 4
    fi
    PYTHONPATH=$venv_scripts "$venv_maker" -P -m patchset.make_venv \
        "$venv_directory" "$venv_requirements" "$0" "$@" || exit
fi
