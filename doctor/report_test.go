package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/stream"
)

func TestFullMachine(t *testing.T) {
	m := recorded(t, "dgx")
	m.CUDA = twoGPUs
	m.Library = func(string) error { return nil }
	m.IOUring = func() error { return nil }
	r := examine(t, m)

	if r.Host.NUMANodes != 2 || r.Host.MemoryBytes != 2113406976<<10 {
		t.Errorf("host: %+v", r.Host)
	}
	if len(r.NVIDIA.OnBus) != 2 {
		t.Errorf("GPUs on the bus: %+v, want two, without the bridge and the NIC", r.NVIDIA.OnBus)
	}
	g := r.NVIDIA.GPUs[0]
	// The driver returns the address in capitals and does not know the node. Both come from the
	// bus.
	if g.PCI.Speed != "32.0 GT/s" || g.PCI.Width != 16 || g.NUMANode != 0 {
		t.Errorf("GPU 0: %+v", g)
	}
	if r.NVIDIA.GPUs[2].Usable.Answer != Unknown {
		t.Errorf("broken GPU: %+v", r.NVIDIA.GPUs[2])
	}
	if len(r.HugePages) != 2 || r.HugePages[0].SizeBytes != 1<<30 || r.HugePages[0].Free != 3 {
		t.Errorf("huge pages: %+v", r.HugePages)
	}
	nic := r.RDMA.Devices[0]
	if len(nic.Ports) != 1 || len(nic.Ports[0].GIDs) != 2 || nic.Ports[0].GIDs[1].Type != "RoCE v2" || nic.Ports[0].State != "ACTIVE" {
		t.Errorf("NIC: %+v", nic)
	}
	if r.CuFile.Direct.Answer != Yes || r.RDMA.PeerMemory.Answer != Yes || r.IOUring.Answer != Yes {
		t.Errorf("cufile %+v, peer memory %+v, io_uring %+v", r.CuFile, r.RDMA.PeerMemory, r.IOUring)
	}
	if f := pathNamed(t, r, "kernel"); f.Answer != Yes || f.Reason == "" {
		t.Errorf("kernel path: %+v, want Yes with the GPUs", f)
	}
	wantText(t, r, "NVIDIA H100 80GB HBM3, 80 GiB, compute 9.0", "2.5 GT/s x16 of 32.0 GT/s x16", "GID 1: 0000:0000:0000:0000:0000:ffff:0a00:0001 RoCE v2",
		"port 1: DOWN, InfiniBand", "over NVLink", "ECC_UNCORRECTABLE", "on 1 of 3 GPUs",
		"    paths            all", "    paths            not all: kernel (no: bad PTX)", "batched copies (no: cuMemcpyBatchAsync is missing)", "needs: kvlane calibrate",
		"    NIC              yes: mlx5_0 (same PCIe switch, 2 hops)\n", "    NIC              no: none of mlx5_1 has an active port\n", "needs: a cable",
		"    dma-buf          yes: NICs' writes are visible without a flush\n", "    dma-buf          no: the driver's modules are closed\n", "needs: the open ones")
	if f := pathNamed(t, r, "nic"); f.Answer != Yes || !strings.Contains(f.Reason, "on 1 of 3 GPUs") {
		t.Errorf("NIC path: %+v, want Yes with the GPUs", f)
	}
	if f := pathNamed(t, r, "peer"); f.Answer != Yes {
		t.Errorf("peer path: %+v", f)
	}
	if f := pathNamed(t, r, "shared memory"); f.Answer != Yes || !strings.Contains(f.Reason, "on 1 of 3 GPUs") {
		t.Errorf("shared memory: %+v", f)
	}
	wantText(t, r, "share fabric", "CUDA_ERROR_NOT_PERMITTED (800)", "an IMEX channel", "share cuda-ipc", "the second process said nothing")
}

func TestContainerWithoutItsGPU(t *testing.T) {
	r := examine(t, recorded(t, "container"))
	if f := pathNamed(t, r, "kernel"); f.Answer != No || f.Remedy != r.NVIDIA.Driver.Remedy {
		t.Errorf("kernel path: %+v", f)
	}
	wantText(t, r, "libcuda.so.1 of driver 550.54.15", "PCI 0001:00:00.0, link not known", "kernel.io_uring_disabled is 2",
		"sysctl kernel.io_uring_disabled=0", "no file system is mounted on /dev/shm", "ulimit -l unlimited")
}

