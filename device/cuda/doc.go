// Package cuda implements device.Device with NVIDIA's driver, libcuda.so.1. It loads the driver at
// run time, without cgo or the CUDA toolkit. Without a driver, Load returns ErrNotSupported with
// the loader's reason.
//
// # Contexts and threads
//
// A Device uses its GPU's primary context, like the CUDA runtime, and thus shares memory, streams
// and events with an inference engine in the same process. In CUDA the current context belongs to
// an OS thread. A goroutine may run on another thread at every call, and its thread may belong to
// the host program. Every group of driver calls that needs the context therefore runs between
// pushContext, which locks the goroutine to its thread and pushes the context, and popContext. Each
// thread keeps its own state. No call runs without a context, because the runtime would then create
// one on GPU 0.
//
// While a thread captures a graph in global mode, CUDA forbids some calls to every thread, such as
// allocations and event queries. Such calls run in relaxed mode, which is set and restored in the
// same way. kvlane's threads take no part in a capture, and would otherwise break the host
// program's capture.
//
// # Failures
//
// A fault of a kernel or a copy is a fault of the context: every later driver call returns the same
// code until the process ends. The device keeps the first such error, and every later call of its
// queues returns ErrBroken with it. It is then unknown whether the hardware still accesses memory,
// so events do not complete.
package cuda
