"""Screenshots in the forms that OpenEnv's servers and clients speak.

API: `await encode(png, way)` is what goes into an observation; `decode(screenshot)` is the PNG of one that came.
"""

from __future__ import annotations

import asyncio
import base64
import io
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np


Screenshots = Literal["list", "png", "none"]
"""How screenshots are sent: lists `[height][width][3]` of 0 to 255, base64 PNG, or not at all."""
MIN_SIDE, MAX_SIDE = 16, 4096
"""Pixels of a page's width and height."""


async def encode(png: bytes | None, way: Screenshots) -> str | np.ndarray | None:
    """A PNG as base64 text or as an array uint8 [H, W, 3], which JSON shows as nested lists; None if there is none."""
    if png is None or way == "none":
        return None
    return base64.b64encode(png).decode() if way == "png" else await asyncio.to_thread(_pixels, png)


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


def _pixels(png: bytes) -> np.ndarray:
    import numpy as np
    from PIL import Image

    return np.ascontiguousarray(Image.open(io.BytesIO(png)).convert("RGB"))
