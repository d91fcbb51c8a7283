package cufile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
	"github.com/kvlane/kvlane/internal/sys/headertest"
	"github.com/kvlane/kvlane/internal/testkit"
)

// fake is testdata/fake.c, built and loaded.
type fake struct {
	*API
	calls      func() string
	fail       func(name string, status, cuda int32)
	reset, run func()
}

func build(t *testing.T, flags ...string) string {
	t.Helper()
	cc := headertest.Compiler(t, "cc")
	lib := filepath.Join(t.TempDir(), "libcufile.so.0")
	args := append([]string{"-shared", "-fPIC", "-o", lib, "testdata/fake.c"}, flags...)
	if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	return lib
}

func newFake(t *testing.T, flags ...string) *fake {
	t.Helper()
	name := build(t, flags...)
	api, err := LoadFrom(name)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := dl.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{API: api}
	for symbol, to := range map[string]any{"fake_calls": &f.calls, "fake_fail": &f.fail, "fake_reset": &f.reset} {
		p, err := lib.Symbol(symbol)
		if err != nil {
			t.Fatal(err)
		}
		purego.RegisterFunc(to, p)
	}
	if p, err := lib.Symbol("fake_run"); err == nil {
		purego.RegisterFunc(&f.run, p)
	}
	if err := lib.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fake) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	if got := strings.Fields(f.calls()); !slices.Equal(got, want) {
		t.Errorf("called %q, want %q", got, want)
	}
}

// page returns memory outside the Go heap.
func page(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func temp(t *testing.T, content string) int {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return int(f.Fd())
}

func TestLoadWithoutLibrary(t *testing.T) {
	_, err := LoadFrom("libkvlane-none.so.1")
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("error %v: want ErrNotSupported with the loader's reason", err)
	}
}

func TestLoadNamesEveryMissingSymbol(t *testing.T) {
	_, err := LoadFrom("libc.so.6")
	for _, want := range []string{"cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufDeregister", "cuFileRead", "cuFileDriverClose"} {
		if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "Async") {
		t.Errorf("an optional symbol is reported as missing: %v", err)
	}
}

func TestOlderLibraryLacksOnlyWhatIsYounger(t *testing.T) {
	f := newFake(t, "-DOLD")
	if f.ReadAsync != nil || f.WriteAsync != nil || f.GetVersion != nil || f.GetParameterBool != nil {
		t.Error("a function is set although its symbol is missing")
	}
	b, fd := page(t), temp(t, "bytes")
	h, r := f.HandleRegister(fd)
	if n, errno := f.Read(h, addr(b), 5, 0, 0); r.Status != Success || n != 5 || errno != 0 || string(b[:5]) != "bytes" {
		t.Errorf("read %d (%q), %v, %v", n, b[:5], errno, r)
	}
}

func TestTransfersMoveBytes(t *testing.T) {
	f := newFake(t)
	b, fd := page(t), temp(t, "0123456789")
	h, r := f.HandleRegister(fd)
	if r.Status != Success {
		t.Fatal(r)
	}
	if n, errno := f.Read(h, addr(b), 100, 4, 16); n != 6 || errno != 0 || string(b[16:22]) != "456789" {
		t.Errorf("read %d, %v: %q", n, errno, b[16:22])
	}
	copy(b, "abc")
	if n, errno := f.Write(h, addr(b), 3, 2, 0); n != 3 || errno != 0 {
		t.Errorf("wrote %d, %v", n, errno)
	}
	got := make([]byte, 10)
	if _, err := unix.Pread(fd, got, 0); err != nil || string(got) != "01abc56789" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if n, errno := f.Write(h, addr(b), 3, -1, 0); n != -1 || errno != unix.EINVAL {
		t.Errorf("a write at -1: %d, %v", n, errno)
	}
	f.HandleDeregister(h)
	n, errno := f.Read(h, addr(b), 1, 0, 0)
	if _, err := Moved(n, errno, "cuFileRead", "bytes=%d", 1); errorOf(t, err).Code != 5027 {
		t.Errorf("read of a closed handle: %d, %v", n, err)
	}
	f.wantCalls(t, "HandleRegister", "Read", "Write", "Write", "HandleDeregister", "Read")
}

