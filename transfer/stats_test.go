package transfer

import (
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// TestStatsOfPaths checks the counts of bytes and tasks for each path and final status, and the
// count of replaced connections.
func TestStatsOfPaths(t *testing.T) {
	const n = 1 << 20
	there, here := host(t, n), host(t, n)
	p := &pair{target: engine(t, Options{}), initiator: engine(t, Options{Lanes: 1})}
	x := newProxy(t, p.target.Address())
	p.publish(t, there)
	p.open(t, x.addr())
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	x.cut(func(*link) bool { return true }, true)
	p.do(t, Task{Op: Read, Local: mem.All(here)}, Task{Op: Read, Local: mem.Extent{Region: here, Len: 0}})
	b := p.submit(t, SubmitOptions{Path: PathShm}, Task{Op: Read, Local: mem.All(here)})
	wantErr(t, "by a path that there is not", wait(t, b), errdefs.ErrNotSupported)
	s := p.initiator.Stats()
	if len(s.Paths) != int(paths) || s.Paths[PathTCP].Path != PathTCP {
		t.Fatalf("%+v", s.Paths)
	}
	tcp, none := s.Paths[PathTCP], s.Paths[PathNone]
	if tcp.Bytes != 2*n || tcp.Tasks[StatusCompleted] < 2 || tcp.Tasks[StatusFailed] != 0 {
		t.Errorf("%+v", tcp)
	}
	if none.Bytes != 0 || none.Tasks[StatusFailed] != 1 || none.Tasks[StatusCompleted]+tcp.Tasks[StatusCompleted] != 3 {
		t.Errorf("%+v and %+v", none, tcp)
	}
	if s.Reconnects == 0 {
		t.Errorf("no connection was made again: %+v", s)
	}
}
