# Every target installs its tools into .venv. A machine needs Python 3.11 or newer and make.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo docs test lint types unit conformance chaos contract drivers metal coreml plan-edits transforms gpu native-ops names suites control kills kills-distributed parallel-example scaling sharded-programs bench bench-matrix compile-cost first-call regret bench-twice screenshots notebooks clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: lint types unit

# The documentation as a site: site/index.html. A broken link or an unknown name in a reference page fails.
docs: $(READY)
	$(BIN)/python -m pip install -q --editable ".[docs]"
	rm -rf site
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs site
	@echo "site/index.html"

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

# Products, convolutions and reductions of hostile inputs under tolerances, then calls whose inputs become hostile at
# random moments. Every error must be within its tolerance.
PROGRAMS ?= 1000
CALLS ?= 20000
contract: $(READY)
	PYTHONPATH=tests YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/hostile.py --programs $(PROGRAMS)
	PYTHONPATH=tests YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/certificates.py --calls $(CALLS)

# Random programs over failing devices: every result is correct, no failure escapes, all memory is released.
GRAPHS ?= 2000
chaos: $(READY)
	PYTHONPATH=tests YOSEGI_CHECK=1 YOSEGI_BACKGROUND=0 $(BIN)/python -W ignore tests/chaos.py --graphs $(GRAPHS)

# Transforms of random programs against JAX's.
TRANSFORMED ?= 300
transforms: $(READY)
	$(BIN)/python -c "import jax" 2>/dev/null || $(BIN)/python -m pip install -q jax
	PYTHONPATH=tests YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/transforms_vs_jax.py --programs $(TRANSFORMED)

# Random programs over an OpenCL driver that crashes, hangs and computes wrong numbers: see tests/stub_driver.py.
drivers: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/driver_faults.py

# The Metal device over a double of Metal's objects, with every op; needs g++, and clang-16 for the strict compilation.
# Then the tests of all devices, failing devices and the precision contract, with the double among the machine's devices.
APPLE := PYTHONPATH=tests:tests/fakes/apple YOSEGI_BACKGROUND=0
FAULTY := $(APPLE) YOSEGI_CHECK=1 YOSEGI_TEST_METAL_FAULTS=0.02 YOSEGI_TEST_COREML_FAULTS=0.02
APPLE_GRAPHS ?= 500
APPLE_CALLS ?= 2000
metal: $(READY)
	YOSEGI_TEST_METAL=whole YOSEGI_CHECK=1 $(BIN)/python -m pytest -n 2 tests/devices/test_metal.py \
	    tests/devices/test_metal_convolutions.py tests/devices/test_metal_programs.py tests/devices/test_metal_replay.py \
	    tests/codegen/test_strict_msl.py
	$(APPLE) $(BIN)/python -m pytest -n 2 tests/devices/test_ops.py tests/devices/test_windows.py -k metal
	$(APPLE) $(BIN)/yosegi devices
	$(FAULTY) $(BIN)/python -W ignore tests/chaos.py --graphs $(APPLE_GRAPHS)
	$(APPLE) YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/hostile.py --programs $(APPLE_GRAPHS) --device metal:0
	$(APPLE) YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/certificates.py --calls $(APPLE_CALLS) --devices metal:0

# The Core ML device over a double of Core ML's objects, and random programs with faults on it and on Metal's.
APPLE_PROGRAMS ?= 300
coreml: $(READY)
	$(BIN)/python -m pip install -q "coremltools==9.0"
	YOSEGI_CHECK=1 $(BIN)/python -m pytest -n 2 tests/devices/test_coreml.py
	PYTHONPATH=tests YOSEGI_CHECK=1 $(BIN)/python -W ignore tests/apple_programs.py --programs $(APPLE_PROGRAMS)
	$(APPLE) $(BIN)/python -m pytest -n 2 tests/devices/test_ops.py -k coreml
	$(APPLE) $(BIN)/yosegi devices
	$(FAULTY) $(BIN)/python -W ignore tests/chaos.py --graphs $(APPLE_GRAPHS)
	$(APPLE) YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/hostile.py --programs $(APPLE_GRAPHS) --device coreml:0
	$(APPLE) YOSEGI_CALIBRATE=0 $(BIN)/python -W ignore tests/certificates.py --calls $(APPLE_CALLS) --devices coreml:0

# Edited plan files over memory between guard pages: each is refused, gives the same bits, or is a different correct program.
EDITS ?= 20000
plan-edits: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/plan_edits.py --edits $(EDITS)

# Tests, random programs and times on an NVIDIA GPU with CuPy and PyTorch. Results go to the folder OUT.
OUT ?= gpu-run
gpu:
	OUT=$(OUT) $(PYTHON) tests/gpu_run.py

