# kvlane: every target that CI runs, and no other way to run it. `make help` lists them.

GO   ?= go
BIN  := bin
LINT := $(BIN)/golangci-lint

# How many inputs each fuzz target gets.
FUZZTIME ?= 50000x

# Nothing that is shipped needs a C compiler; the race detector alone does.
export CGO_ENABLED = 0

.DEFAULT_GOAL := help
.PHONY: build demo test lint race generate drift fuzz bench crash hardware-kit hardware clean help

build: ## build the one binary, bin/kvlane
	$(GO) build -trimpath -o $(BIN)/kvlane ./cmd/kvlane

demo: build ## replay a small trace end to end on what this machine has
	$(BIN)/kvlane demo

test: ## run the tests
	$(GO) test ./...

# Short: what the crash test kills is another process, which the race detector does not see.
race: ## run the tests under the race detector; needs a C compiler
	CGO_ENABLED=1 $(GO) test -race -short -timeout 300s ./...

lint: $(LINT) ## run the linters and check the formatting
	$(LINT) run ./...

# The linter is built from its own module, which pins it.
$(LINT): tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

generate: ## regenerate what is generated: kernels (needs clang), tables of the documentation
	$(GO) generate ./...

drift: ## check that generated files and go.mod are up to date
	tools/drift
	$(GO) mod tidy -diff

fuzz: ## give every fuzz target FUZZTIME inputs
	tools/fuzz $(FUZZTIME)

crash: ## kill replays at random moments and check what they left; `make test` does it too, this one tells of it
	$(GO) test -count=1 -v -run 'Killed|Interrupted' ./cmd/kvlane

bench: ## run every benchmark once
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...

hardware-kit: ## build what verifies a GPU on a machine without Go: bin/hardware
	$(GO) build -trimpath -o $(BIN)/hardware/kvlane ./cmd/kvlane
	$(GO) test -trimpath -c -o $(BIN)/hardware/device-cuda.test ./device/cuda
	$(GO) test -trimpath -c -o $(BIN)/hardware/stream-copy.test ./stream/copy
	install -m 755 tools/hardware $(BIN)/hardware/run

hardware: hardware-kit ## verify kvlane on this machine's GPU
	$(BIN)/hardware/run $(BIN)/hardware/out

clean: ## remove what was built
	rm -rf $(BIN)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
