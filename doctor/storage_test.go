package doctor

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
)

// noRecord is a device whose library has no information about disks.
type noRecord struct{ *sim.Device }

func (d noRecord) OpenStorage(o device.StorageOptions) (device.Storage, error) {
	st, err := d.Device.OpenStorage(o)
	return noRecordStorage{st}, err
}

type noRecordStorage struct{ device.Storage }

func (noRecordStorage) Register(int) (device.StorageFile, error) {
	return nil, &device.Error{
		Call: "cuFileHandleRegister", Args: "fd=3", Code: 5027, Name: "CU_FILE_HANDLE_NOT_REGISTERED", Kind: errdefs.ErrNotSupported,
	}
}

func TestProbeStorage(t *testing.T) {
	probe := func(t *testing.T, o sim.Options, wrap func(*sim.Device) device.Device) CuFileProbe {
		t.Helper()
		d, err := sim.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		p := ProbeStorage(t.Context(), wrap(d), []string{dir, dir + "/none"})
		if err := d.Close(); err != nil {
			t.Errorf("something is left: %v", err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
		return p
	}
	same := func(d *sim.Device) device.Device { return d }
	if p := probe(t, sim.Options{}, same); p.Err != nil || len(p.Dirs) != 2 || p.Dirs[0].Err != nil || p.Dirs[0].Mode.Reason == "" || p.Dirs[1].Err == nil {
		t.Errorf("%+v", p)
	}
	if p := probe(t, sim.Options{Storage: sim.StorageModel{Compat: "so"}}, same); p.Dirs[0].Err != nil || p.Dirs[0].Mode != (device.StorageMode{Reason: "so"}) {
		t.Errorf("compatibility mode: %+v", p)
	}
	if p := probe(t, sim.Options{Storage: sim.StorageModel{Missing: true}}, same); !errors.Is(p.Err, errdefs.ErrNotSupported) || len(p.Dirs) != 0 {
		t.Errorf("without a library: %+v", p)
	}
	type deaf struct{ device.Device }
	if p := probe(t, sim.Options{}, func(d *sim.Device) device.Device { return deaf{d} }); !errors.Is(p.Err, errdefs.ErrNotSupported) {
		t.Errorf("a device without storage: %+v", p)
	}
	for name, rule := range map[string]fault.Rule{
		"refused": fault.Nth(sim.OpFileWrite, 0).Fail(nil), "short": fault.Nth(sim.OpFileRead, 0).Partial(nil),
		"damaged": fault.Nth(sim.OpFileRead, 0).Corrupt(),
	} {
		if p := probe(t, sim.Options{Faults: fault.New(1, rule)}, same); p.Dirs[0].Err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
	p := probe(t, sim.Options{}, func(d *sim.Device) device.Device { return noRecord{d} })
	for _, want := range []string{"/run/udev/data/b", "E:ID_FS_USAGE=filesystem", "E:ID_FS_TYPE=ext4"} {
		if !strings.Contains(p.Dirs[0].Remedy, want) {
			t.Errorf("the remedy %q lacks %s", p.Dirs[0].Remedy, want)
		}
	}
}

func TestCuFileIsTriedOnEveryFileSystem(t *testing.T) {
	m := recorded(t, "dgx")
	m.CUDA = twoGPUs
	m.Library = func(string) error { return nil }
	var asked []string
	m.CuFile = func(_ context.Context, dirs []string) CuFileProbe {
		asked = dirs
		return CuFileProbe{
			Dirs: []DirProbe{
				{Mode: device.StorageMode{Reason: "compatibility mode: no NVMe"}},
				{Err: &device.Error{Call: "cuFileHandleRegister", Code: 5027, Kind: errdefs.ErrNotSupported}, Remedy: "a udev record of the disk"},
				{Mode: device.StorageMode{Direct: true, Reason: "nvidia_fs 2.17 supports nfs"}},
			},
			LogFile: "/tmp/cufile.log", Log: []string{"ERROR one", "ERROR two"},
		}
	}
	r := examine(t, m)
	if !slices.Equal(asked, []string{"/", "/raid one", "/mnt/kv"}) {
		t.Errorf("examined %q", asked)
	}
	var got []Answer
	for _, f := range r.FileSystems {
		got = append(got, f.CuFile.Answer)
	}
	if !slices.Equal(got, []Answer{Yes, No, Yes, ""}) {
		t.Errorf("answers %q", got)
	}
	if r.CuFile.Driver.Answer != Yes || r.CuFile.Direct.Answer != Yes || !strings.Contains(r.CuFile.Direct.Reason, "/mnt/kv: nvidia_fs 2.17") {
		t.Errorf("%+v", r.CuFile)
	}
	wantText(t, r, "cuFile driver      yes", "cuFile log         /tmp/cufile.log", "ERROR two", "/: compatibility mode: no NVMe", "needs: a udev record of the disk")

	m.CuFile = func(context.Context, []string) CuFileProbe {
		return CuFileProbe{Dirs: []DirProbe{{Mode: device.StorageMode{Reason: "compatibility mode: no NVMe"}}}}
	}
	if f := examine(t, m).CuFile.Direct; f.Answer != No || !strings.Contains(f.Reason, "/: compatibility mode: no NVMe") {
		t.Errorf("no file is direct: %+v", f)
	}
	m.CuFile = func(context.Context, []string) CuFileProbe {
		return CuFileProbe{Err: &device.Error{Call: "cuFileDriverOpen", Code: 5007, Kind: errdefs.ErrNotSupported}}
	}
	if f := examine(t, m).CuFile.Driver; f.Answer != No || !strings.Contains(f.Reason, "cuFileDriverOpen") {
		t.Errorf("a driver that does not open: %+v", f)
	}
	m = recorded(t, "laptop")
	m.Library = func(string) error { return nil }
	if f := examine(t, m).CuFile.Driver; f.Answer != No || f.Reason != "no GPU to open it on" {
		t.Errorf("without a GPU: %+v", f)
	}
}
