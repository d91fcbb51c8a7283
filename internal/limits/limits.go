// Package limits reads the limits on memory and processes set by the machine and by the control
// groups (cgroups) of this process.
//
// The limits of the process's own cgroup and of all its ancestors apply, in version 1 and in
// version 2. The package reads hard limits only (memory.max): at memory.high the kernel slows a
// process down but does not kill it.
package limits

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
)

// Limits are the limits of this process.
type Limits struct {
	MemoryBytes    int64 // total memory of the machine; zero if unknown
	AvailableBytes int64 // available memory of the machine without swapping; zero if unknown
	Memory         Group // limit in bytes
	PIDs           Group // limit of processes and threads
}

// Group is the cgroup with the least remaining memory or processes: the process's own cgroup or an
// ancestor.
type Group struct {
	File string // file with the limit, for example "/sys/fs/cgroup/a/memory.max"; empty: no limit
	Max  int64
	Used int64 // current usage; for memory, without the page cache, which the kernel can drop
}

// Left returns the unused part of the limit.
func (g Group) Left() int64 { return max(0, g.Max-g.Used) }

// controller has the file names of a cgroup controller: limit, usage and details. Arrays are
// indexed by version.
type controller struct {
	name             string
	max, used        [2]string
	stat             string
	inactive, active [2]string // keys in stat for the page cache
}

var (
	memory = controller{
		name: "memory", max: [2]string{"memory.limit_in_bytes", "memory.max"}, used: [2]string{"memory.usage_in_bytes", "memory.current"},
		stat: "memory.stat", inactive: [2]string{"total_inactive_file", "inactive_file"}, active: [2]string{"total_active_file", "active_file"},
	}
	pids = controller{name: "pids", max: [2]string{"pids.max", "pids.max"}, used: [2]string{"pids.current", "pids.current"}}
)

// Read returns the limits. files is the root of the machine's file system. Limits that cannot be
// read count as absent.
func Read(files fs.FS) Limits {
	r := reader{files}
	l := Limits{Memory: r.tightest(memory), PIDs: r.tightest(pids)}
	for line := range strings.Lines(r.text("proc/meminfo")) {
		var kib int64
		if n, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 && err == nil {
			l.MemoryBytes = kib << 10
		}
		if n, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 && err == nil {
			l.AvailableBytes = kib << 10
		}
	}
	return l
}

// CheckMemory returns nil if n more bytes of memory can be used. Otherwise it returns ErrNoMemory
// with the numbers; the kernel would probably kill this process. Unknown limits are ignored.
func (l Limits) CheckMemory(n int64) error {
	switch {
	case l.Memory.File != "" && n > l.Memory.Left():
		return fmt.Errorf("%s do not fit: the cgroup allows %s (%s), %s are in use: %w",
			present.Bytes(n), present.Bytes(l.Memory.Max), l.Memory.File, present.Bytes(l.Memory.Used), errdefs.ErrNoMemory)
	case l.AvailableBytes > 0 && n > l.AvailableBytes:
		return fmt.Errorf("%s do not fit: the machine has %s of memory, %s are available: %w",
			present.Bytes(n), present.Bytes(l.MemoryBytes), present.Bytes(l.AvailableBytes), errdefs.ErrNoMemory)
	}
	return nil
}

type reader struct{ files fs.FS }

// text returns a file's contents, or "" if it cannot be read.
func (r reader) text(name string) string {
	b, err := fs.ReadFile(r.files, name)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// number returns the number in a file. It returns false if the file has none, for example "max".
func (r reader) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(r.text(name), 10, 64)
	return n, err == nil && n >= 0
}

// tightest returns the cgroup with the least remaining, of both versions.
func (r reader) tightest(c controller) Group {
	var least Group
	for _, h := range r.hierarchies(c.name) {
		for dir := path.Join(h.mount, h.below); ; dir = path.Dir(dir) {
			if g, ok := r.group(c, dir, h.version); ok && (least.File == "" || g.Left() < least.Left()) {
				least = g
			}
			if dir == h.mount {
				break
			}
		}
	}
	return least
}

// group returns the limit of the cgroup in dir, and false if it has none.
func (r reader) group(c controller, dir string, version int) (Group, bool) {
	file := path.Join(dir, c.max[version])
	limit, ok := r.number(file)
	if !ok || limit >= unlimited {
		return Group{}, false
	}
	g := Group{File: "/" + file, Max: limit}
	g.Used, _ = r.number(path.Join(dir, c.used[version]))
	for line := range strings.Lines(r.text(path.Join(dir, c.stat))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && (name == c.inactive[version] || name == c.active[version]) {
			g.Used = max(0, g.Used-max(0, n))
		}
	}
	return g, true
}

// unlimited is a lower bound for the value that means "no limit" in version 1.
const unlimited = 1 << 60

// hierarchy is a mounted tree of cgroups. Paths have no leading slash.
type hierarchy struct {
	mount   string
	below   string // path of the process's cgroup below the mount
	version int    // 0: version 1; 1: version 2
}

// hierarchies returns the mounts of the process's cgroups with a controller.
func (r reader) hierarchies(name string) []hierarchy {
	var groups [2]string // path of the process's cgroup, by version
	for line := range strings.Lines(r.text("proc/self/cgroup")) {
		switch f := strings.SplitN(strings.TrimSpace(line), ":", 3); {
		case len(f) < 3:
		case f[0] == "0" && f[1] == "":
			groups[1] = f[2]
		case hasWord(f[1], name):
			groups[0] = f[2]
		}
	}
	var all []hierarchy
	for line := range strings.Lines(r.text("proc/self/mountinfo")) {
		before, after, _ := strings.Cut(line, " - ")
		f, of := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(of) < 3 {
			continue
		}
		version := 0
		switch {
		case of[0] == "cgroup2":
			version = 1
		case of[0] != "cgroup" || !hasWord(of[2], name):
			continue
		}
		if groups[version] == "" {
			continue
		}
		h := hierarchy{mount: path.Join(".", unescape.Replace(f[4])[1:]), version: version}
		// In a container without a cgroup namespace, only a part of the tree is mounted, and the
		// group's path is relative to the root of the whole tree. If the group is outside the
		// mounted part or outside the namespace ("/.."), it cannot be read; then the limits of the
		// mounted part are used.
		below, inside := strings.CutPrefix(groups[version], strings.TrimSuffix(unescape.Replace(f[3]), "/"))
		if inside && !strings.Contains(below, "..") && strings.HasPrefix(below, "/") {
			h.below = below[1:]
		}
		all = append(all, h)
	}
	return all
}

// unescape decodes the escape sequences in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// hasWord reports whether a comma-separated list contains a word.
func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
