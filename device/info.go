package device

// Info describes a device.
type Info struct {
	Driver        string // the implementation: "cuda", "sim", "host"
	Index         int    // index among the devices of that implementation
	Name          string // product name
	UUID          string // stable over restarts
	PCI           string // -1 if unknown
	NUMANode      int    // -1 where unknown
	MemoryBytes   int64  // total device memory
	Multiprocs    int    // streaming multiprocessors
	Compute       [2]int // compute capability, major and minor
	DriverVersion string // as the driver reports it
	CopyEngines   int    // asynchronous copy engines; 0 if the CPU copies
}
