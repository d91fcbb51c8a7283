// Package strictjson refuses JSON that encoding/json changes while it decodes. Text that is not
// UTF-8 and lone surrogates become U+FFFD. Of a key that is given twice, the last wins. So
// different names could become equal.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// errEnd is the error of text that ends within a value.
var errEnd = errors.New("the text ends within a value")

// Check returns nil if text is one JSON value that decodes without change. The error names the
// first other place.
func Check(text []byte) error {
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		return err
	}
	// From here on text is valid JSON, but for the contents of strings.
	s := scanner{text: text}
	return s.value()
}

// scanner scans valid JSON.
type scanner struct {
	text []byte
	at   int
}

// next skips spaces, commas and colons, and returns the byte at which the next token starts.
func (s *scanner) next() (byte, error) {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
		default:
			return c, nil
		}
	}
	return 0, errEnd
}

// value scans one value. The decoder has bounded the depth.
func (s *scanner) value() error {
	c, err := s.next()
	if err != nil {
		return err
	}
	switch c {
	case '{', '[':
		return s.elements(c == '{')
	case '"':
		_, err := s.string()
		return err
	}
	for s.at < len(s.text) && !isDelimiter(s.text[s.at]) { // a number or a word
		s.at++
	}
	return nil
}

func isDelimiter(c byte) bool {
	switch c {
	case ' ', '\t', '\r', '\n', ',', ':', ']', '}':
		return true
	}
	return false
}

// elements scans an object or an array from its opening to its closing bracket.
func (s *scanner) elements(object bool) error {
	s.at++
	keys := map[string]bool{}
	for {
		c, err := s.next()
		if err != nil {
			return err
		}
		if c == '}' || c == ']' {
			s.at++
			return nil
		}
		if object {
			key, err := s.string()
			if err != nil {
				return err
			}
			if keys[key] {
				return fmt.Errorf("key %.80q is given twice", key)
			}
			keys[key] = true
		}
		if err := s.value(); err != nil {
			return err
		}
	}
}

// string scans a string and returns its decoded text.
func (s *scanner) string() (string, error) {
	first := s.at
	for s.at++; s.at < len(s.text) && s.text[s.at] != '"'; {
		if s.text[s.at] != '\\' {
			r, n := utf8.DecodeRune(s.text[s.at:])
			if r == utf8.RuneError && n == 1 {
				return "", fmt.Errorf("byte %d (%#02x) is not UTF-8: encode names as UTF-8", s.at+1, s.text[s.at])
			}
			s.at += n
			continue
		}
		if err := s.escape(); err != nil {
			return "", err
		}
	}
	if s.at >= len(s.text) {
		return "", errEnd
	}
	s.at++
	var out string
	err := json.Unmarshal(s.text[first:s.at], &out)
	return out, err
}

// escape scans an escape sequence, and both surrogates of a pair.
func (s *scanner) escape() error {
	r, ok := s.unit()
	switch {
	case !ok:
		s.at += 2
		return nil
	case !utf16.IsSurrogate(r):
		s.at += 6
		return nil
	}
	from := s.at
	s.at += 6
	if low, ok := s.unit(); !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
		return fmt.Errorf("byte %d: \\u%04x is half of a surrogate pair, and stands for no character", from+1, r)
	}
	s.at += 6
	return nil
}

// unit returns the number of a \u escape, if there is one here.
func (s *scanner) unit() (rune, bool) {
	if len(s.text)-s.at < 6 || s.text[s.at] != '\\' || s.text[s.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.text[s.at+2:s.at+6]), 16, 16)
	return rune(n), err == nil
}
