package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
)

// recorded returns the machine whose /proc and /sys are in testdata. It has no GPU driver, no
// library and no working system call until the test adds them. The files are in one txtar archive
// for each machine, because a Go module cannot contain names such as "0000:1b:00.0".
func recorded(t *testing.T, name string) Machine {
	t.Helper()
	archive, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{}
	var current *fstest.MapFile
	for line := range strings.Lines(string(archive)) {
		if path, ok := strings.CutPrefix(line, "-- "); ok {
			current = &fstest.MapFile{Mode: 0o444}
			files[strings.TrimSuffix(path, " --\n")] = current
			continue
		}
		if current != nil {
			current.Data = append(current.Data, line...)
		}
	}
	if len(files) == 0 {
		t.Fatalf("%s holds no files", name)
	}
	return Machine{
		Files:      files,
		CPUs:       8,
		CUDA:       func(context.Context) (CUDA, error) { return CUDA{}, notSupported("load libcuda.so.1: no such file") },
		Library:    func(name string) error { return notSupported("load %s: no such file", name) },
		CuFile:     func(context.Context, []string) CuFileProbe { return CuFileProbe{} },
		IOUring:    func() error { return notSupported("no io_uring (%w)", unix.ENOSYS) },
		OpenFiles:  func() (uint64, uint64, error) { return 1024, 1 << 20, nil },
		MemoryLock: func() (uint64, uint64, error) { return 64 << 10, 64 << 10, nil },
		StatFS:     func(string) (int64, int64, error) { return 100 << 30, 40 << 30, nil },
		DirectIO:   func(string) error { return nil },
	}
}

// allYes returns the result of a probe in which everything works.
func allYes() Probe {
	var p Probe
	for _, a := range p.abilities() {
		*a.found = Finding{Answer: Yes}
	}
	return p
}

// twoGPUs returns the driver's answers on the machine "dgx". The second GPU does not support batch
// copies, and a third is broken.
func twoGPUs(context.Context) (CUDA, error) {
	yes, badPTX := Finding{Answer: Yes}, Finding{Answer: No, Reason: "bad PTX"}
	return CUDA{
		Version: "13.0",
		Devices: []CUDADevice{
			{
				Info: device.Info{
					Driver: "cuda", Index: 0, Name: "NVIDIA H100 80GB HBM3", UUID: "GPU-1", PCI: "0000:1B:00.0", NUMANode: -1,
					MemoryBytes: 80 << 30, Multiprocs: 132, Compute: [2]int{9, 0}, CopyEngines: 3,
				},
				Probe:   allYes(),
				Profile: yes,
				NIC:     Finding{Answer: Yes, Reason: "mlx5_0 (same PCIe switch, 2 hops)"},
				DMABuf:  Finding{Answer: Yes, Reason: "NICs' writes are visible without a flush"},
				Sharing: []Sharing{
					{"fabric", Finding{Answer: No, Reason: "cuMemCreate(bytes=2097152, device=0, handle=fabric): CUDA_ERROR_NOT_PERMITTED (800)", Remedy: "an IMEX channel"}},
					{"posix-fd", yes},
					{"cuda-ipc", yes},
					{"memfd", Finding{Answer: Yes, Reason: "host memory, by memfd"}},
				},
			},
			{
				Info: device.Info{Driver: "cuda", Index: 1, Name: "NVIDIA H100 80GB HBM3", UUID: "GPU-2", PCI: "0000:9d:00.0", NUMANode: 1},
				Probe: Probe{
					CopyEngine: yes, Batch: Finding{Answer: No, Reason: "cuMemcpyBatchAsync is missing"}, Kernel: badPTX,
					Staged: badPTX, Sums: badPTX,
				},
				Profile: Finding{Answer: No, Reason: "none is stored", Remedy: "kvlane calibrate"},
				NIC:     Finding{Answer: No, Reason: "none of mlx5_1 has an active port", Remedy: "a cable"},
				DMABuf:  Finding{Answer: No, Reason: "the driver's modules are closed", Remedy: "the open ones"},
				Sharing: []Sharing{{"cuda-ipc", Finding{Answer: Unknown, Reason: "the second process said nothing"}}},
			},
			{Info: device.Info{Index: 2}, Err: errors.New("cuDevicePrimaryCtxRetain(device=2): CUDA_ERROR_ECC_UNCORRECTABLE (214)")},
		},
		Peers: []Peer{{From: 0, To: 1, Access: yes, Link: "NVLink"}},
	}, nil
}

func examine(t *testing.T, m Machine, dirs ...string) *Report {
	t.Helper()
	r := Examine(t.Context(), m, Options{Dirs: dirs})
	for _, p := range r.Paths {
		if p.Available.Answer == "" {
			t.Errorf("path %s has no answer", p.Name)
		}
		if p.Available.Answer != Yes && p.Available.Reason == "" {
			t.Errorf("path %s: %s without a reason", p.Name, p.Available.Answer)
		}
	}
	return r
}

func pathNamed(t *testing.T, r *Report, name string) Finding {
	t.Helper()
	for _, p := range r.Paths {
		if p.Name == name {
			return p.Available
		}
	}
	t.Fatalf("the report has no path %q", name)
	return Finding{}
}

func text(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// wantText checks that the report contains each text, ignoring line breaks and spacing.
func wantText(t *testing.T, r *Report, want ...string) {
	t.Helper()
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	got := text(t, r)
	for _, w := range want {
		if !strings.Contains(words(got), words(w)) {
			t.Errorf("the report lacks %q:\n%s", w, got)
		}
	}
}

var errRefused = fmt.Errorf("write: %w", errors.New("refused"))

type badWriter struct{}

func (badWriter) Write([]byte) (int, error) { return 0, errRefused }
