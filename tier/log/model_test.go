package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
)

// TestModel runs a random sequence of operations, drawn from a seed, of a process that may be
// killed at any time. The power may fail. It checks that every block that is read is correct. A
// stored block stays until it is deleted or evicted, and evictions are counted; this also holds
// after a kill. A block that was stored with FsyncAlways, or synced, survives a power failure. A
// block that was not stored, or was deleted, is a miss, except after a power failure. A pinned
// block stays until it is unpinned, also after a crash. Verify finds no fault after any crash.
//
// KVLANE_LOG_SEED=x runs only that seed.
func TestModel(t *testing.T) {
	t.Parallel()
	// Add a seed that has failed.
	seeds := []uint64{1, 3, 1683607657, 2564714159, rand.Uint64N(1 << 32)}
	if v := os.Getenv("KVLANE_LOG_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever} {
		for _, bound := range []int64{0, 16} {
			for _, seed := range seeds {
				t.Run(fmt.Sprintf("%s/%d segments/seed=%d", policy, bound, seed), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { runModel(t, policy, bound, seed) })
				})
			}
		}
	}
}

const modelKeys = 48

type blockModel struct {
	stored   bool // the block is stored, unless it was evicted
	unsure   bool // the block may be stored or not
	promised bool // a power failure must not lose the block
}

type model struct {
	*disk
	rng     *rand.Rand
	keys    []block.Key
	images  []mem.Extent
	blocks  []blockModel
	pins    [modelKeys]pinState
	pinRng  *rand.Rand // nil with some seeds, because Pin makes blocks durable
	tr      *log.Tier
	process *faultfs.Process
	faults  *faultfs.FS
	evicted int64
	failed  bool // the power failed
	crashed bool // the process crashed during an operation
	history []string
}

func runModel(t *testing.T, policy log.FsyncPolicy, bound int64, seed uint64) {
	t.Helper()
	m := &model{disk: newDisk(t, policy), rng: rand.New(rand.NewPCG(seed, 0x6c6f67)), keys: keys(0, modelKeys), blocks: make([]blockModel, modelKeys)}
	if seed%7 > 0 {
		m.pinRng = rand.New(rand.NewPCG(seed, 0x70696e))
	}
	m.c.MaxBytes = bound * m.c.SegmentBytes
	log.GroupBytes(&m.c, 2*m.f.Layout.ImageBytes()) // so that the log appends to several segments
	for _, key := range m.keys {
		m.images = append(m.images, image(t, m.f, key))
	}
	defer func() {
		if t.Failed() {
			t.Logf("KVLANE_LOG_SEED=%d:\n%s", seed, strings.Join(m.history, "\n"))
		}
	}()
	defer func() { // if the test failed
		m.process.Kill()
		_ = m.tr.Close(context.WithoutCancel(t.Context()))
	}()
	m.start()
	steps := 150
	if testing.Short() {
		steps = 40
	}
	for range steps {
		m.step()
		m.pinSome(16)
		m.observe()
	}
	m.stop(false)
}

func (m *model) addHistory(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) start() {
	m.Helper()
	m.process = m.Process()
	m.faults = faultfs.New(m.process, nil, nil)
	m.faults.Forbid(func(op, _ string) error { // delay operations, so that others run concurrently
		if op == "write" || op == "sync" {
			time.Sleep(time.Microsecond)
		}
		return nil
	})
	c := m.c
	c.FS = m.faults
	var err error
	if m.tr, err = log.Open(m.Context(), c); err != nil {
		m.Fatal(err)
	}
	m.evicted, m.crashed = 0, false
}

// stop closes the tier, or kills the process.
func (m *model) stop(kill bool) {
	m.Helper()
	if kill {
		m.process.Kill()
	}
	err := m.tr.Close(context.WithoutCancel(m.Context()))
	m.process.Kill()
	if err != nil && !errors.Is(err, faultfs.ErrCrashed) {
		m.Fatal(err)
	}
}

