package calls

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// extra is a subject of another program. It supports bodies only.
type extra struct{ closed *int }

func (extra) Name() string                               { return "extra" }
func (extra) Run(_ time.Duration, t *rounds.Times) error { t.Add(time.Microsecond); return nil }
func (e extra) Close() error                             { *e.closed++; return nil }
func (e extra) open(_ context.Context, l Load) (Subject, error) {
	if l.Attachment > 0 {
		return nil, nil
	}
	return e, nil
}

func TestRunMeasuresEverySubject(t *testing.T) {
	closed, last := 0, 0
	o := Options{
		Callers: []int{1, 4}, Bodies: []int64{5000, 100_000}, Attachments: []int64{20 << 20}, Rounds: 2, Duration: 2 * time.Millisecond,
		Extra:    []Opener{extra{&closed}.open},
		Progress: func(done, _ int, _ string) { last = done },
	}
	r, err := Run(t.Context(), o)
	must(t, err)
	if len(r.Points) != 4*3+2*2 || closed != 4 || last != 12 {
		t.Fatalf("%d points, %d subjects closed, %d rounds", len(r.Points), closed, last)
	}
	for _, p := range r.Points {
		if p.Ops < 2 || p.OpsPerSecond <= 0 || p.GBps <= 0 || p.P50Micros <= 0 || p.P99Micros < p.P50Micros || p.BodyBytes+p.AttachmentBytes < 5000 {
			t.Errorf("point %+v", p)
		}
	}
	var text bytes.Buffer
	must(t, r.WriteText(&text))
	for _, want := range []string{"of sockets", "20 MiB", "by 4 callers", "extra", "rpc"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, text.String())
		}
	}
	b, err := json.Marshal(r)
	must(t, err)
	var again Report
	must(t, json.Unmarshal(b, &again))
	if again.Kind != Kind || len(again.Points) != 16 || again.Points[0].Subject != Sockets {
		t.Errorf("report %+v", again)
	}
}

func TestInterruptedRunReportsItsPoints(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Callers: []int{1, 2}, Rounds: 1, Duration: time.Millisecond, Progress: func(done, _ int, _ string) {
		if done == 1 {
			cancel()
		}
	}}
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || len(r.Points) != 2 || r.Incomplete == "" {
		t.Errorf("report %+v, %v", r, err)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{
		{Callers: []int{0}},
		{Callers: []int{1025}},
		{Bodies: []int64{0}},
		{Bodies: []int64{-1}},
		{Attachments: []int64{0}},
		{Attachments: []int64{64 << 20}},
		{Attachments: []int64{32 << 20}, Callers: []int{64}},
		{Rounds: -1},
		{Duration: -1},
		{Timeout: -1},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", o, err)
		}
	}
}

// A server that returns other bytes, or never answers, fails the run.
func TestWrongServersFail(t *testing.T) {
	s, err := rpc.NewServer(rpc.ServerOptions{Interceptors: []rpc.Interceptor{wrong}})
	must(t, err)
	must(t, s.Register(Service()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { must(t, s.Close()); must(t, <-served) }()
	o := Options{Address: l.Addr().String(), Callers: []int{1}, Bodies: []int64{1000}, Rounds: 1, Duration: time.Millisecond}
	if r, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrCorrupt) || len(r.Points) != 0 {
		t.Errorf("wrong bytes: %+v, %v", r, err)
	}
	o.Attachments, o.Bodies = o.Bodies, nil
	if r, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrCorrupt) || len(r.Points) != 0 {
		t.Errorf("wrong attachment: %+v, %v", r, err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, silent.Close()) }()
	o.Address, o.Timeout = silent.Addr().String(), time.Millisecond
	if _, err := Run(t.Context(), o); rpc.CodeOf(err) != rpc.TimedOut {
		t.Errorf("no answer: %v", err)
	}
}

// wrong changes one byte of messages and attachments.
func wrong(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
	out, err := next(ctx, in)
	c := rpc.FromContext(ctx)
	if m, ok := out.(*echo.EchoResponse); ok && m.GetMessage() != "" {
		m.Message = proto.String("!" + m.GetMessage()[1:])
	}
	if n := c.Reply.Attachment.Len(); n > 0 {
		c.Reply.Attachment.Release()
		c.Reply.Attachment = chain.OfBytes(make([]byte, n))
	}
	return out, err
}
