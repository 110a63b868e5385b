# Sourced on the device machine, from the repository's root: what every server of a run is started with.
export ROUND=${ROUND:-/tmp/round}
# serve.sh puts a tree's python/ before these. The hooks come first: sitecustomize, and the stubs.
export PYTHONPATH=$ROUND/hooks:$ROUND/site:$ROUND/tl PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE
export ROUND_FORCE_SM120=1 ROUND_FMLA_CFG=0 ROUND_INIT=scaled ROUND_JIT_DIR=$ROUND/jit
export TILELANG_CACHE_DIR=$ROUND/tlcache TVM_FFI_CACHE_DIR=$ROUND/tvmcache TRITON_CACHE_DIR=$ROUND/triton
export SGLANG_IS_FLASHINFER_AVAILABLE=false SGLANG_DSV4_FP4_EXPERTS=0 SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0
# What upstream itself sets on sm_120; HC_PRE=on wants two of them said.
export SGLANG_OPT_FP8_WO_A_GEMM=0 SGLANG_OPT_USE_TOPK_V2=0 SGLANG_OPT_USE_TILELANG_MHC_PRE=0
export SGLANG_OPT_DEEPGEMM_HC_PRENORM=0 SGLANG_FP8_PAGED_MQA_LOGITS_TORCH=1
for flag in INDEXER PREFILL METADATA TOPK DECODE SPLIT_K HC_PRE; do export SGLANG_SM120_$flag=on; done
export TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export PATCHSET_VENV=$ROUND/scripts-venv
if [ -z "${CUDA_HOME:-}" ]; then
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
    [ -n "$nvcc" ] && CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$nvcc")")") && export CUDA_HOME
fi
