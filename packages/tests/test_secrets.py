"""Planted secrets: nowhere in a run folder, on the screen, in errors or in logs; and a run goes on without them."""

import json
import logging
import sys
from pathlib import Path

import pytest
import yaml
from processes import OF_THE_HUB, python

from webrl.config import EngineConfig, RolloutConfig, RunConfig, load_config
from webrl.config.redaction import Secret, SecretUrl, redact, require_secrets, revealed, with_path
from webrl.errors import StageError, UsageError
from webrl.llm.servers.http_pool import HttpPool
from webrl.runs.folder import open_run, run_info
from webrl_webarena.settings import Account, WebArenaConfig
from webrl_webarena.sites import find_sites

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    "generate.engine.urls": "PLANTED-generator-1",
    "label.engine.urls": "PLANTED-label-2",
    "rollout.urls": "PLANTED-openenv-3",
    "password": "PLANTED 'word\" 4",
    "sites": "PLANTED-site-5",
    "reset": "PLANTED-reset-6",
    "judge": "PLANTED-judge-7",
    "key": "PLANTED-key-8",
    "rollout.engine.urls": "PLANTED-rollout-9",
}


def planted(**changes):
    """A config with a secret in every place where one can stand."""
    webarena = {
        "sites": {"gitlab": [f"http://user:{PLANTED['sites']}@127.0.0.1:9"]},
        "accounts": {"gitlab": {"username": "ann", "password": PLANTED["password"]}},
        "reset_urls": [f"http://127.0.0.1:9/?token={PLANTED['reset']}"],
        "judge": {"urls": [f"http://{PLANTED['judge']}@127.0.0.1:9/v1"]},
    }
    return {
        "rollout": {
            "urls": [f"http://any:{PLANTED['rollout.urls']}@127.0.0.1:9"],
            "engine": {"urls": [f"http://u:{PLANTED['rollout.engine.urls']}@127.0.0.1:9/v1"]},
            "webarena": webarena,
        },
        "generate": {
            "engine": {"kind": "openai", "urls": [f"http://127.0.0.1:9/v1?api_key={PLANTED['generate.engine.urls']}"]}
        },
        "label": {"engine": {"urls": [f"http://u:{PLANTED['label.engine.urls']}@127.0.0.1:9/v1"]}},
    } | changes


def webrl(*arguments, **variables):
    return python("-m", "webrl.cli", *arguments, code=None, cwd=ROOT, **variables)


def assert_clean(text):
    assert "PLANTED" not in text, text[max(0, text.index("PLANTED") - 200) :][:400]


def test_a_saved_config_is_compared_and_continued_without_its_secrets(tmp_path):
    config = RunConfig.model_validate(planted(name="r", runs_dir=str(tmp_path)))
    folder = open_run(config)
    assert_clean(folder.config.read_text(encoding="utf-8"))
    open_run(config)
    text = json.dumps(planted(name="r", runs_dir=str(tmp_path))).replace("PLANTED", "ROTATED")
    open_run(RunConfig.model_validate(json.loads(text)))
    other = json.loads(text.replace("127.0.0.1:9", "127.0.0.1:8"))
    with pytest.raises(StageError, match="made with another config") as raised:
        open_run(RunConfig.model_validate(other))
    assert "ROTATED" not in str(raised.value)
    saved = load_config(folder.config)
    with pytest.raises(UsageError, match=r"(?s)rollout\.webarena\.accounts\.gitlab\.password.*give the option again"):
        require_secrets(saved)
    require_secrets(saved, ("actor", "critic"))
    with pytest.raises(UsageError, match="read from a saved config"):
        find_sites(saved.rollout.webarena)
    again = load_config(folder.config, [f"rollout.webarena.accounts.gitlab.password={json.dumps(PLANTED['password'])}"])
    assert again.rollout.webarena.accounts["gitlab"].password.reveal() == PLANTED["password"]


