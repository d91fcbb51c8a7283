package capi

import (
	"reflect"

	"github.com/kvlane/kvlane"
	devices "github.com/kvlane/kvlane/device"
)

// Engine returns the engine of a handle.
func (l *Library) Engine(h Handle) (*kvlane.Engine, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return nil, err
	}
	return e.Engine, nil
}

// Registrar tells NICs of memory.
type Registrar = registrar

// RegisterHostBy is RegisterHost with other NICs than the engine's.
func (l *Library) RegisterHostBy(h Handle, nics Registrar, b []byte) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return l.registerHost(e, nics, b)
}

// RegisterDeviceBy is RegisterDevice with other NICs than the engine's.
func (l *Library) RegisterDeviceBy(h Handle, nics Registrar, address uint64, bytes int64) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return l.registerDevice(e, nics, address, bytes)
}

// Live returns how many handles there are.
func (l *Library) Live() int {
	l.handles.mu.RLock()
	defer l.handles.mu.RUnlock()
	return len(l.handles.all)
}

// Snake is snake.
func Snake(name string) string { return snake(name) }

// ConfigKeys returns the keys of a configuration, those of objects included. Geometries of page
// groups have the keys of a model.
func ConfigKeys() []string { return keysOf("", reflect.TypeFor[kvlane.Config]()) }

func keysOf(path string, t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("config")
		if key == "" {
			continue
		}
		key = path + key
		keys = append(keys, key)
		t := f.Type
		if t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct && key != "groups.geometry" {
			keys = append(keys, keysOf(key+".", t)...)
		}
	}
	return keys
}

// AllocatorDevice returns the device of an allocator, which the test closes.
func (l *Library) AllocatorDevice(index int) devices.Sharer {
	d, ok := l.allocators.all[index].dev.(devices.Sharer)
	if !ok {
		panic("capi: the device of an allocator shares no memory")
	}
	return d
}
