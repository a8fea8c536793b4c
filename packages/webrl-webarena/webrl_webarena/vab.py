"""Trace folders of VAB-WebArena-Lite.

`RESULT/traces/<task_id>.jsonl` holds one line per step (`trace_id, index, prompt, html, response, target`),
`RESULT/actions/<task_id>.json` the outcome (`task_id, actions, score`). The released WebRL code copies traces to
`RESULT/fixed_traces/` with a `score` in every line, which its outcome model replaces; where such a copy exists, its
score counts. One trace is in memory at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from webrl.errors import DataError
from webrl.llm.tokens import without_end
from webrl.runs.problems import TRACES, ProblemLog, kind_of
from webrl.runs.store import numbered_lines, open_input, read_json, refuse_twice
from webrl.runs.text import valid_text
from webrl.types import Label, Status, Step, Task, Trajectory

SITE = "webarena"
"""Traces do not name their site."""
_QUOTED_OR_COMMENT = re.compile(
    r"""('''.*?'''|\"{3}.*?\"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|^[ \t]*#[^\n]*\n?""", re.DOTALL | re.MULTILINE
)
"""Lines that begin with # inside a quoted text are the text's."""


def trace_paths(folder: Path) -> list[Path]:
    """Trace files of a result folder (or of the folder of traces in it), numbers in numeric order."""
    if folder.name not in TRACES:
        folder = next((folder / name for name in TRACES if (folder / name).is_dir()), folder / TRACES[0])
    # "" before a leading number keeps text and numbers at alternating positions, so that keys compare.
    return sorted(
        folder.glob("*.jsonl"),
        key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)],
    )


def read_vab(folder: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, Label]]:
    """Trajectories of a trace folder, each judged by the folder's own score: at least 0.5 is a success, as in the
    released code. What cannot be used is reported and left out. Raises DataError: no trace folder.

    A trace without an action file, or with a negative score, was cut short by an error: it comes back as
    `Status.ENV_ERROR`, so that it is neither judged nor trained on.
    """
    if kind_of(folder) != "vab":
        raise DataError(f"{folder}: no traces folder; expected RESULT/traces/<task_id>.jsonl")
    for path in trace_paths(folder):
        if (trajectory := read_trace(path, problems)) is None:
            continue
        score, name = trajectory.env_reward, trajectory.trajectory_id
        if score is None:
            yield trajectory, Label(name, None, None, "trace score", trajectory.message or "no score")
        else:
            yield trajectory, Label(name, score, int(score >= 0.5), "trace score")


def read_trace(path: Path, problems: ProblemLog) -> Trajectory | None:
    """One trace file and its score; None if it cannot be used (reported)."""
    rows = _read_rows(path, problems)
    if rows is None:
        return None
    actions = path.parent.parent / "actions" / f"{path.stem}.json"
    score: float | None = None
    problem: tuple[str, str, str] | None
    if not actions.exists() and not actions.is_symlink():
        problem = ("no_action_file", str(path), f"no action file {actions.name}; not scored")
    else:
        try:
            _open_inside(actions).close()
            data = read_json(actions)
            found = data.get("score") if isinstance(data, dict) else None
            score, problem = _checked_score(found, "bad_action_file", str(actions))
        except DataError as error:
            problem = ("bad_action_file", str(actions), f"{str(error).removeprefix(f'{actions}: ')}; not scored")
    fixed = path.parent.parent / TRACES[1] / path.name
    if fixed.exists() or fixed.is_symlink():  # its score counts, as in the released code
        recorded, place = score, str(fixed)
        if (copied := _read_rows(fixed, problems)) is None:
            score, problem = None, ("bad_fixed_trace", place, "the score cannot be read; not scored")
        else:
            place = f"{fixed}:{len(copied)}"
            score, problem = _checked_score(copied[-1].get("score"), "bad_fixed_trace", place)
        if score is not None and recorded is not None and (score >= 0.5) != (recorded >= 0.5):
            reason = f"score {score:g}, its action file says {recorded:g}; taken is the former, as in the released code"
            problems.add("other_score", place, reason)
    if problem:
        problems.add(*problem)
    steps = []
    for index, row in enumerate(rows):
        response = without_end(row["response"])
        # The call alone, without the `# Element:` and `# Note:` comments around it.
        action = _QUOTED_OR_COMMENT.sub(lambda found: found[1] or "", response).strip()
        steps.append(Step(index=index, observation=row["html"], response=response, action=action))
    finished = Status.AGENT_DONE if steps[-1].action.startswith("exit(") else Status.STEP_LIMIT
    return Trajectory(
        trajectory_id=path.stem,
        task=Task(task_id=path.stem, site=SITE, instruction=rows[0]["target"]),
        instruction=rows[0]["target"],
        phase=0,
        steps=tuple(steps),
        final_observation=rows[-1]["html"],
        status=Status.ENV_ERROR if score is None else finished,
        message=problem[2] if problem else "",
        env_reward=score,
    )


def _read_rows(path: Path, problems: ProblemLog) -> list[dict[str, Any]] | None:
    """Rows of the last attempt in a trace file, or None (reported)."""
    rows: list[dict[str, Any]] = []
    try:
        with _open_inside(path) as file:
            for number, line in numbered_lines(file, path):
                place, kind = f"{path}:{number}", "broken_line"
                if not line.strip():
                    continue
                text = line.decode("utf-8-sig", "replace")
                try:
                    read = json.loads(text, strict=False, object_pairs_hook=refuse_twice)  # control characters are text
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"malformed JSON ({error}): {line[:80]!r}") from None
                for name, wanted in {"html": str, "response": str, "target": str, "index": int}.items():
                    if type(found := read.get(name, read) if isinstance(read, dict) else read) is not wanted:
                        raise ValueError(f"field {name!r} must be {wanted.__name__}, found {found!r:.60}")
                row = read | {name: valid_text(read[name]) for name in ("html", "response", "target")}
                if row != read or text != line.decode("utf-8-sig", "ignore"):
                    problems.add("non_utf8", place, "text is not valid UTF-8; bad characters replaced")
                if rows and row["index"] == 0:
                    problems.add("duplicate_id", place, "the trace starts again; the earlier attempt is left out")
                    rows = []
                if row["index"] != len(rows):
                    kind = "missing_step"
                    raise ValueError(f"index {row['index']!r} after {len(rows)} steps")
                rows.append(row)
    except DataError as error:
        problems.add("unreadable", str(path), f"{str(error).removeprefix(f'{path}: ')}; left out")
        return None
    except ValueError as error:
        problems.add(kind, place, f"{error}; trace left out")
        return None
    if not rows:
        problems.add("empty", str(path), "no steps; left out")
    return rows or None


def _checked_score(score: Any, kind: str, place: str) -> tuple[float | None, tuple[str, str, str] | None]:
    """Score in [0, 1], or None and the problem (kind, place, reason)."""
    if isinstance(score, bool) or not isinstance(score, int | float):
        return None, (kind, place, f"score must be a number, found {score!r:.60}; not scored")
    if score < 0:
        return None, ("negative_score", place, f"score {score}: the episode ended in an error; not scored")
    if not score <= 1:
        return None, (kind, place, f"score {score} is not in [0, 1]; not scored")
    return float(score), None


def _open_inside(path: Path) -> IO[bytes]:
    """Open a file of a trace folder. Raises DataError as `open_input`, or for a link that leads out of the result
    folder: one from elsewhere must not read files outside of it.
    """
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not target.is_relative_to(path.parent.parent.resolve()):
        raise DataError(f"{path}: a link to {target}, outside of the folder; copy that file here if you trust it")
    return open_input(path)
