package capi

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

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/strictjson"
)

// errMistyped is wrapped by errors of decode after which the configuration is incomplete.
var errMistyped = fmt.Errorf("%w", errdefs.ErrInvalid)

// decode reads a configuration into to, a pointer to a struct. It reports every unknown key and
// every value of a wrong type, by the names in the text. Errors wrap ErrInvalid, and errMistyped
// unless all that is wrong are unknown keys.
func decode(text []byte, to any) error {
	fail := func(err error) error { return fmt.Errorf("configuration: %w: %w", err, errMistyped) }
	if err := strictjson.Check(text); err != nil {
		return fail(err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var any any
	if err := dec.Decode(&any); err != nil {
		return fail(err)
	}
	var r reader
	plain, err := json.Marshal(r.read("", any, reflect.TypeOf(to).Elem()))
	if err == nil {
		err = json.Unmarshal(plain, to)
	}
	if err != nil && r.errs == nil {
		r.errs = append(r.errs, fail(err))
	}
	return errors.Join(r.errs...)
}

// reader converts a configuration to values that encoding/json accepts for the type.
type reader struct{ errs []error }

// mistyped notes a value of a wrong type, and returns null in its place.
func (r *reader) mistyped(path string, v any, want string) any {
	r.bad(path, "is %s and should be %s", kindOf(v), want)
	return nil
}

func (r *reader) bad(path, format string, args ...any) {
	where := "configuration"
	if path != "" {
		where += ": " + path
	}
	r.errs = append(r.errs, fmt.Errorf(where+" "+format+": %w", append(args, errMistyped)...))
}

// read returns v for type t, as far as it is right. Null stands for the default of any type.
func (r *reader) read(path string, v any, t reflect.Type) any {
	if v == nil {
		return nil
	}
	switch t {
	case reflect.TypeFor[size]():
		return r.size(path, v)
	case reflect.TypeFor[paths]():
		if one, ok := v.(string); ok {
			v = []any{one}
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return r.read(path, v, t.Elem())
	case reflect.Struct:
		return r.object(path, v, t)
	case reflect.Slice:
		return r.list(path, v, t.Elem())
	case reflect.String:
		if _, ok := v.(string); !ok {
			return r.mistyped(path, v, "a string")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return r.mistyped(path, v, "true or false")
		}
	default:
		return r.whole(path, v, "a whole number")
	}
	return v
}

// object reads the keys that struct t has. Upper and lower case differ.
func (r *reader) object(path string, v any, t reflect.Type) any {
	x, ok := v.(map[string]any)
	if !ok {
		return r.mistyped(path, v, "an object")
	}
	if path != "" {
		path += "."
	}
	out := map[string]any{}
	var known []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("json")
		known = append(known, name)
		if inner, ok := x[name]; ok {
			out[name] = r.read(path+name, inner, f.Type)
		}
	}
	for name := range x {
		if !slices.Contains(known, name) {
			r.errs = append(r.errs, invalid("configuration: unknown key %.80q: there are %s", path+name, strings.Join(known, ", ")))
		}
	}
	return out
}

func (r *reader) list(path string, v any, element reflect.Type) any {
	x, ok := v.([]any)
	if !ok {
		return r.mistyped(path, v, "an array")
	}
	out := make([]any, len(x))
	for i := range x {
		out[i] = r.read(fmt.Sprintf("%s.%d", path, i), x[i], element)
	}
	return out
}

// size reads a number of bytes, which text may have with a unit.
func (r *reader) size(path string, v any) any {
	text, ok := v.(string)
	if !ok {
		return r.whole(path, v, `a size: a number of bytes, or text such as "8GiB"`)
	}
	n, err := present.ParseSize(text)
	if err != nil {
		r.bad(path, "is no size: %v", err)
		return nil
	}
	return n
}

// whole reads an integer, which may be written as a float: many programs write large numbers so.
func (r *reader) whole(path string, v any, want string) any {
	number, ok := v.(json.Number)
	if !ok {
		return r.mistyped(path, v, want)
	}
	if n, err := number.Int64(); err == nil {
		return n
	}
	f, err := number.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
		r.bad(path, "is %.40s and should be %s", strconv.Quote(number.String()), want)
		return nil
	}
	return int64(f)
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
