package settings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Apply stores values in the fields of a configuration.
func Apply(to any, values []Value) error {
	var errs []error
	for i := range values {
		v := &values[i]
		if v.Key == "" || len(v.Texts) == 0 || v.isUnset() {
			continue
		}
		if err := v.Check(); err != nil {
			errs = append(errs, err)
			continue
		}
		var r reader
		r.set(v.Key, v.json(), field(to, v.Key))
		for _, err := range r.errs {
			errs = append(errs, v.errorf("%w", err))
		}
	}
	return errors.Join(errs...)
}

func (v *Value) isUnset() bool { return slices.Equal(v.Texts, []string{v.Unset}) }

// json returns the texts as a JSON value.
func (v *Value) json() any {
	switch v.Kind {
	case Bool:
		b, _ := strconv.ParseBool(v.Texts[0]) // checked before
		return b
	case Int:
		return json.Number(v.Texts[0])
	case List, Dirs, Sizes:
		list := make([]any, len(v.Texts))
		for i, text := range v.Texts {
			list[i] = text
		}
		return list
	default:
		return v.Texts[0]
	}
}

// field returns the field of a struct at a path of keys.
func field(to any, path string) reflect.Value {
	v := reflect.ValueOf(to).Elem()
next:
	for key := range strings.SplitSeq(path, ".") {
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get(tag) == key {
				v = v.Field(i)
				continue next
			}
		}
		panic(fmt.Sprintf("settings: %s has no field %q", v.Type(), path))
	}
	return v
}

// Fill sets the zero fields of a configuration to the values of a file. It skips values that have
// no effect with the other fields.
func Fill(ctx context.Context, to any, file string) error {
	values, err := ReadFile(ctx, file)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalid)
	}
	return Apply(to, effective(values, func(key string) (string, bool) {
		f := field(to, key)
		return fmt.Sprint(f.Interface()), !f.IsZero()
	}))
}

// Merge returns a configuration as a JSON object, merged with the values of the file that its key
// "config" names. Keys of the object take precedence. File values that contradict them, or that
// have no effect with them, are ignored.
func Merge(text []byte) ([]byte, error) {
	var v any
	if err := parseJSON(text, &v); err != nil {
		return nil, fmt.Errorf("configuration: %w: %w", err, ErrIncomplete)
	}
	if err := merge(v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// merge is Merge for a parsed object. It does not change other JSON values or objects without a
// file.
func merge(v any) error {
	object, _ := v.(map[string]any)
	file, ok := object["config"].(string)
	if !ok {
		return nil
	}
	values, err := ReadFile(context.Background(), file)
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrIncomplete)
	}
	delete(object, "config")
	for _, v := range effective(values, func(key string) (string, bool) { return lookup(object, key) }) {
		section, name, nested := strings.Cut(v.Key, ".")
		if !nested {
			object[section] = v.json()
			continue
		}
		if object[section] == nil {
			object[section] = map[string]any{}
		}
		if inner, ok := object[section].(map[string]any); ok { // otherwise its type is wrong
			inner[name] = v.json()
		}
	}
	return nil
}

// lookup returns the text of a key, and false if the key has no value.
func lookup(object map[string]any, key string) (string, bool) {
	section, name, nested := strings.Cut(key, ".")
	v := object[section]
	if inner, ok := v.(map[string]any); nested && ok {
		v = inner[name]
	}
	return fmt.Sprint(v), v != nil
}

// effective returns the values of a file that have an effect, are not given elsewhere and do not
// contradict given values. given returns the text of a key, and false if the key is not given.
func effective(file []Value, given func(key string) (text string, ok bool)) []Value {
	text, precedence := map[string]string{}, map[string]int{} // by name
	for i := range Table {
		if s := &Table[i]; s.Name != "" && s.Key != "" {
			if t, ok := given(s.Key); ok {
				text[s.Name], precedence[s.Name] = t, 2
			}
		}
	}
	file = slices.DeleteFunc(slices.Clone(file), func(v Value) bool {
		return v.Key == "" || precedence[v.Name] > 0 || v.isUnset()
	})
	for _, v := range file {
		text[v.Name], precedence[v.Name] = strings.Join(v.Texts, ","), 1
	}
	drop := func(name string) {
		file = slices.DeleteFunc(file, func(v Value) bool { return v.Name == name })
		delete(text, name)
		delete(precedence, name)
	}
	for _, name := range Overruled(func(name string) (string, int) { return text[name], precedence[name] }) {
		drop(name)
	}
	for changed := true; changed; {
		changed = false
		for i := range Rules {
			if Rules[i].Met(func(name string) string { return text[name] }) {
				continue
			}
			for _, name := range Rules[i].Names {
				if precedence[name] == 1 {
					drop(name)
					changed = true // another setting may have required this one
				}
			}
		}
	}
	return file
}
