package rpc

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/kvlane/kvlane/errdefs"
)

// Handler handles a call. The request belongs to the handler. FromContext returns the attachment
// and the options of the call. An *Error gives the code of a failure. Other errors become Internal. A
// panic ends the process, unless an interceptor recovers it.
//
// The context ends when the handler has returned, at the deadline that the client has sent, and when
// the connection ends, also if the client has closed only its side. A cancelled call of a client ends
// it only if it closes the connection, as those of Pooled and Short connections do. Streams outlive
// it.
type Handler func(ctx context.Context, request proto.Message) (response proto.Message, err error)

// Interceptor wraps the handlers of a server. It calls next to run the handler or the next
// interceptor.
type Interceptor func(ctx context.Context, request proto.Message, next Handler) (proto.Message, error)

// Method is a method of a service.
type Method struct {
	Name       string
	NewRequest func() proto.Message
	Handle     Handler
}

// Service is a set of methods under a full name, such as example.EchoService.
type Service struct {
	Name    string
	Methods []Method
}

// NewService returns a service for a protobuf descriptor. handlers has a handler for each method
// name. Messages have the generated types of the program, or are dynamic messages if there are
// none. It returns ErrInvalid if a handler is missing or names no method, and for streaming
// methods, which the protocol does not have.
func NewService(d protoreflect.ServiceDescriptor, handlers map[string]Handler) (*Service, error) {
	if d == nil {
		return nil, fmt.Errorf("make a service: the descriptor is nil: %w", errdefs.ErrInvalid)
	}
	s := &Service{Name: string(d.FullName())}
	for i := range d.Methods().Len() {
		m := d.Methods().Get(i)
		h := handlers[string(m.Name())]
		if h == nil || m.IsStreamingClient() || m.IsStreamingServer() {
			return nil, fmt.Errorf("service %s: method %s has no handler or is streaming: %w", s.Name, m.Name(), errdefs.ErrInvalid)
		}
		s.Methods = append(s.Methods, Method{Name: string(m.Name()), NewRequest: maker(m.Input()), Handle: h})
	}
	for name := range handlers {
		if d.Methods().ByName(protoreflect.Name(name)) == nil {
			return nil, fmt.Errorf("service %s has no method %s: %w", s.Name, name, errdefs.ErrInvalid)
		}
	}
	return s, nil
}

// maker returns a function that creates messages of a type.
func maker(d protoreflect.MessageDescriptor) func() proto.Message {
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return func() proto.Message { return t.New().Interface() }
	}
	t := dynamicpb.NewMessageType(d)
	return func() proto.Message { return t.New().Interface() }
}

// method is a registered method with its limit.
type method struct {
	Method
	service string
	calls   limiter
}

// services finds methods by the names of requests.
type services struct {
	methods map[string]*method // keys are SERVICE/METHOD
	names   map[string]string  // full names of services by their last part; "" for several
}

func (s *services) add(v *Service) error {
	if v == nil {
		return fmt.Errorf("register a service: it is nil: %w", errdefs.ErrInvalid)
	}
	if v.Name == "" || len(v.Methods) == 0 {
		return fmt.Errorf("register service %q with %d methods: %w", v.Name, len(v.Methods), errdefs.ErrInvalid)
	}
	for _, m := range v.Methods {
		if s.methods[v.Name+"/"+m.Name] != nil {
			return fmt.Errorf("register %s/%s: %w", v.Name, m.Name, errdefs.ErrExists)
		}
		if m.NewRequest == nil || m.Handle == nil {
			return fmt.Errorf("register %s/%s: a function is nil: %w", v.Name, m.Name, errdefs.ErrInvalid)
		}
	}
	for _, m := range v.Methods {
		s.methods[v.Name+"/"+m.Name] = &method{Method: m, service: v.Name}
	}
	short := v.Name[strings.LastIndexByte(v.Name, '.')+1:]
	if full, ok := s.names[short]; ok && full != v.Name {
		s.names[short] = ""
	} else {
		s.names[short] = v.Name
	}
	return nil
}

// find returns the method. A service may be named without its package. As in brpc, an unknown
// service with a package is a missing method.
func (s *services) find(service, name string) (*method, *Error) {
	if m := s.methods[service+"/"+name]; m != nil {
		return m, nil
	}
	if !strings.Contains(service, ".") {
		full, ok := s.names[service]
		if !ok || full == "" {
			return nil, Errorf(NoService, "Fail to find service=%s", service)
		}
		if m := s.methods[full+"/"+name]; m != nil {
			return m, nil
		}
		service = full
	}
	return nil, Errorf(NoMethod, "Fail to find method=%s/%s", service, name)
}
