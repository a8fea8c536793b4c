"""`webrl view` over HTTP: who is let in, what its pages hold, hostile runs, labels, export, errors at the start."""

import hashlib
import re
import signal
import subprocess

import httpx
import orjson
import pytest
from lxml import html
from view_builders import HOSTILE, admitted, make_run, trajectory, viewer, write

from webrl.types import Status

TRAVERSAL = "../../../../etc/passwd"
EPISODES = "0/phase_00/trajectories.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("view") / "run")
    write(
        folder / "phase_02" / "trajectories.jsonl",
        [
            trajectory(
                TRAVERSAL, phase=2, site=HOSTILE, instruction=HOSTILE, page=HOSTILE, final_observation=HOSTILE,
                message=HOSTILE, actions=(f"send_msg_to_user({HOSTILE!r})", HOSTILE), status=Status.AGENT_DONE,
            ),
            trajectory("p02-huge", phase=2, page="x" * 300_000 + "\x1b]0;title\x07" + "y" * 300_000),
            trajectory("p02-long" * 9000, phase=2, instruction="z" * 900_000, message="m" * 900_000,
                       status=Status.AGENT_DONE, actions=("noop() " + "#" * 50_000,) * 1000),
            trajectory("p02-seen", phase=2, screenshot="seen.png"),
        ],
    )  # fmt: skip
    with (folder / "phase_02" / "trajectories.jsonl").open("ab") as file:
        file.write(b"{broken\n")
    return folder


@pytest.fixture(scope="module")
def served(run):
    with viewer(run) as (url, _):
        yield url


@pytest.fixture
def client(served):
    with admitted(served) as client:
        yield client


