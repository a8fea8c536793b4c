"""Judging trajectories: the probability, the two answer tokens, the released system text, resume, judges that fail."""

import asyncio
import json
import math
import re
from pathlib import Path

import pytest
from llm_builders import build_tokenizer
from processes import python
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from webrl.config import EngineConfig, LabelConfig, RunConfig, TasksConfig, load_config
from webrl.errors import JudgeError, ModelError, PolicyError
from webrl.llm import Completion
from webrl.reward.labels import read_labels
from webrl.reward.orm import answer_tokens, label_file, label_trajectories, yes_probability
from webrl.reward.train import JudgedExample, prompt_ids
from webrl.runs.store import write_records
from webrl.types import Status, Step, Task, Trajectory

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_tokenizer(*words):
    """A byte-level tokenizer whose only whole words are `words`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|eot|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    tokenizer.add_tokens(list(words))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class RuleJudge:
    """A judge with a rule for weights: the page's `p=` is its P(YES); `down` on the page makes the call fail."""

    def __init__(self):
        self.tokenizer = make_tokenizer("YES", "NO")
        self.name = self.fingerprint = "rule"
        self.calls = 0
        self.running = self.most_running = 0

    async def choice_logprobs(self, prompt_ids, token_ids):
        yes, no = self.tokenizer.convert_tokens_to_ids(["YES", "NO"])
        assert tuple(token_ids) == (yes, no)
        p = await self._answer(self.tokenizer.decode(prompt_ids))
        # Half of the mass is elsewhere: the score is a ratio, not P(YES) itself.
        return [math.log(p / 2), math.log((1 - p) / 2)]

    async def chat(self, messages, sampling):
        assert sampling.temperature == 0
        p = await self._answer(messages[-1].content)
        text = {0.25: "no.", 0.75: " **Yes**, it did", 0.5: "", 0.6: "I cannot say"}[p]
        return Completion((), (), text, "stop")

    async def _answer(self, text):
        assert ("press ok" in text, "0.123456" in text) == (True, False), "the goal, not the environment's reward"
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        if "down" in text:
            raise PolicyError("connection refused")
        return float(re.search(r"p=([\d.]+)", text).group(1))


def make_trajectory(index, page, status=Status.AGENT_DONE, env_reward=0.123456):
    step = Step(index=0, observation="[1] button 'ok'", response="click('1')", action="click('1')")
    return Trajectory(f"t{index}", Task(f"task{index}", "site"), "press ok", 0, (step,), page, status, "", env_reward)


def label(trajectories, out, model=None, **config):
    return asyncio.run(label_trajectories(trajectories, model or RuleJudge(), LabelConfig(**config), out))


