# `make` lists the targets. These variables go on the command line, as in
# `make test PKG=./pglock RUN=TestP8 SEED=42` and `make fuzz INPUTS=1000000`:
#
#   PKG       the packages that test and cover run
#   RUN       only the tests whose names match
#   SEED      the order of the tests: the seed that a failed run printed
#   TIMEOUT   of one package's tests
#   INPUTS    how many each fuzz target gets
#   DURATION  how long faults runs
#   RACE      empty for no race detector
#   PG_BINS, PG_IMAGES, SUITES   the servers of test-matrix: see internal/pgtest/matrix.sh
#   OLD, NEW  folders of server programs of two majors, for test-upgrade
#   MUTANT    the one that mutants runs
#   COVER     the least coverage, in per cent
PKG      ?= ./...
RUN      ?=
SEED     ?= on
TIMEOUT  ?= 10m
INPUTS   ?= 100000
COVER    ?= 90
IMAGE    := pgtest-postgres:15

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
GO          ?= go

# The linter is not in go.mod: its dependencies are none of ours. The version is
# in the file's name, so a new pin installs anew.
LINT_VERSION := v2.15.0
BIN          := $(CURDIR)/.bin
LINT         := $(BIN)/golangci-lint-$(LINT_VERSION)
OUT          := $(CURDIR)/.out