def test_nobody_is_let_in_without_the_token(served, run):
    base, _, token = served.rstrip("/").rpartition("/")
    episode = "t/0/phase_00/trajectories.jsonl/1"
    paths = ["", "/", "/state", f"/?token={token}", f"/{token}", *(
        f"/{wrong}/{path}" for wrong in ("0" * len(token), token[:-1], "é") for path in ("", episode, "static/view.css")
    )]  # fmt: skip
    for path in paths:
        answer = httpx.get(base + path, headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/plain; charset=utf-8")
        assert "no-referrer" in answer.headers["referrer-policy"]
    assert httpx.post(f"{base}/label", data={"place": episode[2:], "success": "1"}).status_code == 401
    assert not (run / "hand_labels.jsonl").exists()


def test_every_answer_allows_scripts_of_its_own_files_alone(client):
    paths = ["/", "/t/0/phase_02/trajectories.jsonl/1", "/absent", "/?label=x", "/static/view.js", "/state", "/export",
             "/compare?a=0/phase_00/trajectories.jsonl/1&b=0/phase_02/trajectories.jsonl/1",
             "/text/0/phase_02/trajectories.jsonl/1/end/page"]  # fmt: skip
    for path in paths:
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.headers["content-type"].startswith("text/html"):
            elements = list(html.fromstring(answer.text).iter())
            assert [e.get("src") for e in elements if e.tag == "script"] == [f"{client.base_url.path}static/view.js"]
            assert not {"style", "iframe", "object", "img"} & {e.tag for e in elements}
            names = {name for e in elements for name in e.attrib}
            assert not {name for name in names if name == "style" or name.startswith("on")}
            assert all(e.get("href", "/").startswith(("/", "#")) for e in elements)


def test_hostile_text_is_shown_and_nothing_of_it_acts(client):
    for path in ("/", "/t/0/phase_02/trajectories.jsonl/1",
                 "/compare?a=0/phase_02/trajectories.jsonl/1&b=0/phase_00/trajectories.jsonl/1"):  # fmt: skip
        text = client.get(path).text
        assert "<script>window" not in text
        assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in text
        assert "{{ 7 * 7 }}␛[31m⟨U+202E⟩evil" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    plain = client.get("/text/0/phase_02/trajectories.jsonl/1/end/page")
    assert plain.headers["content-type"] == "text/plain; charset=utf-8"
    assert "\x1b" not in plain.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((f"/t/0/{path}", 404) for path in ("..%2F..%2Fetc/passwd/1", "%2Fetc%2Fpasswd/1", "config.yaml/1")),
        *(
            (f"/t/{place}", 404)
            for place in ("7/phase_00/trajectories.jsonl/1", f"{EPISODES}/99", f"{EPISODES}/{10**22}")
        ),
        *((f"/text/{EPISODES}/1/{part}", 404) for part in ("9/page", "0/secret")),
        *((path, 404) for path in (f"/png/{EPISODES}/1/0", "/static/..%2Fserver.py", "/static/server.py")),
        *((f"/compare?{asked}", 404) for asked in (f"a={EPISODES}/1&b=../x/1", "a=9/x/1&b=0/x/1")),
        *((f"/?{asked}", 400) for asked in ("label=maybe", "lable=success")),
        *((f"/?{asked}", 200) for asked in ("page=-3", "page=999", "q=%00%F0%9F%92%A9%27%22%3B--")),
    ],
)
def test_only_what_is_indexed_is_opened_and_what_cannot_be_is_said(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert "root:" not in answer.text


def test_other_methods_and_endless_forms_are_refused(client):
    assert client.request("PUT", "/").status_code == 405
    assert client.post("/label", content=b"x" * 20_000).status_code == 400
    assert client.post("/label", content=b"\xff\xfe").status_code == 400
    assert client.post("/label", data={"place": "0/phase_00/trajectories.jsonl/1", "success": "2"}).status_code == 400


def test_a_huge_page_is_cut_and_there_whole_as_plain_text(client):
    page = client.get("/t/0/phase_02/trajectories.jsonl/2").text
    assert len(page) < 100_000
    link = re.search(r'href="[^"]*(/text/[^"]+/0/page)">Show all 600,010 characters', page)[1]
    whole = client.get(link)
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.text == "x" * 300_000 + "␛]0;title␇" + "y" * 300_000


def test_a_long_episode_fits_a_page_and_says_what_is_left_out_as_the_list_does_of_a_broken_line(client, run):
    text = client.get("/t/0/phase_02/trajectories.jsonl/3").text
    assert len(text) < 8_000_000
    assert "1,000 steps: the first 200 are shown" in text
    assert "Show all 50,007 characters" in text
    assert client.get("/text/0/phase_02/trajectories.jsonl/3/199/answer").text == "noop() " + "#" * 50_000
    listed = client.get("/").text
    assert len(listed) < 100_000
    assert f"{run}/phase_02/trajectories.jsonl:5: malformed JSON" in listed
    assert "1 line is not shown" in listed


def test_a_screenshot_is_shown(client, run):
    png = b"\x89PNG\r\n\x1a\n..."
    (run / "seen.png").write_bytes(png)
    page = client.get("/t/0/phase_02/trajectories.jsonl/4").text
    link = re.search(r'<img src="[^"]*(/png/[^"]+)" alt="Screenshot', page)[1]
    answer = client.get(link)
    assert (answer.content, answer.headers["content-type"]) == (png, "image/png")


def shown_form(client, place):
    """The fields of a trajectory's page that its buttons send with them."""
    found = re.search(r'name="digest" value="(\w*)"', client.get(f"/t/{place}").text)
    return {"place": place, "digest": found[1] if found else ""}


def test_a_label_by_hand_is_set_changed_and_taken_back(client, run):
    place = "0/phase_00/trajectories.jsonl/1"
    path = run / "hand_labels.jsonl"

    def label(success):
        answer = client.post(
            "/label", data=shown_form(client, place) | {"success": success, "selection": "label=success"}
        )
        root = client.base_url.path.rstrip("/")
        assert (answer.status_code, answer.url.raw_path.decode()) == (200, f"{root}/t/{place}?label=success")
        return re.findall(r'value="(\d)" aria-pressed="true"', answer.text)

    try:
        assert label("0") == ["0"]
        (line,) = map(orjson.loads, path.read_bytes().splitlines())
        assert line["success"] == 0
        assert not {"pages", "ends_by_message"} & line.keys(), "versions that do not know them read it too"
        assert label("1") == ["1"]
        assert [orjson.loads(line)["success"] for line in path.read_bytes().splitlines()] == [1]
        assert client.get("/state?hand=success").json()["num"] == 1
        assert label("") == []
        assert path.read_bytes() == b""
    finally:
        path.unlink(missing_ok=True)
    line = (run / "phase_00" / "trajectories.jsonl").read_bytes().splitlines(keepends=True)[2]
    form = {"place": "0/phase_00/trajectories.jsonl/3", "digest": hashlib.sha256(line).hexdigest()}
    unfinished = client.post("/label", data=form | {"success": "1"})
    assert unfinished.status_code == 409
    assert "p00-c: ended by env_error, which is not an attempt" in unfinished.text
    assert not path.exists()


def test_a_label_is_for_the_trajectory_that_was_shown(client, run):
    """The run writes its file anew, and the page that is open knows of it before the click."""
    form, path = shown_form(client, "0/phase_00/trajectories.jsonl/1"), run / "phase_00" / "trajectories.jsonl"
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    try:
        path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
        client.get("/state")
        answer = client.post("/label", data=form | {"success": "1"})
        assert answer.status_code == 409
        assert "is not the episode that was shown" in answer.text
        assert not (run / "hand_labels.jsonl").exists()
    finally:
        path.write_bytes(before)
        client.get("/state")


def test_neighbours_are_those_of_the_selection(client):
    def links(address):
        text = client.get(f"/t/0/phase_00/trajectories.jsonl/2?{address}").text
        return re.findall(r'<a rel="(prev|next)" href="[^"]*/t/([^"?]*)', text), re.search("\\d of \\d|not in", text)[0]

    around = [("prev", "0/phase_00/trajectories.jsonl/1"), ("next", "0/phase_00/trajectories.jsonl/3")]
    assert links("phase=0&sort=oldest") == (around, "2 of 3")
    assert links("phase=1") == ([("next", "0/phase_01/eval.jsonl/1")], "not in")


def test_the_export_is_the_selection_as_it_is_on_the_disk(client, run):
    answer = client.get("/export?phase=0&sort=oldest")
    assert answer.content == (run / "phase_00" / "trajectories.jsonl").read_bytes()
    assert "attachment" in answer.headers["content-disposition"]
    assert client.get("/export?match=disagree").content.count(b"\n") == 1


def test_looking_writes_nothing_and_takes_no_lock(client, run):
    def state():
        return {p: p.stat().st_mtime_ns for p in run.rglob("*") if "hand_labels" not in p.name and p != run}

    before = state()
    for path in ("/", "/t/0/phase_00/trajectories.jsonl/1", "/export", "/state"):
        assert client.get(path).status_code == 200
    assert state() == before
    assert not (run / ".lock").exists()


def test_a_run_that_goes_on_is_followed(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("name: tiny\n")
    with viewer(run, stderr=subprocess.PIPE) as (url, process), admitted(url) as client:
        assert "No episodes yet" in client.get("/").text
        write(run / "phase_00" / "trajectories.jsonl", [trajectory("p00-a", phase=0)])
        assert client.get("/state").json()["num"] == 1
        write(run / "phase_00" / "trajectories.jsonl", [trajectory("p00-b", phase=0)], "ab")
        assert "p00-b" in client.get("/").text
        process.send_signal(signal.SIGINT)
        assert (process.wait(20), process.stderr.read()) == (0, "")
