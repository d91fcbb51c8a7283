// Package grpcrpc lets the unary stubs of protoc-gen-go-grpc call and serve methods over package
// rpc, unchanged:
//
//	stub := pb.NewGreeterClient(grpcrpc.NewConn(client)) // client is an *rpc.Client
//
//	var r grpcrpc.Registrar
//	pb.RegisterGreeterServer(&r, handler)
//	services, err := r.Services()
//	err = server.Register(services...)
//
// # Streams
//
// Opening a stream returns the status Unimplemented, and a server does not offer streaming methods.
// Streams of package rpc are part of a call and have no counterpart in gRPC.
//
// # Status
//
// An error of a handler has a status. It is sent as an error code, for any client, and whole, with
// its details, in the user field grpc-status-details-bin, for clients of this package. A client of
// this package returns that status, or one with the code of this table. The first code of a line is
// the one that is sent.
//
//	Canceled            125 (ECANCELED)
//	InvalidArgument     1003, 22 (EINVAL)
//	DeadlineExceeded    1008, 110 (ETIMEDOUT)
//	NotFound            2 (ENOENT)
//	AlreadyExists       17 (EEXIST)
//	PermissionDenied    1 (EPERM), 13 (EACCES)
//	ResourceExhausted   2004, 1011
//	Unimplemented       1002, 1001
//	Unavailable         2003, 1009, 1014, 2005
//	Unauthenticated     1004
//	Internal            2001, 2002
//
// Other statuses are sent as 2001, and other codes are Unknown. An *rpc.Error that a handler
// returns keeps its code. rpc.CodeOf returns the error code of an error of a client.
//
// # Deadlines
//
// The time until the deadline of the caller's context is sent in whole milliseconds, and ends the
// context of the handler.
//
// # Metadata
//
// Metadata are user fields. A key is in lower case. Several values of a key are joined by commas; a
// receiver gets one value. Values of keys that end in -bin are sent in base64, and are separated
// again. Header and trailer are sent with the response, also of a failed call. Keys of the trailer
// have the prefix "trailer-" there. All metadata of a request or response together may have as many
// bytes as a meta: 1 MiB by default.
package grpcrpc
