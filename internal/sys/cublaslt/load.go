package cublaslt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
)

// names lists the names of the library, newest first.
var names = []string{"libcublasLt.so.13", "libcublasLt.so.12"}

// status is cublasStatus_t; zero is success.
type status int32

// The statuses that kvlane handles.
const (
	statusSuccess        status = 0
	statusNotInitialized status = 1
	statusAllocFailed    status = 3
	statusInvalidValue   status = 7
	statusArchMismatch   status = 8
	statusNotSupported   status = 15
)

// Handles of the library.
type (
	handle     uintptr // cublasLtHandle_t
	operation  uintptr // cublasLtMatmulDesc_t
	layout     uintptr // cublasLtMatrixLayout_t
	preference uintptr // cublasLtMatmulPreference_t
)

// algorithm is cublasLtMatmulAlgo_t.
type algorithm [8]uint64

// heuristic is cublasLtMatmulHeuristicResult_t.
type heuristic struct {
	Algorithm      algorithm
	WorkspaceBytes uint64
	State          status
	Waves          float32
	_              [4]int32
}

// Library is the loaded library.
type Library struct {
	lib *dl.Library

	version    func() uint64
	statusName func(s status) string

	create  func(h *handle) status
	destroy func(h handle) status

	operationCreate  func(d *operation, compute, scale int32) status
	operationSet     func(d operation, attr int32, value *int32, bytes uint64) status
	operationDestroy func(d operation) status

	layoutCreate  func(l *layout, dataType int32, rows, cols uint64, ld int64) status
	layoutDestroy func(l layout) status

	preferenceCreate  func(p *preference) status
	preferenceSet     func(p preference, attr int32, value *uint64, bytes uint64) status
	preferenceDestroy func(p preference) status

	heuristics func(h handle, op operation, a, b, c, d layout, p preference, want int32, found *heuristic, n *int32) status
	matmul     func(h handle, op operation, alpha *float32, a uint64, la layout, b uint64, lb layout, beta *float32, c uint64, lc layout,
		d uint64, ld layout, algo *algorithm, workspace, workspaceBytes uint64, stream uintptr) status
}

// Load opens the library. path is a file or a directory; if it is empty, the loader searches for
// the library (dlopen(3)). The error wraps ErrNotSupported and contains the loader's reasons or the
// missing functions.
func Load(path string) (*Library, error) {
	lib, err := dl.Open(candidates(path)...)
	if err != nil {
		return nil, fmt.Errorf("load cublasLt: %w", err)
	}
	l := &Library{lib: lib}
	symbols := lib.Symbols()
	symbols.Bind(&l.version, "cublasLtGetVersion")
	symbols.Bind(&l.statusName, "cublasLtGetStatusName")
	symbols.Bind(&l.create, "cublasLtCreate")
	symbols.Bind(&l.destroy, "cublasLtDestroy")
	symbols.Bind(&l.operationCreate, "cublasLtMatmulDescCreate")
	symbols.Bind(&l.operationSet, "cublasLtMatmulDescSetAttribute")
	symbols.Bind(&l.operationDestroy, "cublasLtMatmulDescDestroy")
	symbols.Bind(&l.layoutCreate, "cublasLtMatrixLayoutCreate")
	symbols.Bind(&l.layoutDestroy, "cublasLtMatrixLayoutDestroy")
	symbols.Bind(&l.preferenceCreate, "cublasLtMatmulPreferenceCreate")
	symbols.Bind(&l.preferenceSet, "cublasLtMatmulPreferenceSetAttribute")
	symbols.Bind(&l.preferenceDestroy, "cublasLtMatmulPreferenceDestroy")
	symbols.Bind(&l.heuristics, "cublasLtMatmulAlgoGetHeuristic")
	symbols.Bind(&l.matmul, "cublasLtMatmul")
	if err := symbols.Missing(); err != nil {
		return nil, errors.Join(err, lib.Close())
	}
	return l, nil
}

// candidates returns the library names to try for a path.
func candidates(path string) []string {
	if path == "" {
		return names
	}
	if i, err := os.Stat(path); err != nil || !i.IsDir() {
		return []string{path}
	}
	var list []string
	for _, n := range names {
		list = append(list, filepath.Join(path, n))
	}
	return list
}

// Version returns the version of the library: "13.0.2".
func (l *Library) Version() string {
	v := l.version() // 10000*major + 100*minor + patch
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// Name returns the name of the loaded library.
func (l *Library) Name() string { return l.lib.Name() }

// Close closes the library. Its handles must be closed before.
func (l *Library) Close() error { return l.lib.Close() }

func (l *Library) check(s status, call, format string, args ...any) error {
	if s == statusSuccess {
		return nil
	}
	e := &device.Error{Call: call, Args: fmt.Sprintf(format, args...), Code: int(s), Name: l.statusName(s)}
	switch s {
	case statusNotSupported, statusArchMismatch, statusNotInitialized:
		e.Kind = errdefs.ErrNotSupported
	case statusAllocFailed:
		e.Kind = errdefs.ErrNoMemory
	case statusInvalidValue:
		e.Kind = errdefs.ErrInvalid
	case statusSuccess:
	}
	return e
}
