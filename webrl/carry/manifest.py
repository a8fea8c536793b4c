"""What a packed run says about itself, checked as the work of a stranger: names, sizes, digests, origins of models."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from webrl.config.section import Section
from webrl.errors import DataError

MANIFEST = "manifest.json"
_MAX_BYTES = 64 << 20
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 8
_MAX_MODELS = 10_000

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Entry(Section):
    """A file of the run."""

    bytes: int = Field(ge=0)
    sha256: Digest


class Model(Section):
    """A model folder of the run."""

    weights: str
    """`weights_fingerprint` of the folder."""
    base: str | None
    """Fingerprint of the model that its `lora/` was trained on; None: it has none."""


class Manifest(Section):
    """Everything that the unpacked folder holds."""

    format: Literal[1] = 1
    name: str
    """Of the run folder."""
    files: dict[str, Entry]
    """By path; those that the archive does not hold are copies of others, or weights to be made again."""
    models: dict[str, Model] = Field(max_length=_MAX_MODELS)
    """By path of the folder."""
    bases: dict[str, str]
    """Models that the run started from: fingerprint -> folder or hub name as it was given."""
    versions: dict[str, str]
    """Packages that wrote the weights."""

    def weight_files(self, model: str) -> list[str]:
        """Paths of a model folder's weights."""
        return [path for path in self.files if is_weights(path, {model})]

    @property
    def total_bytes(self) -> int:
        """Of the unpacked folder."""
        return sum(entry.bytes for entry in self.files.values())


def is_weights(path: str, models: set[str] | dict[str, Model]) -> bool:
    """Whether a path is a weight file of one of the model folders."""
    parsed = PurePosixPath(path)
    return parsed.suffix == ".safetensors" and str(parsed.parent) in models


def file_entry(path: Path) -> Entry:
    """Size and digest of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Entry(bytes=file.tell(), sha256=digest.hexdigest())


def read_manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    """The manifest of a packed run, and the archive's members held against it.

    Raises:
        DataError: none, or one that names anything but files below the run folder, or an archive that holds anything
            that the manifest does not name.
    """
    if MANIFEST not in archive.namelist():
        raise DataError(f"{path}: no {MANIFEST} inside; not what `carry_run.py pack` writes")
    with archive.open(MANIFEST) as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise DataError(f"{path}: refused: its {MANIFEST} has more than {_MAX_BYTES} bytes")
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: {MANIFEST}: {place[:120]!r}: {first['msg']}") from None
    for name in [*manifest.files, *manifest.models, manifest.name]:
        check_name(name, path)
    below = {str(parent) for name in manifest.files for parent in PurePosixPath(name).parents}
    clash = next((name for name in manifest.files if name in below), None)
    if clash:
        raise DataError(f"{path}: refused: {clash!r:.200} is a file and a folder")
    if any(member.flag_bits & 1 for member in archive.infolist()):
        raise DataError(f"{path}: refused: it is encrypted")
    seen = {MANIFEST}
    for member in archive.infolist():
        if member.filename == MANIFEST and len(seen) == 1:
            continue
        entry = manifest.files.get(member.filename)
        if entry is None or member.filename in seen or member.file_size != entry.bytes:
            raise DataError(f"{path}: refused: member {member.filename!r:.200} is not as its {MANIFEST} says")
        seen.add(member.filename)
    return manifest


def check_name(name: str, path: Path) -> None:
    """Return if a name is that of a file below a run folder, and a visible one.

    Raises:
        DataError: it leads elsewhere, is hidden (training states are, which are pickles), or no file can have it.
    """
    parts = name.split("/")
    good = len(parts) <= _MAX_DEPTH and all(
        part and part[0] != "." and part.isprintable() and "\\" not in part and _fits(part) for part in parts
    )
    if not good:
        raise DataError(f"{path}: refused: {name!r:.200} is no name of a file in a run folder")


def _fits(part: str) -> bool:
    return len(part.encode("utf-8", "replace")) <= _MAX_NAME_BYTES
