package stream

// NICStats has the counters of a NIC since it was opened, over all streams.
type NICStats struct {
	Name string

	Requests  int64 // work requests that the NIC accepted
	Bytes     int64 // bytes of these requests
	Doorbells int64 // posts of one or more requests
	Failed    int64 // requests that failed
	Flushed   int64 // requests that were flushed after a failure
	Broken    int64 // broken streams that use this NIC

	QueuePairs       int64 // open now
	QueuePairsOpened int64 // opened in total

	// ConnectRetries is the number of repeated connections of queue pairs, of transfers too, after
	// the peer's link address was not found in time.
	ConnectRetries int64

	Registrations       []RegistrationStats // by method, including unused methods
	RegistrationsFailed int64               // regions that could not be registered
}

// RegistrationStats has the counters of memory registered with a NIC by one method.
type RegistrationStats struct {
	Method string // "host", "dma-buf" or "peer-memory"
	Live   int64  // regions registered now
	Bytes  int64  // bytes of these regions
	Total  int64  // regions registered since the NIC was opened
}
