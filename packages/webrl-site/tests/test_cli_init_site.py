"""`webrl init-site`, instructions from none, and the tutorial, on the notes application."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from browsers import run, shared_browser
from curriculum_builders import ChatServer
from rollouts_builders import serve
from web_builders import PASSWORD, ROOT

from webrl.cli import main
from webrl.config import load_config
from webrl.phase import run_stage
from webrl.preflight import check_inputs, check_settings
from webrl.rollouts.suite import find_suite, suite_of
from webrl.runs.store import read_json, read_records
from webrl.tasks.generate import exploration_requests
from webrl.types import Label, Status, Task, Trajectory
from webrl_site.explore import DiscoveredPage, Exploration, Form, explore
from webrl_site.login import Logins
from webrl_site.starter import start_config, starter_instructions, try_site, write_starter
from webrl_site.tasks import read_instructions


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Configs that `init-site` writes keep log-ins and the turn-taking of their limit below the working folder."""
    monkeypatch.chdir(tmp_path)


def storage_state(notes, path):
    async def work():
        async with shared_browser() as browser:
            return await Logins(notes.config().rollout.web).state(browser)

    path.write_text(json.dumps(run(work())))
    return path


@pytest.mark.browser
@pytest.mark.usefixtures("elsewhere")
def test_init_site_writes_a_config_that_runs_and_has_only_read(notes, tmp_path, webrl):
    state = storage_state(notes, tmp_path / "state.json")
    notes.asked.clear()
    out = tmp_path / "mine" / "notes.yaml"
    printed = webrl(0, "init-site", f"{notes.url}/", "--out", out, "--login-state", state, "--pages", "5").out
    assert "reward 0, as it should" in printed
    assert re.search(r"the agent sees \d+ characters, 1\d elements", printed)
    assert {line.split()[0] for line in notes.asked} == {"GET"}
    assert "GET /logout" not in notes.asked
    config = load_config(out)
    assert (config.name, config.rollout.web.name) == ("notes", "notes")
    check_settings(config, str(out))
    check_inputs(config, ["filter-tasks"])
    train, heldout = (read_instructions(tmp_path / "mine" / f"notes_{part}.jsonl") for part in ("train", "heldout"))
    asked = {entry.instruction: entry.checks for entry in [*train, *heldout]}
    assert asked['Go to the page "Tags".'][0].url == "^" + notes.url.replace(".", "\\.") + "/tags$"
    assert heldout
    assert "Mark as done" not in out.read_text()
    assert f'"{notes.url}/new"' in out.read_text()


@pytest.mark.browser
@pytest.mark.usefixtures("elsewhere")
def test_init_site_of_a_site_behind_http_s_own_log_in(notes, tmp_path, webrl, monkeypatch):
    monkeypatch.setattr(notes, "basic", ("guest", "let-me-in"))
    out, command = (
        tmp_path / "staged.yaml",
        ["init-site", f"{notes.url}/login", "--pages", "2", "--basic-user", "guest"],
    )
    monkeypatch.delenv("BASIC_PASSWORD", raising=False)
    assert "answers 401; if the server itself asks" in webrl(1, *command[:4], "--out", out).err
    assert "the environment variable 'BASIC_PASSWORD' is not set" in webrl(2, *command, "--out", out).err
    monkeypatch.setenv("BASIC_PASSWORD", "let-me-in")
    monkeypatch.setenv("PASSWORD", PASSWORD)
    said = webrl(0, *command, "--user", "ann", "--out", out)
    assert "the agent sees" in said.out
    assert "let-me-in" not in said.out + said.err + out.read_text()
    login = load_config(out).rollout.web.login
    assert (login.basic.user, login.form.fields) == ("guest", {"User": "ann"})


