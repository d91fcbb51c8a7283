package limits_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// machine returns the files of a machine by name, with their contents.
func machine(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n")}}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return m
}

const (
	mount2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw"
	none1  = "9223372036854771712"
)

func TestTheTightestLimitOfTheProcessAndItsAncestors(t *testing.T) {
	const top, mid, own = "sys/fs/cgroup/", "sys/fs/cgroup/kube/", "sys/fs/cgroup/kube/pod/"
	for name, tt := range map[string]struct {
		files        map[string]string
		memory, pids limits.Group
	}{
		"none": {files: map[string]string{}},
		"no limit": {files: map[string]string{
			"proc/self/cgroup": "0::/kube/pod", "proc/self/mountinfo": mount2, own + "memory.max": "max", own + "memory.high": "1000", own + "pids.max": "max",
		}},
		"own": {files: map[string]string{
			"proc/self/cgroup": "0::/kube/pod", "proc/self/mountinfo": mount2,
			own + "memory.max": "1000", own + "memory.current": "300", own + "memory.stat": "anon 100\ninactive_file 50\nactive_file 20\ntotal_active_file 7",
			mid + "memory.max": "2000", mid + "memory.current": "400",
			own + "pids.max": "10", own + "pids.current": "3",
		}, memory: limits.Group{File: "/" + own + "memory.max", Max: 1000, Used: 230}, pids: limits.Group{File: "/" + own + "pids.max", Max: 10, Used: 3}},
		"an ancestor's, which others use too": {files: map[string]string{
			"proc/self/cgroup": "0::/kube/pod", "proc/self/mountinfo": mount2,
			own + "memory.max": "1000", own + "memory.current": "300",
			mid + "memory.max": "2000", mid + "memory.current": "1900",
			top + "pids.max": "5", top + "pids.current": "9",
		}, memory: limits.Group{File: "/" + mid + "memory.max", Max: 2000, Used: 1900}, pids: limits.Group{File: "/" + top + "pids.max", Max: 5, Used: 9}},
		"version 1, each controller mounted apart": {files: map[string]string{
			"proc/self/cgroup":                               "8:pids:/\n4:cpu,memory:/a/b\n0::/",
			"proc/self/mountinfo":                            "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n2 0 0:2 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n3 0 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": none1,
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "5000", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1000",
			"sys/fs/cgroup/memory/a/memory.stat":         "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 200",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": none1,
			"sys/fs/cgroup/pids/pids.max":                "max",
		}, memory: limits.Group{File: "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", Max: 5000, Used: 700}},
		"a container that sees its part of the tree": {files: map[string]string{
			"proc/self/cgroup":                            "4:memory:/docker/abc/sub",
			"proc/self/mountinfo":                         `1 0 0:1 /docker/abc /my\040cgroups/memory rw - cgroup cgroup rw,memory`,
			"my cgroups/memory/sub/memory.limit_in_bytes": "700",
			"my cgroups/memory/memory.limit_in_bytes":     "600",
		}, memory: limits.Group{File: "/my cgroups/memory/memory.limit_in_bytes", Max: 600}},
		"a group outside of what is mounted": {files: map[string]string{
			"proc/self/cgroup": "0::/../other", "proc/self/mountinfo": mount2, top + "memory.max": "900", "sys/fs/other/memory.max": "1",
		}, memory: limits.Group{File: "/" + top + "memory.max", Max: 900}},
		"a group whose name begins as the mounted part's": {files: map[string]string{
			"proc/self/cgroup": "0::/docker/abcdef", "proc/self/mountinfo": strings.Replace(mount2, " / ", " /docker/abc ", 1), top + "memory.max": "900", top + "def/memory.max": "1",
		}, memory: limits.Group{File: "/" + top + "memory.max", Max: 900}},
		"mounted at the root": {files: map[string]string{
			"proc/self/cgroup": "0::/a/b", "proc/self/mountinfo": "1 0 0:1 / / rw - cgroup2 cgroup2 rw", "a/memory.max": "800",
		}, memory: limits.Group{File: "/a/memory.max", Max: 800}},
		"text that is no number": {files: map[string]string{
			"proc/self/cgroup": "x\n0::/\n\n:", "proc/self/mountinfo": "- \n" + mount2 + "\n1 2 - cgroup2", top + "memory.max": "-1", top + "pids.max": "ten",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := limits.Read(machine(tt.files))
			if got.Memory != tt.memory || got.PIDs != tt.pids {
				t.Errorf("%+v and %+v, want %+v and %+v", got.Memory, got.PIDs, tt.memory, tt.pids)
			}
			if got.MemoryBytes != 8<<30 || got.AvailableBytes != 4<<30 {
				t.Errorf("the machine has %d bytes, %d available", got.MemoryBytes, got.AvailableBytes)
			}
		})
	}
}

func TestMemoryThatDoesNotFitIsRefusedWithTheNumbers(t *testing.T) {
	group := limits.Group{File: "/sys/fs/cgroup/memory.max", Max: 512 << 20, Used: 32 << 20}
	for name, tt := range map[string]struct {
		l     limits.Limits
		bytes int64
		want  []string // empty: the size is accepted
	}{
		"unknown":                {limits.Limits{}, 1 << 50, nil},
		"fits":                   {limits.Limits{MemoryBytes: 8 << 30, AvailableBytes: 1 << 30, Memory: group}, 480 << 20, nil},
		"above the cgroup's":     {limits.Limits{MemoryBytes: 8 << 30, AvailableBytes: 1 << 30, Memory: group}, 480<<20 + 1, []string{"512 MiB", "32 MiB", "/sys/fs/cgroup/memory.max"}},
		"above what is free":     {limits.Limits{MemoryBytes: 8 << 30, AvailableBytes: 1 << 30}, 2 << 30, []string{"2 GiB", "8 GiB", "1 GiB"}},
		"more used than allowed": {limits.Limits{Memory: limits.Group{File: "f", Max: 1, Used: 2}}, 1, []string{"f"}},
	} {
		err := tt.l.CheckMemory(tt.bytes)
		if (err == nil) != (tt.want == nil) || err != nil && !errors.Is(err, errdefs.ErrNoMemory) {
			t.Errorf("%s: %v", name, err)
		}
		for _, w := range tt.want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", name, err, w)
			}
		}
	}
}

// This machine's files can be read.
func TestThisMachine(t *testing.T) {
	l := limits.Read(os.DirFS("/"))
	if l.MemoryBytes <= 0 || l.AvailableBytes <= 0 || l.AvailableBytes > l.MemoryBytes {
		t.Errorf("%+v", l)
	}
	t.Logf("%+v", l)
}
