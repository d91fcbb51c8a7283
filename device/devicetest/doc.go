// Package devicetest is the conformance suite of device.Device: what every implementation, simulated or real, must do.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(t *testing.T) device.Device { ... })
//	}
//
// The suite is seeded; its files are in the test's temporary folder. It covers optional interfaces as well; where one is
// absent its tests go through testkit.Skip, under the feature names "batch", "kernels", "host-streams", "shareable", "dma-buf",
// "remote-writes", "cufile", "cufile-async" and "cufile-buffers". The streams of the host program that a StreamAdopter adopts
// are played by other queues: those that have a Handle method.
package devicetest
