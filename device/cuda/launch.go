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

// kernel is a kernel of package kernels. What the GPU cannot run has no function.
type kernel struct {
	kernels.Kernel
	function cuda.Function
}

// loadKernels has the driver compile the kernels for this GPU, which it does once and then remembers on disk. What it
// cannot, the device goes without and says so in Lacks; other failures are errors.
func (d *Device) loadKernels() error {
	known := make(map[string]kernel)
	for i, m := range kernels.Modules() {
		ok, err := d.loadModule(&m)
		if err != nil {
			return err
		}
		if i == 0 && !ok {
			return nil // whoever cannot run the plain kernels runs none
		}
		for _, k := range m.Kernels {
			fn := kernel{Kernel: k}
			if ok {
				var r cuda.Result
				if fn.function, r = d.api.ModuleGetFunction(d.modules[len(d.modules)-1], k.Name); r != cuda.Success {
					return d.fail(r, "cuModuleGetFunction", "name=%s", k.Name)
				}
				if err := d.loadFunction(fn); err != nil {
					return err
				}
			}
			known[k.Name] = fn
		}
	}
	d.kernels = known
	return nil
}

// loadFunction puts a kernel on the device now, where the driver would do it before the first launch: that may take memory,
// and wait for streams of the host program that wait for this very launch (CUDA_MODULE_LOADING is LAZY by default).
func (d *Device) loadFunction(k kernel) error {
	if d.api.FuncLoad != nil {
		return d.check(d.api.FuncLoad(k.function), "cuFuncLoad", "function=%s", k.Name)
	}
	// Before CUDA 12.4 the answer to this needs the function loaded.
	_, r := d.api.FuncGetAttribute(cuda.FuncMaxThreads, k.function)
	return d.check(r, "cuFuncGetAttribute", "function=%s", k.Name)
}

// loadModule loads m, or notes why the device lacks it.
func (d *Device) loadModule(m *kernels.Module) (ok bool, err error) {
	if have, need := d.info.Compute, m.Compute; have[0] < need[0] || have[0] == need[0] && have[1] < need[1] {
		d.lacks = append(d.lacks, d.lack(m.Name, fmt.Sprintf("compute capability is %d.%d, at least %d.%d is needed", have[0], have[1], need[0], need[1])))
		return false, nil
	}
	h, r := d.api.ModuleLoadData(m.PTX)
	if r != cuda.Success {
		err := d.fail(r, "cuModuleLoadData", "bytes=%d", len(m.PTX))
		if errors.Is(err, errdefs.ErrNotSupported) {
			d.lacks = append(d.lacks, fmt.Errorf("device %d: %s: %w", d.info.Index, m.Name, err))
			return false, nil
		}
		return false, err
	}
	d.modules = append(d.modules, h)
	return true, nil
}

// launcher makes a queue a device.KernelLister.
type launcher struct {
	q      *queue
	params *cuda.KernelParams
}

var _ interface {
	Launch(k *device.Kernel) error
	HasKernel(name string) bool
} = launcher{}

// HasKernel reports whether the device runs the kernel.
func (l launcher) HasKernel(name string) bool { return l.q.dev.kernels[name].function != 0 }

// find returns a kernel that can be launched as k says.
func (d *Device) find(k *device.Kernel) (kernel, error) {
	fn, ok := d.kernels[k.Name]
	switch {
	case !ok:
		return fn, fmt.Errorf("there is no such kernel: %w", errdefs.ErrNotFound)
	case fn.function == 0:
		return fn, fmt.Errorf("device %d has no such kernel: %w", d.info.Index, errdefs.ErrNotSupported)
	case k.NArgs != fn.Args:
		return fn, fmt.Errorf("it takes %d arguments, not %d: %w", fn.Args, k.NArgs, errdefs.ErrInvalid)
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
		ctas = d.ctas * fn.Blocks
	}
	if err := d.enter(); err != nil {
		return fmt.Errorf("launch %s: %w", k.Name, err)
	}
	defer d.leave()
	l.params.Args = k.Args
	if r := d.api.LaunchKernel(fn.function, uint32(ctas), uint32(fn.Threads), l.q.stream, l.params); r != cuda.Success {
		return fmt.Errorf("launch: %w", d.fail(r, "cuLaunchKernel", "kernel=%s, blocks=%d, threads=%d", k.Name, ctas, fn.Threads))
	}
	return nil
}
