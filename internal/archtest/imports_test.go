package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// The interface packages from the bottom up. Each may import only the packages before it in its
// list.
const (
	onMem    = "errdefs mem"
	onDevice = "errdefs mem device"
	onTier   = "errdefs mem block"
	anyPlain = "errdefs mem device stream block tier"
)

// mayImport is the import graph. It lists the kvlane packages that each package may import outside
// of its tests. An entry that ends in "/" allows all packages below it. A package without an entry,
// or a prefix that ends in "/", is an error: add the package here.
var mayImport = map[string]string{
	"errdefs": "",
	"mem":     "errdefs",
	"block":   onMem,
	"device":  onMem,
	"stream":  onDevice,
	"tier":    onTier,
	"rdma":    "errdefs mem",

	"device/signal": onDevice + " internal/sys/hostmem",
	// The kernels in Go, which work on any device addresses.
	"device/internal/kernel": onDevice + " internal/sys/hostmem",
	// Lifetimes of files and transfers, independent of the library that copies.
	"device/storage": onDevice + " internal/leak internal/mounts",

	// Conformance suites and fault decorators import their interface.
	"device/devicetest": onDevice + " device/signal internal/testkit internal/fault internal/leak internal/sys/hostmem",
	"stream/streamtest": onDevice + " stream internal/testkit internal/fault internal/leak internal/sys/hostmem",
	"tier/tiertest":     onTier + " tier device stream/file internal/dirfs internal/testkit internal/fault internal/leak internal/sys/hostmem",
	"rdma/rdmatest":     onMem + " rdma rdma/soft internal/testkit internal/fault internal/leak internal/sys/hostmem",
	"tier/faulty":       onTier + " tier internal/fault internal/sys/hostmem",

	// Implementations import interfaces and bindings, but not each other.
	"device/sim":           onDevice + " device/storage device/internal/kernel internal/leak internal/fault internal/sys/hostmem",
	"device/host":          onDevice + " device/internal/kernel internal/leak internal/sys/hostmem",
	"device/cuda":          onDevice + " device/storage device/cuda/kernels internal/leak internal/limits internal/sys/",
	"device/cuda/kernels":  "errdefs mem device",
	"device/cuda/cudatest": onDevice + " device/cuda internal/testkit",
	"stream/copy":          onDevice + " stream stream/ordered stream/copy/plan stream/copy/describe stream/copy/move",
	"stream/file":          onDevice + " stream internal/dirfs internal/leak internal/sys/hostmem internal/sys/uring",
	"stream/nic":           onDevice + " stream stream/ordered rdma rdma/channel rdma/registry",
	"rdma/soft":            onMem + " rdma internal/leak internal/fault internal/sys/hostmem",
	"stream/softnic":       onMem + " rdma/soft stream",
	"rdma/ibv":             onMem + " rdma internal/leak internal/sys/",
	"tier/cache":           onTier + " tier internal/leak",
	"tier/file":            onTier + " tier tier/internal/ tier/owner internal/dirfs internal/leak internal/sys/hostmem",
	"tier/log":             onTier + " tier tier/internal/ tier/owner internal/dirfs internal/leak internal/sys/hostmem",
	"tier/remote":          onTier + " tier tier/internal/ metadata blockio internal/auth internal/breaker internal/placement",
	"tier/object":          onTier + " tier tier/internal/ internal/breaker",

	// The lifetime of an ordered stream, independent of the implementation that copies.
	"stream/ordered": onDevice + " stream",

	// Streams of the host program.
	"stream/hoststream": onDevice + " device/signal stream internal/inuse",

	// A stream that replaces broken ones.
	"stream/renew": onDevice + " stream",

	// Code shared by durable tiers.
	"tier/internal/blockdir": "errdefs block mem tier internal/dirfs",
	"tier/owner":             "errdefs block tier tier/internal/blockdir internal/dirfs",
	"tier/internal/usage":    "errdefs block",

	// File access for tiers.
	"internal/dirfs":           "errdefs mem",
	"internal/dirfs/dirfstest": "errdefs internal/dirfs",
	"internal/dirfs/faultfs":   "errdefs internal/dirfs internal/fault internal/leak",

	// The parts of a copy stream. describe and move do not import the stream or the planner. The
	// planner is a model without device access; calibrate runs the streams that it plans for.
	"stream/copy/describe":  onDevice + " internal/sys/hostmem",
	"stream/copy/move":      onDevice + " stream stream/copy/describe internal/sys/hostmem internal/sys/nap",
	"stream/copy/plan":      onDevice + " stream internal/kept",
	"stream/copy/calibrate": onDevice + " stream stream/copy stream/copy/plan stream/copy/measure",
	"stream/copy/measure":   onDevice + " stream",

	// Positions of GPUs and NICs.
	"topology": onMem + " device",

	// Registered memory of a NIC, shared by its streams, and connected queue pairs.
	"rdma/registry": onMem + " rdma internal/leak",
	"rdma/channel":  "errdefs rdma rdma/registry",

	// Packages built on the interfaces.
	"store/index":     onTier + " tier",
	"store/manager":   onTier + " tier store/admission",
	"store/admission": "",
	"store":           anyPlain + " store/index store/admission store/pages store/stat store/pool store/pipeline store/task store/batch store/load store/layers store/read store/dump stream/renew internal/sys/hostmem internal/leak",
	// The stages of loads and dumps.
	"store/pages":           onTier,
	"store/stat":            "stream",
	"store/pool":            "store/stat",
	"store/pipeline":        onTier + " tier store/admission store/index store/pages store/stat",
	"store/task":            onTier + " stream store/pages store/pipeline store/pool store/stat",
	"store/batch":           "mem stream stream/renew store/pages store/pool",
	"store/layers":          onTier + " store/pages store/pipeline store/pool store/task",
	"store/read":            onTier + " tier store/layers store/pipeline store/pool store/task",
	"store/load":            onTier + " stream tier store/admission store/batch store/index store/layers store/pages store/pipeline store/pool store/read store/task",
	"store/write":           onTier + " stream tier store/batch store/pipeline store/task",
	"store/dump":            onTier + " stream tier store/batch store/pages store/pipeline store/pool store/stat store/task store/write",
	"replay":                anyPlain + " store replay/kvcache bench internal/ctxio internal/present internal/sys/hostmem",
	"replay/kvcache":        anyPlain + " store",
	"doctor":                anyPlain + " device/storage rdma internal/limits internal/mounts internal/present internal/sys/uring",
	"bench":                 anyPlain + " internal/present stream/copy/measure",
	"bench/request":         anyPlain + " internal/present internal/settings tier/cache tier/file tier/log store bench bench/interference replay/kvcache stream/copy/measure ROOT",
	"bench/file":            anyPlain + " bench internal/present stream/copy/measure internal/sys/uring internal/sys/hostmem",
	"bench/nicchannel":      onDevice + " stream rdma rdma/channel rdma/registry",
	"bench/interference":    onDevice + " stream stream/copy/measure",
	"bench/transfer":        onDevice + " internal/present stream bench share metadata rdma/rail wire transfer transfer/mooncake internal/sys/hostmem",
	"bench/matmul":          onDevice + " internal/sys/cublaslt",
	"bench/rounds":          "bench",
	"bench/sockets":         "bench/rounds internal/sys/hostmem",
	"bench/calls":           onDevice + " internal/present bench bench/rounds bench/sockets rdma rdma/registry rpc rpc/chain rpc/echo",
	"bench/blocks":          onDevice + " internal/present bench bench/rounds bench/sockets block blockio blockio/gateway blockio/server rdma rdma/registry stream wire internal/auth internal/blockhost internal/sys/hostmem",
	"telemetry":             anyPlain + " store store/manager stream/copy/plan stream/file transfer wire blockio/gateway blockio/server tier/remote tier/object internal/blockhost internal/breaker internal/dirfs internal/journal internal/statuspage",
	"telemetry/profiles":    "errdefs telemetry",
	"telemetry/oteltrace":   "store",
	"internal/leak":         "",
	"internal/limits":       "errdefs internal/present",
	"internal/breaker":      "errdefs",
	"internal/journal":      "",
	"internal/statuspage":   "internal/journal",
	"internal/rendezvous":   "",
	"rpc":                   onDevice + " wire rdma rdma/registry rpc/chain rpc/internal/",
	"rpc/chain":             onMem,
	"rpc/cluster":           "errdefs metadata rpc internal/breaker internal/rendezvous",
	"rpc/echo":              "rpc",
	"rpc/grpcrpc":           "errdefs rpc",
	"rpc/otelrpc":           "rpc",
	"rpc/internal/pb":       "",
	"rpc/internal/frame":    onMem + " wire rpc/chain",
	"rpc/internal/golden":   "",
	"internal/auth":         "errdefs internal/present",
	"internal/mounts":       "",
	"internal/present":      "",
	"internal/strictjson":   "",
	"internal/settings":     anyPlain + " store stream/copy/plan tier/cache tier/file tier/log tier/remote tier/object internal/dirfs internal/present internal/strictjson internal/ctxio",
	"internal/ctxio":        "errdefs",
	"internal/published":    "", // except for its tests
	"internal/testkit":      "internal/leak internal/fault",
	"internal/s3test":       "internal/testkit",
	"internal/etcdtest":     "internal/testkit",
	"internal/fault":        "errdefs",
	"internal/acceptance":   "", // except for its tests
	"internal/archtest":     "",
	"internal/autonic":      "rdma",
	"internal/codepaths":    "device ROOT",
	"internal/stress":       "", // except for its tests
	"internal/sys/dl":       "errdefs internal/leak",
	"internal/sys/cuda":     "errdefs internal/leak internal/sys/dl",
	"internal/sys/nvml":     "errdefs device internal/sys/dl",
	"internal/sys/ibverbs":  "errdefs mem internal/leak internal/sys/dl internal/sys/hostmem",
	"internal/sys/cublaslt": "errdefs device internal/sys/dl",
	"internal/sys/cufile":   "errdefs device internal/sys/dl",
	"internal/sys/nap":      "",
	"internal/sys/uring":    "errdefs internal/leak internal/sys/hostmem",
	"internal/sys/hostmem":  onMem + " internal/leak",

	// Placement of runs on block servers, and its simulation.
	"internal/placement":      "internal/rendezvous",
	"internal/hotrun":         "",
	"internal/scalesim":       "internal/breaker internal/hotrun internal/placement",
	"internal/scalesim/scale": "internal/scalesim",

	// RPC by RDMA.
	"rpc/internal/fields":    "errdefs",
	"rpc/internal/hello":     "errdefs rdma rpc/internal/fields",
	"rpc/internal/placement": "errdefs rpc/internal/fields",
	"rpc/internal/endpoint":  onMem + " rdma rdma/channel rdma/registry wire rpc/chain rpc/internal/frame rpc/internal/hello rpc/internal/placement",

	// Comparison of bindings with C headers.
	"internal/sys/headertest": "internal/testkit",

	// Format of reports, in pipes and on terminals.
	"internal/present/presenttest": "internal/testkit",

	// Memory of other processes.
	"share": onDevice + " stream device/signal internal/sys/hostmem internal/sys/nap",

	// Code shared by protocols, a metadata store, and the queue pairs of transfers. None of them
	// imports segments.
	"wire":          onDevice + " stream",
	"metadata":      "errdefs",
	"metadata/etcd": "errdefs metadata",
	"rdma/rail":     onMem + " rdma rdma/channel rdma/registry internal/sys/hostmem",

	// The block protocol. Its frames do not depend on a transport, and the format of the wire
	// fields is a codec.
	"blockio":             onMem + " block wire rdma rdma/channel rdma/registry internal/sys/hostmem",
	"blockio/blockiotest": onMem + " block blockio wire rdma rdma/registry internal/testkit internal/sys/hostmem",
	"blockio/gateway":     onMem + " blockio wire rdma rdma/channel rdma/registry",
	"blockio/server":      onMem + " block blockio blockio/gateway wire internal/auth internal/blockhost internal/hotrun internal/journal",
	"internal/blockhost":  onMem + " block tier tier/owner internal/sys/hostmem",
	"blockio/asu":         onMem,

	// Transfers between processes.
	"transfer":          onDevice + " stream share metadata rdma/rail wire",
	"transfer/mooncake": "errdefs mem metadata wire transfer",
	"transfer/handover": "errdefs mem share transfer",

	// Assembly of NICs, and the profiles of devices and NICs.
	"gdr":             onDevice + " stream stream/copy stream/nic stream/softnic rdma rdma/ topology internal/unwind",
	"profile":         onDevice + " device/cuda/kernels stream stream/copy stream/copy/plan stream/copy/calibrate stream/file internal/kept",
	"internal/unwind": "errdefs",
	"internal/inuse":  "errdefs",
	"internal/kept":   "errdefs",

	// The root package and the commands assemble everything.
	"":              anyPlain + " blockio gdr rdma rdma/registry metadata profile share store store/manager telemetry transfer transfer/ device/ stream/ tier/ internal/",
	"internal/capi": anyPlain + " share store tier/cache internal/inuse internal/settings ROOT",
	"cmd/libkvlane": "errdefs mem block internal/capi internal/dirfs ROOT",
	"examples/":     "mem block device stream ROOT",
	"cmd/":          anyPlain + " gdr metadata metadata/ profile share topology blockio blockio/gateway blockio/server rpc rpc/ transfer transfer/ wire store replay doctor bench bench/ telemetry telemetry/profiles device/ stream/ tier/ internal/ ROOT",
}

