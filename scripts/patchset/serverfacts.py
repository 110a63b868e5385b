"""What a figure of a server depends on beside its build: its settings, and the GPUs it runs on."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import subprocess
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import gpus
from .errors import Failure

_DRIVER = Path("/proc/driver/nvidia/version")
# What a Python serves with; a package that it lacks is left out.
_VERSIONS = """
import json, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import torch
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    import triton
    found["triton"] = triton.__version__
except ImportError:
    pass
print(json.dumps(found))
"""
_SECONDS = 120

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


def model(info: Mapping) -> dict:
    """The shape of the served model, where its config.json is on this machine, and what its weights are."""
    found = {"weights": "random" if info.get("load_format") == "dummy" else None}
    try:
        data = (Path(info["model_path"]) / "config.json").read_bytes()
        config = json.loads(data)
        found |= {
            "layers": config["num_hidden_layers"],
            "hidden": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "experts": config.get("n_routed_experts"),
            "expert_width": config.get("moe_intermediate_size"),
            "config_sha256": hashlib.sha256(data).hexdigest(),
        }
        found["weights"] = found["weights"] or config.get("sm120_weights")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return found


def software(python: str) -> dict:
    """The driver of this machine, and the versions that an interpreter has; what is not known is left out."""
    found = {}
    try:
        found["driver"] = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER.read_text())[0]
    except (OSError, TypeError):
        pass
    command = [python, "-c", _VERSIONS]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS)
        found |= json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        pass
    return found


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
