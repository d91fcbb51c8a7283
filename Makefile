# kvlane: every target that CI runs, and no other way to run it. `make help` lists them.

GO   ?= go
BIN  := bin
LINT := $(BIN)/golangci-lint

# How many inputs each fuzz target gets.
FUZZTIME ?= 50000x

# How long the stress program runs, and its seed: 0 takes the time of day, and the program prints it. RACE=1 adds the race detector.
TIME ?= 60s
SEED ?= 0
RACE ?=

# Which mutants run: all, or changed: those of files changed since main, and an eighth of the others.
MUTANTS ?= all

# What has tests that need an RDMA device: all of a package's, or those of Verbs. And the virtual machine that has two.
VERBS := ./internal/sys/ibverbs ./rdma/ibv
ATOP  := ./stream/nic ./internal/acceptance
PEERS := ./transfer ./rpc ./blockio/gateway
RXE   := $(CURDIR)/$(BIN)/.rxe
LOSSY := /(LocalKeys|RemoteKeys|PeerForbids|TooLongForReceive|Reset)$$
MANY  := ^TestVerbsCarryThousandsOfRequests$$
LONG  := ^TestVerbs(PlanByNIC|PostRefusedHalfWay)$$|/(huge_|sums$$)
# The servers of the object tier's tests.
VERSITYGW := $(BIN)/versitygw
S3        := KVLANE_REQUIRE=versitygw,moto KVLANE_VERSITYGW=$(CURDIR)/$(VERSITYGW) KVLANE_MOTO=$(CURDIR)/$(BIN)/.venv-moto
# The servers of the tests of membership.
ETCD  := $(CURDIR)/$(BIN)/.etcd
ETCDS := KVLANE_REQUIRE=etcd-3.4,etcd-3.6 KVLANE_ETCD34=$(ETCD)/etcd-3.4 KVLANE_ETCD36=$(ETCD)/etcd-3.6
# Two machines at a time. Each has two processors, and waits much.
GUEST := KVLANE_REQUIRE=verbs,nfs,root $(GO) test -count 1 -p 2 -timeout 20m -exec

# What is shipped needs no C compiler, but for the C library, whose compiler `make lib` fetches. The race detector needs one.
export CGO_ENABLED = 0

# What is shipped is built so. With the same for tests and linters, nothing is compiled twice.
export GOFLAGS += -trimpath

.DEFAULT_GOAL := help
.PHONY: build lib wheel dist python vllm sglang mooncake object cluster deploy demo test short verbs mutants nonic lint race generate drift fuzz bench rpcbench scale codepaths crash stress hardware-kit hardware clean help

# SOURCE_DATE_EPOCH, seconds since 1970, is the date of builds that shall be the same again (reproducible-builds.org).
build: ## build the binary, bin/kvlane
	$(GO) build -ldflags "-X main.built=$$(date -u $${SOURCE_DATE_EPOCH:+-d @$$SOURCE_DATE_EPOCH} +%Y-%m-%dT%H:%M:%SZ)" -o $(BIN)/kvlane ./cmd/kvlane

lib: ## build the C library, bin/lib/libkvlane.so, and its header; needs pip, for a compiler against an old C library
	tools/lib $(BIN)

wheel: lib ## build the Python package with library and binary, bin/wheel/kvlane-*.whl; needs pip
	tools/wheel $(BIN)

# VERSION names the release; without it, the commit's tag does, or Go.
dist: ## build the release files of the last commit in bin/dist: binaries, completions, checksums, a module proxy; and test the README's commands with them
	tools/dist $(BIN)
	GOARCH=arm64 $(GO) vet ./...
	KVLANE_REQUIRE=dist KVLANE_DIST=$(CURDIR)/$(BIN)/dist $(GO) test -count 1 -run Dist ./cmd/kvlane

