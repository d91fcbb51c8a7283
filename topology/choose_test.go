package topology_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/topology"
)

// tree is a sysfs in a temporary directory.
type tree struct {
	testing.TB
	root string
}

func newTree(tb testing.TB) *tree {
	tb.Helper()
	return &tree{tb, tb.TempDir()}
}

func (t *tree) write(path, text string) {
	t.Helper()
	path = filepath.Join(t.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (t *tree) link(from, to string) {
	t.Helper()
	from, to = filepath.Join(t.root, from), filepath.Join(t.root, to)
	rel, err := filepath.Rel(filepath.Dir(from), to)
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(from), 0o755), os.MkdirAll(to, 0o755), os.Symlink(rel, from)); err != nil {
		t.Fatal(err)
	}
}

// pci adds a PCI device at a path below devices.
func (t *tree) pci(path, numa string) {
	t.Helper()
	dir := filepath.Join("devices", path)
	t.link(filepath.Join("bus/pci/devices", filepath.Base(path)), dir)
	t.write(filepath.Join(dir, "numa_node"), numa+"\n")
}

// nic adds an RDMA device below a PCI device, or without a bus if path is empty.
func (t *tree) nic(name, path, numa, state string) {
	t.Helper()
	dir := filepath.Join("devices/virtual/infiniband", name)
	if path != "" {
		t.pci(path, numa)
		dir = filepath.Join("devices", path, "infiniband", name)
		t.link(filepath.Join(dir, "device"), filepath.Join("devices", path))
	}
	t.link(filepath.Join("class/infiniband", name), dir)
	t.write(filepath.Join(dir, "ports/1/state"), state+"\n")
}

const (
	active = "4: ACTIVE"
	down   = "1: DOWN"
)

// server returns a machine with two sockets, with two GPUs and two NICs each. One GPU and one NIC
// share a switch, and an Ethernet NIC is far away.
func server(tb testing.TB) *tree {
	tb.Helper()
	t := newTree(tb)
	t.pci("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", "0") // GPU 0
	t.pci("pci0000:20/0000:20:01.0/0000:21:00.0", "0")                           // GPU 1
	t.pci("pci0000:80/0000:80:01.0/0000:81:00.0", "1")                           // GPU 2
	t.nic("mlx5_0", "pci0000:20/0000:20:03.0/0000:23:00.0", "0", active)
	t.nic("mlx5_1", "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", "0", active)
	t.nic("mlx5_2", "pci0000:a0/0000:a0:01.0/0000:a1:00.0", "1", active)
	t.nic("mlx5_3", "pci0000:b0/0000:b0:01.0/0000:b1:00.0", "1", active)
	t.nic("mlx5_4", "pci0000:80/0000:80:01.0/0000:81:00.1", "1", down)
	t.nic("rxe0", "", "", active)
	return t
}

var names = []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "rxe0"}

func gpus() []device.Info {
	return []device.Info{
		{Index: 0, PCI: "0000:13:00.0", NUMANode: 0},
		{Index: 1, PCI: "00000000:21:00.0", NUMANode: 0},
		{Index: 2, PCI: "0000:81:00.0", NUMANode: 1},
		{Index: 3, PCI: "", NUMANode: -1},
	}
}

func chosen(cs []topology.Candidate) string {
	var s []string
	for _, c := range cs {
		s = append(s, c.Name)
	}
	return strings.Join(s, " ")
}

func TestChoosesTheNearest(t *testing.T) {
	sys := server(t)
	for _, tt := range []struct {
		gpu, count int
		want       string
		level      topology.Level
	}{
		{0, 1, "mlx5_1", topology.LevelSwitch},
		{0, 4, "mlx5_1", topology.LevelSwitch}, // no other NIC is as near
		{1, 1, "mlx5_0", topology.LevelHostBridge},
		{2, 1, "mlx5_2", topology.LevelNUMA}, // the nearer one is down
		{2, 2, "mlx5_2 mlx5_3", topology.LevelNUMA},
		{3, 1, "mlx5_3", topology.LevelUnknown}, // all are equally near, so the GPU's index decides
	} {
		cs, err := topology.Choose(names, gpus()[tt.gpu], topology.Options{Sysfs: sys.root, Count: tt.count})
		if err != nil || chosen(cs) != tt.want || cs[0].Level != tt.level {
			t.Errorf("GPU %d: %+v, %v", tt.gpu, cs, err)
		}
	}
	all, err := topology.Rank(names, gpus()[2], sys.root)
	if err != nil || chosen(all) != "mlx5_2 mlx5_3 mlx5_0 mlx5_1 rxe0 mlx5_4" || !strings.Contains(all[5].Reason, "no active port") {
		t.Errorf("choice of all NICs: %+v, %v", all, err)
	}
}

