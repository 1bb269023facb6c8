# Lockstep's commands. Each one does the set-up that it needs, but only once.
#
#   make PRESET=dev build            another preset: dev, asan, tsan, coverage
#   make test TIER=quick             three minutes: quick, full or nightly
#   make test FILTER=Scatter         only suites whose name matches, of all tiers
#   make test LABEL=gpu              only tests with that label: gpu or parity
#   make test RERUN=1                run failed tests once more, as .ci/run does
#   make fuzz SECONDS_EACH=600       fuzz for longer
#   make mutate MUTANTS='--only shm --tier quick'
#   make mutate-streams MUTANTS='--only worker.cc --seeds 3'
#   make setup PYTHON=/usr/bin/python3.11
#   make build Torch_DIR=/opt/libtorch/share/cmake/Torch   your own LibTorch
#   make build LOCKSTEP_PYTHON=$(which python)             your own torch
#   make check-torch TORCH=2.11.0                          another version of torch
#   make install LOCKSTEP_CUDA=ON    CUDA, on a host without a GPU

PRESET ?= release
PREFIX ?= /usr/local
# Which tests run: quick, full (quick and full) or nightly (all).
TIER ?=
LABEL ?=
FILTER ?=
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc)
TEST_JOBS ?= $(shell nproc)
RERUN ?=
SECONDS_EACH ?= 60
# Seed of the first case of fuzz-training. Empty: a different one for each call.
SEED ?=
# Programs of examples/ to build. Empty: all.
EXAMPLES ?=
# Options of mutate and mutate-streams, such as --list or --only worker.cc.
MUTANTS ?=

# A name or a label alone selects tests of all tiers.
SELECTION = $(if $(TIER)$(FILTER)$(LABEL),$(if $(TIER),--tier $(TIER)),--tier full) \
  $(if $(FILTER),--filter '$(FILTER)') $(if $(LABEL),--label '$(LABEL)')

export JOBS PYTHON Torch_DIR LOCKSTEP_PYTHON LOCKSTEP_CUDA CMAKE_ARGS

.DEFAULT_GOAL := help
.PHONY: help setup setup-build configure configure-build build all demo test \
	fuzz fuzz-training faults mutate mutate-streams examples practicals check \
	format bench install deb check-deb check-torch wheel docs clean

help: ## List the targets
	@echo "usage: make [target] [PRESET=release|dev|asan|tsan|coverage]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' \
	  $(firstword $(MAKEFILE_LIST))

setup: ## Install packages and the Python environment
	@tools/setup/packages.sh build test tools
	@tools/setup/python_env.sh
	@tools/setup/wheel_tools.sh

# Installs what the program needs. Without a GPU it downloads 0.5 GB, not 2.6.
setup-build:
	@tools/setup/packages.sh build
	@tools/setup/python_env.sh libtorch

configure-build: setup-build
	@tools/setup/configure.sh $(PRESET) $(PRESET) program

configure: setup
	@tools/setup/configure.sh $(PRESET)

build: configure-build ## Build the program: build/release/bin/lockstep
	@tools/setup/ninja.sh $(PRESET) lockstep_program

all: configure
	@tools/setup/ninja.sh $(PRESET) all

demo: build ## Train on one device, on two, in two processes, and compare
	@tools/demo.sh $(BUILD)/bin/lockstep

test: all ## Build everything and run the tests (TIER=quick, FILTER=name)
	@tools/run_tests.sh $(if $(RERUN),--rerun) $(SELECTION) $(BUILD) \
	  --parallel $(TEST_JOBS)

fuzz: setup ## Feed hostile files to the readers (SECONDS_EACH=60)
	@tools/setup/configure.sh fuzz
	@tools/setup/ninja.sh fuzz fuzz
	@tools/fuzz.sh build/fuzz $(SECONDS_EACH)
	@$(MAKE) --no-print-directory fuzz-training

fuzz-training: configure ## Train random modules with Lockstep and LibTorch
	@tools/setup/ninja.sh $(PRESET) test_differential
	@tools/fuzz_training.sh $(BUILD) $(SECONDS_EACH) $(SEED)

faults: configure ## Break runs in all known ways, and write docs/faults.md
	@tools/setup/ninja.sh $(PRESET) lockstep_program faulty_lockstep
	@python3 tools/faults.py --bin $(BUILD)/bin
	@python3 tools/faults.py --bin $(BUILD)/bin --random-kills 20 \
	  $(if $(LOCKSTEP_CIFAR10_DIR),--data-dir $(LOCKSTEP_CIFAR10_DIR))
	@python3 tools/faults.py --bin $(BUILD)/bin --torchrun-networks
	@python3 tools/faults.py --bin $(BUILD)/bin --restarts 20

