// Package cluster calls the methods of several servers of package rpc as if they were one.
//
//	members, err := metadata.OpenDNSMembers(ctx, "_rpc._tcp.example.com", metadata.DNSOptions{})
//	c, err := cluster.New(members, cluster.Options{Policy: cluster.LeastLoaded})
//	err = c.Call(ctx, "example.EchoService/Echo", request, response)
//
// A Client has a connection, a breaker and counters for each member of the list, and follows its
// changes. The Policy chooses the server of a call.
//
// A server is ejected after several failures in a row, and at once if it cannot be connected to or
// shuts down. It is checked in the background, and used again when a check, and then perhaps one
// call, succeeds. Stats has the reason for each ejected server.
//
// A call is repeated at another server if that is safe: its request was not sent, or the server has
// refused it before it ran (rpc.LogOff, rpc.LimitReached and rpc.Overcrowded). Calls of idempotent
// methods are also repeated after a connection has failed, and may get a backup request. A budget
// bounds the additional load. No attempt outlives the context of its call.
package cluster
