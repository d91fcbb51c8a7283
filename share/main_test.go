package share_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// roleEnv makes the test binary run in another role instead of running tests.
const roleEnv = "KVLANE_SHARE_ROLE"

// patience is the time that a test waits for an expected event.
var patience = testkit.Patience()

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleEnv); role {
	case "":
		cudatest.UseDriverOnce()
		testkit.Main(m)
		return
	case "export":
		err = playExporter(os.Args[1:])
	case "import":
		err = playImporter()
	case "hang-up", "wrong-end":
		err = playHangUp(role == "wrong-end")
	case "stranger":
		err = playStranger()
	case "probe":
		err = share.AnswerProbe(context.Background(), os.Stdin, os.Stdout, openSim)
	case "probe-gpu":
		err = share.AnswerProbe(context.Background(), os.Stdin, os.Stdout, cuda.OpenUUID)
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		panic(err)
	}
}

func openSim(string) (device.Device, error) {
	return sim.Open(sim.Options{Index: 1})
}

// sharedMemory is one kind of memory of an exporter.
type sharedMemory struct {
	share.Source
	region *mem.Region
}

// playExporter exports memory of a simulated device and host memory, of the given length. If an
// index is given, it exports memory of that GPU with each type of handle. It executes commands from
// standard input.
func playExporter(args []string) (err error) {
	if len(args) < 3 {
		return errors.New("the arguments are a directory, a name, a length, and the index of a GPU")
	}
	n, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	dev, all, free, err := exporterMemory(n, args[3:])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	s, err := share.NewServer(share.Options{Dir: args[0], Name: args[1]})
	if err != nil {
		return err
	}
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	var exports []*share.Export
	out := json.NewEncoder(os.Stdout)
	for _, m := range all {
		e, err := s.Export(m.Source, m.region)
		if err != nil {
			return err
		}
		exports = append(exports, e)
		if err := out.Encode(e.Descriptor()); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout); err != nil {
		return err
	}
	return obey(dev, all, exports)
}

func exporterMemory(n int64, gpu []string) (dev device.Sharer, all []sharedMemory, free func() error, err error) {
	if len(gpu) > 0 {
		return gpuMemory(n, gpu[0])
	}
	if dev, err = sim.Open(sim.Options{}); err != nil {
		return nil, nil, nil, err
	}
	r, err := dev.Alloc(n, device.AllocOptions{Shareable: true})
	if err != nil {
		return nil, nil, nil, err
	}
	h, err := share.AllocHost(dev, n)
	if err != nil {
		return nil, nil, nil, err
	}
	free = func() error { return errors.Join(h.Close(), dev.Free(r), dev.Close()) }
	return dev, []sharedMemory{{dev, r}, {h, h.Region()}}, free, nil
}

// obey executes commands from standard input on the device's memory, and prints the results.
func obey(dev device.Device, all []sharedMemory, exports []*share.Export) error {
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var err error
		word, arg, _ := strings.Cut(commands.Text(), " ")
		if word == "fork" {
			err = leaveChild(arg)
		}
		v, _ := strconv.Atoi(arg)
		for i, m := range all {
			switch {
			case m.region.Kind() != mem.KindDevice:
			case word == "fill":
				err = errors.Join(err, fill(dev, m.region, byte(v)))
			case word == "check":
				err = errors.Join(err, check(dev, m.region, byte(v)))
			case word == "withdraw":
				err = errors.Join(err, withdraw(exports[i]))
			}
		}
		if _, err := fmt.Fprintln(os.Stdout, err); err != nil {
			return err
		}
	}
	return commands.Err()
}

// leaveChild starts a child process that inherits all sockets of this process, and writes its
// process id to a file.
func leaveChild(file string) error {
	cmd := exec.CommandContext(context.Background(), "sleep", "60")
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, fd := range open {
		if what, _ := os.Readlink("/proc/self/fd/" + fd.Name()); !strings.HasPrefix(what, "socket:") {
			continue
		}
		n, err := strconv.Atoi(fd.Name())
		if err != nil {
			return err
		}
		if n, err = unix.Dup(n); err != nil {
			return err
		}
		unix.CloseOnExec(n)
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(n), "socket"))
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// playImporter imports the given memory, reports it, and waits for the end of its input.
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
	if _, perr := fmt.Fprintln(os.Stdout, err); perr != nil || err != nil {
		return errors.Join(perr, err)
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, i.Close(), imp.Close(), dev.Close())
}

