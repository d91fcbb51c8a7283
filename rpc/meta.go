package rpc

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// metaMemory is a meta with the memory of its usual fields, so that a call allocates it at once.
type metaMemory struct {
	meta     pb.Meta
	request  pb.Request
	response pb.Response
	numbers  [6]int32
	ids      [5]int64
	texts    [3]string

	usedNumbers, usedIDs, usedTexts int
}

// number returns a pointer to a copy of v, for a field.
func (m *metaMemory) number(v int32) *int32 { return place(m.numbers[:], &m.usedNumbers, v) }

func (m *metaMemory) id(v int64) *int64 { return place(m.ids[:], &m.usedIDs, v) }

func (m *metaMemory) text(v string) *string { return place(m.texts[:], &m.usedTexts, v) }

// place copies v to the next free element, or to new memory if there is none.
func place[T any](list []T, used *int, v T) *T {
	if *used == len(list) {
		p := new(T)
		*p = v
		return p
	}
	p := &list[*used]
	*used++
	*p = v
	return p
}

// decodeMeta decodes a meta, as proto.Unmarshal does. Metas without unusual fields take two
// allocations.
func decodeMeta(b []byte) (*pb.Meta, error) {
	m := new(metaMemory)
	if m.decode(string(b)) {
		return &m.meta, nil
	}
	meta := new(pb.Meta)
	return meta, proto.Unmarshal(b, meta)
}

// decode returns false for a meta with unusual fields or encodings, which may be valid.
func (m *metaMemory) decode(s string) bool {
	return eachField(s, func(field protowire.Number, v uint64, data string) bool {
		switch field {
		case 1 | submessage:
			if m.meta.Request != nil || !eachField(data, m.requestField) || m.request.ServiceName == nil || m.request.MethodName == nil {
				return false
			}
			m.meta.Request = &m.request
		case 2 | submessage:
			if m.meta.Response != nil || !eachField(data, m.responseField) {
				return false
			}
			m.meta.Response = &m.response
		case 3:
			m.meta.CompressType = m.number(int32(v))
		case 4:
			m.meta.CorrelationId = m.id(int64(v))
		case 5:
			m.meta.AttachmentSize = m.number(int32(v))
		case 10:
			m.meta.ContentType = m.number(int32(v))
		case 11:
			m.meta.ChecksumType = m.number(int32(v))
		case 12 | submessage:
			m.meta.ChecksumValue = []byte(data)
		default:
			return false
		}
		return true
	})
}

func (m *metaMemory) requestField(field protowire.Number, v uint64, data string) bool {
	r := &m.request
	switch field {
	case 1 | submessage:
		r.ServiceName = m.text(data)
	case 2 | submessage:
		r.MethodName = m.text(data)
	case 3:
		r.LogId = m.id(int64(v))
	case 4:
		r.TraceId = m.id(int64(v))
	case 5:
		r.SpanId = m.id(int64(v))
	case 6:
		r.ParentSpanId = m.id(int64(v))
	case 7 | submessage:
		r.RequestId = m.text(data)
	case 8:
		r.TimeoutMs = m.number(int32(v))
	default:
		return false
	}
	return true
}

func (m *metaMemory) responseField(field protowire.Number, v uint64, data string) bool {
	switch field {
	case 1:
		m.response.ErrorCode = m.number(int32(v))
	case 2 | submessage:
		m.response.ErrorText = m.text(data)
	default:
		return false
	}
	return true
}

// submessage marks the numbers of fields whose value has a length, for eachField.
const submessage = 1 << 30

// eachField calls f with each field of an encoded message: its number and value, or its number with
// submessage and its bytes. It returns false for malformed or other encodings, or if f does.
func eachField(s string, f func(field protowire.Number, v uint64, data string) bool) bool {
	for len(s) > 0 {
		tag, n := varint(s)
		if n <= 0 {
			return false
		}
		s = s[n:]
		v, n := varint(s)
		if n <= 0 {
			return false
		}
		s = s[n:]
		field, data := protowire.Number(tag>>3), ""
		switch protowire.Type(tag & 7) {
		case protowire.VarintType:
		case protowire.BytesType:
			if v > uint64(len(s)) {
				return false
			}
			data, s = s[:v], s[v:]
			field |= submessage
		default:
			return false
		}
		if tag>>3 >= submessage || !f(field, v, data) {
			return false
		}
	}
	return true
}

// varint decodes a varint and returns its length, or 0 if there is none.
func varint(s string) (v uint64, n int) {
	for i := 0; i < len(s) && i < 10; i++ {
		v |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			if i == 9 && s[i] > 1 { // more than 64 bits
				return 0, 0
			}
			return v, i + 1
		}
	}
	return 0, 0
}
