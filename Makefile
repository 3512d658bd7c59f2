# `make demo` and `make test` do everything on a fresh machine; see README.md.
# Variables: VENV, PYTHON (what to make VENV with), JOBS, DEMO_ARGS,
# PYTEST_ARGS, BENCH_ARGS; MINUTES (soak), TIMES (soak-life).

SHELL := bash
MAKEFLAGS += --no-print-directory
VENV ?= .venv
JOBS ?= 2
MINUTES ?= 30
TIMES ?= 1000
PY := $(VENV)/bin/python

BUILD_INPUTS := setup.py pyproject.toml $(wildcard csrc/*/*.[ch])
CORE_SOURCES := $(wildcard csrc/*/*.c)
C_FILES := $(wildcard csrc/*/*.[ch] tests/c/*.[ch] benchmarks/*.[ch])
RELEASE := $(VENV)/.built-release
DEBUG := $(VENV)/.built-debug

.PHONY: help demo test build debug ctest asan ubsan tsan valgrind bench \
    soak soak-life fmt fmt-check tidy ruff mypy lint check clean FORCE

help:
	@echo 'make demo      an HTTP server under load on asyncio, uvloop, pyfastnet'
	@echo 'make test      the tests: C, then Python'
	@echo 'make build     pyfastnet into $(VENV); debug: with every assertion'
	@echo 'make ctest     the C tests alone; asan, ubsan, tsan, valgrind: under each'
	@echo 'make soak      MINUTES=30 of mixed load on four shards, every byte checked'
	@echo 'make soak-life forks, exits, finalization, threads: TIMES=1000 each'
	@echo 'make bench     the benchmarks, with pytest-benchmark'
	@echo 'make fmt       formats; lint: all linters; tidy: clang-tidy alone'
	@echo 'make check     what the continuous integration runs'
	@echo 'make clean     removes what was built (not $(VENV))'

demo: $(RELEASE) $(VENV)/.extra-bench
	$(PY) -m benchmarks.demo $(DEMO_ARGS)

test: ctest $(RELEASE) $(VENV)/.extra-test
	$(PY) -m pytest $(PYTEST_ARGS)

# -- building ---------------------------------------------------------------

# The script makes the environment if it is missing or belongs elsewhere, and
# leaves a good one alone.
$(VENV)/.where: FORCE
	@bash .ci/setup venv $(VENV)

$(VENV)/.extra-%: pyproject.toml $(VENV)/.where
	@bash .ci/setup extra $(VENV) $*
	@touch $@

define install
	@echo 'Building the C core ($(1)) ...'
	@rm -f $(VENV)/.built-*
	@$(2) $(PY) -m pip install -q --disable-pip-version-check \
	    --no-deps --no-build-isolation -e .
	@touch $@
endef

$(RELEASE): $(BUILD_INPUTS) $(VENV)/.extra-build
	$(call install,release,)

$(DEBUG): $(BUILD_INPUTS) $(VENV)/.extra-build
	$(call install,debug,PYFASTNET_DEBUG=1)

build: $(RELEASE)

debug: $(DEBUG)

# -- tests ------------------------------------------------------------------

ctest ubsan tsan valgrind:
	@bash .ci/setup tools
	$(MAKE) -C tests/c $@

asan:
	@bash .ci/setup tools
	$(MAKE) -C tests/c asan
	bash .ci/run pytest-sanitized

soak: $(RELEASE) $(VENV)/.extra-test
	$(PY) tests/soak.py --minutes $(MINUTES)

soak-life: $(RELEASE) $(VENV)/.extra-test
	$(PY) tests/lives.py --times $(TIMES)

bench: $(RELEASE) $(VENV)/.extra-bench
	@mkdir -p build
	$(PY) -m pytest benchmarks --benchmark-json=build/bench.json $(BENCH_ARGS)

# -- linters ----------------------------------------------------------------

fmt: $(VENV)/.extra-dev
	$(VENV)/bin/clang-format -i $(C_FILES)
	$(PY) -m ruff check -q --fix-only .

fmt-check: $(VENV)/.extra-dev
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)

tidy: $(VENV)/.extra-dev
	@include=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	printf '%s\0' $(CORE_SOURCES) | xargs -0 -n 1 -P $(JOBS) \
	    bash -c '$(VENV)/bin/clang-tidy --quiet "$$1" -- -std=c11 -Icsrc \
	        -isystem "$$0" 2>&1 | { grep -v "warnings\? generated\.$$" || true; }; \
	        exit $${PIPESTATUS[0]}' "$$include"

ruff: $(VENV)/.extra-dev
	$(PY) -m ruff check .

mypy: $(VENV)/.extra-dev
	$(PY) -m mypy

lint: fmt-check ruff mypy tidy

check:
	bash .ci/run

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f pyfastnet/*.so $(VENV)/.built-*
	find . -path './$(VENV)' -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf
	if [ -e tests/c/Makefile ]; then $(MAKE) -C tests/c clean; fi
