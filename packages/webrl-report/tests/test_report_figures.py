"""The figures of single trainings, which the core draws by hooks."""

import pytest

from webrl.config import plugins
from webrl_report.page.figures import reliability_bins

PNG = b"\x89PNG"


def test_the_losses_of_a_supervised_start_are_drawn(tmp_path):
    lines = [{"step": step, "loss": 2.0 / step} for step in range(1, 7)]
    lines[3] |= {"val_loss": 0.7}
    plugins.hook("loss-figure")(lines, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
    plugins.hook("loss-figure")([], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_calibration_of_a_judge_is_drawn(tmp_path):
    truth, p_yes = [0, 1, 1, 1], [0.05, 0.07, 0.95, 1.0]
    plugins.hook("reliability-figure")(truth, {"as trained": p_yes}, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(PNG)


def test_reliability_bins():
    truth, p = [0, 1, 1, 1], [0.05, 0.07, 0.95, 1.0]
    assert reliability_bins(truth, p) == [(pytest.approx(0.06), 1, 2), (pytest.approx(0.975), 2, 2)]
