package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// What a replay takes at its peak is what its options give the cache and the KV cache, and a constant: not what the trace
// holds. The simulated device's memory is part of the process, so it counts.
func TestPeakMemoryIsBoundedByTheOptions(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "crash", "a real process replays much of the trace; not with -short")
	}
	const (
		mib      = 1 << 20
		cache    = 16 * mib
		pages    = 512
		pageSize = 16 << 10  // 2 layers of K and V, 4 KiB each
		staging  = 2 * cache // of the streams that load and dump, in device memory
		constant = 96 * mib  // the program itself, Go's heap and what it leaves uncollected, descriptor rings, scratch for the longest request
	)
	bin := command(t)
	c := start(t, bin, "replay", conversation, "--device", "sim", "--json", "--kv-heads", "2", "--pages", "512", "--cache-bytes", "16MiB", "--limit", "3000")
	highest := watchPeak(c.Process.Pid)
	r := c.report(t)
	peak := <-highest
	if peak == 0 {
		t.Fatal("the process was never seen")
	}
	stored := r.DumpedBlocks * pageSize
	t.Logf("peak %d MiB, with %d MiB of cache and %d MiB of pages; %d MiB went through", peak/mib, cache/mib, pages*pageSize/mib, stored/mib)
	if bound := int64(cache + pages*pageSize + staging + constant); peak > bound {
		t.Errorf("the replay took %d MiB at its peak, more than %d MiB", peak/mib, bound/mib)
	}
	if stored < 4*peak {
		t.Errorf("only %d MiB went through: too few to show that the peak does not follow them", stored/mib)
	}
}

// watchPeak sends the most memory that was resident when the process ends. What its rusage says counts the process that started it too:
// the kernel keeps the peak over exec.
func watchPeak(pid int) <-chan int64 {
	peak := make(chan int64, 1)
	go func() {
		var most int64
		for {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, found := strings.Cut(string(b), "VmHWM:")
			if err != nil || !found { // it is gone, or has no memory any more
				peak <- most
				return
			}
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				most = kib << 10
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return peak
}
