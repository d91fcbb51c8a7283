package rdmatest

import (
	"testing"

	"github.com/kvlane/kvlane/rdma"
)

// Config is the configuration of the suite.
type Config struct {
	// Open returns the provider of one test. The suite closes it at the end of the test.
	Open func(t *testing.T) rdma.Provider
	// Devices are the names of the devices to use: two that reach each other, or one. Default: the
	// provider's first.
	Devices []string
	// Port and GIDIndex are used to connect. Defaults: 1 and 0.
	Port     int
	GIDIndex int
	// LateReceivesStay means that receives posted when the queue pair is in QPSErr stay there
	// without a completion, since posting does not wake the device (rdma_rxe). The verbs require
	// that they are flushed.
	LateReceivesStay bool
	// QuietResets means that a queue pair can be moved to QPSReset only if no packet for it may
	// arrive. If one arrives during a reset, rdma_rxe of Linux 6.1 (rewritten in 6.4) serves it
	// twice concurrently and drops its references to the queue pair and to the device twice. Memory
	// in use is freed, and the device no longer answers or appears in a list. With QuietResets the
	// suite moves queue pairs to QPSErr and polls all flushed requests first, and notes that in the
	// test's log.
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
