package endpoint

import (
	"math/rand/v2"
	"testing"
)

// modelSide is one side of a simulated connection. inFlight are messages to the peer: their
// acknowledgements, and whether they have data.
type modelSide struct {
	w                windows
	send, recv       int // lengths of the queues
	posted           int // receives that are posted
	unreposted       int // received data whose receive is not posted again
	inFlight         []modelMessage
	queue            []bool // requests of the send queue in progress: false is an acknowledgement
	acking           int
	sent, received   int
	withoutSolicited int
}

type modelMessage struct {
	acks int
	data bool
}

// TestWindowsModel checks random schedules of both sides: no queue overflows, no message finds the
// peer without a receive, and every message gets through.
func TestWindowsModel(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := [2]*modelSide{}
		for i := range s {
			s[i] = &modelSide{send: 16 + rng.IntN(40), recv: 16 + rng.IntN(40)}
			s[i].posted = s[i].recv
		}
		for i := range s {
			s[i].w = newWindows(s[i].send, s[i].recv, s[1-i].send, s[1-i].recv)
		}
		const total = 400
		for step := 0; s[0].received+s[1].received < 2*total; step++ {
			if step > 1_000_000 {
				t.Fatalf("seed %d: stalled: %+v %+v", seed, *s[0], *s[1])
			}
			i := rng.IntN(2)
			a, b := s[i], s[1-i]
			switch rng.IntN(4) {
			case 0: // send
				if a.sent < total && a.w.open() {
					acks, solicited, _ := a.w.send(rng.Int64N(300<<10), rng.IntN(4) == 0)
					a.sent++
					a.post(modelMessage{acks, true})
					if a.withoutSolicited++; solicited {
						a.withoutSolicited = 0
					}
					if a.withoutSolicited > a.w.localCap/4+1 {
						t.Fatalf("seed %d: %d sends without an event", seed, a.withoutSolicited)
					}
				}
			case 1: // deliver to the peer
				if len(a.inFlight) > 0 {
					m := a.inFlight[0]
					a.inFlight = a.inFlight[1:]
					if b.posted--; b.posted < 0 {
						t.Fatalf("seed %d: the peer has no receive", seed)
					}
					if !b.w.acked(m.acks) {
						t.Fatalf("seed %d: %d receives acknowledged too many", seed, m.acks)
					}
					if m.data {
						b.received++
						b.unreposted++
					} else {
						b.posted++
					}
				}
			case 2: // complete sends
				if n := len(a.queue) - len(a.inFlight); n > 0 {
					data := 0
					for _, d := range a.queue[:n] {
						if d {
							data++
						} else {
							a.acking--
						}
					}
					a.queue = a.queue[n:]
					a.w.completed(data)
					a.acknowledge()
				}
			case 3: // post receives again
				if a.unreposted > 0 {
					a.unreposted--
					a.posted++
					a.w.posted()
					a.acknowledge()
				}
			}
			if len(a.queue) > a.send {
				t.Fatalf("seed %d: a send queue of %d has %d requests", seed, a.send, len(a.queue))
			}
		}
	}
}

func (a *modelSide) post(m modelMessage) {
	a.inFlight = append(a.inFlight, m)
	a.queue = append(a.queue, m.data)
}

func (a *modelSide) acknowledge() {
	if a.w.due() && a.acking < reserved {
		a.acking++
		a.post(modelMessage{acks: a.w.acknowledge()})
	}
}

// The stated rule of solicited sends, case by case.
func TestSolicitedSends(t *testing.T) {
	fresh := func() windows { return newWindows(43, 43, 43, 43) } // caps of 40
	w := fresh()
	if _, solicited, signaled := w.send(1, true); !solicited || !signaled {
		t.Error("the last of the queue is not solicited or not signaled")
	}
	w = fresh()
	for i := range 24 {
		_, solicited, signaled := w.send(1, false)
		if want := i == 11 || i == 23; solicited != want { // after more than 10
			t.Errorf("send %d: solicited %t", i, solicited)
		}
		if want := i == 9 || i == 19; signaled != want {
			t.Errorf("send %d: signaled %t", i, signaled)
		}
	}
	w = fresh()
	for i, bytes := range []int64{1 << 20, 1, 5, 1} {
		if _, solicited, _ := w.send(bytes, false); solicited != (i == 2) {
			t.Errorf("send %d of %d bytes: %t", i, bytes, solicited)
		}
	}
	w = fresh()
	for range 11 {
		w.posted()
	}
	if acks, solicited, _ := w.send(1, false); acks != 11 || solicited {
		t.Errorf("%d acknowledgements, solicited %t", acks, solicited)
	}
	if _, solicited, _ := w.send(1, false); !solicited {
		t.Error("not solicited after more than 10 unsolicited acknowledgements")
	}
	for _, set := range []func(w *windows){func(w *windows) { w.remote = 1 }, func(w *windows) { w.local = 1 }} {
		w = fresh()
		set(&w)
		if _, solicited, _ := w.send(1, false); !solicited || w.open() {
			t.Error("the last of a window is not solicited, or another send is permitted")
		}
	}
	w = fresh()
	for range 20 {
		w.posted()
	}
	if w.due() {
		t.Error("an acknowledgement is due at half of the window")
	}
	if w.posted(); !w.due() || w.acknowledge() != 21 || w.due() {
		t.Error("no acknowledgement is due beyond half of the window")
	}
	if w.acked(1) || w.acked(-1) {
		t.Error("accepted an acknowledgement of a receive that was not used")
	}
	if w.remote, w.local = 4, 40; w.wakes() {
		t.Error("a sender continues below an eighth of the window")
	}
	if w.remote = 5; !w.wakes() {
		t.Error("a sender does not continue at an eighth of the window")
	}
}
