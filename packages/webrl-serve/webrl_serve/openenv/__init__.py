"""OpenEnv: our environment as a server (`webrl serve-env`), and environments on such servers (`client.py`)."""
