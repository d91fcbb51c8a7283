// Package kernels holds kvlane's GPU kernels: CUDA C, and the PTX that clang makes of it, embedded here so that no machine
// needs a compiler. device/kernel.go specifies what they do; device/cuda loads and launches them.
package kernels

import (
	_ "embed"

	"github.com/kvlane/kvlane/device"
)

//go:generate ./generate.sh

//go:embed kvlane.ptx
var ptx []byte

const (
	// MinCompute is the least compute capability that runs the kernels, its major number.
	MinCompute = 7
	// Threads is how many a thread block has: what the kernels are compiled for.
	Threads = 512
)

// Kernel is one of them.
type Kernel struct {
	Name string
	Args int
}

// PTX returns all kernels, in NVIDIA's portable assembly, which the driver compiles for the GPU at hand. It must not be changed.
func PTX() []byte { return ptx }

// Kernels returns what PTX holds.
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
