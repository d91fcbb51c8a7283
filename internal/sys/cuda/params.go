package cuda

import "unsafe"

// MaxKernelParams is the largest number of parameters of a KernelParams.
const MaxKernelParams = 8

// KernelParams is the parameters of a launch, all of 64 bits. The driver copies them during the
// launch, so a KernelParams can be reused for later launches. The zero value is ready to use.
type KernelParams struct {
	Args [MaxKernelParams]uint64
	ptrs [MaxKernelParams]uintptr
}

// pointers returns the argument for cuLaunchKernel: an array with the address of each parameter. p
// must be on the heap.
func (p *KernelParams) pointers() unsafe.Pointer {
	for i := range p.Args {
		p.ptrs[i] = uintptr(unsafe.Pointer(&p.Args[i]))
	}
	return unsafe.Pointer(&p.ptrs)
}
