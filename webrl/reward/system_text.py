"""The judge's system text from a file (`label.system_prompt`).

The released outcome model was trained with a text that is not ours to ship; the user copies it from its code.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from webrl.config import LabelConfig
from webrl.errors import DataError, UsageError
from webrl.runs.store import open_input


def configured_text(config: LabelConfig) -> str | None:
    """Return the text of `label.system_prompt` without white space around it, read once; None where that is not set.

    Raises:
        UsageError: no such file, no text, or no UTF-8; says where the released text is.
    """
    return _text_of(config.system_prompt) if config.system_prompt else None


@lru_cache(maxsize=8)
def _text_of(path: Path) -> str:
    advice = "the released model's is `system` in build_rm_data of scripts/process_data.py, github.com/THUDM/WebRL"
    try:
        with open_input(path) as file:
            text = file.read().decode().strip()
    except (DataError, UnicodeDecodeError) as error:
        said = f"{path}: not UTF-8 ({error})" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"label.system_prompt: {said}; {advice}") from None
    if not text:
        raise UsageError(f"label.system_prompt: {path} is empty; {advice}")
    return text
