package grpcrpc

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
)

// Conn is a grpc.ClientConnInterface for unary methods. It is safe for concurrent use.
type Conn struct{ caller rpc.Caller }

var _ grpc.ClientConnInterface = (*Conn)(nil)

// NewConn returns a connection that calls through c, such as an *rpc.Client. The caller closes c.
func NewConn(c rpc.Caller) *Conn { return &Conn{c} }

// callOptions are options of package rpc in a call of a stub.
type callOptions struct {
	grpc.EmptyCallOption
	list []rpc.CallOption
}

// WithOptions returns an option for calls through a Conn, such as an attachment. Fields of
// rpc.WithFields replace the outgoing metadata, and rpc.ReceiveFields that of the response.
func WithOptions(list ...rpc.CallOption) grpc.CallOption { return callOptions{list: list} }

// call is a call of a stub.
type call struct {
	options         []rpc.CallOption
	header, trailer []*metadata.MD
	onFinish        []func(error)
}

// Invoke calls a unary method, named /SERVICE/METHOD, and waits for its response. All errors have a
// status. Besides WithOptions it has the options Header, Trailer, OnFinish, UseCompressor with
// gzip, and CallContentSubtype with proto or json. Other options that change a call return
// Unimplemented: ClientOptions of package rpc have credentials and limits.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	var o call
	err := o.set(options)
	if err == nil {
		err = c.invoke(ctx, method, args, reply, &o)
	}
	for _, f := range o.onFinish {
		f(err)
	}
	return err
}

func (c *Conn) invoke(ctx context.Context, method string, args, reply any, o *call) error {
	in, ok := args.(proto.Message)
	out, alsoOK := reply.(proto.Message)
	if !ok || !alsoOK {
		return status.Errorf(codes.Internal, "call %s with %T and %T, not messages of protobuf", method, args, reply)
	}
	var received map[string]string
	sent := make(map[string]string)
	md, _ := metadata.FromOutgoingContext(ctx)
	addFields(sent, "", md)
	list := append([]rpc.CallOption{rpc.SendTimeout(), rpc.WithFields(sent), rpc.ReceiveFields(&received)}, o.options...)
	err := c.caller.Call(ctx, strings.TrimPrefix(method, "/"), in, out, list...)
	header, trailer := fromResponse(received)
	for _, md := range o.header {
		*md = header
	}
	for _, md := range o.trailer {
		*md = trailer
	}
	return fromCall(err, received)
}

// set applies the options of a call.
func (c *call) set(options []grpc.CallOption) error {
	for _, o := range options {
		switch o := o.(type) {
		case callOptions:
			c.options = append(c.options, o.list...)
		case grpc.HeaderCallOption:
			c.header = append(c.header, o.HeaderAddr)
		case grpc.TrailerCallOption:
			c.trailer = append(c.trailer, o.TrailerAddr)
		case grpc.OnFinishCallOption:
			c.onFinish = append(c.onFinish, o.OnFinish)
		case grpc.CompressorCallOption:
			switch o.CompressorType {
			case encoding.Identity:
			case "gzip":
				c.options = append(c.options, rpc.WithCompression(rpc.Gzip))
			default:
				return status.Errorf(codes.Unimplemented, "compressor %q", o.CompressorType)
			}
		case grpc.ContentSubtypeCallOption:
			switch o.ContentSubtype {
			case "proto":
			case "json":
				c.options = append(c.options, rpc.WithContent(rpc.JSON))
			default:
				return status.Errorf(codes.Unimplemented, "content-subtype %q", o.ContentSubtype)
			}
		case grpc.FailFastCallOption:
			if !o.FailFast {
				return status.Error(codes.Unimplemented, "option WaitForReady")
			}
		case grpc.PeerCallOption, grpc.PerRPCCredsCallOption, grpc.AuthorityOverrideCallOption, grpc.MaxRecvMsgSizeCallOption,
			grpc.MaxSendMsgSizeCallOption, grpc.ForceCodecCallOption, grpc.ForceCodecV2CallOption, grpc.CustomCodecCallOption:
			return status.Errorf(codes.Unimplemented, "option %T", o)
		}
	}
	return nil
}

// NewStream returns the status Unimplemented.
func (c *Conn) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "method %s is streaming: only unary methods can be called", method)
}
