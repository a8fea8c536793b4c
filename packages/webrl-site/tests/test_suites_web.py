"""One's own site as a suite: instructions, log-in, reset, checks, and what is refused, on a real Flask application."""

import asyncio
import contextlib
import json
import re
import runpy
import sqlite3
import sys

import pytest
from browsers import run, shared_browser
from rollouts_builders import Scripted, answers, at, bid_of, serve
from web_builders import ROOT, TOKEN, play, web_env, web_rollout

from webrl.config.redaction import redact
from webrl.errors import BrowserError, DataError, UsageError
from webrl.preflight import check_inputs, check_tasks
from webrl.rollouts.collect import collect
from webrl.rollouts.interface import Score
from webrl.rollouts.suite import find_suite, open_sites, seed_tasks
from webrl.types import Task
from webrl_site.hooks import run_command, take_turn
from webrl_site.locks import SiteBusy
from webrl_site.login import Logins, login_path
from webrl_site.sites import SiteError
from webrl_site.starter import Visitor
from webrl_site.tasks import read_instructions

DONE = "send_msg_to_user('done')"


@pytest.fixture
def site(notes):
    notes.asked.clear()
    notes.broken.clear()
    notes.basic = None
    notes.refill()
    return notes


@pytest.fixture
def fresh(site):
    """The same, with nobody logged in."""
    for path in site.folder.glob("state/*"):
        path.unlink()
    return site


def some(cases, quick=2):
    """The first few cases, and the others where time is no matter."""
    return [*cases[:quick], *(pytest.param(*case, marks=pytest.mark.slow) for case in cases[quick:])]


def task(config, name="look", url=None, checks=(), instruction="look around"):
    return Task(
        task_id=f"web.notes.{name}",
        site="web.notes",
        instruction=f"{instruction} {name}",
        start_url=url or config.rollout.web.start_urls[0],
        extra={"checks": list(checks)} if checks else {},
    )


UNPROVEN = {"login.proof_url": "null"}
"""For episodes whose log-in is not the point: opening the proof's page takes a second each time."""


def end(site, checks, *actions, config=None, url="/notes/1"):
    """Log in, play, score; gives the score and the last step's result."""
    config = config or site.config(**UNPROVEN)

    async def work():
        async with web_env(config.rollout) as env:
            seen = await env.reset(task(config, url=site.url + url, checks=checks))
            result = None
            for action in actions:
                filled = re.sub(r"\{(\w+):([^}]*)\}", lambda m, text=seen.text: bid_of(text, m[1], m[2]), action)
                result = await env.step(filled.replace("{url}", site.url))
                seen = result.observation
            return await env.finish(), result

    return run(work())


def lines(tmp_path, *entries, name="i.jsonl"):
    path = tmp_path / name
    path.write_text("".join(e if isinstance(e, str) else json.dumps(e) + "\n" for e in entries))
    return path


def test_instructions_are_read_from_jsonl_json_and_text(tmp_path):
    one = {"id": "a", "instruction": " Do it. ", "start": "/x", "checks": [{"text": "ok", "at": "/y"}]}
    (found,) = read_instructions(lines(tmp_path, one))
    assert (found.id, found.instruction, found.start) == ("a", "Do it.", "/x")
    assert found.checks[0].to_json() == {"text": "ok", "at": "/y"}
    whole = tmp_path / "i.json"
    whole.write_text(json.dumps([{"instruction": "Do it."}]))
    assert [i.id for i in read_instructions(whole)] == ["i-1"]
    text = lines(tmp_path, "\ufeff# all of them\n\nDo\u2028it\x0cnow.\r\n  Do that.\n", name="plain.txt")
    found = [(i.id, i.instruction) for i in read_instructions(text)]
    assert found == [("plain-3", "Do\u2028it\x0cnow."), ("plain-4", "Do that.")]


def test_tasks_keep_to_the_site_and_its_database(site, tmp_path):
    path = lines(tmp_path, {"instruction": "x", "start": "http://other.example/"})
    with pytest.raises(DataError, match=r"i\.jsonl:1.*other\.example.*outside"):
        seed_tasks(site.config(train_files=f"[{path}]"))
    assert seed_tasks(site.config("rollout.allowed_hosts=[other.example]", train_files=f"[{path}]"))
    path = lines(tmp_path, {"instruction": "x", "checks": [{"sql": "SELECT 1"}]})
    with pytest.raises(DataError, match=r"i\.jsonl:1.*rollout\.web\.database"):
        seed_tasks(site.bare(train_files=f"[{path}]"))


