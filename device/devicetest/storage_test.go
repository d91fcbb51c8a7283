package devicetest_test

import (
	"context"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
)

func (d *damagedDevice) OpenStorage(o device.StorageOptions) (device.Storage, error) {
	inner := d.Device
	if d.defect == "storages are many" && d.storages > 0 {
		other, err := sim.Open(sim.Options{})
		if err != nil {
			return nil, err
		}
		inner = other
	}
	d.storages++
	opener, ok := inner.(device.StorageOpener)
	if !ok {
		panic("a simulated device has no files")
	}
	st, err := opener.OpenStorage(o)
	if err != nil {
		return nil, err
	}
	return &damagedStorage{st, d.defect}, nil
}

type damagedStorage struct {
	device.Storage
	defect string
}

func (s *damagedStorage) Register(fd int) (device.StorageFile, error) {
	f, err := s.Storage.Register(fd)
	if err != nil {
		return nil, err
	}
	e, ok := f.(device.StorageEnqueuer)
	if !ok {
		panic("a simulated device has no asynchronous transfers")
	}
	return &damagedFile{StorageEnqueuer: e, defect: s.defect}, nil
}

type damagedFile struct {
	device.StorageEnqueuer
	defect string
	closed bool
}

func (f *damagedFile) Read(dst mem.Extent, off int64) (int64, error) {
	if f.defect == "misaligned reads are rounded" {
		off &^= 511
	}
	if f.closed {
		return dst.Len, nil
	}
	n, err := f.StorageEnqueuer.Read(dst, off)
	if f.defect == "short reads are hidden" && err == nil {
		n = dst.Len
	}
	return n, err
}

// EnqueueRead with the defect "transfers overtake" does not wait for earlier work of the queue.
func (f *damagedFile) EnqueueRead(q device.Queue, dst mem.Extent, off int64) (device.Transfer, error) {
	if f.defect == "transfers overtake" {
		n, err := f.StorageEnqueuer.Read(dst, off)
		return overtaken{n, err}, nil
	}
	return f.StorageEnqueuer.EnqueueRead(q, dst, off)
}

func (f *damagedFile) Close(ctx context.Context) error {
	switch f.defect {
	case "files outlive their close":
		f.closed = true
	case "files close at once":
		return nil
	}
	return f.StorageEnqueuer.Close(ctx)
}

type overtaken struct {
	n   int64
	err error
}

func (o overtaken) Done() (int64, bool, error)          { return o.n, true, o.err }
func (o overtaken) Wait(context.Context) (int64, error) { return o.n, o.err }
func (o overtaken) Close()                              {}
