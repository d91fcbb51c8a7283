package rdmatest

import (
	"testing"

	"github.com/kvlane/kvlane/rdma"
)

// Config says what the suite runs on.
type Config struct {
	// Open returns the provider; the suite closes it at the test's end. It is called once a test.
	Open func(t *testing.T) rdma.Provider
	// Devices are the names of the devices to use: two that reach each other, or one. Default: the provider's first.
	Devices []string
	// Port and GIDIndex are those to connect by. Defaults: 1 and 0.
	Port     int
	GIDIndex int
	// LateReceivesStay says that receives posted when the queue pair is in QPSErr already stay there without a completion,
	// as they do where posting one does not wake the device (rdma_rxe). The verbs want them flushed.
	LateReceivesStay bool
	// QuietResets says that a queue pair can be moved to QPSReset only when no packet for it may arrive. When one arrives
	// during a reset, rdma_rxe of Linux 6.1 (its tasks were rewritten in 6.4) serves it twice at once and drops its
	// references to the queue pair and to the device twice: memory in use is freed, and the device answers nobody any more
	// and is in no list. The suite then moves queue pairs to QPSErr first and polls all that is flushed, and says so in
	// the test's log.
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
