package endpoint

// Rules of the protocol for flow control.
const (
	// reserved is the number of requests that are kept back in each direction for acknowledgements.
	reserved = 3
	// solicitBytes is the number of unsolicited bytes after which a send is solicited.
	solicitBytes = 1 << 20
)

// windows is the flow control of an endpoint. A send needs two windows: remote are receives that
// the peer has posted, returned by its acknowledgements, and local are entries of the own send
// queue, returned by completions. An acknowledgement reports receives that were posted again. It is
// carried by the next send, or by a message without data that needs no window and is not
// acknowledged itself. windows is not safe for concurrent use.
type windows struct {
	localCap, remoteCap int // bounds of own sends and of those of the peer
	remote, local       int
	unacked             int // receives posted again and not reported

	// Since the last solicited send.
	unsolicited, unsolicitedAcks int
	unsolicitedBytes             int64
	// Since the last signaled send.
	unsignaled int
}

func newWindows(send, recv, peerSend, peerRecv int) windows {
	w := windows{localCap: min(send, peerRecv) - reserved, remoteCap: min(recv, peerSend) - reserved}
	w.remote, w.local = w.localCap, w.localCap
	return w
}

// open reports whether a send is permitted.
func (w *windows) open() bool { return w.remote > 0 && w.local > 0 }

// wakes reports whether a sender that waits should continue.
func (w *windows) wakes() bool { return min(w.remote, w.local) >= max(w.localCap/8, 1) }

// send counts a send. last means that no more bytes are queued. The caller has checked open.
func (w *windows) send(bytes int64, last bool) (acks int, solicited, signaled bool) {
	solicited = w.remote == 1 || w.local == 1 || last || w.unsolicited > w.localCap/4 ||
		w.unsolicitedAcks > w.remoteCap/4 || w.unsolicitedBytes > solicitBytes
	w.remote, w.local = w.remote-1, w.local-1
	acks, w.unacked = w.unacked, 0
	if solicited {
		w.unsolicited, w.unsolicitedAcks, w.unsolicitedBytes = 0, 0, 0
	} else {
		w.unsolicited++
		w.unsolicitedAcks += acks
		w.unsolicitedBytes += bytes
	}
	// the last send is signaled too, so that its memory does not stay in use while none follows
	if w.unsignaled++; last || w.unsignaled >= w.localCap/4 {
		w.unsignaled, signaled = 0, true
	}
	return acks, solicited, signaled
}

// posted counts a receive that was posted again after data.
func (w *windows) posted() { w.unacked++ }

// due reports whether an acknowledgement without data is due.
func (w *windows) due() bool { return w.unacked > w.remoteCap/2 }

// acknowledge returns the count for an acknowledgement without data.
func (w *windows) acknowledge() int {
	n := w.unacked
	w.unacked = 0
	return n
}

// acked counts receives that the peer has posted again. It reports whether their number is
// possible.
func (w *windows) acked(n int) bool {
	if n < 0 || n > w.localCap-w.remote {
		return false
	}
	w.remote += n
	return true
}

// completed counts sends that have completed.
func (w *windows) completed(n int) { w.local += n }
