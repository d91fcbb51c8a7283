package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Name is the name of the tier in pipelines.
const Name = "object"

// Scheme is the start of the URL of a bucket.
const Scheme = "s3://"

const (
	// DefaultTimeout is the default of Config.Timeout.
	DefaultTimeout = 2 * time.Second
	// DefaultRequests is the default of Config.Requests.
	DefaultRequests = 64
	// DefaultPartBytes is the default of Config.PartBytes.
	DefaultPartBytes = 16 << 20
	// MinPartBytes is the least size of the parts of an object. It is a rule of S3.
	MinPartBytes = 5 << 20
)

// Config configures a Tier. The tags are the keys of settings.
type Config struct {
	// URL is s3://BUCKET/PREFIX. Stores of several identities and processes may have the same URL.
	URL string `config:"object"`
	// Endpoint is the URL of the server, http or https. Names of buckets are then in paths. The
	// default is the SDK's, AWS_ENDPOINT_URL_S3 or the region's.
	Endpoint string `config:"object_endpoint"`
	// Region defaults to the SDK's, or to us-east-1.
	Region string `config:"object_region"`
	// CAFile is a PEM file with authorities of the server, in addition to the system's.
	CAFile string `config:"object_ca"`
	// Encryption is the encryption at the server: AES256, aws:kms or aws:kms:dsse. The default is
	// the bucket's. KMSKey is a key of the last two.
	Encryption string `config:"object_encryption"`
	KMSKey     string `config:"object_kms_key"`
	// Timeout bounds each operation with its retries. Default DefaultTimeout.
	Timeout time.Duration `config:"object_timeout_ms"`
	// Requests bounds the requests in progress, of reads and of writes each. Default
	// DefaultRequests.
	Requests int `config:"object_requests"`
	// ReadOnly refuses Put and Delete.
	ReadOnly bool `config:"read_only"`
	// PartBytes is the size of the parts of images that are larger. Parts are read and written
	// concurrently. Default DefaultPartBytes.
	PartBytes int64
	// Formats has one format for each page group, and Identities, which may be empty, their
	// identities for the marker.
	Formats    block.Formats
	Identities []block.Identity
	// Breaker are the options of the breakers.
	Breaker breaker.Options
	// Events receives the blocks that this tier stores, deletes and finds damaged. It may be nil.
	Events *tier.Events
}

// Validate reports all errors. It does not access the server.
func (c *Config) Validate() error { return errors.Join(c.validateAccess(), c.Formats.Validate()) }

// validateAccess is Validate without Formats.
func (c *Config) validateAccess() error {
	_, _, uerr := ParseURL(c.URL)
	_, berr := breaker.New(c.Breaker)
	errs := []error{uerr, berr}
	if u, err := url.Parse(c.Endpoint); c.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("endpoint %q is not http://HOST:PORT or https://HOST:PORT: %w", c.Endpoint, errdefs.ErrInvalid))
	}
	if all := types.ServerSideEncryption("").Values(); c.Encryption != "" && !slices.Contains(all, types.ServerSideEncryption(c.Encryption)) {
		errs = append(errs, fmt.Errorf("encryption %q is not one of %q: %w", c.Encryption, all, errdefs.ErrInvalid))
	}
	if c.KMSKey != "" && !strings.HasPrefix(c.Encryption, "aws:kms") {
		errs = append(errs, fmt.Errorf("a KMS key requires the encryption aws:kms or aws:kms:dsse: %w", errdefs.ErrInvalid))
	}
	if c.Timeout < 0 || c.Requests < 0 {
		errs = append(errs, fmt.Errorf("timeout %v and %d requests must not be negative: %w", c.Timeout, c.Requests, errdefs.ErrInvalid))
	}
	if c.PartBytes != 0 && c.PartBytes < MinPartBytes {
		errs = append(errs, fmt.Errorf("parts of %d bytes: must be at least %d: %w", c.PartBytes, MinPartBytes, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// IsURL reports whether s is the URL of a bucket, and not a directory.
func IsURL(s string) bool { return strings.HasPrefix(s, Scheme) }

// ParseURL returns the bucket and the prefix of s3://BUCKET/PREFIX. The prefix is empty or ends in
// a slash. It returns ErrInvalid for other texts.
func ParseURL(s string) (bucket, prefix string, err error) {
	rest, ok := strings.CutPrefix(s, Scheme)
	bucket, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if !ok || bucket == "" || strings.ContainsAny(rest, "?# ") || strings.Contains("/"+prefix+"/", "/../") || strings.Contains(prefix, "//") {
		return "", "", fmt.Errorf("%q is not s3://BUCKET/PREFIX: %w", s, errdefs.ErrInvalid)
	}
	if prefix != "" {
		prefix += "/"
	}
	return bucket, prefix, nil
}

// OpenTier calls Open.
func (c *Config) OpenTier(ctx context.Context) (tier.Tier, error) { return Open(ctx, *c) }

// Open returns a tier. It writes the marker of the folder, within the timeout. A server that does
// not answer, or refuses that, is in Notes, and is no error. Errors: those of Validate and of the
// SDK's configuration, and ErrMismatch if the folder is of other formats.
func Open(ctx context.Context, c Config) (*Tier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open object tier: %w", err)
	}
	b, err := newBucket(ctx, &c)
	if err != nil {
		return nil, fmt.Errorf("open object tier: %w", err)
	}
	t := &Tier{c: c, b: b, locks: usage.NewKeyLocks(), folder: b.prefix + folderName(c.Formats) + "/"}
	t.ops.Init()
	t.background, t.stop = context.WithCancel(context.Background())
	switch err := t.mark(ctx); {
	case errors.Is(err, errdefs.ErrMismatch):
		b.close()
		return nil, fmt.Errorf("open object tier %s: %w", c.URL, err)
	case ctx.Err() != nil:
		b.close()
		return nil, fmt.Errorf("open object tier %s: %w: %w", c.URL, errdefs.ErrCanceled, context.Cause(ctx))
	case err != nil:
		t.notes = append(t.notes, fmt.Sprintf("the object store %s does not answer as it should; its blocks are misses until it does: %v", c.URL, err))
	}
	return t, nil
}

// withDefaults sets zero fields to their defaults.
func (c *Config) withDefaults() {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Requests = cmp.Or(c.Requests, DefaultRequests)
	c.PartBytes = cmp.Or(c.PartBytes, DefaultPartBytes)
}
