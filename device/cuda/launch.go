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

// kernel is a loaded kernel.
type kernel struct {
	function cuda.Function
	args     int
}

// kernelArgs is how many arguments each kernel takes; see device/kernel.go.
func kernelArgs() map[string]int {
	return map[string]int{
		device.KernelCopyList:     2,
		device.KernelCopyPaged:    7,
		device.KernelPatternFill:  5,
		device.KernelPatternCheck: 6,
	}
}

// minCompute is the oldest compute capability that the kernels' PTX is for.
const minCompute = 7

// loadKernels has the driver compile the kernels for this GPU, which it does once and then remembers on disk. Where it
// cannot, the device goes without and says so in Lacks; other failures are errors.
func (d *Device) loadKernels() error {
	const what = "kernels"
	if c := d.info.Compute; c[0] < minCompute {
		d.lacks = append(d.lacks, d.lack(what, fmt.Sprintf("compute capability is %d.%d, at least %d.0 is needed", c[0], c[1], minCompute)))
		return nil
	}
	m, r := d.api.ModuleLoadData(kernels.PTX)
	if r != cuda.Success {
		err := d.fail(r, "cuModuleLoadData", "bytes=%d", len(kernels.PTX))
		if errors.Is(err, errdefs.ErrNotSupported) {
			d.lacks = append(d.lacks, fmt.Errorf("device %d: %s: %w", d.info.Index, what, err))
			return nil
		}
		return err
	}
	d.module = m
	loaded := make(map[string]kernel)
	for name, args := range kernelArgs() {
		f, r := d.api.ModuleGetFunction(m, name)
		if r != cuda.Success {
			return d.fail(r, "cuModuleGetFunction", "name=%s", name)
		}
		loaded[name] = kernel{function: f, args: args}
	}
	d.kernels = loaded
	return nil
}

// launcher makes a queue a device.Launcher.
type launcher struct {
	q      *queue
	params *cuda.KernelParams
}

// Launch enqueues a kernel.
func (l launcher) Launch(k *device.Kernel) error {
	if err := l.q.usable(); err != nil {
		return fmt.Errorf("launch %s: %w", k.Name, err)
	}
	d := l.q.dev
	fn, ok := d.kernels[k.Name]
	if !ok {
		return fmt.Errorf("launch %s: there is no such kernel: %w", k.Name, errdefs.ErrNotFound)
	}
	if k.NArgs != fn.args {
		return fmt.Errorf("launch %s: it takes %d arguments, not %d: %w", k.Name, fn.args, k.NArgs, errdefs.ErrInvalid)
	}
	ctas := k.CTAs
	if ctas == 0 {
		ctas = d.ctas
	}
	if ctas < 0 || ctas > math.MaxInt32 {
		return fmt.Errorf("launch %s: %d thread blocks: %w", k.Name, ctas, errdefs.ErrInvalid)
	}
	if err := d.enter(); err != nil {
		return fmt.Errorf("launch %s: %w", k.Name, err)
	}
	defer d.leave()
	l.params.Args = k.Args
	if r := d.api.LaunchKernel(fn.function, uint32(ctas), kernels.Threads, l.q.stream, l.params); r != cuda.Success {
		return fmt.Errorf("launch: %w", d.fail(r, "cuLaunchKernel", "kernel=%s, blocks=%d, threads=%d", k.Name, ctas, kernels.Threads))
	}
	return nil
}
