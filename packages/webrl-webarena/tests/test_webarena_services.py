"""Checks, log-ins, resets and the judge against sites that are up, down, half-up or slow."""

import asyncio
import json
import time

import browsers
import pytest
from standins.play import training_task
from standins.world import World

from webrl.config import ServerConfig, validate_config
from webrl.errors import JudgeError
from webrl.rollouts.suite import open_sites
from webrl_site.sites import SiteError
from webrl_webarena.check import SiteCheck, check_sites, reset_sites
from webrl_webarena.judge import AnswerJudge
from webrl_webarena.login import LoginStore, check_login
from webrl_webarena.settings import Account
from webrl_webarena.sites import find_sites

pytestmark = pytest.mark.browser
SITES = ["shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia"]
QUESTION = [
    {"role": "user", "content": "question: q\nreference answer: 5 km\nall the string\nstudent answer: 5 km\nConclude"}
]


def reset(world: World, names: list[str], settings: dict[str, object] | None = None) -> list[SiteCheck]:
    config = world.config(settings).webarena
    return asyncio.run(reset_sites(config, find_sites(config), names))


def test_healthy_sites_are_found_reachable_and_logged_in(world: World):
    checks = asyncio.run(check_sites(world.config().webarena))
    assert [check.site for check in checks] == SITES
    assert all(check.ok and not check.problem for check in checks)


def test_broken_sites_are_named_with_what_is_wrong(world: World):
    world.map.stop()
    world.reddit.fault = "half"
    world.gitlab.users = {}
    urls = world.webarena()["sites"] | {
        "shopping": world.webarena()["sites"]["wikipedia"],
        "map": ["http://127.0.0.1:9"],
    }
    problems = {c.site: c.problem for c in asyncio.run(check_sites(world.config({"sites": urls}).webarena)) if not c.ok}
    assert set(problems) == {"map", "reddit", "gitlab", "shopping"}
    assert "does not answer" in problems["map"]
    assert "WA_MAP" in problems["map"]
    assert "answers 503" in problems["reddit"]
    assert "as 'byteblaze'" in problems["gitlab"]
    assert "still asks for a password" in problems["gitlab"]
    assert "something answers there, but not shopping" in problems["shopping"]
    world.map.start()


@pytest.mark.slow
def test_a_log_in_is_minted_once_shared_and_minted_again_when_it_expires(world: World):
    config = world.config({"login_check_s": 0}).webarena
    sites = find_sites(config)
    urls = {name: sites.urls[name][0] for name in ("gitlab", "shopping")}

    async def run() -> None:
        async with browsers.shared_browser() as browser:
            store = LoginStore(config, sites)
            state = await store.state(urls, browser)
            assert {cookie["name"] for cookie in state["cookies"]} == {"gitlab_session", "shopping_session"}
            posts = world.gitlab.log.count("POST /users/sign_in")
            assert await LoginStore(config, sites).state(urls, browser) == state
            assert world.gitlab.log.count("POST /users/sign_in") == posts == 1
            world.gitlab.sessions.clear()
            again = await store.state(urls, browser)
            assert again != state
            assert world.gitlab.log.count("POST /users/sign_in") == 2
            assert world.shopping.log.count("POST /customer/account/login/") == 1

    browsers.run(run())


def test_a_refused_password_and_a_site_that_drops_connections_are_told_apart(world: World):
    config, url = world.config().webarena, world.reddit.url

    async def run() -> None:
        async with browsers.shared_browser() as browser:
            with pytest.raises(SiteError, match=r"reddit at .* as 'me': .*rollout\.webarena\.accounts\.reddit"):
                await check_login("reddit", url, Account(username="me", password="x"), config, browser)
            world.reddit.fault = "drop"
            with pytest.raises(SiteError, match=r"reddit at .*log-in at .* failed"):
                await check_login("reddit", url, find_sites(config).accounts["reddit"], config, browser)

    browsers.run(run())


