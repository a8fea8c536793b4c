"""Secrets of a config; keeps them out of everything that is written or shown.

A `Secret` (password) or `SecretUrl` (an address that may hold one) appears as `***` wherever it is saved,
printed, logged or dumped; only `reveal()` returns its text, to the code that connects. `${NAME}` inside refers to an
environment variable and is kept as written, so that a saved config can be used again; a secret that was given
as text has to be given again. A changed secret does not count as a changed config.

`redact` cleans text that others wrote (a library's error, an answer that quotes the request): it knows the secrets of
this process and the shape of credentials in URLs. `guard_output` applies it to the log and tracebacks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema

from webrl.errors import UsageError

MASK = "***"
_MIN_CHARS = 4
"""Shorter secrets are not looked for in running text: they would be found in words."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_LOGIN = re.compile(r"(://)[^\s/?#'\"<>@]+(?:@[^\s/?#'\"<>@]+)*@")
_PARAMETER = re.compile(
    r"(?i)([?&;][\w.-]*(?:token|key|secret|passw|auth|signature|credential|session)[\w.-]*=)[^\s&;#'\"]+"
)
_known: set[str] = set()


class Secret:
    """Text that shows itself as `***`; equal to another with the same text."""

    def __init__(self, text: str) -> None:
        self.template = text
        """The text with its references unresolved; to check its form, never to display."""
        for part in self._parts(text):
            remember(part)

    def reveal(self) -> str:
        """Return the text, environment variables filled in.

        Raises:
            UsageError: a variable is not set, or the text comes from a saved config, which holds no secrets.
        """
        if MASK in self.template:
            raise UsageError(f"{str(self)!r} was read from a saved config, which holds no secrets: {_GIVE_AGAIN}")
        names = _REFERENCE.findall(self.template)
        for name in names:
            if name not in os.environ:
                raise UsageError(f"{str(self)!r}: the environment variable {name!r} is not set; export it")
        text = _REFERENCE.sub(lambda found: os.environ[found[1]], self.template)
        for part in (*self._parts(text), *(os.environ[name] for name in names)):
            remember(part)
        return text

    def __str__(self) -> str:
        return _mask(self.template)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.template == self.template

    def __hash__(self) -> int:
        return hash(self.template)

    @staticmethod
    def _parts(text: str) -> Iterator[str]:
        """Yield the parts of the text that must be masked."""
        yield text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any) -> Secret:
            if isinstance(value, cls):
                return value
            if not isinstance(value, str):
                raise ValueError("must be text; quote it")
            return cls(value)

        def dump(value: Secret, info: core_schema.SerializationInfo) -> str:
            return value.reveal() if info.context and info.context.get("reveal") else str(value)

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(dump, info_arg=True, when_used="json")
        )


class SecretUrl(Secret):
    """An address; user, password and the values of its query show themselves as `***`."""

    def __str__(self) -> str:
        text = self.template
        if "://" not in text and "@" in text:
            return f"{MASK}@{text.rpartition('@')[2]}"
        try:
            parts = urlsplit(text)
            _ = urlsplit(_REFERENCE.sub("0", text)).port
        except ValueError:  # a secret with a / or # in it, which has to be written %2F and %23
            return MASK
        login, at, host = parts.netloc.rpartition("@")
        user, colon, password = login.partition(":")
        shown = f"{user}:{_mask(password)}" if colon else _mask(login)
        pairs = [pair.partition("=") for pair in re.split("[&;]", parts.query)] if parts.query else []
        query = "&".join(f"{name}={_mask(value)}" if equals else _mask(name) for name, equals, value in pairs)
        fragment = MASK if parts.fragment else ""
        return urlunsplit(parts._replace(netloc=f"{shown if at else ''}{at}{host}", query=query, fragment=fragment))

    @staticmethod
    def _parts(text: str) -> Iterator[str]:
        try:
            parts = urlsplit(text)
        except ValueError:
            yield text
            return
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        yield password or user
        if password:
            yield b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        yield from (value for _, value in parse_qsl(parts.query))


def with_path(url: str, path: str) -> str:
    """Return the address below a base URL; its query (a token, say) stays at the end."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path))


def remember(secret: str) -> None:
    """Have `redact` look for a text from now on, also as JSON and URLs write it."""
    if len(secret) < _MIN_CHARS or MASK in secret or _REFERENCE.search(secret):
        return
    _known.update((secret, unquote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]))


def redact(text: str) -> str:
    """Return the text without this process's secrets, users and passwords of URLs, and tokens in their queries."""
    for secret in sorted(_known, key=len, reverse=True):
        if secret in text:
            text = re.sub(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", MASK, text)
    return _PARAMETER.sub(rf"\1{MASK}", _LOGIN.sub(rf"\1{MASK}@", text))


def map_texts(change: Callable[[str], str], data: Any) -> Any:
    """Parsed JSON or YAML with every text in it changed, say by `redact`, but for keys."""
    if isinstance(data, dict):
        return {key: map_texts(change, value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [map_texts(change, value) for value in data]
    return change(data) if isinstance(data, str) else data


def redact_argument(argument: str) -> str:
    """Return a command-line argument for display; of accounts, the whole value is masked."""
    key, equals, _ = argument.partition("=")
    return f"{key}={MASK}" if equals and ".accounts" in key else redact(argument)


def without_references(text: str) -> str:
    """Return the text for comparison, its references to variables masked like saved secrets."""
    return _REFERENCE.sub(MASK, text)


def require_secrets(config: BaseModel, sections: tuple[str, ...] = ()) -> None:
    """Raise UsageError if the secrets of some sections (all, if none is named) are not there; names every such key."""
    missing = [key for key in _masked(config) if not sections or key.partition(".")[0] in sections]
    if missing:
        raise UsageError(f"a saved config holds no secrets, but {', '.join(missing)} had one: {_GIVE_AGAIN}")


def revealed(config: BaseModel) -> dict[str, Any]:
    """Return a config with its secrets, for another process of ours, never for a file; UsageError if one is not set."""
    try:
        return config.model_dump(mode="json", context={"reveal": True})
    except PydanticSerializationError as error:
        raise (error.__cause__ if isinstance(error.__cause__, UsageError) else error) from None


def guard_output() -> None:
    """Clean everything that this process logs, and its tracebacks, from now on."""

    def clean(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = _make_record(*args, **kwargs)
        with contextlib.suppress(TypeError, ValueError, KeyError):  # a message that does not fit its arguments
            record.msg, record.args = redact(record.getMessage()), ()
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return record

    def show(kind: Any, error: BaseException | None, trace: Any) -> None:
        if kind is not SystemExit:
            sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    logging.setLogRecordFactory(clean)
    sys.excepthook = show
    threading.excepthook = lambda args: show(args.exc_type, args.exc_value, args.exc_traceback)


_GIVE_AGAIN = (
    "name the config file that the run was started with, give the option again (key=value), or write ${VARIABLE} in "
    "the config and export the variable"
)


def _masked(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of the secrets that a saved config lacks."""
    if isinstance(value, Secret):
        if MASK in value.template:
            yield key
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _masked(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _masked(item, f"{key}.{name}")
    elif isinstance(value, tuple):
        for item in value:
            yield from _masked(item, key)


def _mask(text: str) -> str:
    """Return `***`, or the text if it consists of references."""
    return text if text and not _REFERENCE.sub("", text) else MASK


_make_record = logging.getLogRecordFactory()
