"""A model server that answers garbage only ends the command with one line, and what was asked is asked again."""

from pathlib import Path

import pytest
from curriculum_builders import ChatServer, serving
from replay_builders import make_trajectory, write_phase

from webrl import cli
from webrl.config import load_config
from webrl.reward.labels import read_labels
from webrl.runs.folder import open_run

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("answer", [[], "%%% 17"])
def test_labelling_without_one_verdict_is_a_failure_that_can_be_repaired(tmp_path, answer, webrl):
    server = ChatServer(lambda *_: answer)
    with serving(server) as url:
        engine = f"label.engine={{kind: openai, urls: ['{url}'], max_retries: 0}}"
        config = load_config(None, [f"runs_dir={tmp_path}", "label.judge=llm", engine])
        folder = open_run(config).phase(0)
        write_phase(folder.path, [make_trajectory("a"), make_trajectory("b")])
        folder.labels.unlink()
        folder.mark_done("rollout", {}, 0.0, 0.0, config)
        command = ["label", "--run", str(config.run_dir), "--phase", "0"]
        said = webrl(1, *command).err.splitlines()
        assert f"webrl: {folder.labels}: none of 2 episodes could be judged; the first: " in said[-1]
        assert not folder.is_done("label")
        assert [label.reward for label in read_labels(folder.labels).values()] == [None, None]
        server.answer = lambda *_: "YES"
        assert cli.main(command) == 0
    assert [label.reward for label in read_labels(folder.labels).values()] == [1, 1]
