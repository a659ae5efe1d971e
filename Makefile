# Commands; each sets up .venv on a fresh machine with Python ≥ 3.11 and make:
#   make demo    show the shipped policy, train on the embedded demonstrations, evaluate, write videos to out/
#   make test    ruff, mypy on the installed package, and the tests, without the slow ones
#   make slow    slow tests, and those in a browser and on a Ray cluster
#   make quick   ruff and the fast tests of mathematics, methods, environments and inference, in half a minute
#   make docs    build the documentation in out/site
#   make lock    pin the newest versions, with hashes, for the tests
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
# Two test processes for each core: many tests wait for a clock or a server.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))

# Without compiled modules on disk, every process of a test would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

UV := VIRTUAL_ENV=$(VENV) UV_LINK_MODE=hardlink $(BIN)/uv pip
LOCK := $(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock"
# On a busy machine a test that goes by the clock can fail: tests that failed run once more, by themselves.
OR_AGAIN := || { test $$? = 1 && OMP_NUM_THREADS=1 $(BIN)/pytest --last-failed --last-failed-no-failures none; }

.PHONY: demo test slow quick docs lint types pytest browser ray lock clean

demo: $(VENV)/installed
	$(BIN)/nsde-policy doctor
	$(BIN)/nsde-policy eval --episodes 10 --render --videos 2 --out out/shipped
	$(BIN)/nsde-policy train --preset fast --out out/demo --resume
	$(BIN)/nsde-policy eval out/demo --render --videos 2 --out out/eval

test: lint
	$(MAKE) -j2 types pytest

slow: $(VENV)/tested
	$(MAKE) pytest CHOSEN=slow
	$(MAKE) browser
	$(MAKE) ray

quick: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n logical --dist worksteal -m "not slow and not browser and not gpu" \
		$(addprefix tests/,core methods interface policy envs training/test_fit.py training/test_dataset.py) \
		$(addprefix tests/test_,architecture.py config.py files.py)

docs: $(VENV)/tested
	$(BIN)/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Types are checked on an installed wheel, as users get it: an editable install hides missing folders.
types: $(VENV)/tested
	rm -rf build integrations/*/build $(VENV)/wheel
	$(BIN)/pip install -q --no-compile --no-deps --no-build-isolation --target $(VENV)/wheel . integrations/nsde_video
	cd $(VENV)/wheel && ../bin/mypy --config-file ../../pyproject.toml nsde_policy nsde_video

CHOSEN := not slow
pytest: $(VENV)/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest --cache-clear -n $(WORKERS) --dist worksteal -m "$(CHOSEN) and not browser and not ray" $(OR_AGAIN)

# One browser at a time, after all others: it draws without a GPU, and pages that wait for a core are late.
browser: $(VENV)/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest --cache-clear -q -m browser $(OR_AGAIN)

# Alone, after all others: the start of Ray fails on a busy machine.
ray: $(VENV)/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m ray

# Python compiles modules when they are first imported: pip would compile all of torch.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c $(CONSTRAINTS) -e '.[plot,video]'
	touch $@

# Tests use the locked versions, or with other CONSTRAINTS (/dev/null, .ci/oldest.txt) the newest that these allow.
# torch has no hash, because its builds differ by machine: CPU builds are not on PyPI.
$(VENV)/tested: pyproject.toml constraints.txt $(wildcard .ci/lock*.txt)
	$(PYTHON) -m venv $(VENV)
ifeq ($(CONSTRAINTS),constraints.txt)
	$(BIN)/pip install -q --no-compile --require-hashes -r .ci/lock-uv.txt
	$(UV) install -q --no-deps --no-build --require-hashes -r .ci/lock.txt
	$(BIN)/pip install -q --no-compile -c constraints.txt torch
	$(UV) install -q --no-deps --no-build-isolation -e . -e integrations/nsde_video
	$(UV) check
else
	$(BIN)/pip install -q --no-compile -c $(CONSTRAINTS) -e '.[plot,video,dev]' -e integrations/nsde_video setuptools
endif
	touch $(VENV)/installed $@

lock: $(VENV)/tested
	$(LOCK) --extra plot --extra video --extra adroit --extra metaworld --extra dev -c constraints.txt --no-emit-package torch \
		-o .ci/lock.txt pyproject.toml
	echo 'uv' | $(LOCK) -o .ci/lock-uv.txt -

clean:
	rm -rf $(VENV) build out *.egg-info