# The environment with torch takes 2 GB below bin/.venv.
python: wheel $(VERSITYGW) ## check the Python package: linters, tests on torch and transformers, and the wheel in empty environments
	KVLANE_VERSITYGW=$(CURDIR)/$(VERSITYGW) tools/python $(BIN)
	KVLANE_REQUIRE=wheel KVLANE_WHEEL=$(CURDIR)/$(BIN)/wheel $(GO) test -count 1 -run DistWheel ./cmd/kvlane

# The environment with vLLM takes 3 GB below bin/.venv-vllm. KVLANE_KILLS says how often vLLM is killed.
vllm: lib build ## run vLLM for CPUs with kvlane, in an environment created for it; needs Python 3.11, pip and binutils
	tools/python-env vllm $(BIN)/.venv-vllm vllm
	KVLANE_REQUIRE=vllm,$(KVLANE_REQUIRE) KVLANE_LIBRARY=$(CURDIR)/$(BIN)/lib/libkvlane.so KVLANE_BINARY=$(CURDIR)/$(BIN)/kvlane PYTHONPATH=$(CURDIR)/python/src timeout --foreground 3000 \
	    $(BIN)/.venv-vllm/bin/python -m pytest -c python/pyproject.toml --rootdir python -p no:cacheprovider -q python/tests/in_vllm
	tools/vllm-upstream $(BIN)

# The environment with SGLang takes 3 GB below bin/.venv-sglang.
sglang: lib build ## run SGLang's cache classes with kvlane, in an environment created for it; needs Python 3.11, pip and binutils
	tools/python-env sglang $(BIN)/.venv-sglang sglang.srt.mem_cache.unified_radix_cache
	cd python/tests/in_sglang && KVLANE_REQUIRE=sglang,$(KVLANE_REQUIRE) KVLANE_LIBRARY=$(CURDIR)/$(BIN)/lib/libkvlane.so KVLANE_BINARY=$(CURDIR)/$(BIN)/kvlane PYTHONPATH=$(CURDIR)/python/src \
	    timeout --foreground 3000 $(CURDIR)/$(BIN)/.venv-sglang/bin/python -W ignore -m pytest -c $(CURDIR)/python/pyproject.toml -p no:cacheprovider -q .

# One release of Mooncake's transfer engine, 60 MB below bin/.mooncake.
mooncake: ## run Mooncake's transfer engine against kvlane's side of its protocol; needs Python 3.10 to 3.13, pip and apt
	tools/mooncake $(BIN)/.mooncake
	KVLANE_REQUIRE=mooncake KVLANE_MOONCAKE=$(CURDIR)/$(BIN)/.mooncake $(GO) test -count 1 -v -run Mooncake ./transfer/mooncake

# Two servers with the protocol of S3: versitygw, built from its own module, and moto's, 60 MB below bin/.venv-moto.
object: $(VERSITYGW) ## run the tests of the object tier on two S3 servers; needs Python 3.11 and pip
	tools/moto $(BIN)/.venv-moto
	$(S3) $(GO) test -count 1 -timeout 10m ./tier/object
	$(S3) $(GO) test -count 1 -timeout 10m -run TestObject ./cmd/kvlane
	$(S3) $(GO) test -count 1 -timeout 10m -run TestManagerOverABucket ./internal/acceptance

$(VERSITYGW): tools/versitygw/go.mod tools/versitygw/go.sum
	$(GO) build -C tools/versitygw -o ../../$(VERSITYGW) github.com/versity/versitygw/cmd/versitygw

# etcd 3.4 of Debian and 3.6 of module tools/etcd, 60 MB below bin/.etcd.
cluster: ## run the tests of members in etcd on two versions of it; needs apt and dpkg
	tools/etcd/build $(ETCD)
	$(ETCDS) $(GO) test -count 1 -timeout 5m ./internal/etcdtest ./metadata/etcd
	$(ETCDS) $(GO) test -count 1 -timeout 5m -run 'TestCluster|TestReplayWhileTheClusterChanges' ./cmd/kvlane

