package soft

import (
	"reflect"
	"testing"
)

// TestCacheLines: what poster and engine both read of a request that ends well is in one cache line, and queue pairs keep apart
// what one of them writes.
func TestCacheLines(t *testing.T) {
	const line = 64
	wqe := reflect.TypeFor[sendWQE]()
	peer, _ := wqe.FieldByName("peer")
	if wqe.Size() != 2*line || peer.Offset != line {
		t.Errorf("a request has %d bytes, and %d of them are in the first part", wqe.Size(), peer.Offset)
	}
	q := reflect.TypeFor[qp]()
	end := func(name string) uintptr {
		f, _ := q.FieldByName(name)
		return f.Offset + f.Type.Size()
	}
	start := func(name string) uintptr {
		f, _ := q.FieldByName(name)
		return f.Offset
	}
	if start("tail") < end("sges")+line || start("run") < end("rung")+line {
		t.Errorf("sges ends at %d, tail begins at %d, rung ends at %d, run begins at %d", end("sges"), start("tail"), end("rung"), start("run"))
	}
}
