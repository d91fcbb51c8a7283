package signal

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
)

// TestDefectStreamForgottenDuringHold: the pool forgets a stream that has passed all its waits
// when another stream arrives. That must not happen between the lookup in Hold and the enqueue of
// the next wait, because the words of that wait would not stay pinned.
func TestDefectStreamForgottenDuringHold(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	pool, err := Open(dev, 1)
	must(t, err)
	var queues [2]device.Queue
	var streams [2]device.HostStream
	for i := range queues {
		queues[i], err = dev.OpenQueue(device.QueueOptions{})
		must(t, err)
		streams[i], err = dev.AdoptStream(queues[i].(*sim.Queue).Handle()) //nolint:errcheck,forcetypeassert // the queues of sim have this type
		must(t, err)
	}
	sig, err := pool.Take(t.Context(), 1)
	must(t, err)
	must(t, sig.Block(streams[0], 1))
	sig.Set(nil)
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		if done, _ := pool.streams[streams[0]].last.Done(); done {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the stream does not pass a signal that is set")
		}
	}
	found, err := pool.waitsOf(streams[0])
	must(t, err)
	other, err := pool.waitsOf(streams[1])
	must(t, err)
	if pool.streams[streams[0]] != found {
		t.Error("the stream that is about to wait is forgotten")
	}
	pool.endBlock(found)
	pool.endBlock(other)
	// When no call uses the streams, the pool forgets them: the first has passed its waits, and the
	// second has none.
	again, err := pool.waitsOf(streams[1])
	must(t, err)
	pool.endBlock(again)
	third, err := pool.waitsOf(nil)
	must(t, err)
	pool.endBlock(third)
	if n := len(pool.streams); n != 1 {
		t.Errorf("%d streams are remembered, want only the last", n)
	}
	must(t, pool.Close(t.Context()))
	for _, q := range queues {
		must(t, q.Close(t.Context()))
	}
	must(t, dev.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
