"""`webrl report`: whole runs, broken and hostile ones, the page in a browser; figures that the core draws by hooks."""

import base64
import json
import logging
import re
import shutil
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsers import run as run_browser
from browsers import shared_browser
from PIL import Image
from processes import python
from report_builders import build_run, evaluate, mark, task, trajectory

from webrl.config import RunConfig, plugins, validate_config
from webrl.evaluate import paired_difference, rate_of
from webrl.runs.clock import duration
from webrl.runs.store import write_records
from webrl.types import Label
from webrl_report.page.build import SHOWN_CHARS, differences, render, settings_table, short, verdicts, write_report
from webrl_report.page.charts import curve, interval_chart
from webrl_report.page.facts import read_run
from webrl_report.page.figures import reliability_bins
from webrl_report.page.sections import funnel, judge, success

ROOT = Path(__file__).resolve().parents[3]
SECRET = "PLANTED-in-a-url-7"
HOSTILE = "</style><script>document.title='owned'</script><img src=x onerror=\"alert('1')\">\x1b[2J\x07\u202egnp.exe"

LOOK = """() => ({
  scripts: document.scripts.length, title: document.title,
  strange: [...document.images].filter(image => !image.src.startsWith('data:image/svg+xml;base64,')).length,
  undrawn: [...document.images].filter(image => !image.complete || !image.naturalWidth || !image.alt).length,
  overflow: document.documentElement.scrollWidth - innerWidth,
  headings: [...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1]),
  headless: [...document.querySelectorAll('table')].filter(t => !t.querySelector('th[scope]')).length,
  ids: [...document.querySelectorAll('[id]')].map(e => e.id),
  broken: [...document.querySelectorAll('a')].filter(a => !document.querySelector(a.getAttribute('href'))).length,
})"""


