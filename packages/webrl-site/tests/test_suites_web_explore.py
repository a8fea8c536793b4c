"""What `webrl init-site` makes of other people's sites: one small site for each thing that they do."""

import asyncio
import contextlib
import json
import re
from dataclasses import replace

import pytest
from browsers import run, shared_browser
from rollouts_builders import answers, at, reply, serve
from web_builders import ROOT, web_env, web_rollout

from webrl.cli import main
from webrl.config import load_config
from webrl.rollouts.suite import seed_tasks
from webrl_site.env import changes
from webrl_site.explore import DiscoveredPage, explore
from webrl_site.login import fill_form
from webrl_site.sites import SiteError
from webrl_site.starter import starter_instructions
from webrl_site.tasks import read_instructions

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Written configs keep log-ins and the turn-taking of their limit below the working folder."""
    monkeypatch.chdir(tmp_path)


@contextlib.asynccontextmanager
async def noting(pages):
    """A server of these pages, and the paths that it was asked for; a page `-> /other` redirects there."""
    asked = []

    def page_of(path, body):
        async def answer(_, writer):
            asked.append(path)
            target = body.removeprefix("-> ")
            status, headers = ("302 Found", f"Location: {target}\r\n") if target != body else ("200 OK", "")
            kind = "application/xml" if body.startswith("<?xml") else "text/html"
            await reply(writer, body, status, headers, kind)

        return answer

    async with serve(
        {path: page_of(path, body) if isinstance(body, str) else body for path, body in pages.items()}
    ) as url:
        yield url, asked


def look_around(pages, num_pages=12):
    async def work():
        async with noting(pages) as (url, asked), shared_browser() as browser:
            return url, await explore(browser, web_rollout(url + "/"), num_pages), asked

    return run(work())


def written(pages, *options, code=0, start="/"):
    """What `init-site` writes for a site: its address, the config's text, the instructions."""

    async def work():
        async with noting(pages) as (url, asked):
            said = await asyncio.to_thread(main, ["init-site", url + start, "--out", "site.yaml", *options])
            assert said == code
            return url, asked

    url, asked = asyncio.run(work())
    if code:
        return url, asked, []
    config = load_config("site.yaml")
    files = (*config.rollout.web.train_files, *config.rollout.web.heldout_files)
    return url, asked, [entry for path in files for entry in read_instructions(path)]


def paths_of(url, found):
    return [page.url.removeprefix(url) for page in found.pages]


def page(title, body):
    return f"<!doctype html><title>{title}</title><h1>{title}</h1>{body}"


@pytest.mark.parametrize(
    "address",
    ["/backups/create", "/clear_history", "/clone?uuid=1", "/tags/unlink/3/4", "/a/3/clear-summary-cache", "/?delete=3",
     "/index.php?action=delete&id=3", "/w/Special:UserLogout", "/log%6Fut", "/removeItem", "/#/log-out", "/deletenote",
     "/mark_read?id=3", "/unpin/4"],
)  # fmt: skip
def test_an_address_that_looks_like_an_action_is_one(address):
    assert changes(f"http://a.example{address}")


@pytest.mark.parametrize(
    ("address", "words"),
    [("/notes/3", "Notes"), ("/search?q=delete", ""), ("/reset.css", ""), ("/deleted", "Recently deleted"),
     ("/new", ""), ("/clear-your-mind-in-five-steps", ""), ("/login", "Log in"), ("/help", "How do I delete a note?")],
)  # fmt: skip
def test_an_address_that_looks_like_a_page_is_none_of_them(address, words):
    assert changes(f"http://a.example{address}", words) == ""


CHANGING = {
    "/backups/create": "<a href=/backups/create>Back up</a>",
    "/tags/unlink/31": "<a href=/tags/unlink/31>x</a>",
    "/items/7": "<a href=/items/7>Purge</a>",
    "/items/8": "<a href=/items/8 data-requires-confirm>Item</a>",
    "/items/9": "<form action=/items/9><button>Erase</button></form><a href=/items/9>Item</a>",
}


