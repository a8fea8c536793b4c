"""All stand-ins together, as a config that points at them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from webrl.config import RolloutConfig, validate_config

from .gitlab import GitLab
from .map import Map, Wikipedia
from .reddit import Reddit
from .server import Site
from .services import Judge, ResetService
from .shopping import Shopping
from .shopping_admin import ShoppingAdmin


class World:
    """`with World(folder) as world:` runs six sites, a reset service and a judge on free ports of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shopping, self.shopping_admin, self.reddit = Shopping(), ShoppingAdmin(), Reddit()
        self.gitlab, self.map, self.wikipedia = GitLab(), Map(), Wikipedia()
        self.sites: tuple[Site, ...] = (
            self.shopping,
            self.shopping_admin,
            self.reddit,
            self.gitlab,
            self.map,
            self.wikipedia,
        )
        self.judge = Judge()
        self.reset_service = ResetService(self.sites)

    def __enter__(self) -> Self:
        for server in (*self.sites, self.judge, self.reset_service):
            server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with ThreadPoolExecutor() as pool:  # each waits for its thread
            list(pool.map(Site.stop, (*self.sites, self.judge, self.reset_service)))

    def reset(self) -> None:
        for site in self.sites:
            site.reset()

    def webarena(self, **changes: Any) -> dict[str, Any]:
        judge = {"urls": [self.judge.url], "model_name": "stand-in-judge", "max_retries": 0, "timeout_s": 5}
        return {
            "sites": {site.name: [site.url] for site in self.sites},
            "reset_urls": [self.reset_service.url],
            "state_dir": str(self.folder / "state"),
            "lock_dir": str(self.folder / "locks"),
            "health_timeout_s": 5,
            "reset_timeout_s": 5,
            "judge": judge,
            **changes,
        }

    def config(self, webarena: dict[str, Any] | None = None, **rollout: Any) -> RolloutConfig:
        section = self.webarena(**(webarena or {}))
        return validate_config({"rollout": {**rollout, "webarena": section}}, "stand-ins").rollout

    def variables(self) -> dict[str, str]:
        """What BrowserGym's own task reads."""
        urls = {site.name.upper(): site.url for site in self.sites} | {"HOMEPAGE": self.wikipedia.url}
        return {f"WA_{name}": url for name, url in urls.items()} | urls
