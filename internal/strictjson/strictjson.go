// Package strictjson refuses JSON that encoding/json would silently change. encoding/json replaces
// invalid UTF-8 and lone surrogates by U+FFFD, and uses the last of duplicate keys. Different names
// could thus become equal.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Check returns nil if text is a JSON value that encoding/json decodes without changes. The error
// contains the first invalid byte or key.
func Check(text []byte) error {
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		return err
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return fmt.Errorf("byte %d (%#02x) is not UTF-8: encode names as UTF-8", i+1, text[i])
		}
		i += n
	}
	if err := checkSurrogates(text); err != nil {
		return err
	}
	return checkKeys(text)
}

// escape matches an escape sequence in a string. It matches two adjacent \u sequences together,
// because they may be a surrogate pair.
var escape = regexp.MustCompile(`\\(?:u([0-9a-fA-F]{4})(?:\\u([0-9a-fA-F]{4}))?|.)`)

// checkSurrogates returns an error for a lone surrogate. text is valid JSON.
func checkSurrogates(text []byte) error {
	for at := 0; ; {
		m := escape.FindSubmatchIndex(text[at:])
		if m == nil {
			return nil
		}
		unit := func(group int) rune {
			if m[2*group] < 0 {
				return 0
			}
			n, _ := strconv.ParseUint(string(text[at+m[2*group]:at+m[2*group+1]]), 16, 16)
			return rune(n)
		}
		end := m[1]
		switch r := unit(1); {
		case !utf16.IsSurrogate(r):
			if m[2] >= 0 {
				end = m[3] // the second sequence may begin a pair
			}
		case utf16.DecodeRune(r, unit(2)) == utf8.RuneError:
			return fmt.Errorf("byte %d: \\u%04x is half of a surrogate pair, not a character", at+m[0]+1, r)
		}
		at += end
	}
}

// checkKeys returns an error if an object has a duplicate key. text is valid JSON.
func checkKeys(text []byte) error {
	type level struct {
		keys   map[string]bool // keys of an object; nil in an array
		keyDue bool
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	open := []*level{{}}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		top := open[len(open)-1]
		switch token {
		case json.Delim('{'):
			open = append(open, &level{map[string]bool{}, true})
			continue
		case json.Delim('['):
			open = append(open, &level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
			top = open[len(open)-1]
		}
		if key, ok := token.(string); ok && top.keyDue {
			if top.keys[key] {
				return fmt.Errorf("key %.80q is given twice", key)
			}
			top.keys[key], top.keyDue = true, false
			continue
		}
		top.keyDue = top.keys != nil // a value has ended, so a key may follow
	}
}
