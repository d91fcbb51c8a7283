package devicetest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/devicetest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// defectEnv names the defect of TestDevice's device. If it is unset, the device has none.
const defectEnv = "KVLANE_DEVICETEST_DEFECT"

// TestDevice runs the suite on a good device, unless TestSuiteFindsDefects selects another.
func TestDevice(t *testing.T) {
	defect := os.Getenv(defectEnv)
	devicetest.Run(t, func(t *testing.T) device.Device {
		t.Helper()
		o := sim.Options{WaitsHoldAllocation: strings.HasSuffix(t.Name(), "/Parked")}
		if op, corrupt := strings.CutPrefix(defect, "corrupt "); corrupt {
			o.Faults = fault.New(1, fault.Every(op, 2).Corrupt())
		}
		d, err := sim.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		return &damagedDevice{Device: d, defect: defect}
	})
}

// TestSuiteFindsDefects runs parts of the suite on devices with one defect each, in separate
// processes. The suite must fail.
func TestSuiteFindsDefects(t *testing.T) {
	tests := []struct{ defect, found string }{
		{"corrupt " + sim.OpCopy, "Copy"},
		{"corrupt " + sim.OpCopy, "CopyLarge"},
		{"corrupt " + sim.OpFill, "Fill"},
		{"corrupt " + sim.OpBatch, "Batch"},
		{"corrupt " + sim.OpLaunch, "CopyListAlignments"},
		{"corrupt " + sim.OpLaunch, "CopyListLong"},
		{"corrupt " + sim.OpLaunch, "CopyPaged"},
		{"corrupt " + sim.OpLaunch, "PatternFill"},
		{"corrupt " + sim.OpLaunch, "PatternCheck"},
		{"pinned memory is not zeroed", "AllocHost"},
		{"a second free is fine", "FreeRefuses"},
		{"close says nothing", "DeviceClose"},
		{"fills overtake", "Order"},
		{"waits are ignored", "HostStreamRecord"},
		{"events are done at once", "Event"},
		{"close does not wait", "QueueClose"},
		{"batches are not whole", "BatchRefuses"},
		{"words are not waited for", "WaitValue"},
		{"words are not waited for", "HostStreamRecord"},
		{"words are not waited for", "HeldQueueClose"},
		{"words are not waited for", "SignalSteps"},
		{"words are not waited for", "SignalReuse"},
		{"words are compared too low", "SignalReuse"},
		{"words are written too early", "WriteValue"},
		{"words are not written", "WriteValue"},
		{"words are not written", "SignalSteps"},
		{"host streams record too early", "HostStreamRecord"},
		{"captures are not seen", "AdoptRefuses"},
		{"launches allocate", "Parked"},
		{"any launch will do", "LaunchRefuses"},
		{"dma-bufs are short", "ExportDMABuf"},
		{"dma-bufs begin anywhere", "ExportDMABuf"},
		{"dma-bufs are inherited", "ExportDMABuf"},
		{"anything is a dma-buf", "ExportDMABuf"},
		{"flushes fail", "FlushRemoteWrites"},
		{"flushes outlive the device", "FlushRemoteWrites"},
		{"corrupt " + sim.OpFileRead, "StorageMoves"},
		{"corrupt " + sim.OpFileWrite, "StorageMoves"},
		{"misaligned reads are rounded", "StorageMoves"},
		{"short reads are hidden", "StorageShort"},
		{"transfers overtake", "StorageQueueOrder"},
		{"files outlive their close", "StorageClose"},
		{"files close at once", "StorageClose"},
		{"storages are many", "StorageLeftOpen"},
	}
	for _, tt := range tests {
		t.Run(tt.defect+" in "+tt.found, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDevice$/^"+tt.found+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), defectEnv+"="+tt.defect)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: TestDevice/"+tt.found) {
				t.Errorf("the suite did not find it: %v\n%s", err, out)
			}
		})
	}
}

// damagedDevice is a simulated device with one defect, or none.
type damagedDevice struct {
	device.Device
	defect   string
	storages int
}

func (d *damagedDevice) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	if err != nil {
		return nil, err
	}
	sq, ok := q.(*sim.Queue)
	if !ok {
		return nil, fmt.Errorf("a simulated device opened a %T", q)
	}
	return &damagedQueue{Queue: sq, dev: d.Device, defect: d.defect}, nil
}

func (d *damagedDevice) AllocHost(n int64) (*mem.Region, error) {
	r, err := d.Device.AllocHost(n)
	if err == nil && d.defect == "pinned memory is not zeroed" {
		r.Bytes()[n-1] = 1
	}
	return r, err
}

func (d *damagedDevice) Free(r *mem.Region) error {
	err := d.Device.Free(r)
	if d.defect == "a second free is fine" {
		return nil
	}
	return err
}

func (d *damagedDevice) Close() error {
	err := d.Device.Close()
	if d.defect == "close says nothing" {
		return nil
	}
	return err
}

