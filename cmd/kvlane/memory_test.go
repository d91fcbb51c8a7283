package main

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// What a replay takes at its peak is what its options give the cache and the KV cache, and a constant: not what the trace
// holds. The simulated device's memory is part of the process, so it counts.
func TestPeakMemoryIsBoundedByTheOptions(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "crash", "a real process replays the whole trace; not with -short")
	}
	const (
		mib      = 1 << 20
		cache    = 64 * mib
		pages    = 512
		pageSize = 16 << 10  // 2 layers of K and V, 4 KiB each
		staging  = 2 * cache // of the streams that load and dump, in device memory
		constant = 64 * mib  // the program itself, Go's heap, descriptor rings, scratch for the longest request
	)
	bin := buildBinary(t)
	c := start(t, bin, "replay", conversation, "--device", "sim", "--json", "--kv-heads", "2", "--pages", "512", "--cache-bytes", "64MiB")
	r := c.report(t)
	use, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatalf("no resource usage on %s", runtime.GOOS)
	}
	peak := use.Maxrss << 10
	stored := r.DumpedBlocks * pageSize
	t.Logf("peak %d MiB, with %d MiB of cache and %d MiB of pages; %d MiB went through", peak/mib, cache/mib, pages*pageSize/mib, stored/mib)
	if bound := int64(cache + pages*pageSize + staging + constant); peak > bound {
		t.Errorf("the replay took %d MiB at its peak, more than %d MiB", peak/mib, bound/mib)
	}
	if stored < 4*peak {
		t.Errorf("only %d MiB went through: too few to show that the peak does not follow them", stored/mib)
	}
}
