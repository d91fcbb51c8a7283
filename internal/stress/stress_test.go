package stress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
)

var (
	length = flag.Duration("stress", 4*time.Second, "how long TestStress runs")
	start  = flag.Uint64("seed", 0, "what TestStress draws everything from; 0: the time")
)

func TestMain(m *testing.M) { testkit.Main(m) }

// round is a period in which some workers share directories. At its end the directories are
// checked.
type round struct {
	*testing.T
	setup
	*shape
	rng   *rand.Rand // used only by the test's own goroutine
	tally *tally
	until time.Time
	dead  context.Context // ends when a worker has reported a failure, so that all end

	mu      sync.Mutex
	durable map[int]bool // guarded by mu
}

// TestStress runs rounds of one or two workers each. It checks the reports of the workers, and the
// directories after each round.
func TestStress(t *testing.T) {
	seed := *start
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d -stress %v", seed, *length)
	rng := rand.New(rand.NewPCG(seed, 0))
	all, end := newTally(), time.Now().Add(*length)
	each := max(time.Second, min(*length/kinds, 8*time.Second))
	patience := time.Now().Add(testkit.Patience())
	for n := 0; (n < kinds || time.Until(end) > each/2 || !all.shows() && time.Now().Before(patience)) && !t.Failed(); n++ {
		r := &round{T: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), tally: all, until: time.Now().Add(each), durable: make(map[int]bool)}
		r.draw(n)
		r.run()
		all.add("rounds all", 1)
	}
	t.Logf("%v", all)
	if !all.shows() {
		t.Errorf("one of the counts %q is zero, so the run did not cover everything", shown)
	}
}

// kinds is the number of kinds of rounds, which alternate.
const kinds = 4

// draw chooses the setup of the round. Every other round has a file tier without a bound, which
// must not lose durable blocks.
func (r *round) draw(n int) {
	r.setup = setup{
		Seed: r.rng.Uint64(), User: []string{r.TempDir()}, Folder: "own", Leafy: r.rng.IntN(4) > 0, Fsync: file.FsyncPolicy(r.rng.IntN(2)),
		DeviceFaults: true, FileFaults: n%kinds == 1 || n%kinds == 2 || n%kinds == 3 && n/kinds%2 == 1, Corrupt: n%kinds == 1, Alone: n%kinds == 3,
	}
	if r.rng.IntN(2) == 0 {
		r.User = append(r.User, r.TempDir())
	}
	r.prepare()
}

// prepare creates the folders of the round's identity.
func (r *round) prepare() {
	r.Dirs = nil
	for _, user := range r.User {
		r.Dirs = append(r.Dirs, filepath.Join(user, r.Folder))
	}
	var err error
	if r.shape, err = r.setup.shape(); err != nil {
		r.Fatal(err)
	}
	if r.Corrupt || r.Alone {
		r.Bytes = keySpace / 8 * r.layout.ImageBytes()
	}
	// Before foreign files are added to them.
	made, err := file.Open(r.Context(), file.Config{Dirs: r.Dirs, SharedBound: true, Formats: block.Formats{r.format()}, Identities: []block.Identity{r.id}})
	if err == nil {
		err = made.Close(r.Context())
	}
	if err != nil {
		r.Fatal(err)
	}
}

// neighbour returns a round of another identity with one worker, in the same directories. Both
// identities share the bound.
func (r *round) neighbour() *round {
	o := &round{
		T: r.T, setup: r.setup, rng: rand.New(rand.NewPCG(r.rng.Uint64(), 1)), tally: r.tally, until: r.until, dead: r.dead, durable: make(map[int]bool),
	}
	o.Model, o.Folder = "other", "other"
	o.prepare()
	return o
}

