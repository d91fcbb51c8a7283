package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/strictjson"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// ErrIncomplete is wrapped by errors that mean that some given values could not be set.
var ErrIncomplete = fmt.Errorf("%w", errdefs.ErrInvalid)

// Decode parses a JSON object and stores it in to, a pointer to a struct. Fields that are missing
// in text or null are not changed. The error lists every unknown key and every invalid value by its
// name in text. It wraps ErrInvalid, and also ErrIncomplete if a value was invalid.
func Decode(text []byte, to any) error {
	var v any
	if err := parseJSON(text, &v); err != nil {
		return fmt.Errorf("configuration: %w: %w", err, ErrIncomplete)
	}
	var r reader
	r.set("", v, reflect.ValueOf(to).Elem())
	return errors.Join(r.errs...)
}

func parseJSON(text []byte, to *any) error {
	if err := strictjson.Check(text); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return dec.Decode(to)
}

// reader stores JSON values in fields and collects errors.
type reader struct{ errs []error }

// failf adds an error about the value at path.
func (r *reader) failf(path, format string, args ...any) {
	where := "configuration"
	if path != "" {
		where += ": " + path
	}
	r.errs = append(r.errs, fmt.Errorf(where+" "+format+": %w", append(args, ErrIncomplete)...))
}

func (r *reader) mistyped(path string, v any, want string) {
	r.failf(path, "is %s, must be %s", kindOf(v), want)
}

// set stores v in to. Null is ignored. A single text may be used for a list of one element.
func (r *reader) set(path string, v any, to reflect.Value) {
	if v == nil {
		return
	}
	if text, ok := v.(string); ok {
		named, err := parseName(to.Addr().Interface(), text)
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("configuration: %s: %w", path, err))
		}
		if named {
			return
		}
		if to.Type() == reflect.TypeFor[[]string]() {
			v = []any{text}
		}
	} else if isNamed(to) {
		r.mistyped(path, v, "a string")
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		r.set(path, v, to.Elem())
	case reflect.Struct:
		r.setObject(path, v, to)
	case reflect.Slice:
		r.setList(path, v, to)
	case reflect.String:
		if text, ok := v.(string); ok {
			to.SetString(text)
		} else {
			r.mistyped(path, v, "a string")
		}
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			to.SetBool(b)
		} else {
			r.mistyped(path, v, "true or false")
		}
	default:
		r.setNumber(path, v, to)
	}
}

// setObject sets the fields of a struct. Keys are case-sensitive.
func (r *reader) setObject(path string, v any, to reflect.Value) {
	object, ok := v.(map[string]any)
	if !ok {
		r.mistyped(path, v, "an object")
		return
	}
	if to.Type().Field(0).Tag.Get(tag) == "config" {
		if err := merge(object); err != nil {
			r.errs = append(r.errs, err)
		}
	}
	if path != "" {
		path += "."
	}
	var known []string
	for i := range to.NumField() {
		key := to.Type().Field(i).Tag.Get(tag)
		if key == "" {
			continue
		}
		known = append(known, key)
		r.set(path+key, object[key], to.Field(i))
	}
	for key := range object {
		if !slices.Contains(known, key) {
			r.errs = append(r.errs, fmt.Errorf("configuration: unknown key %.80q: known keys are %s: %w", path+key, strings.Join(known, ", "), errdefs.ErrInvalid))
		}
	}
}

func (r *reader) setList(path string, v any, to reflect.Value) {
	list, ok := v.([]any)
	if !ok {
		r.mistyped(path, v, "an array")
		return
	}
	out := reflect.MakeSlice(to.Type(), len(list), len(list))
	for i := range list {
		r.set(fmt.Sprintf("%s.%d", path, i), list[i], out.Index(i))
	}
	to.Set(out)
}

// setNumber sets an integer. v may be a number, or text with a size or a duration.
func (r *reader) setNumber(path string, v any, to reflect.Value) {
	want := "a whole number"
	if isSize(path) {
		want = `a size: a number of bytes, or text such as "8GiB"`
		if text, ok := v.(string); ok {
			n, err := present.ParseSize(text)
			if err != nil {
				r.failf(path, "is no size: %v", err)
			}
			to.SetInt(n)
			return
		}
	}
	number, ok := v.(json.Number)
	if !ok {
		r.mistyped(path, v, want)
		return
	}
	n, err := number.Int64()
	if err != nil {
		f, err := number.Float64()
		if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
			r.failf(path, "is %.40s, must be %s", strconv.Quote(number.String()), want)
			return
		}
		n = int64(f)
	}
	if to.Type() == reflect.TypeFor[time.Duration]() {
		if most := math.MaxInt64 / int64(time.Millisecond); n < 0 || n > most {
			r.failf(path, "is %d, must be 0 to %d", n, most)
			return
		}
		n *= int64(time.Millisecond)
	}
	to.SetInt(n)
}

// isSize reports whether path is the key of a number of bytes, or an element of a list of such
// numbers.
func isSize(path string) bool {
	return strings.HasSuffix(strings.TrimRight(path, ".0123456789"), "_bytes")
}

func isNamed(to reflect.Value) bool {
	named, _ := parseName(to.Addr().Interface(), "")
	return named
}

// parseName sets *to to the value that word names. named reports whether values of this type have
// names. An empty word changes nothing.
func parseName(to any, word string) (named bool, err error) {
	switch to := to.(type) {
	case *stream.Path:
		return true, parse(to, word, stream.ParsePath)
	case *plan.Policy:
		return true, parse(&to.Goal, word, plan.ParseGoal)
	case *store.VerifyPolicy:
		return true, parse(to, word, store.ParseVerify)
	case *file.FsyncPolicy:
		return true, parse(to, word, file.ParseFsyncPolicy)
	case *log.FsyncPolicy:
		return true, parse(to, word, log.ParseFsyncPolicy)
	}
	return false, nil
}

func parse[T any](to *T, word string, parse func(string) (T, error)) error {
	if word == "" {
		return nil
	}
	v, err := parse(word)
	if err == nil {
		*to = v
	}
	return err
}

// kindOf returns the JSON kind of v.
func kindOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	case string:
		return "a string"
	case bool:
		return "true or false"
	}
	return "a number"
}
