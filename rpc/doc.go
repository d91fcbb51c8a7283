// Package rpc is a client and a server of baidu_std, the RPC protocol of brpc, over TCP, Unix
// sockets and RDMA.
//
// A Service has the methods of a protobuf service. cmd/protoc-gen-kvlane-rpc generates an interface
// for its handler, and a stub. A Server offers services:
//
//	s, err := rpc.NewServer(rpc.ServerOptions{})
//	err = s.Register(echo.NewEchoService(handler))
//	err = s.Serve(listener)
//
// A Client calls the methods of one server:
//
//	c, err := rpc.NewClient("127.0.0.1:8000", rpc.ClientOptions{})
//	response, err := echo.NewEchoServiceStub(c).Echo(ctx, request)
//
// A context of nil panics, as in package net. A nil *chain.Chain is empty. Other arguments of nil
// are errors.
//
// A call may have an attachment: bytes after the message that are neither encoded nor copied
// (package chain). docs/rpc.md has the supported parts of the protocol and the
// differences from brpc.
package rpc
