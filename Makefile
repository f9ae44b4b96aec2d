# Every target sets up what it needs in .venv, on a machine that has only Python 3.11+ and make.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint types unit conformance chaos contract drivers plan-edits gpu native-ops bench bench-matrix compile-cost first-call regret bench-twice screenshots clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	YOSEGI_CHECK=1 $(BIN)/python -m pytest -n 2

# The public suite of the Array API standard: a clone of data-apis/array-api-tests with its submodule.
# make conformance SUITE=<path> [EXAMPLES=100]
EXAMPLES ?= 100
conformance: $(READY)
	@test -d "$(SUITE)/array_api_tests" || { echo "usage: make conformance SUITE=<clone of data-apis/array-api-tests>"; exit 2; }
	$(BIN)/python -m pip install -q -r "$(SUITE)/requirements.txt"
	cd "$(SUITE)" && ARRAY_API_TESTS_MODULE=yosegi $(CURDIR)/$(BIN)/python -m pytest array_api_tests \
	    -q -p no:cacheprovider -W ignore --max-examples $(EXAMPLES) --xfails-file $(CURDIR)/tests/conformance-xfails.txt

# Products, convolutions and reductions of hostile inputs under tolerances, and inputs that turn hostile at random
# moments: every error within its own.
PROGRAMS ?= 1000
CALLS ?= 20000
contract: $(READY)
	PYTHONPATH=tests YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/hostile.py --programs $(PROGRAMS)
	PYTHONPATH=tests YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/certificates.py --calls $(CALLS)

# Random programs over failing devices: every result right, nothing escapes, memory comes back.
GRAPHS ?= 2000
chaos: $(READY)
	PYTHONPATH=tests YOSEGI_CHECK=1 YOSEGI_BACKGROUND=0 $(BIN)/python -W ignore tests/chaos.py --graphs $(GRAPHS)

# Random programs over an OpenCL driver that crashes, hangs and computes wrong numbers on demand: see tests/stub_driver.py.
drivers: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/driver_faults.py

# Edited plan files over memory between guard pages: each is refused, gives the same bits, or is another program and right.
EDITS ?= 20000
plan-edits: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/plan_edits.py --edits $(EDITS)

# On a machine with an NVIDIA GPU, CuPy, and PyTorch to compare with: tests, random programs and times, into OUT.
OUT ?= gpu-run
gpu:
	OUT=$(OUT) $(PYTHON) tests/gpu_run.py

# The table of what each device of this machine runs itself.
native-ops: $(READY)
	$(BIN)/python -m pip install -q --editable ".[openvino]"
	{ echo "# What each device runs itself"; echo; echo "Made by \`make native-ops\`, here with OpenVINO and PoCL. All else runs on the host. In parts: a composite, through what it is made of."; \
	  echo; PYTHONPATH=tests $(BIN)/python tests/native_ops.py; } > docs/native-ops.md

# Measures this machine: bench.json, and bench.html to look at. A wrong result fails, after the page is made.
bench: $(READY)
	$(BIN)/yosegi bench --json bench.json; status=$$?; \
	    $(BIN)/yosegi report bench.json --output bench.html && exit $$status

# How much longer plans take than the best single device: regret.json, and docs/regret.md from it and from RUNS of other machines.
# Fails if more than 5% of the programs take more than 1.05 times the best device's time, or one more than 1.2 times.
regret: $(READY)
	-$(BIN)/yosegi regret --json regret.json --output /dev/null
	$(BIN)/yosegi regret regret.json $(RUNS) --output docs/regret.md

# The pictures in docs/, of the page that `make bench` made. They need chromium and chromium-driver.
screenshots: $(READY)
	@test -f bench.html || { echo "there is no bench.html; make bench writes it"; exit 2; }
	$(BIN)/python tests/report/screenshots.py bench.html docs

# Two runs of the suite, the second with one case made 15% slower on purpose: does the comparison find it, and nothing else?
bench-twice: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/bench_twice.py

# Products with bfloat16 inside, on a machine with AMX or AVX512-BF16: checked, then timed on two threads beside what is installed
# of PyTorch and MKL. make bench-matrix [SWEEP=--sweep] [MKL=<path of libmkl_rt.so>]
bench-matrix: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/matrix_units.py matrix.json $(SWEEP) $(if $(MKL),--mkl $(MKL))

# What compiling costs on the CPU: loops and products, in a process that has compiled nothing of the kind and in the next one.
compile-cost: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/compile_cost.py

# Time to the first result in a fresh process beside JAX, and what importing costs. Fails where a limit is not met.
first-call: $(READY)
	$(BIN)/python -c "import jax" 2>/dev/null || $(BIN)/python -m pip install -q jax
	$(BIN)/python -m compileall -q src
	$(BIN)/python tests/first_call.py

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Yosegi needs Python 3.11 or newer; name it with make PYTHON=<path>"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q --editable ".[opencl,report]" --group dev
	$(BIN)/python -m compileall -q src
	@touch $(READY)

clean:
	rm -rf .venv
