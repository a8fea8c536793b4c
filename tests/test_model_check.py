"""What a model is loaded from is compared before anything starts; adapters work wherever a model is named."""

import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from llm_builders import build_tokenizer, save_tiny_model
from peft import AdaptionPromptConfig, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    RobertaConfig,
    RobertaForMaskedLM,
)

from webrl import load_actor as api_actor
from webrl.cli import main
from webrl.config import load_config
from webrl.errors import ModelError
from webrl.llm.check import check_model
from webrl.llm.loading import MODEL_FILES, config_of, load_causal_lm, load_tokenizer, tokenizer_fingerprint
from webrl.phase import STAGES
from webrl.preflight import check_inputs
from webrl.stages import copy_model
from webrl.training.critic import load_critic
from webrl.training.models import load_actor

UP = "model.layers.1.mlp.up_proj.weight"
NUMBERS = torch.arange(8)[None]


@pytest.fixture
def folder(tmp_path):
    return save_tiny_model(tmp_path / "model", hidden=16, tie=False, positions=2048)


def change_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_config(folder: Path, file: str = "config.json", **values) -> None:
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | values))


def load_float32(name: str) -> AutoModelForCausalLM:
    return load_causal_lm(name, dtype="float32")


def assert_refused(message: str, model: Path | str, uses=(check_model,), **options) -> None:
    for use in uses:
        with pytest.raises(ModelError, match=message):
            use(str(model), **options)


def make_value_model(folder: Path) -> None:
    critic = load_critic(folder, fresh=True).lm
    (folder / "model.safetensors").unlink()
    critic.save_pretrained(folder)


