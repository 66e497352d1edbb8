# One task runner. `make` alone does what CI does. Everything it needs is installed, locked and hashed, into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BUILD_STAMP := $(VENV)/.build-tools
LOCK_VENV := .venv-lock
PIP := $(BIN)/python -m pip --disable-pip-version-check --require-virtualenv
PIP_INSTALL := $(PIP) install --quiet --require-hashes
PYTEST := $(BIN)/pytest -q -rfEs
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_STAMP := $(VENV)/.bench
BENCH_ARGS ?=
BENCH = $(BIN)/atomlog bench
WITH_BROKERS = $(BIN)/python -m deploy.kafka.around --nodes
UV_COMPILE := $(LOCK_VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := ci
.DELETE_ON_ERROR:
.PHONY: ci check test fuzz simulate soak-simulation soak-statemachine soak-corruption soak-processes chaos kafka kafka-down demo bench bench-large bench-smoke bench-memory bench-kafka install format wheel lock clean help prerequisites

ci: check test ## what CI runs (the default)

check: $(STAMP) ## lint, format, strict types, import contracts, docs checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q tests/house/test_docs.py tests/house/test_imports.py tests/house/test_layout.py

test: $(STAMP) ## every test (PYTEST_ARGS='-k name' to choose, PYTEST_WORKERS=n)
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup $(PYTEST_ARGS)

fuzz: $(STAMP) ## each decoder FUZZ_SECONDS=60 long, from a new seed; what it finds goes to tests/fuzz/corpus (FUZZ='name …')
	$(BIN)/python -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),60) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) $(FUZZ)

simulate: $(STAMP) ## one simulation again, with its trace: SEED=1441
	@$(BIN)/python -m tests.simulation --seed $(or $(SEED),$(error name a seed: make simulate SEED=1441))

soak-simulation: $(STAMP) ## simulations from a new seed on, SECONDS=600 long; prints where it began and what failed
	$(BIN)/python -m tests.simulation --soak $(or $(SECONDS),600)

soak-statemachine: $(STAMP) ## the state machine, ten times as long, from seed FIRST=1000 on; prints the seeds
	ATOMLOG_STATEMACHINE=10 ATOMLOG_STATEMACHINE_SEED=$(or $(FIRST),1000) $(PYTEST) -rfEsP -n $(PYTEST_WORKERS) tests/statemachine

soak-processes: $(STAMP) ## kills KILLS=500, power cuts CUTS=20; prints the seeds
	ATOMLOG_TEST_KILLS=$(or $(KILLS),500) ATOMLOG_TEST_CUTS=$(or $(CUTS),20) $(PYTEST) -s \
		tests/processes/test_kills.py tests/processes/test_power.py

soak-corruption: $(STAMP) ## damaged files, SCALE=20 times as many as CI tries, from a new SEED that it prints
	ATOMLOG_CORRUPTION_SCALE=$(or $(SCALE),20) ATOMLOG_CORRUPTION_SEED=$(or $(SEED),$(shell date +%s)) \
		$(BIN)/pytest -q -n $(PYTEST_WORKERS) tests/corruption $(PYTEST_ARGS)

chaos: $(STAMP) ## three brokers, kernels, consumers, faults: SEEDS=1-20, or new ones for SECONDS=600, or SCHEDULE=file; prints a table
	$(BIN)/python -m tests.chaos $(if $(SCHEDULE),--schedule $(SCHEDULE),$(if $(SEEDS),--seeds $(SEEDS),--seconds $(or $(SECONDS),600)))

kafka: ## one Kafka broker to try things, until make kafka-down (KAFKA_PORT=9092); prints its address
	@$(PYTHON) -m deploy.kafka up --port $(or $(KAFKA_PORT),9092)

kafka-down: ## stop that broker; its topics stay (ERASE=1 removes them)
	@$(PYTHON) -m deploy.kafka down $(if $(ERASE),--erase)

demo: $(STAMP) ## install, then run the program's own demonstration
	$(BIN)/atomlog demo

install: $(STAMP) ## only make the environment .venv

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_STAMP) ## measure the ladder, write docs/benchmarks.md (BENCH_ARGS='--only P1 --rounds 5')
	$(BENCH) --scale normal --page docs/benchmarks.md $(BENCH_ARGS)

