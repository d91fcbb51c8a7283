package cuda

import "unsafe"

// MaxKernelParams is the maximum number of parameters in KernelParams.
const MaxKernelParams = 8

// KernelParams are the parameters of a kernel launch, 64 bits each. The driver copies them during
// the launch, so they can be reused afterwards. The zero value is ready to use.
type KernelParams struct {
	Args [MaxKernelParams]uint64
	ptrs [MaxKernelParams]uintptr
}

// pointers returns the array of parameter addresses for cuLaunchKernel. p must be on the heap.
func (p *KernelParams) pointers() unsafe.Pointer {
	for i := range p.Args {
		p.ptrs[i] = uintptr(unsafe.Pointer(&p.Args[i]))
	}
	return unsafe.Pointer(&p.ptrs)
}