@pytest.mark.parametrize(
    ("yes", "no", "p"),
    [
        (math.log(0.3), math.log(0.1), 0.75),
        (0.0, 0.0, 0.5),
        (2000.0, -2000.0, 1.0),
        (-2000.0, 2000.0, 0.0),
        (-3.0, -math.inf, 1.0),
        (-math.inf, -3.0, 0.0),
    ],
)
def test_yes_probability_is_the_softmax_of_the_two_answers_and_stable_far_out(yes, no, p):
    assert yes_probability(yes, no) == pytest.approx(p, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("pair", [(math.nan, -1.0), (-math.inf, -math.inf)])
def test_no_answer_at_all_is_a_judge_error(pair):
    with pytest.raises(JudgeError, match="log-probabilities"):
        yes_probability(*pair)


@pytest.mark.parametrize(("whole", "found"), [(("YES", "NO"), ["YES", "NO"]), ((), ["Y", "N"])])
def test_an_answer_is_its_token_or_the_first_where_the_tokenizer_splits_it(whole, found):
    tokenizer = make_tokenizer(*whole)
    assert tokenizer.convert_ids_to_tokens(list(answer_tokens(tokenizer))) == found


def test_answers_that_begin_alike_are_refused():
    backend = Tokenizer(models.BPE(vocab={"<unk>": 0}, merges=[], unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(ModelError, match="cannot be told apart"):
        answer_tokens(tokenizer)


def test_labels_follow_the_threshold_in_the_order_of_the_trajectories(tmp_path):
    out = tmp_path / "labels.jsonl"
    trajectories = [make_trajectory(i, f"p={p}") for i, p in enumerate((0.25, 0.75, 0.5))]
    counts = label(trajectories, out, engine=EngineConfig(max_batch=2))
    labels = read_labels(out)
    assert list(labels) == ["t0", "t1", "t2"]
    # P(YES) > P(NO) is strict: one half is not a success.
    assert [x.reward for x in labels.values()] == [0, 1, 0]
    assert labels["t1"].p_yes == pytest.approx(0.75)
    assert labels["t1"].judge == "rule"
    assert counts == {"judged": 3, "success": 1}
    label(trajectories, tmp_path / "strict.jsonl", threshold=0.8)
    assert [x.reward for x in read_labels(tmp_path / "strict.jsonl").values()] == [0, 0, 0]


def test_a_failing_judge_leaves_the_trajectory_unjudged_and_is_asked_again_next_time(tmp_path):
    out = tmp_path / "labels.jsonl"
    counts = label([make_trajectory(0, "down"), make_trajectory(1, "p=0.9")], out)
    assert counts == {"judged": 1, "success": 1, "unjudged": 1}
    unjudged = read_labels(out)["t0"]
    assert (unjudged.reward, unjudged.p_yes, unjudged.error) == (None, None, "connection refused")
    judge = RuleJudge()
    counts = label([make_trajectory(0, "p=0.8"), make_trajectory(1, "p=0.9")], out, judge)
    assert counts == {"judged": 1, "success": 1, "skipped": 1}
    assert judge.calls == 1
    assert read_labels(out)["t0"].reward == 1


def test_at_most_a_batch_is_in_flight_and_unfinished_trajectories_are_not_asked_about(tmp_path):
    judge = RuleJudge()
    trajectories = [make_trajectory(i, "p=0.9", Status.ENV_ERROR if i == 5 else Status.AGENT_DONE) for i in range(20)]
    counts = label(trajectories, tmp_path / "labels.jsonl", judge, engine=EngineConfig(max_batch=4))
    assert counts == {"judged": 19, "success": 19, "unfinished": 1}
    assert judge.calls == 19
    assert 2 <= judge.most_running <= 4


def test_an_api_judge_answers_in_words_and_anything_else_is_no_judgement(tmp_path):
    out = tmp_path / "labels.jsonl"
    trajectories = [make_trajectory(i, page) for i, page in enumerate(("p=0.25", "p=0.75", "p=0.5", "p=0.6"))]
    assert label(trajectories, out, judge="llm") == {"judged": 2, "success": 1, "unjudged": 2}
    labels = read_labels(out)
    assert [labels[f"t{i}"].reward for i in range(4)] == [0, 1, None, None]
    assert "'I cannot say'; expected YES or NO" in labels["t3"].error


def test_the_environment_s_own_reward_is_a_label_and_its_absence_is_none(tmp_path):
    def played(name, reward, status=Status.PAGE_ENDED):
        return Trajectory(name, Task(name, "x"), "Go.", 0, (), "", status, env_reward=reward)

    file, labels = tmp_path / "trajectories.jsonl", tmp_path / "labels.jsonl"
    trajectories = [
        played("won", 0.5),
        played("lost", 0.0),
        played("unknown", None),
        played("torn", 1.0, Status.TIMEOUT),
    ]
    write_records(file, trajectories)
    config = RunConfig(label=LabelConfig(judge="environment"), tasks=TasksConfig(source="fixed"))
    for _ in range(2):  # the second call finds all judged
        counts = label_file(config, file, labels)
        assert {k: v for k, v in counts.items() if k.startswith("num")} == {
            "num_labelled": 2, "num_success": 1, "num_unjudged": 1, "num_unfinished": 1,
        }  # fmt: skip
    found = read_labels(labels)
    assert {name: label.reward for name, label in found.items()} == {"won": 1, "lost": 0, "unknown": None}
    assert found["unknown"].error == "the environment has no reward for this task"
    assert len(labels.read_text().splitlines()) == 3


@pytest.mark.parametrize(("reward", "word"), [(0.0, "failures"), (1.0, "successes")])
def test_labels_that_are_all_alike_are_warned_of(tmp_path, caplog, reward, word):
    file = tmp_path / "trajectories.jsonl"
    write_records(file, [make_trajectory(n, "", env_reward=reward) for n in range(20)])
    config = RunConfig(label=LabelConfig(judge="environment"), tasks=TasksConfig(source="fixed"))
    label_file(config, file, tmp_path / "labels.jsonl")
    assert f"all 20 episodes are labelled {word}" in caplog.text


ROOT = Path(__file__).parent.parent
TEXT = "You judge a user’s agent. Say YES or NO."


def test_the_judge_is_asked_in_the_released_format_with_this_text(tmp_path):
    """One string there, parts here; the tokenizer's own prefix (`<|begin_of_text|>` of Llama 3.1) goes before both."""
    (tmp_path / "text").write_text(f"{TEXT}\n", encoding="utf-8")
    config = LabelConfig(prompt_format="webrl", system_prompt=tmp_path / "text")
    tokenizer = build_tokenizer()
    example = JudgedExample(" Buy a hat ", ('# Note: x\ndo(action="Wait")', "exit()\n"), " <html>\n", 1)
    released = (
        f"<|start_header_id|>system<|end_header_id|>\n\n{TEXT}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nThe User Intent:\nBuy a hat\n\nAction History:\n"
        '# Note: x; do(action="Wait")\nexit();\n\nThe Current Screenshot:\n<html>'
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert tokenizer.decode(prompt_ids(example, tokenizer, config)) == released
    ours = prompt_ids(example, tokenizer, LabelConfig(prompt_format="webrl"))
    assert TEXT not in tokenizer.decode(ours)
    chat = prompt_ids(example, tokenizer, LabelConfig(system_prompt=tmp_path / "text"))
    assert TEXT in tokenizer.decode(chat)


@pytest.mark.companion("webarena")
@pytest.mark.parametrize("name", ["webrl_llama31_8b", "webrl_glm4_9b"])
def test_the_papers_configs_speak_the_released_outcome_models_format(name):
    label = load_config(ROOT / "configs" / f"{name}.yaml").label
    assert (label.prompt_format, label.system_prompt) == ("webrl", Path("data/released_orm_prompt.txt"))


def test_a_dry_run_only_notes_an_absent_text(tmp_path, monkeypatch, webrl):
    monkeypatch.chdir(ROOT)
    runs = tmp_path / "runs"
    text = f"label.system_prompt={tmp_path / 'none.txt'}"
    assert f"# missing on this machine: {text}\n" in webrl(0, "run", "demo", f"runs_dir={runs}", text, "--dry-run").out
    assert not runs.exists()


def test_an_absent_model_folder_is_noticed_before_torch_is_imported(tmp_path):
    given = ["--data", "data/samples", "--init", "./absent"]
    commands = [["run", "models.generator=data/absent"], ["rollout", "models.actor=./absent"], ["sft", *given]]
    commands += [["eval", "models.actor=/absent"], ["label", "models.orm=data/absent"], ["train-orm", *given]]
    code = (
        "import json, sys; from webrl import cli\n"
        "for name, *more in json.loads(sys.argv[1]):\n"
        "    print('torch' in sys.modules or cli.main([name, 'demo', sys.argv[2], *more]), 'torch' in sys.modules)"
    )
    done = python("-c", code, json.dumps(commands), f"runs_dir={tmp_path}", code=None, cwd=ROOT)
    assert [line for line in done.stdout.splitlines() if line.endswith(("True", "False"))] == ["1 False"] * 6, (
        done.stderr
    )
    assert done.stderr.count("absent' does not exist") == 6
    assert list(tmp_path.iterdir()) == []
