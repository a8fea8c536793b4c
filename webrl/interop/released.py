"""Experience files of the released WebRL (`webarena_lite_sft.pt`, `<output>.pt`), read without running their code.

They are pickles. Ours is a restricted unpickler: plain containers, strings, numbers and tensors; a pickle that names
anything else is refused before anything of it runs. Content: a list of trajectories, each a list of
items `observation` (the policy prompt), `next_observation`, `task`, `reward`, `done`, `action`, `trajectory_reward`.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from webrl.disk import atomic_path
from webrl.errors import DataError
from webrl.interop.problems import ProblemLog
from webrl.interop.vab import SITE
from webrl.llm.turns import without_end
from webrl.store import dump_line, open_input
from webrl.types import Label, Status, Step, Task, Trajectory

_USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
_ASSISTANT = "\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


def load_restricted(path: Path) -> Any:
    """Content of a `torch.save` file (or a bare pickle): containers, strings, numbers, tensors on the CPU.

    Raises:
        DataError: missing or damaged file, or a pickle that asks for any other global (which is named).
    """
    try:
        with open_input(path) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return _Unpickler(file, path, {}).load()
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            if "data.pkl" not in names:
                raise DataError(f"{path}: no data.pkl inside; not a torch.save file")
            storages = {n[5:]: (archive, full) for n, full in names.items() if n.startswith("data/")}
            return _Unpickler(io.BytesIO(archive.read(names["data.pkl"])), path, storages).load()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything while it is taken apart
        raise DataError(f"{path}: damaged file ({type(error).__name__}: {error})") from None


def read_released(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, Label]]:
    """Trajectories of an experience file with their recorded outcome; what cannot be used is reported.

    Raises:
        DataError: see `load_restricted`; or a flat list of steps (a `*_filter.pt`, whose trajectories are mixed up).
    """
    data = load_restricted(path)
    if not isinstance(data, list):
        raise DataError(f"{path}: expected a list of trajectories, found {type(data).__name__}")
    if data and all(isinstance(item, dict) for item in data):
        raise DataError(f"{path}: a flat list of shuffled steps (a *_filter file); convert the unfiltered file instead")
    for number, items in enumerate(data):
        place = f"{path}:{number}"
        try:
            yield _trajectory(f"{path.stem}-{number}", items)
        except (ValueError, KeyError, TypeError) as error:
            problems.add("bad_trajectory", place, f"trajectory {number}: {error}; left out")


def convert_released(path: Path, out: Path) -> dict[str, int]:
    """Write `out/trajectories.jsonl` and `out/labels.jsonl`; problems go to `out/problems.txt`.

    Returns:
        `trajectories`, `successes`, and problems by kind.

    Raises:
        DataError: see `read_released`; also if there is no usable trajectory.
    """
    counts: Counter[str] = Counter()
    out.mkdir(parents=True, exist_ok=True)
    with (
        ProblemLog(out / "problems.txt") as problems,
        atomic_path(out / "trajectories.jsonl") as trajectories,
        atomic_path(out / "labels.jsonl") as labels,
        trajectories.open("wb") as trajectory_file,
        labels.open("wb") as label_file,
    ):
        for trajectory, label in read_released(path, problems):
            trajectory_file.write(dump_line(trajectory))
            label_file.write(dump_line(label))
            counts["trajectories"] += 1
            counts["successes"] += label.reward == 1
        if not counts["trajectories"]:
            raise DataError(f"{path}: no usable trajectory: {dict(problems.counts)}")
        return dict(counts + problems.counts)


def _trajectory(trajectory_id: str, items: Any) -> tuple[Trajectory, Label]:
    if not isinstance(items, list) or not items:
        raise ValueError(f"expected a list of steps, found {items!r:.60}")
    task = _text(items[0], "task")
    steps = []
    for index, item in enumerate(items):
        response = without_end(_text(item, "action"))
        steps.append(Step(index, page_of_prompt(_text(item, "observation"), index), response, response.strip()))
    score = float(items[0].get("trajectory_reward", items[-1]["reward"]))
    trajectory = Trajectory(
        trajectory_id=trajectory_id,
        task=Task(task_id=trajectory_id, site=SITE, instruction=task),
        instruction=task,
        phase=0,
        steps=tuple(steps),
        final_observation=steps[-1].observation,
        status=Status.AGENT_DONE if "exit(" in steps[-1].response else Status.STEP_LIMIT,
    )
    return trajectory, Label(trajectory_id, score, int(score >= 0.5), "released experience file")


def page_of_prompt(prompt: str, index: int) -> str:
    """The page of round `index` in a released policy prompt (`webrl.llm.prompts`).

    Raises:
        ValueError: the prompt has no such round.
    """
    start = prompt.rfind(f"Round {index}\n\n{_USER}")
    if start < 0 or not prompt.endswith(_ASSISTANT):
        raise ValueError(f"step {index}: the observation is not a policy prompt whose last round is {index}")
    return prompt[start + len(f"Round {index}\n\n{_USER}") : -len(_ASSISTANT)]


def _text(item: Any, name: str) -> str:
    value = item[name]
    if not isinstance(value, str):
        raise ValueError(f"field {name!r} must be text, found {value!r:.60}")
    return value


class _Unpickler(pickle.Unpickler):
    """Admits the globals below and no others; nothing that it gives out can call back into a module."""

    def __init__(self, file: Any, path: Path, storages: dict[str, tuple[zipfile.ZipFile, str]]) -> None:
        super().__init__(file, encoding="utf-8")
        self._path = path
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        admitted = _ADMITTED.get((module, name))
        if admitted is None:
            raise DataError(
                f"{self._path}: refused: the pickle asks for {module}.{name}, which is code; only plain containers, "
                "strings, numbers and tensors are read. Do not load this file with anything less strict"
            )
        return admitted

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or key not in self._storages:
            raise DataError(f"{self._path}: unknown storage {pid!r:.80}")
        archive, name = self._storages[key]
        return dtype, bytearray(archive.read(name))


def _rebuild_tensor(storage: tuple[str, bytearray], offset: int, size: Any, stride: Any, *_: Any) -> Any:
    import torch

    dtype, data = storage
    if not data:
        return torch.empty(tuple(size), dtype=getattr(torch, dtype))
    flat = torch.frombuffer(data, dtype=getattr(torch, dtype))
    return flat.as_strided(tuple(size), tuple(stride), offset)


class _Dtype:
    """Stands for `numpy.dtype` of a scalar."""

    def __init__(self, spec: str, *_: Any) -> None:
        self.spec = spec

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment; scalars in these files are little-endian."""


_SCALARS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "u1": "<B", "b1": "<?"}


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return struct.unpack(_SCALARS[dtype.spec], data)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # Protocol 2 writes bytes as `_codecs.encode(text, "latin1")`; other codecs could decompress or transform.
    if encoding != "latin1":
        raise DataError(f"refused: the pickle asks for codec {encoding!r}")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("__builtin__", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
}