func TestImportGraph(t *testing.T) {
	for _, p := range packages(t) {
		allowed, ok := allowedImports(p.rel)
		if !ok {
			t.Errorf("package %q has no place in the import graph: add it to mayImport and to the architecture's documentation", p.rel)
			continue
		}
		for _, imp := range p.Imports {
			if rel, own := relative(imp); own && !allows(allowed, rel) {
				t.Errorf("%s imports %s, which the import graph does not allow", p.rel, imp)
			}
		}
	}
}

// layers are the folders of the library from the bottom up. A package imports only packages of its
// own layer and of lower layers.
var layers = []string{"errdefs mem block", "device rdma metadata", "stream wire", "share blockio", "tier", "store transfer"}

func TestLayers(t *testing.T) {
	layer := make(map[string]int) // layer number of a folder, from 1
	for i, names := range layers {
		for _, name := range strings.Fields(names) {
			layer[name] = i + 1
		}
	}
	of := func(rel string) int {
		top, _, _ := strings.Cut(rel, "/")
		return layer[top]
	}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if rel, own := relative(imp); own && of(p.rel) > 0 && of(rel) > of(p.rel) {
				t.Errorf("%s imports %s, of a later layer", p.rel, imp)
			}
		}
	}
}

func allowedImports(rel string) ([]string, bool) {
	for dir := rel; ; {
		if list, ok := mayImport[dir]; ok {
			return strings.Fields(list), true
		}
		// Continue with the next shorter prefix: "a/b/" after "a/b/c", then "a/".
		i := strings.LastIndex(strings.TrimSuffix(dir, "/"), "/")
		if i < 0 {
			return nil, false
		}
		dir = dir[:i+1]
	}
}

