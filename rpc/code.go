package rpc

import (
	"errors"
	"fmt"
)

// Code is the error code of a call. Handlers may also use codes without a constant.
type Code int32

// The codes of the protocol.
const (
	OK           Code = 0
	Canceled     Code = 125 // ECANCELED: the caller cancelled the call
	NoService    Code = 1001
	NoMethod     Code = 1002
	BadRequest   Code = 1003 // the request does not decode
	Unauthorized Code = 1004
	TimedOut     Code = 1008
	FailedSocket Code = 1009 // the connection failed before or during the call
	Overcrowded  Code = 1011 // too many bytes wait for the peer to read them
	EndOfFile    Code = 1014 // the peer closed the connection during the call
	Internal     Code = 2001 // a handler failed without a code
	BadResponse  Code = 2002 // the response does not encode or decode
	LogOff       Code = 2003 // the server is shutting down
	LimitReached Code = 2004 // too many calls at a time
	Closed       Code = 2005
	RDMAFailed   Code = 3001
	RDMAMemory   Code = 3002 // no memory to receive the message
)

// Error is the failure of a call, sent by a server or detected by the client (such as TimedOut).
type Error struct {
	Code Code
	Text string
	// Cause is the local error behind it, or nil.
	Cause error
}

// Errorf returns an error with a code, for handlers.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Error returns the code and the text.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("rpc error %d: %s: %v", e.Code, e.Text, e.Cause)
	}
	return fmt.Sprintf("rpc error %d: %s", e.Code, e.Text)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// CodeOf returns the code of an error of a call: OK for nil, and Internal for errors without a
// code.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
