package errdefs

import "errors"

// remedyError is an error with advice on how to resolve it.
type remedyError struct {
	error
	remedy string
}

func (e *remedyError) Unwrap() error { return e.error }

// WithRemedy attaches advice to err: a sentence that states how to resolve the error, without the
// full stop. The text of the error does not change.
func WithRemedy(err error, remedy string) error {
	if err == nil {
		return nil
	}
	return &remedyError{err, remedy}
}

// Remedy returns the advice of the outermost remedyError in err, or "".
func Remedy(err error) string {
	var e *remedyError
	if errors.As(err, &e) {
		return e.remedy
	}
	return ""
}