func (r *round) run() {
	r.Helper()
	var cancel context.CancelFunc
	r.dead, cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	var wg sync.WaitGroup
	workers := 2
	if r.Alone {
		workers = 1
	}
	o := r.neighbour()
	mine, others := r.begin(&wg, workers, cancel), o.begin(&wg, 1, cancel)
	rng := rand.New(rand.NewPCG(r.rng.Uint64(), 5))
	wg.Go(func() { r.peers(rng) })
	wg.Wait()
	if !r.Failed() {
		r.check(mine)
		o.check(others)
	}
	if r.Failed() {
		r.Logf("the round's setup: %+v", r.setup)
	}
}

// begin starts the workers and the mischief of the round.
func (r *round) begin(wg *sync.WaitGroup, workers int, failed func()) *mischief {
	for range workers {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), 2))
		wg.Go(func() {
			for r.dead.Err() == nil && time.Now().Before(r.until) {
				r.worker(rng, failed)
			}
		})
	}
	m := newMischief(r)
	wg.Go(func() {
		for r.dead.Err() == nil && time.Now().Before(r.until) {
			m.act()
		}
	})
	return m
}

// worker runs a worker until it is killed or asked to end, and reads its reports.
func (r *round) worker(rng *rand.Rand, failed func()) {
	s := r.setup
	s.Seed = rng.Uint64()
	text, err := json.Marshal(&s)
	if err != nil {
		r.Error(err)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		r.Error(err)
		return
	}
	cmd := exec.CommandContext(r.dead, exe, "-test.run", "^TestWorker$", "-test.timeout", "1h")
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		r.Error(err)
		return
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		r.Error(err)
		return
	}
	moment := time.Now().Add(time.Duration(100+rng.IntN(4000)) * time.Millisecond)
	kill := rng.IntN(3) > 0 && moment.Before(r.until)
	if moment.After(r.until) {
		moment = r.until
	}
	timer := time.AfterFunc(time.Until(moment), func() {
		if kill {
			_ = cmd.Process.Kill() // it may have died
		} else {
			_ = in.Close()
		}
	})
	defer timer.Stop()
	rest := r.read(out, failed)
	err = cmd.Wait()
	killed := false
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		st, ok := ee.Sys().(syscall.WaitStatus)
		killed = ok && st.Signal() == syscall.SIGKILL
	}
	switch {
	case kill && killed:
		r.tally.add("workers killed", 1)
	case err == nil:
		r.tally.add("workers ended", 1)
	case killed && r.dead.Err() != nil: // the failure was reported already
	default:
		failed()
		r.Errorf("a worker with seed %d: %v\n%s\n%s", s.Seed, err, rest, clip(stderr.String()))
	}
}

// clip removes the middle of a long text.
func clip(s string) string {
	const most = 60_000
	if len(s) <= most {
		return s
	}
	return s[:most/2] + "\n...\n" + s[len(s)-most/2:]
}

// read processes the reports of a worker, and returns the rest of its output.
func (r *round) read(out io.Reader, failed func()) string {
	var last tally
	var rest strings.Builder
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil { // an incomplete line of a killed worker is ignored
			break
		}
		line = line[:len(line)-1]
		if words, ok := strings.CutPrefix(line, lineDurable); ok {
			r.mu.Lock()
			for word := range strings.FieldsSeq(words) {
				n, err := strconv.Atoi(word)
				if err != nil {
					r.Error(err)
				}
				r.durable[n] = true
			}
			r.mu.Unlock()
		} else if text, ok := strings.CutPrefix(line, lineTally); ok {
			last = tally{}
			if err := json.Unmarshal([]byte(text), &last); err != nil {
				r.Error(err)
			}
		} else if text, ok := strings.CutPrefix(line, lineFailure); ok {
			what, err := strconv.Unquote(text)
			if r.dead.Err() == nil {
				r.Errorf("wrong: %s (%v)", what, err)
			}
			failed()
		} else {
			rest.WriteString(line + "\n")
		}
	}
	r.tally.merge(&last)
	return rest.String()
}