# helm, hadolint and Debian's base system, 500 MB below bin/.deploy. UPDATE=1 writes deploy/kubernetes again from the chart.
deploy: build wheel ## check images, chart, manifests and units: linters, the images' instructions, the containers' commands and probes; needs root, debootstrap, systemd and pip
	tools/python-env vllm $(BIN)/.venv-vllm vllm
	tools/deploy/build $(BIN)/.deploy
	KVLANE_DEPLOY=$(CURDIR)/$(BIN)/.deploy KVLANE_BINARY=$(CURDIR)/$(BIN)/kvlane KVLANE_WHEEL=$(CURDIR)/$(BIN)/wheel KVLANE_VENV=$(CURDIR)/$(BIN)/.venv-vllm \
	    $(GO) test -C tools/deploy -count 1 . $(if $(UPDATE),-update)

demo: build ## replay a small trace end to end on this machine
	$(BIN)/kvlane demo

# The limit is for a package, on a machine that is busy with other work as well. The linters run vet.
test: ## run the tests
	$(GO) test -vet off -timeout 30m ./...

short: ## run the tests without the slowest
	$(GO) test -short -timeout 30m ./...

# The layouts are compared with the headers, which the machine brings. With packets lost all must hold as well, but for
# which error it was: the answer that says so may be what is lost, and a queue pair in error does not repeat it; and
# soft-RoCE, once a request failed locally, does not send again what was lost before it, nor completes it. What streams send to
# themselves crosses the cable twice then. The longest batches are left out, as most of the time would pass in waiting for what
# was lost; and calibration and what posts 1 MiB at a time, since soft-RoCE gives such a message up after a few losses; at 1% it once
# gave up a batch of small ones too, so that the longer tests lose 0.5%. The longest replay runs then only.
# The last two steps have a second user and a cut link, and NFS: files that two hosts share.
verbs: ## run the tests of RDMA, files on NFS, a second user and a cut link in a virtual machine with soft-RoCE, built from Debian packages
	tools/rxe/build $(RXE)
	KVLANE_REQUIRE=verbs-headers C_INCLUDE_PATH=$(RXE)/root/usr/include $(GO) test -count 1 -run Header ./internal/sys/ibverbs
	$(GUEST) $(CURDIR)/tools/rxe/run $(VERBS)
	$(GUEST) '$(CURDIR)/tools/rxe/run -l 2%' -skip '$(LOSSY)' $(filter-out ./internal/%,$(VERBS))
	$(GUEST) $(CURDIR)/tools/rxe/run -run Verbs -skip '$(MANY)' ./cmd/kvlane $(ATOP) $(PEERS) ./bench/nicchannel
	$(GUEST) '$(CURDIR)/tools/rxe/run -l 0.5%' -run Verbs -skip '$(LONG)' $(ATOP)
	$(GUEST) '$(CURDIR)/tools/rxe/run -l 2% -t 600' -run Verbs -skip '^TestVerbs(BenchTransfer|RPC)$$' ./cmd/kvlane $(PEERS)
	$(GUEST) $(CURDIR)/tools/rxe/run -run '^TestLinkIsCut$$|ASecondUser|AnotherNamespace' ./share ./transfer
	$(GUEST) '$(CURDIR)/tools/rxe/run -n' -run NFS ./tier/file

# Each mutant is built as an overlay: nothing of the tree is changed.
mutants: ## apply each named defect to the source and check that its test fails
	KVLANE_MUTANTS=$(MUTANTS) $(GO) test -count 1 -v -timeout 90m -parallel 6 -run 'Mutants|Defects' ./internal/archtest

# Only package gdr has files with the tag.
nonic: ## check the build without the binding of libibverbs
	$(GO) build -tags nonic -o /dev/null ./cmd/kvlane
	$(GO) vet -tags nonic ./gdr ./rpc/...
	$(GO) test -tags nonic ./gdr
	$(GO) test -tags nonic -run 'ByRDMA|RDMAFallsBack|DirectPlacement' ./rpc

