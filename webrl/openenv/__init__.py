"""Our environment as an OpenEnv server: what `webrl serve-env` runs. The client is `webrl.rollouts.remote`."""
