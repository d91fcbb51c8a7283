package owner_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/owner"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// fake is an owner of some blocks.
type fake struct {
	mu     sync.Mutex
	blocks map[block.Key]bool // true: pinned
	stall  chan struct{}      // closed when a Remove waits for its context; nil: none waits
	place  string             // of all blocks
}

func (f *fake) Remove(ctx context.Context, keys []block.Key) (r tier.Removed, err error) {
	if f.stall != nil {
		close(f.stall)
		<-ctx.Done()
		return r, fmt.Errorf("stalled: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		switch pinned, ok := f.blocks[key]; {
		case pinned:
			r.Left = fmt.Errorf("block %s: pinned: %w", key, errdefs.ErrBusy)
		case ok:
			delete(f.blocks, key)
			r.Keys, r.Bytes = append(r.Keys, key), r.Bytes+10
		}
	}
	return r, nil
}

func (f *fake) set(keys []block.Key, pinned bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		if _, ok := f.blocks[key]; !ok && pinned {
			return fmt.Errorf("block %s: %w", key, errdefs.ErrNotFound)
		}
		f.blocks[key] = pinned
	}
	return nil
}

func (f *fake) Pin(_ context.Context, keys []block.Key) error   { return f.set(keys, true) }
func (f *fake) Unpin(_ context.Context, keys []block.Key) error { return f.set(keys, false) }

func (f *fake) Why(_ context.Context, keys []block.Key) (all []tier.Why, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		w := tier.InTier{Tier: "fake", Explanation: tier.Explanation{Place: f.place, Reason: "in " + f.place}}
		if _, ok := f.blocks[key]; ok {
			w.State = tier.Ready
		}
		all = append(all, tier.Why{Key: key, Tiers: []tier.InTier{w}})
	}
	return all, nil
}

func keys(n int) (all []block.Key) {
	for i := range n {
		all = append(all, block.Key{1, byte(i), byte(i >> 8)})
	}
	return all
}

// serve serves an owner of n blocks in a new directory with a long path.
func serve(t *testing.T, n int) (*fake, dirfs.Dir, *owner.Server) {
	t.Helper()
	d, err := dirfs.OS().OpenDir(longDir(t))
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	f := &fake{blocks: make(map[block.Key]bool)}
	for _, key := range keys(n) {
		f.blocks[key] = false
	}
	must(t, d.Mkdir("folder"))
	s, err := owner.Serve(d, "folder", f)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close(context.Background()))
		if _, err := d.Stat("folder/" + owner.Name); err == nil {
			t.Error("a closed server leaves its socket")
		}
	})
	return f, d, s
}

func longDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

