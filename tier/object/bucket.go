package object

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/tier"
)

const (
	maxAttempts = 4 // of a request
	baseBackoff = 20 * time.Millisecond
	maxBackoff  = 500 * time.Millisecond
	bufferBytes = 256 << 10 // of a connection, per direction
)

// errTimeout is the cause of an operation that exceeds Config.Timeout.
var errTimeout = errors.New("the object store has not answered in time")

// bucket makes requests to a server.
type bucket struct {
	api           *s3.Client
	credentials   *aws.CredentialsCache
	transport     *http.Transport
	name, prefix  string
	timeout       time.Duration
	retry         *retry.Standard // its budget is shared by all requests
	reads, writes lane

	requests, retries, unavailable, timeouts atomic.Int64

	mu   sync.Mutex
	last error // of the last request; nil: it succeeded
}

// lane bounds the requests of one kind, and stops them while they fail. A server that refuses
// writes is still read from.
type lane struct {
	slots   chan struct{} // has an element for each request in progress
	breaker *breaker.Breaker
}

// newBucket returns the bucket of c, and sets the defaults of c.
func newBucket(ctx context.Context, c *Config) (*bucket, error) {
	if err := c.validateAccess(); err != nil {
		return nil, err
	}
	c.withDefaults()
	b := &bucket{timeout: c.Timeout}
	b.name, b.prefix, _ = ParseURL(c.URL)
	for _, l := range []*lane{&b.reads, &b.writes} {
		l.slots = make(chan struct{}, c.Requests)
		l.breaker, _ = breaker.New(c.Breaker) // validated
	}
	b.retry = retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.BaseDelay, o.MaxBackoff = maxAttempts, baseBackoff, maxBackoff
		o.Retryables = append([]retry.IsErrorRetryable{retry.IsErrorRetryableFunc(passes)}, o.Retryables...)
	})
	// Credentials are requested rarely, so this client keeps no connections.
	credentials := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.DisableKeepAlives = true })
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(credentials),
		config.WithLogger(logging.Nop{}), // errors have the reasons
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	sdk, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the SDK: %w", err)
	}
	first := sdk.Credentials
	b.credentials = aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		// The SDK reads files once. Read them again when the server has refused the credentials.
		if p := first; p != nil {
			first = nil
			return p.Retrieve(ctx)
		}
		again, err := config.LoadDefaultConfig(ctx, options...)
		if err != nil {
			return aws.Credentials{}, err
		}
		return again.Credentials.Retrieve(ctx)
	}))
	sdk.Credentials = b.credentials
	sdk.Region = cmp.Or(sdk.Region, "us-east-1")
	if b.transport, err = transport(sdk.HTTPClient, c); err != nil {
		return nil, err
	}
	b.api = s3.NewFromConfig(sdk, func(o *s3.Options) {
		if c.Endpoint != "" {
			o.BaseEndpoint = &c.Endpoint
		}
		o.UsePathStyle = o.BaseEndpoint != nil
		o.HTTPClient = &http.Client{
			Transport:     b.transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		// Images have checksums of their own.
		o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
	})
	return b, nil
}

// transport returns a transport with the options of c. The SDK's client has those of the
// environment, such as AWS_CA_BUNDLE.
func transport(client aws.HTTPClient, c *Config) (*http.Transport, error) {
	built, ok := client.(*awshttp.BuildableClient)
	if !ok {
		built = awshttp.NewBuildableClient()
	}
	t := built.GetTransport()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 2*c.Requests, 2*c.Requests
	t.ReadBufferSize, t.WriteBufferSize = bufferBytes, bufferBytes
	t.DisableCompression, t.DisableKeepAlives = true, false
	if c.CAFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of the object store: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM: %w", c.CAFile, errdefs.ErrInvalid)
	}
	t.TLSClientConfig.RootCAs = pool
	return t, nil
}

// passes recognizes errors after which a retry may succeed, in addition to those of the SDK: a
// response that ends early, and a conflict with a write of the same object.
func passes(err error) aws.Ternary {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errDamagedOnce) || statusOf(err) == http.StatusConflict {
		return aws.TrueTernary
	}
	return aws.UnknownTernary
}

func (b *bucket) close() { b.transport.CloseIdleConnections() }

// begin returns a context with the deadline of an operation.
func (b *bucket) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, b.timeout, errTimeout)
}

// canceled returns the cause of the end of ctx, a context of begin, unless that is the deadline.
func canceled(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if cause := cmp.Or(context.Cause(ctx), ctx.Err()); !errors.Is(cause, errTimeout) {
		return cause
	}
	return nil
}

// do makes a request, with retries, until ctx ends, a context of begin. It returns the answer of a
// server that works, an error that wraps tier.ErrUnavailable, or the cause of the caller's context.
func (b *bucket) do(ctx context.Context, l *lane, request func(ctx context.Context) error) error {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return b.failed(ctx, fmt.Errorf("%d requests are in progress: %w", cap(l.slots), errTimeout))
	}
	permit, err := l.breaker.Allow()
	if err != nil {
		return b.failed(ctx, err)
	}
	err = b.attempt(ctx, request)
	switch {
	case err == nil || answered(err):
		permit.Succeed()
		b.note(nil)
		return err
	case canceled(ctx) != nil:
		permit.Cancel()
	default:
		if ctx.Err() != nil {
			b.timeouts.Add(1)
			err = fmt.Errorf("%w within %v: %w", errTimeout, b.timeout, err)
		}
		if unauthorized(err) {
			b.credentials.Invalidate()
		}
		permit.Fail(err)
		b.note(err)
	}
	return b.failed(ctx, err)
}

// failed returns the error of a request without an answer.
func (b *bucket) failed(ctx context.Context, err error) error {
	if cause := canceled(ctx); cause != nil {
		return cause
	}
	b.unavailable.Add(1)
	return fmt.Errorf("%w: bucket %s: %v", tier.ErrUnavailable, b.name, err) //nolint:errorlint // its class is tier.ErrUnavailable
}

// attempt makes a request up to maxAttempts times.
func (b *bucket) attempt(ctx context.Context, request func(ctx context.Context) error) error {
	release, err := b.retry.GetAttemptToken(ctx)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		b.requests.Add(1)
		err := request(ctx)
		_ = release(err) // it returns err
		if err == nil || n == maxAttempts || ctx.Err() != nil || !b.retry.IsErrorRetryable(err) {
			return err
		}
		next, refused := b.retry.GetRetryToken(ctx, err)
		if refused != nil {
			return err // the budget is used up
		}
		delay, derr := b.retry.RetryDelay(n, err)
		if derr != nil {
			return err
		}
		wait := time.NewTimer(delay)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			_ = next(err)
			return err
		}
		b.retries.Add(1)
		release = next
	}
}

func (b *bucket) note(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = err
}

// failure returns the error of the last request, or nil.
func (b *bucket) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}
