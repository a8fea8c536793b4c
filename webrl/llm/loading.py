"""Load a tokenizer or a causal language model, with errors that explain how to fix the problem; and short hashes that
tell whether two records come from the same weights or the same tokenizer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args
from weakref import WeakKeyDictionary

from webrl.config import RunConfig
from webrl.errors import DataError, ModelError
from webrl.runs.clock import spent_on
from webrl.runs.store import open_input, read_json, write_json

logger = logging.getLogger(__name__)

CODE_REFUSED = "it needs Python code of its own (auto_map in its config), which is never run"
PICKLES = "pickles can run code; if trusted, convert: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)"
_tokenizers: dict[str, Any] = {}
"""The most recently used ones, by a digest of a folder's files or hub name."""
_MAX_TOKENIZERS = 8
_WITH_TEXT_HALF = frozenset(("qwen3_5", "qwen3_5_moe"))
"""Vision-language models whose text half transformers loads as a separate model."""
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""What a name on the Hub looks like; so may a folder's."""
MODEL_FILES = (
    "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "model*.safetensors", "model.safetensors.index.json", "adapter_config.json",
)  # fmt: skip
"""The files that a model is loaded from; optimizer states, pickles and other files in its folder are ignored."""
ADAPTER_FILE = "adapter_model.safetensors"
"""Weights of an adapter's folder."""
_WHOLE_FILE_BYTES = 64 << 20
"""Weight files up to this size are hashed whole; larger ones by header and evenly spread blocks."""
_SAFETENSORS = rb"(?s).{8}\{"
_BLOCK_BYTES = 64 << 10
_NUM_BLOCKS = 256
_HEX_DIGITS = 16
_TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken")
_NO_TOKENIZER = ("config.json", "generation_config.json", "model.safetensors.index.json", "adapter_config.json")
_fingerprints: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
"""Tokenizer -> its length, and its fingerprint, which takes seconds for a large one."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
TEXT = "[12]\tlink 'Zoë'\n\nclick('12')"
"""What pages and answers are made of."""


def load_tokenizer(name: str) -> Any:
    """Load the transformers tokenizer of a folder or hub name (a LoRA folder without one: its base model's).

    All callers that load the same files share it, even from different folders, so it must not be changed: loading,
    copying or hashing one of 262,144 tokens takes seconds, and every stage has its actor in another folder.

    Raises:
        ModelError: no such folder or hub model, a folder without tokenizer, or one that loses what its file keeps.
    """
    folder = model_folder(name)
    if folder and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        base = adapter_base(folder)
        if base:
            return load_tokenizer(base)
        raise ModelError(
            f"model folder {name!r} has no tokenizer; save it next to the weights with "
            f"AutoTokenizer.from_pretrained(<base model>).save_pretrained({name!r})"
        )
    key = name
    if folder:  # over all that its tokenizer is loaded from, chat template included
        digest = hashlib.sha256()
        files = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
        for file in sorted(f for f in files if f.suffix in _TOKENIZER_SUFFIXES and f.name not in _NO_TOKENIZER):
            digest.update(f"{file.name} {file.stat().st_size} ".encode())
            digest.update(file.read_bytes())
        with contextlib.suppress(OSError, ValueError, AttributeError):  # transformers looks at these two
            config = json.loads((folder / "config.json").read_bytes())
            digest.update(f"{config.get('model_type')} {config.get('transformers_version')}".encode())
        key = digest.hexdigest()
    tokenizer = _tokenizers.pop(key, None)
    if tokenizer is None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        try:
            with spent_on("model files"):
                tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
                file = Path(name).expanduser() / "tokenizer.json"
                backend = getattr(tokenizer, "backend_tokenizer", None) if file.is_file() else None
                if backend and not _keeps_text(backend) and _keeps_text(Tokenizer.from_file(str(file))):
                    raise ValueError(
                        f"its {type(tokenizer).__name__} loses parts of {TEXT!r}, which tokenizer.json keeps: set "
                        "tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
                    )
                if not isinstance(template := tokenizer.chat_template, str | dict | None):
                    raise ValueError(f"chat_template in tokenizer_config.json must be text, found {template!r:.80}")
        except Exception as error:  # a damaged file raises nearly anything in transformers and tokenizers
            why = library_message(error)
            if "backend tokenizer" in why:
                why = "no file has its vocabulary (such as tokenizer.json); copy it again"
            for file in (f for f in Path(name).expanduser().glob("*.json") if f.name in MODEL_FILES):
                try:
                    _ = Tokenizer.from_file(str(file)) if file.name == "tokenizer.json" else read_json(file).keys()
                except Exception:  # tokenizers raises this very class
                    why = f"{file.name} is damaged, or of a newer version: {why}; copy it again"
            raise ModelError(f"cannot load a tokenizer from {name!r}: {why}") from error
    _tokenizers[key] = tokenizer
    if len(_tokenizers) > _MAX_TOKENIZERS:
        del _tokenizers[next(iter(_tokenizers))]
    return tokenizer


def _keeps_text(backend: Any) -> bool:
    try:
        return TEXT in backend.decode(backend.encode(TEXT, add_special_tokens=False).ids, skip_special_tokens=False)
    except Exception:  # tokenizers raises this very class, for a text with words that it has no token for
        return False


@spent_on("model files")
def load_causal_lm(name: str, *, dtype: Any, device: str = "cpu", sees: bool = False) -> Any:
    """A causal language model in eval mode; the adapter of a LoRA folder is merged into its base.

    Args:
        sees: load a vision-language model, whole.

    Raises:
        ModelError: absent or broken weights, or a vision-language model that is not to see.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if not sees:
        _refuse_vision(name, config_of(name))
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return load_pretrained(auto, name, dtype).to(device).eval()


def load_pretrained(model_class: Any, name: str, dtype: Any, *, new_heads: bool = False, **options: Any) -> Any:
    """Load a model by a class of transformers; the adapter of a LoRA folder is merged into its base.

    Args:
        new_heads: as of `refuse_gaps`.
        options: of `from_pretrained`.

    Raises:
        ModelError: absent, broken or unfitting weights.
    """
    whole = base_of(name) or name
    options |= {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}  # refuse_gaps
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"  # else transformers sends names to a server that makes others
    with as_model_error(f"cannot load the model {name!r}"):
        with quiet():
            model, found = model_class.from_pretrained(whole, dtype=dtype, trust_remote_code=False, **options)
        refuse_gaps(whole, model, found, new_heads=new_heads)
        for file in weight_files(whole):
            headers(whole, file, scaled=bool(getattr(model.config, "quantization_config", None)))
        return model if whole == name else merge_adapter(model, name, whole)


def refuse_gaps(name: str, model: Any, found: Mapping[str, Any], *, new_heads: bool = False) -> None:
    """Check that a model writes from left to right, has all of its weights from its files, and a place for each there.

    Args:
        found: transformers' loading info, made with `ignore_mismatched_sizes`.
        new_heads: the model has fresh value heads, which no file holds, in the place of its output layer.

    Raises:
        ModelError: weights are absent (transformers draws them at random), too many, or of other shapes; or tokens see
            those after them.
    """
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    if getattr(model, "_hf_peft_config_loaded", False):  # transformers leaves it unmerged
        raise ModelError(adapter_of_hub(name))
    kind, config = type(model).__name__, model.config
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    sees_all = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    if masked or sees_all or getattr(config, "is_causal", None) is False:
        raise ModelError(f"model {name!r} cannot generate: in its {kind}, tokens attend to later ones; use a decoder")
    missing = sorted(found["missing_keys"] - ({"score.weight"} if new_heads else set()))
    unexpected = [] if new_heads else sorted(found["unexpected_keys"])
    if head := next((key for key in unexpected if key.split(".")[0] in ("score", "v_head", "value_head")), None):
        raise ModelError(
            f"model {name!r} is a value model (its files hold {head}), not a language model: name the actor's folder "
            "next to it; of a reward model from elsewhere, its base (`webrl train-orm` makes a judge of that)"
        )
    wrong = [f"{key} is {list(held)} and should be {list(due)}" for key, held, due in sorted(found["mismatched_keys"])]
    for what, keys in (
        (f"has files without {_some(missing)}", missing),
        (f"has files with {_some(unexpected)}, for which there is no place", unexpected),
        (f"has weights of other shapes: {_some(wrong, '; ')}", wrong),
    ):
        if keys:
            raise ModelError(
                f"model {name!r} {what} in the {kind} that its config.json describes: config and weights are not of "
                "the same model, or a file is missing; copy the folder again, or save it again with "
                "save_pretrained(FOLDER)"
            )


def weight_files(name: str) -> list[Path]:
    """Return a model's weight files; none of one of the Hub that is not here. Raises ModelError for a bad index."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    folder = model_folder(name)
    if folder is None:
        try:
            folder = Path(cast("str", try_to_load_from_cache(name, "config.json"))).parent
        except (HFValidationError, TypeError):  # no name of the Hub, or not here
            return []
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    try:
        return sorted({folder / file for file in read_json(index)["weight_map"].values()})
    except (DataError, AttributeError, KeyError, TypeError):
        raise ModelError(f"{index} does not say which file has which weight (weight_map); copy it again") from None


def headers(name: str, file: Path, *, scaled: bool = False) -> dict[str, Any]:
    """Return a file's weights by name, as empty tensors of their shapes.

    Raises:
        ModelError: an absent or damaged file; or, but for `scaled` weights, integers or bytes in the place of numbers.
    """
    import torch
    from safetensors import safe_open

    if not file.is_file():
        raise ModelError(f"model {name!r}: there is no {file.name} in {str(file.parent)!r}; copy it again")
    what = f"cannot load the model {name!r}: {file.name}"
    with as_model_error(what), open_input(file, _SAFETENSORS), safe_open(file, "pt") as opened:
        found = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118
        for key, weight in found.items():
            if not scaled and key.endswith("weight") and weight.get_dtype() not in ("F64", "F32", "F16", "BF16"):
                raise ModelError(
                    f"model {name!r}: {key} in {file.name} is {weight.get_dtype()}, and config.json has no "
                    "quantization_config, which would say how to read it; use the model that it was made from"
                )
        return {key: torch.empty(weight.get_shape(), device="meta") for key, weight in found.items()}


def _some(things: list[str], separator: str = ", ") -> str:
    """Name the first two, and count the rest."""
    return separator.join(things[:2]) + (f" and {len(things) - 2} more" if len(things) > 2 else "")


def merge_adapter(model: Any, name: str, base: str, state: dict[str, Any] | None = None) -> Any:
    """The model with the adapter of a folder merged into it by peft.

    Args:
        base: name of the model.
        state: the adapter's weights; None: those of its folder.

    Raises:
        ModelError: an adapter of another model, of a kind that cannot be merged, or a damaged one.
    """
    from peft import PeftConfig, PeftModel, set_peft_model_state_dict
    from peft.tuners.trainable_tokens import TrainableTokensLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from safetensors.torch import load_file

    with as_model_error(f"cannot put the adapter {name!r} onto {base!r}"):
        with warnings.catch_warnings(action="ignore"):  # of what it does not know; if that is set, it is refused
            config: Any = PeftConfig.from_pretrained(name)
        asked = read_json(Path(name).expanduser() / "adapter_config.json")
        if unknown := [f"{key}={value!r:.80}" for key, value in asked.items() if value and not hasattr(config, key)]:
            raise ModelError(f"adapter {name!r} has {unknown[0]}, unknown to this peft: update peft, or delete the key")
        if state is not None:  # of shapes alone: a beginning such as pissa's is computed from the base's weights
            config.init_lora_weights = False
        adapted: Any = None if config.is_prompt_learning else PeftModel(model, config)
        if not hasattr(adapted, "merge_and_unload"):
            raise ModelError(f"adapter {name!r} is a {config.peft_type.value}, which cannot be merged; train a LoRA")
        state = load_file(Path(name).expanduser() / ADAPTER_FILE) if state is None else state
        found: Any = set_peft_model_state_dict(adapted, state)
    biases = {"all": ".bias", "lora_only": ".base_layer.bias"}.get(getattr(config, "bias", ""), adapted.prefix)
    missing = sorted(key for key in found.missing_keys if adapted.prefix in key or key.endswith(biases))
    for what, keys in (("without", missing), ("with unknown weights", sorted(found.unexpected_keys))):
        if keys:
            raise ModelError(
                f"adapter {name!r} has a file {what} {_some(keys)}: it was trained on another model than {base!r}, or "
                "is damaged; correct base_model_name_or_path in its adapter_config.json, or save it again"
            )
    weights = [getattr(m, "weight", None) for m in adapted.modules() if not isinstance(m, BaseTunerLayer)]
    users = Counter(id(weight) for weight in weights if weight is not None)
    for key, layer in adapted.named_modules():
        # peft itself ties trainable tokens
        if not isinstance(layer, BaseTunerLayer) or isinstance(layer, TrainableTokensLayer):
            continue
        if users[id(getattr(layer.get_base_layer(), "weight", None))] > 1:
            raise ModelError(
                f"adapter {name!r} changes {key}, whose weights another layer of {base!r} uses too (tied embeddings, "
                "replicated layers): merged, it would change both; train it without that layer"
            )
    with as_model_error(f"cannot merge the adapter {name!r} into {base!r}"):
        return adapted.merge_and_unload()


@contextlib.contextmanager
def as_model_error(what: str) -> Iterator[None]:
    """Raise ModelError, `what: reason`, for any other error: libraries raise nearly anything for damaged files."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{what}: {library_message(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' report of absent weights, which `refuse_gaps` reads, and its progress bars."""
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def check_sight(config: RunConfig, name: str) -> None:
    """Refuse a folder `name` whose model cannot read its input; a hub model is checked on loading.

    Raises:
        ModelError: screenshots for a model of text, text alone for one that sees, or a prompt of other actions.
    """
    size, known = config.rollout.image_size, config_of(name) if model_folder(base_of(name) or name) else None
    if size is not None and known is not None and not hasattr(known, "vision_config"):
        raise ModelError(
            f"rollout.image_size={size}: model {name!r} has no vision; use a vision-language model, or leave it out"
        )
    if size is None:
        _refuse_vision(name, known)
    dialect, is_chat = config.rollout.dialect, config.models.prompt_format != "webrl" and config.rollout.show_text
    if known is None or dialect == "browsergym" or not is_chat:
        return
    if prompt_of(load_tokenizer(name), config.models.prompt) == "rounds":
        raise ModelError(
            f"model {name!r} was trained with prompt 'rounds' (tokenizer_config.json: {_KEY}), which shows answers in "
            f"browsergym's actions, and rollout.dialect={dialect}: set rollout.dialect=browsergym, or "
            "models.prompt=examples"
        )


def _refuse_vision(name: str, config: Any) -> None:
    """Raise ModelError if the config is of a vision-language model that is no text model as well."""
    if hasattr(config, "vision_config") and config.model_type not in _WITH_TEXT_HALF:
        raise ModelError(
            f"model {name!r} is a vision-language model, but would see only the page's text: set "
            "rollout.image_size (docs/eyes.md; webrl grpo: image_size), or use a text model"
        )


def model_folder(name: str) -> Path | None:
    """The folder that `name` is, or None if it can only be a hub name.

    Raises:
        ModelError: `name` is written like a path, or lies below a model or a run, and does not exist; it is a file; or
            its weights are pickles.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        pickles = sorted(file for kind in ("*model*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(kind))
        if pickles and not any(path.glob("*.safetensors")):
            raise ModelError(f"model folder {str(path)!r} has weights in {pickles[0].name}, a pickle, and {PICKLES}")
        return path
    if path.is_file():
        raise ModelError(f"model {name!r} is a file; name its folder, with config.json, *.safetensors and tokenizer")
    local = name.startswith(("./", "../", "~", "data/", "runs/")) or not HUB_NAME.fullmatch(name)
    if local or ("/" in name and any((path.parent / file).is_file() for file in ("config.json", "config.yaml"))):
        looked = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        raise ModelError(f"model folder {name!r} does not exist{looked}; name a folder, or a hub model as OWNER/NAME")
    return None


def base_of(name: str) -> str | None:
    """Name of the base model if `name` is an adapter's folder; None for a whole model, or a hub name.

    Raises:
        ModelError: as of `model_folder` and `adapter_base`; or a folder that holds neither a model nor an adapter.
    """
    folder = model_folder(name)
    base = adapter_base(folder) if folder else None
    if folder and not base and not (folder / "config.json").is_file():
        inside = sorted(file.parent for kind in ("*", "snapshots/*") for file in folder.glob(f"{kind}/config.json"))
        hint = f"; take {inside[0]}" if inside else ": it is not a transformers checkpoint"
        raise ModelError(f"model folder {name!r} has no config.json{hint}")
    return base


def config_of(name: str, *, is_trained: bool = False, **options: Any) -> Any:
    """The config of a model folder (an adapter's: its base's) or hub name, by transformers.

    Raises:
        ModelError: it cannot be read, or as of `base_of`; quantized weights, of what is to be trained or merged.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError
    from transformers import AutoConfig, utils

    whole = base_of(name) or name
    try:
        config = AutoConfig.from_pretrained(whole, trust_remote_code=False, **options)
    except Exception as error:  # absurd values raise nearly anything in transformers
        why = f"cannot read the config of {name!r}: {library_message(error)}"
        is_cut_off = isinstance(error.__cause__, LocalEntryNotFoundError)  # 24 s later
        with contextlib.suppress(OSError):  # the Hub does not know the name at all
            if utils.peft_utils.find_adapter_config_file(whole, local_files_only=is_cut_off):
                why = adapter_of_hub(whole)
        raise ModelError(why) from error
    if is_trained and getattr(config, "quantization_config", None):
        raise ModelError(f"model {name!r} is quantized: it can answer but not be trained; name the model it came from")
    return config


def adapter_base(folder: Path) -> str | None:
    """Return the base model's name if the folder holds a LoRA adapter.

    Raises:
        ModelError: an adapter_config.json that does not name it, or names a folder that does not exist (from here, and
            from the adapter's folder) or holds an adapter itself.
    """
    config = folder / "adapter_config.json"
    if not config.is_file():
        return None
    try:
        base = (settings := read_json(config))["base_model_name_or_path"]
    except (DataError, KeyError, TypeError) as error:
        raise ModelError(f"{config}: cannot read base_model_name_or_path ({error}); save the adapter again") from None
    if not isinstance(base, str) or not base:
        raise ModelError(f"{config}: base_model_name_or_path must name the base model, found {base!r:.80}")
    if not Path(base).is_dir() and (folder / base).is_dir():
        base = str(folder / base)
    try:
        whole = model_folder(base)
    except ModelError as error:
        raise ModelError(f"{config}: base_model_name_or_path: {error}") from None
    if whole and (whole / "adapter_config.json").is_file():
        raise ModelError(
            f"{config}: its base {base!r} is an adapter itself; merge that first: "
            "AutoPeftModelForCausalLM.from_pretrained(BASE).merge_and_unload().save_pretrained(NEW)"
        )
    if any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"model folder {str(folder)!r} holds a whole model (model*.safetensors) and an adapter ({config.name}): "
            "which is meant? Move the files of one elsewhere"
        )
    if whole is None and (revision := settings.get("revision")) not in (None, "main"):
        raise ModelError(
            f"{config}: the adapter was trained on revision {revision!r:.80} of {base!r}: get that with `hf download "
            f"{base} --revision {revision} --local-dir FOLDER`, and name FOLDER in base_model_name_or_path"
        )
    return base


