package kvlane_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/limits"
)

// A cache that exceeded the container's memory limit was opened, and the kernel killed the process
// when the cache filled.
func TestCacheAboveTheMemoryLimitIsRefused(t *testing.T) {
	files := fstest.MapFS{
		"proc/meminfo":                 {Data: []byte("MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")},
		"proc/self/cgroup":             {Data: []byte("0::/\n")},
		"proc/self/mountinfo":          {Data: []byte("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
		"sys/fs/cgroup/memory.max":     {Data: []byte("536870912\n")},
		"sys/fs/cgroup/memory.current": {Data: []byte("33554432\n")},
	}
	if err := kvlane.CheckMemory(files, 480<<20); err != nil {
		t.Error(err)
	}
	err := kvlane.CheckMemory(files, 2<<30)
	if !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("2 GiB of 512 MiB: %v, want ErrNoMemory", err)
	}
	for _, want := range []string{"2 GiB", "512 MiB", "32 MiB", "/sys/fs/cgroup/memory.max", "cache_bytes"} {
		if err != nil && !strings.Contains(err.Error()+errdefs.Remedy(err), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestOpenRefusesACacheAboveTheMachinesMemory(t *testing.T) {
	c := testConfig(t)
	c.Store.CacheBytes = 2 * limits.Read(os.DirFS("/")).MemoryBytes
	if e, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNoMemory) || !strings.Contains(err.Error(), "do not fit") {
		if err == nil {
			err = e.Close(t.Context())
		}
		t.Errorf("a cache of %d bytes: %v, want ErrNoMemory with the numbers", c.Store.CacheBytes, err)
	}
}