def test_held_out_instructions_are_the_evaluation_s_and_no_others(site):
    config = site.config("tasks.num_eval_tasks=3")
    assert len(seed_tasks(config)) == 15
    assert len(find_suite("web").eval_tasks(config)) == 3
    held = find_suite("web").heldout_tasks(config)
    assert {t.split for t in held} == {"eval"}
    assert not {t.task_id for t in seed_tasks(config)} & {t.task_id for t in held}


def test_a_generated_task_has_none_of_its_parent_s_checks():
    assert find_suite("web").without_reference({"checks": [1], "allowed_hosts": ["a"]}) == {"allowed_hosts": ["a"]}


def test_a_missing_instruction_file_is_refused_before_anything_starts(site):
    for check in (check_inputs, check_tasks):  # the second is what `--dry-run` looks at
        with pytest.raises(DataError, match=r"nowhere\.jsonl"):
            check(site.config(train_files="[nowhere.jsonl]"), ["filter-tasks"])


KINDS = [
        ({"url": r"/notes/1$"}, (), ("goto('{url}/about')",)),
        ({"text": "Two litres, whole."}, (), ("goto('{url}/about')",)),
        ({"text": "Reopen", "absent": True}, (), ("goto('{url}/notes/4')",)),
        ({"text": "Buy milk", "at": "/"}, (), ("click('{button:Delete}')",)),
        ({"answer": r"two\b"}, ("send_msg_to_user('Two of them')",), ("send_msg_to_user('twofold')",)),
        ({"answer": "."}, ("send_msg_to_user('x')",), ("noop(1)",)),
        ({"javascript": "document.links.length", "equals": 5}, (), ("goto('{url}/')",)),
        ({"javascript": "fetch('/api/notes').then(r => r.json()).then(d => d.notes[0].done)"},
         ("click('{button:Mark as done}')",), ()),
        ({"javascript": "document.querySelector('form').action.length"}, (), ("goto('{url}/about')",)),
        ({"http": "/notes/1"}, (), ("click('{button:Delete}')",)),
        ({"http": "/api/notes", "path": "$.notes[0].done", "equals": 1}, ("click('{button:Mark as done}')",), ()),
        ({"http": "/api/notes", "path": "$.notes[?@.tag=='people'].title", "equals": ["Call Ann"]}, (), None),
        ({"http": "/api/notes", "path": "$.notes[?@.id==1]"}, (), ("click('{button:Delete}')",)),
        ({"sql": "SELECT done FROM notes WHERE id = 1", "equals": 1}, ("click('{button:Mark as done}')",), ()),
        ({"sql": "SELECT count(*) FROM notes WHERE id = 1", "equals": 0}, ("click('{button:Delete}')",), ()),
]  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize(("check", "holds", "fails"), some(KINDS))
def test_each_kind_of_check_tells_done_from_not_done(site, check, holds, fails):
    config = site.config("rollout.web.forbidden_urls=[]", **UNPROVEN)
    for actions, reward in ((holds, 1.0), (fails, 0.0)):
        if actions is None:
            continue
        site.refill()
        score, _ = end(site, [check], *actions, config=config)
        assert score.reward == reward, (actions, score)
        assert bool(score.note) == (reward == 0.0)


@pytest.mark.browser
def test_a_check_that_cannot_be_made_gives_no_reward_unless_another_one_fails_for_sure(site):
    unsure = [{"http": "/broken", "path": "$.a"}, {"sql": "SELECT nothing FROM nowhere"}]
    unsure.append({"text": "x", "at": "/broken"})
    site.broken["/broken"] = 503
    for check in unsure:
        score, _ = end(site, [check])
        assert score.reward is None
        assert json.dumps(check) in score.note
    assert end(site, [unsure[0], {"url": "/elsewhere$"}])[0].reward == 0.0
    for status in (403, 429):
        site.broken["/broken"] = status
        assert end(site, [{"text": "x", "at": "/broken", "absent": True}])[0].reward is None
    site.broken["/broken"] = 429
    assert end(site, [{"http": "/broken"}])[0].reward is None
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    hasty = site.config(check_timeout_s=0.3, **UNPROVEN)
    assert end(site, [{"sql": slow}], config=hasty)[0].reward is None
    assert "outside the site's hosts" in end(site, [{"http": "http://127.0.0.1:9/"}])[0].note
    assert "no result in 0.3 s" in end(site, [{"javascript": "new Promise(() => {})"}], config=hasty)[0].note
    score, _ = end(site, [{"sql": "DELETE FROM notes RETURNING 1"}])
    assert score.reward is None
    assert "readonly" in score.note or "read-only" in score.note