def test_a_secret_by_reference_is_saved_as_its_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_VARIABLE", "PLANTED-value")
    urls = ["http://ann:${PLANTED_VARIABLE}@127.0.0.1:9/v1"]
    config = RunConfig.model_validate({"name": "r", "runs_dir": str(tmp_path), "label": {"engine": {"urls": urls}}})
    saved = open_run(config).config
    assert "ann:${PLANTED_VARIABLE}@" in saved.read_text(encoding="utf-8")
    assert "PLANTED-value" not in saved.read_text(encoding="utf-8")
    again = load_config(saved)
    require_secrets(again)
    assert again.label.engine.urls[0].reveal() == "http://ann:PLANTED-value@127.0.0.1:9/v1"
    assert redact("no answer for PLANTED-value") == "no answer for ***"
    text = {"name": "r", "runs_dir": str(tmp_path), "label": {"engine": {"urls": ["http://ann:other@127.0.0.1:9/v1"]}}}
    open_run(RunConfig.model_validate(text))
    monkeypatch.delenv("PLANTED_VARIABLE")
    with pytest.raises(UsageError, match="environment variable 'PLANTED_VARIABLE' is not set"):
        again.label.engine.urls[0].reveal()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:80/v1", "http://host:80/v1"),
        ("https://ann:pw@host/v1", "https://ann:***@host/v1"),
        ("https://token@host/v1", "https://***@host/v1"),
        ("ws://host/?a=1&token=x", "ws://host/?a=***&token=***"),
        ("http://host/#x", "http://host/#***"),
        ("http://u:p/w@host", "***"),
        ("http://u:p#w@host", "***"),
        ("u:pw@host:80", "***@host:80"),
        ("http://u:p@w@host", "http://u:***@host"),
        ("${SERVER}", "${SERVER}"),
        ("http://h:${PORT}/${TOKEN}/v1", "http://h:${PORT}/${TOKEN}/v1"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
    ],
)
def test_what_is_shown_of_an_address(text, shown):
    assert str(SecretUrl(text)) == f"{SecretUrl(text)}" == shown
    assert str(SecretUrl(shown)) == shown
    assert repr(shown) in repr(SecretUrl(text))


def test_workers_get_the_secrets_and_files_do_not():
    config = RolloutConfig.model_validate(planted()["rollout"])
    sent = json.loads(json.dumps(revealed(config)))
    assert RolloutConfig.model_validate(sent) == config
    assert_clean(json.dumps(config.model_dump(mode="json")) + repr(config) + str(config))
    assert RolloutConfig.model_validate(config.model_dump()) == config


def test_a_log_in_s_password_never_shows():
    account = Account(username="ann", password=Secret("abc"))
    assert "abc" not in f"{account} {account!r} {account.model_dump_json()} {account.model_dump()}"
    assert account.password.reveal() == "abc"
    assert with_path("http://u:p@h:1/v1/?token=t", "/models") == "http://u:p@h:1/v1/models?token=t"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([f"rollout.webarena.accounts.gitlab={PLANTED['sites']}"], "accounts.gitlab = ***"),
        (["rollout.webarena.accounts.gitlab.password=[PLANTED]"], "must be text"),
        ([f"rollout.engine.extra_args=[--api-key,{PLANTED['key']}]"], "--api-key is not accepted"),
        ([f"rollout.engine.extra_args=[--hf_token={PLANTED['key']}]"], "set HF_TOKEN"),
        (["rollout.engine.extra_args=[--host,0.0.0.0]"], "where only it can reach them"),
        (["rollout.webarena.accounts.gitlab.password='PLANTED"], "not valid YAML; put the value in quotes"),
        ([f"rollout.engine.urls=http://u:{PLANTED['sites']}@h"], "rollout.engine.urls = 'http://***@h'"),
    ],
)
def test_a_refused_option_does_not_show_its_secret(overrides, says):
    with pytest.raises(UsageError) as raised:
        load_config(None, overrides)
    assert says in str(raised.value)
    assert_clean(str(raised.value))


