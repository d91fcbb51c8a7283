package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
)

// Registration keeps a member in the list until Close, and registers it again after a lost lease.
type Registration struct {
	o      Options
	c      *connection
	cancel context.CancelFunc
	done   chan struct{}
	first  chan struct{} // closed after the first attempt

	writing sync.Mutex // serializes puts

	mu      sync.Mutex
	member  metadata.Member
	drained bool             // by Drain, so MarkDraining does not remove the mark
	lease   clientv3.LeaseID // of the key, or of a put in progress; zero: not registered
	err     error
	stats   RegistrationStats
}

// RegistrationStats has counters since Register.
type RegistrationStats struct {
	Registered int64 // times
	Lost       int64 // times that the lease or the key was lost
	Failures   int64 // attempts that failed
}

var (
	errLost  = errors.New("the lease or the key is lost")
	errBegun = errors.New("the first attempt has not ended")
)

// Register registers a member in the background. It waits for the first attempt, or for the end of
// ctx. Err then has the error; attempts go on until Close. It returns ErrInvalid for wrong options
// and for a member that is not valid.
func Register(ctx context.Context, o Options, member metadata.Member) (*Registration, error) {
	if _, err := metadata.NewStaticMembers([]metadata.Member{member}); err != nil {
		return nil, err
	}
	if !validName(member.Name) {
		return nil, fmt.Errorf("register member %q: the name must have letters, digits, and - _ . : [ ]: %w", member.Name, errdefs.ErrInvalid)
	}
	c, err := newConnection(o)
	if err != nil {
		return nil, err
	}
	member.Joined = member.Joined.UTC().Round(0)
	r := &Registration{o: c.o, c: c, member: member, err: c.o.failed("register in", errBegun), done: make(chan struct{}), first: make(chan struct{})}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	go r.run(background)
	select {
	case <-r.first:
	case <-ctx.Done():
	}
	return r, nil
}

// Err returns nil if the member is registered, or else the reason.
func (r *Registration) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Stats returns the counters.
func (r *Registration) Stats() RegistrationStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Drain marks the member as draining. The mark stays, also if the member is registered again.
func (r *Registration) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.member.Draining, r.drained = true, true
	lease := r.lease
	r.mu.Unlock()
	if lease == clientv3.NoLease {
		return nil // it is registered as draining, if at all
	}
	_, err := r.put(ctx, lease)
	return err
}

// Close ends the registration: the member leaves at once, or after its lease's time if etcd cannot
// be reached until ctx ends. It returns the error of that.
func (r *Registration) Close(ctx context.Context) error {
	r.cancel()
	<-r.done
	r.mu.Lock()
	lease := r.lease
	r.lease = clientv3.NoLease
	r.mu.Unlock()
	var err error
	if lease != clientv3.NoLease {
		err = r.revoke(ctx, lease)
	}
	return errors.Join(err, r.c.close())
}

func (r *Registration) revoke(ctx context.Context, lease clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Within)
	defer cancel()
	client, err := r.c.get(ctx)
	if err == nil {
		_, err = client.Revoke(ctx, lease)
	}
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // without its lease it has left
		return r.o.failed("leave", err)
	}
	return nil
}

// run registers the member again and again.
func (r *Registration) run(ctx context.Context) {
	defer close(r.done)
	opened := false
	for pause := firstPause; ctx.Err() == nil; {
		revision, err := r.register(ctx)
		if !opened {
			close(r.first)
			opened = true
		}
		if err == nil {
			pause = firstPause
			err = r.keep(ctx, revision)
		}
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.err = err
		if errors.Is(err, errLost) {
			r.stats.Lost++
		} else {
			r.stats.Failures++
		}
		r.mu.Unlock()
		sleep(ctx, pause)
		pause = min(2*pause, maxPause)
	}
}

