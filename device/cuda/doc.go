// Package cuda implements device.Device on NVIDIA's driver, libcuda.so.1, which it finds at run time: no cgo, no toolkit.
// Load answers ErrNotSupported with the loader's reason where there is no driver.
//
// # Contexts and threads
//
// A Device uses its GPU's primary context, the one that the CUDA runtime uses too, so that it shares memory, streams and
// events with an inference engine in the same process. In CUDA the current context belongs to an OS thread, while a
// goroutine may be on another thread at every call, and its thread may be one of the host program's. So every group of
// driver calls that needs the context runs between enter and leave: the goroutine is locked to its thread, the context
// pushed, and popped again. Each thread is left as it was found, and no call ever runs without a context, which is
// when the runtime would make one on GPU 0.
//
// Calls that CUDA forbids to every thread while some thread captures a graph in global mode (allocating, querying an
// event, ...) run in relaxed mode, which is set and restored in the same way: kvlane's threads take no part in a capture,
// and would otherwise break the host program's.
//
// # Failures
//
// A fault of a kernel or a copy is a fault of the context: the driver answers every later call with the same code until
// the process ends. The first such answer is kept, and every later call of every queue of the device returns
// ErrBroken with it. Whether the hardware has stopped touching memory cannot be known then, so events do not become done.
package cuda
