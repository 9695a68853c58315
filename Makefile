# `make demo` and `make test` need Python >= 3.11 (a C compiler makes them fast): they create .venv
# and install the versions in constraints.txt, each file checked against its SHA-256 there. pip's
# own variables are honoured (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS); see
# CONTRIBUTING.md for the smaller CPU build of torch.
# Where apt-get may be used (as root, or by sudo without a password), they also install CMake and the
# compiler and emulator of the Cortex-M tests; elsewhere those tests are skipped and say why.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BENCH_OUT ?= runs/bench_train.json
SAME_BITS ?= --data digits --steps 300
FUZZ_SECONDS ?= 600
CHECKED := tests/test_architecture.py tests/test_project.py tests/test_operators.py \
	tests/test_figures.py tests/test_errors.py tests/test_api.py tests/spec tests/numerics
FUZZ ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
LOCK := constraints.txt tools/install.py tools/locked.py
DECLARED := pyproject.toml $(LOCK)

# command:package
BUILD := cmake:cmake c++:g++
ARM := arm-none-eabi-gcc:gcc-arm-none-eabi qemu-system-arm:qemu-system-arm
OTHERS := clang:clang clang:libclang-rt-dev valgrind:valgrind qemu-s390x:qemu-user \
	aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross \
	s390x-linux-gnu-gcc:gcc-s390x-linux-gnu s390x-linux-gnu-gcc:libc6-dev-s390x-cross \
	riscv64-linux-gnu-gcc:gcc-riscv64-linux-gnu riscv64-linux-gnu-gcc:libc6-dev-riscv64-cross
BROWSER := chromium:chromium

# Tests start many processes, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-slow lint format pins fuzz fuzz-corpus mutants bench same-bits docs wheel \
	lock sbom audit clean
.DELETE_ON_ERROR:

demo: $(VENV)/.stamp-demo $(VENV)/.stamp-arm
	$(BIN)/samebits demo --out demo-out

# What a change most often breaks, in at most three minutes.
check: lint
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow" $(CHECKED)

test: lint $(VENV)/.stamp-arm
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-slow: lint $(VENV)/.stamp-arm $(VENV)/.stamp-others $(VENV)/.stamp-tensorflow \
		$(VENV)/.stamp-torchvision $(VENV)/.stamp-transformers $(VENV)/.stamp-timm \
		$(VENV)/.stamp-quantizers \
		$(VENV)/.stamp-detector \
		$(VENV)/.stamp-docs $(VENV)/.stamp-examples $(VENV)/.stamp-browser
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.stamp-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.stamp-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pins: $(VENV)/.stamp-test
	PYTHONPATH=tests $(BIN)/python -m pins

# Every reader of untrusted files, or those in FUZZ; cases and defects lie in runs/fuzz.
fuzz: $(VENV)/.stamp-test
	PYTHONPATH=tests $(BIN)/python -m fuzzing $(FUZZ) --seconds $(FUZZ_SECONDS) --jobs $(WORKERS)

fuzz-corpus: $(VENV)/.stamp-test
	PYTHONPATH=tests $(BIN)/python -m fuzzing $(FUZZ) --make-corpus

mutants: $(VENV)/.stamp-mutants
	$(BIN)/python benchmarks/mutants.py --out runs/mutants

bench: $(VENV)/.stamp-bench
	$(BIN)/python benchmarks/bench_train.py --out $(BENCH_OUT)

same-bits: $(VENV)/.stamp-bench
	$(BIN)/python benchmarks/same_bits.py $(SAME_BITS) --out runs/same_bits.json

wheel: $(VENV)/.stamp-build
	$(BIN)/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .

# After a version in constraints.txt was changed: the SHA-256 of its files, from the index.
lock: $(VENV)/.stamp-lock
	$(BIN)/python tools/lock.py

# What constraints.txt lists, as CycloneDX JSON.
sbom:
	$(PYTHON) tools/sbom.py --out dist/samebits.cdx.json

# Whether anything that constraints.txt lists is known to be vulnerable.
audit:
	$(PYTHON) tools/audit.py

# The site, from docs/, README.md and the sources, into build/site; figures come from docs/records.
docs: $(VENV)/.stamp-docs
	$(BIN)/python tools/figures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf demo-out build dist runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(VENV)/.stamp-*

