"""Short hashes that tell whether two records come from the same weights or the same tokenizer."""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from webrl.errors import ModelError

_WHOLE_FILE_BYTES = 64 << 20
"""Weight files up to this size are hashed whole; larger ones by header and evenly spread blocks."""
_BLOCK_BYTES = 64 << 10
_NUM_BLOCKS = 256
_HEX_DIGITS = 16
_TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_NO_TOKENIZER = ("config.json", "generation_config.json", "model.safetensors.index.json", "adapter_config.json")
_fingerprints: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
"""Tokenizer -> its length, and its fingerprint, which takes seconds for a large one."""


def tokenizer_digest(folder: Path) -> str:
    """Hex digits over all that a folder's tokenizer is loaded from, chat template included."""
    digest = hashlib.sha256()
    files = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    for file in sorted(f for f in files if f.suffix in _TOKENIZER_SUFFIXES and f.name not in _NO_TOKENIZER):
        digest.update(f"{file.name} {file.stat().st_size} ".encode())
        digest.update(file.read_bytes())
    with contextlib.suppress(OSError, ValueError, AttributeError):  # transformers looks at these two
        config = json.loads((folder / "config.json").read_bytes())
        digest.update(f"{config.get('model_type')} {config.get('transformers_version')}".encode())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """16 hex digits over everything that decides which ids a text becomes (not the chat template).

    Equal for a tokenizer and its saved and reloaded copy. Remembered as long as the tokenizer has the same length.
    """
    known = _fingerprints.get(tokenizer)
    if known is not None and known[0] == len(tokenizer):
        return known[1]
    if getattr(tokenizer, "is_fast", False):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state.pop("truncation", None)
        state.pop("padding", None)
    else:
        added = {t.content: i for i, t in tokenizer.added_tokens_decoder.items()}
        state = {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "added": added}
    fingerprint = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:_HEX_DIGITS]
    _fingerprints[tokenizer] = (len(tokenizer), fingerprint)
    return fingerprint


def weights_fingerprint(folder: Path | str) -> str:
    """16 hex digits over the weight files of a model or adapter folder.

    Files above 64 MiB are sampled (size, first block, 256 blocks spread evenly, last block), so that an 8B model
    takes well under a second. Cached by path, size and modification time.

    Raises:
        ModelError: the folder holds no `.safetensors` or `.bin` weights.
    """
    root = Path(folder)
    files = sorted(root.glob("*.safetensors")) or sorted(root.glob("*.bin"))
    if not files:
        raise ModelError(f"{str(root)!r} holds no weights (*.safetensors); was the checkpoint saved completely?")
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(file.name.encode())
        digest.update(_file_digest(str(file.resolve()), (stat.st_size, stat.st_mtime_ns)))
    return digest.hexdigest()[:_HEX_DIGITS]


@lru_cache(maxsize=256)
def _file_digest(path: str, version: tuple[int, int]) -> bytes:
    size, _ = version  # the modification time is there for the cache key
    digest = hashlib.sha256(str(size).encode())
    with Path(path).open("rb") as file:
        if size <= _WHOLE_FILE_BYTES:
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            for index in range(_NUM_BLOCKS + 1):
                file.seek((size - _BLOCK_BYTES) * index // _NUM_BLOCKS)
                digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()
