"""A run folder into one file, without the weights that can be made again."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from webrl.carry.manifest import MANIFEST, Entry, Manifest, Model, check_name, file_entry, is_weights
from webrl.config import load_config
from webrl.errors import DataError, ModelError, UsageError
from webrl.llm.fingerprint import base_fingerprint, weights_fingerprint
from webrl.llm.loading import model_folder
from webrl.runs.disk import atomic_path
from webrl.runs.folder import RunFolder
from webrl.runs.lock import hold_output, hold_run
from webrl.runs.progress import progress
from webrl.runs.provenance import package_versions
from webrl.training.export import read_origin

_BEFORE_THE_LOOP = ("demos", "sft", "orm")
"""What a run folder may hold before a loop has begun in it."""


@dataclass(frozen=True)
class Packed:
    """What was written."""

    manifest: Manifest
    carried: tuple[str, ...]
    """Model folders whose weights are in the archive."""
    left_out: tuple[str, ...]
    """Model folders whose weights are nowhere any more."""


@dataclass(frozen=True)
class _Models:
    """Where the weights of a run's model folders come from."""

    models: dict[str, Model]
    bases: dict[str, str]
    """As in `Manifest`."""

    def reachable(self, carried: Sequence[str]) -> set[str]:
        """Folders whose weights can be had from the bases and the carried ones."""
        known = self.bases.keys() | {self.models[name].weights for name in carried}
        found: set[str] = set()
        while True:
            more = {n for n, m in self.models.items() if m.weights in known or m.base in known} - found
            if not more:
                return found
            found |= more
            known |= {self.models[name].weights for name in more}

    def whole(self, wanted: Sequence[str]) -> list[str]:
        """Folders that have to be carried so that the wanted ones can be made."""
        by_weights = {m.weights: n for n, m in reversed(self.models.items())}
        carried = []
        for name in wanted:
            while self.models[name].weights not in self.bases:
                base = self.models[name].base
                if base is None:
                    carried.append(by_weights[self.models[name].weights])
                    break
                if base in self.bases:
                    break
                name = by_weights[base]
        return sorted(set(carried))


def pack(run: Path, out: Path, *, bases: Sequence[str] = (), whole: bool = False) -> Packed:
    """Write a run folder to a zip file, atomically; hidden files (locks, training states) are left out.

    Args:
        bases: models that the run started from, where they are not where the run's config says.
        whole: carry weights that were trained whole, the newest of each model; else they are refused.

    Raises:
        UsageError: not a run folder, or an output that is a folder or lies in the run's.
        DataError: weights that were trained whole, or a link in the folder.
        StageError: a process works in the run folder.
    """
    if not (RunFolder(run).config.is_file() or any((run / name).is_dir() for name in _BEFORE_THE_LOOP)):
        raise UsageError(f"{str(run)!r} is not a run folder: it has no config.yaml, {', '.join(_BEFORE_THE_LOOP)}")
    if out.absolute().is_relative_to(run.absolute()):
        raise UsageError(f"{str(out)!r} lies in the run folder that is to be packed; write it elsewhere")
    if out.is_dir():
        raise UsageError(f"{str(out)!r} is a folder; name a file in it, such as '{out / run.absolute().name}.zip'")
    with hold_run(run), hold_output(out):
        paths = run_files(run)
        models = _find_models(run, paths, bases)
        rest = sorted(models.models.keys() - models.reachable(()))
        if rest and not whole:
            raise DataError(_refusal(run, rest))
        carried = models.whole(_newest(rest, models.models)) if rest else []
        left_out = sorted(models.models.keys() - models.reachable(carried))
        files = _entries(run, [path for path in paths if not is_weights(path, set(left_out))])
        manifest = Manifest(
            name=run.absolute().name,
            files=files,
            models={name: model for name, model in models.models.items() if name not in left_out},
            bases=models.bases,
            versions=dict(package_versions()),
        )
        _write(run, out, manifest, set(carried))
    return Packed(manifest, tuple(carried), tuple(left_out))


def _entries(run: Path, paths: Sequence[str]) -> dict[str, Entry]:
    found = {}
    with progress(sum((run / path).stat().st_size for path in paths), "digests", "B") as bar:
        for path in paths:
            found[path] = file_entry(run / path)
            bar.update(found[path].bytes)
    return found


