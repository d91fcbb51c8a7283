package grpcrpc

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc"
)

// Registrar is a grpc.ServiceRegistrar that makes services of package rpc. The zero value is ready
// for use. It is not safe for concurrent use.
//
// The context of a handler has the incoming metadata, the peer with its address and the state of
// its TLS connection, and the call for
// grpc.SetHeader and grpc.SetTrailer. grpc.SendHeader ends the header, which is sent with the
// response. rpc.FromContext returns the call with its attachment and identity.
type Registrar struct {
	// Interceptor runs around every handler. nil: there is none.
	Interceptor grpc.UnaryServerInterceptor

	services []*rpc.Service
	err      error
}

var _ grpc.ServiceRegistrar = (*Registrar)(nil)

// RegisterService adds the unary methods of a service. Generated functions call it. Services
// returns its errors.
func (r *Registrar) RegisterService(d *grpc.ServiceDesc, impl any) {
	if t := reflect.TypeOf(d.HandlerType).Elem(); impl == nil || !reflect.TypeOf(impl).Implements(t) {
		r.err = errors.Join(r.err, fmt.Errorf("register %s: %T does not implement %v: %w", d.ServiceName, impl, t, errdefs.ErrInvalid))
		return
	}
	s := &rpc.Service{Name: d.ServiceName}
	for _, m := range d.Methods {
		t, err := requestType(m.Handler, impl)
		if err != nil {
			r.err = errors.Join(r.err, fmt.Errorf("register %s/%s: %w", d.ServiceName, m.MethodName, err))
			return
		}
		u := &unary{name: "/" + d.ServiceName + "/" + m.MethodName, handle: m.Handler, impl: impl, interceptor: r.Interceptor}
		s.Methods = append(s.Methods, rpc.Method{
			Name: m.MethodName, NewRequest: func() proto.Message { return t.New().Interface() }, Handle: u.run,
		})
	}
	r.services = append(r.services, s)
}

// Services returns the registered services for rpc.Server.Register, or ErrInvalid for
// implementations and descriptors that do not match.
func (r *Registrar) Services() ([]*rpc.Service, error) { return r.services, r.err }

// errProbe ends a handler that requestType has called.
var errProbe = errors.New("the type of the request is known")

// requestType returns the type of the request of a method. Generated handlers create a request, and
// return if it cannot be decoded.
func requestType(handle grpc.MethodHandler, impl any) (protoreflect.MessageType, error) {
	var t protoreflect.MessageType
	_, err := handle(impl, context.Background(), func(in any) error {
		if m, ok := in.(proto.Message); ok {
			t = m.ProtoReflect().Type()
		}
		return errProbe
	}, nil)
	if t == nil || !errors.Is(err, errProbe) {
		return nil, fmt.Errorf("the handler does not decode a message of protobuf: %w", errdefs.ErrInvalid)
	}
	return t, nil
}

// unary is a unary method.
type unary struct {
	name        string
	handle      grpc.MethodHandler
	impl        any
	interceptor grpc.UnaryServerInterceptor
}

// run is an rpc.Handler.
func (u *unary) run(ctx context.Context, request proto.Message) (proto.Message, error) {
	call := rpc.FromContext(ctx)
	out := &response{method: u.name}
	from := &peer.Peer{Addr: call.Remote}
	if state := rpc.TLSState(ctx); state != nil {
		from.AuthInfo = credentials.TLSInfo{State: *state}
	}
	ctx = peer.NewContext(metadata.NewIncomingContext(ctx, fromRequest(call.Fields)), from)
	reply, err := u.handle(u.impl, grpc.NewContextWithServerTransportStream(ctx, out), func(in any) error {
		return move(in, request)
	}, u.interceptor)
	if call.Reply.Fields == nil {
		call.Reply.Fields = make(map[string]string)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	addFields(call.Reply.Fields, "", out.header)
	addFields(call.Reply.Fields, trailerPrefix, out.trailer)
	if err != nil {
		e, details := toError(err)
		if details != "" {
			call.Reply.Fields[detailsField] = details
		}
		return nil, e
	}
	m, ok := reply.(proto.Message)
	if !ok {
		return nil, rpc.Errorf(rpc.BadResponse, "the handler of %s returned a %T, not a message of protobuf", u.name, reply)
	}
	return m, nil
}

// move moves the fields of a request to the handler's message. Lists, maps and messages are not
// copied.
func move(to any, from proto.Message) error {
	m, ok := to.(proto.Message)
	if !ok || m.ProtoReflect().Descriptor() != from.ProtoReflect().Descriptor() {
		return rpc.Errorf(rpc.Internal, "a handler wants a %T, and an interceptor passed a %T", to, from)
	}
	dst, src := m.ProtoReflect(), from.ProtoReflect()
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		dst.Set(f, v)
		return true
	})
	dst.SetUnknown(src.GetUnknown())
	return nil
}

// response collects the metadata of a response. It is a grpc.ServerTransportStream.
type response struct {
	method string

	mu              sync.Mutex
	header, trailer metadata.MD
	sent            bool // SendHeader was called
}

// Method returns the name of the method, with a slash in front.
func (r *response) Method() string { return r.method }

// SetHeader adds metadata to the header. It returns ErrClosed after SendHeader.
func (r *response) SetHeader(md metadata.MD) error { return r.addHeader(md, false) }

// SendHeader adds metadata to the header, and ends it.
func (r *response) SendHeader(md metadata.MD) error { return r.addHeader(md, true) }

func (r *response) addHeader(md metadata.MD, last bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent {
		return fmt.Errorf("set header of %s after SendHeader: %w", r.method, errdefs.ErrClosed)
	}
	r.header, r.sent = metadata.Join(r.header, md), last
	return nil
}

// SetTrailer adds metadata to the trailer.
func (r *response) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trailer = metadata.Join(r.trailer, md)
	return nil
}
