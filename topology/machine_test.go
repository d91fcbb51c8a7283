package topology_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/topology"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// recorded returns a machine of testdata as a sysfs, and its GPUs as a driver reports them. A line
// of such a file is one of
//
// node NUMBER CPUS KIB gpu NODE PATH nic NODE PATH NAME [down]
//
// where the path "-" is a device without a bus.
func recorded(t *testing.T, name string) (*tree, []device.Info) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".machine"))
	if err != nil {
		t.Fatal(err)
	}
	sys := newTree(t)
	var gpus []device.Info
	for line := range strings.Lines(string(text)) {
		switch f := strings.Fields(line); f[0] {
		case "node":
			dir := "devices/system/node/node" + f[1]
			sys.write(dir+"/cpulist", f[2]+"\n")
			sys.write(dir+"/meminfo", fmt.Sprintf("Node %[1]s MemTotal:       %[2]s kB\nNode %[1]s MemFree:  1 kB\n", f[1], f[3]))
		case "gpu":
			sys.pci(f[2], f[1])
			sys.write("devices/"+f[2]+"/vendor", "0x10de\n")
			sys.write("devices/"+f[2]+"/class", "0x030200\n")
			i := len(gpus)
			gpus = append(gpus, device.Info{
				Driver: "cuda", Index: i, Name: "NVIDIA H100 80GB HBM3", UUID: "GPU-" + strconv.Itoa(i), PCI: filepath.Base(f[2]), NUMANode: -1,
			})
		case "nic":
			state := active
			if len(f) == 5 {
				state = down
			}
			sys.nic(f[3], strings.TrimPrefix(f[2], "-"), f[1], state)
		}
	}
	return sys, gpus
}

// links are NVML's answers: the ends of each GPU's links, and which GPUs reach each other over
// NVLink.
type links struct {
	ends   map[string][]string
	joined func(from, to string) (bool, error)
}

func (l *links) NVLinks(pci string) ([]string, error) {
	if ends, ok := l.ends[pci]; ok {
		return ends, nil
	}
	return nil, fmt.Errorf("links: %w", errdefs.ErrNotSupported)
}

func (l *links) Peer(from, to string) (bool, error) { return l.joined(from, to) }

func times(n int, ends ...string) (all []string) {
	for _, e := range ends {
		for range n {
			all = append(all, e)
		}
	}
	return all
}

// linksOf returns the NVLinks of a machine of testdata.
func linksOf(name string, gpus []device.Info) *links {
	l := &links{make(map[string][]string), func(string, string) (bool, error) { return false, fmt.Errorf("peer: %w", errdefs.ErrNotSupported) }}
	switch name {
	case "dgx": // four switches
		for _, g := range gpus {
			l.ends[g.PCI] = append(times(4, "0000:05:00.0", "0000:06:00.0"), times(5, "0000:07:00.0", "0000:08:00.0")...)
		}
		l.joined = func(string, string) (bool, error) { return true, nil }
	case "pairs":
		for i, g := range gpus {
			l.ends[g.PCI] = times(4, gpus[i^1].PCI)
		}
		l.ends[gpus[0].PCI] = append(l.ends[gpus[0].PCI], times(2, gpus[3].PCI)...)
	}
	return l
}

func scan(t *testing.T, name string) *topology.Machine {
	t.Helper()
	sys, gpus := recorded(t, name)
	m, err := topology.Scan(sys.root, gpus)
	if err != nil {
		t.Fatal(err)
	}
	m.FindNVLinks(linksOf(name, gpus))
	return m
}

var machines = []string{"dgx", "pairs", "gpu-alone", "laptop", "soft-roce"}

func TestText(t *testing.T) {
	for _, name := range machines {
		var got bytes.Buffer
		if err := scan(t, name).WriteText(&got); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(got.String()) {
			if n := len([]rune(line)) - 1; n > 80 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		golden(t, filepath.Join("testdata", name+".txt"), got.Bytes())
	}
}

// golden compares with a file.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-rewrite writes it anew):\n%s", file, d)
	}
}

func TestMemoryAndItsNICs(t *testing.T) {
	m := scan(t, "dgx")
	if len(m.Memory) != 10 {
		t.Fatalf("%d places of memory", len(m.Memory))
	}
	for i, g := range m.GPUs {
		mem := m.Memory[2+i]
		if mem.Location != fmt.Sprintf("cuda:%d", i) || chosen(mem.Preferred) != m.NICs[nicOf[i]].Name || len(mem.Available) != 7 {
			t.Errorf("%+v: %+v", g, mem)
		}
		// Those of the same node come first.
		for k, c := range mem.Available {
			if want := topology.LevelNUMA; k < 3 && c.Level != want || k >= 3 && c.Level != topology.LevelSystem {
				t.Errorf("%s: NIC %d is %+v", mem.Location, k, c)
			}
		}
	}
	for i := range 2 {
		if mem := m.Memory[i]; len(mem.Preferred) != 4 || len(mem.Available) != 4 || mem.Preferred[0].Level != topology.LevelNUMA {
			t.Errorf("node %d: %+v", i, mem)
		}
	}
	if mem := scan(t, "pairs").Memory[0]; chosen(mem.Preferred) != "mlx5_0" || chosen(mem.Available) != "mlx5_2 rxe0" {
		t.Errorf("a NIC that is down suits nothing: %+v", mem)
	}
}