# Modules of their own, so that nobody who imports pglock gets what they need.
MODULES := $(patsubst %/go.mod,%,$(wildcard migrations/tooltest/go.mod contrib/*/go.mod bench/go.mod))

# The race detector needs a C compiler. A machine without one still gets its
# tests, with a warning; CI never goes without.
CC_NAME = $(firstword $(shell $(GO) env CC))
RACE    ?= $(if $(CI)$(shell command -v $(CC_NAME)),-race,$(warning no C compiler: testing without the race detector))

# One package at a time: many tests are about time, and a package that runs beside them is a machine that stalls.
GO_TEST = $(GO) test $(RACE) -p=1 -shuffle=$(SEED) -count=1 -timeout=$(TIMEOUT) -parallel=3 \
	$(if $(RUN),-run='$(RUN)')

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Run all tests on a throwaway PostgreSQL, in random order, with the race detector
	@$(GO) test $(RACE) -run='^$$' -count=1 $(PKG) >/dev/null # compiled in parallel, all at once
	$(GO_TEST) $(PKG)
	$(if $(filter ./...,$(PKG)),@$(MAKE) --no-print-directory test-modules)

# bench has its round in make bench: with the race detector its dependencies take minutes to compile.
.PHONY: test-modules
test-modules: ## The tests of the modules beside the root's
	@for dir in $(filter-out bench,$(MODULES)); do (cd $$dir && $(GO_TEST) ./...) || exit 1; done

# An image is built where no registry answers. It is kept: delete it to have it built anew.
.PHONY: test-container
test-container: ## Some promises on a PostgreSQL that testcontainers starts: needs Docker
	@[[ -n "$${PGLOCK_PG_IMAGE:-}" ]] || docker image inspect $(IMAGE) >/dev/null 2>&1 || internal/pgtest/image/build.sh bookworm
	PGLOCK_PG_IMAGE=$${PGLOCK_PG_IMAGE:-$(IMAGE)} $(GO_TEST) -run='$(or $(RUN),TestP[127]_|TestServer|TestPassword)' . ./internal/pgtest

.PHONY: test-matrix
test-matrix: ## Run the promises on every PostgreSQL at hand (PG_BINS, PG_IMAGES, SUITES; RUN, PKG)
	OUT=$(OUT)/matrix internal/pgtest/matrix.sh $(GO_TEST) -v $(PKG)

.PHONY: test-upgrade
test-upgrade: ## Tokens over pg_upgrade from OLD to NEW, folders of server programs
	PGLOCK_PG_OLD=$(OLD) PGLOCK_PG_NEW=$(NEW) $(GO) test -count=1 -tags=pgupgrade -run=TestP6_TokensIncreaseOverPgUpgrade -v .

.PHONY: mutants
mutants: ## Break pglock on purpose in a copy, one mechanism at a time, and see a test fail each time
	$(GO) run ./internal/mutants $(if $(MUTANT),-name=$(MUTANT))

.PHONY: lint
lint: $(LINT) ## Check style, go.mod and the pinned public surface; changes nothing
	$(GO) vet ./...
	$(GO) mod tidy -diff
	$(LINT) config verify
	$(LINT) run ./...
	@for dir in $(MODULES); do echo "$$dir"; (cd $$dir && $(GO) mod tidy -diff && $(LINT) run ./...) || exit 1; done
	@diff -u api.txt <($(GO) doc -all ./pglock) || { echo 'api.txt is old: if the change of the public surface is meant, run make api'; exit 1; }

.PHONY: demo
demo: ## Three replicas of the job runner, a killed holder, a rejected late write, an audit
	$(GO) run ./examples/jobrunner demo

# A bound in time would make Go's own coordinator fail at its end now and then, if
# the machine is busy (golang/go#75804, mended in 1.27).
.PHONY: fuzz
fuzz: ## Give every fuzz target INPUTS inputs
	@grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^(.*)/[^/]+:func |\1 |' | while read -r dir name; do \
		echo "$$dir $$name"; \
		$(GO) test -run='^$$' -fuzz="^$$name$$" -fuzztime=$(INPUTS)x "$$dir" || exit 1; \
	done

# Programs are built first so that a signal reaches them. SEED and SESSIONS are
# those that a run printed.
.PHONY: full
full: ## The promises with the large counts (10,000 cancels, 100 partitions, 800 events, 32 workers): RUN for some of them
	PGLOCK_TEST_FULL=1 $(GO) test $(RACE) -count=1 -timeout=60m -p=1 -parallel=4 -v -run='$(or $(RUN),TestP[0-9]+_|TestElectionUnderRandomEvents|TestOverlappingSets|TestHandOver)' . ./pglock

.PHONY: faults
faults: DURATION = 60s
faults: SEED = 0
faults: SESSIONS = 0
faults: CLIENTS = 6
faults: ## Histories of many processes under random faults, checked: DURATION, SEED, SESSIONS=1 or 1000, CLIENTS
	@mkdir -p $(OUT)
	$(GO) build $(RACE) -o $(OUT)/faults ./internal/faults
	@exec $(OUT)/faults -duration=$(DURATION) -seed=$(SEED) -sessions=$(SESSIONS) -clients=$(CLIENTS) -dir=$(OUT)/histories

.PHONY: bench
bench: ## One short round beside Redis, etcd and raw statements, and the targets
	@cd bench && $(GO) build -o $(OUT)/bench/bench .
	@exec $(OUT)/bench/bench -quick -json=$(OUT)/bench/quick.json

.PHONY: bench-full
bench-full: ROUNDS = 0
bench-full: ## All rounds, or ROUNDS, and docs/benchmarks.md: some minutes on a machine with nothing else to do
	@cd bench && $(GO) build -o $(OUT)/bench/bench .
	@exec $(OUT)/bench/bench -rounds=$(ROUNDS) -json=$(OUT)/bench/full.json -docs=docs

.PHONY: cover
cover: ## Statement coverage of pglock/ over all tests, and a page in .out; fails below COVER per cent
	@mkdir -p $(OUT)
	$(GO_TEST) -coverpkg=./pglock/... -coverprofile=$(OUT)/cover.out $(PKG)
	@$(GO) tool cover -html=$(OUT)/cover.out -o $(OUT)/cover.html
	@$(GO) tool cover -func=$(OUT)/cover.out | awk '$$3 == "0.0%" { print "not covered:", $$1, $$2 } \
		/^total:/ { print "coverage of pglock/:", $$3; if ($$3 + 0 < $(COVER)) { print "it should be at least $(COVER) %"; exit 1 } }'

.PHONY: fmt
fmt: $(LINT) ## Format the code and sort imports
	$(LINT) fmt ./...

.PHONY: api
api: ## Write the public surface to api.txt
	$(GO) doc -all ./pglock > api.txt

.PHONY: tools
tools: $(LINT) ## Install the pinned linter into .bin (minutes, once)

$(LINT):
	@mkdir -p $(BIN)
	GOBIN=$(BIN) GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv $(BIN)/golangci-lint $@
