# `webrl serve-env` as a container: the environment alone, for trainers that run elsewhere.
#
#   docker build -t webrl-env .
#   export WEBRL_ENV_TOKEN=$(openssl rand -hex 16)       # which clients show, too
#   docker run --rm -p 8000:8000 --shm-size 1g -e WEBRL_ENV_TOKEN webrl-env
#
# Options of `webrl serve-env` follow the image's name. OpenEnv's variables are read as by its own image:
# BROWSERGYM_TASK_NAME, BROWSERGYM_VIEWPORT_WIDTH, BROWSERGYM_VIEWPORT_HEIGHT, BROWSERGYM_PORT, MAX_CONCURRENT_ENVS.
# Change the port by BROWSERGYM_PORT, not --port: the health check asks there.
FROM python:3.12-slim-bookworm

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# The headless shell takes half of full Chromium's memory. tini passes signals on and reaps Chromium's processes.
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium-headless-shell fonts-liberation fonts-noto-color-emoji tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY webrl webrl
COPY packages/webrl-serve packages/webrl-serve
COPY configs configs
COPY data/tiny data/tiny
# torch is a dependency of the package; its CPU build is the small one, and serving imports none of it.
RUN torch=$(sed -n 's/^torch==//p' constraints.txt) \
    && pip install --no-deps --index-url https://download.pytorch.org/whl/cpu "torch==$torch" \
    && pip install -c constraints.txt . ./packages/webrl-serve

# Pages are strangers' programs: they run as nobody's user, without a home that is worth anything.
RUN useradd --create-home --shell /usr/sbin/nologin webrl
USER webrl
WORKDIR /home/webrl

ENV WEBRL_CHROMIUM=/usr/bin/chromium-headless-shell BROWSERGYM_PORT=8000 MAX_CONCURRENT_ENVS=8
EXPOSE 8000

HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['BROWSERGYM_PORT']}/health\", timeout=4)"]

ENTRYPOINT ["tini", "--", "webrl", "serve-env", "--host", "0.0.0.0"]
