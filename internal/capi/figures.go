package capi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// Stats returns the statistics of an engine as a JSON object. They cover the store, the planner,
// the file stream, direct storage and each NIC. Names are Go field names in snake case; durations
// are in seconds.
func (l *Library) Stats(h Handle) ([]byte, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"store":  figures(reflect.ValueOf(e.Store().Stats())),
		"plan":   figures(reflect.ValueOf(e.PlanFigures())),
		"nics":   figures(reflect.ValueOf(e.NICStats())),
		"direct": figures(reflect.ValueOf(e.Direct())),
	})
}

// Metrics returns the metrics of an engine or a manager in Prometheus's text format.
func (l *Library) Metrics(h Handle) ([]byte, error) {
	var of interface{ WriteMetrics(w io.Writer) error }
	if m, err := find[*manager](&l.handles, h); err == nil {
		of = m
	} else if e, err := find[*engine](&l.handles, h); err == nil {
		of = e
	} else {
		return nil, err
	}
	var text bytes.Buffer
	if err := of.WriteMetrics(&text); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// figures converts v to a value for JSON.
func figures(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.Seconds()
	case error:
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return nil
		}
		return x.Error()
	case fmt.Stringer:
		return x.String()
	}
	switch v.Kind() { //nolint:exhaustive // other kinds need no conversion
	case reflect.Struct:
		out := make(map[string]any, v.NumField())
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				out[snake(f.Name)] = figures(v.Field(i))
			}
		}
		return out
	case reflect.Slice, reflect.Array:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = figures(v.Index(i))
		}
		return out
	case reflect.Interface, reflect.Pointer:
		return figures(v.Elem())
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil // JSON cannot represent this number
		}
	}
	return v.Interface()
}

// snake converts a Go name to snake case, for example VerifiedByCPU to verified_by_cpu and CTAs to
// ctas.
func snake(name string) string {
	var b strings.Builder
	r := []rune(name)
	for i, c := range r {
		plural := i+2 == len(r) && r[i+1] == 's'
		starts := i > 0 && unicode.IsUpper(c) && (!unicode.IsUpper(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1]) && !plural)
		if starts {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
