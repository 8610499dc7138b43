# Every target can be run again: what is already there is left as it is.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: install demo test bench lint clean
.DEFAULT_GOAL := install

install: $(STAMP)

# Made again only when the dependencies change; the install is editable.
$(STAMP): setup.cfg pyproject.toml scripts/make_venv.sh
	PYTHON=$(PYTHON) sh scripts/make_venv.sh $(VENV)
	touch $(STAMP)

demo: install
	$(BIN)/python -m scripts.demo

test: install
	$(BIN)/python -m scripts.run_tests

bench: install
	$(BIN)/python -m bench $(BENCH_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis rock_on_celery.egg-info
	find app workers sdk tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
