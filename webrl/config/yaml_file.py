"""Read YAML that people write (configs, overrides, rules), strictly."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import yaml

from webrl.errors import UsageError

logger = logging.getLogger(__name__)
MAX_BYTES = 1 << 20


def read_yaml(path: Path, what: str) -> Any:
    """Return the content of a YAML file; `what` names its purpose in errors.

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
    if text and not text.endswith("\n"):
        logger.warning("%s: line %d has no newline: was the file cut off? If not, add one", path, text.count("\n") + 1)
    if not text.strip():
        logger.warning("%s is empty: was it saved? Its settings are all at their defaults", path)
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Return the plain data of one YAML document.

    Raises:
        UsageError: malformed, tags that construct Python objects, a duplicate key in a mapping, no value of the last
            key, or nested too deep; `source` and the line are quoted.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f" ({error.context})" if error.context else ""
        raise UsageError(f"{source}: not valid YAML: {place}{error.problem}{context}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-99-99
        raise UsageError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{source}: nested too deeply: settings need at most five levels") from None


class _StrictLoader(yaml.SafeLoader):
    """Refuses keys that are given twice or end a text, and `010` and `1:30`, which PyYAML reads in bases 8 and 60."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As PyYAML; before `<<` puts a mapping's keys among those of another."""
        node: Any = super().compose_node(parent, index)
        is_number = isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float"))
        if is_number and re.fullmatch(r"[-+]?0[0-9_]+|.*:.*", node.value):
            problem = f"{node.value} would be read in base 8 or 60; write a decimal number, or a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if not isinstance(node, yaml.MappingNode):
            return node
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"key {key.value!r} is given twice; keep only one"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        last: Any = node.value[-1][1] if node.value else node
        is_absent = last.value == "" and last.style not in ("'", '"')
        if is_absent and not last.end_mark.buffer[last.end_mark.pointer :].strip("\0\r\n "):
            problem = f"the text ends after {node.value[-1][0].value!r:.80}: was it cut off? Write the value, or null"
            raise yaml.constructor.ConstructorError(None, None, problem, last.start_mark)
        return node