// playHangUp requests the given memory and closes the connection without an end request, or with
// the end request of another export if wrong is set. It then waits for the end of its input.
func playHangUp(wrong bool) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	d, err := share.ParseDescriptor(line)
	if err != nil {
		return err
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.Socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	if _, err := c.Write(share.EncodeRequest(d.Identity)); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 200)); err != nil {
		return err
	}
	if wrong {
		if _, err := c.Write(share.EncodeEnd(share.NewIdentity())); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, c.Close()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// pinnedCopy copies between r and pinned memory of the device.
func pinnedCopy(dev device.Device, r *mem.Region, f func(p *mem.Region, move func(dst, src mem.Extent) error) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return share.Through(ctx, dev, r.Len(), func(q device.Queue, p *mem.Region) error {
		return f(p, func(dst, src mem.Extent) error { return share.Moved(ctx, q, dst, src) })
	})
}

// within calls f with a context that ends after patience.
func within(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f(ctx)
}

func withdraw(e *share.Export) error { return within(e.Close) }

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

// process is a child process of the test binary in another role.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func command(ctx context.Context, role string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}

func start(tb testing.TB, role string, args ...string) *process {
	tb.Helper()
	p := prepare(tb, command(context.Background(), role, args...))
	must(tb, p.cmd.Start())
	return p
}

// prepare returns a process that the caller must start.
func prepare(tb testing.TB, cmd *exec.Cmd) *process {
	tb.Helper()
	p := &process{t: tb, cmd: cmd}
	var err error
	p.in, err = p.cmd.StdinPipe()
	must(tb, err)
	out, err := p.cmd.StdoutPipe()
	must(tb, err)
	p.out = bufio.NewReader(out)
	p.cmd.Stderr = os.Stderr
	tb.Cleanup(func() {
		if p.cmd.Process != nil && p.cmd.ProcessState == nil {
			p.kill()
		}
	})
	return p
}

// startExporter starts an exporter, and returns it with the descriptors of its device and host
// memory.
func startExporter(t *testing.T, dir, name string, n int64) (p *process, dev, host share.Descriptor) {
	t.Helper()
	p = start(t, "export", dir, name, strconv.FormatInt(n, 10))
	all := p.descriptors()
	if len(all) != 2 {
		t.Fatalf("%d exports", len(all))
	}
	return p, all[0], all[1]
}

// descriptors reads the descriptors that an exporter prints first.
func (p *process) descriptors() (all []share.Descriptor) {
	p.t.Helper()
	for line := p.line(); line != ""; line = p.line() {
		d, err := share.ParseDescriptor([]byte(line))
		must(p.t, err)
		all = append(all, d)
	}
	return all
}

func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the child process printed %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

// do executes a command in the exporter.
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

// end closes the input of the process, which must exit without an error.
func (p *process) end() {
	p.t.Helper()
	must(p.t, p.in.Close())
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the child process: %v", err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// simDevice opens a simulated device. Its Close must succeed when the test ends.
func simDevice(tb testing.TB, o sim.Options) *sim.Device {
	tb.Helper()
	d, err := sim.Open(o)
	must(tb, err)
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

// serve starts a server and closes it when the test ends.
func serve(tb testing.TB, o share.Options) *share.Server {
	tb.Helper()
	if o.Dir == "" {
		o.Dir = tb.TempDir() + "/s"
	}
	s, err := share.NewServer(o)
	must(tb, err)
	must(tb, s.Start(tb.Context()))
	tb.Cleanup(func() {
		if err := within(s.Close); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func importer(tb testing.TB, dev device.Device) *share.Importer {
	tb.Helper()
	in, err := share.NewImporter(dev, share.ImportOptions{})
	must(tb, err)
	tb.Cleanup(func() {
		if err := in.Close(); err != nil {
			tb.Error(err)
		}
	})
	return in
}

// exported returns device memory that s exports until the test ends.
func exported(tb testing.TB, s *share.Server, dev *sim.Device, n int64) (*share.Export, *mem.Region) {
	tb.Helper()
	r, err := dev.Alloc(n, device.AllocOptions{Shareable: true})
	must(tb, err)
	e, err := s.Export(dev, r)
	must(tb, err)
	tb.Cleanup(func() {
		if err := errors.Join(withdraw(e), dev.Free(r)); err != nil {
			tb.Error(err)
		}
	})
	return e, r
}

func take(tb testing.TB, in *share.Importer, d share.Descriptor) *share.Import {
	tb.Helper()
	i, err := in.Import(tb.Context(), d)
	must(tb, err)
	return i
}

// lost waits until the import is reported as lost.
func lost(tb testing.TB, i *share.Import) {
	tb.Helper()
	select {
	case <-i.Lost():
	case <-time.After(patience):
		tb.Fatal("the memory was not reported as lost")
	}
}

// until waits until ok returns true, and fails with what after patience.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(what)
		}
	}
}

// descriptors counts this process's open files.
func descriptors(tb testing.TB) int {
	tb.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(tb, err)
	return len(all)
}

// mappings counts this process's mappings of shared memory.
func mappings(tb testing.TB) int {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must(tb, err)
	return strings.Count(string(b), "memfd:kvlane")
}
