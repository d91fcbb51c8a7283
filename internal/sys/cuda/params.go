package cuda

import "unsafe"

// MaxKernelParams is the most parameters that a KernelParams holds.
const MaxKernelParams = 8

// KernelParams is the parameters of a launch, all of 64 bits. The driver copies them during the launch, so that one
// KernelParams serves many launches, one at a time. The zero value is ready to use.
type KernelParams struct {
	Args [MaxKernelParams]uint64
	ptrs [MaxKernelParams]uintptr
}

// pointers returns what cuLaunchKernel takes: an array with the address of each argument. p must be on the heap.
func (p *KernelParams) pointers() unsafe.Pointer {
	for i := range p.Args {
		p.ptrs[i] = uintptr(unsafe.Pointer(&p.Args[i]))
	}
	return unsafe.Pointer(&p.ptrs)
}
