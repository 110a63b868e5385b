"""The serving benchmark: sglang.bench_serving against several servers that take turns."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .askserver import same_server, web_address
from .errors import Exit, Failure
from .listing import columns
from .workload import Workload

FIGURES = ("output_throughput", "median_ttft_ms", "median_tpot_ms")
_TAIL = 15
# From a cold disk it takes a minute.
_IMPORT_SECONDS = 300
# Files and keys are named after arms, and some after the number of a patch.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Arm:
    """One server of the comparison: its name, URL, and the build that it must be."""

    name: str
    url: str
    build: str | None = None

    @property
    def asked_by(self) -> str:
        """What stands before a build that this server must be, on the command line."""
        return f"--arm {self.name}={self.url}@"


@dataclass(frozen=True)
class Run:
    """One run of one arm: round 0 is the warm-up. figures are those of bench_serving."""

    arm: str
    concurrency: int
    round: int
    figures: dict[str, float]


def parse_arm(text: str) -> Arm:
    """An option's NAME=URL or NAME=URL@BUILD. Raises ArgumentTypeError for another form."""
    name, found, rest = text.partition("=")
    url, _, build = rest.partition("@")
    if not (found and _NAME.fullmatch(name)):
        raise argparse.ArgumentTypeError(
            f"{text!r}: an arm is NAME=URL or NAME=URL@BUILD"
        )
    try:
        web_address(url)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Arm(name, url, build or None)


def unfit(arms: Sequence[Arm]) -> str | None:
    """Why these arms can't be compared with each other; None for arms that can."""
    for one, other in itertools.combinations(arms, 2):
        if one.name == other.name:
            return "two arms have the same name"
        if same_server(one.url, other.url):
            return (
                f"{one.name} and {other.name} are one server, {one.url}: each arm needs its own, "
                "at another port"
            )
    return None


def order(arms: Sequence[Arm], workload: Workload) -> Iterator[tuple[int, int, Arm]]:
    """(concurrency, round, arm) of each run: every other round goes the other way round."""
    for concurrency in workload.concurrency:
        for turn in range(workload.rounds + 1):
            yield from (
                (concurrency, turn, arm) for arm in (arms if turn % 2 else arms[::-1])
            )