// register puts the member with a new lease. It returns the revision of the put.
func (r *Registration) register(ctx context.Context) (revision int64, err error) {
	within, cancel := context.WithTimeout(ctx, r.o.Within)
	defer cancel()
	client, err := r.c.get(within)
	var lease *clientv3.LeaseGrantResponse
	if err == nil {
		lease, err = client.Grant(within, int64((r.o.Lease+time.Second-1)/time.Second))
	}
	if err == nil {
		// From now on Drain puts the member too, and Close revokes the lease.
		r.mu.Lock()
		r.lease = lease.ID
		r.mu.Unlock()
		revision, err = r.put(within, lease.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			r.lease = clientv3.NoLease
		}
		r.err = r.o.failed("register in", err)
		return 0, r.err
	}
	r.err = nil
	r.stats.Registered++
	return revision, nil
}

// put puts the member as it is now. It returns the revision.
func (r *Registration) put(ctx context.Context, lease clientv3.LeaseID) (int64, error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	member := r.member
	r.mu.Unlock()
	text, err := encode(&member)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Within)
	defer cancel()
	client, err := r.c.get(ctx)
	if err != nil {
		return 0, err
	}
	answer, err := client.Put(ctx, r.key(), text, clientv3.WithLease(lease))
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

func (r *Registration) key() string { return r.o.prefix() + r.member.Name }

// keep keeps the lease alive. It returns errLost when the lease or the key, put at a revision, is
// lost.
func (r *Registration) keep(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	lease := r.lease
	r.mu.Unlock()
	client, err := r.c.get(ctx)
	if err != nil {
		return err
	}
	alive, err := client.KeepAlive(ctx, lease)
	if err != nil {
		return r.o.failed("keep the lease in", err)
	}
	changes := make(chan []byte)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { r.watch(ctx, client, revision+1, changes) })
	for {
		select {
		case _, ok := <-alive:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !ok {
				return r.lost()
			}
		case value := <-changes:
			if value == nil {
				return r.lost()
			}
			r.adopt(value)
		}
	}
}

// watch sends the values of the member's key since a revision to changes, and nil for a key that is
// deleted, until ctx ends. After a failure, such as a compaction, it reads the key. It blocks while
// etcd cannot be reached.
func (r *Registration) watch(ctx context.Context, client *clientv3.Client, from int64, changes chan<- []byte) {
	send := func(value []byte) {
		select {
		case changes <- value:
		case <-ctx.Done():
		}
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		for w := range client.Watch(ctx, r.key(), clientv3.WithRev(from)) {
			if w.Err() != nil {
				break // the watch has ended
			}
			for _, e := range w.Events {
				if e.Type == mvccpb.DELETE {
					send(nil)
				} else {
					send(e.Kv.Value)
				}
			}
			from, pause = w.Header.Revision+1, firstPause
		}
		if sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		within, cancel := context.WithTimeout(ctx, r.o.Within)
		now, err := client.Get(within, r.key())
		cancel()
		switch {
		case err != nil:
			continue
		case len(now.Kvs) == 0:
			send(nil)
		default:
			send(now.Kvs[0].Value)
		}
		from = now.Header.Revision + 1
	}
}

// adopt keeps the mark that MarkDraining set or removed.
func (r *Registration) adopt(value []byte) {
	m, err := decode(r.member.Name, value)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && m.Boot == r.member.Boot {
		r.member.Draining = m.Draining || r.drained
	}
}

func (r *Registration) lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease = clientv3.NoLease
	return r.o.failed("stay in", errLost)
}

// MarkDraining sets or removes the draining mark of a member. It returns ErrNotFound if the cluster
// has no such member.
func MarkDraining(ctx context.Context, o Options, name string, draining bool) (err error) {
	c, err := newConnection(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	ctx, cancel := context.WithTimeout(ctx, c.o.Within)
	defer cancel()
	client, err := c.get(ctx)
	if err != nil {
		return err
	}
	key := o.prefix() + name
	for {
		r, err := client.Get(ctx, key)
		if err != nil {
			return o.failed("read member "+name+" of", err)
		}
		if len(r.Kvs) == 0 {
			return o.failed("drain member "+name+" of", errdefs.ErrNotFound)
		}
		m, err := decode(name, r.Kvs[0].Value)
		if err != nil {
			return err
		}
		m.Draining = draining
		text, err := encode(&m)
		if err != nil {
			return err
		}
		t, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", r.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(key, text, clientv3.WithIgnoreLease())).Commit()
		if err != nil {
			return o.failed("drain member "+name+" of", err)
		}
		if t.Succeeded {
			return nil
		}
	}
}