@pytest.mark.browser
def test_a_check_looks_where_agents_must_not_and_follows_redirects_within_the_site_but_not_without_end(site):
    config = site.config("rollout.web.forbidden_urls=[/api/]", read_only=True, **UNPROVEN)
    score, _ = end(site, [{"http": "/moved", "path": "$.notes[0].id"}], config=config)
    assert score.reward == 1.0, score.note
    score, _ = end(site, [{"http": "/moved"}])  # it could as well be the log-in page
    assert (score.reward, "leads to" in score.note) == (0.0, True)
    for check in ({"http": "/round"}, {"http": "/round", "path": "$.a"}):
        site.asked.clear()
        score, _ = end(site, [check])
        assert score.reward is None, score
        assert f"it leads to {site.url}/round after more than 20 redirects" in score.note
        assert site.asked.count("GET /round") == 21


def test_each_user_and_each_site_has_a_log_in_of_its_own(fresh):
    ann, bob = fresh.config(), fresh.config("rollout.web.login.form.fields={User: bob}")
    elsewhere = fresh.config("rollout.web.start_urls=[http://localhost:1/]")
    assert len({login_path(c.rollout.web) for c in (ann, bob, elsewhere)}) == 3
    assert login_path(ann.rollout.web) == login_path(fresh.config().rollout.web)


@pytest.mark.quick
@pytest.mark.browser
def test_an_episode_s_log_in_reset_reward_and_limits_go_through_the_worker_processes(fresh, tmp_path):
    config = fresh.config()
    tasks = [*seed_tasks(config), *find_suite("web").eval_tasks(config)]
    tasks = {t.task_id.rpartition(".")[2]: t for t in tasks}
    policies = {
        "open-1": Scripted("click('{link:Buy milk}')", DONE),
        "open-2": Scripted(DONE),
        "done-1": Scripted("click('{button:Mark as done}')", DONE),
        "go-tags": Scripted("click('{link:Log out}')", "click('{link:Tags}')", DONE),
    }
    with sqlite3.connect(fresh.database) as database:
        database.execute("DELETE FROM notes WHERE id = 1")
    database.close()
    played = asyncio.run(play(config, policies, [tasks[name] for name in policies], tmp_path / "t.jsonl"))
    assert {name: t.env_reward for name, t in played.items()} == {"open-1": 1, "open-2": 0, "done-1": 1, "go-tags": 1}
    assert "/notes/2$" in played["open-2"].env_error
    first = played["go-tags"].steps[0]
    assert (first.blocked, first.error) == (1, "Blocked: addresses with '/logout' are not to be opened here.")
    assert "GET /logout" not in fresh.asked
    assert fresh.asked.count("POST /reset") == 1
    assert fresh.asked.count("POST /login") == 1
    assert login_path(config.rollout.web).stat().st_mode & 0o077 == 0


@pytest.mark.browser
@pytest.mark.parametrize(
    ("web", "words"),
    some([
        ({"login.form.secrets": "{Password: wrong-pass}"}, "still asks for a password"),
        ({"login.form.fields": "{Username: ann}"}, "no field 'Username'; the page has: 'User', 'Password'"),
        ({"login.form.fields": "{Password: wrong-pass}", "login.form.secrets": "{}"}, "is a password: move it"),
        ({"login.form.url": "/nowhere"}, "answers 404"),
        ({"login.proof_url": "/nowhere"}, "/nowhere does not show it"),
        ({"login.form": "null", "login.command": "['false']"}, "ended with 1"),
        ({"login.form": "null", "login.command": "[no-such-program]"}, "does not start"),
    ]),
)  # fmt: skip
def test_a_log_in_that_fails_says_why_and_not_the_password(fresh, web, words):
    overrides = {"login.form.secrets": None} if "login.form" in web else {}
    config = fresh.config(**overrides, **web)

    async def work():
        async with shared_browser() as browser:
            await Logins(config.rollout.web).state(browser)

    with pytest.raises(SiteError) as error:
        run(work())
    assert words in str(error.value)
    assert "wrong-pass" not in redact(str(error.value))


