"""Pickles of strangers, read without running their code: plain containers, strings, numbers and tensors.

A pickle that names anything else is refused before anything of it runs. What comes out takes no more than a small
multiple of the file's size: archives must be uncompressed, as torch writes them, and a tensor needs the data for it.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, ClassVar

from webrl.errors import DataError
from webrl.runs.store import open_input

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


def load_restricted(path: Path) -> Any:
    """Content of a `torch.save` file (or a bare pickle): containers, strings, numbers, tensors on the CPU.

    Raises:
        DataError: missing or damaged file, a compressed archive, or a pickle that asks for any other global (which is
            named).
    """
    try:
        with open_input(path) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return _Unpickler(file, path, {}).load()
            with zipfile.ZipFile(file) as archive:
                members = {member.filename.partition("/")[2]: member for member in archive.infolist()}
                if "data.pkl" not in members:
                    raise DataError(f"{path}: no data.pkl inside; not a torch.save file")
                packed = next((m for m in members.values() if m.compress_type != zipfile.ZIP_STORED), None)
                if packed:
                    raise DataError(
                        f"{path}: refused: {packed.filename!r:.80} is compressed ({packed.compress_size} bytes for "
                        f"{packed.file_size}), which torch.save never does; unpack it and check where it comes from"
                    )
                total, size = sum(member.file_size for member in members.values()), path.stat().st_size
                if total > size:  # members that overlap, or sizes that are not true
                    raise DataError(f"{path}: refused: its members claim {total} bytes, the file has {size}")
                storages = {name[5:]: (archive, member) for name, member in members.items() if name.startswith("data/")}
                return _Unpickler(io.BytesIO(archive.read(members["data.pkl"])), path, storages).load()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything while it is taken apart
        raise DataError(f"{path}: damaged file ({type(error).__name__}: {str(error)[:200]})") from None


_PythonUnpickler: Any = pickle._Unpickler


class _Unpickler(_PythonUnpickler):
    """Admits the globals below and no others; nothing that it gives out can call back into a module.

    It is pickle's own in Python, because the one in C sets aside 8 bytes for every number up to the highest that a
    value is filed under, and has no hook before it sets an object's attributes.
    """

    dispatch: ClassVar = dict(_PythonUnpickler.dispatch)

    def __init__(
        self, file: IO[bytes], path: Path, storages: dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]]
    ) -> None:
        super().__init__(file, encoding="utf-8")
        self._path = path
        self._storages = storages
        self._loaded: dict[str, bytearray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        admitted = _ADMITTED.get((module, name))
        if admitted is None:
            raise DataError(
                f"{self._path}: refused: the pickle asks for {module}.{name}, which is code; only plain containers, "
                "strings, numbers and tensors are read. Do not load this file with anything less strict"
            )
        return admitted

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or not isinstance(key, str) or key not in self._storages:
            raise DataError(f"{self._path}: unknown storage {key if isinstance(key, str) else type(key).__name__!r}")
        if key not in self._loaded:
            archive, member = self._storages[key]
            self._loaded[key] = bytearray(archive.read(member))
        return dtype, self._loaded[key]

    def _load_state(self) -> None:
        if not isinstance(self.stack[-2], OrderedDict | _Dtype):  # else it would set attributes of our functions
            raise ValueError(f"attributes for a {type(self.stack[-2]).__name__}")
        super().load_build()

    dispatch[pickle.BUILD[0]] = _load_state


def _rebuild_tensor(storage: tuple[str, bytearray], offset: int, size: Any, stride: Any, *_: Any) -> Any:
    import torch

    dtype, data = storage
    if not data:
        if 0 not in size:
            raise ValueError(f"a tensor of size {tuple(size)} without data")
        return torch.empty(tuple(size), dtype=getattr(torch, dtype))
    flat = torch.frombuffer(data, dtype=getattr(torch, dtype))
    return flat.as_strided(tuple(size), tuple(stride), offset)  # refuses what lies outside of the data


class _Dtype:
    """Replaces `numpy.dtype` of a scalar."""

    def __init__(self, spec: str, *_: Any) -> None:
        self.spec = spec

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment; scalars in these files are little-endian."""


_SCALARS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "u1": "<B", "b1": "<?"}


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return struct.unpack(_SCALARS[dtype.spec], data)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # Protocol 2 writes bytes as `_codecs.encode(text, "latin1")`; other codecs could decompress or transform.
    if encoding != "latin1":
        raise DataError(f"refused: the pickle asks for codec {encoding!r:.40}")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("__builtin__", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
}
