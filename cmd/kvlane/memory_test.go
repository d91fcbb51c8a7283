package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// The peak memory of a replay depends on the sizes of the cache and the KV cache, plus a constant,
// and not on the length of the trace. The memory of the simulated device belongs to the process and
// counts too.
func TestPeakMemoryIsBoundedByTheOptions(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "crash", "a real process replays much of the trace; not with -short")
	}
	const (
		mib      = 1 << 20
		cache    = 16 * mib
		pages    = 512
		pageSize = 16 << 10  // 2 layers of keys and values, 4 KiB each
		staging  = 2 * cache // device memory for staging of the load and dump streams
		constant = 96 * mib  // the program, garbage on Go's heap, descriptor rings, and scratch memory for the longest request
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
	t.Logf("peak %d MiB, with %d MiB of cache and %d MiB of pages; %d MiB were copied", peak/mib, cache/mib, pages*pageSize/mib, stored/mib)
	if bound := int64(cache + pages*pageSize + staging + constant); peak > bound {
		t.Errorf("the replay used %d MiB at its peak, more than %d MiB", peak/mib, bound/mib)
	}
	if stored < 4*peak {
		t.Errorf("only %d MiB were copied, too few to show that the peak does not depend on them", stored/mib)
	}
}

// watchPeak sends the peak resident memory of a process after it has ended. Its rusage cannot be
// used, because the kernel keeps the peak of the parent over exec.
func watchPeak(pid int) <-chan int64 {
	peak := make(chan int64, 1)
	go func() {
		var most int64
		for {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, found := strings.Cut(string(b), "VmHWM:")
			if err != nil || !found { // the process has ended or has released its memory
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
