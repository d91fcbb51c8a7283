package stress

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/leak"
)

// workerEnv contains the setup of a worker. If it is set, the process runs as a worker.
const workerEnv = "KVLANE_STRESS_WORKER"

// Prefixes of the lines that workers write. They are followed by numbers of durable blocks, a tally
// in JSON, or a message.
const (
	lineDurable = "stress durable "
	lineTally   = "stress tally "
	lineFailure = "stress failure "
)

// worker is a process that opens engines one after another and runs clients on them.
type worker struct {
	setup
	*shape
	tally *tally
	ctx   context.Context // ends when the parent asks for an orderly end

	durable [keySpace]atomic.Bool // blocks that this process made durable
	// versions count, for each block, the dumps after a removal and the removals. They are odd while
	// no tier has the block.
	versions [keySpace]atomic.Int64
	current  atomic.Pointer[life]
	calls    [clients + 1]atomic.Pointer[call]

	mu  sync.Mutex
	out io.Writer
}

// call is a wait that has not ended.
type call struct {
	what string
	from time.Time
	most time.Duration
}

// TestWorker runs a worker if TestStress has started this process.
func TestWorker(t *testing.T) {
	text := os.Getenv(workerEnv)
	if text == "" {
		return
	}
	w := &worker{tally: newTally(), out: os.Stdout}
	if err := json.Unmarshal([]byte(text), &w.setup); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.shape, err = w.setup.shape(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	w.ctx = ctx
	over := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Go(func() { // the parent ends the worker by closing its standard input, also when it dies
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	})
	watchers.Go(func() { w.watch(over) })
	rng := rand.New(rand.NewPCG(w.Seed, 0))
	for n := 0; ctx.Err() == nil; n++ {
		w.live(rng.Uint64())
		w.tally.add("engines lived", 1)
	}
	close(over)
	watchers.Wait()
	w.sendTally()
}

// watch ends the process with a dump of all goroutines when a call takes too long. It also sends
// tallies, so that the last one survives a kill.
func (w *worker) watch(over <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-over:
			return
		}
		for i := range w.calls {
			if c := w.calls[i].Load(); c != nil && time.Since(c.from) > c.most {
				w.reportFailure("%s has taken more than %v", c.what, c.most)
				debug.SetTraceback("all")
				panic("a wait has no end")
			}
		}
		w.sendTally()
	}
}

// bounded runs f for client i. f must return within most.
func (w *worker) bounded(i int, what string, most time.Duration, f func()) {
	c := &call{what, time.Now(), most + grace}
	w.calls[i].Store(c)
	f()
	w.calls[i].Store(nil)
	w.tally.waited(what, time.Since(c.from))
}

func (w *worker) sendTally() {
	if l := w.current.Load(); l != nil {
		l.countFaults()
	}
	w.tally.mu.Lock()
	text, err := json.Marshal(w.tally)
	w.tally.mu.Unlock()
	if err != nil {
		panic(err)
	}
	w.writeLine(lineTally + string(text))
}

// writeLine writes a line in one write. Lines are shorter than the atomic size of pipes, so that a
// kill does not cut a line.
func (w *worker) writeLine(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := io.WriteString(w.out, line+"\n"); err != nil {
		panic(err) // the parent has ended
	}
}

// reportFailure reports a violation to the parent. The worker continues.
func (w *worker) reportFailure(format string, args ...any) {
	w.writeLine(lineFailure + strconv.Quote(fmt.Sprintf(format, args...)))
}

// reportDurable reports durable blocks to the parent, which checks them.
func (w *worker) reportDurable(ns []int) {
	if len(ns) == 0 {
		return
	}
	words := make([]string, len(ns))
	for i, n := range ns {
		words[i] = strconv.Itoa(n)
		w.durable[n].Store(true)
	}
	w.tally.add("blocks durable", int64(len(ns)))
	w.writeLine(lineDurable + strings.Join(words, " "))
}

// explain counts an error by its reason, and reports an unexpected error as a failure.
func (w *worker) explain(what string, err error) {
	if err == nil {
		return
	}
	name := reason(err)
	if name == "" {
		w.reportFailure("%s: %v", what, err)
		return
	}
	w.tally.add("failed "+what+" "+name, 1)
}

// clean reports resources that a closed engine has left. goroutines is their number before Open.
func (w *worker) clean(goroutines int) {
	if left := leak.Live(); len(left) > 0 {
		w.reportFailure("a closed engine has left %v", left)
	}
	// Goroutines may end a little later than the calls that wait for them.
	deadline := time.Now().Add(grace)
	for runtime.NumGoroutine() > goroutines {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			w.reportFailure("%d goroutines, %d before the engine was opened:\n%s", runtime.NumGoroutine(), goroutines, buf[:runtime.Stack(buf, true)])
			return
		}
		time.Sleep(time.Millisecond)
	}
}
