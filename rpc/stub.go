package rpc

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// Caller calls methods, named SERVICE/METHOD. Stubs call their methods through it. A Client is one.
// Implementations are safe for concurrent use, decode the response into out, and return an *Error.
type Caller interface {
	Call(ctx context.Context, method string, in, out proto.Message, options ...CallOption) error
}

var _ Caller = (*Client)(nil)

// message is a pointer to the struct of a message.
type message[T any] interface {
	*T
	proto.Message
}

// NewMethod returns a method with a handler for its own types of messages. Generated code calls it.
// A response of nil without an error fails the call with BadResponse. Register refuses a handle of
// nil.
func NewMethod[In message[I], Out message[O], I, O any](name string, handle func(context.Context, In) (Out, error)) Method {
	if handle == nil {
		return Method{Name: name}
	}
	return Method{
		Name:       name,
		NewRequest: func() proto.Message { return In(new(I)) },
		Handle: func(ctx context.Context, request proto.Message) (proto.Message, error) {
			in, ok := request.(In)
			if !ok {
				return nil, Errorf(Internal, "an interceptor passed a request of type %T", request)
			}
			out, err := handle(ctx, in)
			if err != nil || out == nil {
				return nil, err
			}
			return out, nil
		},
	}
}
