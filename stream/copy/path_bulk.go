package copy

import "github.com/kvlane/kvlane/device"

// bulkKernel is the path kernel-bulk: that of kernel with other kernels, which know best how many thread blocks they need.
func bulkKernel(s *Stream) *kernel {
	return &kernel{
		s:     s,
		names: kernelNames{list: device.KernelBulkList, paged: device.KernelBulkPaged, pagedSum: device.KernelBulkPagedSum},
	}
}
