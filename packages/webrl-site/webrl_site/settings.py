"""Your own web application: `rollout.web`, the settings of `tasks.suite=web` (docs/own_site.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urljoin, urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from webrl.config.redaction import Secret, SecretUrl
from webrl.config.section import Section

STATE_DIR = "saved log-ins; the rate limit's state (web); the judge's cache and log (webarena)"


class SuiteConfig(Section):
    """A suite that reads tasks from files and logs in to sites."""

    train_files: tuple[Path, ...] = Field(
        (),
        description="instructions to train on (web: JSONL, JSON or text, none: the generator proposes them; webarena: "
        "phase 0's, docs/webarena.md)",
    )
    state_dir: Path = Field(Path("runs"), description=STATE_DIR)


def _is_address(url: str) -> str:
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        raise ValueError(f"not a web address ({error}); the form is http://host:port/path") from None
    return url


def _is_page(url: str) -> str:
    parts = urlsplit(_is_address(url))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a start page has the form http://host:port/path")
    if "@" in parts.netloc:
        raise ValueError("no user and password in a start page; put log-ins in rollout.web.login")
    return url


def _is_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _has_no_colon(user: str) -> str:
    if ":" in user:
        raise ValueError(
            "what follows the colon would be read as the password (RFC 7617); give user and password separately"
        )
    return user


Pattern = Annotated[str, AfterValidator(_is_pattern)]
PageAddress = Annotated[str, AfterValidator(_is_address)]
"""May be relative."""
StartUrl = Annotated[str, AfterValidator(_is_page)]


class FormLogin(Section):
    """A log-in through the site's own form."""

    url: PageAddress = Field(description="page with the form; may be relative to the first start page")
    fields: dict[str, str] = Field({}, description="label, placeholder, name or id of a field: its value")
    secrets: dict[str, Secret] = Field({}, description="the same for passwords, such as {Password: ${NOTES_PASSWORD}}")
    submit: str | None = Field(None, description="name of the button; none: Enter in the last field")


class BasicLogin(Section):
    """HTTP Basic authentication (RFC 7617), for which a browser opens a dialog."""

    user: Annotated[str, AfterValidator(_has_no_colon)] = Field(description="user name")
    password: Secret = Field(description="password, such as ${SITE_PASSWORD}")


_DEADLINE = "deadline of the log-in, of the reset, or of the server's start, until the start page answers"


class Deadline(Section):
    """What has one."""

    timeout_s: float = Field(60.0, gt=0, description=_DEADLINE)


class WebLogin(Deadline):
    """How episodes log in: one of three ways, how to check that it still holds, and HTTP Basic authentication."""

    state_file: Path | None = Field(None, description="a browser storage state (Playwright's JSON)")
    form: FormLogin | None = Field(None, description="fill in the site's form: url, fields, submit")
    command: tuple[str, ...] = Field((), description="program and arguments; prints a storage state")
    basic: BasicLogin | None = Field(
        None, description="user and password for HTTP Basic authentication, for the first start page's origin alone"
    )
    proof_url: PageAddress | None = Field(None, description="a page that only a logged-in user sees; may be relative")
    proof_text: str | None = Field(
        None, description="text on that page; none: it is enough that the page does not redirect"
    )
    check_s: float = Field(60.0, ge=0, description="seconds between checks of the log-in (proof_url)")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [name for name in ("state_file", "form", "command") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)}: choose one way to log in")
        if self.proof_text and not self.proof_url:
            raise ValueError("proof_text needs proof_url, the page that it is on")
        if self.proof_url and not ways:
            raise ValueError("proof_url needs a log-in: state_file, form or command")
        return self

    @property
    def is_set(self) -> bool:
        """Whether there is a log-in."""
        return bool(self.state_file or self.form or self.command)


class WebReset(Deadline):
    """How the site is put back to a known state: a request, a command, or not at all."""

    url: SecretUrl | None = Field(None, description="address that resets the site")
    method: Literal["GET", "POST", "PUT", "DELETE"] = Field("POST", description="method of that request")
    headers: dict[str, Secret] = Field({}, description="its headers, such as {X-Reset-Token: ${RESET_TOKEN}}")
    command: tuple[str, ...] = Field((), description="program and arguments that reset the site")
    every: Literal["stage", "episode"] = Field(
        "stage", description="before each rollout and evaluation, or before each episode (then one at a time)"
    )
    timeout_s: float = Field(120.0, gt=0, description=_DEADLINE)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.url and self.command:
            raise ValueError("url and command: choose one way to reset")
        if self.every == "episode" and not self.is_set:
            raise ValueError("every=episode needs a reset: url or command")
        if self.headers and not self.url:
            raise ValueError("headers go with url")
        return self

    @property
    def is_set(self) -> bool:
        """Whether there is a reset."""
        return bool(self.url or self.command)


