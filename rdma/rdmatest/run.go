package rdmatest

import (
	"testing"

	"github.com/kvlane/kvlane/rdma"
)

// Config is the configuration of the suite.
type Config struct {
	// Open returns the provider of one test. The suite closes it at the end of the test.
	Open func(t *testing.T) rdma.Provider
	// Devices are the names of the devices to use: two that can connect to each other, or one.
	// Default: the provider's first device.
	Devices []string
	// Port and GIDIndex select the GID for connections. Defaults: 1 and 0.
	Port     int
	GIDIndex int
	// LateReceivesStay means that receives posted in QPSErr do not complete. The verbs require that
	// they are flushed, but with rdma_rxe posting does not wake the device.
	LateReceivesStay bool
	// QuietResets means that a queue pair must not be reset while packets for it may arrive. With
	// rdma_rxe of Linux 6.1 (rewritten in 6.4), such a packet makes the kernel free memory in use,
	// and the device disappears. With QuietResets the suite moves queue pairs to QPSErr and polls
	// all flushed requests before a reset, and logs that it does.
	QuietResets bool
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, h *harness)
	}{
		{"Devices", testDevices},
		{"Port", testPort},
		{"GID", testGID},
		{"Register", testRegister},
		{"RegisterRefuses", testRegisterRefuses},
		{"IOVA", testIOVA},
		{"RegisterLate", testRegisterLate},
		{"DeregisterInFlight", testDeregisterInFlight},
		{"States", testStates},
		{"Query", testQuery},
		{"Write", testWrite},
		{"Read", testRead},
		{"Send", testSend},
		{"Immediate", testImmediate},
		{"ManySGEs", testManySGEs},
		{"NoBytes", testNoBytes},
		{"Inline", testInline},
		{"Chain", testChain},
		{"SignalAll", testSignalAll},
		{"Order", testOrder},
		{"ReadAfterWrite", testReadAfterWrite},
		{"WriteThenSend", testWriteThenSend},
		{"SendDepth", testSendDepth},
		{"RecvDepth", testRecvDepth},
		{"PostRefuses", testPostRefuses},
		{"SharedReceive", testSharedReceive},
		{"SharedReceiveRefuses", testSharedReceiveRefuses},
		{"CQOverflow", testCQOverflow},
		{"Channel", testChannel},
		{"ChannelSolicited", testChannelSolicited},
		{"ChannelCloses", testChannelCloses},
		{"EventWait", testEventWait},
		{"NoReceive", testNoReceive},
		{"LateReceive", testLateReceive},
		{"LocalKeys", testLocalKeys},
		{"RemoteKeys", testRemoteKeys},
		{"PeerForbids", testPeerForbids},
		{"TooLongForReceive", testTooLongForReceive},
		{"PeerGone", testPeerGone},
		{"ErrorFlushes", testErrorFlushes},
		{"Reset", testReset},
		{"ResetWithWork", testResetWithWork},
		{"CloseWithWork", testCloseWithWork},
		{"CloseOrder", testCloseOrder},
		{"Closed", testClosed},
		{"Concurrent", testConcurrent},
		{"ChainsStayWhole", testChainsStayWhole},
		{"ConcurrentControl", testConcurrentControl},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, newHarness(t, c)) })
	}
}
