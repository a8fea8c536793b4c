"""`webrl serve-env` as users start it."""

import os

from served import served


def server(*arguments, num_sessions=2, token=None, port=0, stderr=None, **variables):
    """A server with environment `variables`; a context that gives its URL and process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"WEBRL_ENV_TOKEN": token} if token else {}) | variables
    settings = ["rollout.num_workers=1", f"rollout.envs_per_worker={num_sessions}"]
    command = ["serve-env", "--port", str(port), *arguments, *settings]
    return served(command, r"serving \d+ sessions on (http://\S+)\n", stderr=stderr, environment=environment)


def client(url):
    """OpenEnv's own client, on which that of its BrowserGym environment is built; its import takes seconds."""
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url).sync()
