package auth

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
)

// Limits of the lengths of tokens and tenant names in bytes.
const (
	MinTokenBytes  = 16
	MaxTokenBytes  = 512
	MaxTenantBytes = 64
)

// Token is the hash of a token and its tenant.
type Token struct {
	Tenant string
	// QuotaBytes bounds the memory of the tenant at the server. Zero: the server's own bound.
	QuotaBytes int64
	sum        [sha256.Size]byte
}

// ParseTokens reads a tenant, a token and perhaps a quota, such as 8GiB, from each line, separated
// by spaces or tabs. It skips empty lines and lines that begin with #. A tenant may have several
// tokens; the smallest of its quotas counts. It returns ErrInvalid with the line number for
// malformed lines, for tokens that are too short, too long, duplicate or not printable ASCII, for
// invalid tenant names, and for quotas that are no positive size. It also returns ErrInvalid if
// there is no token. Errors do not contain tokens.
func ParseTokens(b []byte) ([]Token, error) {
	var list []Token
	seen := make(map[[sha256.Size]byte]bool)
	number := 0
	for line := range bytes.Lines(b) {
		number++
		fail := func(why string) error {
			return fmt.Errorf("line %d: %s: %w", number, why, errdefs.ErrInvalid)
		}
		fields := bytes.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if len(fields) != 2 && len(fields) != 3 {
			return nil, fail("it is not a tenant and a token, and perhaps a quota")
		}
		tenant := string(fields[0])
		if err := checkTenant(tenant); err != nil {
			return nil, fail(err.Error())
		}
		if why := tokenProblem(fields[1]); why != "" {
			return nil, fail(why)
		}
		sum := sha256.Sum256(fields[1])
		if seen[sum] {
			return nil, fail("the token is listed twice")
		}
		seen[sum] = true
		var quota int64
		if len(fields) == 3 {
			var err error
			if quota, err = present.ParseSize(string(fields[2])); err != nil || quota <= 0 {
				return nil, fail("the quota is no size such as 8GiB")
			}
		}
		list = append(list, Token{tenant, quota, sum})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no token is listed: %w", errdefs.ErrInvalid)
	}
	return list, nil
}

// tokenProblem returns a text about why a token is invalid, or an empty string.
func tokenProblem(token []byte) string {
	if len(token) < MinTokenBytes || len(token) > MaxTokenBytes {
		return fmt.Sprintf("a token of %d bytes; %d to %d are permitted", len(token), MinTokenBytes, MaxTokenBytes)
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return "a token with other than printable ASCII characters"
		}
	}
	return ""
}

var errTenant = errors.New("a tenant's name with other than letters, digits, dots, hyphens and underscores, or without a letter or digit first")

// checkTenant returns an error unless s is a valid tenant name: 1 to MaxTenantBytes letters,
// digits, dots, hyphens and underscores, beginning with a letter or digit. The error does not
// contain s, because s may be a token in a file with swapped columns.
func checkTenant(s string) error {
	if s == "" || len(s) > MaxTenantBytes {
		return fmt.Errorf("a tenant's name of %d bytes; 1 to %d are permitted", len(s), MaxTenantBytes)
	}
	for i := range len(s) {
		c := s[i]
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !word && (i == 0 || c != '.' && c != '-' && c != '_') {
			return errTenant
		}
	}
	return nil
}
