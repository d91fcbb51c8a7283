package registry_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// exporter exports files as dma-bufs. Each file contains the identity of its memory at the offset.
type exporter struct{ err error }

func (x *exporter) ExportDMABuf(e mem.Extent) (int, int64, error) {
	if x.err != nil {
		return -1, 0, x.err
	}
	const off = 4096
	fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, off+e.Len)
	}
	if err == nil {
		_, err = unix.Pwrite(fd, binary.NativeEndian.AppendUint64(nil, uint64(e.Dev())), off)
	}
	return fd, off, err
}

// reader is a provider that reads the identity of the memory from a dma-buf when it is registered.
type reader struct{ rdma.Provider }

type readerDevice struct{ rdma.Device }

type readerPD struct{ rdma.PD }

func (r reader) Open(name string) (rdma.Device, error) {
	d, err := r.Provider.Open(name)
	return readerDevice{d}, err
}

func (d readerDevice) AllocPD() (rdma.PD, error) {
	p, err := d.Device.AllocPD()
	return readerPD{p}, err
}

func (p readerPD) RegDMABufMR(e mem.Extent, fd int, off int64, o rdma.MROptions) (rdma.MR, error) {
	var b [8]byte
	if n, err := unix.Pread(fd, b[:], off); n != len(b) || err != nil || binary.NativeEndian.Uint64(b[:]) != uint64(e.Dev()) {
		return nil, errors.New("this is another memory's dma-buf")
	}
	return p.PD.RegDMABufMR(e, fd, off, o)
}

// TestDefectNoDMABufRegistration checks that device memory is registered as a dma-buf if possible,
// and otherwise through peer memory. If neither works, the error names the missing parts.
func TestDefectNoDMABufRegistration(t *testing.T) {
	cannot, broken := errdefs.ErrNotSupported, errors.New("export broke")
	for name, tt := range map[string]struct {
		exporter registry.Exporter
		nic      soft.DeviceOptions
		want     registry.Method
		err      error
		says     string
	}{
		"dma-buf":                    {&exporter{}, soft.DeviceOptions{}, registry.MethodDMABuf, nil, ""},
		"dma-buf and no peer memory": {&exporter{}, soft.DeviceOptions{NoDeviceMemory: true}, registry.MethodDMABuf, nil, ""},
		"no exporter":                {nil, soft.DeviceOptions{}, registry.MethodPeerMemory, nil, ""},
		"driver cannot export":       {&exporter{err: cannot}, soft.DeviceOptions{}, registry.MethodPeerMemory, nil, ""},
		"kernel takes no dma-buf":    {&exporter{}, soft.DeviceOptions{NoDMABuf: true}, registry.MethodPeerMemory, nil, ""},
		"neither":                    {&exporter{}, soft.DeviceOptions{NoDMABuf: true, NoDeviceMemory: true}, 0, cannot, "nvidia_peermem"},
		"export fails":               {&exporter{err: broken}, soft.DeviceOptions{}, 0, broken, "dma-buf"},
	} {
		t.Run(name, func(t *testing.T) {
			_, nics := machine(t, soft.Options{Devices: []soft.DeviceOptions{tt.nic}}, registry.Options{Exporter: tt.exporter})
			r := gpu(t, 0, 0x10000, 0x1000)
			err := nics[0].Register(all, r)
			if tt.err != nil {
				wantErr(t, err, tt.err)
				if s := nics[0].Stats(); s != (registry.Stats{Failed: 1}) {
					t.Errorf("stats %+v of a failure", s)
				}
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %v does not contain %q", err, tt.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			m, err := nics[0].Acquire(mem.All(r), all.Access)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Release()
			how, why := m.Method()
			if how != tt.want || (why != nil) != (tt.want == registry.MethodPeerMemory) {
				t.Errorf("registered by method %s with the reason %v", how, why)
			}
			want := registry.Stats{}
			want.By[how-1] = registry.MethodStats{Live: 1, Bytes: 0x1000, Total: 1}
			if s := nics[0].Stats(); s != want {
				t.Errorf("stats %+v, want %+v", s, want)
			}
			if a := m.Info().Access; a&rdma.AccessRelaxedOrdering != 0 || a&rdma.AccessRemoteRead == 0 || a&rdma.AccessRemoteWrite == 0 {
				t.Errorf("registered for %s", a)
			}
		})
	}
}