# The table of the ops that each device of this machine runs natively, and those of RUNS: tables of other machines.
native-ops: $(READY)
	$(BIN)/python -m pip install -q --editable ".[openvino]"
	{ echo "# Native ops of each device"; echo; echo 'Generated by `make native-ops`, here with OpenVINO and PoCL, and on an NVIDIA H200. "yes": the device runs the op. "native": the device runs the composite as one operation. "decomposed": the device runs the operations of the composite. Otherwise the cell has the reason, and the host runs the op.'; \
	  echo; PYTHONPATH=tests $(BIN)/python tests/native_ops.py $(RUNS); } > docs/reference/native-ops.md

# The tables of the names of NumPy, jax.numpy, torch and torch.nn.functional: docs/reference/names*.md.
names: $(READY)
	$(BIN)/python -c "import jax, torch" 2>/dev/null || $(BIN)/python -m pip install -q jax torch
	PYTHONPATH=tests $(BIN)/python tests/names.py

# The array API tests of SciPy and scikit-learn with Yosegi as the namespace: docs/reference/suites.md.
suites: $(READY)
	$(BIN)/python -m pip install -q "scipy==1.17.1" "scikit-learn==1.9.1"
	$(BIN)/python tests/peers/suites.py --output docs/reference/suites.md

# Random loops and branches, compared with JAX: values and gradients, with jit and without, on every device.
LOOPS ?= 300
control: $(READY)
	$(BIN)/python -c "import jax" 2>/dev/null || $(BIN)/python -m pip install -q jax
	PYTHONPATH=tests $(BIN)/python -W ignore tests/control_vs_jax.py --programs $(LOOPS)

# A training run killed at random moments, half of them in writing a checkpoint: it ends with the bits of one left alone.
KILLS ?= 20
kills: $(READY)
	$(BIN)/python tests/training/kills.py --kills $(KILLS)

# A training run on three processes, of which a random one is killed or stopped: the others end with the same loss.
kills-distributed: $(READY)
	$(BIN)/python -m pip install -q --editable ".[mpi]"
	$(BIN)/python tests/distributed/killed_ranks.py --kills 30

# The transformer example on 1, 2 and 4 processes, data, tensor and pipeline parallel: the losses of one process.
STEPS ?= 600
parallel-example: $(READY)
	$(BIN)/python -m pip install -q --editable ".[mpi]"
	$(BIN)/python tests/distributed/parallel_example.py $(STEPS)

# Step times of 1, 2 and 4 ranks, measured and simulated, and of up to 4,096 simulated ranks: docs/performance/scaling.md.
scaling: $(READY)
	$(BIN)/python -m pip install -q --editable ".[mpi]"
	PYTHONPATH=tests:tests/distributed $(BIN)/python tests/distributed/scaling.py --output docs/performance/scaling.md

# 500 random programs on tensors with random layouts, on one to six ranks: the values and gradients of one process.
sharded-programs: $(READY)
	$(BIN)/python tests/sharded_programs.py 500

# The benchmark of this machine: bench.json and bench.html. A wrong result fails after the page is written.
bench: $(READY)
	$(BIN)/yosegi bench --json bench.json; status=$$?; \
	    $(BIN)/yosegi report bench.json --output bench.html && exit $$status

# Plans compared with every single device: regret.json, and docs/performance/regret.md from it and from RUNS of other machines.
# Fails if more than 5% of the programs take more than 1.05 times the best device's time, or one more than 1.2 times.
regret: $(READY)
	-$(BIN)/yosegi regret --json regret.json --output /dev/null
	$(BIN)/yosegi regret regret.json $(RUNS) --output docs/performance/regret.md

# The images in docs/images/, of the page that `make bench` writes. Needs chromium and chromium-driver.
screenshots: $(READY)
	@test -f bench.html || { echo "there is no bench.html; make bench writes it"; exit 2; }
	$(BIN)/python tests/report/screenshots.py bench.html docs/images

# The tutorial as an executed notebook, docs/tutorial.ipynb, and its pictures in docs/images/.
notebooks: $(READY)
	$(BIN)/python -m pip install -q nbclient nbconvert ipykernel
	PYTHONPATH=tests YOSEGI_DEVICE=cpu $(BIN)/python tests/notebooks.py

# Two runs of the suite, the second with one case slowed by 15%. The comparison must find this case and no other.
bench-twice: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/bench_twice.py

# bfloat16 products on AMX or AVX512-BF16: checked, then timed on two threads beside PyTorch and MKL, if installed.
# make bench-matrix [SWEEP=--sweep] [MKL=<path of libmkl_rt.so>]
bench-matrix: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/matrix_units.py matrix.json $(SWEEP) $(if $(MKL),--mkl $(MKL))

# Compile time on the CPU: loops and products, in a process without cached code and in the next process.
compile-cost: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/compile_cost.py

# Time to the first result in a fresh process beside JAX, and import time. Fails if a limit is exceeded.
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
