// Package faulty decorates a stream.Stream with faults that a plan injects (package fault): for tests of what stands above
// streams. With an empty plan it behaves as the stream below does, but for events, which it has none of.
//
// It counts two operations. OpSubmit is a call of Submit: Fail, Partial and Crash make it return the error, and nothing
// is accepted; Stall and Delay hold it up. OpTicket is a batch that the stream below has copied well: Fail, Partial and
// Crash make its ticket fail, which breaks the stream as a failure of the device would; Stall and Delay resolve the
// ticket late; Corrupt flips a byte of what it brought and says nothing.
package faulty
