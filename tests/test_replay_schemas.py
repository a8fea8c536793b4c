"""data/README.md names every field of every record, and no other."""

import dataclasses
import re
from pathlib import Path

import pytest

from webrl.reward.data import JudgedExample
from webrl.types import Label, Lineage, Status, Step, StepRecord, Task, Trajectory

README = (Path(__file__).parent.parent / "data" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", [Task, Lineage, Trajectory, Step, Label, StepRecord, JudgedExample])
def test_every_field_of_a_record_is_documented(record):
    section = README.split(f"### {record.__name__}\n")[1].split("\n#")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(record)]


def test_every_status_is_documented():
    assert all(f"`{status}`" in README for status in Status)