@pytest.mark.browser
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/", "127.0.0.1:9"),
        pytest.param("http://no-such-host.invalid/", "no-such-host.invalid", marks=pytest.mark.slow),
        pytest.param("{url}/nowhere", "answers 404", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_a_start_page_that_does_not_open_is_one_clear_error_and_nothing_is_written(notes, tmp_path, webrl, url, words):
    error = webrl(1, "init-site", url.format(url=notes.url), "--out", tmp_path / "new.yaml").err.strip()
    assert error.startswith("webrl: ")
    assert words in error
    assert "\n" not in error, error
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("new WebSocket('/live?token=1')", "pages asked for ws://{address}/live, which read_only does not allow"),
        (
            "fetch('/graphql', { method: 'POST' }).catch(() => {})",
            "requests of pages were refused: this site may only be read, and this would send a POST request",
        ),
    ],
)
def test_what_read_only_refuses_and_a_page_with_nothing_to_act_on_are_told(tmp_path, capsys, script, words):
    async def look():
        async with serve({"/": f"<title>t</title><canvas></canvas><script>{script}</script>"}) as url:
            assert await asyncio.to_thread(main, ["init-site", f"{url}/"]) == 0
            return url

    _, _, address = asyncio.run(look()).partition("//")
    printed = capsys.readouterr().out
    out = f"{address.replace('.', '-').replace(':', '-')}.yaml"  # another port is another site
    assert words.format(address=address) in printed
    assert "give --writes; agents may then change the site" in printed
    assert "nothing that it can act on" in printed
    assert "no other page was opened" in printed
    assert (tmp_path / out).is_file()


@pytest.mark.browser
def test_every_instruction_whose_checks_hold_already_where_it_starts_is_named(tmp_path):
    checks = [("/", "first"), ("/", "later"), ("/b", "second"), ("/b", "never"), ("/", "first")]
    lines = (
        {"id": f"{number}", "instruction": "Do it.", "start": start, "checks": [{"text": text}]}
        for number, (start, text) in enumerate(checks)
    )
    train, heldout = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"
    *first, last = map(json.dumps, lines)
    train.write_text("\n".join(first))
    heldout.write_text(last)

    async def tried():
        async with serve({"/": "<p>the first", "/b": "<p>the second"}) as url, shared_browser() as browser:
            files = [f"rollout.web.train_files=[{train}]", f"rollout.web.heldout_files=[{heldout}]"]
            site = ["tasks.suite=web", "rollout.web.name=s", f"rollout.web.start_urls=[{url}/]"]
            return await try_site(browser, load_config(None, [*site, *files]))

    _, held = run(tried())
    assert sorted(held) == ["web.s.0", "web.s.2", "web.s.4"]


def test_what_pages_say_of_themselves_does_not_become_yaml(tmp_path):
    """Titles, link texts and field names are a stranger's."""
    evil = 'x"\n  injected: [1]\u2028}{ #\x85y'
    other = DiscoveredPage("http://a.example/b", evil, evil, "b\n# c", evil, ())
    out = tmp_path / "a.yaml"
    form = Form("http://a.example/\n", (evil, "p" + evil), "p" + evil, evil)
    page = DiscoveredPage("http://a.example/", evil, evil, "", evil, (form,))
    third = DiscoveredPage("http://a.example/c", evil, evil, "c", evil, ())
    found = Exploration((page, other, third), (), (f"http://a.example/delete/{evil}",))
    entries = [starter.entry for starter in starter_instructions(found.pages)]
    _, train, heldout = write_starter(out, found, start_config(page.url, "a", 3, {}).rollout.web, {}, entries)
    web = load_config(out).rollout.web
    assert web.start_urls == ("http://a.example/",)
    assert not web.login.is_set
    assert [len(read_instructions(path)) for path in (train, heldout)] == [3, 1]


@pytest.mark.browser
@pytest.mark.slow
def test_a_look_around_sees_few_pages_of_one_form_and_leaves_log_outs_alone(notes):
    config = notes.config("rollout.web.forbidden_urls=[]")

    async def look():
        async with shared_browser() as browser:
            return await explore(browser, config.rollout, 20)

    found = run(look())
    paths = [page.url.removeprefix(notes.url) for page in found.pages]
    assert paths[0] == "/"
    assert {"/new", "/tags", "/about"} <= set(paths)
    assert len([path for path in paths if path.startswith("/notes/")]) == 2
    assert any(line.startswith(f"{notes.url}/logout: looks as if") for line in found.skipped)
    (form,) = next(page for page in found.pages if page.url.endswith("/new")).forms
    assert (form.fields, form.submit) == (("Title", "Text", "Tag"), "Save")


