package capi

import "github.com/kvlane/kvlane"

// Engine returns the engine of a handle.
func (l *Library) Engine(h Handle) (*kvlane.Engine, error) {
	e, err := find[*engine](&l.handles, h)
	if err != nil {
		return nil, err
	}
	return e.Engine, nil
}

// Live returns how many handles there are.
func (l *Library) Live() int {
	l.handles.mu.RLock()
	defer l.handles.mu.RUnlock()
	return len(l.handles.all)
}

// Snake is snake.
func Snake(name string) string { return snake(name) }
