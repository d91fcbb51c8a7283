// Package devicetest is the conformance suite of device.Device: what every implementation, simulated or real, must do.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(t *testing.T) device.Device { ... })
//	}
//
// The suite is seeded and needs no files. It covers optional interfaces as well; where one is absent its tests go through
// testkit.Skip, under the feature names "batch", "kernels", "host-streams", "shareable", "dma-buf" and "remote-writes". The
// streams of the host program that a StreamAdopter adopts are played by other queues: those that have a Handle method.
package devicetest
