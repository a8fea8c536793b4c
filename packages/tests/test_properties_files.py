"""Files and messages of others, held against generated input: JSONL, traces, pickles, OpenEnv's answers, frames."""

import asyncio
import io
import json
import os
import pickle
import re
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webrl.config import RolloutConfig
from webrl.config.redaction import SecretUrl
from webrl.errors import BrowserError, DataError, WebRLError
from webrl.llm.servers.http_pool import MalformedAnswer
from webrl.llm.servers.openai import parse_chat, parse_completion, parse_first_position, parse_prompt_logprobs
from webrl.rollouts.devtools import Tab
from webrl.runs.problems import ProblemLog
from webrl.runs.store import _OTHER, Appender, read_json, read_lines, read_records, write_records
from webrl.runs.text import dump_json, load_json
from webrl.types import Label, Status, Step, Task, Trajectory
from webrl_serve.openenv.client import RemoteEnv
from webrl_webarena.released import load_restricted, read_released
from webrl_webarena.task_files import read_instructions
from webrl_webarena.vab import read_trace

few = settings(derandomize=True, deadline=None, max_examples=40, database=None)
HOSTILE = Path(__file__).resolve().parents[2] / "tests" / "hostile"

CHARACTERS = st.characters(exclude_categories=("Cs",))  # JSON in UTF-8 holds no lone surrogates
TEXT = st.text(st.one_of(CHARACTERS, st.sampled_from('\x00\x1b\u202e\u2028\ufeff\n"\\')), max_size=30)
NUMBERS = st.integers(-(2**53), 2**53)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, FLOATS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=10,
)
TASKS = st.builds(
    Task,
    task_id=TEXT,
    site=TEXT,
    seed=NUMBERS,
    instruction=st.none() | TEXT,
    extra=st.dictionaries(TEXT, JSON, max_size=2),
)
STEPS = st.builds(
    Step, index=st.just(0), observation=TEXT, response=TEXT, action=TEXT, error=TEXT,
    prompt_ids=st.lists(st.integers(0, 2**31), max_size=4).map(tuple), logprobs=st.lists(FLOATS, max_size=4).map(tuple),
)  # fmt: skip
EPISODES = st.lists(STEPS, max_size=2).map(lambda steps: tuple(replace(step, index=i) for i, step in enumerate(steps)))
TRAJECTORIES = st.builds(
    Trajectory, trajectory_id=TEXT, task=TASKS, instruction=TEXT, phase=st.integers(0, 99), steps=EPISODES,
    final_observation=TEXT, status=st.sampled_from(Status), message=TEXT, env_reward=st.none() | FLOATS.filter(lambda value: value <= 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@few
@given(st.lists(TRAJECTORIES, max_size=3))
def test_records_come_back_from_their_file(folder, records):
    path = folder / "records.jsonl"
    write_records(path, records)
    assert list(read_records(path, Trajectory)) == records


@few
@given(JSON)
def test_any_json_is_a_record_or_a_data_error_with_its_line(folder, data):
    path = folder / "any.jsonl"
    path.write_bytes(b"\n" + orjson.dumps(data) + b"\n")
    for read in (lambda: list(read_records(path, Trajectory)), lambda: read_instructions(path)):
        with pytest.raises(DataError) as refused:
            read()
        assert str(refused.value).startswith(f"{path}:2: ")


@few
@given(st.binary(max_size=200))
def test_any_bytes_are_json_lines_or_counted_problems(folder, data):
    path = folder / "bytes.jsonl"
    path.write_bytes(data)
    problems: list[str] = []
    is_other = any(re.match(kind, data) for kind in _OTHER)
    try:
        found = list(read_lines(path, problems.append))
    except DataError:
        assert is_other or re.match(rb"(\xef\xbb\xbf)?\[\s*\{", data)
        return
    assert not is_other
    assert len(found) + len(problems) == sum(bool(line.strip()) for line in io.BytesIO(data))
    try:
        read_json(path)
    except DataError as error:
        assert str(path) in str(error)


def test_a_file_that_is_cut_anywhere_loses_the_last_record_at_most(folder):
    labels = [Label(f"t\u2028{i}é", 0.5, 1, error="x\x00") for i in range(3)]
    whole = folder / "labels.jsonl"
    write_records(whole, labels)
    data = whole.read_bytes()
    path = folder / "cut.jsonl"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        num_whole = data[: size + 1].count(b"\n")  # a line that lacks its end alone is whole
        with Appender(path) as appender:
            appender.append(labels[0])
        assert list(read_records(path, Label)) == [*labels[:num_whole], labels[0]]


ROWS = st.fixed_dictionaries(
    {"index": st.integers(-1, 2), "html": TEXT, "response": TEXT, "target": TEXT},
    optional={"trace_id": JSON, "prompt": JSON, "extra": JSON},
)
LINES = st.one_of(
    ROWS.map(orjson.dumps), JSON.map(orjson.dumps), st.binary(max_size=30), ROWS.map(lambda r: orjson.dumps(r)[:-3])
)


@few
@given(
    st.lists(LINES, max_size=3), st.one_of(JSON.map(orjson.dumps), st.binary(max_size=20), st.just(b'{"score": 1e400}'))
)
def test_any_trace_is_a_trajectory_or_a_named_problem(folder, lines, outcome):
    trace, action = folder / "traces" / "1.jsonl", folder / "actions" / "1.json"
    for path, data in ((trace, b"\n".join(lines)), (action, outcome)):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    with ProblemLog(num_shown=0) as problems:
        trajectory = read_trace(trace, problems)
    assert trajectory is not None or problems.counts
    if trajectory is not None:
        assert Trajectory.from_json(orjson.loads(orjson.dumps(trajectory.to_json()))) == trajectory
        assert trajectory.env_reward is None or 0 <= trajectory.env_reward <= 1


def write_archive(path, data):
    """What torch.save writes, with this pickle."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in (("data.pkl", data), ("version", b"3\n"), ("byteorder", b"little")):
            file.writestr(f"x/{name}", content)


@few
@given(
    st.one_of(st.binary(max_size=120), JSON.map(lambda d: pickle.dumps(d, 2)), JSON.map(lambda d: pickle.dumps(d, 0))),
    st.integers(0, 200),
)
def test_any_pickle_is_plain_data_or_a_data_error(folder, data, size):
    path = folder / "any.pt"
    write_archive(path, data[:size])
    try:
        load_restricted(path)
    except DataError as error:
        assert str(path) in str(error)
    try:
        with ProblemLog(num_shown=0) as problems:
            list(read_released(path, problems))
    except DataError as error:
        assert str(path) in str(error)


OBSERVATIONS = st.fixed_dictionaries(
    {"text": JSON, "url": JSON, "goal": JSON},
    optional={
        "screenshot": JSON,
        "error": JSON,
        "agent_done": JSON,
        "action": JSON,
        "page_done": JSON,
        "message": JSON,
        "blocked": JSON,
    },
)
ANSWERS = st.one_of(JSON, st.fixed_dictionaries({"observation": OBSERVATIONS | JSON, "done": JSON, "reward": JSON}))


@few
@given(ANSWERS)
def test_any_answer_of_a_server_is_a_result_or_a_browser_error(data):
    env = RemoteEnv(SecretUrl("http://h"), RolloutConfig())
    try:
        result = env._read(data, "click('1')")
    except BrowserError as error:
        assert "http://h" in str(error)
        assert "\n" not in str(error)
        return
    assert result.reward == result.reward, "NaN is no reward"
    assert isinstance(result.observation.text, str)


COMPLETIONS = st.fixed_dictionaries(
    {},
    optional={
        "logprobs": JSON | st.fixed_dictionaries({}, optional={"token_logprobs": JSON, "tokens": JSON, "top_logprobs": JSON}),
        "token_ids": JSON, "message": JSON, "finish_reason": JSON, "prompt_logprobs": JSON,
    },
)  # fmt: skip


@few
@given(JSON | st.lists(COMPLETIONS, max_size=2).map(lambda choices: {"choices": choices}))
@pytest.mark.parametrize("parse", [parse_chat, parse_completion, parse_first_position, parse_prompt_logprobs])
def test_any_answer_of_a_model_server_is_read_or_malformed(parse, answer):
    try:
        parse(answer)
    except MalformedAnswer as error:
        assert len(str(error)) < 2000


def _frame(opcode, body):
    size = len(body)
    head = bytes([0x80 | opcode]) + (bytes([size]) if size < 126 else bytes([126]) + size.to_bytes(2, "big"))
    return head + body


@few
@given(st.lists(st.binary(max_size=200), max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_come_whole_however_the_network_cuts_them(messages, cuts):
    async def receive():
        got: list[bytes] = []
        tab, reader = Tab(None), asyncio.StreamReader()
        tab._take = got.append
        tab._writer = SimpleNamespace(transport=SimpleNamespace(abort=lambda: None))
        receiving = asyncio.create_task(tab._receive(reader))
        data, at, turn = b"".join(_frame(1, m) for m in messages), 0, 0
        while at < len(data):
            size = cuts[turn % len(cuts)]
            reader.feed_data(data[at : at + size])
            await asyncio.sleep(0)
            at, turn = at + size, turn + 1
        reader.feed_eof()
        await receiving
        return got

    assert asyncio.run(receive()) == messages


@pytest.mark.parametrize("path", sorted(p for p in HOSTILE.rglob("*") if p.is_file()), ids=lambda p: p.name)
def test_every_hostile_file_is_refused_by_every_reader_or_read_without_harm(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from webrl.config import load_config

    readers = (read_json, read_instructions, load_restricted, load_config, lambda p: list(read_records(p, Trajectory)))
    for read in readers:
        try:
            read(path)
        except WebRLError as error:
            assert str(path) in str(error)
            assert len(str(error)) < 2000
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (read_json, lambda p: list(read_lines(p)), load_restricted):
        with pytest.raises(DataError, match="not a regular file"):
            read(pipe)


def test_json_with_numbers_beyond_every_range_is_refused(tmp_path):
    path = tmp_path / "numbers.jsonl"
    for text in (
        '{"trajectory_id": "t", "p_yes": NaN, "reward": 1}',
        '{"trajectory_id": "t", "p_yes": 0.5, "reward": 1e400}',
    ):
        path.write_text(text + "\n")
        with pytest.raises(DataError, match=r"numbers\.jsonl:1"):
            list(read_records(path, Label))
    assert json.loads("1e400") == float("inf"), "which the standard parser would take"


def test_half_a_surrogate_pair_in_an_answer_is_replaced(folder):
    text, _ = parse_chat(json.loads('{"choices": [{"message": {"content": "Buy \\ud800 it."}}]}'))
    assert text == "Buy \ufffd it."
    write_records(folder / "answers.jsonl", [Label("t", None, None, error=text)])


def test_half_an_emoji_in_a_record_is_replaced_on_the_disk_and_a_whole_one_in_halves_is_one(folder):
    step = Step(0, "a\ud83d", "b\ude00", "click('1')", "\ud83d\ude00")
    path = folder / "steps.jsonl"
    write_records(path, [step])
    with Appender(path) as file:
        file.append(step)
    assert list(read_records(path, Step)) == 2 * [Step(0, "a\ufffd", "b\ufffd", "click('1')", "\U0001f600")]


def test_what_is_no_json_stays_refused_whatever_halves_it_holds():
    for text in ('["\\ud83d"', "[NaN, 1e400", '{"a": "\\ud83d",}'):
        with pytest.raises(orjson.JSONDecodeError):
            load_json(text)
    with pytest.raises(TypeError):
        dump_json({"a\ud83d": object()})
