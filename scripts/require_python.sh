# Sourced by the scripts beside it. `require_python PYTHON VARIABLE ARGUMENT...` ends the script where
# PYTHON is no interpreter that runs; VARIABLE is what chooses another one.
# shellcheck shell=bash

require_python() {
    local python=$1 variable=$2 said
    shift 2
    # Through env, whose message does not begin with a line of this file.
    said=$(LC_ALL=C env -- "$python" -c 'print("runs")' 2>&1) && [ "${said##*$'\n'}" = runs ] && return
    said=${said##*$'\n'}
    {
        echo "error: this Python does not run${said:+: ${said#env: }}"
        echo "where: $python"
        echo "state: nothing was run, nothing was changed"
        echo "next:  name one that does: $variable=/path/to/python $(printf '%q ' "$0" "$@")"
    } >&2
    exit 4
}
