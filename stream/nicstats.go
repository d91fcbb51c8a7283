package stream

// NICStats are the figures of a NIC that streams use. Counts are since the NIC was opened, over all streams.
type NICStats struct {
	Name string

	Requests  int64 // work requests that the NIC accepted
	Bytes     int64 // of those
	Doorbells int64 // times that requests were given to it, many at once
	Failed    int64 // requests that it failed
	Flushed   int64 // requests that it flushed, as the consequence of a failure
	Broken    int64 // streams that broke, over this NIC or others with it

	QueuePairs       int64 // open now
	QueuePairsOpened int64 // in all: a stream that is opened anew opens its own

	// ConnectRetries is how often a queue pair, of transfers too, was connected another time as the peer's link address was not found in time.
	ConnectRetries int64

	Registrations       []RegistrationStats // by method, also of those that nothing was registered by
	RegistrationsFailed int64               // regions that could not be registered
}

// RegistrationStats are the figures of memory registered with a NIC by one method.
type RegistrationStats struct {
	Method string // "host", "dma-buf" or "peer-memory"
	Live   int64  // regions registered now
	Bytes  int64  // of those
	Total  int64  // regions registered since the NIC was opened
}