func (m *model) step() {
	k := m.rng.IntN(modelKeys)
	switch x := m.rng.IntN(100); {
	case x < 35:
		m.put(m.rng.IntN(4) + 1)
	case x < 60:
		m.get(k)
	case x < 68:
		m.delete(k)
	case x < 72:
		n, err := m.tr.GC(m.Context(), m.rng.Int64N(20*m.c.SegmentBytes))
		m.addHistory("collects: %d, %v", n, err)
	case x < 76:
		time.Sleep(time.Second)
		m.addHistory("a second passes")
		if m.c.Fsync == log.FsyncInterval {
			m.promise()
		}
	case x < 84:
		m.addHistory("opens again")
		m.stop(false)
		if m.c.Fsync != log.FsyncNever {
			m.promise()
		}
		m.start()
	case x < 90:
		m.addHistory("is killed")
		m.stop(true)
		m.verify()
		m.start()
		if m.c.Fsync != log.FsyncNever {
			m.promise() // open has made all found blocks durable
		}
	case x < 95:
		m.crash()
	default:
		m.powerFails()
	}
}

func (m *model) promise() {
	for k := range m.blocks {
		m.blocks[k].promised = m.blocks[k].stored
	}
}

// put puts n blocks from one goroutine, or n blocks from each of four.
func (m *model) put(n int) {
	m.Helper()
	callers := 1 + 3*m.rng.IntN(2)
	which, errs := make([][]int, callers), make([][]error, callers)
	var wg sync.WaitGroup
	for c := range callers {
		var some []block.Key
		var srcs []mem.Extent
		for range n {
			k := m.rng.IntN(modelKeys)
			which[c], some, srcs = append(which[c], k), append(some, m.keys[k]), append(srcs, m.images[k])
		}
		errs[c] = make([]error, n)
		wg.Go(func() { m.tr.PutMany(m.Context(), some, srcs, errs[c]) })
	}
	wg.Wait()
	m.addHistory("puts %v: %v", which, errs)
	which, errs = [][]int{slices.Concat(which...)}, [][]error{slices.Concat(errs...)}
	for i, k := range which[0] {
		switch err := errs[0][i]; {
		case err == nil:
			m.blocks[k] = blockModel{stored: true, promised: m.c.Fsync == log.FsyncAlways || m.blocks[k].promised}
		case errors.Is(err, faultfs.ErrCrashed):
			m.blocks[k].unsure = m.blocks[k].unsure || !m.blocks[k].stored
			m.crashed = true
		default:
			m.Fatalf("put %d: %v", k, err)
		}
	}
}

func (m *model) get(k int) {
	m.Helper()
	err := get(m.T, m.tr, m.f, m.keys[k])
	m.addHistory("gets %d: %v", k, err)
	b := m.blocks[k]
	switch {
	case err == nil && (b.stored || b.unsure):
		m.blocks[k].stored, m.blocks[k].unsure = true, false
	case errors.Is(err, faultfs.ErrCrashed):
	case errors.Is(err, errdefs.ErrNotFound) && (!b.stored || b.unsure):
		m.blocks[k] = blockModel{}
	case errors.Is(err, errdefs.ErrCorrupt) && b.unsure && m.c.Fsync == log.FsyncNever:
		m.blocks[k] = blockModel{}
	default:
		m.Fatalf("block %d is %+v, but Get returned %v", k, b, err)
	}
}

func (m *model) delete(k int) {
	m.Helper()
	err := m.tr.Delete(m.Context(), m.keys[k])
	m.addHistory("deletes %d: %v", k, err)
	b := m.blocks[k]
	switch {
	case m.pins[k] != unpinned && errors.Is(err, errdefs.ErrBusy):
	case m.pins[k] == pinned && err == nil:
		m.Fatalf("block %d is pinned, and was deleted", k)
	case errors.Is(err, errdefs.ErrNotFound) && b.unsure && m.crashed: // a block written by an earlier Put may be found again
	case err == nil && (b.stored || b.unsure), errors.Is(err, errdefs.ErrNotFound) && (!b.stored || b.unsure):
		m.blocks[k] = blockModel{}
	case errors.Is(err, faultfs.ErrCrashed):
		m.blocks[k] = blockModel{unsure: true}
	default:
		m.Fatalf("block %d is %+v, but Delete returned %v", k, b, err)
	}
}

