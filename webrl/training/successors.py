"""Steps looked up in earlier phases' training records, without turning the records of all the others into numbers.

A phase of the paper's size holds some 32 million token ids: 1.3 GB as Python integers, 200 MB as text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import orjson

from webrl.errors import DataError
from webrl.types import StepRecord

_STEP_ID = re.compile(rb'\{"step_id":("(?:[^"\\]|\\.)*")')
"""How `webrl.store` begins a step's line; one that was written otherwise is parsed whole."""


def find_steps(paths: Sequence[Path], step_ids: Collection[str]) -> Iterator[StepRecord]:
    """The steps of these ids, in the order of the files; reading ends with the last one found.

    Raises:
        DataError: a missing file, or a malformed line among those that had to be parsed.
    """
    missing = set(step_ids)
    for path in paths:
        if not missing:
            return
        try:
            file = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        with file:
            for number, line in enumerate(file, 1):
                match = _STEP_ID.match(line)
                if not line.strip() or (match and orjson.loads(match[1]) not in missing):
                    continue
                try:
                    record = StepRecord.from_json(orjson.loads(line))
                except ValueError as error:
                    raise DataError(f"{path}:{number}: {error}") from None
                if record.step_id in missing:
                    missing.discard(record.step_id)
                    yield record
                    if not missing:
                        return
