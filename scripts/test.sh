#!/usr/bin/env bash
# Prove the patches and the kernels: scripts/test.sh [TIER...]
#
#   unit       series, commands, their failures, the hooks            any machine
#   interpret  kernel numerics in the Triton interpreter               any machine
#   aot        kernels compiled for sm_120 and sm_121                  any machine
#   gpu        numerics, graphs, determinism, memory                   a CUDA GPU
#
# Without a TIER: all, where gpu is left out, and said so, if there is no CUDA GPU.
# All but gpu run in as many processes as there are cores, at most 8.
# PATCHSET_TEST_PYTHON names a Python with torch, triton and pytest to use instead of making
# .venv-test (on a GPU host: the one that serves).
set -uo pipefail
scripts=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
root=${scripts%/*}
case ${1:-} in
    -h | --help)
        sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac
tiers=("$@")
for tier in "${tiers[@]}"; do
    case $tier in
        unit | interpret | aot | gpu) ;;
        *)
            echo "error: no tier $tier" >&2
            echo "next:  name some of unit, interpret, aot and gpu, or none for all" >&2
            exit 2
            ;;
    esac
done
[ ${#tiers[@]} -gt 0 ] || tiers=(unit interpret aot gpu)

if [ -n "${PATCHSET_TEST_PYTHON:-}" ]; then
    . "$scripts/require_python.sh"
    require_python "$PATCHSET_TEST_PYTHON" PATCHSET_TEST_PYTHON "$@"
fi

# The tests read stock functions and hooks out of the patched tree.
"$scripts/apply.sh" >/dev/null || exit

if [ -n "${PATCHSET_TEST_PYTHON:-}" ]; then
    python=$PATCHSET_TEST_PYTHON
else
    PATCHSET_VENV=${PATCHSET_TEST_VENV:-$root/.venv-test}
    venv_requirements=$root/tests/requirements.txt
    . "$scripts/venv.sh"
    python=$venv_python
fi

cd "$root" || exit 70
unset TRITON_INTERPRET
failed=0
summary=()

# Neighbours of a file share what it sets up, so each process begins with a run of them.
spread=(--numprocesses auto --maxprocesses 8 --dist worksteal)
# A process for each core leaves torch one thread in it: more take turns, and a sum's order is theirs.
alone=(env OMP_NUM_THREADS=1)
if ! "$python" -c 'import xdist' 2>/dev/null; then
    echo "note: $python has no pytest-xdist, so each tier runs in one process" >&2
    spread=() alone=(env)
fi

run_tier() {
    local tier=$1 status
    echo
    echo "== $tier"
    case $tier in
        unit | aot) "${alone[@]}" "$python" -m pytest "${spread[@]}" "tests/$tier" ;;
        interpret) TRITON_INTERPRET=1 "${alone[@]}" "$python" -m pytest "${spread[@]}" "tests/$tier" ;;
        # One GPU is timed by one process.
        *) "$python" -m pytest "tests/$tier" ;;
    esac
    status=$?
    if [ $status = 0 ]; then
        summary+=("$tier: passed")
    else
        summary+=("$tier: FAILED (pytest exit $status)")
        failed=1
    fi
}

for tier in "${tiers[@]}"; do
    if [ "$tier" = gpu ]; then
        without_gpu=$("$python" -c 'import torch
print("" if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA GPU")')
        if [ -n "$without_gpu" ]; then
            summary+=("gpu: NOT RUN ($without_gpu)")
            # Asked for by name, it must not look like a pass.
            [ $# -eq 0 ] || failed=1
            continue
        fi
    fi
    run_tier "$tier"
done

if [ $# -eq 0 ] && [ -z "${PATCHSET_TEST_PYTHON:-}" ]; then
    if "$python" -m black --quiet --check kernels tests scripts; then
        summary+=("format: passed")
    else
        summary+=("format: FAILED (run black)")
        failed=1
    fi
fi

echo
echo "== summary"
printf '%s\n' "${summary[@]}"
exit $failed