func TestNamedNICs(t *testing.T) {
	sys := server(t)
	list := [][]string{{"mlx5_4"}, {"mlx5_2", "mlx5_0"}, {}, {"mlx5_9"}, {"mlx5_0", "mlx5_0"}}
	for _, tt := range []struct {
		gpu  int
		want string
		err  error
	}{
		{0, "mlx5_4", nil},
		{1, "mlx5_2 mlx5_0", nil},
		{2, "", errdefs.ErrInvalid},
		{3, "", errdefs.ErrNotFound},
		{4, "", errdefs.ErrInvalid},
		{5, "", errdefs.ErrInvalid},
		{-1, "", errdefs.ErrInvalid},
	} {
		cs, err := topology.Choose(names, device.Info{Index: tt.gpu, NUMANode: -1}, topology.Options{Sysfs: sys.root, Named: list})
		if chosen(cs) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("GPU %d: %+v, %v", tt.gpu, cs, err)
		}
		if tt.gpu == 3 && !strings.Contains(err.Error(), "mlx5_3") {
			t.Errorf("error %v does not list the NICs", err)
		}
	}
}

func TestNothingToChoose(t *testing.T) {
	empty := t.TempDir()
	if _, err := topology.Choose(nil, device.Info{}, topology.Options{Sysfs: empty}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("no NIC: %v", err)
	}
	// A device that sysfs does not list may still exist, if a software provider reports it.
	cs, err := topology.Choose([]string{"soft0"}, device.Info{PCI: "0000:01:00.0"}, topology.Options{Sysfs: empty})
	if err != nil || chosen(cs) != "soft0" || cs[0].Level != topology.LevelUnknown {
		t.Errorf("in software: %+v, %v", cs, err)
	}
	sys := newTree(t)
	sys.nic("mlx5_0", "pci0000:20/0000:20:03.0/0000:23:00.0", "-1", down)
	if _, err := topology.Choose([]string{"mlx5_0"}, device.Info{}, topology.Options{Sysfs: sys.root}); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("no active port: %v", err)
	}
	if _, err := topology.Choose([]string{"mlx5_0"}, device.Info{PCI: "../etc"}, topology.Options{Sysfs: sys.root}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("PCI address: %v", err)
	}
	m, err := topology.Scan(sys.root, nil)
	if err != nil || len(m.NICs) != 1 || m.NICs[0].PCI != "0000:23:00.0" || m.NICs[0].NUMANode != -1 || !m.NICs[0].Down {
		t.Errorf("scan: %+v, %v", m, err)
	}
	if err := os.Remove(filepath.Join(sys.root, "class/infiniband/mlx5_0/ports/1/state")); err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Scan(sys.root, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("port without a state: %v", err)
	}
}

func TestDistance(t *testing.T) {
	at := func(numa int, bridges ...string) topology.Place {
		return topology.Place{Bridges: bridges, NUMANode: numa}
	}
	for _, tt := range []struct {
		a, b  topology.Place
		level topology.Level
		hops  int
	}{
		{at(0, "pci0", "a", "x"), at(0, "pci0", "a", "y"), topology.LevelSwitch, 2},
		{at(0, "pci0", "a", "b", "x"), at(0, "pci0", "a", "y"), topology.LevelSwitch, 3},
		{at(-1, "pci0", "a", "x"), at(-1, "pci0", "b", "y"), topology.LevelHostBridge, 4},
		{at(1, "pci0", "x"), at(1, "pci1", "y"), topology.LevelNUMA, 0},
		{at(1, "pci0", "x"), at(0, "pci1", "y"), topology.LevelSystem, 0},
		{at(-1, "pci0", "x"), at(0, "pci1", "y"), topology.LevelUnknown, 0},
		{at(-1), at(-1), topology.LevelUnknown, 0},
	} {
		level, hops := topology.Distance(tt.a, tt.b)
		back, _ := topology.Distance(tt.b, tt.a)
		if level != tt.level || hops != tt.hops || back != level {
			t.Errorf("%v to %v: %s, %d hops; back: %s", tt.a, tt.b, level, hops, back)
		}
	}
	levels := []topology.Level{topology.LevelSwitch, topology.LevelHostBridge, topology.LevelNUMA, topology.LevelSystem, topology.LevelUnknown, 77}
	var said []string
	for _, l := range levels {
		said = append(said, l.String())
	}
	if slices.Sort(said); len(slices.Compact(said)) != len(levels) {
		t.Errorf("levels are called %q", said)
	}
}
