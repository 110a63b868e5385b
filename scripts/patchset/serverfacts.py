"""What a figure of a server depends on beside its build: its settings, and the GPUs it runs on."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterable, Mapping

from . import gpus
from .errors import Failure

# Of what /server_info tells. No key of the user is among them; the name may be a path.
_SETTINGS = (
    *("served_model_name", "load_format", "dtype", "quantization", "kv_cache_dtype"),
    *("tp_size", "dp_size", "enable_dp_attention", "context_length"),
    *("chunked_prefill_size", "max_running_requests", "max_total_tokens"),
    *("mem_fraction_static", "disable_radix_cache", "disable_cuda_graph"),
    *("cuda_graph_bs", "cuda_graph_max_bs", "attention_backend", "sampling_backend"),
    *("moe_runner_backend", "speculative_algorithm", "random_seed"),
)


def settings(info: Mapping) -> dict:
    """The settings in an answer of /server_info that speed depends on, without a path of the user."""
    found = {name: info[name] for name in _SETTINGS if name in info}
    # A server that was given no name has its model's path for one.
    name = found.get("served_model_name")
    if name == info.get("model_path") or str(name).startswith("/"):
        found.pop("served_model_name", None)
    return found


def tokenizer(info: Mapping) -> str | None:
    """Where a server says that its tokenizer is: a folder of its machine, or a name on a hub."""
    return info.get("tokenizer_path") or info.get("model_path")


def machine(urls: Iterable[str], tp_size: int | None) -> dict | None:
    """The GPUs of servers at these addresses; None where one is on another machine, or none is seen."""
    if not all(_is_here(url) for url in urls):
        return None
    try:
        found = gpus.visible()
    except Failure:
        return None
    return {"gpu": found[0].name, "count": tp_size or 1}


def _is_here(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