func TestVirtualMachine(t *testing.T) {
	m := recorded(t, "vm-h100")
	m.CUDA = func(context.Context) (CUDA, error) {
		return CUDA{Version: "580.159.04 (CUDA 13.0)", Devices: []CUDADevice{{
			Info:  device.Info{Name: "NVIDIA H100 80GB HBM3", PCI: "0000:00:06.0", NUMANode: -1, MemoryBytes: 85017755648},
			Probe: allYes(), Profile: Finding{Answer: Yes}, NIC: Finding{Answer: Yes, Reason: "mlx5_0 (same host bridge)"},
			Sharing: []Sharing{{"fabric", Finding{Answer: No, Reason: "no IMEX channel"}}, {"posix-fd", Finding{Answer: Yes}}},
		}}}, nil
	}
	m.Library = func(string) error { return nil }
	m.IOUring = func() error { return nil }
	r := examine(t, m)
	if g := r.NVIDIA.GPUs[0]; g.NUMANode != -1 || g.PCI.Width != 16 || g.Usable.Answer != Yes {
		t.Errorf("GPU: %+v", g)
	}
	for _, p := range r.Paths {
		want := Finding{Answer: Yes}
		switch p.Name {
		case "peer":
			want = Finding{Answer: No, Reason: "this machine has one GPU"}
		case "transfer/rdma":
			want = Finding{Answer: No, Reason: "no RDMA device found"}
		}
		if p.Available.Answer != want.Answer || p.Available.Reason != want.Reason {
			t.Errorf("path %s: %+v", p.Name, p.Available)
		}
	}
	if len(r.FileSystems) != 1 {
		t.Errorf("file systems %+v, want the root's alone", r.FileSystems)
	}
	wantText(t, r, "driver version     580.159.04 (CUDA 13.0)", "PCI 0000:00:06.0, 32.0 GT/s x16\n", "79.2 GiB", "nvidia_fs is not loaded")
	if strings.Contains(text(t, r), "NUMA node -1") {
		t.Error("a node that is not known is printed")
	}
}

func TestEveryPathIsReported(t *testing.T) {
	r := examine(t, recorded(t, "laptop"))
	for _, p := range stream.Paths() {
		if p != stream.PathNICSoft { // which has no requirements
			pathNamed(t, r, p.String())
		}
	}
	if f := pathNamed(t, r, "transfer/tcp"); f.Answer != Yes {
		t.Errorf("transfer/tcp: %+v, want yes: sockets need nothing", f)
	}
}

func TestLaptop(t *testing.T) {
	m := recorded(t, "laptop")
	r := examine(t, m)
	if r.LockedMem.Enough.Answer != Yes || r.LockedMem.Exempt != Yes {
		t.Errorf("locked memory: %+v, want no bound for a process with CAP_IPC_LOCK", r.LockedMem)
	}
	if f := pathNamed(t, r, "posix"); f.Answer != Yes {
		t.Errorf("posix path: %+v", f)
	}
	wantText(t, r, "this machine's PCI bus has none", "a kernel of 5.6 or later", "huge pages         none", "install GPUDirect Storage")
}

func TestDriverWithoutDevice(t *testing.T) {
	m := recorded(t, "laptop")
	m.CUDA = func(context.Context) (CUDA, error) { return CUDA{Version: "12.4"}, nil }
	if r := examine(t, m); r.NVIDIA.Driver.Answer != No {
		t.Errorf("driver: %+v, want no: it has no device", r.NVIDIA.Driver)
	}
}

func TestCuFileCompatibilityModeIsNamed(t *testing.T) {
	m := recorded(t, "laptop")
	m.Library = func(string) error { return nil }
	r := examine(t, m)
	if r.CuFile.Library.Answer != Yes || r.CuFile.Direct.Answer != No {
		t.Errorf("cufile: %+v", r.CuFile)
	}
	wantText(t, r, "compatibility mode, through host memory, without an error")
}

func TestInconclusiveIsNotNo(t *testing.T) {
	m := recorded(t, "laptop")
	m.IOUring = func() error { return unix.EIO }
	m.DirectIO = func(string) error { return unix.EACCES }
	m.MemoryLock = func() (uint64, uint64, error) { return 0, 0, unix.EIO }
	m.CUDA = func(context.Context) (CUDA, error) { return CUDA{}, errors.New("cuInit: CUDA_ERROR_UNKNOWN (999)") }
	r := examine(t, m)
	for what, f := range map[string]Finding{
		"io_uring": r.IOUring, "O_DIRECT": r.FileSystems[0].DirectIO, "locked memory": r.LockedMem.Enough,
		"driver": r.NVIDIA.Driver, "kernel path": pathNamed(t, r, "kernel"),
	} {
		if f.Answer != Unknown || f.Reason == "" {
			t.Errorf("%s: %+v, want unknown with the reason", what, f)
		}
	}
}

