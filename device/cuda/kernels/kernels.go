// Package kernels contains kvlane's GPU kernels in CUDA C, and the PTX that clang compiles from
// them. The PTX is embedded, so users need no compiler. device/kernel.go specifies the kernels;
// device/cuda loads and launches them.
package kernels

import (
	_ "embed"

	"github.com/kvlane/kvlane/device"
)

//go:generate ./generate.sh

//go:embed kvlane.ptx
var ptx []byte

const (
	// MinCompute is the minimum major compute capability.
	MinCompute = 7
	// Threads is the number of threads per block for which the kernels are compiled.
	Threads = 512
)

// Kernel is the name and the number of arguments of a kernel.
type Kernel struct {
	Name string
	Args int
}

// PTX returns all kernels in NVIDIA's portable assembly. The driver compiles it for the GPU. The
// caller must not change it.
func PTX() []byte { return ptx }

// Kernels returns the kernels that PTX contains.
func Kernels() []Kernel {
	return []Kernel{
		{device.KernelCopyList, 2},
		{device.KernelCopyPaged, 7},
		{device.KernelCopyListSum, 3},
		{device.KernelCopyPagedSum, 8},
		{device.KernelCopyParts, 4},
		{device.KernelCopyPartsSum, 4},
		{device.KernelPatternFill, 5},
		{device.KernelPatternCheck, 6},
	}
}
