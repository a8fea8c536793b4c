"""Experience files of the released WebRL (`webarena_lite_sft.pt`, `<output>.pt`), read without running their code.

They are pickles. Content: a list of trajectories, each a list of items `observation` (the policy prompt),
`next_observation`, `task`, `reward`, `done`, `action`, `trajectory_reward`.
"""

from __future__ import annotations

import pickletools
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from webrl.errors import DataError
from webrl.llm.tokens import without_end
from webrl.runs.problems import ProblemLog
from webrl.runs.store import ZIP, open_input
from webrl.types import Label, Status, Step, Task, Trajectory
from webrl_webarena.vab import SITE

_USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
_ASSISTANT = "\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
_ADMITTED = re.compile(
    r"collections OrderedDict|__builtin__ set|_codecs encode|numpy dtype|numpy\._?core\.multiarray scalar|"
    r"torch \w+Storage|torch\._utils _rebuild_tensor_v2"
)
"""Fewer than torch admits (`bytearray(2**40)`, for one): what these build is no larger than the file."""


def load_restricted(path: Path) -> Any:
    """Content of a `torch.save` file, read by torch's loader of weights alone: containers, strings, numbers, tensors.

    It takes no more than a small multiple of the file's size: archives must be uncompressed, as torch writes them.
    Raises DataError: missing or damaged file, a compressed archive, or a pickle that asks for any other global.
    """
    import numpy as np
    import torch

    scalar: Any = np._core.multiarray.scalar  # type: ignore[attr-defined]
    kinds: list[Any] = [type(np.dtype(name)) for name in ("f8", "f4", "i8", "i4", "u1", "?")]
    admitted = [(scalar, "numpy.core.multiarray.scalar"), scalar, np.dtype, *kinds]
    try:
        with open_input(path, ZIP) as file:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                packed = next((member for member in members if member.compress_type != zipfile.ZIP_STORED), None)
                if packed:
                    raise DataError(
                        f"{path}: refused: {packed.filename!r:.80} is compressed ({packed.compress_size} bytes for "
                        f"{packed.file_size}), which torch.save never does; unpack it and check where it comes from"
                    )
                total, size = sum(member.file_size for member in members), path.stat().st_size
                if total > size:  # members that overlap, or sizes that are not true
                    raise DataError(f"{path}: refused: its members claim {total} bytes, but the file has {size}")
                for member in members:
                    data = archive.read(member) if member.filename.lower().endswith("data.pkl") else b"."
                    asked = (str(arg) for code, arg, _ in pickletools.genops(data) if code.name == "GLOBAL")
                    if code := next((name for name in asked if not _ADMITTED.fullmatch(name)), None):
                        name = code.replace("__builtin__", "builtins").replace(" ", ".")
                        raise DataError(
                            f"{path}: refused: the pickle refers to {name}, which is code; only plain containers, "
                            "strings, numbers and tensors are read. Do not load this file with anything less strict"
                        )
            file.seek(0)
            with torch.serialization.safe_globals(admitted):
                return torch.load(file, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except zipfile.BadZipFile:
        raise DataError(f"{path}: damaged file, or not one that torch.save writes (a zip archive)") from None
    except Exception as error:  # a damaged pickle can raise nearly anything while it is taken apart
        raise DataError(f"{path}: damaged file ({type(error).__name__}: {str(error)[:200]})") from None


def read_released(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, Label]]:
    """Trajectories of an experience file with their recorded outcome; what cannot be used is reported. Raises DataError
    as `load_restricted`, or for a flat list of steps (a `*_filter.pt`, whose trajectories are mixed up).
    """
    data = load_restricted(path)
    if not isinstance(data, list):
        raise DataError(f"{path}: expected a list of trajectories, found {type(data).__name__}")
    if data and all(isinstance(item, dict) for item in data):
        raise DataError(f"{path}: a flat list of shuffled steps (a *_filter file); name the unfiltered file instead")
    for number, items in enumerate(data):
        name, steps = f"{path.stem}-{number}", []
        try:
            if not isinstance(items, list) or not items:
                raise ValueError(f"expected a list of steps, found {_shown(items)}")
            task = _text(items[0], "task")
            for index, item in enumerate(items):
                response = without_end(_text(item, "action"))
                page = page_of_prompt(_text(item, "observation"), index)
                steps.append(Step(index, page, response, response.strip()))
            score = items[0]["trajectory_reward"] if "trajectory_reward" in items[0] else items[-1]["reward"]
            if not isinstance(score, int | float) or not -sys.float_info.max <= score <= 1:
                raise ValueError(f"the reward must be a number of at most 1, found {_shown(score)}")
        except (ValueError, KeyError, TypeError) as error:
            problems.add("bad_trajectory", f"{path}:{number}", f"trajectory {number}: {error}; left out")
            continue
        trajectory = Trajectory(
            trajectory_id=name,
            task=Task(task_id=name, site=SITE, instruction=task),
            instruction=task,
            phase=0,
            steps=tuple(steps),
            final_observation=steps[-1].observation,
            status=Status.AGENT_DONE if "exit(" in steps[-1].response else Status.STEP_LIMIT,
        )
        yield trajectory, Label(name, float(score), int(score >= 0.5), "released experience file")


def page_of_prompt(prompt: str, index: int) -> str:
    """The page of round `index` in a released policy prompt (`webrl.llm.prompts`). Raises ValueError: no such round."""
    start = prompt.rfind(f"Round {index}\n\n{_USER}")
    if start < 0 or not prompt.endswith(_ASSISTANT):
        raise ValueError(f"step {index}: the observation is not a policy prompt whose last round is {index}")
    return prompt[start + len(f"Round {index}\n\n{_USER}") : -len(_ASSISTANT)]


def _text(item: Any, name: str) -> str:
    if not isinstance(item, dict):
        raise ValueError(f"a step must be a dict, found {_shown(item)}")
    value = item[name]
    if not isinstance(value, str):
        raise ValueError(f"field {name!r} must be text, found {_shown(value)}")
    value.encode()  # UnicodeEncodeError, a ValueError: a lone surrogate, which no file of ours can hold
    return value


def _shown(value: Any) -> str:
    """A value for an error. Containers by type alone: a few bytes of references print as terabytes."""
    is_short = isinstance(value, str | bytes | float | None) or (isinstance(value, int) and abs(value) < 1e9)
    return repr(value)[:60] if is_short else f"a {type(value).__name__}"
