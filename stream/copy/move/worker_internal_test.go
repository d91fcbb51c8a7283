package move

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
)

// slowLauncher is a queue whose driver takes its time with a launch.
type slowLauncher struct {
	device.Launcher
	asked, let chan struct{}
}

func (l slowLauncher) Launch(k *device.Kernel) error {
	close(l.asked)
	<-l.let
	return l.Launcher.Launch(k)
}

// TestDefectNobodyWaitsForALaunch: one goroutine launches the kernel and the driver takes its time. Those who post or ask
// meanwhile do not stand behind it, where no context could call them back.
func TestDefectNobodyWaitsForALaunch(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorker(dev, ResidentOptions{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	slow := slowLauncher{w.launcher, make(chan struct{}), make(chan struct{})}
	w.launcher = slow
	launched := make(chan error, 1)
	go func() { launched <- w.ensure() }()
	<-slow.asked
	for name, call := range map[string]func() (bool, error){
		"ask the driver": func() (bool, error) { return w.landed(1, true) },
		"ask":            func() (bool, error) { return w.landed(1, false) },
		"post":           func() (bool, error) { return false, w.ensure() },
	} {
		said := make(chan error, 1)
		go func() {
			done, err := call()
			if done {
				err = errors.New("an entry was done that no kernel could take")
			}
			said <- err
		}()
		select {
		case err := <-said:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testkit.Patience()):
			t.Errorf("%s: it waits for the launch", name)
		}
	}
	close(slow.let)
	failed, err := w.close(context.Background())
	if err := errors.Join(<-launched, failed, err, w.free(dev), dev.Close()); err != nil {
		t.Error(err)
	}
}
