"""Trace folders of VAB-WebArena-Lite, as its code writes them."""

import json

HTML = '<button id="7">Search</button>'


def make_rows(task_id="12", num_steps=2, target="Find the cheapest lamp"):
    last = 'exit(message="Lamp X")'
    return [
        {
            "trace_id": task_id,
            "index": i,
            "prompt": target if i == 0 else "** Simplified html **",
            "html": f"{HTML}<!-- {i} -->",
            "response": last if i == num_steps - 1 else "# Element: the search button\ndo(action='Click', element='7')",
            "target": target,
        }
        for i in range(num_steps)
    ]


def write_trace(folder, task_id="12", rows=None, score=1.0, lines=None):
    for name in ("traces", "actions"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    rows = make_rows(task_id) if rows is None else rows
    data = b"".join(lines) if lines is not None else "\n".join(map(json.dumps, rows)).encode()
    (folder / "traces" / f"{task_id}.jsonl").write_bytes(data)
    if score is not None:
        action = {"task_id": task_id, "actions": ["a"], "score": score}
        (folder / "actions" / f"{task_id}.json").write_text(json.dumps(action))