// ExportDMABuf exports memory files of the right length.
func (d *damagedDevice) ExportDMABuf(e mem.Extent) (fd int, off int64, err error) {
	if d.defect != "anything is a dma-buf" {
		if err := e.Validate(); err != nil {
			return -1, 0, err
		}
		if e.Region.Kind() != mem.KindDevice {
			return -1, 0, errdefs.ErrInvalid
		}
	}
	flags := unix.MFD_CLOEXEC
	if d.defect == "dma-bufs are inherited" {
		flags = 0
	}
	if fd, err = unix.MemfdCreate("dma-buf", flags); err != nil || e.Region == nil {
		return fd, 0, err
	}
	off = int64(e.Dev()) % int64(os.Getpagesize())
	size := off + e.Len
	switch d.defect {
	case "dma-bufs are short":
		size--
	case "dma-bufs begin anywhere":
		off, size = off+1, size+1
	}
	return fd, off, unix.Ftruncate(fd, size)
}

func (d *damagedDevice) NeedsFlush() (bool, error) {
	needs, err := d.asFlusher().NeedsFlush()
	if d.defect == "flushes outlive the device" {
		err = nil
	}
	return needs || d.defect == "flushes fail", err
}

func (d *damagedDevice) FlushRemoteWrites() error {
	err := d.asFlusher().FlushRemoteWrites()
	if d.defect == "flushes fail" {
		return errors.Join(err, errdefs.ErrNotSupported)
	}
	return err
}

func (d *damagedDevice) asFlusher() device.RemoteWriteFlusher {
	f, ok := d.Device.(device.RemoteWriteFlusher)
	if !ok {
		panic("a simulated device flushes nothing")
	}
	return f
}

type damagedQueue struct {
	*sim.Queue
	dev    device.Device
	defect string
	held   func() error // a delayed fill
}

func (q *damagedQueue) Fill(dst mem.Extent, v byte) error {
	if q.defect != "fills overtake" || v != 100 {
		return q.Queue.Fill(dst, v)
	}
	q.held = func() error { return q.Queue.Fill(dst, v) }
	return nil
}

func (q *damagedQueue) Copy(dst, src mem.Extent) error {
	err := q.Queue.Copy(dst, src)
	if q.held != nil {
		err = errors.Join(err, q.held())
		q.held = nil
	}
	return err
}

func (q *damagedQueue) CopyBatch(dst, src []mem.Extent) error {
	if q.defect != "batches are not whole" || len(dst) != len(src) {
		return q.Queue.CopyBatch(dst, src)
	}
	for i := range dst {
		if err := q.Queue.Copy(dst[i], src[i]); err != nil {
			return err
		}
	}
	return nil
}

func (q *damagedQueue) Launch(k *device.Kernel) error {
	if q.defect == "launches allocate" {
		if r, err := q.dev.AllocHost(8); err == nil {
			defer q.dev.Free(r) //nolint:errcheck // it was just allocated
		}
	}
	err := q.Queue.Launch(k)
	if q.defect == "any launch will do" && (errors.Is(err, errdefs.ErrNotFound) || errors.Is(err, errdefs.ErrInvalid)) {
		return nil
	}
	return err
}

func (q *damagedQueue) Wait(e device.Event) error {
	if _, ok := e.(*sim.Event); ok && q.defect == "waits are ignored" {
		return nil
	}
	return q.Queue.Wait(e)
}

func (q *damagedQueue) Record() (device.Event, error) {
	e, err := q.Queue.Record()
	if err == nil && q.defect == "events are done at once" {
		return hastyEvent{e}, nil
	}
	return e, err
}

func (d *damagedDevice) WaitLimit() int { return 32 }

func (d *damagedDevice) AdoptStream(handle uintptr) (device.HostStream, error) {
	a, ok := d.Device.(device.StreamAdopter)
	if !ok {
		panic("a simulated device adopts no streams")
	}
	st, err := a.AdoptStream(handle)
	if err != nil && d.defect == "captures are not seen" && errors.Is(err, errdefs.ErrNotSupported) {
		err = nil
	}
	return &damagedStream{HostStream: st, defect: d.defect}, err
}

type damagedStream struct {
	device.HostStream
	defect string
	early  device.Event
}

func (s *damagedStream) WaitValue(word mem.Extent, value uint64) error {
	switch s.defect {
	case "words are not waited for":
		value = 0
	case "words are compared too low":
		value--
	case "host streams record too early":
		s.early, _ = s.HostStream.Record()
	}
	return s.HostStream.WaitValue(word, value)
}

func (s *damagedStream) WriteValue(word mem.Extent, value uint64) error {
	switch s.defect {
	case "words are written too early":
		hostmem.StoreUint64(word.Bytes(), value)
		return nil
	case "words are not written":
		return nil
	}
	return s.HostStream.WriteValue(word, value)
}

func (s *damagedStream) Record() (device.Event, error) {
	if e := s.early; e != nil {
		s.early = nil
		return e, nil
	}
	return s.HostStream.Record()
}

func (q *damagedQueue) Close(ctx context.Context) error {
	if q.defect == "close does not wait" {
		return nil
	}
	return q.Queue.Close(ctx)
}

type hastyEvent struct{ device.Event }

func (hastyEvent) Done() (bool, error)        { return true, nil }
func (hastyEvent) Wait(context.Context) error { return nil }
