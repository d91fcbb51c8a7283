package object

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/kvlane/kvlane/errdefs"
)

// errDamagedOnce is the error of a response with a damaged image. The object may be intact, so it
// is read again.
var errDamagedOnce = errors.New("the response has a damaged image")

// statusOf returns the HTTP status of an error, or 0.
func statusOf(err error) int {
	var r *smithyhttp.ResponseError
	if errors.As(err, &r) {
		return r.HTTPStatusCode()
	}
	return 0
}

// missing reports whether an object does not exist. A missing bucket or user is a failure instead.
func missing(err error) bool {
	code := codeOf(err)
	return statusOf(err) == http.StatusNotFound && (code == "NoSuchKey" || code == "NotFound" || code == "NoSuchUpload") || errors.Is(err, errdefs.ErrNotFound)
}

// codeOf returns the code of an error of S3, or "".
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// unauthorized reports whether the server refuses the credentials. Some servers answer an unknown
// key with status 404.
func unauthorized(err error) bool {
	s := statusOf(err)
	return s == http.StatusForbidden || s == http.StatusUnauthorized || s == http.StatusNotFound && !missing(err) && codeOf(err) != "NoSuchBucket"
}

// refused reports whether the condition of a request was not met.
func refused(err error) bool { return statusOf(err) == http.StatusPreconditionFailed }

// answered reports whether an error is the answer of a server that works.
func answered(err error) bool {
	return missing(err) || refused(err) || errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errDamagedOnce)
}

// corrupt returns an error that wraps ErrCorrupt.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errdefs.ErrCorrupt, fmt.Sprintf(format, args...))
}
