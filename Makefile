# Commands; each sets up .venv on a fresh machine with Python ≥ 3.11 and make:
#   make demo    replay and train on the embedded demonstrations, evaluate, write pictures to out/
#   make test    ruff, mypy on the installed package, and all tests
#   make quick   ruff and the fast tests of mathematics, methods, training and inference, in less than a minute
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
# Three test processes for two cores: many tests wait for a clock, a server or a browser.
WORKERS ?= $(shell expr 3 \* $$(getconf _NPROCESSORS_ONLN) / 2)

.PHONY: demo test quick lint types pytest clean

demo: $(VENV)/installed
	$(BIN)/nsde-policy doctor
	$(BIN)/nsde-policy data replay nsde_policy/assets/pusht_demos.zarr.zip --out out/replay.png
	$(BIN)/nsde-policy train --preset fast --out out/demo --resume
	$(BIN)/nsde-policy eval out/demo --render --videos 2 --out out/eval

test: lint
	$(MAKE) -j2 types pytest

quick: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not browser and not gpu" \
		$(addprefix tests/,core methods training inference envs tasks) \
		$(addprefix tests/test_,architecture.py style.py config.py files.py)

lint: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Types are checked on an installed wheel, as users get it: an editable install hides missing folders.
types: $(VENV)/tested
	rm -rf build $(VENV)/wheel
	$(BIN)/pip install -q --no-compile --no-deps --no-build-isolation --target $(VENV)/wheel .
	cd $(VENV)/wheel && ../bin/mypy --config-file ../../pyproject.toml nsde_policy

pytest: $(VENV)/tested
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal

# Python compiles modules when they are first imported: pip would compile all of torch.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c $(CONSTRAINTS) -e '.[plot,video]'
	touch $@

$(VENV)/tested: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c $(CONSTRAINTS) -e '.[plot,video,dev]' setuptools
	$(BIN)/pip install -q --no-compile --no-deps --target $(VENV)/pymunk-6 --upgrade 'pymunk==6.11.1'
	touch $(VENV)/installed $@

clean:
	rm -rf $(VENV) build out *.egg-info