def look(path: Path, scheme: str, width: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """(what the page is, what the console said, what was fetched) in Chromium."""

    async def body() -> tuple[dict[str, Any], list[str], list[str]]:
        async with shared_browser() as browser:
            context = await browser._browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
            page = await context.new_page()
            said: list[str] = []
            fetched: list[str] = []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("dialog", lambda dialog: said.append(dialog.message))
            page.on("request", lambda request: fetched.append(request.url))
            await page.goto(path.as_uri())
            found = await page.evaluate(LOOK)
            await context.close()
            return found, said, fetched

    return run_browser(body())


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_page_opens_without_script_fetch_error_or_overflow(tmp_path: Path, scheme: str, width: int):
    runs = [build_run(tmp_path / name, num_phases=4).path for name in ("one", "two")]
    out = tmp_path / "report.html"
    assert write_report(runs, out) == []
    assert out.stat().st_size < 5e6
    found, said, fetched = look(out, scheme, width)
    assert said == []
    assert [url for url in fetched if not url.startswith("data:")] == [out.as_uri()]
    assert [found[key] for key in ("scripts", "strange", "undrawn", "headless", "broken")] == [0] * 5
    assert found["overflow"] <= 0
    assert len(found["ids"]) == len(set(found["ids"]))
    levels = found["headings"]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels


@pytest.mark.browser
def test_hostile_text_is_shown_and_never_executed(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=1, tasks={"train_sites": [HOSTILE]})
    folder = run.phase(0)
    bad = task(HOSTILE, HOSTILE, text=HOSTILE)
    tried = trajectory(bad, 0, 1.0, page=HOSTILE + "x" * 5_000_000, action=HOSTILE)
    write_records(folder.trajectories, [tried])
    write_records(folder.labels, [Label(tried.trajectory_id, 0.01, 0, HOSTILE)])
    write_records(run.phase(1).generated, [task("child", HOSTILE, parents=[HOSTILE], text=HOSTILE)])
    mark(folder, "rollout", {"num_rollouts": 1, "status": {HOSTILE: 1}})
    mark(folder, "eval", {"successes": 1, "episodes": 1, "rate": 1.0, "ci95": [0.2, 1.0], "by_task": {}})
    out = tmp_path / "report.html"
    write_report([run.path], out)
    html = out.read_text(encoding="utf-8")
    assert "<script" not in html
    assert not any(character in html for character in "\x1b\x07\u202e")
    assert "&lt;script&gt;" in html
    assert "␛[2J␇⟨U+202E⟩" in html
    assert len(html) < 1e6
    found, said, fetched = look(out, "light", 1280)
    fetched = [url for url in fetched if not url.startswith("data:")]
    assert (found["scripts"], found["strange"], said, fetched) == (0, 0, [], [out.as_uri()])
    assert found["title"] == "run · webrl report"
    assert found["overflow"] <= 0


@pytest.mark.browser
def test_the_picture_shows_the_head_of_a_report(tmp_path: Path):
    run, out = build_run(tmp_path / "run", num_phases=1).path, tmp_path / "head.png"
    assert python("scripts/report_picture.py", run, out, cwd=ROOT).stdout == f"{out}\n"
    with Image.open(out) as picture:
        assert (picture.width > 1000, picture.height > 400, picture.mode) == (True, True, "P")


def test_what_a_run_lacks_is_named_once_for_all_its_phases(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=3)
    for number in (0, 1, 3):
        (run.phase(number).path / "stages" / "accept.json").unlink()
    (run.phase(2).path / "stages" / "eval.json").unlink()
    with run.phase(2).labels.open("a") as file:
        file.write('{"trajectory_id": "torn')
    (run.phase(3).path / "stages" / "train.json").write_text("{}")
    out = tmp_path / "report.html"
    assert write_report([run.path], out) == [
        "run: phases 0, 1, 3: not finished: accept",
        "run: phase 2: not finished: eval",
        "run: phase 2: left out: labels.jsonl:11: malformed JSON (unexpected end of data: line 1 column 24 (char 23)): "
        'b\'{"trajectory_id": "torn\'; the file ends within this line: is it still being written?',
        f"run: left out: {run.phase(3).path}/stages/train.json: not what a finished stage writes; "
        "remove it, and the stage runs again",
    ]
    assert "phases 0, 1, 3: not finished: accept" in out.read_text()
    run.phase(1).mark_done("label", {}, 0.0, 0.0, RunConfig())
    run.phase(1).labels.unlink()
    lost = rf"run: left out: {run.phase(1).labels}: 0 of the \d+ bytes that 'label' wrote are left; put the file back"
    assert any(re.match(lost, text) for text in write_report([run.path], out))


def test_a_run_that_has_hardly_begun_has_a_report(tmp_path: Path):
    (tmp_path / "run" / "phase_00").mkdir(parents=True)
    html = render([read_run(tmp_path / "run")])
    assert "No stage has finished." in html
    assert "cannot read" in html  # config.yaml
    assert "No phase has been evaluated to the end." in html


def test_the_page_begins_with_how_the_newest_actor_stands_against_the_start(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=3)
    for phase, outcomes in ((1, [True] * 30), (2, [n % 4 == 0 for n in range(30)]), (3, [False] * 30)):
        evaluate(run.phase(phase), outcomes)
    points = [
        f"{value:+.1f} points [{low:+.1f}, {high:+.1f}], paired by task (95 % interval)."
        for value, low, high in (
            [100 * part for part in paired_difference(*cells)]
            for cells in ((0, 0, 8, 22), (8, 0, 0, 22), (8, 22, 0, 0))
        )
    ]
    worse = f"Worse than the start after phase 3: {points[0]}"
    assert list(verdicts(read_run(run.path))) == [("worse", worse)]
    assert '<p class="verdict worse">Worse than the start' in render([read_run(run.path)]).partition("<dl")[0]
    expected = (
        ("same", f"No clear difference from the start after phase 2: {points[1]}"),
        ("better", f"Better than the start after phase 1: {points[2]}"),
        ("open", "26.7 % of 30 held-out episodes solved in phase 0; no later phase has been evaluated yet."),
        ("open", "No phase has been evaluated yet."),
    )
    for phase, (kind, text) in zip((3, 2, 1, 0), expected, strict=True):
        (run.phase(phase).path / "stages" / "eval.json").unlink()
        assert list(verdicts(read_run(run.path))) == [(kind, text)]


def test_the_outcome_model_is_held_against_the_truth(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=0, num_tasks=7)  # P(YES) 0.2 of two, 0.9 of five
    section = judge(read_run(run.path))
    (figure,) = section.figures
    line = figure.plot.axes[0].lines[-1]
    assert [*line.get_xdata(), *line.get_ydata()] == pytest.approx([0.9, 0.6])  # two labels make no point
    assert section.tables[0][1].rows == [("judged solved", 3, 2), ("judged failed", 0, 2)]
    assert section.text.endswith("(instructions that a model wrote have none). Training never sees that reward.")
    own = build_run(tmp_path / "own", num_phases=0, tasks={"source": "fresh"}, label={"judge": "environment"})
    assert judge(read_run(own.path)).text.endswith("(instructions that a model wrote have none). It is the label.")


def test_an_unfinished_evaluation_is_said_and_not_drawn(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=1)
    (run.phase(1).path / "stages" / "eval.json").unlink()
    section = success(read_run(run.path))
    assert section.figures[0].table.rows == [("held-out seeds", "0", "8/30 = 26.7 % [14.2, 44.4]")]
    assert section.lacks == "The evaluation of phase 1 has not finished, so far 10/30 = 33.3 % [19.2, 51.2]. "


@pytest.mark.quick
def test_the_command_writes_into_the_run_folder_what_fetches_and_runs_nothing(tmp_path, webrl):
    run = build_run(tmp_path / "run")
    assert webrl(0, "report", run.path).out == f"{run.path}/report.html\n"
    html = (run.path / "report.html").read_text()
    assert html.startswith("<!DOCTYPE html>")
    assert "default-src 'none'; style-src 'sha256-" in unescape(html)
    assert not [text for text in ("http://", "https://", " style=") if text in html]  # the policy would drop a style


def test_settings_that_sections_share_have_the_defaults_and_differences_that_they_come_to(tmp_path: Path):
    shared = {"engine": {"kind": "vllm"}, "training": {"precision": "bf16"}, "actor": {"precision": "fp32"}}
    own = {"rollout": {"engine": {"kind": "vllm"}}, "critic": {"engine": "fsdp2"}, "seed": 7}
    runs = []
    for name, config in (("one", shared), ("two", own)):
        settings = validate_config(config, name).model_dump(mode="json", exclude={"name", "num_phases"})
        runs.append(read_run(build_run(tmp_path / name, 1, **settings).path))
    assert {row for row in settings_table(runs[0]).rows if row[0] != "num_phases"} == {
        ("engine.kind", "vllm", "transformers"),
        ("training.precision", "bf16", "fp32"),
        ("actor.precision", "fp32", "fp32"),
    }
    assert ("rollout.engine.kind", "vllm", "transformers") in settings_table(runs[1]).rows
    assert ("critic.engine", "fsdp2", "ddp") in settings_table(runs[1]).rows
    assert '>critic.engine</th><td class="whole">ddp</td><td class="whole">fsdp2</td>' in render(runs)
    assert {row[0]: row[1:] for row in differences(runs).rows} == {
        "engine.kind": ("vllm", "transformers"),
        "training.precision": ("bf16", "fp32"),
        "critic.engine": ("ddp", "fsdp2"),
        "seed": ("0", "7"),
    }


def test_newcombes_interval_is_that_of_his_paper():
    # Statistics in Medicine 17 (1998), p. 2645: 36, 12, 2, 0 of 50.
    difference, low, high = paired_difference(36, 12, 2, 0)
    assert (round(difference, 4), round(low, 4), round(high, 4)) == (0.2, 0.0569, 0.3404)
    assert paired_difference(5, 0, 0, 5)[0] == 0
    with pytest.raises(ValueError, match="at least one task"):
        paired_difference(0, 0, 0, 0)


def test_the_funnel_goes_from_proposals_to_solved_tasks(tmp_path: Path):
    facts = read_run(build_run(tmp_path / "run", num_phases=1).path)
    phase = facts.phases[1]
    phase.filters["stages"].insert(0, {"name": "leakage", "num_in": 12, "num_kept": 12})  # dropped nothing: no row
    found = [(row.name, row.num, row.reasons) for row in funnel(phase)]
    assert found == [
        ("generated", 12, ""),
        ("after: feasibility", 10, "−2"),
        ("tasks of the phase", 10, "judged impossible 2"),
        ("attempted", 10, "ended by the page 10"),
        ("judged solved", 7, "of 10 judged"),
    ]


def test_shipped_experience_is_judged_against_its_rewards(tmp_path: Path):
    folder = tmp_path / "run" / "phase_01"
    shutil.copytree(ROOT / "data" / "samples" / "experience", folder)
    rows = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    facts = read_run(tmp_path / "run")
    assert [len(phase.attempts) for phase in facts.phases] == [len(rows)]
    assert sum(a.answer_tokens for a in facts.phases[0].attempts) == sum(
        len(step["action_ids"]) for row in rows for step in row["steps"]
    )
    assert "there is no such folder" in render([facts])  # phase 0


def test_a_long_curve_is_averaged_over_stretches_and_keeps_its_mean():
    figure = curve("Loss", "", [(0, [1.0, 3.0] * 5000), (1, [float("nan")]), (2, [5.0])])
    assert figure is not None
    assert figure.table.rows[0] == (0, 10000, "1", "3", "2", "1", "3")
    assert [row[0] for row in figure.table.rows] == [0, 2]
    assert len(figure.source) < 80_000
    assert curve("Loss", "", [(0, [])]) is None


def test_small_things():
    assert (duration(12.34), duration(532), duration(7380)) == ("12.3 s", "8 min 52 s", "2 h 3 min")
    assert short("a" * (SHOWN_CHARS + 1)).endswith("a … [cut: 1,501 characters in all]")


def test_reading_a_run_counts_every_byte_of_its_records(tmp_path, monkeypatch, caplog):
    run = build_run(tmp_path / "run", num_phases=1)
    monkeypatch.setattr("webrl.runs.clock.LINE_S", 0)
    with caplog.at_level(logging.INFO, "webrl"):
        read_run(run.path)
    names = ("generated", "tasks", "dropped", "trajectories", "eval", "metrics")
    paths = [getattr(run.phase(k), name) for k in (0, 1) for name in names]
    size = sum(path.stat().st_size for path in paths if path.exists())
    assert caplog.messages[-1].split(",")[0] == f"read run: {size} of {size} bytes"


def test_names_from_outside_break_no_drawing_and_keep_no_secret(recwarn: pytest.WarningsRecorder):
    points, name = [(0, rate_of(1, 5).to_json())], f"https://ann:{SECRET}@shop.test/?token={SECRET} | {HOSTILE}"
    figure = interval_chart(name, name, [(name, points), ("漢字 $x^2$ \x00", points)], x_label=name)
    drawn = base64.b64decode(figure.source.partition("base64,")[2]).decode()
    assert SECRET not in drawn
    assert "<script" not in drawn
    assert "\x1b" not in drawn
    assert not recwarn.list


def test_the_losses_of_a_supervised_start_are_drawn(tmp_path):
    lines = [{"step": step, "loss": 2.0 / step} for step in range(1, 7)]
    lines[3] |= {"val_loss": 0.7}
    plugins.hook("loss-figure")(lines, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    plugins.hook("loss-figure")([], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_calibration_of_a_judge_is_drawn(tmp_path):
    truth, p_yes = [0, 1, 1, 1], [0.05, 0.07, 0.95, 1.0]
    plugins.hook("reliability-figure")(truth, p_yes, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_reliability_bins():
    truth, p = [0, 1, 1, 1], [0.05, 0.07, 0.95, 1.0]
    assert reliability_bins(truth, p) == [(pytest.approx(0.06), 1, 2), (pytest.approx(0.975), 2, 2)]
