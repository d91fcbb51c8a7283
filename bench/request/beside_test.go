package request

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// fills is a product that fills device memory.
type fills struct {
	dev    device.Device
	queue  device.Queue
	memory *mem.Region
}

func openFills(_ context.Context, dev device.Device) (Product, error) {
	f := &fills{dev: dev}
	var err error
	if f.memory, err = dev.Alloc(64<<10, device.AllocOptions{}); err == nil {
		f.queue, err = dev.OpenQueue(device.QueueOptions{})
	}
	return f, err
}

func (f *fills) Describe() string              { return "fills" }
func (f *fills) Operations() float64           { return float64(f.memory.Len()) }
func (f *fills) Record() (device.Event, error) { return f.queue.Record() }
func (f *fills) Close() error {
	return errors.Join(f.queue.Close(context.Background()), f.dev.Free(f.memory))
}

func (f *fills) Enqueue(n int) error {
	for range n {
		if err := f.queue.Fill(mem.All(f.memory), 1); err != nil {
			return err
		}
	}
	return nil
}

func TestRequestsBesideAProduct(t *testing.T) {
	o := tiny()
	o.Forms = []Form{Layers}
	o.Blocks, o.Requests, o.Pairs, o.OpenProduct = []int{2}, []int{1}, 2, openFills
	testkit.Grow(t, 10*time.Millisecond, func(window time.Duration) error {
		o.Window = window
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.ProductCost == nil || !strings.HasPrefix(r.ProductCost.What, "fills") || len(r.ProductCost.Losses) != 3 {
			t.Fatalf("beside %+v", r.ProductCost)
		}
		var moved float64
		for _, l := range r.ProductCost.Losses {
			moved += l.GBps // a window may be too short for a request to end in it
			if l.AloneTFLOPS <= 0 || l.BesideTFLOPS <= 0 {
				return fmt.Errorf("no product ended: %+v", l)
			}
			if l.Low > l.Loss || l.High < l.Loss || l.Blocks != 2 || l.Requests != 2 {
				t.Errorf("loss %+v", l)
			}
		}
		if moved <= 0 {
			return errors.New("no request ended beside the product")
		}
		return nil
	})
	o.OpenProduct = func(context.Context, device.Device) (Product, error) { return nil, errors.New("no product") }
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("a product that does not open is no failure")
	}
}
