package present

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

var byteUnits = [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Bytes formats a number of bytes with one decimal and a unit, so that the number is less than
// 1024: "79.2 GiB". Whole numbers have no decimal: "4 KiB".
func Bytes(n int64) string {
	v, u := float64(n), 0
	// Values from 1023.95 on would be rounded up to 1024.0.
	for math.Abs(v) >= 1023.95 && u < len(byteUnits)-1 {
		v, u = v/1024, u+1
	}
	return decimals(v, 1) + " " + byteUnits[u]
}

// Size formats a number of bytes exactly, with the largest unit that needs no fraction: "4 KiB",
// "1536 MiB". Use it for configured sizes, because different sizes have different texts.
func Size(n int64) string {
	u := 0
	for n != 0 && n%1024 == 0 && u < len(byteUnits)-1 {
		n, u = n/1024, u+1
	}
	return strconv.FormatInt(n, 10) + " " + byteUnits[u]
}

// sizeUnits are the units for ParseSize in lower case. Single letters are binary units, as in dd
// and fio.
var sizeUnits = []struct {
	suffix string
	bytes  float64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"k", 1 << 10},
	{"m", 1 << 20},
	{"g", 1 << 30},
	{"t", 1 << 40},
	{"b", 1},
	{"", 1},
}

// ParseSize parses a size such as 4096, 64KiB, 1.5GiB, 2GB or 6.4e7. It returns the number of bytes
// and drops a fraction of a byte.
func ParseSize(s string) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	// Parse integers separately: they may have more digits than a float64 represents.
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return n, nil
	}
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			break
		}
		bytes := n * u.bytes
		switch {
		case bytes < 0:
			return 0, fmt.Errorf("the size %q is negative", s)
		case bytes >= math.MaxInt64:
			return 0, fmt.Errorf("the size %q does not fit 64 bits", s)
		}
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size such as 4096, 64KiB or 1.5GiB", s)
}

// decimals formats v with n decimals, or without decimals if v is a whole number.
func decimals(v float64, n int) string {
	if v == math.Trunc(v) {
		n = 0
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

// Count formats n with commas between thousands.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Things formats n with a noun, in the plural unless n is one: "1 block", "2,000 blocks".
func Things(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Count(n) + " " + noun
}

// Duration formats d with two or three digits and a unit: "850 ns", "1.6 ms", "22 ms". From one
// minute on it uses whole seconds: "1m22s". Zero is "0".
func Duration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	if d >= time.Minute-500*time.Millisecond || d <= -time.Minute+500*time.Millisecond {
		return d.Round(time.Second).String()
	}
	v, units := float64(d), []string{"ns", "µs", "ms", "s"}
	for math.Abs(v) >= 999.5 && len(units) > 1 {
		v, units = v/1000, units[1:]
	}
	n := 0
	if math.Abs(v) < 9.95 && units[0] != "ns" {
		n = 1
	}
	return decimals(v, n) + " " + units[0]
}

// Micros formats a number of microseconds like Duration.
func Micros(us float64) string { return Duration(time.Duration(math.Round(us * 1e3))) }

// Rate formats a number with three digits: "0.36", "5.06", "51.2", "312".
func Rate(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return Count(int64(math.Round(v)))
	case a >= 9.995:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Name returns a name or text from an external source. It quotes the text if it has invalid UTF-8
// or unprintable characters, because these could fake lines of a report or control the terminal.
func Name(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

// Percent formats a fraction as a percentage: "8.0%".
func Percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// Escape returns text with unprintable characters escaped as in Go, so that it has no line breaks
// or control characters. It is for names of files.
func Escape(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) { // a valid character
			b.WriteString(s[:n])
		} else {
			b.WriteString(strings.Trim(strconv.Quote(s[:n]), `"`))
		}
		s = s[n:]
	}
	return b.String()
}