@spent_on("model files")
def save_merged(name: str, target: Path, *, sees: bool = False) -> None:
    """Write the adapter of a folder merged into its base, with tokenizer or processor, as one whole model.

    In float32, as training writes its models: an adapter's movement may be smaller than one bfloat16 rounding step.
    """
    from transformers import AutoProcessor

    load_causal_lm(name, dtype="float32", sees=sees).save_pretrained(target)
    whole = base_of(name) or name
    reader = AutoProcessor.from_pretrained(whole, trust_remote_code=False) if sees else load_tokenizer(name)
    reader.save_pretrained(target)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """16 hex digits over everything that decides which ids a text becomes (not the chat template).

    Equal for a tokenizer and its saved and reloaded copy. Remembered as long as the tokenizer has the same length.
    """
    known = _fingerprints.get(tokenizer)
    if known is not None and known[0] == len(tokenizer):
        return known[1]
    if getattr(tokenizer, "is_fast", False):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state.pop("truncation", None)
        state.pop("padding", None)
    else:
        added = {t.content: i for i, t in tokenizer.added_tokens_decoder.items()}
        state = {"class": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "added": added}
    fingerprint = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:_HEX_DIGITS]
    _fingerprints[tokenizer] = (len(tokenizer), fingerprint)
    return fingerprint


