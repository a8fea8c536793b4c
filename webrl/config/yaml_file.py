"""YAML that people write: configs, overrides, rules. Read strictly, and with a bound on what a few lines can become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from webrl.errors import UsageError

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""Values of a file after its aliases have been written out: ten lines of aliases can stand for 10^9 values."""


def read_yaml(path: Path, what: str) -> Any:
    """Content of a YAML file; `what` names its purpose in errors.

    Raises:
        UsageError: no such file, not a regular one, too large, not UTF-8, or see `parse_yaml`.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot read {what} {str(path)!r}: {'Is a directory' if path.is_dir() else 'not a file'}")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {what} {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: {len(data)} bytes; {what} has at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}: line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Plain data of one YAML document.

    Raises:
        UsageError: malformed, tags that stand for code, a key given twice in a mapping, nested or repeated by aliases
            beyond reason; `source` and the line are quoted.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        _check(node, source, {}, frozenset())
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f" ({error.context})" if error.context else ""
        raise UsageError(f"{source}: not valid YAML: {place}{error.problem}{context}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-99-99
        raise UsageError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{source}: nested too deep: settings need five levels at most") from None


def _check(node: yaml.Node, source: str, sizes: dict[int, int], above: frozenset[int]) -> int:
    """Number of values below a node, aliases written out. Raises UsageError (see `parse_yaml`)."""
    if id(node) in above:
        raise UsageError(f"{source}: {_line(node)}: an alias inside of what it stands for; write the value out")
    if id(node) in sizes:
        return sizes[id(node)]
    size, above = 1, above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise UsageError(f"{source}: {_line(key)}: key {key.value!r} stands here twice; give it once")
                seen.add(key.value)
            size += _check(key, source, sizes, above) + _check(value, source, sizes, above)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_check(item, source, sizes, above) for item in node.value)
    if size > MAX_VALUES:
        raise UsageError(f"{source}: {_line(node)}: aliases stand for {size} values; write out what you need")
    sizes[id(node)] = size
    return size


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
