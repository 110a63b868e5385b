"""Kernels that DeepSeek-V4 runs on sm_120 cards, and the choice of path around them.

The same files are the folder ``kernels/`` of the patch repository and the package
``sglang.srt.layers.sm120`` of a patched SGLang tree: imports inside are relative, and a kernel module
needs torch and triton only, or cuda.bindings for CUDA C++.
"""