def model_fingerprint(name: str, model: Any = None) -> str:
    """16 hex digits over the weight files of a model or adapter folder; a hub model's name and commit.

    Files above 64 MiB are sampled (size, first block, 256 blocks spread evenly, last block), so that an 8B model
    takes well under a second. Cached by path, size and modification time.

    Raises:
        ModelError: as `model_folder`, or the folder holds no weights.
    """
    folder = model_folder(name)
    if folder is None:
        commit = getattr(getattr(model, "config", None), "_commit_hash", None)
        return f"{name}@{commit[:12]}" if commit else name
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{str(folder)!r} holds no weights (*.safetensors); was the checkpoint saved completely?")
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(file.name.encode() + _file_digest(str(file.resolve()), (stat.st_size, stat.st_mtime_ns)))
    return digest.hexdigest()[:_HEX_DIGITS]


@lru_cache(maxsize=256)
def _file_digest(path: str, version: tuple[int, int]) -> bytes:
    size, _ = version  # the modification time is there for the cache key
    digest = hashlib.sha256(str(size).encode())
    with Path(path).open("rb") as file:
        if size <= _WHOLE_FILE_BYTES:
            digest.update(file.read())
        else:
            for index in range(_NUM_BLOCKS + 1):
                file.seek((size - _BLOCK_BYTES) * index // _NUM_BLOCKS)
                digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()


def pick_device(device: str) -> str:
    """`auto` is the first CUDA device, or the CPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"models.device={device!r}, but torch sees no CUDA device; use models.device=cpu")
    return device


def pick_dtype(dtype: str, device: str) -> str:
    """`auto` is float32 on a CPU (bfloat16 is slower on most and blurs log-probs), bfloat16 on a GPU."""
    if dtype != "auto":
        return dtype
    return "float32" if device.startswith("cpu") else "bfloat16"


def library_message(error: BaseException) -> str:
    """Return a library's error message in one line of at most 300 characters."""
    text = str(error).strip()
    if "trust_remote_code" in text:
        return CODE_REFUSED
    if "use_safetensors" in text:
        return f"it has no weights in model*.safetensors, and {PICKLES}"
    if isinstance(error, KeyError):  # its text is the key alone
        text = f"a file there names {text}, which is not known here"
    lines = [line.strip() for line in text.splitlines()] or [type(error).__name__]
    # torch's "Error(s) in loading state_dict for …:" says nothing yet
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:300]


def adapter_of_hub(name: str) -> str:
    """Return the message for a hub name that is an adapter's: adapters are merged from a folder only."""
    return f"{name!r} on the Hub is an adapter: get it with `hf download {name} --local-dir FOLDER`, and name FOLDER"


PromptName = Literal["brief", "examples", "rounds"]
_KEY = "webrl_prompt"
"""In tokenizer_config.json."""


def prompt_of(tokenizer: Any, asked: str = "auto") -> PromptName:
    """The prompt for a model: the one asked for (`models.prompt`), or what its tokenizer says.

    Raises ModelError where that is another prompt, perhaps of a later version.
    """
    name = asked if asked != "auto" else getattr(tokenizer, "init_kwargs", {}).get(_KEY, "examples")
    if name not in get_args(PromptName):
        raise ModelError(f"tokenizer_config.json: {_KEY}={name!r:.80} is not a known prompt; set models.prompt")
    return cast("PromptName", name)


def mark_folder(folder: Path, asked: str) -> None:
    """Record the prompt format set for training in a saved model's folder; "auto": it is there already."""
    path = folder / "tokenizer_config.json"
    if asked != "auto":
        write_json(path, read_json(path) | {_KEY: asked})
