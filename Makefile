# Two commands set everything up: `make run` and `make test`.
SHELL := /bin/bash
# The versions for which all dependencies have wheels.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OTHERS := tests/node/node_modules/.ready
PROTOS := $(shell find protos -name '*.proto' 2>/dev/null | LC_ALL=C sort)
CLIENT := clients/python
API := $(CLIENT)/strata/api
GENERATED := $(CLIENT)/strata/client/generated
CALLS := docs/guides/python-calls.md
# The programs in Go are for tests. A build without optimization takes a quarter less processor time.
GO_BUILD := CGO_ENABLED=0 go build -gcflags='all=-N -l -dwarf=false' -ldflags='-s -w'

# Without bytecode every process, those that tests start included, compiles all modules at its start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-unit test-unit-1 test-unit-2 test-slow test-local-model clients programs tools promtool check lint types imports proto proto-check breaking k8s-check bench bench-peers bench-scale bench-capacity docs screenshots format lock clean

help: ## Show the commands.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

# The project brings its own uv, so that a machine needs nothing but Python. Where Python is too new or too
# old, uv finds or fetches another version.
$(READY): requirements.lock pyproject.toml clients/python/pyproject.toml
	@test -n "$(PYTHON)" -o -x $(BIN)/python || { \
		echo "Strata needs Python 3.11, 3.12, 3.13 or 3.14; uv looks for one, or fetches it."; \
		python3 -m venv .make/uv && .make/uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1' \
		&& .make/uv/bin/uv venv --quiet --seed --python '>=3.11,<3.15' $(VENV) \
		|| { echo "There is none. Install one of these versions, and put it on the PATH."; exit 1; }; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-deps --editable clients/python --editable .
	@$(BIN)/python -m strata.shared.search.embedding.prepare
	@touch $(READY)

# Third-party MCP servers and HTTP clients, for the tests; without Node those tests are skipped.
$(OTHERS): tests/node/package-lock.json
	@if command -v npm >/dev/null; then \
		cd tests/node && npm ci --ignore-scripts --no-audit --no-fund --silent && touch node_modules/.ready; fi

# The clients in other languages. Their code is generated from the public contracts, and is not in the
# repository.
CONTRACTS := $(PROTOS) clients/generate.py gateway/strata/gateway/registry.py
WITH_NPM := $(if $(shell command -v npm),.make/clients/typescript)
WITH_GO := $(if $(shell command -v go),.make/clients/go)
WITH_MAVEN := $(if $(shell command -v mvn),.make/clients/java)
clients: $(READY) $(WITH_NPM) $(WITH_GO) $(WITH_MAVEN) ## Build the clients whose toolchains are installed: TypeScript, Go, Java.

.make/clients/typescript: $(READY) $(CONTRACTS) clients/typescript/package-lock.json \
		$(wildcard clients/typescript/*.json clients/typescript/src/*.ts clients/typescript/examples/*.*)
	@cd clients/typescript && npm ci --ignore-scripts --no-audit --no-fund --silent
	@$(BIN)/python clients/generate.py typescript
	@cd clients/typescript && npm run --silent build
	@mkdir -p $(@D) && touch $@

# A toolchain that is too old, or packages that cannot be fetched, are not an error: the tests that need them
# are skipped, with a reason. Code that does not compile is an error.
FETCH := $(if $(shell command -v timeout),timeout 300)
NOT_BUILT = echo "$(1) cannot be built here, see $(2): tests that need it are skipped."

.make/clients/go: $(READY) $(CONTRACTS) $(wildcard clients/go/go.* clients/go/strata/*.go clients/go/examples/*/*.go)
	@mkdir -p $(@D)
	@cd clients/go && if $(FETCH) go mod download >../../$@.log 2>&1; then \
		$(GO_BUILD) -o bin/plugins/ tool \
		&& (cd ../.. && $(BIN)/python clients/generate.py go clients/go/bin/plugins) \
		&& $(GO_BUILD) -o bin/ ./examples/... \
		&& $(subst go build,go test -c,$(GO_BUILD)) -o bin/ ./strata \
		&& touch ../../$@; \
	else $(call NOT_BUILT,clients/go,$@.log); fi

# A short Java process is faster with one compiler and one thread for garbage collection.
JAVA_SOURCES := $(PROTOS) $(shell find clients/java -path '*/target' -prune -o -type f -print)
define BUILD_JAVA
@mkdir -p $(@D)
@cd clients/java && export MAVEN_OPTS='-XX:+UseSerialGC -XX:TieredStopAtLevel=1' LOG=../../$@.log; \
	if $(FETCH) mvn --batch-mode --quiet --no-transfer-progress $(1) test-compile >$$LOG 2>&1; then \
		touch $(addprefix ../../$(@D)/,$(2)); \
	elif grep -qE 'Could not transfer|release version|No compiler' $$LOG; then $(call NOT_BUILT,clients/java,$@.log); \
	else cat $$LOG; exit 1; fi
endef

.make/clients/java: $(JAVA_SOURCES)
	$(call BUILD_JAVA,,java java-example)

# For the tests: only what the example uses, in half the time.
.make/clients/java-example: $(JAVA_SOURCES)
	$(call BUILD_JAVA,--activate-profiles example,java-example)

# Third-party programs in Go that tests use: the conformance tests of the Connect protocol, and grpcurl. They are
# built without the xDS resolver of grpcurl, which no test uses, and which would take 40 % of the time.
tools: $(WITH_GO:.make/clients/go=.make/tools/.ready) ## Build the programs that some tests need, if Go is installed.

.make/tools/.ready: tests/go/go.mod tests/go/go.sum
	@mkdir -p $(@D)/source && cp tests/go/go.* $(@D)/source
	@cd $(@D)/source && if $(FETCH) go mod vendor >../vendor.log 2>&1; then \
		rm vendor/google.golang.org/grpc/xds/*.go && echo 'package xds' >vendor/google.golang.org/grpc/xds/xds.go \
		&& $(GO_BUILD) -o .. tool \
		&& protos=$$(go list -mod=mod -m -f '{{.Dir}}' connectrpc.com/conformance)/proto/connectrpc/conformance/v1 \
		&& folder=../conformance-protos/connectrpc/conformance/v1 && mkdir -p $$folder \
		&& cp -f $$protos/config.proto $$protos/service.proto $$protos/server_compat.proto $$folder \
		&& chmod u+w $$folder/*.proto && touch ../.ready; \
	else $(call NOT_BUILT,tests/go,$(@D)/vendor.log); fi

# A separate module, which `make tools` leaves out: the build takes five minutes of CPU, even without the
# service discovery of every cloud.
promtool: ## Build promtool, with which tests check metrics and alert rules, if Go is installed.
	@! command -v go >/dev/null || $(MAKE) --no-print-directory .make/tools/promtool

.make/tools/promtool: tests/go/promtool/go.mod tests/go/promtool/go.sum
	@mkdir -p $(@D)
	@cd tests/go/promtool && CGO_ENABLED=0 go build -tags remove_all_sd -ldflags '-s -w' -o ../../../$@ tool

setup: $(READY) ## Make the virtual environment.

run: $(READY) ## Start Strata with embedded engines and chat with an agent.
	@$(BIN)/strata run

# What tests need beside Python packages; two at a time, since each of them waits for the network in between.
programs: $(OTHERS) $(WITH_NPM) $(WITH_GO) $(WITH_MAVEN:=-example) tools

test: $(READY) ## Run all tests but the slow ones.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target programs
	@$(BIN)/python -m pytest -q -n 4 --dist loadfile --durations 25

# Two processes with half of the tests each: with pytest-xdist each of them would import all tests, and a third one
# would collect their results. Together that takes a sixth of the processor time.
test-unit: $(READY) ## Run the tests that start no engine and no process.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-unit-1 test-unit-2

UNIT := -q -m 'not child_process and not slow and not local_model'
# These take about as long as the others.
UNIT_1 := $(wildcard $(addprefix tests/unit/,house gateway $(notdir $(wildcard services/strata/*))))

test-unit-1: $(READY)
	@$(BIN)/python -m pytest $(UNIT) $(UNIT_1)

test-unit-2: $(READY)
	@$(BIN)/python -m pytest $(UNIT) $(addprefix --ignore=,$(UNIT_1)) tests/unit

test-slow: $(READY) ## Run the long forms of fault, soak, load and property tests.
	@$(BIN)/python -m pytest -q -m slow --timeout 1800
	@$(BIN)/python -m pytest -q -n 2 -m 'hypothesis and not slow' --hypothesis-profile thorough --timeout 1800

test-local-model: $(READY) ## Run the tests that need the local demo model.
	@$(BIN)/python -m pytest -q -m local_model --timeout 1800

check: $(READY) ## Lint, types, import rules, proto drift, manifests.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types k8s-check proto-check lint imports

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

imports: $(READY)
	@PYTHONPATH=shared:services:gateway:standalone:clients/cli:clients/python $(BIN)/lint-imports --no-cache

proto: $(READY) ## Generate the Python code of the protos, and the calls of the client.
	@$(BIN)/buf lint
	@find $(API) -type f ! -name py.typed -delete
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos --python_out=$(CLIENT) \
		--mypy_out=quiet:$(CLIENT) --grpc_python_out=$(CLIENT) --mypy_grpc_out=quiet,generate_concrete_servicer_stubs,only_async:$(CLIENT) $(PROTOS)
	@for f in $$(find $(API) -name '*_pb2_grpc.py'); do \
		grep -q Servicer $$f || rm -f $$f $${f%.py}.pyi; done
	@$(BIN)/python clients/generate_python.py

proto-check: $(READY)
	@$(BIN)/buf lint
	@rm -rf .make/proto && mkdir -p .make/proto
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos --python_out=.make/proto \
		--mypy_out=quiet:.make/proto --grpc_python_out=.make/proto --mypy_grpc_out=quiet,generate_concrete_servicer_stubs,only_async:.make/proto $(PROTOS)
	@for f in $$(find .make/proto -name '*_pb2_grpc.py'); do \
		grep -q Servicer $$f || rm -f $$f $${f%.py}.pyi; done
	@diff -r -q -x __pycache__ -x py.typed .make/proto/strata/api $(API) || \
		{ echo "Generated code differs from the protos: run 'make proto' and commit."; exit 1; }
	@$(BIN)/python clients/generate_python.py .make/proto
	@diff -r -q -x __pycache__ .make/proto/$(GENERATED) $(GENERATED) && diff -q .make/proto/$(CALLS) $(CALLS) || \
		{ echo "The Python client differs from the protos: run 'make proto' and commit."; exit 1; }
	@$(MAKE) --no-print-directory breaking

# Compares the contracts with the main branch if there is one (in a fresh clone it is origin/main).
# Accepted changes are listed, without their line numbers, in protos/breaking_exceptions.txt.
breaking: $(READY)
	@base=$$(git merge-base HEAD origin/main 2>/dev/null || true); \
	if [ -n "$$base" ] && git cat-file -e $$base:buf.yaml 2>/dev/null; then \
		report=$$($(BIN)/buf breaking --against ".git#ref=$$base"); status=$$?; \
		if [ $$status -ne 0 ] && [ $$status -ne 100 ]; then exit $$status; fi; \
		! printf '%s' "$$report" | sed -E 's/:[0-9]+:[0-9]+:/: /' | grep -vxFf protos/breaking_exceptions.txt; \
	else echo "No earlier contracts to compare with."; fi

k8s-check: $(READY)
	@$(BIN)/python -m pytest -q tests/unit/k8s

bench: $(READY) ## Measure Strata beside its floors.
	@$(BIN)/python -m benchmarks

bench-peers: $(READY) ## Measure a plain turn of Strata beside libraries, which it installs.
	@$(BIN)/python -m benchmarks.peers.environment
	@$(BIN)/python -m benchmarks --only plain_turn --only peers

bench-scale: $(READY) ## Measure Strata with 100,000 passages, a million messages and 100,000 agents.
	@$(BIN)/python -m benchmarks.scale

bench-capacity: $(READY) ## Measure what a turn needs of each service, and predict clusters.
	@$(BIN)/python -m benchmarks.capacity

screenshots: $(READY) ## Make the pictures of the console in docs/images.
	@PYTHONPATH=tests:tests/support $(BIN)/python tests/data/screenshots/make.py

docs: $(READY) ## Write the tables of settings and metrics in docs.
	@$(BIN)/python docs/generate_configuration.py
	@$(BIN)/python docs/generate_metrics.py

format: $(READY) ## Format the code.
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

lock: $(READY) ## Resolve the dependencies again.
	@$(BIN)/python -m uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
		--python-version 3.11 --no-emit-package strata-client --group dev pyproject.toml -o requirements.lock

clean: ## Remove what the commands above made.
	@rm -rf $(VENV) tests/node/node_modules clients/typescript/node_modules clients/java/target .make .mypy_cache .ruff_cache .pytest_cache .hypothesis
