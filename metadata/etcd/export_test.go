package etcd

import "google.golang.org/grpc"

// WithDial returns options with more options of gRPC.
func WithDial(o Options, dial ...grpc.DialOption) Options {
	o.dial = dial
	return o
}
