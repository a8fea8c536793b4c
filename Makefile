# `make demo` and `make test` do all set-up themselves; repeats start at once. `make help` lists the targets.
VENV ?= .venv
RUN  := $(VENV)/bin
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-all chaos test-browsers setup engines lint types docs doctor webarena clean
# Several tests at a time, in the order of the files, which share servers; whoever is done first takes from the others'
# rest, so that no core idles at the end. About a third of the quick tests' time is waiting (for pages and deadlines):
# three at a time keep two cores busy. The slow ones' engines take both. ARGS="-n 0": one at a time.
PYTEST := $(RUN)/python -m pytest -q --dist worksteal
export VENV
# Containers set it, and `scripts/setup.sh` installs without bytecode: every process of the tests would compile
# torch and transformers anew, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r t d; do printf '  make %-10s %s\n' "$$t" "$$d"; done

demo: setup ## the whole loop in a real browser: three phases, held-out success at the end
	@$(RUN)/webrl run configs/demo.yaml $(ARGS)

test: setup ## the core's tests, without the slow ones, and one of each companion
	@$(PYTEST) -n 3 -m quick $(ARGS)

test-all: setup engines $(VENV)/.webarena-done ## all tests, the companions' too, with DeepSpeed, Ray and vLLM; a missing GPU is skipped
	@$(PYTEST) -n 2 $(ARGS)

test-browsers: setup ## the browser's tests on several Chromium versions
	@$(RUN)/python scripts/test_browsers.py $(ARGS)

chaos: setup ## kills everything hundreds of times, and looks at what is left
	@$(RUN)/python benchmarks/chaos.py $(ARGS)

setup: $(VENV)/.python-done $(VENV)/.browser-done ## virtual environment, dependencies, browser
	@:

engines: $(VENV)/.engines-done $(VENV)/.openenv-done $(VENV)/.trackers-done ## DeepSpeed, Ray, the arena's shop; vLLM, OpenEnv's clients and trackers beside .venv
	@:

lint: $(VENV)/.python-done ## style and format (ruff), layers (import-linter), the documentation's words and commands, size
	@$(RUN)/ruff check . && $(RUN)/ruff format --check .
	@$(RUN)/lint-imports --no-cache
	@$(RUN)/python scripts/words.py
	@$(RUN)/python scripts/house.py

docs: $(VENV)/.python-done ## the documentation as a site, in build/docs; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

types: $(VENV)/.python-done ## mypy, strict
	@$(RUN)/mypy

doctor: setup ## what this machine has, and the fix for what it lacks
	@$(RUN)/webrl doctor

webarena: setup $(VENV)/.webarena-done ## BrowserGym's WebArena tasks, in spite of their pins (docs/webarena.md)
	@:

clean: ## removes environment and caches; keeps runs/
	@rm -rf $(VENV) $(VENV).uv $(VENV)-vllm $(VENV)-openenv $(VENV)-trackers build dist .pytest_cache .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python-done: pyproject.toml $(wildcard packages/*/pyproject.toml) constraints.txt scripts/setup.sh
	@bash scripts/setup.sh python
	@touch $@

$(VENV)/.browser-done: $(VENV)/.python-done
	@bash scripts/setup.sh browser
	@touch $@

$(VENV)/.engines-done: $(VENV)/.python-done scripts/requirements-vllm.txt
	@bash scripts/setup.sh engines
	@touch $@

$(VENV)/.openenv-done: $(VENV)/.python-done scripts/setup.sh
	@bash scripts/setup.sh openenv
	@touch $@

$(VENV)/.trackers-done: $(VENV)/.python-done scripts/setup.sh constraints.txt
	@bash scripts/setup.sh trackers
	@touch $@

$(VENV)/.webarena-done: $(VENV)/.python-done scripts/install_webarena.sh
	@CONSTRAINTS=constraints.txt bash scripts/install_webarena.sh $(RUN)/python
	@touch $@
