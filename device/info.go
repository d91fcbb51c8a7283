package device

// Info describes a device.
type Info struct {
	Driver        string // the implementation: "cuda", "sim", "host"
	Index         int    // index among the devices of that implementation
	Name          string // product name
	UUID          string // stable across restarts
	PCI           string // PCI bus address
	NUMANode      int    // -1 if unknown
	MemoryBytes   int64  // total device memory
	Multiprocs    int    // streaming multiprocessors
	Compute       [2]int // compute capability, major and minor
	DriverVersion string // as reported by the driver
	CopyEngines   int    // asynchronous copy engines; 0 if the CPU copies
}
