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
from webrl.phase import is_phase_done
from webrl.reports.hub.card import model_card
from webrl.reports.page.build import render
from webrl.reports.page.facts import RunFacts, read_run
from webrl.runs.disk import atomic_path
from webrl.runs.folder import PhaseFolder, RunFolder, require_run
from webrl.runs.store import write_text

MODEL_FILES = (
    "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    "model.safetensors", "model-*.safetensors", "model.safetensors.index.json",
)  # fmt: skip
"""Of a model folder; optimizer states, pickles and whatever else lies there stay behind."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
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
            raise UsageError(f"{str(run)!r} has not finished (phase {max(last, 0)} of {planned}); {known}")
        phase = done[-1]
    found = folder.phase(phase)
    if not 0 <= phase <= last:
        raise UsageError(f"--phase {phase}: {str(run)!r} has phases 0 to {last}")
    found.require("train")
    if not found.actor.is_dir():
        raise StageError(f"{found.actor}: not there, though phase {phase} was trained; name another phase with --phase")
    return found


def write_folder(phase: PhaseFolder, out: Path, repo_id: str, license_id: str, *, link: bool = False) -> None:
    """Fill an empty folder with all that is uploaded.

    Args:
        link: link the weights instead of copying them.

    Raises:
        ModelError: the model has no weights, or lacks its tokenizer or config.
        DataError: something in the folder looks like a secret (which file, not which text).
    """
    from huggingface_hub import get_token

    run = RunFolder(phase.path.parent)
    config = read_yaml(run.config, "the run's config")
    for name in _REFERENCE.findall(run.config.read_text(encoding="utf-8")):
        remember(os.environ.get(name, ""))
    for section in ("generate", "rollout", "label"):
        remember(os.environ.get(str(config.get(section, {}).get("engine", {}).get("api_key_env")), ""))
    remember(get_token() or "")
    _put_model(phase.actor, out, link)
    facts = _facts_until(run, phase.phase)
    write_text(out / "README.md", model_card(facts, phase.phase, repo_id, license_id))
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


def _put_model(actor: Path, out: Path, link: bool) -> None:
    found = {path for pattern in MODEL_FILES for path in actor.glob(pattern) if path.is_file()}
    names = {path.name for path in found}
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelError(
            f"{actor}: no weights (model*.safetensors); of a packed run `python scripts/carry_run.py` rebuilds them"
        )
    if lacking := {"config.json", "tokenizer_config.json"} - names:
        raise ModelError(f"{actor}: {', '.join(sorted(lacking))} is not there")
    for path in sorted(found):
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