# Short: the crash test kills another process, which the race detector does not see, and the examples of the help run what
# other tests run too. Tests skip themselves by testkit.SkipRace where other tests find the same races. The rules of the source and the published figures have one goroutine and are left out. The linters have already run vet.
race: ## run the tests under the race detector; needs a C compiler
	CGO_ENABLED=1 $(GO) test -race -short -vet off -timeout 60m $$($(GO) list ./... | grep -v -e /internal/archtest$$ -e /internal/published$$)

lint: $(LINT) ## run the linters and check the formatting
	$(LINT) run ./...
	$(LINT) run --build-tags nonic ./gdr

# The linter is built from its own module, which pins it.
$(LINT): tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

generate: ## regenerate the kernels (needs clang), the code of .proto files and the tables of the documentation
	$(GO) generate ./...

drift: ## check that generated files and go.mod are up to date
	tools/drift
	$(GO) mod tidy -diff

fuzz: ## run every fuzz target with FUZZTIME inputs
	tools/fuzz $(FUZZTIME)

crash: ## kill replays at random times and check their files, with a report; `make test` runs this test too
	$(GO) test -count=1 -v -run 'Killed|Interrupted' ./cmd/kvlane

stress: ## run processes with faults, kills and damage concurrently for TIME; with RACE=1 under the race detector, which needs a C compiler
	$(if $(RACE),CGO_ENABLED=1 $(GO) test -race,$(GO) test) -count=1 -v -timeout 60m -run Stress ./internal/stress -stress $(TIME) -seed $(SEED)

bench: ## run every benchmark once
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...

scale: ## simulate 1,000 block servers with 10^9 blocks: half an hour and 1 GiB; writes the charts of docs/scale.md
	$(GO) run ./internal/scalesim/scale -charts docs/charts

rpcbench: ## compare RPC calls with grpc-go and bare sockets, in a module of its own
	$(GO) run -C tools/rpcbench . -callers 8,32
	$(GO) run -C tools/rpcbench . -callers 1,8 -sizes '' -attachments 65536,1048576,16777216

codepaths: ## count the functions and files executed by LeasePrefix and by a load of one cached block
	tools/codepaths

hardware-kit: ## build the GPU verification for machines without Go: bin/hardware
	$(GO) build -o $(BIN)/hardware/kvlane ./cmd/kvlane
	$(GO) test -c -o $(BIN)/hardware/device-cuda.test ./device/cuda
	$(GO) test -c -o $(BIN)/hardware/stream-copy.test ./stream/copy
	$(GO) test -c -o $(BIN)/hardware/stream-file.test ./stream/file
	$(GO) test -c -o $(BIN)/hardware/stream-nic.test ./stream/nic
	$(GO) test -c -o $(BIN)/hardware/share.test ./share
	$(GO) test -c -o $(BIN)/hardware/transfer.test ./transfer
	$(GO) test -c -o $(BIN)/hardware/engine.test ./internal/acceptance
	$(GO) test -c -o $(BIN)/hardware/kvlane.test ./cmd/kvlane
	$(GO) test -c -o $(BIN)/hardware/gateway.test ./blockio/gateway
	install -m 644 replay/testdata/mooncake-conversation.jsonl.gz $(BIN)/hardware/trace.jsonl.gz
	install -m 644 tools/kit.sh $(BIN)/hardware/kit.sh
	install -m 755 tools/hardware $(BIN)/hardware/run
	install -m 755 tools/hardware-rdma $(BIN)/hardware/run-rdma
	install -m 755 tools/hardware-transfer $(BIN)/hardware/run-transfer
	install -m 755 tools/hardware-blockio $(BIN)/hardware/run-blockio

hardware: hardware-kit ## verify kvlane on this machine's GPU
	$(BIN)/hardware/run $(BIN)/hardware/out

clean: ## remove build output
	rm -rf $(BIN)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