# --- installing ---------------------------------------------------------------------------------
# A stamp per set of extras: nothing is installed again until a declared version changes.

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch alone first, so that what comes after cannot choose another build of it.
$(VENV)/.stamp-torch: $(LOCK) | $(BIN)/python
	$(INSTALL) torch
	touch $@

$(VENV)/.stamp-demo: $(DECLARED) $(VENV)/.stamp-torch
	$(INSTALL) '.[demo]'
	touch $@

$(VENV)/.stamp-test: $(DECLARED) $(VENV)/.stamp-torch
	$(INSTALL) '.[test,lint]'
	touch $@

$(VENV)/.stamp-bench: $(DECLARED) $(VENV)/.stamp-torch
	$(INSTALL) '.[bench]'
	touch $@

$(VENV)/.stamp-docs: $(DECLARED) $(VENV)/.stamp-torch
	$(INSTALL) '.[docs]'
	touch $@

# For the notebooks of examples/.
$(VENV)/.stamp-examples: $(DECLARED) $(VENV)/.stamp-test
	$(INSTALL) '.[examples]'
	touch $@

# What builds the wheel.
$(VENV)/.stamp-build: $(DECLARED) | $(BIN)/python
	$(INSTALL) setuptools
	touch $@

$(VENV)/.stamp-lock: $(LOCK) | $(BIN)/python
	$(INSTALL) uv
	touch $@

$(VENV)/.stamp-mutants: $(DECLARED) $(VENV)/.stamp-torch
	$(INSTALL) '.[mutants]'
	touch $@

# Not every Python has a build of it: never an error, and tried again the next time.
$(VENV)/.stamp-tensorflow: $(DECLARED) $(VENV)/.stamp-test
	@if $(INSTALL) '.[tensorflow]'; then touch $@; else \
		echo "could not install: TensorFlow; the tests that need it are skipped"; fi

# Alone, since it asks for one build of torch; the tests use it with any, without what it compiled.
$(VENV)/.stamp-torchvision: $(DECLARED) $(VENV)/.stamp-test
	@if $(INSTALL) --no-deps torchvision; then touch $@; else \
		echo "could not install: torchvision; the tests that need it are skipped"; fi

# Alone too: Brevitas asks for an old setuptools, which it does not use here.
$(VENV)/.stamp-quantizers: $(DECLARED) $(VENV)/.stamp-test
	@if $(INSTALL) --no-deps torchao brevitas dependencies onnxscript onnx_ir onnxoptimizer; then \
		touch $@; else \
		echo "could not install: torchao, Brevitas; the tests that need them are skipped"; fi

# Its file alone: the package itself asks for torchaudio.
$(VENV)/.stamp-detector: $(DECLARED) $(VENV)/.stamp-test
	@if $(INSTALL) --no-deps silero-vad; then touch $@; else \
		echo "could not install: silero-vad; the tests that need it are skipped"; fi

$(VENV)/.stamp-transformers: $(DECLARED) $(VENV)/.stamp-test
	@if $(INSTALL) transformers; then touch $@; else \
		echo "could not install: transformers; the tests that need it are skipped"; fi

# Alone too; what loads weights, which no test does, is what transformers has.
$(VENV)/.stamp-timm: $(VENV)/.stamp-torchvision $(VENV)/.stamp-transformers
	@if $(INSTALL) --no-deps timm; then touch $@; else \
		echo "could not install: timm; the tests that need it are skipped"; fi

# A browser of the system, and what drives it; Playwright's own browsers are not fetched.
$(VENV)/.stamp-browser: Makefile $(DECLARED) $(VENV)/.stamp-test
	@tools/system_packages.sh $(BROWSER)
	@if $(INSTALL) '.[browser]'; then touch $@; else \
		echo "could not install: Playwright; the tests that need it are skipped"; fi

# System packages: never an error, since everything works without them but the tests that need them.
$(VENV)/.stamp-arm: Makefile | $(BIN)/python
	@tools/system_packages.sh $(BUILD) $(ARM)
	@touch $@

$(VENV)/.stamp-others: Makefile | $(BIN)/python
	@tools/system_packages.sh $(OTHERS)
	@touch $@