func allows(allowed []string, rel string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		switch {
		case a == "ROOT":
			return rel == ""
		case strings.HasSuffix(a, "/"):
			return strings.HasPrefix(rel, a)
		}
		return a == rel
	})
}

// unsafePackages are the packages outside internal/sys that may import unsafe, with the reason.
var unsafePackages = map[string]string{
	"cmd/libkvlane": "it receives C pointers",
}

// cgoPackage is the only package that may use cgo. All others build without a C compiler.
const cgoPackage = "cmd/libkvlane"

func TestUnsafeAndCgoStayWhereTheyBelong(t *testing.T) {
	for _, f := range files(t) {
		for _, imp := range f.ast.Imports {
			switch in := folder(f.rel); {
			case imp.Path.Value == `"unsafe"` && !ast.IsGenerated(f.ast) && !strings.HasPrefix(in, "internal/sys/") && unsafePackages[in] == "":
				t.Errorf("%s imports unsafe: only the bindings under internal/sys may", f.rel)
			case imp.Path.Value == `"C"` && in != cgoPackage:
				t.Errorf("%s imports C: only %s may use cgo", f.rel, cgoPackage)
			}
		}
	}
}

// A package that uses cgo also has files without it, so that `go build ./...` needs no C compiler.
func TestCgoIsLeftOutWithoutACompiler(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.CgoFiles) > 0 && (p.rel != cgoPackage || len(p.GoFiles) == 0) {
			t.Errorf("package %s is all cgo", p.rel)
		}
	}
}

func TestNoCatchAllPackages(t *testing.T) {
	for _, p := range packages(t) {
		for _, part := range strings.Split(p.rel, "/") {
			switch part {
			case "util", "utils", "common", "helper", "helpers", "misc", "pkg", "base", "shared":
				t.Errorf("package %s: the name %q does not describe the content", p.rel, part)
			}
		}
	}
}
