"""Stands in for `webarena-verified eval-tasks`: the same options, files and kind of verdict, for two kinds of tasks.

A task succeeds if the answer is the JSON that `EXPECTED` has, and a 200 for its page is in the traffic.
"""

import argparse
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

EXPECTED = {44: ("NAVIGATE", "gitlab", "/dashboard/todos"), 276: ("NAVIGATE", "shopping", "/catalogsearch/result/")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["eval-tasks"])
    parser.add_argument("--task-ids", type=int, required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    args = parser.parse_args()
    files = args.output_dir / str(args.task_ids)
    kind, site, path = EXPECTED[args.task_ids]
    if "BROKEN" in (files / "agent_response.json").read_text():
        sys.exit("scorer: out of order")
    if "GARBLED" in (files / "agent_response.json").read_text():
        (files / "eval_result.json").write_text("{")
        return
    base = json.loads((files / "run_config.json").read_text())["environments"][f"__{site.upper()}__"]["urls"][0]
    failed = []
    try:
        right = json.loads((files / "agent_response.json").read_text())["task_type"] == kind
    except (ValueError, TypeError):
        right = False
    if not right:
        failed.append(("AgentResponseEvaluator", f"Expected {kind}"))
    entries = json.loads((files / "network.har").read_text())["log"]["entries"]
    asked = [(e["request"]["url"], e["response"]["status"]) for e in entries]
    if not any(url.startswith(base) and urlsplit(url).path == path and status == 200 for url, status in asked):
        failed.append(("NetworkEventEvaluator", f"No event at {path} in {asked}"))
    results = [
        {"evaluator_name": name, "status": "failure", "assertions": [{"status": "failure", "assertion_msgs": [why]}]}
        for name, why in failed
    ]
    verdict = {
        "task_id": args.task_ids,
        "status": "failure" if failed else "success",
        "score": 0.0 if failed else 1.0,
        "evaluators_results": results,
    }
    (files / "eval_result.json").write_text(json.dumps(verdict))


if __name__ == "__main__":
    main()
