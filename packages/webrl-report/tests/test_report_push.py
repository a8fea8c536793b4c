"""`webrl push`: huggingface_hub's own client against a Hub on loopback; card and model are read by their libraries."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hub_stand_in import TOKEN, Hub, stand_in
from huggingface_hub import ModelCard
from report_builders import build_run, mark, trajectory
from transformers import AutoModelForCausalLM, AutoTokenizer

from webrl import cli
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records, write_records
from webrl.types import Trajectory

ROOT = Path(__file__).resolve().parents[3]
ACTOR = ROOT / "data" / "tiny" / "actor"
SECRET = "PLANTED-in-the-upload-3"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's upload


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of two phases after the start, whose models are the tiny actor; secrets in config and pages."""
    models = {"actor": f"https://ann:{SECRET}@models.test/x"}
    run = build_run(tmp_path_factory.mktemp("runs") / "little", num_phases=1, models=models, seed=7)
    for phase in (0, 1):
        folder = run.phase(phase)
        shutil.copytree(ACTOR, folder.actor)
        (folder.actor / "optimizer.pt").write_bytes(b"state of an optimizer")
        tried = list(read_records(folder.trajectories, Trajectory))
        page = f"see https://shop.test/?token={SECRET}</b><script>alert(1)</script>"
        tried[0] = trajectory(tried[0].task, phase, 0.0, page=page, action=page)
        write_records(folder.trajectories, tried)
    return run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub on loopback, which huggingface_hub's client asks; it reads these variables when it is imported."""
    with stand_in() as hub:
        settings = {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        for name, value in (settings | {"HF_TOKEN_PATH": str(tmp_path / "token")}).items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def test_a_push_brings_model_card_settings_and_report_and_nothing_else(hub, webrl, finished, tmp_path):
    done = webrl(0, "push", finished.path, "ann/agent", "--private", "--license", "apache-2.0")
    assert done.out == f"{hub.url}/ann/agent\n"
    assert hub.commits == ["webrl: phase 1 of little"]
    assert hub.private["ann/agent"]
    files = hub.repos["ann/agent"]
    assert set(files) == {
        "README.md", "config.yaml", "report.html", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    assert files["model.safetensors"] == (finished.phase(1).actor / "model.safetensors").read_bytes()
    for name, data in files.items():
        assert SECRET.encode() not in data, name
        assert TOKEN.encode() not in data, name
    assert yaml.safe_load(files["config.yaml"])["models"]["actor"] == "https://***@models.test/x"
    assert TOKEN not in done.out + done.err
    assert hub.num_puts == 1

    # The same again sends nothing; what came of an earlier push with other shards goes.
    webrl(0, "push", finished.path, "ann/agent")
    assert hub.num_puts == 1
    files["model-00001-of-00002.safetensors"] = b"an earlier push"
    webrl(0, "push", finished.path, "ann/agent", "--phase", "0")
    assert "model-00001-of-00002.safetensors" not in files
    assert hub.commits[-1] == "webrl: phase 0 of little"

    folder = tmp_path / "back"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    answer = model.generate(**tokenizer("click", return_tensors="pt"), max_new_tokens=2, do_sample=False)
    assert answer.shape[1] > 2


def test_the_card_says_what_was_trained_and_how_it_was_measured(finished: RunFolder, tmp_path: Path):
    out = tmp_path / "folder"
    assert cli.main(["push", str(finished.path), "ann/agent", "--to", str(out), "--license", "apache-2.0"]) == 0
    card = ModelCard.load(out / "README.md")
    data = card.data.to_dict()
    assert data["license"] == "apache-2.0"
    assert data["library_name"] == "transformers"
    assert "base_model" not in data
    assert {"webrl", "web-agent"} <= set(data["tags"])
    (result,) = card.data.eval_results
    assert result.dataset_config == "held-out seeds"
    assert result.metric_value == pytest.approx(1 / 3, abs=1e-4)
    assert "10/30 = 33.3 % [19.2, 51.2]" in result.metric_name
    assert "| 0: supervised start | 8/30 = 26.7 % &#91;14.2, 44.4&#93; |" in card.text
    assert (
        "| 1 | 10/30 = 33.3 % &#91;19.2, 51.2&#93;; over the start +6.7 points &#91;-16.0, +28.5&#93;, paired |"
        in card.text
    )
    assert "one run, seed 7." in card.text
    assert "training saw the labels of `orm` alone" in card.text
    assert "https://***@models.test/x" in card.text
    assert not (out / "model.safetensors").is_symlink()


def test_a_base_model_is_named_where_the_hub_has_it(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=0, models={"actor": "Qwen/Qwen3-0.6B"})
    shutil.copytree(ACTOR, run.phase(0).actor)
    found = {}
    # Without a commit it was a folder of that name, which needs not be on this machine.
    for name, counts, options in (
        ("hub", {"hub_commit": "0" * 40}, []), ("folder", {}, []), ("named", {}, ["--base", "ann/qwen"]),
    ):  # fmt: skip
        mark(run.phase(0), "train", counts)
        assert cli.main(["push", str(run.path), "ann/agent", "--to", str(tmp_path / name), *options]) == 0
        found[name] = ModelCard.load(tmp_path / name / "README.md").data
    assert found["hub"].base_model == "Qwen/Qwen3-0.6B"
    assert found["hub"].license == "unknown"
    assert found["folder"].base_model is None
    assert found["named"].base_model == "ann/qwen"


def test_a_dry_run_lists_the_files_and_asks_nobody(hub, webrl, finished):
    names = [line.split()[1] for line in webrl(0, "push", finished.path, "ann/agent", "--dry-run").out.splitlines()]
    assert names[:2] == ["README.md", "chat_template.jinja"]
    assert "model.safetensors" in names
    assert hub.asked == []


def test_a_push_that_broke_off_sends_no_weights_twice(hub, webrl, finished):
    hub.fails_commits = 1
    assert "You have used up your storage" in webrl(1, "push", finished.path, "ann/agent").err
    assert (hub.num_puts, hub.repos["ann/agent"]) == (1, {})
    webrl(0, "push", finished.path, "ann/agent")
    assert hub.num_puts == 1
    assert "model.safetensors" in hub.repos["ann/agent"]


def test_what_the_hub_refuses_is_one_line_with_the_fix(hub, webrl, finished, monkeypatch):
    for arguments, variables, code, says in (
        (("ann/agent",), {"HF_TOKEN": ""}, 2, "no token for the Hugging Face Hub: export HF_TOKEN, or log in"),
        (("ann/agent",), {"HF_TOKEN": "hf_another"}, 1, "the token was not accepted"),
        (("bob/agent",), {}, 1, f"{hub.url}/bob/agent: the token may not write there: another owner's repository"),
        (("ann/gone",), {}, 1, f"{hub.url} cannot be reached: "),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            said = webrl(code, "push", finished.path, *arguments).err
        assert says in said
        assert "Traceback" not in said
        assert TOKEN not in said
    hub.repos["ann/open"], hub.private["ann/open"] = {}, False
    assert "already exists and is public" in webrl(2, "push", finished.path, "ann/open", "--private").err
    assert hub.commits == []


def test_nothing_is_sent_offline(finished, monkeypatch, webrl):
    monkeypatch.setenv("HF_TOKEN", TOKEN)  # HF_HUB_OFFLINE is set in all tests
    assert "HF_HUB_OFFLINE is set: nothing is sent" in webrl(2, "push", finished.path, "ann/agent").err


def test_a_phase_of_an_unfinished_run_is_pushed_if_it_is_named_and_trained(tmp_path, webrl):
    run = build_run(tmp_path / "run", num_phases=1)
    shutil.copytree(ACTOR, run.phase(1).actor)
    (run.phase(1).path / "stages" / "eval.json").unlink()
    push = ["push", str(run.path), "ann/agent", "--to", str(tmp_path / "out")]
    said = "has not finished (phase 1 of 1); its last finished phase is 0: --phase 0"
    assert said in webrl(2, *push).err
    assert cli.main([*push, "--phase", "1"]) == 0
    assert "**This very phase has not been evaluated.**" in (tmp_path / "out" / "README.md").read_text("utf-8")
    (run.phase(1).path / "stages" / "train.json").unlink()
    assert "stage 'train' has not finished" in webrl(1, *push[:-1], tmp_path / "two", "--phase", "1").err


@pytest.mark.parametrize("name", ["tokenizer_config.json", "model.safetensors"])
def test_a_secret_in_the_model_folder_stops_the_push(tmp_path: Path, webrl, name: str):
    run = build_run(tmp_path / "run", num_phases=0)
    actor = run.phase(0).actor
    shutil.copytree(ACTOR, actor)
    note = f'{{"note": "http://ann:{SECRET}@models.test/x"}}'.encode()
    data = note if name.endswith("json") else len(note).to_bytes(8, "little") + note
    (actor / name).write_bytes(data)
    said = webrl(1, "push", run.path, "ann/agent", "--to", tmp_path / "out").err
    assert f"not uploaded: {name} would hold a password" in said
    assert SECRET not in said
    assert not (tmp_path / "out").exists()


def test_no_weights_and_a_base_that_is_no_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = build_run(tmp_path / "run", num_phases=0)
    shutil.copytree(ACTOR, run.phase(0).actor)
    assert cli.main(["push", str(run.path), "ann/agent", "--dry-run", "--base", str(ACTOR)]) == 2
    assert "is not the name of a model on the Hub; write OWNER/NAME" in capsys.readouterr().err
    (run.phase(0).actor / "model.safetensors").unlink()
    assert cli.main(["push", str(run.path), "ann/agent", "--dry-run"]) == 1
    assert "no weights (model*.safetensors); name a phase that has them" in capsys.readouterr().err
