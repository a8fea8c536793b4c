"""The base of every config section."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """Base of every config section: frozen, unknown keys refused, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_the_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would convert silently, or report in its own terms."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind in (int, float, int | None, float | None):
            raise ValueError("expected a number")
        if isinstance(value, str) and value.lower() in ("none", "nil") and type(None) in get_args(kind):
            raise ValueError("this is a word; for none, write null")
        if isinstance(kind, type) and issubclass(kind, Section) and not isinstance(value, dict | Section):
            raise ValueError(
                f"this is a section: set its keys, such as {info.field_name}.{next(iter(kind.model_fields), '…')}"
            )
        if isinstance(value, str) and "\0" in value:
            raise ValueError("names and paths must not contain a NUL character")
        return value
