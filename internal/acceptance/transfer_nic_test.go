package acceptance_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/transfer"
)

// TestTransferWithoutNICs checks that a Transfer reports missing NICs if the configuration
// requested NICs.
func TestTransferWithoutNICs(t *testing.T) {
	auto := testConfig(t)
	auto.Store.GDR, auto.Stream.ProfileDir = kvlane.GDRAuto, t.TempDir()
	auto.RDMA.Provider = gdr.Soft // auto does not use software NICs
	for want, c := range map[string]kvlane.Config{"in software": softConfig(t), "uses no NICs": auto} {
		notes := openTransfer(t, openEngine(t, c), kvlane.TransferConfig{}).Notes()
		if len(notes) != 1 || !strings.Contains(notes[0], want) || !strings.Contains(notes[0], "sockets") {
			t.Errorf("notes %q do not contain %q", notes, want)
		}
	}
}

// Environment variables of the receiving process in TestVerbsTransfer: its NIC and its driver.
const (
	receiverNICEnv    = "KVLANE_TEST_RECEIVER_NIC"
	receiverDriverEnv = "KVLANE_TEST_RECEIVER_DRIVER"
)

// TestVerbsTransfer hands the KV of a request over from one process to another over their NICs,
// with device and host memory. Every byte must arrive, and only the named pages may change.
func TestVerbsTransfer(t *testing.T) {
	if nic := os.Getenv(receiverNICEnv); nic != "" {
		receiveKV(t, nic, kvlane.Driver(os.Getenv(receiverDriverEnv)))
		return
	}
	names := machineNICs(t)
	if len(names) < 2 {
		testkit.Skip(t, "verbs", fmt.Sprintf("need two NICs, have %v", names))
	}
	for _, driver := range []kvlane.Driver{kvlane.Sim, kvlane.Host} {
		t.Run(string(driver), func(t *testing.T) {
			m := newNICMemory(t, names[0], driver, 0)
			tr := openTransfer(t, m.engine, kvlane.TransferConfig{})
			address, ended := startReceiver(t, names[1], driver)
			if _, err := tr.Connect(t.Context(), address, m.cache); err != nil { // a second time
				t.Fatal(err)
			}
			sendKV(t, tr, address, m.cache, m.config.Model.Layers)
			if err := ended(); err != nil {
				t.Error(err)
			}
			s := tr.Stats()
			for p, had := range s.Paths {
				if (had.Bytes > 0) != (transfer.Path(p) == transfer.PathRDMA) {
					t.Errorf("%d bytes by %s, notes %q", had.Bytes, had.Path, tr.Notes())
				}
			}
			if s.Fallbacks != 0 || s.Refusals != 0 {
				t.Errorf("stats %+v", s)
			}
			t.Logf("%+v, notes %q", s.Paths[transfer.PathRDMA], tr.Notes())
		})
	}
}

// nicMemory is the KV cache of an engine that must use a NIC.
type nicMemory struct {
	config kvlane.Config
	engine *kvlane.Engine
	cache  *kvlane.Cache
	read   func() []byte
}

// kvByte returns byte i of the initial KV cache of a process.
func kvByte(process, i int) byte { return byte(device.Mix64(uint64(i)<<1 | uint64(process))) }

func newNICMemory(t *testing.T, nic string, driver kvlane.Driver, process int) *nicMemory {
	t.Helper()
	m := &nicMemory{config: softConfig(t)}
	c := &m.config
	c.RDMA, c.Device.Driver = gdr.Config{NICs: []string{nic}}, driver
	m.engine = openEngine(t, *c)
	fill := func(b []byte) {
		for i := range b {
			b[i] = kvByte(process, i)
		}
	}
	if driver == kvlane.Host {
		b, memory := ordinary(t, *c)
		fill(b)
		m.cache, m.read = registered(t, m.engine, memory), func() []byte { return b }
		return m
	}
	dev := newMirror(t, m.engine, int64(c.Model.Layers*c.Model.PlanesPerLayer())*cachePages*c.Model.PlaneBytes())
	fill(dev.host.Bytes())
	dev.copy(t, dev.kv, dev.host)
	m.cache = registered(t, m.engine, cacheMemory(*c, dev.kv.Dev(), false))
	m.read = func() []byte { return dev.read(t) }
	return m
}

// receiveKV runs the receiving process. It prints its address, and checks its memory after the
// transfer.
func receiveKV(t *testing.T, nic string, driver kvlane.Driver) {
	m := newNICMemory(t, nic, driver, 1)
	tr := openTransfer(t, m.engine, kvlane.TransferConfig{})
	if err := tr.Offer(t.Context(), "decode", m.cache); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(os.Stdout, receiverPrefix+tr.Address()+"/decode"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), receiverTime)
	defer cancel()
	for {
		received, err := tr.Receive(ctx)
		if err != nil || received.Failed {
			t.Fatalf("received %+v: %v", received, err)
		}
		if received.Complete {
			break
		}
	}
	n := int(m.config.Model.PlaneBytes())
	now := m.read()
	for p := range len(now) / (cachePages * n) {
		for page := range cachePages {
			process, from := 1, page // the process that has written the page, and its page number there
			for _, pair := range handedOver {
				if int(pair.Remote) == page {
					process, from = 0, int(pair.Local)
				}
			}
			for i, b := range now[(p*cachePages+page)*n:][:n] {
				if want := kvByte(process, (p*cachePages+from)*n+i); b != want {
					t.Fatalf("plane %d, page %d, byte %d is %#x, want %#x", p, page, i, b, want)
				}
			}
		}
	}
}

const receiverPrefix = "receiver at "

var receiverTime = testkit.Patience()

// startReceiver starts the receiving process. It returns the name of its segment, and a function
// that waits for its result.
func startReceiver(t *testing.T, nic string, driver kvlane.Driver) (name string, ended func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*receiverTime)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run", "^TestVerbsTransfer$")
	cmd.Env = append(os.Environ(), receiverNICEnv+"="+nic, receiverDriverEnv+"="+string(driver))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var output strings.Builder
	ended = sync.OnceValue(func() error {
		defer cancel()
		_, err := io.Copy(&output, lines)
		if err = errors.Join(err, cmd.Wait()); err != nil {
			return fmt.Errorf("%w: the receiving process printed:\n%s", err, output.String())
		}
		return nil
	})
	t.Cleanup(func() { // if the test fails before
		cancel()
		_ = ended()
	})
	for {
		line, err := lines.ReadString('\n')
		output.WriteString(line)
		if name, ok := strings.CutPrefix(line, receiverPrefix); ok {
			return strings.TrimSpace(name), ended
		}
		if err != nil {
			t.Fatal(ended())
		}
	}
}
