package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

func TestDriverWithoutGPU(t *testing.T) {
	f := newFake(t)
	f.failNth(0, cuda.ErrorNoDevice)
	_, err := newDriver(f.api())
	var native *device.Error
	if !errors.Is(err, errdefs.ErrNotSupported) || !errors.As(err, &native) || native.Call != "cuInit" {
		t.Errorf("error %v: want ErrNotSupported of cuInit", err)
	}
}

func TestOpenDeviceThatDoesNotExist(t *testing.T) {
	f := newFake(t)
	api := f.api()
	drv, err := newDriver(api)
	must(t, err)
	for _, index := range []int{-1, 2, 7} {
		_, err := drv.Open(index, Options{})
		if !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "this machine has 2 (0..1)") {
			t.Errorf("open device %d: %v", index, err)
		}
	}
	api.DeviceGetCount = func() (int, cuda.Result) { return 0, cuda.Success }
	if _, err := drv.Open(0, Options{}); !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "has none") {
		t.Errorf("open device of none: %v", err)
	}
	if _, err := drv.Open(0, Options{CTAs: -1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("open with negative thread blocks: %v, want ErrInvalid", err)
	}
}

func TestInfo(t *testing.T) {
	f := newFake(t)
	in := f.open().Info()
	drv, err := newDriver(f.api())
	must(t, err)
	if all, err := drv.Infos(); err != nil || len(all) != 2 || all[0] != in || all[1].Index != 1 {
		t.Errorf("infos are %+v, %v", all, err)
	}
	if in.DriverVersion == "" || !strings.Contains(in.DriverVersion, "CUDA 12.8") {
		t.Errorf("driver version %q", in.DriverVersion)
	}
	in.DriverVersion, in.NUMANode = "", 0
	want := device.Info{
		Driver: "cuda", Index: 0, Name: fakeName, UUID: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", PCI: "0000:ab:00.0",
		MemoryBytes: 1 << 36, Multiprocs: 132, Compute: [2]int{9, 0}, CopyEngines: 3,
	}
	if in != want {
		t.Errorf("info is %+v\nwant %+v", in, want)
	}
}

func TestNUMANode(t *testing.T) {
	dir := t.TempDir()
	const pci = "0000:ab:00.0"
	if n := numaNode(dir, pci); n != -1 {
		t.Errorf("node %d without a file", n)
	}
	must(t, os.Mkdir(filepath.Join(dir, pci), 0o700))
	for text, want := range map[string]int{"3\n": 3, "0\n": 0, "-1\n": -1, "x": -1, "": -1} {
		must(t, os.WriteFile(filepath.Join(dir, pci, "numa_node"), []byte(text), 0o600))
		if n := numaNode(dir, pci); n != want {
			t.Errorf("node of %q is %d, want %d", text, n, want)
		}
	}
}

func TestNativeErrorNamesEverything(t *testing.T) {
	f := newFake(t)
	err := nativeError(f.api(), cuda.ErrorOutOfMemory, "cuMemAlloc_v2", "bytes=%d", 4096)
	if got, want := err.Error(), "cuMemAlloc_v2(bytes=4096): CUDA_ERROR_FAKE_2 (2): fake failure"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
	if !errors.Is(err, errdefs.ErrNoMemory) {
		t.Error("error is not ErrNoMemory")
	}
	api := f.api()
	api.ErrorName = func(cuda.Result) string { return "" }
	if got := nativeError(api, 12345, "cuX", "").Error(); !strings.Contains(got, "CUresult(12345)") {
		t.Errorf("error of an unknown code is %q", got)
	}
}
