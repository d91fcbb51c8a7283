package metadata

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Client is a Store that uses a Server over HTTP.
type Client struct {
	base string
	http *http.Client
}

var _ Store = (*Client)(nil)

// NewClient returns a client of the server at an address such as http://host:port/metadata. limit
// is the timeout of each request; 0: 5 s. It returns ErrInvalid for an invalid address or a
// negative limit.
func NewClient(address string, limit time.Duration) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || limit < 0 {
		return nil, fmt.Errorf("metadata server %q, within %v: %w", address, limit, errors.Join(errdefs.ErrInvalid, err))
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: cmp.Or(limit, 5*time.Second)}
	return &Client{base: u.String(), http: &http.Client{Transport: transport, Timeout: cmp.Or(limit, 5*time.Second)}}, nil
}

// Put implements Store.
func (c *Client) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	q := url.Values{"key": {key}}
	if ttl > 0 {
		q.Set("ttl", strconv.FormatInt(max(ttl.Milliseconds(), 1), 10))
	}
	_, err := c.do(ctx, http.MethodPut, q, value)
	return err
}

// Get implements Store.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	return c.do(ctx, http.MethodGet, url.Values{"key": {key}}, nil)
}

// Delete implements Store.
func (c *Client) Delete(ctx context.Context, key string) error {
	_, err := c.do(ctx, http.MethodDelete, url.Values{"key": {key}}, nil)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	return err
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) do(ctx context.Context, method string, q url.Values, body []byte) (_ []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s metadata %q: %w", strings.ToLower(method), q.Get("key"), err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, method, c.base+"?"+q.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	value, err := io.ReadAll(io.LimitReader(resp.Body, MaxValueBytes+1))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%s does not have it: %w", c.base, errdefs.ErrNotFound)
	case resp.StatusCode == http.StatusInsufficientStorage:
		return nil, fmt.Errorf("%s answers %s: %w", c.base, resp.Status, errdefs.ErrNoSpace)
	case resp.StatusCode/100 == 4:
		return nil, fmt.Errorf("%s answers %s: %w", c.base, resp.Status, errdefs.ErrInvalid)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", c.base, resp.Status)
	case len(value) > MaxValueBytes:
		return nil, fmt.Errorf("%s has a value of more than %d bytes: %w", c.base, MaxValueBytes, errdefs.ErrInvalid)
	}
	return value, nil
}

// leaseOf parses a lease duration in milliseconds.
func leaseOf(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms <= 0 || ms > int64(365*24*time.Hour/time.Millisecond) {
		return 0, fmt.Errorf("ttl %q: must be a number of milliseconds, at most a year: %w", text, errdefs.ErrInvalid)
	}
	return time.Duration(ms) * time.Millisecond, nil
}
