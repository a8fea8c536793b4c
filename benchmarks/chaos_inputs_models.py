"""Bad model folders. Columns: command, exit code, value, place, fix (`BadInput`)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from chaos_inputs_case import BadInput, a_fifo, a_folder, copy_of

_TRAJECTORY = (
    (Path(__file__).parent.parent / "data/samples/experience/trajectories.jsonl").read_bytes().partition(b"\n")[0]
)


def _nan_weights(path: Path) -> None:
    """Every byte of the tensors becomes 0xff: NaN in every float format."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    path.write_bytes(data[:start] + b"\xff" * (len(data) - start))


def _half(path: Path) -> None:
    """A download that was cut short."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _huge_header(path: Path) -> None:
    """A safetensors file that claims a header of 2**60 bytes."""
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def _architecture(name: str) -> str:
    return json.dumps({"model_type": name, "architectures": [f"{name.title()}Model"], "vocab_size": 10})


def _label(orm: str) -> str:
    return f"webrl label demo trackers=[] --run runs/r --phase 0 models.orm={orm}"


_JUDGED = {
    "runs/r/phase_00/stages/rollout.json": '{"counts": {}, "seconds": 1, "peak_mib": 1}',
    "runs/r/phase_00/trajectories.jsonl": _TRAJECTORY + b"\n",
}
_GEN = "python scripts/gen_task.py --failures data/samples/failures.jsonl --num_tasks 1 --output_path o.jsonl"
_PROCESS = "python scripts/process_data.py --stage 1 --rollout_path data/samples/experience --output_path o.jsonl"
_ORM = "webrl train-orm demo --data data/samples/vab --out orm"
_TINY = "data/tiny/orm"

MODELS = (
    BadInput(_label("runs/nowhere"), 1, "'runs/nowhere'", "model folder", "does not exist", files=_JUDGED),
    BadInput(_label("nobody/nothing"), 1, "'nobody/nothing'", "cannot read the config", "", files=_JUDGED),
    BadInput(_label("'two words'"), 1, "'two words'", "model folder", "does not exist", files=_JUDGED),
    BadInput("webrl run demo --dry-run 'models.actor=$HOME/actor'", 1, "'$HOME/actor'", "model folder", "does not exist"),
    BadInput("webrl run demo --dry-run 'models.actor=C:\\m\\actor'", 1, "'C:\\\\m\\\\actor'", "model folder", "does not exist"),
    BadInput(_label("data/README.md"), 1, "'data/README.md'", "model", "name its folder", files=_JUDGED),
    BadInput(_label("m"), 1, "'m'", "no config.json", "not a transformers checkpoint", files={**_JUDGED, "m": a_folder}),
    BadInput(_label("m"), 1, "'m'", "no tokenizer", "save it", files={**_JUDGED, "m": copy_of(_TINY, tokenizer_json=None, tokenizer_config_json=None)}),
    BadInput(_label("m"), 1, "'m'", "tokenizer", "", files={**_JUDGED, "m": copy_of(_TINY, tokenizer_json=_half)}),
    BadInput(_label("m"), 1, "'m'", "tokenizer", "", files={**_JUDGED, "m": copy_of(_TINY, tokenizer_json="[]")}),
    BadInput(_label("m"), 1, "'m'", "config.json", "not a transformers checkpoint", files={**_JUDGED, "m": copy_of(_TINY, config_json=None)}),
    BadInput(_label("m"), 1, "JSON", "m/config.json", "", files={**_JUDGED, "m": copy_of(_TINY, config_json=_half)}),
    BadInput(_label("m"), 1, "'m'", "", "", files={**_JUDGED, "m": copy_of(_TINY, config_json="[]")}),
    BadInput(_label("m"), 1, "'m'", "perceptron", "", files={**_JUDGED, "m": copy_of(_TINY, config_json=_architecture("perceptron"))}),
    BadInput(_label("m"), 1, "'m'", "", "", files={**_JUDGED, "m": copy_of(_TINY, config_json=_architecture("clip"))}),
    BadInput(_label("m"), 1, "'m'", "no model.safetensors in 'm'", "copy it again", files={**_JUDGED, "m": copy_of(_TINY, model_safetensors=None)}),
    BadInput(_label("m"), 1, "'m'", "pytorch_model.bin", "save_pretrained(NEW)", files={**_JUDGED, "m": copy_of(_TINY, model_safetensors=None), "m/pytorch_model.bin": b"\x80\x02]q\x00."}),
    BadInput(_label("m"), 1, "'m'", "cannot load", "", files={**_JUDGED, "m": copy_of(_TINY, model_safetensors=_half)}),
    BadInput(_label("m"), 1, "'m'", "cannot load", "", files={**_JUDGED, "m": copy_of(_TINY, model_safetensors=b"")}),
    BadInput(_label("m"), 1, "'m'", "cannot load", "header too large", files={**_JUDGED, "m": copy_of(_TINY, model_safetensors=_huge_header)}),
    BadInput("webrl eval demo --against m --dry-run", 1, "'m'", "no model.safetensors in 'm'", "copy it again", files={"m": copy_of("data/tiny/actor", model_safetensors=None)}),
    BadInput(_label("m"), 1, "'m'", "nan", "", files={**_JUDGED, "m": copy_of(_TINY, model_safetensors=_nan_weights)}),
    BadInput(_label("m"), 1, "m/adapter_config.json", "base_model_name_or_path", "save the adapter again", files={**_JUDGED, "m": copy_of(_TINY, adapter_config_json="{}")}),
    BadInput(_label("data/tiny/orm") + " models.device=cuda:7", 1, "'cuda:7'", "models.device", "models.device=cpu", files=_JUDGED),
    BadInput(f"{_GEN} --generator runs/nowhere", 1, "'runs/nowhere'", "model folder", "does not exist"),
    BadInput(f"{_GEN} --generator m", 1, "'m'", "nan", "", files={"m": copy_of("data/tiny/generator", model_safetensors=_nan_weights)}),
    BadInput(f"{_PROCESS} --actor_path runs/nowhere", 1, "'runs/nowhere'", "model folder", "does not exist"),
    BadInput(f"{_PROCESS} --actor_path m", 1, "non-finite", "score actions", "model folder", files={"m": copy_of("data/tiny/actor", model_safetensors=_nan_weights)}),
    BadInput(f"{_PROCESS} --actor_path m", 1, "'m'", "cannot load", "", files={"m": copy_of("data/tiny/actor", model_safetensors=_half)}),
    BadInput(f"{_PROCESS} --actor_path m", 1, "'m'", "cannot load", "header too large", files={"m": copy_of("data/tiny/actor", model_safetensors=_huge_header)}),
    BadInput(f"{_PROCESS} --add_reward --orm_path runs/nowhere", 1, "'runs/nowhere'", "model folder", "does not exist"),
    BadInput(f"{_ORM} --init runs/nowhere", 1, "'runs/nowhere'", "model folder", "does not exist"),
    BadInput(f"{_ORM} --init m", 1, "'m'", "cannot load", "", files={"m": copy_of(_TINY, model_safetensors=_half)}),
    BadInput(f"{_ORM} --init m", 1, "nan", "m", "", files={"m": copy_of(_TINY, model_safetensors=_nan_weights)}),
    BadInput("webrl label demo trackers=[] --run runs/r --phase 0", 1, "trajectories.jsonl", "no such file", "roll out first", files={**_JUDGED, "runs/r/phase_00/trajectories.jsonl": a_fifo}),
)  # fmt: skip