def require_starting(python: str, environment: Mapping[str, str]) -> None:
    """Raise Failure(ENVIRONMENT) where this interpreter can't import sglang.bench_serving."""
    try:
        done = subprocess.run(
            [python, "-c", "import sglang.bench_serving"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        why = f"not imported in {_IMPORT_SECONDS} s"
        raise _unfit_python(python, why) from None
    except OSError as error:
        raise _unfit_python(python, error.strerror or str(error)) from None
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        raise _unfit_python(python, why.removeprefix("ModuleNotFoundError: "))


class Bench:
    """Runs of a workload; each appends a line to a JSONL file of its arm in a folder."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        workload: Workload,
        folder: Path,
        seconds: float,
        tokenizers: Mapping[str, str],
        api_key: str | None = None,
    ):
        self._python = python
        # By the arm's name. Without one sglang.bench_serving takes a served name for a hub's.
        self._tokenizers = tokenizers
        # sglang.bench_serving has no option for the key of a server.
        key = {"OPENAI_API_KEY": api_key} if api_key else {}
        self._environment = {**environment, **key}
        self._workload = workload
        self._folder = folder
        self._seconds = seconds

    def run_all(self, arms: Sequence[Arm], say: Callable[[str], None]) -> list[Run]:
        """Every run, arms taking turns; the warm-up runs are among them.

        Raises Failure(SERVER) when a run fails or loses a request; what was measured stays.
        """
        runs = []
        for concurrency, turn, arm in order(arms, self._workload):
            run = self.run(arm, concurrency, turn)
            runs.append(run)
            said = f"round {turn}" if turn else "warm-up"
            tokens = run.figures["output_throughput"]
            say(f"C={concurrency:<3} {said:<8} {arm.name}: {tokens:.1f} tok/s")
        return runs

    def run(self, arm: Arm, concurrency: int, turn: int) -> Run:
        """One run of one arm. Raises Failure(SERVER)."""
        file = self._folder / f"{self._workload.id}-{arm.name}.jsonl"
        before = _lines(file)
        command = self.command(arm, concurrency, turn, file)
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._seconds,
            )
        except subprocess.TimeoutExpired:
            raise self._failure(
                arm,
                f"no result in {self._seconds:g} s",
                "",
                "give it longer: --run-timeout S",
            ) from None
        except OSError as error:
            raise self._unfit(error.strerror or str(error)) from None
        said = done.stdout.decode("utf-8", "replace")
        # A benchmark that ran may have done without an optional module, and say so.
        if done.returncode and (found := re.search(r"No module named .*", said)):
            raise self._unfit(found[0])
        after = _lines(file)
        if done.returncode or len(after) != len(before) + 1:
            raise self._failure(
                arm, f"sglang.bench_serving failed (exit code {done.returncode})", said
            )
        return Run(arm.name, concurrency, turn, self._figures(arm, after[-1], said))

    def command(self, arm: Arm, concurrency: int, turn: int, file: Path) -> list[str]:
        """The command line of one run."""
        work = self._workload
        # Another seed in each round: no prompt is met twice, whatever cache the server keeps.
        seed = work.seed + 1_000 * turn
        options = {
            "--backend": "sglang",
            "--base-url": arm.url,
            "--dataset-name": "random-ids",
            "--random-input-len": work.input_tokens,
            "--random-output-len": work.output_tokens,
            # Without it lengths are drawn from 1 up.
            "--random-range-ratio": 1.0,
            "--num-prompts": concurrency * work.requests_per_slot,
            "--max-concurrency": concurrency,
            "--request-rate": "inf",
            "--warmup-requests": 1,
            "--seed": seed,
            "--tag": f"{arm.name} round {turn}",
            "--output-file": file,
        }
        if arm.name in self._tokenizers:
            options["--model"] = self._tokenizers[arm.name]
        words = [str(word) for pair in options.items() for word in pair]
        flags = ["--tokenize-prompt", "--flush-cache", "--disable-tqdm"]
        return [self._python, "-m", "sglang.bench_serving", *words, *flags]

    def _figures(self, arm: Arm, line: str, said: str) -> dict[str, float]:
        try:
            result = json.loads(line)
            figures = {name: float(result[name]) for name in FIGURES}
            requests = result["max_concurrency"] * self._workload.requests_per_slot
            completed, tokens = result["completed"], result["total_output_tokens"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failure(
                arm, f"sglang.bench_serving wrote no figures: {error!r}", said
            ) from None
        if completed != requests:
            raise self._failure(
                arm, f"{completed} of {requests} requests came through", said
            )
        if tokens != requests * self._workload.output_tokens:
            raise self._failure(
                arm,
                f"{tokens} of {requests * self._workload.output_tokens} tokens came",
                said,
            )
        return figures

    def _unfit(self, why: str) -> Failure:
        return _unfit_python(self._python, why, self._state())

    def _state(self) -> str:
        if not any(self._folder.iterdir()):
            return "nothing was measured"
        return f"what was measured before is in {self._folder}"

    def _failure(
        self, arm: Arm, what: str, said: str, next: str = "look into the server's log"
    ) -> Failure:
        return Failure(
            Exit.SERVER,
            f"{arm.name}: {what}",
            where="\n".join([arm.url, *said.strip().splitlines()[-_TAIL:]]),
            state=self._state(),
            next=next,
        )


def summary(runs: Sequence[Run], arms: Sequence[Arm]) -> list[dict]:
    """Median figures of each arm at each concurrency, and the throughput's ratio to the first arm."""
    rows = []
    for concurrency in dict.fromkeys(run.concurrency for run in runs):
        first = None
        for arm in arms:
            counted = [
                run
                for run in runs
                if (run.arm, run.concurrency) == (arm.name, concurrency) and run.round
            ]
            row = {"concurrency": concurrency, "arm": arm.name, "runs": len(counted)}
            for name in FIGURES:
                row[name] = statistics.median(run.figures[name] for run in counted)
            throughput = [run.figures["output_throughput"] for run in counted]
            row["least"], row["most"] = min(throughput), max(throughput)
            first = first or row["output_throughput"]
            row["ratio"] = row["output_throughput"] / first
            rows.append(row)
    return rows


def table(rows: Sequence[dict]) -> list[str]:
    """The summary for a person."""
    head = ("C", "arm", "tok/s", "least..most", "TTFT ms", "TPOT ms", "ratio")
    lines = [
        (
            str(row["concurrency"]),
            row["arm"],
            f"{row['output_throughput']:.1f}",
            f"{row['least']:.1f}..{row['most']:.1f}",
            f"{row['median_ttft_ms']:.1f}",
            f"{row['median_tpot_ms']:.2f}",
            f"{row['ratio']:.3f}",
        )
        for row in rows
    ]
    return columns([head, *lines])


def as_json(runs: Sequence[Run]) -> list[dict]:
    """The runs in the order in which they were made."""
    return [asdict(run) for run in runs]


def _unfit_python(
    python: str, why: str, state: str = "nothing was measured"
) -> Failure:
    return Failure(
        Exit.ENVIRONMENT,
        f"sglang.bench_serving can't be started: {why}",
        where=python,
        state=state,
        next="name an interpreter that has SGLang and its dependencies: --python PY",
    )


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
