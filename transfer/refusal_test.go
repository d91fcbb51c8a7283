package transfer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestDefectRefusedRegistration checks memory that a NIC refuses to register. With optional NICs
// the memory uses other paths, and the refusal is counted with its reason. With required NICs the
// refusal is an error with the next step.
func TestDefectRefusedRegistration(t *testing.T) {
	for _, optional := range []bool{true, false} {
		for op, most := range map[string]int{soft.OpRegMR: 5, soft.OpAllocPD: 3, soft.OpOpen: 1} {
			for i := 0; ; i++ {
				plan := fault.New(1, fault.Nth(op, i).Fail(nil))
				refusedOnce(t, plan, optional)
				if plan.Injected() == 0 {
					if i < most {
						t.Errorf("%s succeeded at call %d", op, i)
					}
					break
				}
			}
		}
	}
}

// refusedOnce moves batches between engines whose NICs may refuse a registration.
func refusedOnce(t *testing.T, plan *fault.Plan, optional bool) {
	t.Helper()
	const n = 64 << 10
	nics := faultyNICs(t, plan, 8, 2, "soft0")
	here, one, two := host(t, n), host(t, n), host(t, n)
	var engines []*Engine
	defer func() {
		for _, e := range engines {
			closeEngine(t, e)
		}
	}()
	// asked reports whether err is an error of required NICs, and checks its text.
	asked := func(err error) bool {
		t.Helper()
		var f *fault.Error
		if err == nil {
			return false
		}
		if optional || !errors.As(err, &f) {
			t.Fatal(err)
		}
		if len(engines) == 2 && !strings.Contains(err.Error(), "permit other paths") {
			t.Errorf("the error does not name the next step: %v", err)
		}
		return true
	}
	for range 2 {
		e, err := Open(Options{NICs: nics, NICsOptional: optional, PartBytes: 8 << 10})
		if asked(err) {
			return
		}
		engines = append(engines, e)
	}
	p := &pair{target: engines[0], initiator: engines[1]}
	p.publish(t)
	for _, r := range []*mem.Region{one, two} {
		if _, err := p.segment.Register(t.Context(), r, RegisterOptions{}); asked(err) {
			return
		}
	}
	if asked(p.initiator.RegisterLocal(here)) {
		return
	}
	p.open(t, p.target.Address())
	pattern(here.Bytes(), 1)
	b := p.do(t, write(here), Task{Op: Write, Local: mem.All(here), Offset: n})
	same(t, "first", one.Bytes(), here.Bytes())
	same(t, "second", two.Bytes(), here.Bytes())
	var refused int64
	for _, e := range engines {
		s := e.Stats()
		refused += s.Refusals
		if (s.Refusals > 0) != (s.Refusal != nil) {
			t.Errorf("%d refusals, of which the last is %v", s.Refusals, s.Refusal)
		}
	}
	if refused != int64(plan.Injected()) {
		t.Errorf("%d refusals are counted, and there were %d", refused, plan.Injected())
	}
	byNICs := b.Completion().Bytes[PathRDMA]
	if plan.Injected() == 0 && byNICs != 2*n || plan.Injected() > 0 && byNICs > n {
		t.Errorf("%d bytes by NICs, with %d refusals", byNICs, refused)
	}
	d := p.remote.Describe()
	for i := range d.Buffers {
		buf := &d.Buffers[i]
		if strings.Contains(buf.Refused, "0x") {
			t.Errorf("peers learn addresses of the process: %q", buf.Refused)
		}
		why := p.remote.RDMA(buf.Offset)
		if (buf.Refused != "") != (len(d.NICs) > 0 && len(buf.Keys) == 0) || buf.Refused != "" && !strings.Contains(why.Error(), "refused it") {
			t.Errorf("buffer %d: refused %q, %d keys, RDMA: %v", i, buf.Refused, len(buf.Keys), why)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, p.segment.Unregister(ctx, 0))
	must(t, p.segment.Unregister(ctx, n))
}

// TestRefusalsOfCallers checks that wrong calls return errors with optional and with required NICs,
// and do not count as refusals.
func TestRefusalsOfCallers(t *testing.T) {
	p, here, there := rdmaPair(t, softNICs(t, nil, 1), Options{NICsOptional: true}, 1<<16)
	wantErr(t, "local memory again", p.initiator.RegisterLocal(here), errdefs.ErrExists)
	_, err := p.segment.Register(t.Context(), there, RegisterOptions{})
	wantErr(t, "a segment's memory again", err, errdefs.ErrExists)
	if a, b := p.initiator.Stats(), p.target.Stats(); a.Refusals+b.Refusals != 0 {
		t.Errorf("%d and %d refusals", a.Refusals, b.Refusals)
	}
}
