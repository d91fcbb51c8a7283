package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc/echo"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// runPlugin passes a request to the plug-in as protoc does.
func runPlugin(t *testing.T, request *pluginpb.CodeGeneratorRequest) *pluginpb.CodeGeneratorResponse {
	t.Helper()
	in, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(bytes.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out.Bytes(), response); err != nil {
		t.Fatal(err)
	}
	return response
}

func sample(t *testing.T) *pluginpb.CodeGeneratorRequest {
	t.Helper()
	b, err := os.ReadFile("testdata/sample.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	request := new(pluginpb.CodeGeneratorRequest)
	if err := prototext.Unmarshal(b, request); err != nil {
		t.Fatal(err)
	}
	return request
}

// TestSample compares all forms of services and methods with the committed code.
func TestSample(t *testing.T) {
	response := runPlugin(t, sample(t))
	if len(response.GetFile()) != 1 || response.GetFile()[0].GetName() != "sample/v1/sample_rpc.pb.go" {
		t.Fatal(response)
	}
	testkit.Generated(t, "testdata/sample_rpc.pb.go.golden", response.GetFile()[0].GetContent())
}

// TestEcho compares the stub that the project uses. Its tests compile and call it.
func TestEcho(t *testing.T) {
	d := protodesc.ToFileDescriptorProto(echo.File_rpc_echo_echo_proto)
	response := runPlugin(t, &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{d.GetName()}, Parameter: proto.String("paths=source_relative"),
		ProtoFile: append(sample(t).GetProtoFile(), d),
	})
	if len(response.GetFile()) != 1 {
		t.Fatal(response)
	}
	testkit.Generated(t, "../../rpc/echo/echo_rpc.pb.go", response.GetFile()[0].GetContent())
}

// protoc runs plug-ins for files of editions only if they support the feature, and for the editions
// that they name.
func TestEditions(t *testing.T) {
	request := sample(t)
	want := runPlugin(t, request).GetFile()[0].GetContent()
	f := request.ProtoFile[len(request.GetProtoFile())-1]
	if len(f.GetService()) == 0 {
		t.Fatal("the last file has no services")
	}
	f.Syntax, f.Edition = proto.String("editions"), descriptorpb.Edition_EDITION_2023.Enum()
	response := runPlugin(t, request)
	if response.GetSupportedFeatures()&uint64(pluginpb.CodeGeneratorResponse_FEATURE_SUPPORTS_EDITIONS) == 0 {
		t.Error("the response does not support editions")
	}
	lowest, highest := descriptorpb.Edition(response.GetMinimumEdition()), descriptorpb.Edition(response.GetMaximumEdition())
	if lowest != descriptorpb.Edition_EDITION_PROTO2 || highest < descriptorpb.Edition_EDITION_2023 {
		t.Errorf("editions %v to %v", lowest, highest)
	}
	if len(response.GetFile()) != 1 || response.GetFile()[0].GetContent() != want {
		t.Errorf("the code differs from that of the same file without an edition: %v", response)
	}
}

func TestStreamingMethods(t *testing.T) {
	for _, streaming := range []func(*pluginpb.CodeGeneratorRequest){
		func(r *pluginpb.CodeGeneratorRequest) {
			r.ProtoFile[1].Service[0].Method[0].ClientStreaming = proto.Bool(true)
		},
		func(r *pluginpb.CodeGeneratorRequest) {
			r.ProtoFile[1].Service[0].Method[0].ServerStreaming = proto.Bool(true)
		},
	} {
		request := sample(t)
		streaming(request)
		response := runPlugin(t, request)
		if !strings.Contains(response.GetError(), "sample.v1.Store.get_value is streaming") || len(response.GetFile()) > 0 {
			t.Error(response)
		}
	}
}

// A file without services gets no file.
func TestNoServices(t *testing.T) {
	request := sample(t)
	request.FileToGenerate = []string{"google/protobuf/empty.proto"}
	if response := runPlugin(t, request); response.Error != nil || len(response.GetFile()) > 0 {
		t.Error(response)
	}
	if err := run(strings.NewReader("\xff"), nil); err == nil {
		t.Error("a malformed request was accepted")
	}
}
