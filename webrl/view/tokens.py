"""An answer's tokens as text, with the run's own tokenizer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from webrl.errors import WebRLError
from webrl.llm.loading import adapter_base

logger = logging.getLogger(__name__)

_UNFINISHED = "\ufffd"
"""What a tokenizer shows of a character whose other bytes are in the next tokens."""
_MAX_UNFINISHED = 8
"""Tokens that one character has at most."""
_MAX_BYTES = 128 << 20


@dataclass(frozen=True)
class Tokenizer:
    """Turns token ids into text."""

    backend: Any
    """`tokenizers.Tokenizer`."""

    def pieces(self, ids: tuple[int, ...]) -> list[str]:
        """[A] the text that each token adds; a character of several tokens stands with its last one."""
        texts: list[str] = []
        start, done = 0, 0  # tokens start to done are shown, and say how the next one is spelled after them
        for end in range(1, len(ids) + 1):
            text = self.text(ids[start:end])
            if text.endswith(_UNFINISHED) and end < len(ids) and end - done < _MAX_UNFINISHED:
                texts.append("")
                continue
            texts.append(text[len(self.text(ids[start:done])) :])
            start, done = done, end
        return texts

    def text(self, ids: tuple[int, ...], *, plain: bool = False) -> str:
        """The ids' text; `plain` leaves control tokens out."""
        return str(self.backend.decode(list(ids), skip_special_tokens=plain))

    def made(self, ids: tuple[int, ...], response: str) -> bool:
        """Whether this is the tokenizer that an answer was sampled with: its ids are the answer's text."""
        return "".join(response.split()) == "".join(self.text(ids, plain=True).split())


def run_tokenizer(run: Path, model: str | None) -> Tokenizer | None:
    """The tokenizer of a run's newest actor, else of the model that the run started from; None if neither is here."""
    actors = sorted(run.glob("phase_*/actor"), reverse=True)
    for folder in [*actors, *([Path(model).expanduser()] if model else [])]:
        path = _tokenizer_file(folder)
        if path:
            return _load(path, path.stat().st_mtime_ns)
    return None


def _tokenizer_file(folder: Path) -> Path | None:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    try:
        base = adapter_base(folder)
    except WebRLError:
        return None
    path = Path(base) / "tokenizer.json" if base else path
    return path if path.is_file() else None


@lru_cache(maxsize=2)
def _load(path: Path, _version: int) -> Tokenizer | None:
    if path.stat().st_size > _MAX_BYTES:
        return None
    from tokenizers import Tokenizer as Backend

    try:
        return Tokenizer(Backend.from_file(str(path)))
    except Exception as error:  # the library raises nothing narrower
        logger.warning("%s: not a tokenizer (%s); token ids are shown instead", path, error)
        return None