def test_what_links_and_forms_look_as_if_they_changed_is_not_asked_for_while_looking_nor_by_agents(capsys):
    body = "".join(CHANGING.values()) + "<a href=/about>About us</a><a href=/sure>Old notes</a>"
    sure = page("Old notes", "<p>Are you sure?</p><a href=/gone>Yes</a><form method=post><button>Yes</button></form>")
    pages = {"/": page("home", body), "/about": page("about", ""), "/sure": sure}
    pages |= dict.fromkeys((*CHANGING, "/gone"), page("done", ""))
    url, asked, _ = written(pages)
    assert {*asked} == {"/", "/about", "/sure"}
    printed = capsys.readouterr().out
    assert f"not visited: {url}/items/7: looks as if it changed something (Purge)" in printed
    assert f"not visited: {url}/sure: asks for a confirmation" in printed

    async def play(**limits):
        async with noting(pages) as (url, asked):
            config = load_config("site.yaml", [f"rollout.web.start_urls=[{url}/]"]).rollout
            async with web_env(config.model_copy(update={"web": config.web.model_copy(update=limits)})) as env:
                await env.reset(at(f"{url}/"))
                told = [(await env.step(f"goto('{url}{path}')")).error for path in CHANGING]
                return told, {*asked} & {*CHANGING}

    for limits in ({"read_only": False}, {}):
        told, reached = run(play(**limits))
        assert not reached
        assert all(error.startswith("Blocked: ") for error in told), told
    told, reached = run(play(forbidden_urls=()))
    assert reached == {"/items/7", "/items/8", "/items/9"}, (
        "what the address alone does not say is the config's to hold"
    )
    assert "this site may only be read, and 'create' in an address looks as if it changed something" in told[0]


def test_a_menu_whose_links_all_lead_back_does_not_use_up_the_look_around_and_what_is_left_is_said(capsys):
    menu = "".join(f"<a href=/lang/l{letter}>{letter}</a>" for letter in "abcdefghijklmnopqrstuvwxyzäöüßéè")
    links = "".join(f"<a href=/part/{letter}>Part {letter}</a>" for letter in "abcd")
    pages = {"/": page("home", menu + links)}
    pages |= {f"/lang/l{letter}": "-> /" for letter in "abcdefghijklmnopqrstuvwxyzäöüßéè"}
    pages |= {f"/part/{letter}": page(f"part {letter}", "") for letter in "abcd"}
    url, found, _ = look_around(pages, 5)
    assert paths_of(url, found) == ["/", *(f"/part/{letter}" for letter in "abcd")]
    assert found.skipped == ("28 links like /lang/*: those before brought no new page",)
    assert found.left == ()
    url, _, _ = written(pages, "--pages", "3")
    assert f"not visited (--pages 3): {url}/part/c" in capsys.readouterr().out


def test_pages_that_a_parameter_names_are_found_and_what_is_left_out_as_more_of_the_same_is_said():
    names = ("users", "groups", "roles", "mails")
    links = [*(f"page={name}" for name in names), *(f"sort={number}" for number in range(4))]
    shown = (
        "<script>document.write(`<p>${location.search}</p><a href=/logout?next=${location.search}>Leave</a>`)</script>"
    )
    pages = {"/": page("home", "".join(f"<a href='/index.php?{query}'>{query}</a>" for query in links))}
    url, found, _ = look_around(pages | {"/index.php": page("part", shown)})
    assert paths_of(url, found) == ["/", *(f"/index.php?{query}" for query in links[:6])]
    leaving, more = found.skipped
    assert "/logout?" in leaving
    assert more == f"{url}/index.php?sort=2 and 1 more like it: 2 such links were enough"


def test_pages_that_a_program_of_one_document_shows_are_pages_of_their_own():
    program = """<title>program</title><a href="#/users/1">1</a><a href="#/about">about</a><a href="#top">top</a>
    <a href="#/log-out">bye</a><main></main><script>
    const show = () => {
      document.title = location.hash || 'home';
      if (location.hash === '#/about') document.querySelector('main').innerHTML = '<a href="#/about/us">us</a>';
    };
    addEventListener('hashchange', show);
    show();
    </script>"""

    url, found, _ = look_around({"/": program}, 20)
    titles = {seen.url.removeprefix(url): seen.title for seen in found.pages}
    assert titles == {"/": "home"} | {f"/{name}": name for name in ("#/users/1", "#/about", "#/about/us")}
    assert any("#/log-out: looks as if" in line for line in found.skipped)


