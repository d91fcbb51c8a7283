// Package rpc is a client and a server of baidu_std, the RPC protocol of brpc, over TCP and Unix
// sockets.
//
// A Service has the methods of a protobuf service. A Server offers services:
//
//	s, err := rpc.NewServer(rpc.ServerOptions{})
//	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{"Echo": handle})
//	err = s.Register(v)
//	err = s.Serve(listener)
//
// A Client calls the methods of one server:
//
//	c, err := rpc.NewClient("127.0.0.1:8000", rpc.ClientOptions{})
//	err = c.Call(ctx, "example.EchoService/Echo", request, response)
//
// A call may have an attachment: bytes after the message that are neither encoded nor copied
// (package chain). docs/rpc.md has the supported parts of the protocol and the
// differences from brpc.
package rpc
