package cublaslt

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// TestLayout compares the Go structure with cublasLt.h: cublasLtMatmulHeuristicResult_t is
// {cublasLtMatmulAlgo_t algo, of uint64_t data[8]; size_t workspaceSize; cublasStatus_t state;
// float wavesCount; int reserved[4];}.
func TestLayout(t *testing.T) {
	var h heuristic
	for name, c := range map[string][2]uintptr{
		"size":      {unsafe.Sizeof(h), 96},
		"algorithm": {unsafe.Offsetof(h.Algorithm), 0},
		"workspace": {unsafe.Offsetof(h.WorkspaceBytes), 64},
		"state":     {unsafe.Offsetof(h.State), 72},
		"waves":     {unsafe.Offsetof(h.Waves), 76},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is %d, not %d", name, c[0], c[1])
		}
	}
}

func TestMissingLibrary(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "libnothing.so")} {
		_, err := Load(path)
		if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "No such file") {
			t.Errorf("%s: %v, want ErrNotSupported with the loader's reason", path, err)
		}
	}
}

func TestCandidates(t *testing.T) {
	dir := t.TempDir()
	if got := candidates(""); !slices.Equal(got, names) {
		t.Errorf("without a path: %v", got)
	}
	if got := candidates(dir); len(got) != len(names) || got[0] != filepath.Join(dir, names[0]) {
		t.Errorf("candidates of a directory: %v", got)
	}
	if got := candidates("lib.so"); !slices.Equal(got, []string{"lib.so"}) {
		t.Errorf("candidates of a file: %v", got)
	}
}

// build compiles a library of C and loads it.
func build(t *testing.T, source string) (*Library, error) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		testkit.Skip(t, "cc", err.Error())
	}
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "fake.c"), filepath.Join(dir, names[0])
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), cc, "-w", "-shared", "-fPIC", "-O1", "-o", lib, src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return Load(dir)
}

func TestMissingFunctionsAreNamed(t *testing.T) {
	_, err := build(t, `unsigned long long cublasLtGetVersion(void) { return 130002; }`)
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "cublasLtMatmul ") || strings.Contains(err.Error(), "cublasLtGetVersion") {
		t.Errorf("error %v", err)
	}
}

// fake is a C library with the functions for one product. It checks its arguments against the
// header, and fails the call whose number is in FAKE_FAIL.
const fake = `
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
typedef struct { uint64_t data[8]; } algo_t;
typedef struct { algo_t algo; size_t workspaceSize; int state; float wavesCount; int reserved[4]; } result_t;
static int calls, live;
static int step(void) { const char *f = getenv("FAKE_FAIL"); return f && calls++ == atoi(f) ? 15 : 0; }
static int make(void **p, long v) { int s = step(); if (!s) { *p = (void *)v; live++; } return s; }
static int drop(void *p, long v) { live--; return p == (void *)v ? 0 : 7; }
int fake_live(void) { return live; }
void fake_reset(void) { calls = 0; }
size_t cublasLtGetVersion(void) { return 130102; }
const char *cublasLtGetStatusName(int s) { return s == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE"; }
int cublasLtCreate(void **h) { return make(h, 0x11); }
int cublasLtDestroy(void *h) { return drop(h, 0x11); }
int cublasLtMatmulDescCreate(void **d, int compute, int scale) { return compute == 68 && scale == 0 ? make(d, 0x22) : 7; }
int cublasLtMatmulDescSetAttribute(void *d, int attr, const void *v, size_t n) {
	return d == (void *)0x22 && attr == 3 && n == 4 && *(int *)v == 1 ? step() : 7; }
int cublasLtMatmulDescDestroy(void *d) { return drop(d, 0x22); }
int cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
	return type == 14 && rows == 64 && cols == 64 && ld == 64 ? make(l, 0x33) : 7; }
int cublasLtMatrixLayoutDestroy(void *l) { return drop(l, 0x33); }
int cublasLtMatmulPreferenceCreate(void **p) { return make(p, 0x44); }
int cublasLtMatmulPreferenceSetAttribute(void *p, int attr, const void *v, size_t n) {
	return p == (void *)0x44 && attr == 1 && n == 8 && *(uint64_t *)v == 33554432 ? step() : 7; }
int cublasLtMatmulPreferenceDestroy(void *p) { return drop(p, 0x44); }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *op, void *a, void *b, void *c, void *d, void *p, int want, result_t *r, int *n) {
	if (h != (void *)0x11 || op != (void *)0x22 || a != (void *)0x33 || d != a || p != (void *)0x44 || want != 1) return 7;
	int s = step();
	r->algo.data[0] = 7; r->algo.data[7] = 8; r->workspaceSize = 1 << 20; *n = getenv("FAKE_NONE") ? 0 : 1;
	return s; }
int cublasLtMatmul(void *h, void *op, const float *alpha, void *a, void *la, void *b, void *lb, const float *beta, void *c, void *lc,
	void *d, void *ld, const algo_t *algo, void *ws, size_t n, void *stream) {
	if (h != (void *)0x11 || op != (void *)0x22 || *alpha != 1 || *beta != 0 || la != (void *)0x33 || lb != la || lc != la || ld != la) return 7;
	if (a != (void *)0xa || b != (void *)0xb || c != d || d != (void *)0xd || ws != (void *)0xe || n != 33554432 || stream != (void *)0xf) return 7;
	return algo->data[0] == 7 && algo->data[7] == 8 ? step() : 7; }
`

// product computes one product with the fake.
func product(l *Library) (err error) {
	h, err := l.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	p, err := h.NewProduct(64)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if p.Operations() != 2*64*64*64 || p.MatrixBytes() != 2*64*64 {
		return errors.New("wrong measures")
	}
	return p.Enqueue(0xa, 0xb, 0xd, 0xe, 0xf)
}

func TestProduct(t *testing.T) {
	l, err := build(t, fake)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if l.Version() != "13.1.2" || filepath.Base(l.Name()) != names[0] {
		t.Errorf("version %s of %s", l.Version(), l.Name())
	}
	if err := product(l); err != nil {
		t.Error(err)
	}
	err = l.check(statusNotSupported, "call", "n=%d", 1)
	var native *device.Error
	if !errors.As(err, &native) || native.Name != "CUBLAS_STATUS_NOT_SUPPORTED" || native.Args != "n=1" || !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("error %v", err)
	}
}