def test_pages_that_get_their_content_by_post_get_it_only_with_writes(tmp_path, capsys):
    script = "<script>fetch('/data', { method: 'POST' }).then(async (r) => document.body.append(...new DOMParser()"
    script += ".parseFromString(await r.text(), 'text/html').body.children))</script>"
    pages = {"/": page("home", script), "/data": "<a href=/list>The list</a>", "/list": page("Everything", "")}
    _, asked, _ = written(pages)
    assert {*asked} == {"/"}, "neither while looking around, nor while the instructions are tried"
    assert "give --writes" in capsys.readouterr().out
    assert load_config("site.yaml").rollout.web.read_only
    for path in tmp_path.glob("site*"):
        path.unlink()
    _, asked, made = written(pages, "--writes")
    assert {*asked} == {"/", "/data", "/list"}
    assert 'Go to the page "The list".' in {entry.instruction for entry in made}
    assert not load_config("site.yaml").rollout.web.read_only


def test_links_in_frames_are_followed_and_a_text_check_reads_frames_as_the_agent_does():
    inner = "<a href=/inside>Inside</a><p>inner words</p><iframe srcdoc='<p>deep words</p>'></iframe>"
    frames = "<iframe src=/frame></iframe><iframe sandbox srcdoc='<p>boxed words</p>'></iframe>"
    pages = {
        "/": page("home", f"{frames}<iframe hidden srcdoc='<p>unseen words</p>'></iframe>"),
        "/frame": inner,
        "/inside": page("inside", ""),
    }
    url, found, _ = look_around(pages)
    assert paths_of(url, found) == ["/", "/inside"]
    assert found.pages[1].link == "Inside"

    async def play(checks):
        async with noting(pages) as (url, _), web_env(web_rollout(url + "/")) as env:
            seen = await env.reset(at(f"{url}/", extra={"checks": checks}))
            return seen.text, (await env.finish()).reward

    words = ("inner words", "deep words", "boxed words")
    text, reward = run(play([*({"text": word} for word in words), {"text": "unseen words", "absent": True}]))
    assert all(word in text for word in words)
    assert reward == 1.0


def test_checks_are_made_of_what_the_agent_sees_and_kept_where_their_own_answer_solves_them(capsys):
    loads = []

    async def fickle(_, writer):
        loads.append(1)
        await reply(writer, page(f"Visitor {len(loads)}", ""))

    crumbs = "<style>.c::before { content: '\\203A' }</style><h1>Household<b class=c>Balance Sheet</b></h1>"
    links = "<a href=/balance>Household<i class=c></i> sheet</a><a href=/fickle>Visitors</a><a href=/many>Loans</a>"
    links += "<style>.c::before { content: '\\203A' }</style><a href=/many>Edit</a><a href=/other>\uf040 edit</a>"
    pages = {
        "/": page("home", links),
        "/balance": f"<title>b</title><aside><h1>The site</h1></aside>{crumbs}",
        "/fickle": fickle,
        "/many": page("Loans", "<h1>Fines</h1>"),
        "/other": page("other", ""),
    }
    url, _, made = written(pages)
    asked = {entry.instruction: entry.checks[0] for entry in made}
    named = 'the page "Household› sheet"'
    assert asked[f"What is the main heading of {named}? Answer with its text."].answer == "Household›Balance Sheet"
    assert asked[f"Go to {named}."].url == f"^{re.escape(url)}/balance$"
    assert {'Go to the page "Visitors".', 'Go to the page "Loans".'} <= set(asked)
    headings = ('heading of the page "Visitors"', 'heading of the page "Loans"')
    assert not any(words in text for text in asked for words in ('"Edit"', *headings))
    assert 'left out, as its own answer does not solve it: What is the main heading of the page "Visitors"?' in (
        capsys.readouterr().out
    )


