"""The judge's system text from a file (`label.system_prompt`).

The released outcome model was trained with a text that is not ours to ship: `webrl orm-prompt CLONE` copies it from the
user's own clone of github.com/THUDM/WebRL, whose code is parsed and never run. Its digest is known here, so that any
other text is called another.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from webrl.config import LabelConfig
from webrl.errors import DataError, UsageError
from webrl.runs.store import open_input

DEFAULT_PATH = Path("data/released_orm_prompt.txt")
"""The file that the command writes and the paper's configs read."""
RELEASED_SHA256 = "977cde2526f5605b713872517475ed29a1502278f7bec6b19de25add9d99aae9"
"""SHA-256 of the text in UTF-8, stripped (THUDM/WebRL, commit fa8439e)."""
_ADVICE = "`webrl orm-prompt CLONE` makes it from a clone of github.com/THUDM/WebRL"


def configured_text(config: LabelConfig) -> str | None:
    """Return the text of `label.system_prompt`, read once; None where that is not set.

    Raises:
        UsageError: as `system_text`.
    """
    return system_text(config.system_prompt) if config.system_prompt else None


@lru_cache(maxsize=8)
def system_text(path: Path) -> str:
    """Return the text of a file, without white space around it.

    Raises:
        UsageError: no such file, no text, or no UTF-8; says which command makes it.
    """
    try:
        text = _read(path)
    except DataError as error:
        raise UsageError(f"label.system_prompt: {error}; {_ADVICE}") from None
    if not text:
        raise UsageError(f"label.system_prompt: {path} is empty; {_ADVICE}")
    return text


def describe(path: Path) -> str:
    """Describe a file in a few words; never raises."""
    try:
        text = _read(path)
    except DataError as error:
        return f"{error}; {_ADVICE}"
    is_released = sha256(text.encode()).hexdigest() == RELEASED_SHA256
    return f"{path}: {'the' if is_released else 'another text than the'} released outcome model's"


def extract(clone: Path) -> str:
    """Return the system text in a clone of the released code, or in its `process_data.py` itself.

    Raises:
        DataError: no such file, no Python, or not exactly one such text in it.
    """
    path = clone / "scripts/process_data.py" if clone.is_dir() else clone
    try:
        tree = ast.parse(_read(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: not Python that can be parsed ({type(error).__name__})") from None
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "build_rm_data"]
    texts = {
        node.value.value
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if any(isinstance(target, ast.Name) and target.id == "system" for target in node.targets)
    }
    if len(texts) != 1:
        raise DataError(
            f"{path}: expected one text assigned to 'system' in build_rm_data, found {len(texts)}; is it "
            "scripts/process_data.py of github.com/THUDM/WebRL?"
        )
    return texts.pop().strip()


def _read(path: Path) -> str:
    with open_input(path) as file:
        try:
            return file.read().decode().strip()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
