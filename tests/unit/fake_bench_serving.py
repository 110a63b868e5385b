"""What stands for sglang.bench_serving: it writes the line that its environment asks for."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in (
        "backend base-url dataset-name random-input-len random-output-len random-range-ratio num-prompts "
        "max-concurrency request-rate warmup-requests seed tag output-file"
    ).split():
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--model")
    for name in "tokenize-prompt flush-cache disable-tqdm".split():
        parser.add_argument("--" + name, action="store_true")
    a = parser.parse_args()
    how = os.environ.get("FAKE", "good")
    print("asked", a.tag, flush=True)
    if how == "warns":
        print("No module named 'optional_there'", flush=True)
    if how == "fails":
        sys.exit(
            "ValueError: Warmup failed - Please make sure benchmark arguments are correctly specified."
        )
    if how == "hangs":
        time.sleep(60)
    n, out = int(a.num_prompts), int(a.random_output_len)
    line = {
        "tag": a.tag,
        "model": a.model,
        "url": a.base_url,
        "seed": a.seed,
        "ratio": a.random_range_ratio,
        "key": os.environ.get("OPENAI_API_KEY"),
        "max_concurrency": int(a.max_concurrency),
        "completed": n,
        "total_output_tokens": n * out,
        "output_throughput": 100.0 * int(a.max_concurrency),
        "median_ttft_ms": 20.0,
        "median_tpot_ms": 5.0,
    }
    if how == "loses":
        line["completed"] -= 1
    if how == "short":
        line["total_output_tokens"] -= 1
    if how == "no figures":
        del line["median_tpot_ms"]
    if how != "silent":
        with open(a.output_file, "a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
