package calls

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvlane/kvlane/bench/rounds"
)

// Names of subjects whose calls have a connection with device memory, while another call of the
// same connection moves Fabric.Beside bytes there and back.
const (
	BesideBlocks = "beside-blocks" // by blocks of device memory
	BesideDirect = "beside-direct" // placed directly
)

// besideClient makes calls without an attachment beside long transfers.
type besideClient struct {
	*remoteClient
	name  string
	long  *remoteClient // of the same connection; its transfers are by blocks or direct
	alone bool          // no transfers

	moved int64         // bytes of all transfers
	took  time.Duration // of all rounds
}

// openBeside connects a subject of the load. It returns nil without Beside, and for attachments.
func (f *Fabric) openBeside(ctx context.Context, name string, l Load) (Subject, error) {
	if f.Beside == 0 || l.Attachment > 0 {
		return nil, nil
	}
	long := &remoteClient{f: f, name: GPU, load: Load{1, 0, f.Beside}, want: Pattern(f.Beside)}
	if name == BesideDirect {
		long.name = Direct
	}
	if err := long.open(ctx); err != nil {
		return nil, errors.Join(err, long.Close())
	}
	small := *long
	small.load, small.want, small.name = l, Pattern(l.Body), GPU
	small.closes = nil
	return &besideClient{remoteClient: &small, name: name, long: long, alone: name == GPU}, nil
}

// Name returns the name of the subject.
func (c *besideClient) Name() string { return c.name }

// Run implements rounds.Subject.
func (c *besideClient) Run(d time.Duration, t *rounds.Times) error {
	if c.alone {
		return c.remoteClient.Run(d, t)
	}
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	var errLong error
	began := time.Now()
	group.Go(func() {
		p := <-c.long.places
		c.long.places <- p
		for ctx.Err() == nil && errLong == nil {
			errLong = c.long.call(context.Background(), p, false)
			c.moved += c.long.load.Attachment
		}
	})
	err := c.remoteClient.Run(d, t)
	stop()
	group.Wait()
	c.took += time.Since(began)
	return errors.Join(err, errLong)
}

// Close ends client and server, and frees the memory.
func (c *besideClient) Close() error { return c.long.Close() }

// besideGBps returns the rate of the transfers in each direction, or zero.
func besideGBps(s Subject) float64 {
	c, ok := s.(*besideClient)
	if !ok || c.took == 0 {
		return 0
	}
	return float64(c.moved) / c.took.Seconds() / 1e9
}
