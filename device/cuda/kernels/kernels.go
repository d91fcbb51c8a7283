// Package kernels holds kvlane's GPU kernels: CUDA C in kvlane.cu, and the PTX that clang makes of it, embedded here so
// that no machine needs a compiler. device/kernel.go specifies what they do; device/cuda loads and launches them.
package kernels

import _ "embed"

//go:generate ./generate.sh

// PTX is the kernels' code in NVIDIA's portable assembly, which the driver compiles for the GPU at hand.
//
//go:embed kvlane.ptx
var PTX []byte

// Threads is the number of threads a block that the kernels are compiled for.
const Threads = 512
