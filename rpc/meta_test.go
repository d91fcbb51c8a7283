package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// metas are usual and unusual metas.
var metas = []*pb.Meta{
	{},
	{Request: &pb.Request{ServiceName: proto.String("example.EchoService"), MethodName: proto.String("Echo")}, CorrelationId: proto.Int64(-1), AttachmentSize: proto.Int32(-7)},
	{Request: &pb.Request{
		ServiceName: proto.String(""), MethodName: proto.String("\xff"), RequestId: proto.String("id"), LogId: proto.Int64(1), TraceId: proto.Int64(2),
		SpanId: proto.Int64(3), ParentSpanId: proto.Int64(4), TimeoutMs: proto.Int32(5),
	}, CorrelationId: proto.Int64(6), CompressType: proto.Int32(1), ContentType: proto.Int32(2), ChecksumType: proto.Int32(1), ChecksumValue: []byte("sum")},
	{Response: &pb.Response{ErrorCode: proto.Int32(1003), ErrorText: proto.String("text")}, ChecksumValue: []byte{}},
	{UserFields: map[string]string{"a": "b"}, StreamSettings: &pb.StreamSettings{StreamId: proto.Int64(1)}, ChecksumWithAttachment: proto.Bool(true)},
}

// checkMeta compares decodeMeta with proto.Unmarshal.
func checkMeta(t *testing.T, b []byte) {
	t.Helper()
	want := new(pb.Meta)
	wantErr := proto.Unmarshal(b, want)
	got, err := decodeMeta(b)
	if (err == nil) != (wantErr == nil) || err == nil && !proto.Equal(got, want) {
		t.Errorf("%x decodes to %v, %v; want %v, %v", b, got, err, want, wantErr)
	}
}

func TestMetasDecodeAsProtobufDoes(t *testing.T) {
	for _, m := range metas {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(b) + 1 {
			checkMeta(t, b[:n])
		}
		checkMeta(t, append(b, b...))                         // repeated fields
		checkMeta(t, append(b, 0x0a, 0x00))                   // a request without its required fields
		checkMeta(t, append(b, 0x18, 0x80, 0x80, 0x80, 0x00)) // a varint that is longer than needed
		checkMeta(t, append(b, 0x1a, 0x00))                   // a field of another type
		checkMeta(t, append(b, 0xf8, 0x7f, 0x01))             // an unknown field
		checkMeta(t, append(b, 0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01))
	}
}

func TestUsualMetasTakeTwoAllocations(t *testing.T) {
	b, err := proto.Marshal(metas[1])
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = decodeMeta(b) }); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzMeta(f *testing.F) {
	for _, m := range metas {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(checkMeta)
}