def shard(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    check_model(str(folder))
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def grow_tokenizer(folder: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([f"new{i}" for i in range(9)])
    tokenizer.save_pretrained(folder)


DAMAGES = {
    "a weight is absent": (lambda f: change_weights(f, lambda w: w.pop(UP)), f"has files without {UP} in the Llama"),
    "no output layer": (lambda f: change_weights(f, lambda w: w.pop("lm_head.weight")), "without lm_head.weight in"),
    "layers that the config does not count": (
        lambda f: change_config(f, num_hidden_layers=1),
        r"has files with model\.layers\.1\.\S+, \S+ and 7 more, for which there is no place",
    ),
    "layers that the files do not hold": (
        lambda f: change_config(f, num_hidden_layers=3),
        r"has files without model\.layers\.2\.\S+, \S+ and 7 more",
    ),
    "weights of another width": (
        lambda f: change_config(f, intermediate_size=48),
        r"of other shapes: model\.layers\.0\.mlp\.down_proj\.weight is .*16, 32.* and should be .*16, 48.* and 4 more",
    ),
    "a value model": (make_value_model, "is a value model .* name the actor's folder"),
    "a reward model's head": (
        lambda f: change_weights(f, lambda w: w.update({"v_head.summary.weight": torch.zeros(1, 16)})),
        r"its files hold v_head\.summary\.weight.*webrl train-orm",
    ),
    "a rotary table that there is not": (
        lambda f: change_config(f, rope_scaling={"type": "foo", "factor": 2.0}),
        "cannot load the model '.*': a file there names 'foo', which is not known here",
    ),
    "a width that is no number": (
        lambda f: change_config(f, hidden_size="wide"),
        "cannot read the config of '.*': Validation error for field 'hidden_size'",
    ),
    "a precision that there is not": (
        lambda f: change_config(f, dtype="flat"),
        "cannot read the config of '.*': module 'torch' has no attribute 'flat'",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "a file of several is absent": (shard, "model-00002-of-"),
    "half a file": (truncate, "cannot load the model .*incomplete metadata"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_does_not_fit_itself_is_refused_and_said_how_with_or_without_loading_it(folder, damage):
    check_model(str(folder))
    apply, message = DAMAGES[damage]
    apply(folder)
    assert_refused(message, folder, (check_model, load_actor, load_float32))


def _index(text: str):
    def damage(folder: Path) -> None:
        shard(folder)
        (folder / "model.safetensors.index.json").write_text(text)

    return damage


def lower_case(folder: Path) -> None:
    backend = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(backend | {"normalizer": {"type": "Lowercase"}}))


def template(content: str, of: str = "", before: str = ""):
    """A chat template that says this of each message."""
    text = f"{before}{{% for m in messages{of} %}}{content}{{% endfor %}}"
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


def end_no_answer(folder: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)


def number_the_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    change_config(folder, "tokenizer_config.json", chat_template=5)


END_TOKENS = ('{"eos_token_id": [3, 4],}', "", "[]", '{"eos_token_id": "3"}', '{"eos_token_id": [3.5]}')
CHANGED = ("hello", "{{ m.content | upper }}", "{{ m.content | replace('\n', ' ') }}<|eot_id|>")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        *((template(content), "it does not write the user's messages as they are") for content in CHANGED),
        (
            template("<|eot_id|>{{ m.role }}: {{ m.content }}"),
            r"leaves the answer's '<\|eot_id\|>assistant: ' to.*end it",
        ),
        (
            template("<|eot_id|>{{ m.role }}\n{{ m.content }}"),
            r"end it with {% if add_generation_prompt %}{{ '<\|eot_id\|>assistant\\n' }}{% endif %}$",
        ),
        (end_no_answer, "has no end token: set eos_token in"),
        (number_the_template, r"chat_template in tokenizer_config\.json must be text, found 5"),
        *(
            (lambda f, text=text: (f / "generation_config.json").write_text(text), r"generation_config\.json")
            for text in END_TOKENS
        ),
        *((_index(text), r"\.index\.json does not say which file has") for text in ("[]", '{"weight_map": {"a": 3}}')),
        (
            lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n"),
            r"model\.safetensors is a Git LFS pointer instead of its content; run `git lfs pull`",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer from '.*': no file has its vocabulary"),
        (lambda f: [path.unlink() for path in f.glob("tokenizer*.json")], "has no tokenizer"),
        (lambda f: (f / "config.json").unlink(), r"has no config\.json"),
        (
            lambda f: (f / "chat_template.jinja").unlink(),
            r"has no chat template; use models\.prompt_format=webrl \(for a judge label\.prompt_format=webrl\), or add",
        ),
        (
            template("{{ m.content }}", " if m.role != 'system'"),
            r"chat template of '.*' leaves out the system message, .*: write its content there, or \{# left out #\}",
        ),
        (
            lower_case,
            r"tokenizer of '.*' makes \"\[12\]\\tlink 'zoë'.* of .*: the model would be trained on other texts",
        ),
    ],
)
def test_the_check_says_what_is_wrong_where_a_library_would_not_or_only_hours_later(folder, damage, said):
    check_model(str(folder), prompt_format="chat")
    damage(folder)
    assert_refused(said, folder, prompt_format="chat")


def test_a_model_that_was_trained_without_the_system_message_may_say_so(folder):
    template("{{ m.content }}", " if m.role != 'system'", "{# left out: the system message #}")(folder)
    check_model(str(folder), prompt_format="chat")


def test_a_judge_and_a_generator_that_are_never_asked_need_no_chat_template(folder, tmp_path, capsys):
    (folder / "chat_template.jinja").unlink()
    own = "label.judge=environment tasks.source=fresh"
    for name in ("orm", "generator"):
        assert attempt(f"run demo --dry-run {own} models.{name}=MODEL", folder, tmp_path) == 0
        assert attempt(f"run demo --dry-run models.{name}=MODEL", folder, tmp_path) == 1
        assert "has no chat template" in capsys.readouterr().err


def test_tied_weights_are_not_missed_and_a_larger_embedding_than_the_tokenizers_is_fine(tmp_path):
    folder = save_tiny_model(tmp_path / "tied", hidden=16)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    check_model(str(folder))
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(load_tokenizer(str(folder))) + 16, mean_resizing=False)
    model.save_pretrained(folder)
    check_model(str(folder))


def test_of_quantized_weights_whose_names_are_their_own_the_tokenizer_alone_is_compared(folder):
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128})
    change_weights(folder, lambda weights: weights.pop(UP))
    check_model(str(folder), use="vllm")
    grow_tokenizer(folder)
    assert_refused("its tokenizer writes ids up to 355", folder, use="vllm")