class WebServe(Deadline):
    """A server of the site for every episode, so that no episode meets what another one did."""

    command: tuple[str, ...] = Field(
        (),
        description="program and arguments; `{port}` becomes a free port of 127.0.0.1, `{folder}` an empty folder that "
        "is removed with the server, `{python}` webrl's Python",
    )
    folder: Path | None = Field(None, description="folder it is started in; none: webrl's")

    @field_validator("command")
    @classmethod
    def _has_a_port(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not any("{port}" in part for part in command):
            raise ValueError("no argument has {port}: every episode's server needs its own port")
        return command

    @property
    def is_set(self) -> bool:
        """Whether episodes have their own servers."""
        return bool(self.command)


class WebConfig(SuiteConfig):
    """Your own site (docs/own_site.md)."""

    name: str = Field("site", pattern=r"^[a-z0-9][a-z0-9_-]*$", description="name in tables: a-z, digits, _ -")
    start_urls: tuple[StartUrl, ...] = Field(
        (), description="start pages, whose hosts agents may reach; instructions that name none use the first"
    )
    heldout_files: tuple[Path, ...] = Field((), description="instructions of the evaluation, never trained on")
    explore_pages: int = Field(12, ge=1, le=500, description="pages visited for the generator's proposals")
    login: WebLogin = WebLogin()
    reset: WebReset = WebReset()
    serve: WebServe = WebServe()
    verify: tuple[str, ...] = Field(
        (),
        description="program and arguments for `verify` checks: prints `pass` or `fail: why`; `{check}`, `{url}` (the "
        "site's origin), `{page}` (the active tab's address), `{folder}` (of serve) and `{python}` are filled in",
    )
    database: str | None = Field(None, description="sqlite:///FILE that the SQL checks query, opened read-only")
    check_timeout_s: float = Field(15.0, gt=0, description="deadline of one check")
    read_only: bool = Field(
        False, description="let only GET and HEAD requests leave the browser, none to addresses that look like actions"
    )
    forbidden_urls: tuple[Pattern, ...] = Field(
        (), description="regular expressions; requests to addresses that contain a match are blocked"
    )
    forbidden_actions: tuple[str, ...] = Field((), description="actions that are refused, such as upload_file or goto")
    dialogs: Literal["accept", "dismiss"] = Field(
        "accept", description="how a page's confirm() and prompt() are answered: OK, or Cancel as BrowserGym does"
    )
    max_actions_per_s: float | None = Field(
        None, gt=0, description="actions and resets a second, all environments together; none: no limit"
    )
    state_dir: Path = Field(Path("runs/web"), description=STATE_DIR)

    @field_validator("database")
    @classmethod
    def _is_sqlite(cls, value: str | None) -> str | None:
        if value and not value.startswith("sqlite:///"):
            raise ValueError("only sqlite:///FILE is supported; check other databases by http or javascript")
        return value

    @field_validator("start_urls", "train_files", "heldout_files", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _servers_are_new(self) -> Self:
        if not self.serve.is_set:
            return self
        beside = {"login": self.login.is_set, "reset": self.reset.is_set, "database": self.database}
        if wrong := [name for name, value in beside.items() if value]:
            raise ValueError(f"{wrong[0]} cannot be combined with serve: every episode has its own fresh server")
        if len(self.hosts) > 1 or any(urlsplit(url).scheme != "http" for url in self.start_urls):
            raise ValueError("serve needs all start_urls on one http:// host and port")
        return self

    def absolute(self, address: str) -> str:
        """An address of the site; relative ones start from the first start page."""
        return urljoin(self.start_urls[0], address)

    @property
    def origin(self) -> str:
        """Scheme, host and port of the first start page, as a browser writes them."""
        parts = urlsplit(self.start_urls[0])
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = "" if parts.port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f":{parts.port}"
        return f"{parts.scheme}://{host}{port}"

    @property
    def http_credentials(self) -> dict[str, dict[str, str]]:
        """The option of a browser context for HTTP Basic authentication; {} without it.

        Raises:
            UsageError: the password is not there.
        """
        basic = self.login.basic
        if basic is None:
            return {}
        return {
            "http_credentials": {"username": basic.user, "password": basic.password.reveal(), "origin": self.origin}
        }

    @property
    def address(self) -> str:
        """Host and port of the first start page."""
        parts = urlsplit(self.start_urls[0])
        return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the start pages, with port where they name one."""
        return tuple(dict.fromkeys(urlsplit(url).netloc.lower() for url in self.start_urls))


SETTINGS = WebConfig
"""The model of the section (`webrl.config.plugins.settings_of`)."""