TOKEN = "5da1b5389fcb986a737dee513771ae62"  # (of nothing)


def test_names_that_say_nothing_targets_that_are_no_page_and_addresses_with_tokens_are_left_out(tmp_path, capsys):
    links = "<a href=/n>0</a><a href=/sign>#! money?</a><a href=/feed>Feed</a><a href=/plain>Plain</a>"
    links += f"<a href=/rss?token={TOKEN}>News</a><a href=/join/{TOKEN}>Join us</a><a href=/moved>Moved</a>"
    names = ("/n", "/sign", "/plain", "/rss", f"/join/{TOKEN}", f"/there/{TOKEN}")
    pages = {"/": page("home", links)} | {path: page(f"page {path}"[:8], "") for path in names}
    pages |= {
        "/feed": f"<?xml version='1.0'?><rss><link>/rss?token={TOKEN}</link></rss>",
        "/moved": f"-> /there/{TOKEN}",
    }
    url, asked, made = written(pages)
    assert {entry.instruction for entry in made} == {
        'Go to the page "Plain".',
        'What is the main heading of the page "Plain"? Answer with its text.',
    }
    assert "/rss" not in asked
    printed = capsys.readouterr().out
    assert f"not visited: {url}/feed: is not a page (application/rss+xml)" in printed
    assert f"not visited: {url}/join/***: its address holds a token" in printed
    assert TOKEN not in printed + "".join(path.read_text() for path in tmp_path.glob("site*"))


SETTINGS = """<form method=post><label>Name <input></label><label>Mail <input></label><label>Zone <input></label>
<label>Password <input type=password></label><button>Save</button><button>Regenerate API key</button></form>"""
ALONE = "<form method=post><label>Password <input type=password name=p></label><button>Login</button></form>"


def test_a_form_of_settings_is_no_log_in(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PASSWORD", "over-the-hill")
    written({"/": page("home", "<a href=/settings>Settings</a>"), "/settings": page("Settings", SETTINGS)})
    assert "log-in" not in capsys.readouterr().out
    assert "# login: {form: {url: /login" in (tmp_path / "site.yaml").read_text()
    for path in tmp_path.glob("site*"):
        path.unlink()
    written({"/": page("home", SETTINGS)}, "--user", "ann", code=1)
    assert "no log-in form there or on a page that it links to" in capsys.readouterr().err


def test_a_site_that_shows_its_log_in_alone_has_nothing_written_and_says_what_to_give(tmp_path, capsys, monkeypatch):
    login = ALONE.replace("<label>", "<label>User <input></label><label>")
    pages = {"/": "-> /login", "/login": page("Sign in", f"{login}<a href=/forgot>Forgot it?</a>")}
    pages["/forgot"] = page("Forgot password", "<form method=post><input></form>")
    written(pages, code=1)
    error = capsys.readouterr().err
    assert "/login is a log-in, and nothing else is shown without it: give --user NAME, with the password in" in error
    written({"/": "-> /enter", "/enter": page("Enter", ALONE)}, code=1)
    assert "give --password-env PASSWORD, the variable with the password" in capsys.readouterr().err
    monkeypatch.setenv("PASSWORD", "over-the-hill")
    written({"/": "-> /enter", "/enter": page("Enter", ALONE)}, "--user", "ann", code=2)
    assert "asks for 'Password' alone: leave --user out" in capsys.readouterr().err
    written(pages, "--password-env", "PASSWORD", code=2)
    assert "asks for 'User' too: give --user NAME" in capsys.readouterr().err
    assert not list(tmp_path.glob("site*"))


def test_a_log_in_by_a_password_alone(monkeypatch):
    monkeypatch.setenv("GATE", "over-the-hill")
    enter = """<script>document.forms[0].onsubmit = () => {
      document.cookie = 'in=' + document.forms[0].p.value;
      location = '/';
      return false;
    }</script>"""
    home = "<script>if (!document.cookie.includes('in=over')) location = '/enter'</script>"
    home += page("home", "<a href=/about>About</a>")
    pages = {"/": home, "/enter": page("Enter", ALONE + enter), "/about": page("about", "")}
    _, _, made = written(pages, "--password-env", "GATE")
    assert 'Go to the page "About".' in {entry.instruction for entry in made}


def fill(body, form):
    async def work():
        async with noting({"/": page("in", body), "/frame": ALONE}) as (url, _), shared_browser() as browser:
            settings = {"start_urls": [f"{url}/"], "login": {"form": {"url": "/"} | form, "timeout_s": 12}}
            web = load_config(None, ["tasks.suite=web", f"rollout.web={json.dumps(settings)}"]).rollout.web
            return await fill_form(browser, web.login.form, web)

    return run(work())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<input name=User hidden><label>Mail <input></label>", "there is no field 'User'; the page has: 'Mail'"),
        ("<label>User <input type=checkbox></label>", "the field 'User' cannot be filled in: "),
        ("<label>User <input></label><button>Enter</button>", "the button 'Log in' cannot be pressed .* has: 'Enter'"),
    ],
)  # fmt: skip
def test_a_log_in_s_field_or_button_that_cannot_be_used_is_named(body, words, monkeypatch):
    monkeypatch.setattr("webrl_site.login._ACT_S", 0.5)
    with pytest.raises(SiteError, match=words):
        fill(body, {"fields": {"User": "ann"}, "submit": "Log in"})


