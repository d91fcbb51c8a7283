package kvlane

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/statuspage"
	"github.com/kvlane/kvlane/store"
)

// noted returns hooks that also add their events to j.
func noted(h store.Hooks, j *journal.Journal) store.Hooks {
	out := h
	out.Corrupt = func(tier string, key Key, err error) {
		j.Failed("damaged block in tier "+tier, err)
		if h.Corrupt != nil {
			h.Corrupt(tier, key, err)
		}
	}
	out.BadCopy = func(key Key, err error) {
		j.Failed("bad copy to a page", err)
		if h.BadCopy != nil {
			h.BadCopy(key, err)
		}
	}
	out.LeftOut = func(tier string, key Key, err error) {
		j.Failed("block not stored in tier "+tier, err)
		if h.LeftOut != nil {
			h.LeftOut(tier, key, err)
		}
	}
	out.BatchFailed = func(direction string, err error) {
		j.Failed("failed "+direction+" batch", err)
		if h.BatchFailed != nil {
			h.BatchFailed(direction, err)
		}
	}
	out.StreamReopened = func(direction string, err error) {
		j.Failed("reopened "+direction+" stream", err)
		if h.StreamReopened != nil {
			h.StreamReopened(direction, err)
		}
	}
	out.Fallback = func(tier string, key Key, err error) {
		j.Failed("continued without tier "+tier, err)
		if h.Fallback != nil {
			h.Fallback(tier, key, err)
		}
	}
	out.LoadExpired = func(err error) {
		j.Failed("load expired", err)
		if h.LoadExpired != nil {
			h.LoadExpired(err)
		}
	}
	out.Ended = func(operation string, blocks int, took time.Duration, err error) {
		j.Took(operation, blocks, took, err)
		if h.Ended != nil {
			h.Ended(operation, blocks, took, err)
		}
	}
	return out
}

// list returns the configuration for the status page: what is set, by its names in the C library's
// configuration.
func (c *Config) list() []statuspage.Setting {
	var all []statuspage.Setting
	listFields(reflect.ValueOf(c).Elem(), "", &all)
	return all
}

// listFields adds the fields that have a name and are not zero.
func listFields(v reflect.Value, prefix string, all *[]statuspage.Setting) {
	for i := range v.NumField() {
		name, field := v.Type().Field(i).Tag.Get("config"), v.Field(i)
		switch {
		case name == "" || field.IsZero():
		case field.Kind() == reflect.Struct:
			listFields(field, prefix+name+".", all)
		case field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct:
			for k := range field.Len() {
				listFields(field.Index(k), fmt.Sprintf("%s%s[%d].", prefix, name, k), all)
			}
		default:
			*all = append(*all, statuspage.Setting{Name: prefix + name, Value: strings.Trim(fmt.Sprint(field.Interface()), "[]")})
		}
	}
}
