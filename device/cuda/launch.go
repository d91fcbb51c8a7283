package cuda

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/kernels"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cuda"
)

// kernel is a loaded kernel of package kernels.
type kernel struct {
	kernels.Kernel
	function cuda.Function
}

// loadKernels makes the driver compile the kernels for this GPU. The driver caches the result on
// disk. If the driver cannot compile them, the device works without them and Lacks has the reason.
// Other failures are returned.
func (d *Device) loadKernels() error {
	if have := d.info.Compute; have[0] < kernels.MinCompute {
		d.lacks = append(d.lacks, d.lack("kernels", fmt.Sprintf("compute capability is %d.%d, at least %d.0 is needed", have[0], have[1], kernels.MinCompute)))
		return nil
	}
	ptx := kernels.PTX()
	module, r := d.api.ModuleLoadData(ptx)
	if r != cuda.Success {
		err := d.fail(r, "cuModuleLoadData", "bytes=%d", len(ptx))
		if errors.Is(err, errdefs.ErrNotSupported) {
			d.lacks = append(d.lacks, fmt.Errorf("device %d: kernels: %w", d.info.Index, err))
			return nil
		}
		return err
	}
	d.module = module
	known := make(map[string]kernel)
	for _, k := range kernels.Kernels() {
		function, r := d.api.ModuleGetFunction(module, k.Name)
		if r != cuda.Success {
			return d.fail(r, "cuModuleGetFunction", "name=%s", k.Name)
		}
		fn := kernel{k, function}
		if err := d.loadFunction(fn); err != nil {
			return err
		}
		known[k.Name] = fn
	}
	d.kernels = known
	return nil
}

// loadFunction loads a kernel on the device now. By default (CUDA_MODULE_LOADING is LAZY) the
// driver would load it before the first launch. That may allocate memory, and block until streams
// of the host program continue that themselves wait for this launch.
func (d *Device) loadFunction(k kernel) error {
	if d.api.FuncLoad != nil {
		return d.check(d.api.FuncLoad(k.function), "cuFuncLoad", "function=%s", k.Name)
	}
	// Before CUDA 12.4 this query requires the function to be loaded.
	_, r := d.api.FuncGetAttribute(cuda.FuncMaxThreads, k.function)
	return d.check(r, "cuFuncGetAttribute", "function=%s", k.Name)
}

// launcher adds device.KernelLister to a queue.
type launcher struct {
	q      *queue
	params *cuda.KernelParams
}

var _ interface {
	Launch(k *device.Kernel) error
	HasKernel(name string) bool
} = launcher{}

// HasKernel reports whether the device runs the kernel.
func (l launcher) HasKernel(name string) bool {
	_, ok := l.q.dev.kernels[name]
	return ok
}

// find returns the kernel of k, or an error if k cannot be launched.
func (d *Device) find(k *device.Kernel) (kernel, error) {
	fn, ok := d.kernels[k.Name]
	switch {
	case !ok:
		return fn, fmt.Errorf("unknown kernel: %w", errdefs.ErrNotFound)
	case k.NArgs != fn.Args:
		return fn, fmt.Errorf("the kernel takes %d arguments, not %d: %w", fn.Args, k.NArgs, errdefs.ErrInvalid)
	case k.CTAs < 0 || k.CTAs > math.MaxInt32:
		return fn, fmt.Errorf("%d thread blocks: %w", k.CTAs, errdefs.ErrInvalid)
	}
	return fn, nil
}

// Launch enqueues a kernel.
func (l launcher) Launch(k *device.Kernel) error {
	if err := l.q.usable(); err != nil {
		return fmt.Errorf("launch %s: %w", k.Name, err)
	}
	d := l.q.dev
	fn, err := d.find(k)
	if err != nil {
		return fmt.Errorf("launch %s: %w", k.Name, err)
	}
	ctas := k.CTAs
	if ctas == 0 {
		ctas = d.ctas
	}
	if err := d.pushContext(); err != nil {
		return fmt.Errorf("launch %s: %w", k.Name, err)
	}
	defer d.popContext()
	l.params.Args = k.Args
	if r := d.api.LaunchKernel(fn.function, uint32(ctas), kernels.Threads, l.q.stream, l.params); r != cuda.Success {
		return fmt.Errorf("launch: %w", d.fail(r, "cuLaunchKernel", "kernel=%s, blocks=%d, threads=%d", k.Name, ctas, kernels.Threads))
	}
	return nil
}
