// Package devicetest is the conformance suite of device.Device, for simulated and real
// implementations.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(t *testing.T) device.Device { ... })
//	}
//
// The suite is seeded; its files are in the test's temporary folder. It also covers optional
// interfaces. If an interface is missing, its tests call testkit.Skip with the feature names
// "batch", "kernels", "host-streams", "shareable", "dma-buf", "remote-writes", "cufile",
// "cufile-async" and "cufile-buffers". Queues with a Handle method stand for the host program's
// streams that a StreamAdopter adopts.
package devicetest
