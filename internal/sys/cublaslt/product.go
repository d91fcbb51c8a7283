package cublaslt

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvlane/kvlane/errdefs"
)

// Enumeration values from the headers.
const (
	compute32F   int32 = 68 // CUBLAS_COMPUTE_32F
	float32Type  int32 = 0  // CUDA_R_32F
	bfloat16Type int32 = 14 // CUDA_R_16BF
	transpose    int32 = 1  // CUBLAS_OP_T
	attrTransA   int32 = 3  // CUBLASLT_MATMUL_DESC_TRANSA
	attrMaxBytes int32 = 1  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
)

// WorkspaceBytes is the workspace size that NVIDIA recommends for Hopper. Older GPUs need less.
const WorkspaceBytes = 32 << 20

// Handle is a cublasLt handle. It belongs to the context that was current when it was opened.
type Handle struct {
	lib *Library
	h   handle
}

// Open opens a handle.
func (l *Library) Open() (*Handle, error) {
	h := &Handle{lib: l}
	if err := l.check(l.create(&h.h), "cublasLtCreate", ""); err != nil {
		return nil, fmt.Errorf("open cublasLt: %w", err)
	}
	return h, nil
}

// Close closes the handle. Its work must have completed.
func (h *Handle) Close() error {
	return h.lib.check(h.lib.destroy(h.h), "cublasLtDestroy", "")
}

// Product multiplies square matrices of bfloat16 and accumulates in float32: D = transpose(A) * B,
// in column-major order. This layout is the fastest on tensor cores.
type Product struct {
	h      *Handle
	n      int
	op     operation
	matrix layout // layout of all matrices
	best   heuristic
	// alpha and beta are only read during calls.
	alpha, beta float32
}

// NewProduct prepares the product of n x n matrices. The library selects the algorithm.
func (h *Handle) NewProduct(n int) (*Product, error) {
	p := &Product{h: h, n: n, alpha: 1}
	if err := p.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare product of %d x %d matrices: %w", n, n, err), p.Close())
	}
	return p, nil
}

func (p *Product) prepare() error {
	l, n := p.h.lib, uint64(p.n)
	if err := l.check(l.operationCreate(&p.op, compute32F, float32Type), "cublasLtMatmulDescCreate", ""); err != nil {
		return err
	}
	trans := transpose
	if err := l.check(l.operationSet(p.op, attrTransA, &trans, uint64(unsafe.Sizeof(trans))), "cublasLtMatmulDescSetAttribute", "transa"); err != nil {
		return err
	}
	if err := l.check(l.layoutCreate(&p.matrix, bfloat16Type, n, n, int64(n)), "cublasLtMatrixLayoutCreate", "n=%d", n); err != nil {
		return err
	}
	var pref preference
	if err := l.check(l.preferenceCreate(&pref), "cublasLtMatmulPreferenceCreate", ""); err != nil {
		return err
	}
	most := uint64(WorkspaceBytes)
	err := l.check(l.preferenceSet(pref, attrMaxBytes, &most, uint64(unsafe.Sizeof(most))), "cublasLtMatmulPreferenceSetAttribute", "workspace=%d", most)
	if err == nil {
		err = p.choose(pref)
	}
	return errors.Join(err, l.check(l.preferenceDestroy(pref), "cublasLtMatmulPreferenceDestroy", ""))
}

func (p *Product) choose(pref preference) error {
	l, m := p.h.lib, p.matrix
	var found int32
	err := l.check(l.heuristics(p.h.h, p.op, m, m, m, m, pref, 1, &p.best, &found), "cublasLtMatmulAlgoGetHeuristic", "n=%d", p.n)
	if err != nil {
		return err
	}
	if found == 0 {
		return fmt.Errorf("the library has no algorithm for it: %w", errdefs.ErrNotSupported)
	}
	return l.check(p.best.State, "cublasLtMatmulAlgoGetHeuristic", "n=%d", p.n)
}

// Operations returns the number of floating-point operations of one product.
func (p *Product) Operations() float64 {
	n := float64(p.n)
	return 2 * n * n * n
}

// MatrixBytes returns the length of one matrix in bytes.
func (p *Product) MatrixBytes() int64 { return int64(p.n) * int64(p.n) * 2 }

// Enqueue enqueues a product on a CUstream. a, b and d are device addresses of matrices. workspace
// is the device address of WorkspaceBytes bytes.
func (p *Product) Enqueue(a, b, d, workspace uint64, stream uintptr) error {
	l, m := p.h.lib, p.matrix
	s := l.matmul(p.h.h, p.op, &p.alpha, a, m, b, m, &p.beta, d, m, d, m, &p.best.Algorithm, workspace, WorkspaceBytes, stream)
	return l.check(s, "cublasLtMatmul", "n=%d, a=%#x, b=%#x, d=%#x", p.n, a, b, d)
}

// Close frees the product's host resources. Enqueued products may still be running.
func (p *Product) Close() error {
	l := p.h.lib
	var errs []error
	if p.matrix != 0 {
		errs = append(errs, l.check(l.layoutDestroy(p.matrix), "cublasLtMatrixLayoutDestroy", ""))
	}
	if p.op != 0 {
		errs = append(errs, l.check(l.operationDestroy(p.op), "cublasLtMatmulDescDestroy", ""))
	}
	p.matrix, p.op = 0, 0
	return errors.Join(errs...)
}
