"""Log-ins of programs of one document: forms that come late, tokens in localStorage, pages that never stop asking."""

import asyncio
import json

import pytest
from browsers import run, shared_browser
from rollouts_builders import answers, serve

from webrl.config import load_config
from webrl_site.login import Logins, login_path
from webrl_site.sites import SiteError

pytestmark = pytest.mark.browser

START = "<title>in</title><div id=app></div><script>import('/form.js')</script>"
FORM = """
app.innerHTML = `<label>Name <input></label><label>Password <input type=password></label><button>Enter</button>`;
document.querySelector('button').onclick = async () => {
  if (document.querySelector('[type=password]').value !== 'open-sesame') return;
  app.textContent = 'one moment';
  const token = await (await fetch('/token')).text();
  KEEP.token = token;
  app.textContent = 'hello';
  AFTER;
};
"""
HOME = "<body><script>if (localStorage.token === 'good') document.body.append('hello'); else location = '/'</script>"
AFTER = {
    "hears events": "new EventSource('/forever')",
    "asks for ever": "const again = () => fetch('/forever').then(again); again()",
    "leaves": "location = '/home'",
}


async def forever(path, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    await writer.drain()
    await asyncio.sleep(60)


def logged_in(tmp_path, then, *, keep="localStorage", after="", password="open-sesame", **login):
    """What `then(logins, browser, config)` returns for a site whose form, its program's, is slow."""

    form = answers(FORM.replace("AFTER", after).replace("KEEP", keep), wait_s=0.7, kind="text/javascript")
    pages = {"/": START, "/form.js": form, "/token": answers("good", wait_s=0.7)}
    pages |= {"/home": answers(HOME, wait_s=0.7), "/forever": forever}

    async def work():
        async with serve(pages) as url, shared_browser() as browser:
            settings = {"fields": {"Name": "ann"}, "secrets": {"Password": password}, "submit": "Enter", "url": "/"}
            login = {"form": settings, "proof_url": "/home", "check_s": 0} | login_more
            web = {"start_urls": [f"{url}/"], "state_dir": str(tmp_path), "login": login}
            overrides = [f"rollout.web={json.dumps(web)}"]
            config = load_config(None, ["tasks.suite=web", *overrides]).rollout.web
            return await then(Logins(config), browser, config)

    login_more = login
    return run(work())


TOKEN = [{"name": "token", "value": "good"}]


@pytest.mark.parametrize(("after", "text"), [("hears events", None), ("asks for ever", "hello")])
def test_a_log_in_to_a_program_that_never_stops_asking_is_not_waited_for(tmp_path, after, text):
    async def once(logins, browser, config):
        return (await logins.state(browser))["origins"][0]["localStorage"]

    assert logged_in(tmp_path, once, after=AFTER[after], proof_text=text) == TOKEN


def test_a_program_s_log_in_is_waited_for_and_its_proof_opened_as_the_program_does(tmp_path):
    async def twice(logins, browser, config):
        first = await logins.state(browser)
        assert await logins.state(browser) == first
        kept = login_path(config)
        kept.write_text(kept.read_text().replace('"good"', '"expired"'))
        return [first["origins"][0]["localStorage"], (await logins.state(browser)) == first]

    assert logged_in(tmp_path, twice, after=AFTER["leaves"]) == [TOKEN, True]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"password": "wrong-pass"}, "still asks for a password afterwards"),
        ({"proof_text": "goodbye"}, "/home does not show it"),
        ({"keep": "sessionStorage"}, "left neither a cookie nor anything in localStorage"),
    ],
)
def test_a_program_s_log_in_that_fails_says_why(tmp_path, settings, words):
    async def once(logins, browser, config):
        await logins.state(browser)

    with pytest.raises(SiteError) as error:
        logged_in(tmp_path, once, **settings)
    assert words in str(error.value)
    assert "wrong-pass" not in str(error.value)
