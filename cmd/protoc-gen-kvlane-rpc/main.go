// Command protoc-gen-kvlane-rpc is a plug-in of protoc. It generates clients and handlers of
// package rpc for the services of .proto files, next to the code of protoc-gen-go:
//
//	protoc --go_out=. --go_opt=paths=source_relative \
//	    --kvlane-rpc_out=. --kvlane-rpc_opt=paths=source_relative FILE.proto
//
// For a service NAME it writes to FILE_rpc.pb.go: NAMEStub with NewNAMEStub for callers, and
// NAMEHandler with NewNAME for servers. The names differ from those of protoc-gen-go-grpc, so that
// one package may have both. A streaming method is an error, because a call of the protocol has one
// request and one response.
package main

import (
	"fmt"
	"io"
	"os"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

//go:generate go test . -run TestSample -update

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "protoc-gen-kvlane-rpc:", err)
		os.Exit(1)
	}
}

// run reads a CodeGeneratorRequest and writes a CodeGeneratorResponse. Errors of the .proto files
// are in the response.
func run(in io.Reader, out io.Writer) error {
	b, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	request := new(pluginpb.CodeGeneratorRequest)
	if err := proto.Unmarshal(b, request); err != nil {
		return fmt.Errorf("decode request: %w", err)
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		return err
	}
	plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL | pluginpb.CodeGeneratorResponse_FEATURE_SUPPORTS_EDITIONS)
	plugin.SupportedEditionsMinimum, plugin.SupportedEditionsMaximum = descriptorpb.Edition_EDITION_PROTO2, descriptorpb.Edition_EDITION_2023
	for _, f := range plugin.Files {
		if f.Generate && len(f.Services) > 0 {
			if err := generate(plugin, f); err != nil {
				plugin.Error(err)
			}
		}
	}
	if b, err = proto.Marshal(plugin.Response()); err != nil {
		return fmt.Errorf("encode response: %w", err)
	}
	_, err = out.Write(b)
	return err
}
