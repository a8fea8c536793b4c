"""`webrl push`: a run's model on the Hugging Face Hub, with a card that describes it and how it was measured.

`write_folder` makes the folder that is uploaded, with `model_card` as its README, and looks for secrets in it; `upload`
sends it.
"""

from __future__ import annotations

import html
import os
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

import webrl
from webrl.config.redaction import map_texts, redact, remember
from webrl.config.yaml_file import read_yaml
from webrl.errors import DataError, ModelError, StageError, UsageError, WebRLError
from webrl.evaluate import named_rates
from webrl.llm.loading import HUB_NAME, MODEL_FILES
from webrl.phase import is_phase_done
from webrl.reports.run import agreement_text, rate_names, rate_text
from webrl.runs.disk import atomic_path
from webrl.runs.folder import PhaseFolder, RunFolder, require_run
from webrl.runs.store import write_text
from webrl.runs.text import visible
from webrl_report.page.build import render, settings_table
from webrl_report.page.charts import standing_text
from webrl_report.page.facts import RunFacts, read_run
from webrl_report.page.sections import evaluated

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_SIGNS = re.compile(r"[|\\`*\[\]!#~$]|(?<!\w)_|_(?!\w)")
"""What means something in Markdown."""
_HEADER_BYTES = 100 << 20
_OUTDATED = ["model*.safetensors*", "adapter_*", "config.json", "generation_config.json"]
"""Files of an earlier push that are removed where this one has none of the name, such as other shards."""
_HINTS = {
    401: "the token was not accepted; make a new one with write access (HF_TOKEN, or `hf auth login`)",
    403: "the token may not write there: another owner's repository, or a token that may only read",
}


class HubError(WebRLError):
    """The Hub could not be reached, or rejected a request; the text explains which and why."""


def check_repo_id(repo_id: str) -> None:
    """Return if it is of the form OWNER/NAME. Raises UsageError if it is not."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo_id if "/" in repo_id else "")
    except HFValidationError:
        raise UsageError(f"{repo_id!r} is not a repository name; write OWNER/NAME, such as 'ann/agent'") from None


def chosen_phase(run: Path, phase: int | None) -> PhaseFolder:
    """Choose the phase whose model is uploaded: the one that is named, or the last of a finished run.

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
        raise StageError(f"{found.actor}: missing, though phase {phase} was trained; name another phase with --phase")
    return found


def write_folder(
    phase: PhaseFolder, out: Path, repo_id: str, license_id: str, *, base: str | None = None, link: bool = False
) -> None:
    """Fill an empty folder with all that is uploaded.

    Args:
        base: the base model's name on the Hub, where the run started from a folder.
        link: link the weights instead of copying them.

    Raises:
        ModelError: the model has no weights, or lacks its tokenizer or config.
        UsageError: a base that is not a name of the Hub.
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
    if base is not None and (not HUB_NAME.fullmatch(base) or Path(base).exists()):
        raise UsageError(f"--base {base!r} is not the name of a model on the Hub; write OWNER/NAME")
    found = {path for pattern in MODEL_FILES for path in phase.actor.glob(pattern) if path.is_file()}
    names = {path.name for path in found}
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelError(f"{phase.actor}: no weights (model*.safetensors); name a phase that has them (--phase N)")
    if lacking := {"config.json", "tokenizer_config.json"} - names:
        raise ModelError(f"{phase.actor}: {', '.join(sorted(lacking))} is missing")
    for path in sorted(found):
        target = out / path.name
        if link and path.suffix == ".safetensors":
            target.symlink_to(path.resolve())
        else:
            with atomic_path(target) as temporary:
                shutil.copyfile(path, temporary)
    facts = read_run(run.path)
    facts.phases = [found for found in facts.phases if found.phase <= phase.phase]
    write_text(out / "README.md", model_card(facts, phase.phase, repo_id, license_id, base))
    write_text(out / "config.yaml", yaml.safe_dump(map_texts(redact, config), sort_keys=False, allow_unicode=True))
    write_text(out / "report.html", render([facts]))
    secret = []
    for path in sorted(out.iterdir()):
        with path.open("rb") as file:  # of weights the text at their beginning is searched
            size = min(int.from_bytes(file.read(8), "little"), _HEADER_BYTES) if path.suffix == ".safetensors" else -1
            file.seek(8 if size >= 0 else 0)
            text = file.read(size).decode("utf-8", errors="replace")
        if redact(text) != text:
            secret.append(path.name)
    if secret:
        raise DataError(
            f"not uploaded: {', '.join(secret)} would hold a password, a token or a log-in in an address; remove it "
            f"from the model folder {str(phase.actor)!r}"
        )


def upload(folder: Path, repo_id: str, message: str, *, private: bool) -> str:
    """Create the repository where it is not there, and upload the folder; returns its address.

    After an interruption call it again: what has arrived is not sent twice.

    Raises:
        UsageError: no token, or `private` for a repository that is public.
        HubError: no network, a token that is refused, another's repository, no space.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    token = get_token()
    if not token:
        raise UsageError("no token for the Hugging Face Hub: export HF_TOKEN, or log in with `hf auth login`")
    remember(token)
    failed: Any = HfHubHTTPError.__bases__[0]  # of the HTTP client, which is not the same in all versions
    where = f"{constants.ENDPOINT}/{repo_id}"
    api = HfApi(token=token)
    try:
        address = str(api.create_repo(repo_id, private=private or None, exist_ok=True))
        if private and not api.repo_info(repo_id).private:
            raise UsageError(f"{where} already exists and is public; leave out --private, or choose another name")
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns=_OUTDATED)
    except OfflineModeIsEnabled:
        raise UsageError("HF_HUB_OFFLINE is set: nothing is sent; unset it, or write the folder with --to") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = redact(str(error.server_message or "no reason")).strip()
        raise HubError(f"{where}: {_HINTS.get(status, f'refused with {status}')} (it says: {said:.200})") from None
    except (failed, OSError) as error:
        raise HubError(
            f"{constants.ENDPOINT} cannot be reached: {redact(str(error)) or type(error).__name__}"
        ) from None
    return address


