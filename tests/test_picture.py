"""The README's animation: which attempts it shows, and what it draws."""

import sys
from pathlib import Path

import pytest
from PIL import Image
from processes import python
from report_builders import trajectory
from rollouts_builders import miniwob

sys.path.append(str(Path(__file__).parent.parent / "scripts"))
import picture

from webrl.runs.folder import RunFolder
from webrl.runs.store import write_records

SCRIPT = Path(picture.__file__)


@pytest.mark.companion("report")
@pytest.mark.browser
def test_a_run_becomes_an_animation_of_its_recorded_actions(tmp_path):
    run, out = RunFolder(tmp_path / "run"), tmp_path / "agent.gif"
    page = miniwob("click-button", seed=3)
    for phase, (action, reward) in enumerate((("click('13')", 0.0), ("click('19')", 1.0))):
        run.phase(phase).path.mkdir(parents=True)
        write_records(run.phase(phase).eval, [trajectory(page, phase, reward, action=action)])
    assert 'Click on the "submit" button.' in python(SCRIPT, run.path, out).stdout
    with Image.open(out) as animation:
        assert animation.n_frames == 2
        assert animation.width == 2 * picture.SIZE + 3 * picture.GAP