@pytest.mark.browser
def test_a_site_may_tie_its_session_to_the_browser_that_logged_in(fresh):
    fresh.asked_by.clear()
    config = fresh.config(**{"login.proof_url": "/new"})
    assert end(fresh, [{"http": "/notes/1"}, {"at": "/tags", "text": "home"}], DONE, config=config)[0].reward == 1
    assert len(fresh.asked_by) == 1, fresh.asked_by


@pytest.mark.browser
def test_http_s_own_log_in_goes_with_the_form_the_pages_and_the_checks(fresh):
    fresh.basic = ("guest", "let-me-in")
    settings = {"login.basic": "{user: guest, password: let-me-in}"}
    checks = [
        {"text": "Buy milk"},
        {"at": "/tags", "text": "home"},
        {"http": "/api/notes", "path": "$.notes[?@.tag=='people'].title", "equals": ["Call Ann"]},
    ]
    score, _ = end(fresh, checks, DONE, config=fresh.config(**settings))
    assert score.note == ""
    assert score.reward == 1
    with pytest.raises(SiteError, match="answers 401"):  # at the form's page
        end(fresh, [], config=fresh.config(**{"login.basic": "{user: guest, password: wrong-one}"}))
    with pytest.raises(SiteError, match=r"answers 401; if the server itself asks .* rollout\.web\.login\.basic"):
        end(fresh, [], config=fresh.bare())


@pytest.mark.browser
def test_a_password_that_is_not_exported_is_one_clear_error_where_workers_are_handed_it(site, tmp_path, monkeypatch):
    monkeypatch.delenv("STAGING", raising=False)
    config = site.bare(**{"login.basic": "{user: guest, password: '${STAGING}'}"})
    with pytest.raises(UsageError, match="the environment variable 'STAGING' is not set"):
        run(play(config, {"look": Scripted(DONE)}, [task(config)], tmp_path / "t.jsonl"))


def test_http_s_own_password_goes_to_the_first_start_page_s_origin_alone_and_is_shown_nowhere(site):
    basic = {"login.basic": "{user: guest, password: let-me-in}"}
    web = site.bare(**basic).rollout.web
    assert web.http_credentials["http_credentials"]["origin"] == site.url
    assert "let-me-in" not in redact(f"let-me-in {web!r}")
    assert site.bare().rollout.web.http_credentials == {}
    for start in ("HTTP://Example.org:80/x", "http://example.org/y"):  # one origin, as Playwright compares them
        assert site.bare(start_urls=f"['{start}']", **basic).rollout.web.origin == "http://example.org"


@pytest.mark.browser
def test_a_storage_state_comes_from_a_file_or_a_command_and_is_refused_where_it_is_none(fresh, tmp_path):
    good = {"cookies": [{"name": "a", "value": "secret-4711", "domain": "127.0.0.1", "path": "/"}], "origins": []}
    path = tmp_path / "state.json"
    path.write_text(json.dumps(good))
    command = json.dumps([sys.executable, "-c", f"print(open({str(path)!r}).read())"])

    def read(**login):
        settings = {f"login.{key}": value for key, value in login.items()}

        async def work():
            async with shared_browser() as browser:
                return await Logins(fresh.bare(**settings).rollout.web).state(browser)

        return run(work())

    assert read(state_file=path) == read(command=command) == good
    with pytest.raises(SiteError, match=r"state\.json: the log-in has expired"):
        read(state_file=path, proof_url="/about")
    for text in ("secret-4711", "[]", '{"cookies": ["secret-4711"]}', '{"cookies": 3}'):
        path.write_text(text)
        with pytest.raises(DataError) as error:
            read(state_file=path)
        assert str(path) in str(error.value)
        assert "secret-4711" not in str(error.value)


def test_commands_end_with_their_deadline_say_their_last_words_and_may_leave_the_site_running():
    assert asyncio.run(run_command(["sh", "-c", "sleep 2 & echo up"], 10, "reset")) == "up\n"
    with pytest.raises(SiteError, match=r"took more than 0\.2 s"):
        run(run_command(["sleep", "60"], 0.2, "it"))
    with pytest.raises(SiteError, match=r"ended with 3: no database"):
        run(run_command(["sh", "-c", "echo no database >&2; exit 3"], 20, "it"))


def test_a_reset_that_fails_ends_the_stage_with_the_site_s_words(site):
    config = site.config(**{"reset.headers": "{X-Reset-Token: not-the-token}"})

    async def work():
        async with open_sites(config, [task(config)]):
            pass

    with pytest.raises(SiteError, match=r"/reset answers 404") as error:
        run(work())
    assert "not-the-token" not in str(error.value)


