"""Screenshots in the forms that OpenEnv's servers and clients speak.

API: `await encode(png, form)` is what goes into an observation; `decode(screenshot)` is the PNG of one that came.
"""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any, Literal

import orjson

Screenshots = Literal["list", "png", "none"]
"""How screenshots are sent: lists `[height][width][3]` of 0 to 255, base64 PNG, or not at all."""
MIN_SIDE, MAX_SIDE = 16, 4096
"""Pixels of a page's width and height."""


async def encode(png: bytes | None, form: Screenshots) -> str | orjson.Fragment | None:
    """Returns a PNG as base64 text, or as the JSON of lists of pixels; None if there is none."""
    if png is None or form == "none":
        return None
    return base64.b64encode(png).decode() if form == "png" else await asyncio.to_thread(_pixel_lists, png)


def decode(screenshot: Any) -> bytes:
    """Returns the PNG of a screenshot from a server: base64 text, or lists [H][W][3] of 0 to 255.

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


def _pixel_lists(png: bytes) -> orjson.Fragment:
    """JSON of a picture's rows, 10 MB at 1280x720; most rows of a page are like another one, whose text is reused."""
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
    return orjson.Fragment(b"[" + b",".join(rows) + b"]")
