package blockio

import (
	"errors"
	"fmt"
)

// Packer packs requests and results. It checks them, packs them, and decodes the packed bytes to
// compare them. It allocates only until its memory has the length of the longest frame. The zero
// value is ready. One goroutine at a time may use it.
type Packer struct {
	request Request
	result  Result
}

// errChanged is the error of packed bytes that do not have the fields of the frame.
var errChanged = errors.New("the packed bytes have other fields")

// orChanged returns err, or errChanged if that is nil.
func orChanged(err error) error {
	if err == nil {
		return errChanged
	}
	return err
}

// Request appends r to dst. It returns ErrInvalid and dst for a request that may not be sent.
func (p *Packer) Request(dst []byte, r *Request, l *Limits) ([]byte, error) {
	if err := r.Validate(l); err != nil {
		return dst, err
	}
	out := r.append(dst)
	if err := p.request.Decode(out[len(dst):], l); err != nil || !p.request.equal(r) {
		return dst, fmt.Errorf("pack %v: %w", r.Op, orChanged(err))
	}
	return out, nil
}

// Result appends r to dst. It returns ErrInvalid and dst for a result that may not be sent.
func (p *Packer) Result(dst []byte, r *Result, l *Limits) ([]byte, error) {
	if err := r.Validate(l); err != nil {
		return dst, err
	}
	out := r.append(dst)
	if err := p.result.Decode(out[len(dst):], l); err != nil || !p.result.equal(r) {
		return dst, fmt.Errorf("pack result of %v: %w", r.Op, orChanged(err))
	}
	return out, nil
}
