"""A packed run into a run folder: every file as it was, the weights made again."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from webrl.carry.manifest import MANIFEST, Entry, Manifest, file_entry, is_weights, read_manifest
from webrl.errors import DataError, ModelError, UsageError
from webrl.llm.fingerprint import base_fingerprint
from webrl.llm.loading import model_folder
from webrl.runs.disk import atomic_path
from webrl.runs.lock import hold_output
from webrl.runs.progress import progress
from webrl.runs.provenance import package_versions
from webrl.runs.store import open_input

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError)
"""What `zipfile` raises for archives that are cut, damaged or compressed otherwise."""


def unpack(archive: Path, out: Path, *, bases: Sequence[str] = (), max_bytes: int = 64 << 30) -> Manifest:
    """Write a packed run to a new folder, atomically: it is there whole and verified, or not at all.

    Args:
        bases: models that the run started from, where they are not where they were.
        max_bytes: of the whole folder.

    Raises:
        UsageError: the folder is there already or has another name than the run, or a base that the run did not
            start from.
        DataError: an archive that is damaged, or not as its manifest says.
        ModelError: a base that is not here, or weights that come out otherwise.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{str(out)!r} is there already; choose another folder, or remove it")
    try:
        with open_input(archive) as file, zipfile.ZipFile(file) as opened:
            manifest = read_manifest(opened, archive)
            if out.absolute().name != manifest.name:
                raise UsageError(f"{str(out)!r}: a run goes on under its own name; end the path in {manifest.name!r}")
            _check_room(manifest, archive, out, max_bytes)
            found = find_bases(manifest.bases, bases)
            with hold_output(out), atomic_path(out) as temporary:
                _extract(opened, archive, manifest, temporary)
                _copy_equal_files(manifest, archive, temporary)
                _Rebuild(manifest, temporary, found).run()
    except _DAMAGED as error:
        raise DataError(
            f"{archive}: damaged, or not a packed run ({type(error).__name__}: {str(error)[:200]})"
        ) from None
    return manifest


def find_bases(wanted: dict[str, str], given: Sequence[str]) -> dict[str, str]:
    """Fingerprint -> folder or hub name, for every model that the run started from.

    Raises:
        UsageError: a given one that the run did not start from.
        ModelError: one is not here.
    """
    found = {}
    for name in given:
        fingerprint = base_fingerprint(model_folder(name) or name)
        if fingerprint not in wanted:
            raise UsageError(f"--base {name}: the run did not start from these weights, but from {_listed(wanted)}")
        found[fingerprint] = name
    for fingerprint, name in wanted.items():
        if fingerprint in found:
            continue
        try:
            here = base_fingerprint(model_folder(name) or name)
        except ModelError as error:
            raise ModelError(
                f"the run started from {name!r}, which is not here ({error}); name it: --base DIR"
            ) from None
        if here not in (fingerprint, name):
            raise ModelError(f"{name!r} has other weights here than the run started from; name those: --base DIR")
        found[fingerprint] = name
    return found


def _listed(bases: dict[str, str]) -> str:
    return ", ".join(repr(name) for name in bases.values()) or "models that it holds itself"


def _check_room(manifest: Manifest, archive: Path, out: Path, max_bytes: int) -> None:
    total = manifest.total_bytes
    if total > max_bytes:
        raise DataError(
            f"{archive}: refused: unpacked it has {total / 2**30:.1f} GiB, more than {max_bytes / 2**30:g}; "
            "if that is so, --max-gib allows more"
        )
    folder = next(parent for parent in out.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if total > free:
        raise DataError(f"{archive}: needs {total / 2**30:.1f} GiB, the disk of {folder} has {free / 2**30:.1f} left")


def _extract(opened: zipfile.ZipFile, archive: Path, manifest: Manifest, target: Path) -> None:
    members = [member for member in opened.infolist() if member.filename != MANIFEST]
    total = sum(manifest.files[member.filename].bytes for member in members)
    with progress(total, "unpack", "B") as bar:
        for member in members:
            path, entry = target / member.filename, manifest.files[member.filename]
            path.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source, path.open("xb") as file:
                left = entry.bytes
                while left and (block := source.read(min(left, 1 << 20))):
                    file.write(block)
                    left -= len(block)
                    bar.update(len(block))
            _verify(path, entry, f"{archive}: {member.filename}")


def _copy_equal_files(manifest: Manifest, archive: Path, target: Path) -> None:
    """Write the files that the archive holds under another name; not yet the weights."""
    held = {entry.sha256: path for path, entry in manifest.files.items() if (target / path).is_file()}
    for path, entry in manifest.files.items():
        if (target / path).is_file() or is_weights(path, manifest.models):
            continue
        if entry.sha256 not in held:
            raise DataError(f"{archive}: {path!r} is in its {MANIFEST}, but nothing holds its content")
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target / held[entry.sha256], target / path)


def _verify(path: Path, entry: Entry, what: str) -> None:
    found = file_entry(path)
    if found != entry:
        raise DataError(f"{what}: {found.bytes} bytes with digest {found.sha256[:16]}…, expected {entry.sha256[:16]}…")


@dataclass
class _Rebuild:
    """Makes weights again until all model folders have theirs."""

    manifest: Manifest
    target: Path
    bases: dict[str, str]
    """Fingerprint -> folder or hub name."""
    done: dict[str, str] = field(default_factory=dict)
    """Fingerprint -> folder that has these weights now."""

    def run(self) -> None:
        """Fill all model folders.

        Raises:
            DataError: one cannot be reached from the bases.
            ModelError: weights come out otherwise than they were.
        """
        missing = dict(self.manifest.models)
        self.done |= self.bases
        with progress(len(missing), "weights", "models") as bar:
            while missing:
                ready = [
                    n for n, m in missing.items() if self._has_weights(n) or {m.weights, m.base} & self.done.keys()
                ]
                if not ready:
                    first = next(iter(missing))
                    raise DataError(f"nothing in the archive says what the weights of {first!r} come from")
                for name in ready:
                    self._fill(name)
                    self.done[missing.pop(name).weights] = str(self.target / name)
                    bar.update(1)

    def _has_weights(self, name: str) -> bool:
        return all((self.target / path).is_file() for path in self.manifest.weight_files(name))

    def _fill(self, name: str) -> None:
        model = self.manifest.models[name]
        if self._has_weights(name):
            return
        with tempfile.TemporaryDirectory(dir=self.target, prefix=".") as scratch:
            source = Path(scratch)
            if model.weights in self.done:
                source = Path(self.done[model.weights])
            else:
                from webrl.training.export import rebuild_weights

                assert model.base is not None
                rebuild_weights(self.target / name, self.done[model.base], source)
            for path in self.manifest.weight_files(name):
                self._take(source / Path(path).name, path)

    def _take(self, source: Path, path: str) -> None:
        if not source.is_file():
            raise ModelError(f"{path}: {source.parent} has no such file; {self._advice()}")
        shutil.copyfile(source, self.target / path)
        try:
            _verify(self.target / path, self.manifest.files[path], path)
        except DataError as error:
            raise ModelError(f"the weights came out otherwise: {error}; {self._advice()}") from None

    def _advice(self) -> str:
        here = dict(package_versions())
        other = [f"{n} {v} (here {here.get(n)})" for n, v in self.manifest.versions.items() if here.get(n) != v]
        return f"written with {', '.join(other)}" if other else "is the base the very model that the run started from?"