def test_a_critic_is_compared_with_its_files_when_it_is_loaded(folder, tmp_path):
    critic = tmp_path / "critic"
    shutil.copytree(folder, critic)
    make_value_model(critic)
    several = shutil.copytree(critic, tmp_path / "several")
    change_config(several, id2label={str(i): str(i) for i in range(4)})
    assert_refused("has 4 value logits, not one", several, [load_critic])
    for key in ("score.weight", UP):
        damaged = shutil.copytree(critic, tmp_path / f"without-{key}")
        change_weights(damaged, lambda weights, key=key: weights.pop(key))
        assert_refused(f"has files without {key}", damaged, [load_critic], fresh=True)


def test_a_control_token_without_a_row_is_refused_once_the_template_writes_it(folder):
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(folder)
    check_model(str(folder))
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ bos_token }}", "<image_soft_token>")
    tokenizer.save_pretrained(folder)
    said = "embeddings for 347 tokens, but its tokenizer writes ids up to 347"
    assert_refused(said, folder, (check_model, api_actor))


COMMANDS = [
    *("run demo --dry-run models.actor=MODEL", "run demo --dry-run models.orm=MODEL"),
    *(
        f"{command} demo models.{name}=MODEL"
        for command, name in (("run", "generator"), ("run", "actor"), ("eval", "actor"))
    ),
    *(
        f"{command} demo {dry}--init MODEL --data DATA"
        for command in ("sft", "train-orm")
        for dry in ("--dry-run ", "")
    ),
    *("serve-model MODEL demo --dry-run", "grpo --dry-run model_name=MODEL"),
]


def attempt(command: str, model: Path, tmp_path: Path) -> int:
    words = [w.replace("MODEL", str(model)).replace("DATA", str(tmp_path / "data")) for w in command.split()]
    (tmp_path / "data").mkdir(exist_ok=True)
    if " demo" in command:
        words.append(f"runs_dir={tmp_path / 'runs'}")
    return main(words)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_model_that_does_not_fit_before_it_starts(folder, tmp_path, capsys, command):
    for damage, message in (
        (grow_tokenizer, "has embeddings for 347 tokens, but its tokenizer writes ids up to 355"),
        (DAMAGES["a weight is absent"][0], f"has files without {UP}"),
    ):
        damage(folder)
        assert attempt(command, folder, tmp_path) == 1
        assert message in capsys.readouterr().err
        build_tokenizer().save_pretrained(folder)
    assert not list((tmp_path / "runs").glob("*/phase_*"))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "version https://git-lfs.github.com/spec/v1\n"])
def test_a_damaged_file_of_a_tokenizer_is_named(folder, content):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        whole = (folder / name).read_text()
        (folder / name).write_text(content)
        if (name, content) != ("tokenizer_config.json", "{}"):
            said = rf"{re.escape(str(folder))}': {re.escape(name)} is damaged, or of a newer version: .*; copy it again"
            with pytest.raises(ModelError, match=said):
                load_tokenizer(str(folder))
        (folder / name).write_text(whole)
    assert load_tokenizer(str(folder))


@pytest.fixture
def adapter(folder, tmp_path):
    """A LoRA adapter of peft's on the model, as `webrl grpo --use-peft` writes it: without config and tokenizer."""
    return lora_of(folder, tmp_path / "adapter", target_modules="all-linear")


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(NUMBERS).logits


def test_an_adapter_is_merged_into_its_base_wherever_it_is_loaded(folder, adapter, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(folder)
    plain = logits(base)
    expected = logits(PeftModel.from_pretrained(base, adapter))
    assert not torch.allclose(expected, plain, atol=1e-2)
    copy_model(str(adapter), tmp_path / "actor")
    check_model(str(tmp_path / "actor"))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "actor")
    assert whole.dtype == torch.float32
    for model in (load_causal_lm(str(adapter), dtype="float32"), whole):
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    merged = {name: weight for name, weight in whole.state_dict().items() if "proj" in name}
    for trained in (load_actor(adapter), load_critic(adapter, fresh=True)):
        own = trained.lm.state_dict()
        assert all(torch.allclose(own[name], weight, atol=1e-6) for name, weight in merged.items())
    fingerprints = {tokenizer_fingerprint(load_tokenizer(str(f))) for f in (folder, adapter, tmp_path / "actor")}
    assert len(fingerprints) == 1


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--dry-run" in c])
def test_every_command_takes_an_adapter(adapter, tmp_path, capsys, command):
    assert attempt(command, adapter, tmp_path) == 0, capsys.readouterr().err


