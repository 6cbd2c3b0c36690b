# Everything a developer or a visitor runs. Each target makes the environment itself; PYTHON=... names the interpreter.

# Settings for some other Python, Spark or Kafka must not reach into this environment.
unexport PYTHONPATH PYTHONHOME SPARK_HOME VIRTUAL_ENV
export PYTHON

BIN := .venv/bin
NO_SERVERS := not broker and not spark and not chaos

.PHONY: help setup demo test check bench chaos docs clean

help:
	@echo "make demo    a real broker, workers and the pipeline; one worker is killed; the sums are shown"
	@echo "make check   format, lint, types and the tests of the core: no server, no JVM, under a minute"
	@echo "make test    all tests but those of make chaos"
	@echo "make chaos   the tests that kill processes again and again"
	@echo "make bench   throughput of consume and produce, one JSON line per subject"
	@echo "make docs    the tests of what the documentation says"
	@echo "make clean   removes the environment and everything that tools left behind"

setup:
	@sh scripts/bootstrap

demo: setup
	@$(BIN)/marq demo

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(BIN)/python -m pytest -q -m "$(NO_SERVERS)" tests/core tests/test_*.py

test: setup
	@$(BIN)/python -m pytest -q -m "not chaos" --cov=marq.core --cov-branch --cov-fail-under=100

chaos: setup
	@$(BIN)/python -m pytest -q -m chaos

bench: setup
	@$(BIN)/marq bench consume --json
	@$(BIN)/marq bench produce --json

docs: setup
	@$(BIN)/python -m pytest -q tests/docs

clean:
	@rm -rf .venv build dist site artifacts spark-warehouse metastore_db
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
