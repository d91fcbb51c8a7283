// Package kernels holds kvlane's GPU kernels: CUDA C, and the PTX that clang makes of it, embedded here so that no machine
// needs a compiler. device/kernel.go and device/resident.go specify what they do; device/cuda loads and launches them.
package kernels

import (
	_ "embed"

	"github.com/kvlane/kvlane/device"
)

//go:generate ./generate.sh

//go:embed kvlane.ptx
var basePTX []byte

//go:embed bulk.ptx
var bulkPTX []byte

// Module is kernels that are loaded together: code in NVIDIA's portable assembly, which the driver compiles for the GPU at
// hand.
type Module struct {
	Name    string
	PTX     []byte
	Compute [2]int // the least compute capability
	Kernels []Kernel
}

// Kernel is how a kernel is launched.
type Kernel struct {
	Name    string
	Args    int
	Threads int // a thread block: what it is compiled for
	// Blocks is how many thread blocks it takes to keep a link to the host busy, in units of the launcher's default.
	Blocks int
}

const (
	threads     = 512
	bulkThreads = 32
	// A thread block of the bulk kernels is one warp.
	bulkBlocks = 3
)

// Modules returns all kernels there are.
func Modules() []Module {
	return []Module{
		{Name: "kernels", PTX: basePTX, Compute: [2]int{7, 0}, Kernels: []Kernel{
			{device.KernelCopyList, 2, threads, 1},
			{device.KernelCopyPaged, 7, threads, 1},
			{device.KernelCopyListSum, 3, threads, 1},
			{device.KernelCopyPagedSum, 8, threads, 1},
			{device.KernelPatternFill, 5, threads, 1},
			{device.KernelPatternCheck, 6, threads, 1},
			{device.KernelResident, 5, threads, 1},
		}},
		{Name: "bulk kernels", PTX: bulkPTX, Compute: [2]int{9, 0}, Kernels: []Kernel{
			{device.KernelBulkList, 2, bulkThreads, bulkBlocks},
			{device.KernelBulkPaged, 7, bulkThreads, bulkBlocks},
			{device.KernelBulkListSum, 3, bulkThreads, bulkBlocks},
			{device.KernelBulkPagedSum, 8, bulkThreads, bulkBlocks},
		}},
	}
}
