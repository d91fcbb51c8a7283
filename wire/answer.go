package wire

import "errors"

// AnswerError is an error that another process has sent, or an error in its answer. Its text is
// that of Err.
type AnswerError struct{ Err error }

// Error returns the text of Err.
func (e *AnswerError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *AnswerError) Unwrap() error { return e.Err }

// Answered reports whether err comes from another process's answer. ErrInvalid then does not mean
// that the caller made a mistake.
func Answered(err error) bool {
	var answer *AnswerError
	return errors.As(err, &answer)
}