// A transfer reads its words when it is executed.
func TestWordsAreReadAtExecution(t *testing.T) {
	f := newFake(t)
	b, w, fd := page(t), page(t), temp(t, "0123456789")
	h, _ := f.HandleRegister(fd)
	at := uintptr(addr(w))
	words := Words{Size: at, FileOffset: at + 8, BufferOffset: at + 16, Moved: at + 24}
	if r := f.ReadAsync(h, addr(b), words, 0x77); r.Status != Success {
		t.Fatal(r)
	}
	w[0], w[8], w[16] = 3, 5, 100
	f.run()
	if w[24] != 3 || string(b[100:104]) != "567\x00" {
		t.Errorf("moved %d: %q", w[24], b[100:104])
	}
	copy(b[100:], "xyz")
	if r := f.WriteAsync(h, addr(b), words, 0x77); r.Status != Success {
		t.Fatal(r)
	}
	f.run()
	got := make([]byte, 10)
	if _, err := unix.Pread(fd, got, 0); err != nil || string(got) != "01234xyz89" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

func TestResultsAreStructuresByValue(t *testing.T) {
	f := newFake(t)
	f.fail("BufRegister", int32(CUDADriverError), 719)
	err := f.BufRegister(4096, 10, 0).Err("cuFileBufRegister", "bytes=%d", 10)
	e := errorOf(t, err)
	if e.Code != 5011 || e.Name != "CU_FILE_CUDA_DRIVER_ERROR" || e.Text != "CUresult 719" || e.Args != "bytes=10" {
		t.Errorf("%+v", e)
	}
	f.fail("HandleRegister", int32(HandleNotRegistered), 0)
	_, r := f.HandleRegister(0)
	if err := r.Err("cuFileHandleRegister", ""); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("registration: %v", err)
	}
	if err := (Result{Status: 5099}).Err("x", ""); !strings.Contains(err.Error(), "CUfileOpError(5099)") {
		t.Errorf("unknown status: %v", err)
	}
	p, r := f.DriverGetProperties()
	if r.Status != Success || p.Major != 2 || p.Minor != 17 || p.Status != 1<<StatusNVMe || p.Control != 1<<ControlAllowCompat || p.MaxBatchTimeoutMillis != 77 {
		t.Errorf("properties %+v, %v", p, r)
	}
	if v, r := f.GetVersion(); v != 1140 || r.Status != Success {
		t.Errorf("version %d, %v", v, r)
	}
	if on, r := f.GetParameterBool(ParamForceCompat); !on || r.Status != Success {
		t.Errorf("parameter %v, %v", on, r)
	}
	if r := f.BufDeregister(4096); r.Status != Success {
		t.Errorf("%v", r)
	}
}

func errorOf(t *testing.T, err error) *device.Error {
	t.Helper()
	var e *device.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *device.Error", err)
	}
	return e
}