def writer(question, number):
    """An instruction for the page that is shown; every one is feasible."""
    if question.endswith("Feasible (YES or NO):"):
        return "YES"
    link = re.findall(r"link '([^']+)'", question)[number % 3]
    return f"Open {link} and read entry {number} aloud."


@pytest.mark.browser
@pytest.mark.slow
def test_the_first_phase_has_instructions_that_the_generator_proposes_for_pages_of_the_site(notes):
    async def work():
        server = ChatServer(writer)
        async with server.running():
            config = notes.config(
                "generate.engine.kind=openai", f"generate.engine.urls=[{server.url}]",
                "generate.engine.model_name=writer", "tasks.num_seed_tasks=6", "name=proposed",
                train_files="[]", explore_pages=3,
            )  # fmt: skip
            counts = [await asyncio.to_thread(run_stage, config, stage) for stage in ("gen-tasks", "filter-tasks")]
            return counts, config.run_dir / "phase_00"

    (generated, filtered), folder = asyncio.run(work())
    assert (generated["num_generated"], generated["num_explored"]) == (6, 3)
    assert filtered["num_kept"] + sum(filtered["dropped"].values()) == 6
    assert "no critic" in filtered["notes"]["critic"]
    tasks = list(read_records(folder / "tasks.jsonl", Task))
    assert len(tasks) == filtered["num_kept"] > 1
    assert {task.lineage.strategy for task in tasks} == {"exploration"}
    assert all(task.start_url.startswith(notes.url) and suite_of(task).needs_judge(task) for task in tasks)
    assert all("RootWebArea" in line for line in (folder / "pages.jsonl").read_text().splitlines())


def test_proposals_are_shared_among_pages_and_asked_for_several_at_once(notes):
    config = notes.config("tasks.num_seed_tasks=9", "generate.tasks_per_prompt=3")
    seen = [(Task(task_id=f"web.notes.{n}", site="web.notes", start_url=f"{notes.url}/{n}"), "page") for n in range(2)]
    assert [request.num_tasks for request in exploration_requests(config, seen)] == [3, 2, 3, 1]


def test_an_evaluation_says_whose_verdicts_it_counts(notes):
    config = notes.config()
    suite = find_suite("web")
    checked = suite.eval_tasks(config)[:3]
    free = Task(task_id="web.notes.free", site="web.notes", instruction="x", start_url=notes.url, split="eval")

    def episode(task, reward, status=Status.AGENT_DONE):
        return Trajectory(f"e-{task.task_id}", task, "x", 0, (), "", status, env_reward=reward)

    judged = {f"e-{free.task_id}": Label(f"e-{free.task_id}", 0.9, 1)}
    mixed = [episode(checked[0], 1.0), episode(checked[1], None), episode(checked[2], None, Status.ENV_ERROR)]
    summary = suite.summarize(config, [*mixed, episode(free, None)], notes.folder, judged)
    assert (summary["successes"], summary["episodes"], summary["errors"]) == (1, 2, 1)
    assert summary["web"]["by"] == "checks"
    assert summary["web"]["undecided"] == 1
    assert (summary["web"]["judge"]["successes"], summary["web"]["judge"]["episodes"]) == (1, 1)
    alone = suite.summarize(config, [episode(free, None)], notes.folder, judged)
    assert (alone["successes"], alone["web"]["by"]) == (1, "judge")
    nobody = suite.summarize(config, [episode(free, None)], notes.folder, {})
    assert (nobody["episodes"], nobody["web"]["undecided"]) == (0, 1)


