// Command protogen compiles .proto files to Go without protoc. Its arguments are the path of
// protoc-gen-kvlane-rpc and the .proto files, relative to the current directory, as in import
// statements. It writes each .pb.go file next to its .proto file.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(stubs string, paths []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), paths...)
	if err != nil {
		return err
	}
	var descriptors []*descriptorpb.FileDescriptorProto
	for _, f := range files {
		descriptors = append(descriptors, protodesc.ToFileDescriptorProto(f))
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: paths, Parameter: proto.String("paths=source_relative"), ProtoFile: descriptors,
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		return err
	}
	for _, f := range plugin.Files {
		if f.Generate {
			internal_gengo.GenerateFile(plugin, f)
		}
	}
	if err := write(plugin.Response()); err != nil {
		return err
	}
	response, err := runPlugin(stubs, request)
	if err != nil {
		return err
	}
	return write(response)
}

// runPlugin runs a plug-in of protoc.
func runPlugin(path string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	return response, proto.Unmarshal(out, response)
}

// write writes the files of a plug-in's response.
func write(out *pluginpb.CodeGeneratorResponse) error {
	if out.Error != nil {
		return errors.New(*out.Error)
	}
	for _, f := range out.File {
		if err := os.WriteFile(f.GetName(), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