func TestFileSystems(t *testing.T) {
	m := recorded(t, "dgx")
	m.DirectIO = func(dir string) error {
		if dir == "/mnt/kv" {
			return notSupported("the file system refuses O_DIRECT")
		}
		return nil
	}
	var dirs []string
	for _, f := range examine(t, m).FileSystems {
		dirs = append(dirs, f.Dir+" "+f.Type+" "+string(f.Usable.Answer)+" "+string(f.DirectIO.Answer))
	}
	want := []string{"/ ext4 yes yes", "/raid one xfs yes yes", "/mnt/kv nfs4 yes no", "/media/driver ext4 no unknown"}
	if diff := cmp.Diff(want, dirs); diff != "" {
		t.Errorf("file systems (-want +got):\n%s", diff)
	}

	named := examine(t, m, "/mnt/kv/blocks/", "/mnt/kvother", "/raid one").FileSystems
	for i, want := range []string{"nfs4", "ext4", "xfs"} {
		if named[i].Type != want {
			t.Errorf("%s is on %s, want %s", named[i].Dir, named[i].Type, want)
		}
	}
	m.StatFS = func(string) (int64, int64, error) { return 0, 0, unix.ESTALE }
	if f := pathNamed(t, examine(t, m), "posix"); f.Answer != No {
		t.Errorf("posix path without a usable file system: %+v", f)
	}
}

// In a container, the report shows the container's limit next to the memory of the host.
func TestLimitsOfTheProcess(t *testing.T) {
	m := recorded(t, "container")
	r := examine(t, m)
	if l := r.Host.MemoryLimit; l.Max != 512<<20 || l.Used != 32<<20 {
		t.Errorf("memory limit: %+v", l)
	}
	wantText(t, r, "512 MiB, 32 MiB in use (/sys/fs/cgroup/memory.max)", "1,024, 7 in use (/sys/fs/cgroup/pids.max)", "1,024, at most 1,048,576 (ulimit -n)")
	m.OpenFiles = func() (uint64, uint64, error) { return 1024, math.MaxUint64, nil }
	wantText(t, examine(t, m), "1,024, at most unlimited")
	m.OpenFiles = func() (uint64, uint64, error) { return 0, 0, unix.EIO }
	wantText(t, examine(t, m), "not known: input/output error")
	wantText(t, examine(t, recorded(t, "laptop")), "none by a cgroup")
}

func TestUnlimitedLockedMemory(t *testing.T) {
	m := recorded(t, "dgx")
	m.MemoryLock = func() (uint64, uint64, error) { return math.MaxUint64, math.MaxUint64, nil }
	if l := examine(t, m).LockedMem; l.Enough.Answer != Yes {
		t.Errorf("locked memory: %+v", l)
	}
}

func TestJSONHasNoNullLists(t *testing.T) {
	b, err := json.Marshal(examine(t, recorded(t, "laptop")))
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.NVIDIA.GPUs == nil || back.NVIDIA.OnBus == nil || back.RDMA.Devices == nil || back.HugePages == nil || back.NVIDIA.Peers == nil {
		t.Errorf("a list is null, which a reader must handle beside empty: %s", b)
	}
}

func TestWriteTextReportsItsWriter(t *testing.T) {
	if err := examine(t, recorded(t, "laptop")).WriteText(badWriter{}); !errors.Is(err, errRefused) {
		t.Errorf("error %v, want the writer's", err)
	}
}

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// missing is the error of a missing library, with a long and a brief text.
type missing string

func (m missing) Error() string {
	return fmt.Sprintf("open library %s: not supported: %s: cannot open shared object file: No such file or directory", string(m), string(m))
}
func (m missing) Brief() string { return string(m) + " not found" }
func (m missing) Unwrap() error { return errdefs.ErrNotSupported }

// noLibraries returns the report of a machine without libraries, on which a GPU and files are
// required.
func noLibraries(t *testing.T) *Report {
	t.Helper()
	m := recorded(t, "laptop")
	m.CUDA = func(context.Context) (CUDA, error) {
		return CUDA{}, fmt.Errorf("load CUDA driver: %w", missing("libcuda.so.1"))
	}
	m.Library = func(name string) error { return missing(name) }
	o := Options{}
	for _, name := range []string{"cuda", "kernel", "cufile", "posix"} {
		a, err := ParseAbility(name)
		if err != nil {
			t.Fatal(err)
		}
		o.Require = append(o.Require, a)
	}
	return Examine(t.Context(), m, o)
}

func TestReportForPeople(t *testing.T) {
	presenttest.Check(t, "bare", *rewrite, noLibraries(t).WriteText)
	m := recorded(t, "dgx")
	m.CUDA = twoGPUs
	m.Library = func(string) error { return nil }
	m.IOUring = func() error { return nil }
	presenttest.Check(t, "full", *rewrite, examine(t, m).WriteText)
}

// The text names the reason for a missing GPU briefly, with the verdict and with the driver. JSON
// contains the full reason.
func TestDefectReasonIsPrintedTwice(t *testing.T) {
	r := noLibraries(t)
	got := text(t, r)
	if n := strings.Count(got, "libcuda.so.1"); n != 2 || strings.Contains(got, "cannot open") {
		t.Errorf("libcuda.so.1 is named %d times, want twice, in brief:\n%s", n, got)
	}
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"driver":{"answer":"no","reason":"load CUDA driver: `+missing("libcuda.so.1").Error()+`","remedy":"`) {
		t.Errorf("%v: the JSON form has another reason:\n%s", err, b)
	}
}
