# `make` or `make help` lists the targets. Each sets up what it needs; a machine needs Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

# There are two set-ups: what serving needs, and with the extra `dev` what everything else here needs as well.
# A stamp's name is made of everything that a set-up depends on, and it is laid down last: a change of the
# inputs, a moved folder and an interrupted set-up all mean that the stamp is missing, and the set-up runs.
INPUTS := pyproject.toml clients/python/pyproject.toml requirements.lock
SUM := $(firstword $(shell { pwd; cat $(INPUTS); } | cksum))
SERVING := $(VENV)/.setup-serving-$(SUM)
DEVELOPING := $(VENV)/.setup-developing-$(SUM)

.DEFAULT_GOAL := help
.PHONY: help serve setup test test-gpu check bench bench-gpu bench-fleet route-sim reliability compat pictures
.NOTPARALLEL:  # two set-ups at once would write into one environment

help:
	@echo "make serve   start the server on 127.0.0.1:8000 with a real model (HOST=, PORT=, MODEL= override)"
	@echo "make setup   make $(VENV) with everything pinned, for developers; the other targets do by themselves what they need"
	@echo "make test    run every test"
	@echo "make test-gpu      run what touches a CUDA device, on one"
	@echo "make check   formatting, lint, strict types, import rules"
	@echo "make bench   measure, and write the table to bench/results"
	@echo "make bench-gpu     measure a CUDA device, beside its limits and transformers"
	@echo "make bench-fleet   kill the engine that writes, here and behind routers by others (installed into $(VENV)/bench-fleet)"
	@echo "make route-sim     play a trace of requests through every policy of routing (ARGUMENTS='--trace FILE')"
	@echo "make compat        run tool loops and typed answers of OpenAI's clients by others, as they are, against the chat door"
	@echo "make pictures      make the README's pictures of the page anew, with the default model"
	@echo "make reliability   try every promise under faults, load and attack: about four hours"

serve: $(SERVING)
	@$(RUN)/midstream serve $(if $(HOST),--host "$(HOST)") $(if $(PORT),--port "$(PORT)") $(if $(MODEL),--model "$(MODEL)")

setup: $(DEVELOPING)

# A file's tests share what is slow to start, so a file stays in one process. Files come in the order of their
# folders, and so the short ones of tests/unit last: by default those with the fewest tests would, which take longest
# of all. There is one process more than processors (`tests/conftest.py`); more than four would hold more models in
# memory than they save time.
test: $(DEVELOPING)
	$(RUN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --durations=15

# Those of the engine's tests that compute: by themselves they do it on the CPU, with kernels in Triton's interpreter.
ON_DEVICE := $(addprefix tests/model/test_,on_device.py cuda_graphs.py greedy_oracle.py windows.py seeded_sampling.py \
  failing_rows.py) $(addprefix tests/unit/test_,attention.py triton_draw.py batch_invariant.py host_pool.py \
  steering_in_flight.py swapping.py exact_attention.py::test_by_kernels_too exact_attention.py::test_by_kernels_in_any_batch)

test-gpu: $(DEVELOPING)
	MIDSTREAM_TEST_DEVICE=cuda $(RUN)/python -m pytest --numprocesses=auto --maxprocesses=8 --durations=15 $(ON_DEVICE)

check: $(DEVELOPING)
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/python -m pytest -q tests/unit/test_architecture.py

route-sim: $(DEVELOPING)
	$(RUN)/python -m bench.route_sim $(ARGUMENTS)

bench-fleet: $(DEVELOPING)
	$(RUN)/python -m bench.fleet $(ARGUMENTS)

bench-gpu: $(DEVELOPING)
	$(RUN)/python -m bench.gpu

bench: $(DEVELOPING)
	$(RUN)/python -m bench

compat: $(DEVELOPING)
	$(RUN)/python -m bench.compat

pictures: $(DEVELOPING)
	$(RUN)/python -m docs.pictures

reliability: $(DEVELOPING)
	$(RUN)/python -m bench.reliability

$(DEVELOPING): EXTRA := [dev]

$(SERVING) $(DEVELOPING):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Midstream needs Python 3.11 or newer: no $(PYTHON) was found. Name yours: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Midstream needs Python 3.11 or newer: \
	$(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV): once, a few minutes"
	@rm -f $(VENV)/.setup-*
	@$(RUN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(RUN)/python -m pip install --disable-pip-version-check -c requirements.lock setuptools
	@$(RUN)/python -m pip install --disable-pip-version-check -c requirements.lock --no-build-isolation \
	  -e 'clients/python[cli]' -e '.$(EXTRA)'
	@touch $(sort $@ $(SERVING))