def test_a_log_in_whose_secure_cookies_the_browser_does_not_keep_says_so():
    enter = answers(ALONE, headers="Set-Cookie: session=x; Secure; HttpOnly\r\n")

    async def work():
        async with serve({"/": enter}) as url, shared_browser() as browser:
            form = {"url": "/", "secrets": {"Password": "over-the-hill"}}
            web = {"start_urls": [url.replace("127.0.0.1", "0.0.0.0") + "/"], "login": {"form": form}}
            config = load_config(None, ["tasks.suite=web", f"rollout.web={json.dumps(web)}"]).rollout.web
            await fill_form(browser, config.login.form, config)

    with pytest.raises(SiteError, match="still asks for a password afterwards; its cookies are Secure, which browsers"):
        run(work())


def test_a_log_in_in_a_frame_is_filled_in_there():
    with pytest.raises(SiteError, match="left neither a cookie nor anything"):
        fill("<iframe src=/frame></iframe>", {"secrets": {"Password": "over-the-hill"}, "submit": "Login"})


def test_starter_instructions_name_pages_that_one_can_tell_apart():
    def seen(number, link):
        return DiscoveredPage(f"http://a.example/{number}", f"t{number}", "", link, "", ())

    found = starter_instructions([seen(0, ""), seen(1, ""), seen(2, "›"), seen(3, "\uf040 About")])
    assert [starter.entry["instruction"] for starter in found] == ['Go to the page "About".']
    told = replace(seen(1, "Advanced search"), heading="Advanced Search")
    assert [starter.entry["id"] for starter in starter_instructions([seen(0, ""), told])] == ["go-1"], "it names itself"
    (alone,) = starter_instructions([seen(0, "")])
    assert alone.entry["checks"] == [{"answer": "t0"}]


def test_the_worked_example_of_the_guide_is_a_config_and_an_instruction(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "over-the-hill")
    example = (ROOT / "docs" / "own_site.md").read_text(encoding="utf-8").partition("## Worked example: a log-in")[2]
    web, entry = (example.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("yaml", "json"))
    files = "    start_urls: [http://127.0.0.1:5000/]\n    train_files: [one.jsonl]\n"
    (tmp_path / "site.yaml").write_text(f"tasks: {{suite: web}}\nrollout:\n  web:\n{files}{web}")
    (tmp_path / "one.jsonl").write_text(" ".join(entry.split("\n")) + "\n")
    config = load_config("site.yaml")
    (task,) = seed_tasks(config)
    assert task.extra["checks"][0]["equals"] == 1
    assert (config.rollout.web.read_only, config.rollout.web.reset.command[0]) == (False, "sqlite3")
