# make try    install into .venv and diagnose the sample captures
# make check  what CI runs: lint, types, import contracts, tests, documentation drift, the documentation site
# Tests that record with PyTorch run where torch is installed: make check TORCH=torch
PYTHON ?= python3
VENV ?= .venv
TORCH ?=
# processes that tests run in: a number, or auto for as many as there are cores
WORKERS ?= auto
BIN = $(VENV)/bin
# Tests start hundreds of interpreters: none of them compiles the package, or the tests, anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: release-check try install check lint types contracts test docs docs-site generate accuracy picture screenshots clean

try:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/trace-doctor analyze sample_traces/dataloader_starvation/cpu/fault --source sample_traces/dataloader_starvation/fault.py

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml hatch_build.py $(wildcard analyzer/trace_doctor/loaders/_accelerator/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]' $(TORCH)
	touch $@

# Types and documentation take a core each; tests take both.
check: install
	$(MAKE) --jobs=2 lint types contracts docs
	$(MAKE) test

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

contracts: install
	$(BIN)/lint-imports

docs: install docs-site
	$(BIN)/python -m docs.generate --check

# The documentation as a site, in build/site; needs no network. A warning is an error.
docs-site: install
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --write-all -d build/doctrees -c docs . build/site

# Each worker begins with one half of the tests in their order, so that tests that share a fixture mostly run in one.
# What records and measures runs alone: a busy second core stretches waits and steps.
test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone $$(grep -rl --include='*.py' mark.alone tests)

# Generated pages: rule pages, the command-line reference, the JSON Schema.
generate: install
	$(BIN)/python -m docs.generate

# The decoder in C under sanitizers and a coverage-guided fuzzer (clang); see tests/fuzz/accelerator/README.md
FUZZ_SECONDS ?= 900
FUZZ = tests/fuzz/accelerator
fuzz-c:
	mkdir -p build/corpus
	$(PYTHON) $(FUZZ)/seeds.py build/seeds
	clang -g -O1 -std=c11 -fwrapv -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all '-DTRACE_DOCTOR_SOURCES=""' \
	  -Ianalyzer/trace_doctor/loaders/_accelerator $(FUZZ)/fuzz.c -o build/fuzz
	build/fuzz -max_len=4096 -timeout=10 -dict=$(FUZZ)/trace.dict -max_total_time=$(FUZZ_SECONDS) build/corpus build/seeds $(FUZZ)/cases

# How often the diagnosis is right, over the sample captures and (where they are there) labelled captures of others.
accuracy: install
	$(BIN)/python bench/accuracy --output bench/accuracy/RESULT.md

# Builds wheel and source as a release does, and installs them in new environments of each Python there is. Needs the network.
release-check:
	$(PYTHON) tests/release_check.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

# Pictures of a report in both themes and widths and as a printed page, to be looked at: make screenshots [REPORT=…] [SHOTS=…]
REPORT ?= /tmp/trace-doctor-picture.html
SHOTS ?= /tmp/trace-doctor-screenshots
screenshots: install
	test -f $(REPORT) || $(MAKE) picture
	$(BIN)/python -m docs.screenshots $(REPORT) $(SHOTS)

# The pictures of the tutorial and the README: the report of the simulated GPU run, in Chromium.
PICTURE = /tmp/trace-doctor-picture.html
picture: install
	$(BIN)/trace-doctor analyze sample_traces/dataloader_starvation/simulated/fault \
	  --source sample_traces/dataloader_starvation/fault.py -q -o html=$(PICTURE)
	chromium --headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --force-device-scale-factor=1 \
	  --window-size=1000,960 --screenshot=docs/pictures/top.png file://$(PICTURE)
	$(BIN)/python -m docs.screenshots $(PICTURE) docs/pictures timeline 700
	$(BIN)/python -m docs.screenshots $(PICTURE) docs/pictures findings 1180

# Both loaders under atheris (which has wheels for Python 3.11 to 3.13), each for FUZZ_SECONDS; see tests/fuzz/loaders/README.md
.PHONY: fuzz
fuzz: install
	$(BIN)/python -m pip install --quiet atheris
	for kind in trace snapshot; do \
	  $(BIN)/python tests/fuzz/loaders/loader_seeds.py $$kind build/fuzz-$$kind && \
	  $(BIN)/python tests/fuzz/loaders/fuzz.py $$kind build/fuzz-$$kind -dict=tests/fuzz/loaders/$$kind.dict \
	    -max_len=30000 -timeout=60 -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done
