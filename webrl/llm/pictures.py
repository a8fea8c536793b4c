"""Screenshots on the disk, as models are shown them."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from webrl.errors import DataError
from webrl.types import Step, StepRecord

_PAGE = "webrl:page"
"""The text in a PNG that records the width and height of the page's screenshot."""


@dataclass(frozen=True)
class Picture:
    """The picture in a prompt, by reference.

    Example: `Picture(Path("runs/demo/phase_01/screenshots/p01-…/000.png"), "9f0c…")`
    """

    path: Path
    """The PNG."""
    sha256: str
    """Of the file when it was shown."""

    @classmethod
    def of(cls, step: Step | StepRecord, root: Path) -> Picture | None:
        """A step's, of the run folder `root`; None if its prompt is text alone."""
        return cls(root / step.screenshot, step.screenshot_sha256) if step.screenshot_sha256 else None

    def read(self) -> bytes:
        """Return the bytes that were shown; DataError if the file is missing, or a different one."""
        try:
            png = self.path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.path}: the screenshot cannot be read ({error.strerror}) and is needed for training; restore "
                "the run's screenshots folders, or collect the episodes again"
            ) from None
        if (found := hashlib.sha256(png).hexdigest()) != self.sha256:
            raise DataError(
                f"{self.path}: not the screenshot that the model was shown (SHA-256 {found[:12]}…, the step has "
                f"{self.sha256[:12]}…); restore the file, or collect the episode again"
            )
        return png


class Example(NamedTuple):
    """A prompt of the policy and its answer, which is trained or scored."""

    prompt_ids: Sequence[int]
    """[P] token ids."""
    action_ids: Sequence[int]
    """[A] token ids; empty for a value."""
    picture: Picture | None = None
    """The picture that the prompt's picture tokens represent; None for a text-only prompt."""


def shrink(png: bytes, size: int) -> bytes:
    """Convert to a PNG in RGB whose longer side is at most `size` pixels (0: its own), keeping the aspect ratio.

    Raises ValueError for bytes that are not a picture.
    """
    from PIL import Image, PngImagePlugin, UnidentifiedImageError

    try:
        image = open_picture(png)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"the screenshot is not a readable image: {error}") from None
    text = PngImagePlugin.PngInfo()
    text.add_text(_PAGE, "{}x{}".format(*image.size))
    if size:
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, format="PNG", pnginfo=text)
    return out.getvalue()


def shown_size(png: bytes, size: int) -> tuple[int, int]:
    """Width and height in which `shrink` shows the page that a picture is of.

    (A picture that `shrink` has not made does not say how large its page was: its own size is taken.)
    """
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        known = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", str(image.info.get(_PAGE)))
        page = Image.new("1", (int(known[1]), int(known[2])) if known else image.size)
    if size:
        page.thumbnail((size, size))
    return page.size


def png_size(png: bytes) -> tuple[int, int]:
    """Width and height of a picture that can be read."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return image.size


def open_picture(png: bytes) -> Any:
    """A picture in RGB, of PIL."""
    from PIL import Image

    return Image.open(io.BytesIO(png)).convert("RGB")
