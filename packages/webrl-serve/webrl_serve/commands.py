"""The commands that serve an environment or a model."""

from webrl.cli.command import Command

SERVE_ENV = Command(
    "serve the browser environment to other programs, over OpenEnv", "webrl_serve.cli.serve_env", "serve"
)
SERVE_MODEL = Command(
    "serve a checkpoint to other programs, over the OpenAI API", "webrl_serve.cli.serve_model", "serve"
)