def test_a_base_is_found_from_the_adapters_folder_too(folder, adapter, tmp_path, monkeypatch):
    change_config(adapter, "adapter_config.json", base_model_name_or_path="../model")
    check_model(str(adapter))
    shutil.rmtree(folder)
    assert_refused(r"adapter_config.json: base_model_name_or_path: .*'../model' does not exist", adapter)


def test_an_adapter_of_another_model_is_refused_before_anything_starts(folder, adapter, tmp_path, capsys):
    shutil.rmtree(folder)
    save_tiny_model(folder, hidden=32)
    assert attempt("run demo --dry-run models.actor=MODEL", adapter, tmp_path) == 1
    assert "Error(s) in loading state_dict for PeftModel: size mismatch for base_model" in capsys.readouterr().err
    shutil.rmtree(folder)
    save_tiny_model(folder, hidden=16, tie=False, positions=2048)
    change_config(folder, num_hidden_layers=1)
    change_weights(folder, lambda w: [w.pop(key) for key in list(w) if key.startswith("model.layers.1.")])
    assert_refused(r"with unknown weights base_model\.model\.model\.layers\.1\.", adapter, (check_model, load_actor))


def test_an_adapter_that_cannot_be_merged_into_its_base_is_refused(folder, adapter, tmp_path):
    second = shutil.copytree(adapter, tmp_path / "second")
    change_config(second, "adapter_config.json", base_model_name_or_path=str(adapter))
    prompts = PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder), prompts).save_pretrained(tmp_path / "prompts")
    path = adapter / "adapter_model.safetensors"
    save_file({key: weight for key, weight in load_file(path).items() if ".layers.0." in key}, path)
    for name, message in (
        ("second", "is an adapter itself; merge that first"),
        ("prompts", "is a PROMPT_TUNING, which cannot be merged"),
        ("adapter", r"has a file without base_model\.model\.model\.layers\.1\."),
    ):
        assert_refused(message, tmp_path / name, (check_model, load_actor))


def lora_of(base: Path, target: Path, **options) -> Path:
    torch.manual_seed(0)
    lora = LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", **options)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(target)
    return target


@pytest.mark.filterwarnings("ignore:Model", "ignore:Setting `save_embedding_layers`", "ignore:Input and output")
def test_an_adapter_of_weights_that_another_layer_uses_too_is_not_merged_into_both(folder, tmp_path):
    tied = save_tiny_model(tmp_path / "tied", hidden=16)
    for name, base, options in (
        ("head", tied, {"target_modules": ["lm_head", "q_proj"]}),
        ("embeddings", tied, {"target_modules": ["embed_tokens"]}),
        ("replicated", folder, {"target_modules": ["q_proj"], "layer_replication": [[0, 2], [0, 2]]}),
    ):
        made = str(lora_of(base, tmp_path / name, **options))
        assert_refused(r"whose weights another layer of .* uses too", made, (check_model, load_actor, load_float32))
    for name, base, options in (
        ("own head", folder, {"target_modules": ["lm_head"]}),
        ("tokens", tied, {"trainable_token_indices": [5, 6]}),
        ("whole", tied, {"modules_to_save": ["lm_head"]}),
    ):
        made = lora_of(base, tmp_path / name, **options)
        expected = logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), made))
        check_model(str(made))
        torch.testing.assert_close(logits(load_causal_lm(str(made), dtype="float32")), expected, rtol=1e-4, atol=1e-4)


