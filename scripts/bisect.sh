#!/usr/bin/env bash
# Find the commit that gained or lost a figure: scripts/bisect.sh --probe NAME [--find gain|loss]
# A figure that is counted (work:...) is measured by .venv-test, or PATCHSET_TEST_PYTHON; one that needs
# a GPU by $PYTHON (default: python3), as scripts/bench.sh does.
set -euo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
. "$scripts/venv.sh"
. "$scripts/probe_python.sh"
case " $* " in
    *" -h "* | *" --help "* | *" --tree"* | *" --over repo "* | *" --over=repo "*) ;;
    # The default tree, for whoever has none yet.
    *) [ -e "${scripts%/*}/build" ] || "$scripts/apply.sh" >&2 ;;
esac
PYTHONPATH=$scripts exec "$venv_python" -P -m patchset bisect ${probe_python:+--python "$probe_python"} "$@"
