"""The CPU time that benchmarks print beside their rates."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from rollout import CpuMeter, kind_of

BURN = """
import sys, time
sys.stdin.readline()
begun = time.process_time()
while time.process_time() < begun + 0.3: pass
print("burnt", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("chromium --user-data-dir=/tmp/a --remote-debugging-pipe", "browser"),
        ("chromium --type=gpu-process --user-data-dir=/tmp/a", "gpu-process"),
        ("python -P -m webrl.rollouts.worker", "worker"),
        ("python -P -m webrl.arena.shop.serve /tmp/a 6 2", "sites"),
        ("driver/node driver/package/cli.js run-driver", "driver"),
        ("sleep 1", "other"),
    ],
)
def test_a_process_is_told_by_its_command_line(command, kind):
    assert kind_of(command.split()) == kind


def test_what_a_child_has_spent_is_counted_under_its_kind_from_when_it_was_asked_for():
    command = [sys.executable, "-c", BURN, "--type=renderer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        with CpuMeter() as meter:
            child.stdin.write("go\n")
            child.stdin.flush()
            assert child.stdout.readline() == "burnt\n"
        assert meter.by_kind()["renderer"] > 0.2
        assert meter.seconds == pytest.approx(sum(meter.by_kind().values()))
        meter.begin_again()
        assert meter.by_kind()["renderer"] == 0
        child.stdin.close()
