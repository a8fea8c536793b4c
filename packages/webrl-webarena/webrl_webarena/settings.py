"""WebArena: `rollout.webarena`, the settings of its suites (docs/webarena.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from webrl.config import ServerConfig
from webrl.config.redaction import Secret, SecretUrl
from webrl.config.section import Section
from webrl_site.settings import STATE_DIR, SuiteConfig


class Account(Section):
    """A log-in of a site."""

    username: str = Field(description="user of that site")
    password: Secret = Field(description="its password, such as ${GITLAB_PASSWORD}")


SiteName = Literal["shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia"]


class WebArenaConfig(SuiteConfig):
    """WebArena's sites, log-ins, resets and judge (docs/webarena.md)."""

    sites: dict[SiteName, tuple[SecretUrl, ...]] = Field(
        {}, description="base URLs by site, several are replicas; none: WA_<SITE> or <SITE> in the environment"
    )
    accounts: dict[SiteName, Account] = Field({}, description="log-ins; none: those of the published images")
    reset_urls: tuple[SecretUrl, ...] = Field((), description="hosts of the reset service; none: WA_FULL_RESET")
    reset_timeout_s: float = Field(1200.0, gt=0, description="a reset that takes longer has failed (200-500 s usual)")
    health_timeout_s: float = Field(120.0, gt=0, description="a site must answer and log in within this after a reset")
    reset: bool = Field(True, description="reset the sites before a rollout stage and before an evaluation")
    state_dir: Path = Field(Path("runs/webarena"), description=STATE_DIR)
    lock_dir: Path | None = Field(None, description="site locks; none: a folder of the machine's temporary directory")
    login_check_s: float = Field(60.0, ge=0, description="seconds between checks of a log-in")
    validate_timeout_s: float = Field(180.0, gt=0, description="deadline of one episode's validation")
    judge: ServerConfig = Field(
        ServerConfig(model_name="gpt-4-1106-preview"),
        description="answers the fuzzy_match questions; urls: none is OPENAI_BASE_URL or OpenAI itself",
    )

    @field_validator("sites", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {site: (urls,) if isinstance(urls, str | SecretUrl) else urls for site, urls in value.items()}


SETTINGS = WebArenaConfig
"""The model of the section (`webrl.config.plugins.settings_of`)."""