def model_card(run: RunFacts, phase: int, repo_id: str, license_id: str, base: str | None) -> str:
    """Write README.md of the model after a phase, by `card.md.j2`.

    Args:
        run: with all its phases up to this one.
        license_id: as the Hub spells licenses (`apache-2.0`, `llama3.1`); `unknown` if it is not known.
        base: the base model's name on the Hub; None: what the run downloaded, if it did.
    """
    from huggingface_hub import EvalResult, ModelCardData
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    phases = [facts for facts in run.phases if facts.phase <= phase]
    start = str(run.option("models.actor", "not known"))
    if base is None and "hub_commit" in run.phases[0].counts("train"):
        base = start
    sees = run.option("rollout.image_size") is not None
    name = repo_id.rpartition("/")[2]
    suite = str(run.option("tasks.suite", "tasks"))
    results = [
        EvalResult(
            task_type="reinforcement-learning", task_name="Web tasks", dataset_type=suite,
            dataset_name=f"{suite}, {part}", dataset_config=part, metric_type="success_rate",
            metric_value=rate["rate"], metric_name=f"Success rate, {rate_text(rate)}",
        )
        for part, rate in named_rates(phases[-1].counts("eval")).items()
        if rate.get("episodes")
    ]  # fmt: skip
    data = ModelCardData(
        base_model=base,
        library_name="transformers",
        license=license_id,
        pipeline_tag="image-text-to-text" if sees else "text-generation",
        tags=["webrl", "web-agent", "browser", "reinforcement-learning"],
        model_name=name,
        eval_results=results or None,
    )
    rates = {number: named_rates(found) for number, found in evaluated(phases)}
    names = rate_names(list(rates.values()))
    success = [
        (f"{number}: supervised start" if number == 0 else number, *(standing_text(found[name]) for name in names))
        for number, found in rates.items()
    ]
    counted = []
    for facts in phases:
        played, judged, replayed = (facts.counts(stage) for stage in ("rollout", "label", "replay"))
        steps = (replayed.get("num_current", "–"), replayed.get("num_replayed", "–"))
        counted.append((facts.phase, played.get("num_rollouts", "–"), judged.get("num_success", "–"), *steps))
    marker = next(iter(reversed(phases[-1].stages.values())), {})
    # A word from outside is escaped, or (`code`) without the backticks that it is put between.
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else _escaped(value),
    )  # fmt: skip
    environment.filters["code"] = lambda value: Markup(str(value).replace("`", "'").replace("\n", " "))
    body = environment.from_string(files("webrl_report").joinpath("card.md.j2").read_text(encoding="utf-8")).render(
        name=name, repo_id=repo_id, phase=phase, num_phases=run.option("num_phases", "?"), sees=sees,
        version=webrl.__version__, start=start, start_is_folder=start != base, names=names, success=success,
        is_evaluated=phase in rates, seed=run.option("seed", "?"), objective=run.option("actor.objective", "?"),
        judge=run.option("label.judge", "orm"), suite=suite, counted=counted, settings=settings_table(run),
        later_tasks="written from failures" if run.option("tasks.source") == "curriculum" else "of the suite",
        agreements=[(p.phase, text) for p in phases if (text := agreement_text({"label": p.counts("label")}))],
        versions=dict(marker.get("versions") or {}), commit=marker.get("git_commit") or "not known",
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n\n{redact(visible(body)).strip()}\n"


def _escaped(value: object) -> str:
    """Return the text of a value on one line, without a sign that means something in Markdown or HTML."""
    text = html.escape(str(value), quote=False)
    return _SIGNS.sub(lambda found: f"&#{ord(found[0])};", text).replace("\n", " ").replace("\r", " ")