def test_two_runs_do_not_share_a_site_that_they_may_change(site):
    config, reading = site.bare(), site.bare(read_only=True)

    async def work(other):
        async with open_sites(config, [task(config)]), open_sites(other, [task(other)]):
            pass

    run(work(reading))
    with pytest.raises(SiteBusy, match="in use by run 'run'"):
        run(work(config))


@pytest.mark.browser
@pytest.mark.parametrize("status", [404, pytest.param(500, marks=pytest.mark.slow)])
def test_a_start_page_that_answers_an_error_is_no_page_to_play_on(site, status):
    site.broken["/notes/1"] = status
    with pytest.raises(BrowserError, match=f"/notes/1 .* answers {status}"):
        end(site, [])


def test_actions_take_turns_over_all_processes(site):
    """The second turn is a tenth of a second after the first, whoever takes it."""
    config = site.bare(max_actions_per_s=10).rollout.web
    turns = site.folder / "state" / "notes.turn"

    async def work():
        found = []
        for _ in range(3):
            await take_turn(config)
            found.append(float(turns.read_text()))
        return found

    first, second, third = run(work())
    assert second - first >= 0.0999
    assert third - second >= 0.0999
    turns.write_text("torn")
    run(take_turn(config))
    turns.write_text("1e12")  # of a clock that was set back since
    run(take_turn(config))


@pytest.mark.browser
def test_forbidden_actions_are_refused_by_name(site):
    config = site.config(forbidden_actions="[goto]", **UNPROVEN)
    _, result = end(site, [], "goto('{url}/about')", config=config)
    assert result.error == "Blocked: goto is not allowed on this site."
    assert result.observation.url.endswith("/notes/1")


def test_secrets_do_not_reach_the_saved_config(site):
    config = site.config(**{"login.form.secrets": "{Password: pw-in-clear}"})
    saved = config.model_dump_json()
    assert json.loads(saved)["rollout"]["web"]["database"] == f"sqlite:///{site.database}"
    assert "pw-in-clear" not in saved
    assert TOKEN not in saved


@pytest.mark.browser
def test_a_stage_ends_at_once_where_the_log_in_fails(fresh, tmp_path):
    config = fresh.config(**{"login.form.secrets": "{Password: wrong-pass}"})
    with pytest.raises(SiteError, match="still asks for a password"):
        asyncio.run(play(config, {"look": Scripted(DONE)}, [task(config)], tmp_path / "t.jsonl"))
    assert not (tmp_path / "t.jsonl").exists()
    assert fresh.asked.count("POST /login") == 1


@pytest.mark.browser
@pytest.mark.slow
def test_a_script_solves_every_instruction_of_the_example_and_doing_nothing_solves_none(site, tmp_path):
    script = runpy.run_path(str(ROOT / "examples" / "notes_app" / "demonstrate.py"))["Script"]
    config = site.config()
    tasks = [*seed_tasks(config), *find_suite("web").heldout_tasks(config)]
    assert len(tasks) >= 20

    async def rewards(policy, out):
        played = []
        async with open_sites(config, tasks):
            await collect(tasks, config, policy, out, phase=0, prefix="d", on_episode=played.append)
        return {t.task.task_id: t.env_reward for t in played}

    idle = asyncio.run(rewards(Visitor(), tmp_path / "idle.jsonl"))
    assert idle == dict.fromkeys(idle, 0.0)
    assert asyncio.run(rewards(script(), tmp_path / "solved.jsonl")) == dict.fromkeys(idle, 1.0)


def score_at_once(pages, checks):
    """The score of an episode that ends on its first page."""

    async def play():
        async with serve(pages) as url, web_env(web_rollout(url + "/")) as env:
            await env.reset(at(url + "/", extra={"checks": checks}))
            return await env.finish()

    return run(play())


@pytest.mark.parametrize(("dialogs", "title"), [("accept", "true,Ann"), ("dismiss", "false,null")])
def test_dialog_boxes_are_answered_as_the_config_says(dialogs, title):
    page = (
        "<title>t</title><button onclick=\"document.title=confirm('Delete?')+','+prompt('Name?','Ann')\">ask</button>"
    )

    async def play():
        async with serve({"/": page}) as url, web_env(web_rollout(url + "/", f"rollout.web.dialogs={dialogs}")) as env:
            text = (await env.reset(at(url + "/"))).text
            return await env.step(f"click('{bid_of(text, 'button', 'ask')}')")

    asked = run(play())
    assert f"RootWebArea '{title}'" in asked.observation.text
    answers = ["OK", "OK with 'Ann'"] if dialogs == "accept" else ["Cancel", "Cancel"]
    told = [f"confirm box 'Delete?', answered {answers[0]}", f"prompt box 'Name?', answered {answers[1]}"]
    assert asked.observation.text.splitlines()[:2] == told
    assert asked.error == ""


