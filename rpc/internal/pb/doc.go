// Package pb has the messages of the baidu_std protocol, generated from baidu_std.proto.
package pb

//go:generate ../../../tools/proto
