"""What a phase's actor was made from: the phases before it, the supervised start, and the model that all began with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from webrl.config.yaml_file import read_yaml
from webrl.errors import ModelError, UsageError
from webrl.llm.fingerprint import base_fingerprint, weights_fingerprint
from webrl.llm.loading import HUB_NAME
from webrl.runs.folder import PhaseFolder, RunFolder
from webrl.training.export import STATE, read_origin


@dataclass(frozen=True)
class Ancestry:
    """An actor's."""

    trained: tuple[Path, ...]
    """Model folders that were trained one from the other, oldest first; the last is the actor."""
    base: str
    """What the first of them was trained from, as it was named."""
    weights: str | None
    """`base_fingerprint` of that; None: not known."""
    on_hub: bool
    """Whether it is a name of the Hub, rather than a folder."""

    def named(self, base: str) -> Ancestry:
        """The same with the base's name on the Hub, which whoever pushes knows.

        Raises:
            UsageError: no such name, or a downloaded model with other weights.
        """
        if not HUB_NAME.fullmatch(base) or Path(base).exists():
            raise UsageError(f"--base {base!r} is no name of a model on the Hub; it is OWNER/NAME")
        found = base_fingerprint(base)
        if self.weights and found not in (self.weights, base):
            raise UsageError(f"--base {base}: it has other weights than {self.base!r}, which the run started from")
        return replace(self, base=base, on_hub=True)

    def require_adapters(self) -> None:
        """Return if an adapter for a base that others have can stand for the actor.

        Raises:
            ModelError: weights that were trained whole.
            UsageError: a base that only this machine has.
        """
        whole = [folder for folder in self.trained if not (folder / STATE).is_file()]
        if whole or not self.trained:
            what = f"{whole[0]}: its weights were trained whole" if whole else "nothing was trained"
            raise ModelError(f"--adapter: {what}, so that there is no adapter; leave --adapter out")
        if not self.on_hub:
            raise UsageError(
                f"--adapter: the run started from the folder {self.base!r}, which others do not have; "
                "name that model on the Hub with --base OWNER/NAME (after `hf upload OWNER/NAME FOLDER`)"
            )


def ancestry(phase: PhaseFolder) -> Ancestry:
    """Follow a phase's actor back, as far as the folders are here.

    Raises:
        ModelError: a `lora/state.safetensors` that is damaged.
    """
    run = RunFolder(phase.path.parent)
    start = run.phase(0)
    trained = [run.phase(number).actor for number in range(phase.phase, 0, -1) if _is_accepted(run.phase(number))]
    models: dict[str, Any] = read_yaml(run.config, "the run's config").get("models") or {}
    base, weights = str(models.get("actor")), None
    on_hub = start.is_done("train") and "hub_commit" in start.read_stage("train")["counts"]
    folder = start.actor
    while folder not in trained and (origin := read_origin(folder)):
        trained.append(folder)
        base, weights = origin.base, origin.base_weights
        folder = Path(base).expanduser()
        on_hub = bool(HUB_NAME.fullmatch(base)) and not folder.is_dir()
        if on_hub or _weights(folder) != weights:
            break
    return Ancestry(tuple(reversed(trained)), base, weights or _weights(start.actor), on_hub)


def _is_accepted(phase: PhaseFolder) -> bool:
    """False where the phase's actor is a copy of the one before."""
    return not phase.is_done("accept") or bool(phase.read_stage("accept")["counts"].get("accepted", True))


def _weights(folder: Path) -> str | None:
    try:
        return weights_fingerprint(folder)
    except ModelError:  # it holds none any more
        return None