@pytest.mark.slow
def test_a_dry_run_a_failing_run_and_its_folder_hold_no_secret(tmp_path):
    path = tmp_path / "config.yaml"
    data = planted(name="r", runs_dir=str(tmp_path / "runs"), num_phases=1, tasks={"num_seed_tasks": 1})
    data["rollout"] |= {"env": "openenv", "max_retries": 0}
    data["generate"]["engine"] |= {"max_retries": 0, "timeout_s": 2}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    word = f"rollout.webarena.accounts.gitlab.password={json.dumps(PLANTED['password'])}"
    plan = webrl("run", str(path), word, *OF_THE_HUB, "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "any:***@127.0.0.1:9" in plan.stdout
    served = webrl("serve-env", str(path), "rollout.env=browser", "--dry-run")
    assert served.returncode == 0, served.stderr
    failed = webrl("run", "-v", str(path), word, OPENAI_API_KEY=PLANTED["key"])
    assert failed.returncode == 2, failed.stderr
    assert "OpenEnv server http://***@127.0.0.1:9" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert_clean("".join((plan.stdout, plan.stderr, served.stdout, served.stderr, failed.stdout, failed.stderr)))
    written = [p for p in (tmp_path / "runs").rglob("*") if p.is_file()]
    assert any(p.name == "filter-tasks.json" for p in written), "stages have ended, with their provenance"
    for file in written:
        assert b"PLANTED" not in file.read_bytes(), file


def test_a_command_line_is_recorded_without_its_secrets(monkeypatch):
    word = "rollout.webarena.accounts.gitlab.password=abc"
    monkeypatch.setattr(sys, "argv", ["webrl", "run", word, "rollout.urls=[http://u:abc@h]", "seed=3"])
    command = run_info(RunConfig())["command"]
    assert command == [
        "webrl",
        "run",
        "rollout.webarena.accounts.gitlab.password=***",
        "rollout.urls=[http://***@h]",
        "seed=3",
    ]


CRASH = """
import logging, sys, threading
from webrl.config.redaction import Secret, guard_output
logging.basicConfig()
guard_output()
secret = Secret("PLANTED-word")
try:
    raise ValueError(f"bad {secret.reveal()}")
except ValueError:
    logging.getLogger("x").exception("failed at %s", "http://a:PLANTED-other@h/")
logging.getLogger("x").warning("%s is kept", "word", {})
thread = threading.Thread(target=lambda: 1 / len(secret.reveal()[99:]))
thread.start()
thread.join()
raise RuntimeError(f"at the end: {secret.reveal()}")
"""


def test_logs_and_tracebacks_hold_no_secret():
    done = python("-c", CRASH, code=1, cwd=ROOT)
    assert "ValueError: bad ***" in done.stderr
    assert "failed at http://***@h/" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "RuntimeError: at the end: ***" in done.stderr
    assert_clean(done.stderr.replace('Secret("PLANTED-word")', ""))


def test_short_secrets_and_whole_words_are_left_alone_in_running_text():
    Secret("abc")
    Secret("rest-word")
    assert redact("abc and forrest-words, rest-word") == "abc and forrest-words, ***"


def test_an_endpoint_s_answer_that_quotes_the_request_is_cleaned(caplog):
    pool = HttpPool(["http://u:PLANTED-in-url@127.0.0.1:9/v1"], timeout_s=1, max_retries=0)
    assert pool.urls == ["http://u:***@127.0.0.1:9/v1"]
    with caplog.at_level(logging.DEBUG):
        engine = EngineConfig(urls=("http://u:PLANTED-x@h/v1",))
        logging.getLogger("webrl").warning("%r", engine)
    assert_clean(caplog.text + repr(pool.urls) + repr(WebArenaConfig.model_validate(planted()["rollout"]["webarena"])))