def test_an_adapter_that_is_ambiguous_or_of_another_revision_or_kind_is_refused(folder, adapter, tmp_path):
    both = Path(shutil.copytree(folder, tmp_path / "both"))
    for file in adapter.iterdir():
        shutil.copy(file, both)
    newer = shutil.copytree(adapter, tmp_path / "newer")
    change_config(newer, "adapter_config.json", use_new=True, use_other=None)
    pinned = shutil.copytree(adapter, tmp_path / "pinned")
    change_config(pinned, "adapter_config.json", base_model_name_or_path="ann/base", revision="v2")
    prompts = AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=2, adapter_layers=1)
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder), prompts).save_pretrained(tmp_path / "prompts")
    for name, message in (
        ("both", r"holds a whole model .* and an adapter .* Move the files of one elsewhere"),
        ("newer", r"has use_new=True, unknown to this peft: update peft, or delete the key"),
        ("pinned", r"trained on revision 'v2' of 'ann/base': .*hf download ann/base --revision v2"),
        ("prompts", "is a ADAPTION_PROMPT, which cannot be merged"),
    ):
        assert_refused(message, tmp_path / name, (check_model, load_actor))


def put_into_hub_cache(monkeypatch, tmp_path: Path, **models: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name, source in models.items():
        cached = tmp_path / "cache" / f"models--ann--{name}"
        shutil.copytree(source, cached / "snapshots" / ("0" * 40))
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("0" * 40)


def test_a_hub_model_is_copied_with_its_commit_but_no_adapter_is_taken_and_one_that_is_not_there_is_named(
    folder, adapter, tmp_path, monkeypatch
):
    put_into_hub_cache(monkeypatch, tmp_path, agent=adapter, base=folder)
    assert copy_model("ann/base", tmp_path / "copy")["hub_commit"] == "0" * 40
    with pytest.raises(ModelError, match=r"hf download ann/agent --local-dir FOLDER"):
        copy_model("ann/agent", tmp_path / "actor")
    assert_refused(r"hf download ann/agent --local-dir FOLDER", "ann/agent", (load_actor, load_float32))
    with pytest.raises(ModelError, match="cannot download the model 'ann/nothing'"):
        copy_model("ann/nothing", tmp_path / "nothing")


def test_a_hub_model_of_pickles_is_refused_before_it_is_loaded(folder, tmp_path, monkeypatch):
    torch.save(AutoModelForCausalLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    put_into_hub_cache(monkeypatch, tmp_path, old=folder)
    message = r"'ann/old'.* no weights in model\*\.safetensors, .*save_pretrained\(NEW\)"
    assert_refused(message, "ann/old", (load_actor, load_float32, lambda name: copy_model(name, tmp_path / name)))


def test_a_quantized_model_may_answer_but_is_not_trained_nor_given_an_adapter(folder, adapter):
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    check_model(str(folder), use="vllm")
    message = r"is quantized: it can answer but not be trained"
    assert_refused(message, folder, use="training")
    assert_refused(message, folder, [load_actor])
    assert_refused(message, adapter)


def test_an_adapter_that_began_as_pissa_passes_the_check_as_it_does_the_loading(folder, tmp_path):
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa")
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).save_pretrained(tmp_path / "pissa")
    change_config(tmp_path / "pissa", "adapter_config.json", base_model_name_or_path=str(folder))
    check_model(str(tmp_path / "pissa"))
    load_causal_lm(str(tmp_path / "pissa"), dtype="float32")


def test_weights_are_copied_from_the_hub_whatever_their_shards_are_called():
    names = ("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors-00001-of-00002.safetensors")
    assert all(any(fnmatch(name, pattern) for pattern in MODEL_FILES) for name in names)


SIZE = {"vocab_size": 347, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA = {"head_dim": 8, "num_key_value_heads": 1, "use_bidirectional_attention": True}


@pytest.mark.filterwarnings("ignore:.*bos_token_id", "ignore:.*eos_token_id")
@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (BertForMaskedLM, BertConfig(**SIZE)),
        (RobertaForMaskedLM, RobertaConfig(**SIZE)),
        (Gemma3ForCausalLM, Gemma3TextConfig(**SIZE, **GEMMA)),
        (BertLMHeadModel, BertConfig(**SIZE, is_decoder=True)),
    ],
)
def test_a_model_whose_tokens_see_those_after_them_is_no_actor(tmp_path, model_class, config):
    build_tokenizer().save_pretrained(tmp_path)
    model_class(config).save_pretrained(tmp_path)
    uses = (check_model, load_actor, load_float32)
    if model_class is BertLMHeadModel:
        for use in uses:
            use(str(tmp_path))
    else:
        assert_refused(r"cannot generate: in its \w+, tokens attend to later ones; use a decoder", tmp_path, uses)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_without_a_scale_are_not_read_as_numbers(folder, tmp_path, monkeypatch, dtype):
    change_weights(folder, lambda weights: weights.update({UP: (50 * weights[UP]).to(dtype)}))
    put_into_hub_cache(monkeypatch, tmp_path, judge=folder)
    message = r"up_proj\.weight in model\.safetensors is [IUF]8\w*, and config"
    assert_refused(message, folder, (check_model, load_actor, load_float32))
    assert_refused(message, "ann/judge", [load_float32])


