// Package calls measures echo calls: callers send requests with a body or an attachment, and wait
// for responses of the same bytes.
//
// A point is a number of callers, a body length and an attachment length. The subjects of a point
// are measured in interleaved rounds (package rounds). They are the client of package rpc, with a
// server in this process or elsewhere, and bare sockets that return frames of the same length. A
// program may add subjects, such as other RPC frameworks.
package calls
