"""What a run of SGLang on an H200 needs to be other than it is, put in as modules are imported.

No file of a tree changes, so that servers tell the blob ids of the series. Each piece has its variable:
ROUND_FORCE_SM120=1, ROUND_FMLA_CFG=0, ROUND_INIT=scaled, ROUND_JIT_DIR=DIR.
"""

import importlib.machinery
import os
import sys


def _common(module):
    def is_sm120_supported(device=None):
        return True

    module.is_sm120_supported = is_sm120_supported


def _flash_mla(module):
    place = int(os.environ["ROUND_FMLA_CFG"])
    kernel = module._tiled_sparse_decode_kernel
    kernel.configs = kernel.configs[place : place + 1]


def _weight_utils(module):
    import torch

    def initialize_dummy_weights(model, low=-1e-3, high=1e-3, seed=1234):
        for idx, (name, param) in enumerate(model.state_dict().items()):
            if not torch.is_floating_point(param):
                continue
            g = torch.Generator(device=param.data.device)
            g.manual_seed(seed + idx)
            last = name.rsplit(".", 1)[-1]
            if "norm" in name and param.dim() == 1:
                param.data.fill_(1.0)
            elif last.endswith("_scale") or last == "hc_head_scale":
                param.data.fill_(1.0)
            elif last.endswith("_base") or "bias" in last or "attn_sink" in name:
                param.data.zero_()
            elif "embed_tokens" in name:
                param.data.normal_(0, 1.0, generator=g)
            elif param.dim() >= 2:
                param.data.normal_(0, param.shape[-1] ** -0.5, generator=g)
            else:
                param.data.normal_(0, 0.02, generator=g)

    module.initialize_dummy_weights = initialize_dummy_weights


def _jit(module):
    """Modules by a name that holds no path of a tree: built once for all trees, or before."""
    import fcntl
    import hashlib
    import re
    import shutil
    import time

    place = os.environ["ROUND_JIT_DIR"]
    original = module.load_jit

    def load_jit(*args, cpp_wrappers=None, cuda_wrappers=None, extra_cuda_cflags=None, header_only=True, **rest):
        given = dict(rest, cpp_wrappers=cpp_wrappers, cuda_wrappers=cuda_wrappers, extra_cuda_cflags=extra_cuda_cflags)
        if not header_only:
            return original(*args, **given, header_only=header_only)
        key = re.sub(r"[^A-Za-z0-9_]+", "-", "_".join(str(a) for a in args))
        digest = hashlib.md5(repr((cpp_wrappers or [], cuda_wrappers or [], extra_cuda_cflags or [])).encode()).hexdigest()[:8]
        built = os.path.join(place, f"{key}_{digest}.so")
        if not os.path.isfile(built):
            os.makedirs(place, exist_ok=True)
            with open(built + ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.isfile(built):
                    began = time.time()
                    library = _build(module, args, given)
                    shutil.copy(library, built + ".part")
                    os.replace(built + ".part", built)
                    print(f"ROUND_JIT compiled {os.path.basename(built)} in {time.time() - began:.1f} s", file=sys.stderr, flush=True)
        if os.environ.get("ROUND_JIT_BUILD_ONLY"):
            return None
        from tvm_ffi import load_module

        return load_module(built)

    module.load_jit = load_jit


def _build(module, args, given):
    """load_jit of SGLang 0.5.13, but that the library is not loaded."""
    from tvm_ffi.cpp import build_inline

    includes = list(given.get("extra_include_paths") or [])
    for dependency in set(given.get("extra_dependencies") or []):
        includes += module._REGISTERED_DEPENDENCIES[dependency]()
    files = {
        kind: [str((module.KERNEL_PATH / "csrc" / f).resolve()) for f in given.get(f"{kind}_files") or []]
        for kind in ("cpp", "cuda")
    }
    sources = {
        kind: [f'#include "{path}"' for path in files[kind]]
        + [module._make_wrapper(pair) for pair in given.get(f"{kind}_wrappers") or []]
        for kind in ("cpp", "cuda")
    }
    name = "sgl_kernel_jit_" + "_".join(str(a) for a in args)
    if files["cpp"] or files["cuda"]:
        name += "_" + module._local_jit_source_hash(files["cpp"] + files["cuda"])
    with module._jit_compile_context():
        return build_inline(
            name,
            cpp_sources=sources["cpp"],
            cuda_sources=sources["cuda"],
            extra_cflags=module.DEFAULT_CFLAGS + list(given.get("extra_cflags") or []),
            extra_cuda_cflags=module._get_default_target_flags() + list(given.get("extra_cuda_cflags") or []),
            extra_ldflags=module.DEFAULT_LDFLAGS + list(given.get("extra_ldflags") or []),
            extra_include_paths=module.DEFAULT_INCLUDE + includes,
            build_directory=given.get("build_directory"),
        )


_AFTER = {}
if os.environ.get("ROUND_FORCE_SM120") == "1":
    _AFTER["sglang.srt.utils.common"] = _common
if os.environ.get("ROUND_FMLA_CFG"):
    _AFTER["sglang.srt.layers.attention.flash_mla_sm120_triton"] = _flash_mla
if os.environ.get("ROUND_INIT") == "scaled":
    _AFTER["sglang.srt.model_loader.weight_utils"] = _weight_utils
if os.environ.get("ROUND_JIT_DIR"):
    _AFTER["sglang.jit_kernel.utils"] = _jit


class _Finder:
    """Finds the modules of _AFTER as Python does, and runs the function of each after its own code."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        after = _AFTER.get(name)
        if after is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            after(module)

        spec.loader.exec_module = exec_module
        return spec


if _AFTER:
    sys.meta_path.insert(0, _Finder)
