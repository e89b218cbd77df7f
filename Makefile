# Two commands matter: `make demo` and `make test`. Both set up everything they need, in .venv, once. Another interpreter
# (PYTHON=python3.13) has an environment of its own (.venv-3.13) and leaves .venv alone.
PYTHON ?= python3
VERSION = $(or $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'),$(error PYTHON=$(PYTHON) does not run))
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(VERSION))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export MPLBACKEND := Agg

.PHONY: demo test test-all test-torch torch-suite storm check bench fuzz fuzz-sealed docs clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo      set up, then train a model across 8 sites of a real network, imitated here (2 minutes)"
	@echo "make test      set up, then lint, type-check and test (minutes)"
	@echo "make test-all  the same with the long sweeps"
	@echo "make test PYTHON=python3.13  the same with another interpreter, in an environment of its own; so for all commands"
	@echo "make test-torch TORCH=2.15.0  the PyTorch tests with that version, in an environment of its own"
	@echo "make torch-suite TORCH=2.15.0  PyTorch's own backend tests with that version, over Gloo and over Tradewind"
	@echo "make storm N=100000  that many simulated fault schedules on all cores; FIRST= is the first seed, STORM= more options"
	@echo "make fuzz      the wire decoder and the handshake for an hour; by coverage if Atheris is installed"
	@echo "make fuzz-sealed  the C code that decrypts frames, for an hour; CLANG=clang-14: with libFuzzer and OpenSSL's headers"
	@echo "make check     lint and types only"
	@echo "make bench     every benchmark, as ratios; tables go to docs/benchmarks"
	@echo "make docs      the documentation as a site in build/site; a dead link is an error"
	@echo "make clean     remove the virtual environments and caches"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Tradewind needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=...") if sys.version_info < (3, 11) else None'
ifeq ($(VENV),.venv)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch]'
	@touch $@
else
	@rm -f $@
	$(PYTHON) tests/support/torch_environment.py --optional $(shell sed -n 's/^torch==//p' constraints.txt) $(VENV)
endif

# Compiled by the installation as well; again where the source is newer, and not at all without a compiler.
KERNELS := src/tradewind/native/kernels
$(KERNELS).so: $(wildcard $(KERNELS).c src/tradewind/native/*.h) | $(STAMP)
	-@$(BIN)/python -m tradewind.native

demo: $(STAMP)
	$(BIN)/tradewind demo --out build/demo.html

check: $(STAMP) $(KERNELS).so
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: check
	$(BIN)/python -m pytest -n 2

test-torch:
	@test -n "$(TORCH)" || { echo "say which version: make test-torch TORCH=2.15.0"; exit 2; }
	$(PYTHON) tests/support/torch_environment.py $(TORCH) $(VENV)-torch-$(TORCH)
	$(VENV)-torch-$(TORCH)/bin/python -m pytest -n 2 -rs tests/torch

torch-suite:
	@test -n "$(TORCH)" || { echo "say which version: make torch-suite TORCH=2.15.0"; exit 2; }
	$(PYTHON) tests/support/torch_environment.py $(TORCH) $(VENV)-torch-$(TORCH)
	$(PYTHON) tests/support/torch_suite.py $(VENV)-torch-$(TORCH)

N ?= 2000
FIRST ?= 0
STORM ?=
storm: $(STAMP)
	$(BIN)/python tests/support/storms.py $(N) $(FIRST) $(STORM)

FUZZ_SECONDS ?= 3600
fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/wire.py $(FUZZ_SECONDS)

CLANG ?= clang
fuzz-sealed:
	mkdir -p build/sealed
	$(CLANG) -g -O1 -std=gnu11 -D_GNU_SOURCE -Wno-pass-failed -fsanitize=fuzzer,address,undefined \
	  -fno-sanitize-recover=undefined tests/fuzz/sealed.c -o build/fuzz-sealed -lcrypto
	build/fuzz-sealed -max_total_time=$(FUZZ_SECONDS) -max_len=96 build/sealed

bench: $(STAMP)
	$(BIN)/python -m benchmarks

DOCS := .venv-docs
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $$(sed -n '/^docs = \[/,/^]/s/^ *"\(.*\)",/\1/p' pyproject.toml)
	@touch $@

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict
	@echo "open build/site/index.html, or with search: python3 -m http.server --directory build/site"

clean:
	rm -rf .venv .venv-* build $(KERNELS).so .pytest_cache .mypy_cache .ruff_cache .hypothesis