bench-large: $(BENCH_STAMP) ## the same on up to a million atoms
	$(BENCH) --scale large --page docs/benchmarks.md $(BENCH_ARGS)

bench-smoke: $(BENCH_STAMP) ## every rung once, as small as it goes
	$(BENCH) --scale smoke --rounds 1 $(BENCH_ARGS)

bench-memory: $(STAMP) ## resident memory of a process that writes a million times (BENCH_WRITES=n)
	$(BIN)/python -m atomlog.consumers.bench.memory $(BENCH_WRITES)

bench-kafka: $(STAMP) ## the rungs over Kafka, on one broker and on three that it starts; needs Java 17 and Maven
	$(WITH_BROKERS) 1 -- $(BENCH) --scale normal --page docs/benchmarks.md --only P7,P11,P12 $(BENCH_ARGS)
	$(WITH_BROKERS) 1 -- $(BENCH) --scale normal --page docs/benchmarks.md --only P8 --rounds 1
	$(WITH_BROKERS) 3 -- $(BENCH) --scale normal --page docs/benchmarks.md --only P7 $(BENCH_ARGS)

wheel: $(STAMP) ## build dist/atomlog-….whl
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: $(LOCK_VENV)/.installed ## rewrite requirements/ from pyproject.toml (UPGRADE=1 moves every pin)
	$(UV_COMPILE) --group build -o requirements/build.txt
	$(UV_COMPILE) pyproject.toml -c requirements/build.txt -o requirements/run.txt
	$(UV_COMPILE) --group dev -c requirements/build.txt -c requirements/run.txt -o requirements/dev.txt
	$(UV_COMPILE) --group bench -c requirements/build.txt -c requirements/run.txt -c requirements/dev.txt -o requirements/bench.txt
	$(UV_COMPILE) --group lock -o requirements/lock.txt

clean: ## remove the environment, caches and built files
	rm -rf $(VENV) $(LOCK_VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# --- the environment: rebuilt only when the lock or pyproject.toml changes --------------------------------

# hnswlib comes as source only. Its build tools are installed first, from the lock, and pip is told to use those
# (--no-build-isolation), since an isolated build would fetch its own, without hashes. It is built for this
# processor and pip keeps the result: if the one in pip's cache came from another processor, it is built again.
SEARCH_ONCE := import hnswlib; i = hnswlib.Index("l2", 64); i.init_index(2); i.add_items([[0.0] * 64] * 2); i.knn_query([[0.0] * 64])
$(STAMP): $(BUILD_STAMP) requirements/run.txt requirements/dev.txt pyproject.toml
	@echo "installing the locked dependencies into $(VENV) (the first time, compiling hnswlib takes a while)"
	@$(PIP_INSTALL) --no-build-isolation -r requirements/run.txt -r requirements/dev.txt
	@$(BIN)/python -c '$(SEARCH_ONCE)' 2>/dev/null || \
		$(PIP_INSTALL) --no-build-isolation --no-cache-dir --no-deps --force-reinstall -r requirements/run.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements/bench.txt
	@$(PIP_INSTALL) -r requirements/bench.txt
	@touch $@

$(BUILD_STAMP): requirements/build.txt
	@$(MAKE) --no-print-directory prerequisites
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -r requirements/build.txt
	@touch $@

$(LOCK_VENV)/.installed: requirements/lock.txt
	@$(MAKE) --no-print-directory prerequisites
	@test -x $(LOCK_VENV)/bin/python || $(PYTHON) -m venv $(LOCK_VENV)
	@$(LOCK_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/lock.txt
	@touch $@

prerequisites:
	@command -v $(PYTHON) >/dev/null || { \
		echo "error: '$(PYTHON)' was not found. Install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: atomlog needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "error: '$(PYTHON)' has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
		echo "error: no C++ compiler was found; hnswlib is compiled at installation. On Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
	@inc=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))'); test -f "$$inc/Python.h" || { \
		echo "error: Python.h is not in $$inc; hnswlib is compiled against it. On Debian and Ubuntu: apt-get install python3-dev" >&2; exit 1; }
