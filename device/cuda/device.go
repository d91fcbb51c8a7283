package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/cuda"
	"github.com/kvlane/kvlane/internal/sys/cufile"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Device is one GPU. It implements device.Device.
type Device struct {
	api  *cuda.API
	id   cuda.DeviceID
	ctx  cuda.Context
	info device.Info
	ctas int

	// kernels holds all kernels by name. It is nil if the queues are not Launchers; lacks then has
	// the reason. module contains the kernels, or is zero if none were loaded.
	kernels map[string]kernel
	module  cuda.Module
	batch   bool
	waits   waits
	rdma    bool // NICs can access shareable memory
	lacks   []error

	priority int // highest priority of streams
	events   eventPool
	adopting sync.Mutex
	adopts   bool // events for the host program's streams are reserved; guarded by adopting
	// fault is the first driver error that reported the context as lost.
	fault atomic.Pointer[device.Error]

	cufile  *cufile.Driver
	storing sync.Mutex
	storage *storage.Storage // open, or nil; guarded by storing

	peers peers
	users sync.WaitGroup // running calls between begin and end

	imported atomic.Int32 // number of regions of other processes

	maxRegistration int64                          // maximum length of a registration of host memory, in bytes
	prefer          func(b []byte, node int) error // places memory on a NUMA node

	mu      sync.Mutex
	notes   []string
	closed  bool
	regions map[*mem.Region]*allocation
	queues  map[*queue]struct{}
}

var (
	_ device.SlotAllocator = (*Device)(nil)
	_ device.Noter         = (*Device)(nil)
)

func openDevice(drv *Driver, index int, o Options) (*Device, error) {
	d := &Device{
		api: drv.api, ctas: o.CTAs, cufile: drv.cufile, maxRegistration: maxRegistration, prefer: hostmem.Prefer,
		regions: make(map[*mem.Region]*allocation), queues: make(map[*queue]struct{}),
	}
	if d.ctas == 0 {
		d.ctas = DefaultCTAs
	}
	var r cuda.Result
	if d.id, r = d.api.DeviceGet(index); r != cuda.Success {
		return nil, d.fail(r, "cuDeviceGet", "ordinal=%d", index)
	}
	var err error
	if d.info, err = describe(d.api, d.id, index, drv.version); err != nil {
		return nil, err
	}
	if d.ctx, r = d.api.DevicePrimaryCtxRetain(d.id); r != cuda.Success {
		return nil, d.fail(r, "cuDevicePrimaryCtxRetain", "device=%d", index)
	}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(err, d.release())
	}
	leak.Add(leak.Handles, 1)
	return d, nil
}

// prepare creates the resources that queues share. release frees them, also after a failure of
// prepare.
func (d *Device) prepare() error {
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	_, greatest, r := d.api.CtxGetStreamPriorityRange()
	if r != cuda.Success {
		return d.fail(r, "cuCtxGetStreamPriorityRange", "")
	}
	d.priority = greatest
	if d.batch = d.api.MemcpyBatchAsync != nil; !d.batch {
		d.lacks = append(d.lacks, d.lack("many copies in one call", "driver "+d.info.DriverVersion+" has no cuMemcpyBatchAsync, CUDA 12.8 has"))
	}
	if err := d.probeWaits(); err != nil {
		return err
	}
	rdma, err := d.attribute(cuda.AttrRDMAVirtualMemory)
	if err != nil {
		return err
	}
	d.rdma = rdma != 0
	return d.loadKernels()
}

func (d *Device) lack(what, why string) error {
	return fmt.Errorf("device %d: %s: %s: %w", d.info.Index, what, why, errdefs.ErrNotSupported)
}

// release frees the resources that openDevice acquired.
func (d *Device) release() error {
	var errs []error
	if d.module != 0 || d.events.len() > 0 {
		errs = append(errs, d.releaseObjects())
	}
	if r := d.api.DevicePrimaryCtxRelease(d.id); r != cuda.Success {
		errs = append(errs, d.fail(r, "cuDevicePrimaryCtxRelease_v2", "device=%d", d.info.Index))
	}
	return errors.Join(errs...)
}

func (d *Device) releaseObjects() error {
	mode, err := d.pushContextRelaxed()
	if err != nil {
		return err
	}
	defer d.popContextRelaxed(mode)
	var errs []error
	for _, e := range d.events.drain() {
		errs = append(errs, d.check(d.api.EventDestroy(e), "cuEventDestroy_v2", "event=%#x", e))
	}
	if d.module != 0 {
		errs = append(errs, d.check(d.api.ModuleUnload(d.module), "cuModuleUnload", ""))
	}
	return errors.Join(errs...)
}

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// Lacks returns the reasons why queues of this device are not BatchCopiers or Launchers, or why
// streams of the host program cannot wait. It returns one error for each missing ability, wrapping
// ErrNotSupported.
func (d *Device) Lacks() []error { return d.lacks }

// begin starts a call that must finish before Close proceeds. end ends it.
func (d *Device) begin() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("device %d: %w", d.info.Index, errdefs.ErrClosed)
	}
	d.users.Add(1)
	return nil
}

func (d *Device) end() { d.users.Done() }

// Close closes the device. It frees open queues and regions, and returns an error that describes
// them. If a queue is still busy or the device is broken, all of them and the context stay for the
// rest of the process, because the GPU may still write to their memory. A second Close returns nil.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.users.Wait()
	leak.Add(leak.Handles, -1)

	// The maps no longer change.
	idle, err := d.abandonQueues()
	if !idle {
		return errors.Join(err, fmt.Errorf("close device %d: the GPU may still be busy, so its context and %d regions are not freed: %w",
			d.info.Index, len(d.regions), errdefs.ErrBusy))
	}
	return errors.Join(err, d.abandonStorage(), d.abandonRegions(), d.release())
}
