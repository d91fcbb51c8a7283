package grpcrpc

import (
	"context"
	"errors"
	"syscall"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
)

// pairs are the codes of both sides. The first code of a status is sent for it.
var pairs = []struct {
	status codes.Code
	code   rpc.Code
}{
	{codes.OK, rpc.OK},
	{codes.Canceled, rpc.Canceled},
	{codes.InvalidArgument, rpc.BadRequest},
	{codes.InvalidArgument, rpc.Code(syscall.EINVAL)},
	{codes.DeadlineExceeded, rpc.TimedOut},
	{codes.DeadlineExceeded, rpc.Code(syscall.ETIMEDOUT)},
	{codes.NotFound, rpc.Code(syscall.ENOENT)},
	{codes.AlreadyExists, rpc.Code(syscall.EEXIST)},
	{codes.PermissionDenied, rpc.Code(syscall.EPERM)},
	{codes.PermissionDenied, rpc.Code(syscall.EACCES)},
	{codes.ResourceExhausted, rpc.LimitReached},
	{codes.ResourceExhausted, rpc.Overcrowded},
	{codes.Unimplemented, rpc.NoMethod},
	{codes.Unimplemented, rpc.NoService},
	{codes.Unavailable, rpc.LogOff},
	{codes.Unavailable, rpc.FailedSocket},
	{codes.Unavailable, rpc.EndOfFile},
	{codes.Unavailable, rpc.Closed},
	{codes.Unauthenticated, rpc.Unauthorized},
	{codes.Internal, rpc.Internal},
	{codes.Internal, rpc.BadResponse},
}

func statusCode(c rpc.Code) codes.Code {
	for _, p := range pairs {
		if p.code == c {
			return p.status
		}
	}
	return codes.Unknown
}

func errorCode(c codes.Code) rpc.Code {
	for _, p := range pairs {
		if p.status == c {
			return p.code
		}
	}
	return rpc.Internal
}

// detailsField is the user field with the whole status, as in gRPC over HTTP.
const detailsField = "grpc-status-details-bin"

// callError is the error of a client: a status whose cause is an *rpc.Error.
type callError struct {
	*status.Status
	cause error
}

func (e *callError) Error() string { return e.Err().Error() }

// GRPCStatus returns the status, for status.FromError.
func (e *callError) GRPCStatus() *status.Status { return e.Status }

// Unwrap returns the *rpc.Error.
func (e *callError) Unwrap() error { return e.cause }

// fromCall returns the error of a call with its status. fields are those of the response.
func fromCall(err error, fields map[string]string) error {
	if err == nil {
		return nil
	}
	if b, ok := fields[detailsField]; ok {
		s := new(spb.Status)
		if list := decodeBinary(b); len(list) == 1 && proto.Unmarshal([]byte(list[0]), s) == nil && s.GetCode() != 0 {
			return &callError{status.FromProto(s), err}
		}
	}
	text := err.Error()
	if e := (*rpc.Error)(nil); errors.As(err, &e) && e.Cause == nil {
		text = e.Text
	}
	return &callError{status.New(statusCode(rpc.CodeOf(err)), text), err}
}

// toError returns the error of a handler with its error code, and the field with its status.
func toError(err error) (*rpc.Error, string) {
	s, ok := status.FromError(err)
	if !ok {
		if e := (*rpc.Error)(nil); errors.As(err, &e) {
			return e, ""
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			s = status.FromContextError(err)
		}
	}
	b, marshalErr := proto.Marshal(s.Proto())
	if marshalErr != nil { // details that are no UTF-8
		b = nil
	}
	return &rpc.Error{Code: errorCode(s.Code()), Text: s.Message(), Cause: err}, encodeBinary(string(b))
}