mutate: setup ## Put errors into the product, and see a test fail
	@python3 tools/mutate.py $(MUTANTS)

mutate-streams: setup ## Remove each wait for a stream, and see a test fail
	@python3 tools/mutate_streams.py $(MUTANTS)

# Builds with the package, installed in the build folder, as a user's project
# does. All of them are what the practicals need, with the program that breaks
# links.
examples: build ## Build programs of examples/ (EXAMPLES="minimal ...", or all)
	@$(if $(EXAMPLES),,tools/setup/ninja.sh $(PRESET) faulty_lockstep)
	@tools/examples.sh $(BUILD) $(EXAMPLES)

practicals: examples ## Run what docs/practicals shows, and write the pages
	@python3 tools/practicals.py --bin $(BUILD)/bin \
	  --examples $(BUILD)/examples/bin \
	  $(if $(LOCKSTEP_CIFAR10_DIR),--data-dir $(LOCKSTEP_CIFAR10_DIR))

# Builds in build/torch-$(TORCH), with a separate environment in the cache.
check-torch: ## Build with another torch, and run the tests (TORCH=2.11.0)
	@$(if $(TORCH),,$(error [make] no version of torch; expected a release on \
	  PyPI, got none; run: make check-torch TORCH=2.11.0))
	@tools/setup/packages.sh build test tools
	@TORCH=$(TORCH) tools/setup/python_env.sh
	@LOCKSTEP_PYTHON=build/torch-$(TORCH)/venv/bin/python \
	  tools/setup/configure.sh release torch-$(TORCH)
	@tools/setup/ninja.sh torch-$(TORCH) all
	@tools/run_tests.sh $(SELECTION) build/torch-$(TORCH) --parallel $(TEST_JOBS)

# One wheel for all Pythons that are found, and for several versions of torch:
# TORCH="2.11.0 2.13.0", besides the pinned one. PROJECT_URL=https://... is for those
# who publish it.
wheel: configure-build ## Build build/wheel/lockstep-*.whl for Python (TORCH=2.11.0 ...)
	@tools/setup/wheel_tools.sh
	@tools/setup/ninja.sh $(PRESET) lockstep_program
	@tools/setup/ninja.sh $(PRESET) lockstep/all
	@tools/setup/ninja.sh $(PRESET) lockstep_python
	@for torch in $(TORCH); do \
	  TORCH=$$torch tools/setup/python_env.sh && \
	  LOCKSTEP_PYTHON=build/torch-$$torch/venv/bin/python \
	    tools/setup/configure.sh release torch-$$torch && \
	  tools/setup/ninja.sh torch-$$torch lockstep_python || exit 1; \
	done
	@python3 tools/wheel.py $(if $(PROJECT_URL),--url $(PROJECT_URL)) $(BUILD) \
	  $(TORCH:%=build/torch-%)

check: ## Check layout, layers and format of the sources
	@tools/setup/packages.sh tools
	@tools/check/all.sh

# Versions of clang-format lay out code differently. Use 14 if there is one.
format: ## Let clang-format lay out the sources
	@tools/setup/packages.sh tools
	@git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu' | \
	  xargs -r "$$(command -v clang-format-14 || echo clang-format)" -i

bench: all ## Run the benchmarks
	@tools/bench.sh $(BUILD)/bin

install: build ## Install headers, libraries and the program to PREFIX
	@tools/setup/ninja.sh $(PRESET) lockstep/all
	@umask 022 && cmake --install $(BUILD) --prefix $(PREFIX)

# Without CUDA, the package has a tenth of the size and needs no driver.
deb: setup-build ## Make a Debian package without CUDA: build/deb/lockstep_*.deb
	@tools/setup/packages.sh tools
	@tools/setup/configure.sh deb deb program
	@tools/setup/ninja.sh deb all
	@cd build/deb && umask 022 && cpack

check-deb: deb ## Use the package as its users do, without root
	@tools/setup/packages.sh test
	@tools/check/consumption.sh deb . build/deb

docs: ## Write the pages of the public API: build/docs/html
	@tools/setup/packages.sh tools
	@tools/docs.sh build/docs

clean: ## Remove what was built (the Python environment stays in the cache)
	@rm -rf build
