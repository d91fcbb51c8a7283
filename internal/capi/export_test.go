package capi

import (
	"reflect"

	"github.com/kvlane/kvlane"
	devices "github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// Engine returns the engine of a handle.
func (l *Library) Engine(h Handle) (*kvlane.Engine, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return nil, err
	}
	return e.Engine, nil
}

// Registrar registers memory with NICs.
type Registrar = registrar

// RegisterHostBy is RegisterHost with the given NICs.
func (l *Library) RegisterHostBy(h Handle, nics Registrar, b []byte) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return l.registerHost(e, nics, b)
}

// RegisterDeviceBy is RegisterDevice with the given NICs.
func (l *Library) RegisterDeviceBy(h Handle, nics Registrar, address uint64, bytes int64) (Handle, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return 0, err
	}
	return l.registerDevice(e, nics, address, bytes)
}

// OpenStreamBy is OpenStream with a stream that replaces that of the engine.
func (l *Library) OpenStreamBy(h Handle, replace func(stream.Stream) stream.Stream) (Handle, error) {
	h, err := l.OpenStream(h)
	if err != nil {
		return 0, err
	}
	c, err := find[*copier](&l.handles, h)
	if err != nil {
		return 0, err
	}
	c.stream = replace(c.stream)
	return h, nil
}

// Live returns the number of handles.
func (l *Library) Live() int {
	l.handles.mu.RLock()
	defer l.handles.mu.RUnlock()
	return len(l.handles.all)
}

// Snake converts a Go name to snake case.
func Snake(name string) string { return snake(name) }

// ConfigKeys returns the keys of a configuration, including those of nested objects. The geometries
// of page groups have the keys of a model.
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

// AllocatorDevice returns the device of an allocator. The test closes it.
func (l *Library) AllocatorDevice(index int) devices.Sharer {
	d, ok := l.allocators.all[index].dev.(devices.Sharer)
	if !ok {
		panic("capi: the device of an allocator is no device.Sharer")
	}
	return d
}