def test_a_start_page_that_leads_to_a_host_that_is_not_allowed_says_which():
    away = answers("", "302 Found", headers="Location: http://localhost:9999/home\r\n")
    with pytest.raises(SiteError, match=r"leads to http://localhost:9999/home\. Blocked: localhost .*allowed_hosts"):
        score_at_once({"/": away}, [])


def test_a_text_in_a_shadow_root_is_shown_by_the_page():
    page = """<title>t</title><p>plain</p><x-a></x-a><x-a hidden>slotted</x-a><script>
    customElements.define('x-a', class extends HTMLElement {
      connectedCallback() {
        const root = this.attachShadow({ mode: 'open' });
        root.innerHTML = '<style>p { color: red }</style><p>inner words</p><slot></slot><p hidden>unseen</p>';
        if (this.hidden) root.innerHTML = '<p>nor this</p>';
      }
    });</script>"""
    wanted = [{"text": "plain"}, {"text": "inner words"}]
    wanted += [{"text": words, "absent": True} for words in ("unseen", "nor this", "color")]
    assert score_at_once({"/": page}, wanted) == Score(1.0)


def test_a_page_that_replaces_what_its_text_is_read_with_decides_no_check():
    lying = """<title>t</title><p>plain</p><iframe src=/in></iframe><script>
    for (const name of ['innerText', 'textContent']) {
      Object.defineProperty(HTMLElement.prototype, name, { get: () => 'forged' });
    }
    for (const name of ['querySelectorAll', 'checkVisibility']) {
      Element.prototype[name] = Document.prototype[name] = () => { throw Error('replaced'); };
    }
    window.String = window.Array = window.eval = () => 'forged';</script>"""
    wanted = [{"text": "plain"}, {"text": "inner words"}, {"text": "forged", "absent": True}]
    assert score_at_once({"/": lying, "/in": "<p>inner words</p>"}, wanted) == Score(1.0)


def test_a_page_whose_program_runs_in_a_worker_is_waited_for():
    page = """<title>t</title><main></main><button onclick="worker.postMessage('more')">More</button><script>
    document.querySelector('button').hidden = true;
    const source = `setTimeout(() => postMessage('first'), 900); onmessage = () => {
      const end = Date.now() + 200;
      while (Date.now() < end);
      postMessage('second');
    }`;
    const worker = new Worker(URL.createObjectURL(new Blob([source])));
    const silent = new Worker(URL.createObjectURL(new Blob([''])));
    worker.onmessage = ({ data }) => {
      document.querySelector('main').textContent += data;
      document.querySelector('button').hidden = false;
      silent.postMessage('nobody answers');
    };</script>"""

    async def play():
        async with serve({"/": page}) as url, web_env(web_rollout(url + "/")) as env:
            first = (await env.reset(at(url + "/"))).text
            more = await env.step(f"click('{bid_of(first, 'button', 'More')}')")
            return first, more.observation.text

    first, second = run(play())
    assert "StaticText 'first'" in first
    assert "StaticText 'firstsecond'" in second


@pytest.mark.parametrize("settings", [(), ("rollout.web.read_only=true",)])
def test_a_site_that_dies_within_an_episode_leaves_it_without_a_reward(settings):
    page = "<title>t</title><a href=/next>next</a>"

    async def play(dies, address="/next"):
        async with contextlib.AsyncExitStack() as served:
            url = await served.enter_async_context(serve({"/": page, "/next": page}))
            async with web_env(web_rollout(url + "/", *settings)) as env:
                await env.reset(at(url + "/", extra={"checks": [{"text": "saved"}]}))
                if dies:
                    await served.aclose()
                step = await env.step(f"goto('{url if dies else ''}{address}')")
                return step, await env.finish()

    _, score = run(play(dies=True))
    assert score.reward is None
    assert "does not answer" in score.note
    step, score = run(play(dies=False, address="http://localhost:9/"))
    assert step.error, "what the agent has led to is its own"
    assert score.reward == 0.0
