"""Replay's share of the curriculum benchmark: process_data against its floor, and perplexity scoring.

`python benchmarks/curriculum_replay.py [--trajectories 10000] [--history 2000] [--steps 400]`; the last line of the
output is one JSON object. `benchmarks/curriculum.py` calls `measure_process` and `measure_scoring`.

The floor is what nobody can do without: parse every input line with orjson and write it again. Ours is the published
command as a process of its own, from start to exit, with the same files; peak memory is that process's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

REPO = Path(__file__).parent.parent
PAGE_BYTES = 8_000
PROMPT_TOKENS = 2_000
"""About what a page of 8 kB takes."""
NUM_STEPS = 10


def measure_process(folder: Path, num_current: int = 10_000, num_history: int = 2_000) -> dict[str, Any]:
    """Stages 1 and 2 without models over synthetic trajectories, against the floor; files go to `folder`."""
    trajectories, labels = folder / "trajectories.jsonl", folder / "labels.jsonl"
    history = folder / "history.jsonl"
    _write_trajectories(trajectories, labels, num_current)
    _write_history(history, num_history)
    inputs = [trajectories, history]
    num_bytes = sum(path.stat().st_size for path in inputs)
    floor_s = min(_floor(inputs, folder / "floor.jsonl") for _ in range(2))
    runs = [_run_process(folder, trajectories, history) for _ in range(2)]
    seconds, peak_mib = min(s for s, _ in runs), max(m for _, m in runs)
    kept = sum(1 for _ in (folder / "train_filter.jsonl").open("rb"))
    return {
        "process_floor_fraction": round(floor_s / seconds, 3),
        "process_peak_mib": round(peak_mib, 1),
        "process_s": round(seconds, 2),
        "process_mb_per_s": round(num_bytes / seconds / 1e6, 1),
        "floor_mb_per_s": round(num_bytes / floor_s / 1e6, 1),
        "process_input_mb": round(num_bytes / 1e6, 1),
        "process_output_records": kept,
        **measure_records(trajectories),
    }


def measure_records(trajectories: Path) -> dict[str, float]:
    """CPU time of reading the first 1,000 trajectories as records, and of making training records of them and writing
    those, in shares of parsing, and of parsing and writing, alone.
    """
    from webrl.interop.problems import ProblemLog
    from webrl.replay.sources import Tools, build_records
    from webrl.types import Trajectory

    tools = Tools(ProblemLog())
    with trajectories.open("rb") as file:
        lines = list(itertools.islice(file, 1000))

    def best_s(work: Callable[[bytes], Any]) -> float:
        def once() -> float:
            start = time.process_time()
            for line in lines:
                work(line)
            return time.process_time() - start

        return min(once() for _ in range(4))

    def rewrite(line: bytes) -> None:
        for record in build_records(Trajectory.from_json(orjson.loads(line)), None, tools):
            orjson.dumps(record)

    return {
        "records_read_s": round(read_s := best_s(lambda line: Trajectory.from_json(orjson.loads(line))), 3),
        "records_read_floor_fraction": round(best_s(orjson.loads) / read_s, 3),
        "records_rewrite_floor_fraction": round(
            best_s(lambda line: orjson.dumps(orjson.loads(line))) / best_s(rewrite), 3
        ),
    }


def measure_scoring(actor: Path, num_steps: int = 400) -> dict[str, Any]:
    """`score_both_ways` in a process of its own, with the malloc and OpenMP settings that every webrl command has.

    They act before Python starts only.
    """
    from webrl.training.cpu_variables import cpu_environment

    command = [sys.executable, str(Path(__file__).resolve()), "--only-scoring", "--steps", str(num_steps)]
    environment = {**os.environ, **cpu_environment(), "PYTHONPATH": str(REPO)}
    result = subprocess.run([*command, "--actor", str(actor)], env=environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = orjson.loads(result.stdout.splitlines()[-1])
    return figures


def score_both_ways(actor: Path, num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Perplexity scoring of `num_steps` steps: batched by length against one by one, and a second time from the cache.

    One by one is the released code's way: a forward pass a step, with the language model's loss and a log-softmax
    over every position's vocabulary. Steps are as long as the demo's: 50 to 300 tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from webrl.config import validate_config
    from webrl.replay.score import Scorer
    from webrl.training.models import check_tokenizer

    config = validate_config({"models": {"device": "cpu", "dtype": "float32"}}, "benchmark")
    model = AutoModelForCausalLM.from_pretrained(actor, dtype=torch.float32).eval()
    records = _records(num_steps, model.config.vocab_size, random.Random(seed))
    check_tokenizer(actor, set())  # imports are no part of either side
    one_by_one_s, reference = _one_by_one(model, records)
    del model
    with tempfile.TemporaryDirectory() as folder, Scorer(str(actor), config, Path(folder) / "scores.sqlite") as scorer:
        start = time.perf_counter()
        scored = list(scorer.stream(records))
        batched_s = time.perf_counter() - start
        start = time.perf_counter()
        again = list(scorer.stream(records))
        cached_s = time.perf_counter() - start
        assert again == scored
        assert (scorer.counts.computed, scorer.counts.cached) == (num_steps, num_steps)
    sums = [math.fsum(record.ref_logprobs or ()) for record in scored]
    return {
        "scoring_ratio": round(one_by_one_s / batched_s, 2),
        "scoring_one_by_one_s": round(one_by_one_s, 2),
        "scoring_batched_s": round(batched_s, 2),
        "scoring_cached_s": round(cached_s, 3),
        "scoring_steps": num_steps,
        "scoring_largest_difference": max(abs(a - b) for a, b in zip(sums, reference, strict=True)),
    }


def _one_by_one(model: Any, records: list[Any]) -> tuple[float, list[float]]:
    import torch

    sums = []
    start = time.perf_counter()
    with torch.no_grad():
        for record in records:
            ids = torch.tensor([[*record.prompt_ids, *record.action_ids]])
            log_probs = model(ids, labels=ids, use_cache=False).logits.log_softmax(-1)
            actions = torch.tensor(record.action_ids)
            at = log_probs[0, len(record.prompt_ids) - 1 : -1]
            sums.append(float(at.gather(1, actions[:, None]).sum()))
    return time.perf_counter() - start, sums


def _records(num: int, vocabulary: int, rng: random.Random) -> list[Any]:
    from webrl.types import StepRecord

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(rng.randrange(low, high)))

    return [StepRecord(f"t{i}:0", f"t{i}", f"do {i}", "site", 0, 0, 1, ids(50, 300), ids(5, 15), 1) for i in range(num)]


def _write_trajectories(path: Path, labels: Path, num: int) -> None:
    rng = random.Random(0)
    with path.open("wb") as file, labels.open("wb") as label_file:
        for i in range(num):
            file.write(orjson.dumps(_trajectory(f"t{i}", rng), option=orjson.OPT_APPEND_NEWLINE))
            label = {"trajectory_id": f"t{i}", "p_yes": 0.9, "reward": i % 2, "judge": "synthetic", "error": ""}
            label_file.write(orjson.dumps(label, option=orjson.OPT_APPEND_NEWLINE))


def _trajectory(name: str, rng: random.Random) -> dict[str, Any]:
    steps = [
        {
            "index": i, "observation": _page(rng), "response": "click('12')", "action": "click('12')", "error": "",
            "prompt_ids": _ids(rng, PROMPT_TOKENS), "action_ids": _ids(rng, 12),
            "logprobs": [-rng.random() for _ in range(12)], "url": "http://localhost/", "screenshot": "", "blocked": 0,
            "seconds": {"policy": 0.1, "browser": 0.02},
        }
        for i in range(NUM_STEPS)
    ]  # fmt: skip
    lineage = {"strategy": "seed", "parent_ids": [], "model": "", "prompt_hash": "", "phase": 0}
    task = {
        "task_id": f"task-{name}", "site": "site", "seed": 0, "instruction": None, "start_url": None,
        "split": "train", "lineage": lineage, "extra": {},
    }  # fmt: skip
    return {
        "trajectory_id": name, "task": task, "instruction": f"do {name}", "phase": 0, "steps": steps,
        "final_observation": _page(rng), "status": "agent_done", "message": "", "env_reward": None, "seconds": 1.0,
        "attempts": 1, "policy": "synthetic",
    }  # fmt: skip


def _write_history(path: Path, num: int) -> None:
    """Training records of earlier phases with stored log-probabilities inside the band."""
    rng = random.Random(1)
    with path.open("wb") as file:
        for i in range(num):
            for step in range(NUM_STEPS):
                record = {
                    "step_id": f"h{i}:{step}", "trajectory_id": f"h{i}", "instruction": f"do h{i}", "site": "site",
                    "phase": 0, "index": step, "num_steps": NUM_STEPS, "prompt_ids": _ids(rng, PROMPT_TOKENS),
                    "action_ids": _ids(rng, 12), "outcome": i % 2, "logprobs": None,
                    "ref_logprobs": [math.log(0.7)] * 12, "value": None, "next_value": None, "source": "current",
                    "tokenizer": "", "next_prompt_ids": [], "group": f"task-h{i}",
                }  # fmt: skip
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


_WORDS = ("button", "'ok'", "[12]", "link", "StaticText", "\n\t", "visible", "clickable", "heading", "ü", '"quoted"')
_POOL = [random.Random(7).choices(range(128_000), k=PROMPT_TOKENS) for _ in range(64)]


_PAGES = [" ".join(random.Random(i).choices(_WORDS, k=PAGE_BYTES // 5))[:PAGE_BYTES] for i in range(64)]


def _page(rng: random.Random) -> str:
    return rng.choice(_PAGES)


def _ids(rng: random.Random, num: int) -> list[int]:
    return _POOL[rng.randrange(len(_POOL))][:num]


def _floor(inputs: list[Path], out: Path) -> float:
    start = time.perf_counter()
    with out.open("wb", buffering=1 << 20) as target:
        for path in inputs:
            with path.open("rb") as source:
                for line in source:
                    target.write(orjson.dumps(orjson.loads(line), option=orjson.OPT_APPEND_NEWLINE))
    return time.perf_counter() - start


def _run_process(folder: Path, trajectories: Path, history: Path) -> tuple[float, float]:
    """Seconds from start to exit and peak resident MiB of the published command."""
    config = folder / "config.yaml"
    config.write_text("name: benchmark\n")
    command = [
        sys.executable, str(REPO / "scripts" / "process_data.py"), "--stage", "1", "2", "--setting", str(config),
        "--rollout_path", str(trajectories), "--experience_paths", str(history), "--actor_path", "none",
        "--output_path", str(folder / "train.jsonl"),
    ]  # fmt: skip
    start = time.perf_counter()
    pid = os.posix_spawn(sys.executable, command, {**os.environ, "PYTHONPATH": str(REPO)})
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"process_data failed with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=10_000, help="current trajectories (default: 10000)")
    parser.add_argument("--history", type=int, default=2_000, help="history trajectories (default: 2000)")
    parser.add_argument("--steps", type=int, default=400, help="steps to score (default: 400)")
    parser.add_argument("--actor", type=Path, default=REPO / "data" / "tiny" / "actor", help="model that scores")
    parser.add_argument("--only-scoring", action="store_true", help="in this process, with its settings")
    args = parser.parse_args()
    if args.only_scoring:
        print(json.dumps(score_both_ways(args.actor, args.steps)))
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        result = measure_process(Path(folder), args.trajectories, args.history)
    result |= measure_scoring(args.actor, args.steps)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