@pytest.mark.slow
def test_a_reset_restores_the_data_ends_sessions_and_is_verified(world: World):
    world.shopping.wishlist.append("speaker")
    checks = reset(world, SITES)
    assert world.reset_service.num_resets == 1
    assert world.shopping.wishlist == []
    assert all(check.ok for check in checks)
    assert len(checks) == 6


def test_a_reset_that_runs_already_is_waited_for(world: World):
    world.reset_service.left = 2
    reset(world, ["map"])
    assert world.reset_service.num_resets == 1


def test_a_reset_that_never_finishes_is_given_up(world: World):
    world.reset_service.polls = 10**9
    with pytest.raises(SiteError, match=r"not over after 0\.3 s; it says 'Reset running'"):
        reset(world, ["map"], {"reset_timeout_s": 0.3})


def test_a_reset_service_that_is_gone_or_refuses_is_named(world: World):
    with pytest.raises(SiteError, match=r"reset service http://127\.0\.0\.1:9 does not answer"):
        reset(world, ["map"], {"reset_urls": ["http://127.0.0.1:9"]})
    world.reset_service.fault = "half"
    with pytest.raises(SiteError, match="answers 503"):
        reset(world, ["map"])


def test_a_site_that_stays_half_up_after_the_reset_is_named(world: World):
    world.gitlab.fault = "half"
    with pytest.raises(SiteError, match=r"not healthy after 0\.2 s: gitlab at .*503"):
        reset(world, ["gitlab", "map"], {"health_timeout_s": 0.2})


def test_a_stage_holds_resets_and_gives_up_its_sites(world: World):
    config = validate_config({"name": "one", "rollout": {"webarena": world.webarena()}}, "test")
    tasks = [training_task("t", "map", "Show me the way")]

    async def run() -> None:
        async with open_sites(config, tasks):
            assert world.reset_service.num_resets == 1
            with pytest.raises(SiteError, match="in use by run 'one'"):
                async with open_sites(config.model_copy(update={"name": "two"}), tasks):
                    pass
        async with open_sites(config, tasks):
            pass

    asyncio.run(run())


def judge(world: World, **changes: object) -> AnswerJudge:
    settings = {"urls": (world.judge.url,), "model_name": "m", "max_retries": 0, "timeout_s": 5.0}
    return AnswerJudge(ServerConfig.model_validate(settings | changes), world.folder)


def test_judgements_are_logged_and_never_asked_for_twice(world: World):
    first = judge(world)
    assert first.ask(QUESTION) == first.ask(QUESTION) == "correct"
    assert judge(world).ask(QUESTION) == "correct"
    assert len(world.judge.questions) == 1
    (line,) = (world.folder / "judge.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["model"], entry["answer"], entry["messages"]) == ("m", "correct", QUESTION)
    assert judge(world, model_name="other").ask(QUESTION) == "correct"
    assert len(world.judge.questions) == 2


def test_the_server_s_own_model_is_asked_if_none_is_named(world: World):
    judge(world, model_name=None).ask(QUESTION)
    assert json.loads((world.folder / "judge.jsonl").read_text())["model"] == "stand-in-judge"


def test_a_judge_that_is_down_or_decides_nothing_raises_and_is_not_cached(world: World):
    world.judge.fault = "half"
    with pytest.raises(JudgeError, match=r"does not answer \(503"):
        judge(world).ask(QUESTION)
    world.judge.fault = ""
    world.judge.reply = "I would rather not say."
    with pytest.raises(JudgeError, match="gave no verdict"):
        judge(world).ask(QUESTION)
    world.judge.reply = None
    assert judge(world).ask(QUESTION) == "correct"


def test_the_judge_is_asked_again_after_a_dropped_connection(world: World):
    world.judge.fault = "drop"
    asker = judge(world, max_retries=3)

    def heal() -> None:
        time.sleep(0.5)
        world.judge.fault = ""

    async def run() -> str:
        healing = asyncio.to_thread(heal)
        answer, _ = await asyncio.gather(asyncio.to_thread(asker.ask, QUESTION), healing)
        return answer

    assert asyncio.run(run()) == "correct"
