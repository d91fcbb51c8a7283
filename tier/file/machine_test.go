package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// machine simulates a computer with one disk. Processes with tiers on that disk start and die, and
// the power can fail.
type machine struct {
	*testing.T
	disk   *faultfs.Disk
	format block.Format
	procs  []*proc
	direct bool // processes store blocks from device memory
}

// proc is a simulated process with a tier.
type proc struct {
	*file.Tier
	process *faultfs.Process
	faults  *faultfs.FS // injects faults into the operations of this process
	direct  bool
	dead    bool
}

func newMachine(t *testing.T, direct bool) *machine {
	m := &machine{T: t, disk: faultfs.NewDisk(nil), format: tiertest.NewFormat(t), direct: direct}
	if direct {
		m.format = tiertest.LeafFormat(t)
	}
	t.Cleanup(func() {
		for _, p := range m.procs {
			if !p.dead {
				m.must(p.Close(context.WithoutCancel(t.Context())))
			}
		}
	})
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// start starts a process that opens a tier. The default directory is /srv/kv.
func (m *machine) start(c file.Config) *proc {
	m.Helper()
	p, err := m.tryStart(c, nil)
	m.must(err)
	return p
}

// tryStart is start with faults from the first operation on. If the tier cannot be opened, the
// process is killed.
func (m *machine) tryStart(c file.Config, plan *fault.Plan) (*proc, error) {
	p := &proc{process: m.disk.Process(), direct: m.direct}
	p.faults = faultfs.New(p.process, plan, nil)
	c.Formats, c.FS = block.Formats{m.format}, p.faults
	if c.Dirs == nil {
		c.Dirs = []string{"/srv/kv"}
	}
	if m.direct {
		c.Direct = tiertest.NewDirect(m.T)
	}
	var err error
	if p.Tier, err = file.Open(m.Context(), c); err != nil {
		p.process.Kill()
		return nil, err
	}
	m.procs = append(m.procs, p)
	return p, nil
}

// kill ends a process abruptly, as SIGKILL does.
func (m *machine) kill(p *proc) {
	m.Helper()
	p.process.Kill()
	m.endDead(p)
}

// endDead ends the goroutines of a dead process.
func (m *machine) endDead(p *proc) {
	m.Helper()
	p.dead = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.Context()), testkit.Patience())
	defer cancel()
	if err := p.Close(ctx); err != nil && !errors.Is(err, faultfs.ErrCrashed) {
		m.Errorf("close a killed process: %v", err)
	}
}

// powerFail ends all processes. Their running operations must have failed before endDead is called.
func (m *machine) powerFail(s faultfs.Survival) {
	m.Helper()
	m.disk.PowerFail(s)
	for _, p := range m.procs {
		if !p.dead {
			p.faults.Use(nil)
			m.endDead(p)
		}
	}
}

// put stores blocks.
func (m *machine) put(p *proc, keys ...block.Key) {
	m.Helper()
	for _, key := range keys {
		m.must(p.store(m.Context(), key, image(m.T, m.format, key)))
	}
}

// store stores a block, directly if the process is configured to. src is the block's image.
func (p *proc) store(ctx context.Context, key block.Key, src mem.Extent) error {
	if !p.direct {
		return p.Put(ctx, key, src)
	}
	_, _, err := p.PutDirect(ctx, key, src)
	if errors.Is(err, tier.ErrDirectFailed) && !errors.Is(err, errdefs.ErrNoSpace) {
		return p.Put(ctx, key, src)
	}
	return err
}

// root opens the root of the disk from a separate process that lives until the end of the test.
func (m *machine) root() dirfs.Dir {
	m.Helper()
	process := m.disk.Process()
	d, err := process.OpenDir("/")
	m.must(err)
	m.Cleanup(process.Kill)
	return d
}

// survivals returns outcomes of a power failure: which unsynced writes survive it. Synced data
// survives in all of them.
func survivals() map[string]faultfs.Survival {
	all := map[string]faultfs.Survival{"synced data": faultfs.KeepSynced(), "all": faultfs.KeepAll()}
	for seed := range uint64(20) {
		all[fmt.Sprint("seed ", seed)] = faultfs.KeepSome(seed)
	}
	return all
}

// survives runs script, which returns the key of a durable block. It then fails the power and
// checks that the block is intact.
func survives(t *testing.T, script func(m *machine) (promised block.Key)) {
	t.Helper()
	for _, direct := range []bool{false, true} {
		for name, s := range survivals() {
			m := newMachine(t, direct)
			key := script(m)
			m.powerFail(s)
			after, err := m.tryStart(file.Config{}, nil)
			if err != nil {
				t.Errorf("direct %t, after %s survived: %v", direct, name, err)
				continue
			}
			if err := get(t, after.Tier, m.format, key); err != nil {
				t.Errorf("direct %t, after %s survived: %v", direct, name, err)
			} else if direct {
				tiertest.WantDirect(t, after, m.format, key)
			}
		}
	}
}

// later runs f in a goroutine. The returned function waits for the result of f.
func (m *machine) later(f func() error) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(testkit.Patience()):
			m.Fatal("the call hangs")
			return nil
		}
	}
}

// stalled waits until one operation of the plan stalls.
func (m *machine) stalled(plan *fault.Plan) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), testkit.Patience())
	defer cancel()
	m.must(plan.Await(ctx, 1))
}

// mkdirs creates folders without syncing.
func (m *machine) mkdirs(names ...string) {
	m.Helper()
	d := m.root()
	for _, name := range names {
		m.must(d.Mkdir(name))
	}
}

// overwrite overwrites two bytes of a file in place.
func (m *machine) overwrite(name string) {
	m.Helper()
	f, err := m.root().Open(name, os.O_WRONLY)
	m.must(err)
	_, err = f.WriteAt([]byte{0x55, 0xaa}, 4100)
	m.must(errors.Join(err, f.Close()))
}

// bucketKey returns key i with the given first byte, which selects the folder.
func bucketKey(bucket byte, i int) block.Key {
	key := tiertest.Key(i)
	key[0] = bucket
	return key
}