func TestDriverIsOpenForItsUsers(t *testing.T) {
	f := newFake(t)
	d := NewDriver(func() (*API, error) { return f.API, nil })
	for range 2 {
		if _, err := d.Open(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := d.Close(); err == nil {
		t.Error("an extra Close succeeded")
	}
	if _, err := d.Open(); err != nil {
		t.Errorf("open again: %v", err)
	}
	f.wantCalls(t, "DriverOpen", "DriverClose", "DriverOpen")
}

func TestDefectSecondDriverOpenForgetsTheFailure(t *testing.T) {
	f := newFake(t)
	loads := 0
	d := NewDriver(func() (*API, error) { loads++; return f.API, nil })
	f.fail("DriverOpen", int32(PlatformNotSupported), 0)
	_, first := d.Open()
	f.fail("", 0, 0)
	if _, again := d.Open(); first == nil || again == nil || again.Error() != first.Error() || !errors.Is(again, errdefs.ErrNotSupported) {
		t.Errorf("the first open returned %v, the second %v", first, again)
	}
	f.wantCalls(t, "DriverOpen")
	if loads != 1 {
		t.Errorf("loaded %d times", loads)
	}
}

func TestMissingLibraryIsRemembered(t *testing.T) {
	loads := 0
	d := NewDriver(func() (*API, error) { loads++; return LoadFrom("libkvlane-none.so.1") })
	for range 2 {
		if _, err := d.Open(); !errors.Is(err, errdefs.ErrNotSupported) {
			t.Error(err)
		}
	}
	if loads != 1 {
		t.Errorf("loaded %d times", loads)
	}
}

func TestDriverOfSomebodyElseStaysOpen(t *testing.T) {
	f := newFake(t)
	d := NewDriver(func() (*API, error) { return f.API, nil })
	f.fail("DriverOpen", int32(DriverAlreadyOpen), 0)
	if _, err := d.Open(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	f.wantCalls(t, "DriverOpen")
}

func TestFailedCloseIsRemembered(t *testing.T) {
	f := newFake(t)
	d := NewDriver(func() (*API, error) { return f.API, nil })
	if _, err := d.Open(); err != nil {
		t.Fatal(err)
	}
	f.fail("DriverClose", 5030, 0)
	if err := d.Close(); errorOf(t, err).Code != 5030 {
		t.Error(err)
	}
	if _, err := d.Open(); err == nil || errorOf(t, err).Code != 5030 {
		t.Errorf("open again: %v", err)
	}
}

// The real library, if the loader finds it, reports a missing GPU, also in its log.
func TestLibraryAnswers(t *testing.T) {
	a, err := Load()
	if err != nil {
		testkit.Skip(t, "cufile-library", err.Error())
	}
	if v, r := a.GetVersion(); r.Status != Success || v < 1000 {
		t.Errorf("version %d, %v", v, r)
	}
	if _, r := a.GetParameterBool(ParamForceCompat); r.Status != Success {
		t.Errorf("parameter: %v", r)
	}
}

func TestLogIsFound(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	t.Setenv("CUFILE_LOGFILE_PATH", "")
	t.Setenv("CUFILE_ENV_PATH_JSON", filepath.Join(dir, "none"))
	if got := LogFile(); got != "cufile.log" {
		t.Errorf("without a configuration: %s", got)
	}
	t.Setenv("CUFILE_ENV_PATH_JSON", write("cufile.json", "{\n // \"logging\": 1\n \"logging\": { // where\n // \"dir\": \"/x\",\n \"dir\": \"/a//b\", \"level\": \"ERROR\" } }"))
	if got := LogFile(); got != "/a/b/cufile.log" {
		t.Errorf("with a configuration: %s", got)
	}
	log := write("log", strings.Repeat("filler\n", 20000)+"[pid=7 tid=8] DEBUG nothing\n[pid=7 tid=8] ERROR one\n[pid=7 tid=8] WARN two\n[pid=7 tid=8] INFO no\n[pid=7 tid=8] ERROR three\n[pid=70 tid=8] ERROR x\n")
	t.Setenv("CUFILE_LOGFILE_PATH", log)
	if got := LogFile(); got != log {
		t.Errorf("by the environment: %s", got)
	}
	if got := LogReasons(log, 7, 2); !slices.Equal(got, []string{"[pid=7 tid=8] WARN two", "[pid=7 tid=8] ERROR three"}) {
		t.Errorf("reasons %q", got)
	}
	if got := LogReasons(filepath.Join(dir, "none"), 7, 2); got != nil {
		t.Errorf("reasons of no log: %q", got)
	}
	if got := withoutComment([]byte(`"a\"//" // b`)); !bytes.Equal(got, []byte("\"a\\\"//\" \n")) {
		t.Errorf("%q", got)
	}
}
