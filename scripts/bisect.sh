#!/usr/bin/env bash
# Find the commit that gained or lost a figure: scripts/bisect.sh --probe NAME [--find gain|loss]
# work:indexer is measured by .venv-test, or PATCHSET_TEST_PYTHON; kernel:CASE by $PYTHON (default:
# python3), as scripts/bench.sh does; serving:WORKLOAD by scripts/serve.sh and scripts/bench.sh.
set -euo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# Servers keep the PYTHONPATH of the caller, which venv.sh unsets.
export PATCHSET_CALLERS_PYTHONPATH=${PYTHONPATH:-}
. "$scripts/venv.sh"
. "$scripts/probe_python.sh"
case " $* " in
    *" -h "* | *" --help "* | *" --tree"* | *" --over repo "* | *" --over=repo "*) ;;
    # The default tree, for whoever has none yet.
    *) compgen -G "${scripts%/*}/build/sglang-*" >/dev/null || "$scripts/apply.sh" >&2 ;;
esac
PYTHONPATH=$scripts exec "$venv_python" -P -m patchset bisect ${probe_python:+--python "$probe_python"} "$@"
