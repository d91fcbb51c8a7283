package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/metadata/etcd"
)

func newClusterCommand() *cobra.Command {
	cmd := newGroupCommand("cluster", "Show the block servers of a cluster, and drain them", `cluster works with the members of a cluster, which are in etcd, in DNS or in a list (MEMBERS): etcd://HOST:PORT,.../CLUSTER,
dns+srv://_SERVICE._PROTOCOL.DOMAIN, or HOST:PORT[=WEIGHT],....`)
	cmd.AddCommand(newClusterStatusCommand(), newClusterDrainCommand())
	return cmd
}

// clusterStatus are the flags of a status.
type clusterStatus struct {
	credentials rpcCredentials
	etcd        etcdFlags
	timeout     time.Duration
	json        bool
}

func newClusterStatusCommand() *cobra.Command {
	var f clusterStatus
	cmd := &cobra.Command{
		Use:   "status MEMBERS",
		Short: "Print the members, their load, and what moves if one is drained",
		Long: `status asks each member for its figures, which are those of the client's tenant. SHARE is the member's part of the runs. If the member is drained,
these runs move to the others in proportion to their weights. BYTES is what then has to be computed again or read while it drains. HITS is the share of
requested blocks that the server had.`,
		Example: `  kvlane cluster status etcd://127.0.0.1:2379/kvlane
  kvlane cluster status 127.0.0.1:7440,127.0.0.1:7441 --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	f.credentials.register(fl)
	f.etcd.register(fl)
	fl.DurationVar(&f.timeout, "timeout", 2*time.Second, "time for the figures of a member")
	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

// memberStatus is a member with its figures.
type memberStatus struct {
	Name          string     `json:"name"`
	Address       string     `json:"address"`
	Weight        int        `json:"weight"`
	Share         float64    `json:"share"` // of the runs
	Zone          string     `json:"zone,omitempty"`
	State         string     `json:"state"` // up, draining or down
	Boot          string     `json:"boot,omitempty"`
	Joined        *time.Time `json:"joined,omitempty"`
	Blocks        uint64     `json:"blocks"`
	Bytes         uint64     `json:"bytes"`
	CapacityBytes uint64     `json:"capacity_bytes"`
	Hits          uint64     `json:"hits"`
	Misses        uint64     `json:"misses"`
	// MostShare is the largest share of another member if this one is drained.
	MostShare float64 `json:"largest_share_if_drained"`
	Error     string  `json:"error,omitempty"`
}

// clusterReport is the output of a status.
type clusterReport struct {
	Members []memberStatus `json:"members"`
	Epoch   uint64         `json:"epoch,omitempty"`
}

func (f *clusterStatus) run(ctx context.Context, w io.Writer, from string) error {
	creds, err := auth.NewClient(f.credentials.ClientOptions)
	if err != nil {
		return asUsage(err)
	}
	members, err := metadata.OpenMembers(f.etcd.with(ctx), from)
	if err != nil {
		return asUsage(err)
	}
	defer members.Close() //nolint:errcheck // it was only read
	list, _ := members.List()
	if len(list) == 0 {
		return members.Err()
	}
	r := clusterReport{Members: make([]memberStatus, len(list))}
	if v, ok := members.(metadata.Versioned); ok {
		r.Epoch = v.Epoch()
	}
	var asking sync.WaitGroup
	for i := range list {
		r.Members[i] = newMemberStatus(list, i)
		asking.Go(func() { r.Members[i].ask(ctx, creds, f.timeout) })
	}
	asking.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(w).Encode(r)
	}
	return r.print(w)
}

// newMemberStatus returns the status of a member without its figures.
func newMemberStatus(list []metadata.Member, at int) memberStatus {
	m := &list[at]
	s := memberStatus{Name: m.Name, Address: m.Address, Weight: m.Weight, Zone: m.Zone, State: "up"}
	if m.Draining {
		s.State = "draining"
	}
	if m.Boot != [16]byte{} {
		s.Boot = hex.EncodeToString(m.Boot[:])
	}
	if !m.Joined.IsZero() {
		s.Joined = &m.Joined
	}
	all, most := 0, 0 // weights
	for i := range list {
		if list[i].Draining {
			continue
		}
		all += list[i].Weight
		if i != at {
			most = max(most, list[i].Weight)
		}
	}
	own := m.Weight
	if m.Draining {
		own = 0
	}
	if all > 0 {
		s.Share = float64(own) / float64(all)
	}
	if rest := all - own; rest > 0 {
		s.MostShare = float64(most) / float64(rest)
	}
	return s
}

// ask adds the figures that the server has.
func (s *memberStatus) ask(ctx context.Context, creds *auth.Client, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client, err := blockio.NewClient(blockio.ClientOptions{Token: creds.Token(), Timeout: within, Retries: -1, Connected: s.greet, Dial: func(ctx context.Context) (net.Conn, error) {
		if c := creds.TLS(s.Address); c != nil {
			return (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", s.Address)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", s.Address)
	}})
	var st blockio.Stat
	if err == nil {
		st, err = client.Stat(ctx)
		err = errors.Join(err, client.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		s.State, s.Error = "down", err.Error()
		return
	}
	s.Blocks, s.Bytes, s.CapacityBytes, s.Hits, s.Misses = st.Blocks, st.Bytes, st.CapacityBytes, st.Hits, st.Misses
}

// greet adds the zone and the boot that the server has. Lists and DNS have neither.
func (s *memberStatus) greet(g blockio.Greeting) {
	s.Boot, s.Zone = hex.EncodeToString(g.Boot[:]), g.Zone
}

func (r *clusterReport) print(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	head := present.Things(int64(len(r.Members)), "member")
	if r.Epoch > 0 {
		head += fmt.Sprintf(", epoch %d", r.Epoch)
	}
	silent := 0
	for i := range r.Members {
		if r.Members[i].Error != "" {
			silent++
		}
	}
	if silent > 0 {
		p.Verdict(present.Warn, "%s; %s", head, counted(silent, "does not answer", "do not answer"))
	} else {
		p.Verdict(present.Good, "%s, all answer", head)
	}
	t := present.Table{Head: []string{"MEMBER", "STATE", "ZONE", "WEIGHT", "SHARE", "BLOCKS", "BYTES", "FULL", "HITS"}, Right: "lllrrrrrr"}
	for i := range r.Members {
		m := &r.Members[i]
		t.Row(present.Name(m.Name), m.State, orDash(present.Escape(m.Zone)), strconv.Itoa(m.Weight), present.Percent(m.Share),
			present.Count(int64(m.Blocks)), present.Bytes(int64(m.Bytes)), percentOf(m.Bytes, m.CapacityBytes), percentOf(m.Hits, m.Hits+m.Misses))
	}
	p.Table(&t)
	p.Gap()
	for i := range r.Members {
		switch m := &r.Members[i]; {
		case m.Error != "":
			p.Text("%s does not answer: %s", present.Name(m.Name), present.Escape(m.Error))
		case m.State == "up" && m.MostShare > 0:
			p.Text("If %s is drained, %s of the runs move, with %s; the largest share is then %s.",
				present.Name(m.Name), present.Percent(m.Share), present.Bytes(int64(m.Bytes)), present.Percent(m.MostShare))
		}
	}
	return p.Write(w)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func percentOf(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return present.Percent(float64(part) / float64(whole))
}

func newClusterDrainCommand() *cobra.Command {
	var flags etcdFlags
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain etcd://HOST:PORT,.../CLUSTER MEMBER",
		Short: "Mark a member as draining",
		Long: `drain marks a member: clients store no new blocks there, and still read the blocks that it has. Stop the server when its hits have become few. A
server that is interrupted marks itself.`,
		Example: `  kvlane cluster drain etcd://127.0.0.1:2379/kvlane 10.0.0.7:7440`,
		Args:    usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !strings.HasPrefix(args[0], etcd.Scheme+"://") {
				return usagef("drain a member of %s: only members in etcd can be marked; stop the server, and change the list", args[0])
			}
			o, err := flags.optionsOf(args[0])
			if err == nil {
				err = etcd.MarkDraining(cmd.Context(), o, args[1], !undo)
			}
			if err != nil {
				return err
			}
			state := "drains"
			if undo {
				state = "gets new blocks"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "member %s %s\n", present.Name(args[1]), state)
			return err
		},
	}
	cmd.Flags().SortFlags = false
	flags.register(cmd.Flags())
	cmd.Flags().BoolVar(&undo, "undo", false, "remove the mark")
	return cmd
}
