package stream

// NICStats holds the counters of a NIC since it was opened, over all streams.
type NICStats struct {
	Name string

	Requests  int64 // work requests that the NIC accepted
	Bytes     int64 // bytes of these requests
	Doorbells int64 // posts of one or more requests
	Failed    int64 // requests that failed
	Flushed   int64 // requests that were flushed after a failure
	Broken    int64 // streams that use this NIC and broke

	QueuePairs       int64 // currently open
	QueuePairsOpened int64 // opened in total

	// ConnectRetries is the number of repeated attempts to connect queue pairs, including those of
	// transfers, after the peer's link address was not resolved in time.
	ConnectRetries int64

	Registrations       []RegistrationStats // by method, including unused methods
	RegistrationsFailed int64               // regions that could not be registered
}

// RegistrationStats holds the counters of memory registered with a NIC by one method.
type RegistrationStats struct {
	Method string // "host", "dma-buf" or "peer-memory"
	Live   int64  // currently registered regions
	Bytes  int64  // bytes of these regions
	Total  int64  // regions registered since the NIC was opened
}
