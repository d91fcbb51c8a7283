package device

// Info describes a device.
type Info struct {
	Driver        string // which implementation: "cuda", "sim", "host"
	Index         int    // index among the devices of that implementation
	Name          string // product name
	UUID          string // stable over restarts
	PCI           string // "0000:81:00.0", or empty
	NUMANode      int    // -1 where unknown
	MemoryBytes   int64  // total device memory
	Multiprocs    int    // streaming multiprocessors
	Compute       [2]int // compute capability, major and minor
	DriverVersion string // of the driver, as it says itself
	CopyEngines   int    // asynchronous copy engines; none where copies are the CPU's
}
