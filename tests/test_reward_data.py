"""Training data and report of the outcome model; figures worked out by hand."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from llm_builders import save_tiny_model
from vab_builders import write_trace

from webrl.cli.train_orm import describe_report
from webrl.config import LabelConfig, OrmConfig, validate_config
from webrl.errors import JudgeError, ModelError
from webrl.evaluate import wilson_interval
from webrl.llm.loading import load_tokenizer
from webrl.replay.demonstrations import judged_demonstrations
from webrl.reward.labels import agreement, judge_report, undecided_sites
from webrl.reward.orm import answer_tokens, label_file
from webrl.reward.train import (
    JudgedExample,
    cut_short,
    encode_example,
    other_instruction,
    read_judged,
    split_heldout,
    train_orm,
    training_examples,
)
from webrl.reward.train import judged as as_judged
from webrl.runs.problems import ProblemLog
from webrl.runs.store import write_records
from webrl.training.metrics import TrainingPaths
from webrl.types import Label, Status, Step, Task, Trajectory


def make_trajectory(index, success, num_steps=3, *, status=Status.PAGE_ENDED, site="site", mark="x"):
    steps = tuple(Step(i, f"page {i}", f"click('{i}')", f"click('{i}')") for i in range(num_steps))
    task = Task(f"task{index}", site)
    reward = None if success is None else float(success)
    page = f"{mark} done" if success else f"{mark} todo"
    return Trajectory(f"t{index}", task, f"do {index}", 0, steps, page, status, env_reward=reward)


def judged(index, success, **options):
    return as_judged(make_trajectory(index, success, **options), success)


def test_finished_trajectories_with_an_environment_reward_are_data(tmp_path):
    played = [make_trajectory(0, 1), make_trajectory(1, 0), make_trajectory(2, None)]
    write_records(tmp_path / "trajectories.jsonl", [*played, make_trajectory(3, 1, status=Status.ENV_ERROR)])
    first, second = read_judged(tmp_path, ProblemLog())
    responses = ("click('0')", "click('1')", "click('2')")
    pages = ("page 0", "page 1", "page 2")
    assert first == JudgedExample("do 0", responses, "x done", 1, "t0", "site", pages=pages, ends_by_message=False)
    assert second.success == 0


@pytest.mark.companion("webarena")
def test_trace_folders_and_human_files_are_data_and_bad_lines_are_listed(tmp_path):
    write_trace(tmp_path / "vab", "1", score=1)
    write_trace(tmp_path / "vab", "2", score=-1)
    items = list(read_judged(tmp_path / "vab", ProblemLog()))
    assert [(i.trajectory_id, i.success) for i in items] == [("1", 1)]
    human = tmp_path / "human.jsonl"
    good = {"instruction": "x", "responses": ["a"], "final_page": "p", "success": False}
    human.write_text("\n".join([json.dumps(good), json.dumps(good | {"success": 3}), '{"instruction": 1}', "{"]))
    problems = ProblemLog(tmp_path / "problems.txt")
    with problems:
        items = list(read_judged(human, problems))
    assert [i.success for i in items] == [0]
    listed = problems.path.read_text()
    assert "human.jsonl:2: field 'success': must be less than or equal to 1, found 3" in listed
    assert "human.jsonl:3:" in listed
    assert "human.jsonl:4: malformed JSON" in listed


def test_a_score_of_100_is_no_success_but_refused_wherever_trajectories_are_read(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    trajectories = [replace(make_trajectory(0, 1), env_reward=score) for score in (100.0, 1.0001, 1.0, 0.3, -1.0)]
    write_records(path, [replace(t, trajectory_id=f"t{i}") for i, t in enumerate(trajectories)])
    for read, said in (
        (lambda log: [e.success for e in read_judged(path, log)], [1, 1, 0]),
        (lambda log: [reward for _, reward in judged_demonstrations(path, log)], [1, 1, 0]),
    ):
        with ProblemLog(tmp_path / "problems.txt") as problems:
            assert read(problems) == said
        first, second = problems.path.read_text().splitlines()
        assert f"{path}:1: field 'env_reward': must be less than or equal to 1, found 100.0; left out" in first
        assert f"{path}:2: field 'env_reward'" in second


def test_no_instruction_is_in_both_splits():
    items = [judged(i % 10, i % 2) for i in range(40)]
    train, heldout = split_heldout(items, 0.3, random.Random(0))
    names = [{i.instruction for i in part} for part in (train, heldout)]
    assert len(names[1]) == 3
    assert not names[0] & names[1]
    assert len(train) + len(heldout) == 40


def test_a_site_with_one_instruction_is_in_both_splits():
    """Held out whole, the judge would never see the site, and call all of its successes failures."""
    many = [judged(i, i % 2, site="many") for i in range(30)]
    one = [judged(0, i % 2, site="one") for i in range(10)]
    rare = [judged(0, 1, site="rare")]
    for seed in range(10):
        train, heldout = split_heldout([*many, *one, *rare], 0.2, random.Random(seed))
        assert Counter(i.site for i in heldout) == {"many": 6, "one": 2}
        assert Counter(i.site for i in train) == {"many": 24, "one": 8, "rare": 1}


@pytest.mark.parametrize(("per_site", "share", "wanted"), [(1, 0.2, 10), (2, 0.2, 20), (4, 0.1, 20), (5, 0.1, 25)])
def test_small_sites_together_hold_out_their_share(per_site, share, wanted):
    items = [judged(i, i % 2, site=f"s{i // per_site}") for i in range(50 * per_site)]
    train, heldout = split_heldout(items, share, random.Random(0))
    assert (len(train), len(heldout)) == (50 * per_site - wanted, wanted)


def test_a_success_cut_short_ends_on_the_page_before_the_first_missing_action():
    for seed in range(20):
        (negative,) = cut_short([judged(0, 1)], random.Random(seed))
        kept = len(negative.responses)
        assert kept < 3
        assert negative.responses == ("click('0')", "click('1')", "click('2')")[:kept]
        assert negative.final_page == f"page {kept}"
        assert (negative.success, negative.kind) == (0, "cut_short")


def test_a_closing_message_is_not_what_makes_a_success():
    played = judged(0, 1, status=Status.AGENT_DONE)
    assert {len(n.responses) for seed in range(40) for n in cut_short([played], random.Random(seed))} == {0, 1}
    assert cut_short([judged(0, 1, num_steps=1, status=Status.AGENT_DONE)], random.Random(0)) == []


def test_another_instruction_comes_from_the_same_site():
    items = [judged(0, 1), judged(1, 1), judged(2, 1, site="other")]
    negatives = other_instruction(items, items, random.Random(0))
    assert [(n.trajectory_id, n.instruction) for n in negatives] == [("t0", "do 1"), ("t1", "do 0")]
    assert {n.success for n in negatives} == {0}


def test_classes_are_balanced_and_counted_by_kind():
    items = [judged(i, 1) for i in range(10)] + [judged(10 + i, 0) for i in range(50)]
    config = OrmConfig(hard_negatives=0.3, max_class_ratio=2.0)
    examples, counts = training_examples(items, config, random.Random(0))
    assert sum(e.success for e in examples) == 10
    assert len(examples) == 30
    assert sum(counts.values()) == 30
    assert counts["judged_success"] == 10
    again, _ = training_examples(items, config, random.Random(0))
    assert again == examples
    many, counts = training_examples(items, OrmConfig(hard_negatives=0.3, max_class_ratio=100), random.Random(0))
    hard = {f"{kind}_failure": 3 for kind in ("cut_short", "other_instruction", "planted_claim")}
    assert counts == hard | {"judged_failure": 50, "judged_success": 10}
    assert len(many) == 69


def test_an_example_is_the_judges_prompt_and_its_answer_with_an_end_token(tmp_path):
    tokenizer = load_tokenizer(str(save_tiny_model(tmp_path)))
    example = replace(judged(0, 1), final_page="line\n" * 5000)
    prompt, answer, _ = encode_example(example, tokenizer, LabelConfig(max_prompt_tokens=600))
    assert len(prompt) <= 600
    assert tokenizer.decode(prompt).endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")
    assert answer == (tokenizer.encode("YES", add_special_tokens=False)[0], tokenizer.eos_token_id)


def test_report_counts_and_figures_by_hand():
    # 3 successes (0.9, 0.6, 0.2), 2 failures (0.7, 0.1): TP 2, FN 1, FP 1, TN 1.
    report = judge_report([1, 1, 1, 0, 0], [0.9, 0.6, 0.2, 0.7, 0.1], num_unjudged=4)
    counts = ("true_positive", "false_negative", "false_positive", "true_negative", "num_unjudged")
    assert [report[name] for name in counts] == [2, 1, 1, 1, 4]
    figures = ("accuracy", "precision", "recall", "balanced_accuracy", "auc")
    # Pairs: 0.9 beats both, 0.6 and 0.2 beat 0.1 only: 4 of 6.
    expected = [3 / 5, 2 / 3, 2 / 3, (2 / 3 + 1 / 2) / 2, 4 / 6]
    assert [report[name]["value"] for name in figures] == pytest.approx(expected)
    assert [report[name]["num"] for name in figures] == [5, 3, 3, 5, 5]
    assert tuple(report["accuracy"]["ci95"]) == wilson_interval(3, 5)
    assert judge_report([1, 0], [0.5, 0.5])["recall"]["value"] == 0
    report = judge_report([0, 0], [0.1, 0.2])
    assert [report[name]["value"] for name in figures] == [1.0, None, None, None, None]
    assert judge_report([], [])["accuracy"]["value"] is None


def test_agreement_compares_labels_with_the_environment_by_site(tmp_path):
    played = [(1, "a"), (0, "a"), (1, "b"), (None, "b"), (1, "b")]
    trajectories = [make_trajectory(i, s, site=site) for i, (s, site) in enumerate(played)]
    write_records(tmp_path / "t.jsonl", trajectories)
    rewards = [1, 1, 1, 1, None]
    labels = [Label(t.trajectory_id, None if r is None else 0.9, r) for t, r in zip(trajectories, rewards, strict=True)]
    write_records(tmp_path / "l.jsonl", labels)
    report = agreement(tmp_path / "t.jsonl", tmp_path / "l.jsonl")
    assert (report["num"], report["num_success"], report["num_unjudged"]) == (3, 2, 1)
    assert report["accuracy"]["value"] == pytest.approx(2 / 3)
    assert report["by_site"] == {
        "a": {"num": 2, "num_success": 1, "num_agree": 1},
        "b": {"num": 1, "num_success": 1, "num_agree": 1},
    }
    assert undecided_sites(report["by_site"]) == ["a"]
    write_records(tmp_path / "t.jsonl", [make_trajectory(0, None)])
    assert agreement(tmp_path / "t.jsonl", tmp_path / "l.jsonl") is None


def make_config(tmp_path, base, **orm):
    return validate_config(
        {"runs_dir": str(tmp_path), "models": {"device": "cpu", "orm": str(base)}, "label": {"max_prompt_tokens": 400},
         "orm": {"lr": 3e-3, "epochs": 3, "batch_size": 16, "hard_negatives": 0.0, **orm}}, "test")  # fmt: skip


def test_an_outcome_model_is_trained_reported_and_labels(tmp_path, tiny_model):
    # The last page tells: "done" or "todo".
    trajectories = [make_trajectory(i, i % 2, num_steps=1, mark=f"page {i}") for i in range(120)]
    write_records(tmp_path / "trajectories.jsonl", trajectories)
    config = make_config(tmp_path, tiny_model, heldout=0.5)
    paths = TrainingPaths((tmp_path / "trajectories.jsonl",), str(tiny_model), tmp_path / "orm")
    report = train_orm(config, paths)
    assert (report["num_heldout"], report["heldout"]["num"]) == (60, 60)
    assert sum(report["data"].values()) == 60
    assert report["heldout"]["auc"]["value"] > 0.9
    assert json.loads((paths.report / "report.json").read_text()) == json.loads(json.dumps(report))
    assert any("balanced accuracy" in line for line in describe_report(report))
    models = config.models.model_copy(update={"orm": str(paths.out)})
    config = config.model_copy(update={"models": models})
    counts = label_file(config, tmp_path / "trajectories.jsonl", tmp_path / "labels.jsonl")
    assert counts["num_labelled"] == 120
    assert counts["agreement"]["num"] == 120
    assert counts["agreement"]["auc"]["value"] > 0.9


def test_prompts_that_do_not_fit_the_model_are_refused_before_it_is_trained(tmp_path):
    small = save_tiny_model(tmp_path / "small", positions=64)
    write_records(tmp_path / "trajectories.jsonl", [make_trajectory(i, i % 2, num_steps=1) for i in range(8)])
    paths = TrainingPaths((tmp_path / "trajectories.jsonl",), str(small), tmp_path / "orm")
    with pytest.raises(ModelError, match=r"has 64 positions, and label\.max_prompt_tokens=400 .*tokens=63"):
        train_orm(make_config(tmp_path, small), paths)
    assert not paths.out.exists()


def test_a_judge_behind_a_server_without_token_ids_is_one_clear_error():
    with pytest.raises(ModelError, match=r"set label\.judge=llm"):
        answer_tokens(None)


def test_labels_of_a_judge_that_errs_too_often_are_not_trained_on(tmp_path, tiny_model):
    trajectories = [make_trajectory(i, i % 2, num_steps=1, mark=f"page {i}") for i in range(40)]
    write_records(tmp_path / "trajectories.jsonl", trajectories)
    config = make_config(tmp_path, tiny_model)
    never = config.label.model_copy(update={"threshold": 1.0})  # half of them did succeed
    config = config.model_copy(update={"label": never})
    strict = config.model_copy(update={"label": never.model_copy(update={"min_agreement": 0.85})})
    files = tmp_path / "trajectories.jsonl", tmp_path / "labels.jsonl"
    with pytest.raises(
        JudgeError,
        match=r"50\.0 % \[.*\] of 40 labels agree .*fewer than label\.min_agreement=0\.85; train a judge",
    ):
        label_file(strict, *files)
    with pytest.raises(JudgeError, match=r"label\.min_agreement=0\.85"):
        label_file(strict, *files)  # all judged by now
    assert label_file(config, *files)["num_labelled"] == 40