@pytest.mark.browser
@pytest.mark.slow
def test_the_tutorial_goes_from_nothing_to_a_first_phase(tmp_path):
    """The commands of docs/own_site.md, on another port and with fewer episodes."""
    text = (ROOT / "docs" / "own_site.md").read_text(encoding="utf-8")
    block = text.partition("```bash\n")[2].partition("```")[0]
    exports, app, start = (
        next(line for line in block.splitlines() if line.startswith(word)) for word in ("export", "python", "webrl run")
    )
    variables = dict(pair.split("=") for pair in shlex.split(exports)[1:])
    environment = os.environ | variables | {"OMP_NUM_THREADS": "1"}
    database, port = tmp_path / "notes.db", "5791"
    arguments = shlex.split(app.replace("/tmp/notes.db", str(database)).replace("5000", port).rstrip("& "))[1:]
    server = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                urllib.request.urlopen(url)
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        settings = [
            f"rollout.web.start_urls=[{url}/]", f"rollout.web.reset.url={url}/reset", f"runs_dir={tmp_path}/runs",
            f"rollout.web.database=sqlite:///{database}", f"rollout.web.state_dir={tmp_path}/state",
            "tasks.num_seed_tasks=4", "tasks.num_eval_tasks=3", "rollout.max_steps=2", "trackers=[]",
            "accept.tasks=2",
        ]  # fmt: skip
        command = [sys.executable, "-m", "webrl.cli", *shlex.split(start.partition("#")[0])[1:], *settings]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        server.terminate()
        server.wait(10)
    assert done.returncode == 0, done.stderr[-3000:]
    start, phase = read_json(tmp_path / "runs" / "web_example" / "summary.json")["phases"]
    assert start["num_kept"] == phase["num_kept"] == 4
    assert phase["eval"]["web"]["by"] == "checks"
    assert phase["eval"]["episodes"] == 3
    assert phase["rollout_status"].get("env_error", 0) == 0
    assert (tmp_path / "runs" / "web_example" / "phase_01" / "actor" / "config.json").is_file()
    saved = "".join(
        p.read_text(errors="replace") for p in (tmp_path / "runs").rglob("*") if p.suffix in (".yaml", ".json")
    )
    assert variables["NOTES_RESET_TOKEN"] not in saved


LOGIN = """<title>in</title><h1>Welcome</h1><x-field></x-field><div><input type=password placeholder=Password></div>
<button>Show</button><button onclick="enter()">Sign in</button><script>
customElements.define('x-field', class extends HTMLElement {
  connectedCallback() { this.attachShadow({ mode: 'open' }).innerHTML = '<label>User <input></label>'; }
});
const enter = () => {
  const user = document.querySelector('x-field').shadowRoot.querySelector('input').value;
  if (user !== 'ann' || document.querySelector('[type=password]').value !== 'over-the-hill') return;
  localStorage.token = 'x';
  document.body.innerHTML = '<p>in</p>';
};</script>"""


BAR = """<script>customElements.define('x-bar', class extends HTMLElement {
  connectedCallback() { this.attachShadow({ mode: 'open' }).innerHTML = '<a href=/account>Sign in</a>'; }
});</script>"""


@pytest.mark.browser
@pytest.mark.usefixtures("elsewhere")
def test_a_log_in_without_a_form_behind_a_link_of_the_start_page_is_found(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PASSWORD", "over-the-hill")
    links = "".join(f"<a href=/page/{letter}>page {letter}</a>" for letter in "abcdef")
    pages = {"/": f"<title>home</title>{links}<x-bar></x-bar>{BAR}", "/account": LOGIN}

    async def look(*options):
        async with serve(pages) as url:
            out = tmp_path / f"site{len(options)}.yaml"
            assert await asyncio.to_thread(main, ["init-site", f"{url}/", "--out", str(out), *options]) == 0
            return url, load_config(out).rollout.web.login

    url, login = asyncio.run(look("--user", "ann"))
    assert (login.form.url, login.form.submit) == (f"{url}/account", "Sign in")
    assert (set(login.form.fields), set(login.form.secrets)) == ({"User"}, {"Password"})
    assert login.proof_url is None
    capsys.readouterr()
    url, login = asyncio.run(look())
    assert not login.is_set
    assert f"{url}/account has a log-in: to use it, move the files away and give --user NAME" in capsys.readouterr().out
    guess = next(line for line in (tmp_path / "site0.yaml").read_text().splitlines() if 'login: {"form' in line)
    form = {"url": f"{url}/account", "fields": {"User": "NAME"}, "secrets": {"Password": "${PASSWORD}"}}
    assert json.loads(guess.partition("login: ")[2]) == {"form": form | {"submit": "Sign in"}}
