# The only interface a newcomer needs. Each target sets itself up; the second time costs nothing.
# Extra arguments for ansible-playbook: make demo ARGS="--check --diff"

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
ARGS ?=
# The engine of the demo: the catalog's choice, or vllm or llama_cpp.
ENGINE ?=
ENGINE_VARS = $(if $(ENGINE),-e @inventories/engines/$(ENGINE).yml)
LAB_NODES ?= 2
# Anything: played hosts of all vendors lie on the lab's nodes, for playbooks/preflight.yml.
PLAYED ?=
GATE := tests/gate

.PHONY: help demo demo-garbage down lab lab-down venv venv-test test test-fast test-long lint format units sanity molecule docs build clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo:  ## Bring this machine to a proven little fleet, and print how to ask it something
	@$(GATE)/play.sh site.yml -i inventories/local $(ENGINE_VARS) $(ARGS)

demo-garbage:  ## Offer a damaged model that loads and answers 200, and watch the proof refuse it
	@$(GATE)/garbage.sh $(ARGS)

down:  ## Remove everything the demo made, and nothing else
	@$(GATE)/play.sh playbooks/teardown.yml -i inventories/local $(ENGINE_VARS) $(ARGS)

lab: venv  ## Bring up a gateway node and two card nodes as containers (make lab LAB_NODES=3), for inventories/lab
	@.venv/bin/python tests/lab/lab.py up --nodes $(LAB_NODES) $(if $(ENGINE),--engine $(ENGINE)) $(if $(PLAYED),--played) $(ARGS)

lab-down: venv  ## Remove the lab: containers, volumes, network, image, keys
	@.venv/bin/python tests/lab/lab.py down

venv:  ## Make .venv with what a controller needs
	@$(GATE)/bootstrap.sh

venv-test:  ## Make .venv with the tools of the gates too
	@$(GATE)/bootstrap.sh test

test: venv-test  ## Every gate; converges this machine and cleans it up again
	@$(GATE)/layers.sh units+lint slow molecule+sanity

test-fast: venv-test  ## Lint and unit tests only, no containers
	@$(GATE)/layers.sh units+lint

test-long: venv-test  ## Soaks and repeats
	@$(GATE)/layers.sh long

lint: venv-test  ## Style and syntax
	@$(GATE)/layer_lint.sh

format: venv-test  ## Format the Python code as lint wants it, and list every module in the action group
	@$(GATE)/action_group.py
	@.venv/bin/ruff check --quiet --fix . ; .venv/bin/ruff format --quiet .

units: venv-test  ## Unit tests (make units ARGS="-k manifest")
	@$(GATE)/layer_units.sh $(ARGS)

sanity: venv-test  ## ansible-test sanity on the built artifact, oldest and newest ansible-core
	@$(GATE)/layer_sanity.sh

molecule: venv-test  ## The shipped site.yml on this machine, on real parts
	@$(GATE)/layer_molecule.sh

docs: venv-test  ## Check that documentation renders and its references hold
	@$(GATE)/layer_docs.sh

build: venv  ## Build the collection artifact into build/
	@$(GATE)/build.sh "$(CURDIR)/build"

clean:  ## Remove what the gates and the build left in the checkout (not what the demo made on the machine)
	@rm -rf .venv .cache .ansible build .pytest_cache .ruff_cache .hypothesis tests/output
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