// crash makes the process crash during the next operation.
func (m *model) crash() {
	m.Helper()
	op := ops[m.rng.IntN(len(ops))]
	m.addHistory("crashes at %s", op)
	m.faults.Use(fault.New(1, fault.Nth(op, m.rng.IntN(4)).Crash()))
	m.put(3)
	m.observe() // the process may have evicted deleted blocks
	m.delete(m.rng.IntN(modelKeys))
	m.pinSome(2)
	if m.rng.IntN(2) == 0 {
		n, err := m.tr.GC(m.Context(), 0)
		m.addHistory("collects: %d, %v", n, err)
	}
	m.faults.Crash()
	m.observe()
	m.stop(true)
	m.verify()
	m.start()
	m.observe()
	if m.c.Fsync != log.FsyncNever {
		m.promise()
	}
}

func (m *model) powerFails() {
	m.Helper()
	seed := m.rng.Uint64()
	m.addHistory("the power fails, %d", seed)
	m.observe()
	m.failed = true
	m.PowerFail(faultfs.KeepSome(seed))
	m.stop(true)
	for k, b := range m.blocks {
		if !b.promised {
			m.blocks[k] = blockModel{unsure: true}
		}
	}
	if m.c.Fsync != log.FsyncNever {
		m.verify()
	}
	for k, p := range m.pins {
		if p == pinned && !m.blocks[k].promised {
			m.pins[k] = eitherPin
		}
	}
	m.start()
	m.observe()
	if m.c.Fsync != log.FsyncNever {
		m.promise()
	}
}

// observe compares the stored blocks with the model and detects evictions. Evicted blocks may come
// back after a crash.
func (m *model) observe() {
	m.Helper()
	states := make([]tier.State, modelKeys)
	for {
		synctest.Wait()
		if err := m.tr.Lookup(m.Context(), m.keys, states); err != nil {
			m.Fatal(err)
		}
		if !slices.Contains(states, tier.Filling) {
			break
		}
		time.Sleep(time.Microsecond) // some blocks are being moved
	}
	m.observePins()
	now := m.tr.Stats().Evictions
	evicted := now - m.evicted
	m.evicted = now
	var gone []int
	for k, s := range states {
		b := &m.blocks[k]
		switch {
		case s == tier.Ready && b.stored, s == tier.Absent && !b.stored && !b.unsure:
		case s == tier.Ready && b.unsure:
			b.stored = m.c.Fsync != log.FsyncNever
		case s == tier.Absent && b.unsure:
			*b = blockModel{unsure: true}
		case s == tier.Absent:
			if m.pins[k] == pinned {
				m.Fatalf("pinned block %d was evicted", k)
			}
			gone = append(gone, k)
			*b = blockModel{unsure: true}
		default:
			m.Fatalf("block %d is %+v, and %s", k, *b, s)
		}
	}
	if int64(len(gone)) > evicted {
		m.Fatalf("blocks %v are gone, and %d were evicted", gone, evicted)
	}
}

func (m *model) verify() {
	m.Helper()
	if m.c.Fsync == log.FsyncNever && m.failed {
		return // blocks that were never synced may be torn, which Verify detects only by reading
	}
	process := m.Process()
	defer process.Kill()
	r, err := log.VerifyOn(m.Context(), process, m.c.Dir)
	if err != nil || len(damaged(r)) > 0 {
		m.Fatalf("after a crash: %v, %v", damaged(r), err)
	}
}
