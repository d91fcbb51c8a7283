package share_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// roleEnv has a process of the test binary play another part than testing.
const roleEnv = "KVLANE_SHARE_ROLE"

// patience is how long a test waits for what must happen.
const patience = time.Minute

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleEnv); role {
	case "":
		testkit.Main(m)
		return
	case "export":
		err = playExporter(os.Args[1:])
	case "import":
		err = playImporter()
	case "probe":
		err = share.AnswerProbe(context.Background(), os.Stdin, os.Stdout, openSim)
	case "probe-gpu":
		err = share.AnswerProbe(context.Background(), os.Stdin, os.Stdout, openGPU)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func openSim(uuid string) (device.Device, error) {
	if uuid == "" {
		return nil, nil
	}
	return sim.Open(sim.Options{Index: 1})
}

// playExporter exports device memory and host memory of so many bytes, and does what it is told on standard input.
func playExporter(args []string) (err error) {
	if len(args) != 3 {
		return errors.New("the arguments are a directory, a name and a length")
	}
	n, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	s, err := share.NewServer(share.Options{Dir: args[0], Name: args[1]})
	if err != nil {
		return err
	}
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r, err := dev.Alloc(n, device.AllocOptions{Shareable: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Free(r)) }()
	h, err := share.AllocHost(dev, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	var exports []*share.Export
	out := json.NewEncoder(os.Stdout)
	for _, from := range []struct {
		share.Source
		r *mem.Region
	}{{dev, r}, {h, h.Region()}} {
		e, err := s.Export(from.Source, from.r)
		if err != nil {
			return err
		}
		exports = append(exports, e)
		if err := out.Encode(e.Descriptor()); err != nil {
			return err
		}
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var err error
		switch word, arg, _ := strings.Cut(commands.Text(), " "); word {
		case "fill": // device memory, with a byte
			v, _ := strconv.Atoi(arg)
			err = fill(dev, r, byte(v))
		case "check":
			v, _ := strconv.Atoi(arg)
			err = check(dev, r, byte(v))
		case "withdraw":
			err = exports[0].Close()
		default:
			err = fmt.Errorf("no command %q", word)
		}
		if _, err := fmt.Printf("%v\n", err); err != nil {
			return err
		}
	}
	return commands.Err()
}

// playImporter imports what it is given, says so, and stays until its input ends.
func playImporter() error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	d, err := share.ParseDescriptor(line)
	if err != nil {
		return err
	}
	dev, err := sim.Open(sim.Options{Index: 1})
	if err != nil {
		return err
	}
	imp, err := share.NewImporter(dev, share.ImportOptions{})
	if err != nil {
		return err
	}
	i, err := imp.Import(context.Background(), d)
	fmt.Println(err)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, i.Close(), imp.Close(), dev.Close())
}

// pinnedCopy copies between r and pinned memory of the device.
func pinnedCopy(dev device.Device, r *mem.Region, f func(p *mem.Region, move func(dst, src mem.Extent) error) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return err
	}
	p, err := dev.AllocHost(r.Len())
	if err != nil {
		return errors.Join(err, q.Close(ctx))
	}
	err = f(p, func(dst, src mem.Extent) error {
		if err := q.Copy(dst, src); err != nil {
			return err
		}
		e, err := q.Record()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Wait(ctx)
	})
	return errors.Join(err, q.Close(ctx), dev.Free(p))
}

func fill(dev device.Device, r *mem.Region, v byte) error {
	return pinnedCopy(dev, r, func(p *mem.Region, move func(dst, src mem.Extent) error) error {
		for i := range p.Bytes() {
			p.Bytes()[i] = v
		}
		return move(mem.All(r), mem.All(p))
	})
}

func check(dev device.Device, r *mem.Region, v byte) error {
	return pinnedCopy(dev, r, func(p *mem.Region, move func(dst, src mem.Extent) error) error {
		if err := move(mem.All(p), mem.All(r)); err != nil {
			return err
		}
		for i, b := range p.Bytes() {
			if b != v {
				return fmt.Errorf("byte %d is %#x, want %#x", i, b, v)
			}
		}
		return nil
	})
}

// process is a process of the test binary in another role.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func command(ctx context.Context, role string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}

func start(t *testing.T, role string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(context.Background(), role, args...)}
	var err error
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewReader(out)
	p.cmd.Stderr = os.Stderr
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.kill()
		}
	})
	return p
}

// startExporter returns an exporter and the descriptors of its device memory and its host memory.
func startExporter(t *testing.T, dir, name string, n int64) (p *process, dev, host share.Descriptor) {
	t.Helper()
	p = start(t, "export", dir, name, strconv.FormatInt(n, 10))
	for _, d := range []*share.Descriptor{&dev, &host} {
		got, err := share.ParseDescriptor([]byte(p.line()))
		must(t, err)
		*d = got
	}
	return p, dev, host
}

func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the other process said %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

// do has an exporter do something.
func (p *process) do(what string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, what)
	must(p.t, err)
	if got := p.line(); got != "<nil>" {
		p.t.Errorf("%s: %s", what, got)
	}
}

func (p *process) kill() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Kill())
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// end lets the process end as it should.
func (p *process) end() {
	p.t.Helper()
	must(p.t, p.in.Close())
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the other process: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// simDevice opens a simulated device that the test closes, with nothing left open.
func simDevice(t testing.TB, o sim.Options) *sim.Device {
	t.Helper()
	d, err := sim.Open(o)
	must(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// serve starts a server that the test closes.
func serve(t testing.TB, o share.Options) *share.Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir() + "/s"
	}
	s, err := share.NewServer(o)
	must(t, err)
	must(t, s.Start(t.Context()))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func importer(t testing.TB, dev device.Device) *share.Importer {
	t.Helper()
	in, err := share.NewImporter(dev, share.ImportOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// exported is device memory that s exports, until the test ends.
func exported(t testing.TB, s *share.Server, dev *sim.Device, n int64) (*share.Export, *mem.Region) {
	t.Helper()
	r, err := dev.Alloc(n, device.AllocOptions{Shareable: true})
	must(t, err)
	e, err := s.Export(dev, r)
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), dev.Free(r)); err != nil {
			t.Error(err)
		}
	})
	return e, r
}

func take(t testing.TB, in *share.Importer, d share.Descriptor) *share.Import {
	t.Helper()
	i, err := in.Import(t.Context(), d)
	must(t, err)
	return i
}

// lost waits until i is.
func lost(t testing.TB, i *share.Import) {
	t.Helper()
	select {
	case <-i.Lost():
	case <-time.After(patience):
		t.Fatal("nobody told that the memory is lost")
	}
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// descriptors counts this process's open files.
func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}

// mappings counts this process's mappings of shared memory.
func mappings(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return strings.Count(string(b), "memfd:kvlane")
}