def run_files(run: Path) -> list[str]:
    """Paths of all files of a run folder but hidden ones, sorted.

    Raises:
        DataError: a link, pipe or device.
    """
    found = []
    for folder, folders, names in os.walk(run):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [*folders, *names]:
            path = Path(folder, name)
            if not name.startswith(".") and (path.is_symlink() or not (path.is_dir() or path.is_file())):
                raise DataError(f"{path}: a link, pipe or device; put what it stands for in its place, or remove it")
        found += [Path(folder, n).relative_to(run).as_posix() for n in names if not n.startswith(".")]
    for name in found:
        check_name(name, run)
    return sorted(found)


def _find_models(run: Path, paths: Sequence[str], given: Sequence[str]) -> _Models:
    folders = sorted({str(Path(path).parent) for path in paths if path.endswith("/config.json")})
    folders = [folder for folder in folders if any(is_weights(path, {folder}) for path in paths)]
    models: dict[str, Model] = {}
    named: dict[str, str] = {}
    for folder in folders:
        origin = read_origin(run / folder)
        models[folder] = Model(weights=weights_fingerprint(run / folder), base=origin.base_weights if origin else None)
        if origin:
            named.setdefault(origin.base_weights, origin.base)
    own = {model.weights for model in models.values()}
    bases = {key: name for key, name in named.items() if key not in own}
    copies = {model.weights for model in models.values() if model.base is None}
    for name in given:
        fingerprint = base_fingerprint(model_folder(name) or name)
        if fingerprint not in copies | bases.keys():
            raise UsageError(f"--base {name}: no model of {str(run)!r} started from these weights")
        bases[fingerprint] = name
    return _Models(models, _configured(run, copies) | bases)


def _configured(run: Path, copies: set[str]) -> dict[str, str]:
    """Models outside of the run that its config starts from, and that it holds copies of."""
    config = RunFolder(run).config
    if not config.is_file():
        return {}
    start = load_config(config).models
    found = {}
    for name in (start.actor, start.critic):
        if name and Path(name).is_dir() and not Path(name).absolute().is_relative_to(run.absolute()):
            with contextlib.suppress(ModelError):  # it holds no weights any more
                found[weights_fingerprint(name)] = name
    return {fingerprint: name for fingerprint, name in found.items() if fingerprint in copies}


def _newest(rest: Sequence[str], models: dict[str, Model]) -> list[str]:
    """The folders a run goes on from: of each phase's `actor` and `critic` the newest, and whatever is no phase's."""
    latest = {Path(name).name: name for name in sorted(models) if name.startswith("phase_")}
    others = [name for name in rest if not name.startswith("phase_") and not (name == "sft" and "actor" in latest)]
    return [*latest.values(), *others]


def _refusal(run: Path, rest: Sequence[str]) -> str:
    first = rest[0]
    section = Path(first).name
    if section == "actor" and first.startswith("phase_00"):
        fix = "name the folder that it is a copy of with --base DIR, or train that one with sft.lora_rank=16"
    else:
        fix = f"start the run with {section}.lora_rank=16"
    return (
        f"{run / first}: its weights were trained whole, so that nothing small can stand for them "
        f"({len(rest)} such folders); {fix}, or pack with --whole, which carries the newest of each model as it is"
    )


def _write(run: Path, out: Path, manifest: Manifest, carried: set[str]) -> None:
    members: dict[str, str] = {}
    for path, entry in manifest.files.items():
        if not is_weights(path, manifest.models) or is_weights(path, carried):
            members.setdefault(entry.sha256, path)
    total = sum(manifest.files[path].bytes for path in members.values())
    with (
        progress(total, "pack", "B") as bar,
        atomic_path(out) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        text = json.dumps(manifest.model_dump(), indent=1, ensure_ascii=False)
        archive.writestr(zipfile.ZipInfo(MANIFEST), text, zipfile.ZIP_DEFLATED)  # without a time: same run, same bytes
        for path in members.values():
            member = zipfile.ZipInfo(path)
            member.compress_type = zipfile.ZIP_DEFLATED
            with (run / path).open("rb") as source, archive.open(member, "w", force_zip64=True) as target:
                while block := source.read(1 << 20):
                    target.write(block)
                    bar.update(len(block))
            _check_unchanged(run / path, manifest.files[path], member)


def _check_unchanged(path: Path, entry: Entry, member: zipfile.ZipInfo) -> None:
    if member.file_size != entry.bytes:
        raise DataError(f"{path}: changed while it was packed; end what writes to it")