func dial(t *testing.T, d dirfs.Dir) *owner.Client {
	t.Helper()
	c, err := owner.Dial(t.Context(), d, "folder", "process 1")
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// More keys than a request may have are several requests. Errors keep their class and name the
// process.
func TestOperations(t *testing.T) {
	const n = 2*owner.MaxKeys + 7
	_, d, _ := serve(t, n)
	c, all := dial(t, d), keys(n)
	must(t, c.Pin(t.Context(), all[:2]))
	r, err := c.Remove(t.Context(), all)
	if err != nil || !slices.Equal(r.Keys, all[2:]) || r.Bytes != 10*(n-2) || !errors.Is(r.Left, errdefs.ErrBusy) {
		t.Errorf("removed %d blocks, %d bytes, left %v: %v", len(r.Keys), r.Bytes, r.Left, err)
	}
	must(t, c.Unpin(t.Context(), all[:1]))
	if r, err = c.Remove(t.Context(), all[:1]); err != nil || r.Left != nil || len(r.Keys) != 1 {
		t.Errorf("after unpinning: %+v, %v", r, err)
	}
	why, err := c.Why(t.Context(), all[:2])
	if err != nil || len(why) != 2 || !strings.Contains(why[0].Text, "not stored") || !strings.Contains(why[1].Text, "is stored") ||
		why[0].Stored || !why[1].Stored || !strings.Contains(string(why[1].Why), `"state":"ready"`) {
		t.Errorf("why: %+v, %v", why, err)
	}
	if err := c.Pin(t.Context(), all); !errors.Is(err, errdefs.ErrNotFound) || !strings.Contains(err.Error(), "process 1") {
		t.Errorf("pin of missing blocks: %v", err)
	}
	if err := c.Pin(t.Context(), make([]block.Key, 1)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("pin of a zero key: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	defer func() {
		must(t, c.Close())
		if _, err := c.Why(t.Context(), all[:1]); err == nil {
			t.Error("a closed client has an answer")
		}
		must(t, c.Close())
	}()
	if _, err := c.Remove(ended, all); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// Close ends the context of a running operation, and a client that waits gets an error.
func TestCloseEndsOperations(t *testing.T) {
	f, d, s := serve(t, 1)
	f.stall = make(chan struct{})
	c := dial(t, d)
	done := make(chan error, 1)
	go func() {
		_, err := c.Remove(context.Background(), keys(1))
		done <- err
	}()
	<-f.stall
	must(t, s.Close(t.Context()))
	if err := <-done; err == nil {
		t.Error("the operation of a closed server succeeds")
	}
	if _, err := owner.Dial(t.Context(), d, "folder", "process 1"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("dial a closed server: %v", err)
	}
}

// The context of a command ends its wait for an owner that does not answer.
func TestClientStopsWaiting(t *testing.T) {
	f, d, _ := serve(t, 1)
	f.stall = make(chan struct{})
	c := dial(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-f.stall
		cancel()
	}()
	if _, err := c.Remove(ctx, keys(1)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Hostile clients get no operation, and do not keep a command from its answer.
func TestHostileClients(t *testing.T) {
	f, d, _ := serve(t, 3)
	file, err := d.Open("folder", unix.O_RDONLY|unix.O_DIRECTORY)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	fd, ok := file.(dirfs.Descriptor)
	if !ok {
		t.Fatal("the folder has no descriptor")
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd.Descriptor(), owner.Name)
	connect := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", path)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		return c
	}
	key := strings.Repeat("\x01", 32)
	for name, request := range map[string]string{
		"another protocol":    "GET / HTTP/1.1\r\n\r\n",
		"another version":     "kvo\x02\x01\x00\x00\x00\x01\x00\x00\x00" + key,
		"an unknown":          "kvo\x01\x05\x00\x00\x00\x01\x00\x00\x00" + key,
		"no operation":        "kvo\x01\x00\x00\x00\x00\x01\x00\x00\x00" + key,
		"bytes that are zero": "kvo\x01\x01\x00\x01\x00\x01\x00\x00\x00" + key,
		"no keys":             "kvo\x01\x01\x00\x00\x00\x00\x00\x00\x00",
		"too many keys":       "kvo\x01\x01\x00\x00\x00\x01\x04\x00\x00",
		"all keys":            "kvo\x01\x01\x00\x00\x00\xff\xff\xff\xff",
	} {
		c := connect()
		_, err := io.WriteString(c, request)
		must(t, err)
		reply, _ := io.ReadAll(c) // the rest of the request may reset the connection
		if !strings.Contains(string(reply), `"class":"invalid"`) && len(reply) > 0 {
			t.Errorf("%s: the reply is %q", name, reply)
		}
		must(t, c.Close())
	}
	short := connect()
	_, err = io.WriteString(short, "kvo\x01\x01\x00\x00\x00\x02\x00\x00\x00"+key)
	must(t, err)
	must(t, short.Close())
	var silent []net.Conn
	for range 20 { // more than are served
		silent = append(silent, connect())
	}
	answered := make(chan error, 1)
	c := dial(t, d)
	go func() {
		r, err := c.Remove(context.Background(), keys(1))
		if err == nil && len(r.Keys) != 1 {
			err = fmt.Errorf("removed %+v", r)
		}
		answered <- err
	}()
	for _, c := range silent {
		must(t, c.Close())
	}
	must(t, <-answered)
	if len(f.blocks) != 2 {
		t.Errorf("%d blocks are left, want 2", len(f.blocks))
	}
}

// The socket of a dead owner is replaced. Another file with its name stays, and the error names it.
func TestSocketsOfDeadOwners(t *testing.T) {
	path := longDir(t)
	d, err := dirfs.OS().OpenDir(path)
	must(t, err)
	defer func() { must(t, d.Close()) }()
	wd, err := os.Getwd()
	must(t, err)
	t.Chdir(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: owner.Name, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	t.Chdir(wd)
	if _, err := owner.Dial(t.Context(), d, ".", "process 1"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("dial a dead owner: %v", err)
	}
	s, err := owner.Serve(d, ".", &fake{})
	must(t, err)
	info, err := os.Stat(filepath.Join(path, owner.Name))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	must(t, s.Close(t.Context()))
	must(t, os.WriteFile(filepath.Join(path, owner.Name), nil, 0o600))
	if _, err := owner.Serve(d, ".", &fake{}); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("serve at a file: %v", err)
	}
}

// Clients that list a directory, or wait for another owner, keep no connection.
func TestIdleClients(t *testing.T) {
	_, d, _ := serve(t, 20)
	var clients []*owner.Client
	for range 20 { // more than are served
		clients = append(clients, dial(t, d))
	}
	for i, c := range clients {
		if r, err := c.Remove(t.Context(), keys(20)[i:i+1]); err != nil || len(r.Keys) != 1 {
			t.Fatalf("client %d: %+v, %v", i, r, err)
		}
	}
}

// A link to the socket of another directory does not lead a command to its owner.
func TestLinkToAnotherSocket(t *testing.T) {
	f, d, _ := serve(t, 1)
	must(t, d.Mkdir("other"))
	file, err := d.Open("other", unix.O_RDONLY|unix.O_DIRECTORY)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	fd, ok := file.(dirfs.Descriptor)
	if !ok {
		t.Fatal("the folder has no descriptor")
	}
	must(t, unix.Symlinkat("../folder/"+owner.Name, fd.Descriptor(), owner.Name))
	c, err := owner.Dial(t.Context(), d, "other", "process 1")
	if err == nil {
		_, rerr := c.Remove(t.Context(), keys(1))
		t.Errorf("reached the owner of another directory; %d of 1 blocks are left there: %v", len(f.blocks), errors.Join(rerr, c.Close()))
	} else if !errors.Is(err, errdefs.ErrNotSupported) {
		t.Error(err)
	}
}

// Explanations may be long.
func TestLongExplanations(t *testing.T) {
	f, d, _ := serve(t, owner.MaxKeys)
	f.place = "/" + strings.Repeat("long/", 800)
	c := dial(t, d)
	if all, err := c.Why(t.Context(), keys(owner.MaxKeys)); err != nil || len(all) != owner.MaxKeys {
		t.Errorf("%d answers, %v", len(all), err)
	}
}
