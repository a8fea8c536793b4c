"""Pictures: each session's uploads lie in a folder of its own, and are shown as they are.

Oscar's thumbnails would be files and cache entries that sessions share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.files.storage import FileSystemStorage, default_storage
from django.http import FileResponse, Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.templatetags.static import static
from oscar.core.thumbnails import AbstractThumbnailer

from webrl.arena.shop.database.base import current_database

MISSING = "image_not_found.jpg"
"""The name that Oscar uses where a product has no picture."""


class SessionStorage(FileSystemStorage):
    """Files beside the session's database."""

    @property
    def base_location(self) -> str:
        """`media` in the session's folder."""
        return str(current_database().parent / "media")

    @property
    def location(self) -> str:
        """The same: it is absolute."""
        return self.base_location


class Originals(AbstractThumbnailer):
    """Makes no thumbnails: the page shows the picture itself, at the size that the style sheet wants."""

    def generate_thumbnail(self, source: Any, **opts: Any) -> Picture:  # noqa: ARG002 - Oscar's signature
        """The picture itself."""
        name = str(getattr(source, "name", source))
        return Picture(static(f"oscar/img/{MISSING}") if name == MISSING else default_storage.url(name))

    def delete_thumbnails(self, source: Any) -> None:
        """Nothing was made."""


@dataclass(frozen=True)
class Picture:
    """What Oscar's templates read of a thumbnail."""

    url: str


def show(request: HttpRequest, name: str) -> HttpResponseBase:  # noqa: ARG001 - a view takes a request
    """A picture that the staff have uploaded in this session."""
    if not default_storage.exists(name):
        raise Http404(name)
    return FileResponse(default_storage.open(name))
