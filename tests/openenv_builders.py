"""`webrl serve-env` as users start it."""

import contextlib
import os
import re
import subprocess
import sys


@contextlib.contextmanager
def server(*arguments, num_sessions=2, token=None, port=0, stderr=None, **variables):
    """A server with environment `variables`; gives its URL and process."""
    command = [sys.executable, "-m", "webrl.cli", "serve-env", "--port", str(port), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"WEBRL_ENV_TOKEN": token} if token else {}) | variables
    settings = ["rollout.num_workers=1", f"rollout.envs_per_worker={num_sessions}"]
    process = subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"serving \d+ sessions on (http://\S+)\n", line)
        assert found, f"the server said {line!r}"
        yield found[1], process
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
