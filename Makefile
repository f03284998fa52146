# Everything is set up by itself: `make demo` and `make test` work on a fresh clone. They need Linux
# with Python >= 3.10 (headers, venv), make and a C++ compiler.

PYTHON3 ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
PIP := $(PYTHON) -m pip --disable-pip-version-check
# What is imported is compiled then: most of torch never is.
INSTALL := $(PIP) install --quiet --no-compile
PYTEST := $(PYTHON) -m pytest
MPIRUN := $(BIN)/mpirun

# More ranks than cores, and root (containers): Open MPI refuses both unless told.
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

# What the native parts are made of: sources of the extension, of the catalogue, and its generator.
NATIVE_SOURCES := setup.py pyproject.toml \
  $(shell find cocoll -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd' -o -name '*.h') \
  $(shell find cocoll/kernels cocoll/epilogues cocoll/plan -name '*.py') cocoll/errors.py cocoll/dtypes.py
HEADERS := $(shell find cocoll tests -name '*.h' -not -path '*/_generated/*') \
  $(shell find tests -name '*.cpp' -not -path '*/build/*')

.PHONY: help build demo test test-patient test-unit test-ranks test-device test-errors test-failures \
  test-cluster test-repo test-native test-native-others test-long soak lint type format cuda bench-peers clean
.DELETE_ON_ERROR:
# One pip at a time in one environment, and tests that share the machine one after the other.
.NOTPARALLEL:

help:
	@echo "make demo         train on real digits with 4 ranks, with and without fusion"
	@echo "make test         all tests (torch's CPU build is installed for them)"
	@echo "make soak         ten minutes of random operations; SOAK_SECONDS=60: one"
	@echo "make build        the package, editable, in $(VENV)"
	@echo "make lint         style, types, stubs, spelling;  make format repairs style"
	@echo "make cuda         all kernels for all GPUs (no GPU needed; some minutes)"
	@echo "make bench-peers  the libraries that benchmarks compare with, in .venv-peers"
	@echo "make bench-SUITE  one suite of benchmarks/run.py"

# ---- environments: a stamp a set of packages, so that each target installs only what it needs ----

$(VENV)/.stamp-venv: pyproject.toml
	$(PYTHON3) -m venv $(VENV)
	$(INSTALL) --upgrade 'pip>=25.1'
	$(INSTALL) --group build
	@touch $@

$(VENV)/.stamp-build: $(NATIVE_SOURCES) $(VENV)/.stamp-venv
	$(INSTALL) --no-build-isolation --editable '.[mpi]'
	@touch $@

$(VENV)/.stamp-demo: $(VENV)/.stamp-venv
	$(INSTALL) --group demo
	@touch $@

$(VENV)/.stamp-lint: $(VENV)/.stamp-venv
	$(INSTALL) --group lint
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv
	$(INSTALL) --group test --group test-torch
	@touch $@

build: $(VENV)/.stamp-build

demo: $(VENV)/.stamp-build $(VENV)/.stamp-demo
	$(MPIRUN) -n 4 $(PYTHON) examples/train_digits.py

# ---- tests ----

test: test-unit test-ranks test-device test-errors test-patient test-native-others test-cluster \
  test-mpi-1 test-mpi-2 test-mpi-3 test-mpi-4 test-mpi-5 test-mpi-8

# Two at a time; those of a file of native tests share what they compile. Tests of failures look for
# what any process of cocoll has left behind: none of those runs beside them, nor beside clusters.
test-unit test-ranks test-device test-errors test-repo: WORKERS := -n 2 --dist worksteal
test-native: WORKERS := -n 2 --dist loadfile
test-unit test-ranks test-device test-errors test-failures test-cluster test-repo test-native: test-%: \
  $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PYTEST) $(WORKERS) tests/$*

# Tests of failures mostly wait; beside them run such as start no process of cocoll's.
PLANTED := tests/native/test_planted_bugs.py
test-patient: $(VENV)/.stamp-build $(VENV)/.stamp-test
	mkdir -p build
	{ $(PYTEST) -n 2 tests/repo && $(PYTEST) $(PLANTED); } >build/test-patient.log 2>&1 & beside=$$!; \
	status=0; $(PYTEST) tests/failures tests/soak || status=$$?; \
	wait $$beside || status=$$?; cat build/test-patient.log; exit $$status

test-native-others: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PYTEST) -n 2 --dist loadfile tests/native --ignore=$(PLANTED)

# A file descriptor captured by pytest would swallow what a rank says as it dies: capture=sys.
test-mpi-%: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(MPIRUN) -n $* --oversubscribe $(PYTHON) -m pytest --capture=sys -p no:cacheprovider tests/mpi

test-long: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PYTEST) -m long --ignore=tests/mpi tests
	for ranks in 1 3 4 5 8; do \
	  $(MPIRUN) -n $$ranks --oversubscribe $(PYTHON) -m pytest --capture=sys \
	    -p no:cacheprovider -m long tests/mpi || exit 1; \
	done

# Random operations for ten minutes, each checked; memory must stay flat. SOAK_SECONDS=60: a minute.
SOAK_SECONDS ?= 600
soak: $(VENV)/.stamp-build $(VENV)/.stamp-test
	$(PYTHON) -m tests.soak.soak --seconds $(SOAK_SECONDS)

# ---- style and types ----

lint: $(VENV)/.stamp-build $(VENV)/.stamp-lint $(VENV)/.stamp-test type
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(abspath $(BIN)):$$PATH" cython-lint cocoll
	$(if $(HEADERS),$(BIN)/clang-format --dry-run -Werror $(HEADERS))
	$(BIN)/codespell cocoll tests benchmarks examples docs README.md CHANGELOG.md Makefile setup.py
	$(PYTHON) tests/repo/lint_docstrings.py

type: $(VENV)/.stamp-build $(VENV)/.stamp-lint $(VENV)/.stamp-test
	$(BIN)/mypy
	$(BIN)/stubtest cocoll._core cocoll.cuda.binding --mypy-config-file pyproject.toml --ignore-disjoint-bases \
	  --allowlist tests/repo/stubtest_allowlist.txt

format: $(VENV)/.stamp-lint
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(if $(HEADERS),$(BIN)/clang-format -i $(HEADERS))

# ---- GPUs ----

cuda: $(VENV)/.stamp-build
	command -v nvcc >/dev/null || $(INSTALL) --group nvcc
	$(PYTHON) -m cocoll.kernels.precompilation build/cuda

# ---- benchmarks ----

bench-peers: $(VENV)/.stamp-build
	$(INSTALL) --no-build-isolation --editable '.[mpi,plot]'
	$(PYTHON3) benchmarks/peers/install.py

bench-hosts: $(VENV)/.stamp-build
	$(PYTHON) benchmarks/cluster/run.py --hosts 3 --ranks-per-host 2 --nic 400mbit -- \
	  $(PYTHON) benchmarks/run.py hosts

bench-%: $(VENV)/.stamp-build
	$(PYTHON) benchmarks/run.py $*

clean:
	rm -rf build dist *.egg-info cocoll/_core*.so cocoll/cuda/binding*.so cocoll/kernels/_catalogue_*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find cocoll tests benchmarks examples -name __pycache__ -type d -exec rm -rf {} +
	rm -f $(VENV)/.stamp-build
