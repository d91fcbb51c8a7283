package ctxio_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/ctxio"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOpenWaitsForTheWriterOfAFIFO(t *testing.T) {
	name := fifo(t)
	for _, text := range []string{"hello", ""} {
		var writing sync.WaitGroup
		writing.Go(func() {
			time.Sleep(20 * time.Millisecond)
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Error(err)
			}
		})
		f, err := ctxio.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(f); err != nil || string(b) != text || f.Regular() {
			t.Errorf("read %q, %v; regular: %v", b, err, f.Regular())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		writing.Wait()
	}
}

func TestContextEndsOpenAndRead(t *testing.T) {
	cause := errors.New("enough")
	for _, bytes := range []string{"", "x"} { // bytes that arrive before the wait
		name := fifo(t)
		w, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(bytes); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
		f, err := ctxio.Open(ctx, name)
		if (err == nil) != (bytes != "") || err != nil && !errors.Is(err, cause) {
			t.Fatalf("open: %v", err)
		}
		if err == nil {
			if b, err := io.ReadAll(f); !errors.Is(err, cause) || string(b) != bytes {
				t.Errorf("read %q, %v", b, err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		timer.Stop()
		cancel(nil)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRegularFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f, err := ctxio.Open(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || string(b) != "hello" || !f.Regular() {
		t.Errorf("read %q, %v; regular: %v", b, err, f.Regular())
	}
	cancel()
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ctxio.Open(t.Context(), name+"x"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
