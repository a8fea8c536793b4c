"""The folder that is uploaded: a phase's model, card, redacted config and report, and nothing that holds a secret."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from webrl.config.redaction import redact, redact_all, remember
from webrl.config.yaml_file import read_yaml
from webrl.errors import DataError, ModelError, StageError, UsageError
from webrl.llm.loading import MODEL_FILES
from webrl.phase import is_phase_done
from webrl.reports.hub.ancestry import Ancestry, ancestry
from webrl.reports.hub.card import model_card
from webrl.reports.page.build import render
from webrl.reports.page.facts import RunFacts, read_run
from webrl.runs.disk import atomic_path
from webrl.runs.folder import PhaseFolder, RunFolder, require_run
from webrl.runs.store import write_text

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_WEIGHTS = re.compile(r"^(generation_)?config\.json$|safetensors")
"""Files that an adapter does without."""
_HEADER_BYTES = 100 << 20


def chosen_phase(run: Path, phase: int | None) -> PhaseFolder:
    """The phase whose model is uploaded: the one that is named, or the last of a finished run.

    Raises:
        UsageError: no run folder, no such phase, or an unfinished run and no phase named.
        StageError: the phase has not been trained.
    """
    folder = require_run(run)
    last = folder.last_phase()
    if phase is None:
        planned = read_run(run).option("num_phases")
        done = [k for k in range(last + 1) if is_phase_done(folder.phase(k))]
        if not done or done[-1] != planned:
            known = f"its last finished phase is {done[-1]}: --phase {done[-1]}" if done else "none of its phases has"
            at = f"phase {max(last, 0)}" + (f" of {planned}" if planned is not None else "")
            raise UsageError(f"{str(run)!r} has not finished ({at}); {known}")
        phase = done[-1]
    found = folder.phase(phase)
    if not 0 <= phase <= last:
        raise UsageError(f"--phase {phase}: {str(run)!r} has phases 0 to {last}")
    found.require("train")
    if not found.actor.is_dir():
        raise StageError(f"{found.actor}: not there, though phase {phase} was trained; name another phase with --phase")
    return found


def write_folder(
    phase: PhaseFolder,
    out: Path,
    repo_id: str,
    license_id: str,
    *,
    adapter: bool = False,
    base: str | None = None,
    link: bool = False,
) -> None:
    """Fill an empty folder with all that is uploaded.

    Args:
        adapter: the LoRA adapter for the base model, instead of the weights.
        base: the base model's name on the Hub, where the run started from a folder.
        link: link the weights instead of copying them.

    Raises:
        ModelError: the model has no weights, lacks its tokenizer or config, or was trained whole and has no adapter.
        UsageError: an adapter for a base that only this machine has, or a base of other weights.
        DataError: something in the folder looks like a secret (which file, not which text).
    """
    from huggingface_hub import get_token

    run = RunFolder(phase.path.parent)
    config = read_yaml(run.config, "the run's config")
    for name in _REFERENCE.findall(run.config.read_text(encoding="utf-8")):
        remember(os.environ.get(name, ""))
    for section in (config, *(config.get(name, {}) for name in ("generate", "rollout", "label"))):
        remember(os.environ.get(str(section.get("engine", {}).get("api_key_env")), ""))
    remember(get_token() or "")
    origin = ancestry(phase)
    origin = origin if base is None else origin.named(base)
    rank = _put_adapter(origin, out) if adapter else None
    _put_model(phase.actor, out, weights=not adapter, link=link)
    facts = _facts_until(run, phase.phase)
    write_text(out / "README.md", model_card(facts, phase.phase, repo_id, license_id, origin, rank))
    write_text(out / "config.yaml", yaml.safe_dump(redact_all(config), sort_keys=False, allow_unicode=True))
    write_text(out / "report.html", render([facts]))
    if found := list(_with_secrets(out)):
        raise DataError(
            f"not uploaded: {', '.join(found)} would hold a password, a token or a log-in in an address; remove it "
            f"from the model folder {str(phase.actor)!r}"
        )


def _facts_until(run: RunFolder, phase: int) -> RunFacts:
    facts = read_run(run.path)
    facts.phases = [found for found in facts.phases if found.phase <= phase]
    return facts


def _put_adapter(origin: Ancestry, out: Path) -> int:
    """Write the adapter as peft does; gives its rank."""
    origin.require_adapters()
    from peft import LoraConfig
    from safetensors.torch import save_file

    from webrl.training.export import stacked_adapter

    tensors, rank = stacked_adapter(origin.trained)
    names = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    LoraConfig(
        base_model_name_or_path=origin.base, task_type="CAUSAL_LM", inference_mode=True, r=rank, lora_alpha=rank,
        target_modules=names,
    ).save_pretrained(str(out))  # fmt: skip
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    return rank


def _put_model(actor: Path, out: Path, *, weights: bool, link: bool) -> None:
    found = {path for pattern in MODEL_FILES for path in actor.glob(pattern) if path.is_file()}
    names = {path.name for path in found}
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelError(f"{actor}: no weights (model*.safetensors); name a phase that has them (--phase N)")
    if lacking := {"config.json", "tokenizer_config.json"} - names:
        raise ModelError(f"{actor}: {', '.join(sorted(lacking))} is not there")
    for path in sorted(path for path in found if weights or not _WEIGHTS.search(path.name)):
        target = out / path.name
        if link and path.suffix == ".safetensors":
            target.symlink_to(path.resolve())
        else:
            with atomic_path(target) as temporary:
                shutil.copyfile(path, temporary)


def _with_secrets(folder: Path) -> Iterator[str]:
    """Names of the files in which `redact` finds something; of weights the text at their beginning is looked at."""
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            size = min(int.from_bytes(file.read(8), "little"), _HEADER_BYTES) if path.suffix == ".safetensors" else -1
            file.seek(8 if size >= 0 else 0)
            text = file.read(size).decode("utf-8", errors="replace")
        if redact(text) != text:
            yield path.name