def test_weights_whose_first_bytes_happen_to_be_those_of_gzip_are_loaded(folder):
    file = folder / "model.safetensors"
    start = 8 + int.from_bytes((data := file.read_bytes())[:8], "little")
    file.write_bytes((0x8B1F).to_bytes(8, "little") + data[8:start].ljust(0x8B1F) + data[start:])  # 1f 8b …
    check_model(str(folder))
    load_actor(folder)


@pytest.mark.parametrize("name", ["LlamaTokenizer", "BertTokenizer"])
def test_a_tokenizer_that_loses_what_its_file_keeps_is_refused_with_the_class_that_does_not(folder, name):
    change_config(folder, "tokenizer_config.json", tokenizer_class=name)
    assert_refused(f"its {name} loses parts of .*: set tokenizer_class to PreTrainedTokenizerFast", folder)
    change_config(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    check_model(str(folder))


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_an_adapter_that_has_trained_biases_must_hold_them(folder, tmp_path, bias):
    config = AutoConfig.from_pretrained(folder)
    config.attention_bias = True
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    adapter = lora_of(folder, tmp_path / "biased", target_modules=["q_proj"], bias=bias)
    check_model(str(adapter))
    load_actor(adapter)
    path = adapter / "adapter_model.safetensors"
    save_file({key: weight for key, weight in load_file(path).items() if not key.endswith("bias")}, path)
    assert_refused(r"has a file without base_model\S+\.bias", adapter, (check_model, load_actor))


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed", "ignore:Adapter 'default'.*invalid shape")
def test_an_adapter_with_biases_for_layers_that_have_none_is_refused_before_anything_starts(folder, tmp_path):
    adapter = lora_of(folder, tmp_path / "biased", target_modules=["q_proj"], lora_bias=True)
    assert_refused(r"cannot merge the adapter .*because the base layer has no bias", adapter, (check_model, load_actor))


@pytest.mark.parametrize(("method", "package"), [("gptq", "optimum|gptqmodel"), ("awq", "gptqmodel")])
def test_a_quantized_judge_without_the_package_that_reads_it_is_refused_before_it_is_asked(
    folder, tmp_path, capsys, method, package
):
    change_config(folder, quantization_config={"quant_method": method, "bits": 4, "group_size": 128})
    assert attempt("run demo --dry-run models.orm=MODEL", folder, tmp_path) == 1
    assert re.search(f"cannot load the model .*requires ({package})", capsys.readouterr().err)
    check_model(str(folder), use="vllm")


def test_a_hub_that_cannot_be_reached_is_waited_for_once_and_before_a_run_starts(monkeypatch) -> None:
    settings = {"ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": False}  # a port that nothing listens on
    for name, value in settings.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    waits: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    with pytest.raises(ModelError, match="cannot read the config of 'ann/model': We couldn't connect"):
        config_of("ann/model")
    assert waits == [1, 2, 4, 8, 8]
    later = load_config("demo", ["models.generator=ann/model"])  # it writes tasks in phase 1
    with pytest.raises(ModelError, match="cannot read the config of 'ann/model'"):
        check_inputs(later, STAGES)
