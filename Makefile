# The commands a newcomer types. Each does all the set-up it needs, on a machine that has CPython 3.11+ and make.
#
#   make demo [CONNECTIONS=10000]   start the server, drive it with real connections, print the verdict
#   make test [JOBS=6]              run every test, in six processes, for most of the time tests wait: 23 minutes on two cores
#   make test-quick                 the tests that need no Java and no crowd of connections: about a minute on two cores
#   make test-latest                the tests of guarded servers with the newest release of each, in a second environment
#   make uvicorn-demo               a FastAPI application under uvicorn twice, stock and guarded; both probed
#   make attach-demo [CONNECTIONS=10000]
#                                   nginx with its timeouts off, half its clients silent, guarded from outside
#   make pipeline-demo              real traffic -> journals -> audit, advice and report, by both engines
#   make bench                      every claim compared with every peer, about an hour; writes docs/performance.md
#   make bench-quick                the same, smaller, about five minutes; into out/bench/
#   make campaign [MINUTES=60]      trials that last: lifetimes, signals, restarts, killed workers, full disks, attackers
#   make interop                    attack tools, a reverse proxy and a fuzzer against the HTTP server
#   make docs                       the documentation as a site, into out/site/; a warning is an error
#   make lint                       ruff and mypy
#   make format                     have ruff lay out the code
#   make coverage                   which branches the quick tests take, by room, into out/coverage/
#   make dist                       the source distribution and the wheel, into dist/
#   make check-dist                 the same, and whether a package index would take them (twine check)
#   make clean                      forget .venv and out/

PYTHON ?= python3
CONNECTIONS ?= 10000
JOBS ?= 6
MINUTES ?= 60
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo uvicorn-demo attach-demo pipeline-demo interop campaign bench bench-quick test test-quick test-latest \
        docs lint format coverage dist check-dist clean
.DEFAULT_GOAL := demo

demo: .venv/.demo
	@$(BIN)/python -m scripts.demo --connections $(CONNECTIONS)

uvicorn-demo: .venv/.dev
	@$(BIN)/python -m scripts.uvicorn_demo

attach-demo: .venv/.demo
	@$(BIN)/python -m scripts.attach_demo --connections $(CONNECTIONS)

pipeline-demo: .venv/.dev
	@$(BIN)/python -m scripts.pipeline_demo

interop: .venv/.dev
	@$(BIN)/python -m scripts.campaign --interop --minutes 0.5

campaign: .venv/.dev
	@$(BIN)/python -m scripts.campaign --minutes $(MINUTES) $(if $(DOCUMENT),--document)

bench: .venv/.dev
	$(BIN)/python -m benchmarks run
	$(BIN)/python -m benchmarks document

bench-quick: .venv/.dev
	$(BIN)/python -m benchmarks run --quick --out out/bench
	$(BIN)/python -m benchmarks document --results out/bench --out out/bench/performance.md

# A dot per test as it ends, and the slowest at the end.
test: .venv/.dev
	@$(BIN)/python -m pytest -n $(JOBS) --durations=15 $(PYTEST)

test-quick: .venv/.dev
	@$(BIN)/python -m pytest -q -n auto --hypothesis-profile=quick -m "not slow and not spark" $(PYTEST)

# As `make test` without Java, in out/latest; prints which tested ranges may be widened.
test-latest: .venv/.dev
	@$(BIN)/python -m scripts.latest

docs: .venv/.dev
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs -d out/site-doctrees . out/site
	@echo "out/site/index.html"

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy reaper loadgen server_example benchmarks scripts tests
	@echo "every public name has a type, also for pyright"
	@PYTHONPATH="$(CURDIR):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  $(BIN)/basedpyright --pythonpath $(BIN)/python --verifytypes reaper --ignoreexternal >.venv/types.txt \
	  || { grep -B1 -A1 -E 'missing type|Ambiguous|Type unknown' .venv/types.txt || cat .venv/types.txt; exit 1; }

format: .venv/.dev
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

# In this process alone: what a test starts as a process of its own does not count.
coverage: .venv/.dev
	@rm -rf out/coverage && mkdir -p out/coverage
	@$(BIN)/python -m coverage run -m pytest -q -p no:cacheprovider --hypothesis-profile=quick -m "not slow and not spark" $(PYTEST)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage html --quiet --directory out/coverage/html
	@$(BIN)/python -m coverage report --format=markdown | tee out/coverage/report.md

dist: .venv/.dev
	@$(BIN)/python -m build --no-isolation --outdir dist . >.venv/build.txt 2>&1 || { cat .venv/build.txt; exit 1; }
	@ls dist

check-dist: dist
	@test -x out/twine/bin/twine || { $(PYTHON) -m venv out/twine && out/twine/bin/pip install --quiet --disable-pip-version-check twine==7.0.0; }
	@out/twine/bin/twine check --strict dist/*

# A stamp a level of set-up, so that a second run starts at once; what is installed for the demo is not installed again.
.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "reaper needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	@echo "setting up .venv (once)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "cannot make .venv with $(PYTHON): is its venv module installed?" >&2; exit 1; }
	@touch $@

.venv/.demo: .venv/.python pyproject.toml constraints.txt
	@echo "installing what the demo runs (once, about 20 s)"
	@$(PIP) --editable '.[trio,http,cli,pressure]' 2>.venv/error || { echo "cannot install the packages: is the package index reachable? pip's own words are in .venv/error" >&2; exit 1; }
	@touch $@

.venv/.dev: .venv/.demo
	@echo "installing what the tests need (once, about a minute)"
	@$(PIP) --editable '.[dev]' 2>.venv/error || { echo "cannot install the packages: is the package index reachable? pip's own words are in .venv/error" >&2; exit 1; }
	@touch $@

clean:
	rm -rf .venv out dist build *.egg-info
