"""Screenshots in the forms that OpenEnv's servers and clients speak.

API: `await encode(png, way)` is what goes into an observation, `PixelRows` for lists; `decode(screenshot)` is the PNG
of one that came.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

Screenshots = Literal["list", "png", "none"]
"""How screenshots are sent: lists `[height][width][3]` of 0 to 255, base64 PNG, or not at all."""
MIN_SIDE, MAX_SIDE = 16, 4096
"""Pixels of a page's width and height."""
_ROWS_A_CHUNK = 16
"""A quarter of a megabyte at 1280 pixels a row."""


@dataclass(frozen=True)
class PixelRows:
    """A picture as lists `[height][width][3]` in JSON.

    Most rows of a page are like another one. Their text is made once and stands in memory once; the whole, 10 MB at
    1280x720, only for an answer over plain HTTP, which is sent at once.
    """

    rows: list[bytes]
    """JSON of each row; those that are alike are one object."""

    def chunks(self) -> Iterator[bytes]:
        """The JSON, in pieces."""
        yield b"["
        for start in range(0, len(self.rows), _ROWS_A_CHUNK):
            yield (b"," if start else b"") + b",".join(self.rows[start : start + _ROWS_A_CHUNK])
        yield b"]"


async def encode(png: bytes | None, way: Screenshots) -> str | PixelRows | None:
    """A PNG as base64 text or as lists of pixels; None if there is none."""
    if png is None or way == "none":
        return None
    return base64.b64encode(png).decode() if way == "png" else await asyncio.to_thread(_rows, png)


def decode(screenshot: Any) -> bytes:
    """The PNG of a screenshot from a server: base64 text, or lists [H][W][3] of 0 to 255.

    Raises:
        ValueError: it is neither.
    """
    import numpy as np
    from PIL import Image

    if isinstance(screenshot, str):
        return base64.b64decode(screenshot, validate=True)
    try:
        pixels = np.asarray(screenshot, dtype=np.uint8)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the screenshot is neither a base64 PNG nor lists [H][W][3]: {error}") from None
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"the screenshot has shape {list(pixels.shape)}, not [H, W, 3]")
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def _rows(png: bytes) -> PixelRows:
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))  # [H, W, 3]
    texts: dict[bytes, bytes] = {}
    rows = []
    for row in pixels:
        key = row.tobytes()
        if key not in texts:
            texts[key] = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
        rows.append(texts[key])
    return PixelRows(rows)
