# Sourced by the scripts beside it, after venv.sh. Sets probe_python to the interpreter that measures the
# figure which the arguments name, or to nothing where they name none or bring their own.
# shellcheck shell=bash

probe_python=
case " $* " in
    *" -h "* | *" --help "* | *" --python"*) ;;
    *" work:indexer "* | *"=work:indexer "*)
        # A subshell, because the environment of the command line stays the other one.
        probe_python=${PATCHSET_TEST_PYTHON:-$(
            PATCHSET_VENV=${PATCHSET_TEST_VENV:-${venv_scripts%/*}/.venv-test}
            venv_requirements=${venv_scripts%/*}/tests/requirements.txt
            . "$venv_scripts/venv.sh" >&2
            printf '%s' "$venv_python"
        )}
        ;;
    *" kernel:"* | *"=kernel:"*) probe_python=${PYTHON:-python3} ;;
esac