// nicOf contains the index of the NIC next to each GPU. NICs are sorted by name.
var nicOf = []int{0, 3, 4, 5, 6, 7, 1, 2}

func TestNVLinks(t *testing.T) {
	if m := scan(t, "dgx"); len(m.NVLinks) != 28 || m.NVLinks[27] != (topology.NVLink{A: 6, B: 7, Links: 18, Switch: true}) {
		t.Errorf("over switches: %+v", m.NVLinks)
	}
	m := scan(t, "pairs")
	want := []topology.NVLink{{A: 0, B: 1, Links: 4}, {A: 0, B: 3, Links: 2}, {A: 2, B: 3, Links: 4}}
	if d := cmp.Diff(want, m.NVLinks); d != "" {
		t.Error(d)
	}
	m.NVLinks = nil
	odd := errors.New("the driver is upset")
	m.FindNVLinks(&links{joined: func(from, _ string) (bool, error) {
		if from == m.GPUs[0].PCI {
			return false, odd
		}
		return true, odd // reports a link although the GPU does not reach the memory
	}})
	if len(m.NVLinks) != 3 || m.NVLinks[0].Links != 0 || len(m.Notes) != 3 || !strings.Contains(m.Notes[0], odd.Error()) {
		t.Errorf("links %+v, notes %q", m.NVLinks, m.Notes)
	}
}

func TestGPUsThatNoDriverOffers(t *testing.T) {
	sys, gpus := recorded(t, "dgx")
	m, err := topology.Scan(sys.root, gpus[7:])
	if err != nil || len(m.GPUs) != 8 || m.GPUs[0].Index != 7 || m.GPUs[1].Index != -1 || m.GPUs[1].PCI != "0000:1b:00.0" || len(m.Memory) != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	m.FindNVLinks(&links{}) // a device that only reports its links
	var got bytes.Buffer
	if err := m.WriteText(&got); err != nil || strings.Count(got.String(), "not offered by the driver") != 7 || len(m.Notes) > 0 {
		t.Errorf("%v\n%s", err, got.String())
	}
	simulated := device.Info{Driver: "sim", NUMANode: 1}
	if m, err = topology.Scan(t.TempDir(), []device.Info{simulated}); err != nil || len(m.Nodes) != 1 || m.GPUs[0].NUMANode != 1 || m.Memory[1].Location != "sim:0" {
		t.Errorf("without sysfs: %+v, %v", m, err)
	}
}

func TestJSON(t *testing.T) {
	for _, name := range machines {
		b, err := json.Marshal(scan(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("null")) {
			t.Errorf("%s has something null: %s", name, b)
		}
		var m struct {
			GPUs []struct {
				Path []string `json:"path"`
			} `json:"gpus"`
			Memory []struct {
				Preferred []struct{ Name, Level string } `json:"preferred"`
			} `json:"memory"`
		}
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if name == "dgx" && (len(m.GPUs[0].Path) != 5 || m.Memory[2].Preferred[0].Level != "same PCIe switch") {
			t.Errorf("%+v", m)
		}
	}
}

// drawing is the checked part of a picture.
type drawing struct {
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
	Rects  []struct {
		Class string  `xml:"class,attr"`
		X     float64 `xml:"x,attr"`
		Y     float64 `xml:"y,attr"`
		W     string  `xml:"width,attr"`
	} `xml:"rect"`
	Texts []struct {
		X    float64 `xml:"x,attr"`
		Y    float64 `xml:"y,attr"`
		Text string  `xml:",chardata"`
	} `xml:"text"`
	Paths []struct{} `xml:"path"`
}

// On every machine, labels neither overlap nor leave the picture.
func TestPicture(t *testing.T) {
	const wide, high = 7.3, 12
	for _, name := range machines {
		m := scan(t, name)
		var out bytes.Buffer
		if err := m.WriteSVG(&out); err != nil {
			t.Fatal(err)
		}
		if name == "dgx" {
			golden(t, "../docs/charts/topology.svg", out.Bytes())
		}
		var d drawing
		if err := xml.Unmarshal(out.Bytes(), &d); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out.String())
		}
		gpus := 0
		for _, r := range d.Rects {
			if r.Class == "gpu" {
				gpus++
			}
		}
		if gpus != len(m.GPUs) || name == "dgx" && len(d.Paths) != 8 || name == "pairs" && len(d.Paths) != 3 {
			t.Errorf("%s: %d GPUs and %d lines", name, gpus, len(d.Paths))
		}
		for i, a := range d.Texts {
			if end := a.X + wide*float64(len(a.Text)); a.X < 0 || end > d.Width || a.Y-high < 0 || a.Y > d.Height {
				t.Errorf("%s: %q leaves the picture", name, a.Text)
			}
			for _, b := range d.Texts[:i] {
				if a.X < b.X+wide*float64(len(b.Text)) && b.X < a.X+wide*float64(len(a.Text)) && a.Y-high < b.Y && b.Y-high < a.Y {
					t.Errorf("%s: %q overlaps %q", name, a.Text, b.Text)
				}
			}
		}
	}
}
