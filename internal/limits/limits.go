// Package limits reads the limits on memory and processes that the machine and the process's
// control groups (cgroups) set.
//
// A process is bound by its own cgroup and by every cgroup above it, in version 1 and in version 2.
// Only hard limits count: the kernel kills a process at memory.max and slows one down at
// memory.high.
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
	MemoryBytes    int64 // of the machine; zero where unknown
	AvailableBytes int64 // of the machine's memory, without swapping; zero where unknown
	Memory         Group // bytes
	PIDs           Group // processes and threads
}

// Group is the cgroup with the least memory or processes left: the process's own or one above it.
type Group struct {
	File string // has the limit: "/sys/fs/cgroup/a/memory.max"; empty: no cgroup sets one
	Max  int64
	Used int64 // of memory: without the page cache, which the kernel can drop
}

// Left returns the part of the limit that is not in use.
func (g Group) Left() int64 { return max(0, g.Max-g.Used) }

// controller names the files of a cgroup with a limit, its use and its details, in version 1 and 2.
type controller struct {
	name             string
	max, used        [2]string
	stat             string
	inactive, active [2]string // lines of stat: the page cache
}

var (
	memory = controller{
		name: "memory", max: [2]string{"memory.limit_in_bytes", "memory.max"}, used: [2]string{"memory.usage_in_bytes", "memory.current"},
		stat: "memory.stat", inactive: [2]string{"total_inactive_file", "inactive_file"}, active: [2]string{"total_active_file", "active_file"},
	}
	pids = controller{name: "pids", max: [2]string{"pids.max", "pids.max"}, used: [2]string{"pids.current", "pids.current"}}
)

// Read returns the limits. files is the machine's root. A limit that cannot be read counts as none.
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

// CheckMemory returns nil if n bytes of memory can be used. Otherwise it returns ErrNoMemory with
// the numbers: the kernel would kill a process, most likely this one. Unknown limits are ignored.
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

// number returns the number in a file, or false if there is none, as for "max".
func (r reader) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(r.text(name), 10, 64)
	return n, err == nil && n >= 0
}

// tightest returns the group with the least left, of both versions.
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

// group returns the limit of the cgroup in dir, if it has one.
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

// unlimited is less than the value that version 1 has for "no limit", the largest number of pages
// in bytes.
const unlimited = 1 << 60

// hierarchy is a mounted tree of cgroups. The paths have no leading slash.
type hierarchy struct {
	mount   string
	below   string // the process's cgroup, from the mount on
	version int    // 0: version 1; 1: version 2
}

// hierarchies returns the mounts of the process's cgroups with a controller.
func (r reader) hierarchies(name string) []hierarchy {
	var groups [2]string // the process's cgroup by version
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
		// In a container without a cgroup namespace the mount shows a part of the tree, and the
		// group is named from the tree's root. A group outside that part, or outside the namespace
		// ("/.."), cannot be read: the mount's own limit counts.
		below, inside := strings.CutPrefix(groups[version], strings.TrimSuffix(unescape.Replace(f[3]), "/"))
		if inside && !strings.Contains(below, "..") && strings.HasPrefix(below, "/") {
			h.below = below[1:]
		}
		all = append(all, h)
	}
	return all
}

// unescape undoes the kernel's quoting in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// hasWord reports whether a list with commas has a word.
func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
