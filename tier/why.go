package tier

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kvlane/kvlane/block"
)

// Cause is the cause of the removal of a block from a tier. Directories store its number.
type Cause uint8

// The causes of removals.
const (
	CauseUnknown Cause = iota
	CauseBound         // the size bound of the tier or directory was exceeded
	CauseFull          // the disk was full below the bound
	CauseShare         // directories of several identities exceeded their common bound
	CauseGC            // a garbage collection down to a size, such as "kvlane store gc"
	CauseAge           // a removal of old blocks, such as "kvlane store rm --max-age"
	CauseRequest       // a removal of selected blocks, such as "kvlane store rm --key"
	CauseDamage        // the block failed a check and was moved to quarantine
	CauseProgram       // Tier.Delete
	causes
)

var causeNames = [causes]struct{ name, text string }{
	{"unknown", "an unknown cause"},
	{"bound", "the size bound"},
	{"full_disk", "a full disk"},
	{"shared_bound", "the bound shared with other identities"},
	{"gc", "garbage collection"},
	{"age", "its age"},
	{"request", "a request"},
	{"damage", "damage"},
	{"program", "the program"},
}

func (c Cause) known() Cause {
	if c >= causes {
		return CauseUnknown
	}
	return c
}

// String returns the cause as it follows "removed by".
func (c Cause) String() string { return causeNames[c.known()].text }

// MarshalText returns the name of the cause in JSON.
func (c Cause) MarshalText() ([]byte, error) { return []byte(causeNames[c.known()].name), nil }

// Removal is the removal of a block from a tier.
type Removal struct {
	Time  time.Time `json:"time"`
	Cause Cause     `json:"cause"`
	// PID and Process are the id of the process that removed the block, on its host, and the start
	// of its name. They are zero if it is unknown.
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"`
}

// String returns "removed by the size bound at TIME, process PID (NAME)".
func (r *Removal) String() string {
	s := fmt.Sprintf("removed by %s at %s", r.Cause, timeText(r.Time))
	if r.PID != 0 {
		s += fmt.Sprintf(", process %d", r.PID)
	}
	if r.Process != "" {
		s += " (" + r.Process + ")"
	}
	return s
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// MarshalText returns the name of the state in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Explanation states why a tier has a block or not.
type Explanation struct {
	State State `json:"state"`
	// Place is the directory, block server or bucket that has the block, or should have it. It is
	// empty for memory.
	Place string `json:"place,omitempty"`
	// Reason is the reason for Place, or for State Failed. It may be empty.
	Reason string `json:"reason,omitempty"`
	// Stored is the time when the block was stored, or of a later write next to it in a log. Used
	// is the time of its last recorded use. Zero: unknown.
	Stored time.Time `json:"stored,omitzero"`
	Used   time.Time `json:"used,omitzero"`
	// Removed is the last recorded removal of a block that is not Ready, or nil.
	Removed *Removal `json:"removed,omitempty"`
	// Recorded is the time of the oldest recorded removal of any block: earlier removals are not
	// known. It is zero if none is recorded.
	Recorded time.Time `json:"recorded,omitzero"`
	// Refused is the reason why the tier did not store the block when it was last dumped, after
	// Removed, or "".
	Refused string `json:"refused,omitempty"`
	// Error is set if the tier or server does not answer. State is then Absent.
	Error string `json:"error,omitempty"`
}

// String returns a clause without a subject: "was removed by the size bound at TIME".
func (e *Explanation) String() string { return e.clause("", "") }

// clause returns String, with the name of the tier after the verb. in and from are "" or end with
// the name.
func (e *Explanation) clause(in, from string) string {
	var s string
	switch {
	case e.State == Ready:
		s = "is stored" + in
		if !e.Stored.IsZero() {
			s += " since " + timeText(e.Stored)
		}
		if !e.Used.IsZero() {
			s += ", last used " + timeText(e.Used)
		}
	case e.Error != "":
		s = "is not found" + in + ": " + e.Error
	case e.State == Filling:
		s = "is being stored" + in
	case e.State == Failed:
		s = "is damaged" + in
	case e.Refused != "":
		s = "was not stored" + in + " when it was last dumped: " + e.Refused
	case e.Removed != nil:
		s = "was removed" + from + strings.TrimPrefix(e.Removed.String(), "removed")
	case e.Recorded.IsZero():
		s = "is not stored" + in + ", and no removal is recorded"
	default:
		s = "was never stored" + in + ", or removed before " + timeText(e.Recorded)
	}
	if e.Reason != "" {
		s += "; " + e.Reason
	}
	return s
}

// Explainer is a Tier that explains why it has blocks or not.
type Explainer interface {
	// Explain sets out[i] to the explanation of keys[i]. It does not count as a use or a miss. The
	// slices have equal lengths.
	Explain(ctx context.Context, keys []block.Key, out []Explanation) error
}

// Explain explains the blocks of any tier. Of a tier that is no Explainer it returns states only.
func Explain(ctx context.Context, t Tier, keys []block.Key) ([]Explanation, error) {
	out := make([]Explanation, len(keys))
	if e, ok := t.(Explainer); ok {
		return out, e.Explain(ctx, keys, out)
	}
	states := make([]State, len(keys))
	if err := t.Lookup(ctx, keys, states); err != nil {
		return out, err
	}
	for i, s := range states {
		out[i].State = s
	}
	return out, nil
}

// Why states where a block is stored, or why it is not.
type Why struct {
	Key block.Key `json:"-"`
	// Other is set if the key belongs to no page group of the store: it has another identity.
	Other bool `json:"other_identity,omitempty"`
	// Computed is the last time at which the store advised to compute the block, because loading it
	// is slower (see package store/admission). It is zero if no such time is recorded.
	Computed time.Time `json:"advised_to_compute,omitzero"`
	Tiers    []InTier  `json:"tiers"` // fast to slow
}

// InTier is the explanation of one tier.
type InTier struct {
	Tier string `json:"tier"`
	Explanation
}

// Stored reports whether a tier has the block.
func (w *Why) Stored() bool { return w.first() >= 0 }

// first returns the index of the first tier that has the block, or -1.
func (w *Why) first() int {
	for i := range w.Tiers {
		if w.Tiers[i].State == Ready {
			return i
		}
	}
	return -1
}

// String returns a clause without a subject, such as "was removed from tier file by the size bound
// at TIME". For a stored block it names the tiers that have it. Otherwise it is the explanation of
// the slowest tier that knows more than that the block is absent.
func (w *Why) String() string {
	if w.Other {
		return "is of no page group of this store: the key has another identity"
	}
	at := w.first()
	stored := at >= 0
	for i := len(w.Tiers) - 1; i >= 0 && at < 0; i-- {
		if t := &w.Tiers[i]; t.Removed != nil || t.Refused != "" || t.Error != "" || t.State != Absent {
			at = i
		}
	}
	if at < 0 {
		at = len(w.Tiers) - 1
	}
	if at < 0 {
		return "is in no tier"
	}
	name := " tier " + w.Tiers[at].Tier
	s := w.Tiers[at].clause(" in"+name, " from"+name)
	if !stored {
		return s
	}
	for i := at + 1; i < len(w.Tiers); i++ {
		if w.Tiers[i].State == Ready {
			s += "; also in tier " + w.Tiers[i].Tier
		}
	}
	if !w.Computed.IsZero() {
		s += "; the store advised to compute it at " + timeText(w.Computed) + ", because loading it is slower"
	}
	return s
}

// Verdict describes the blocks of a prompt in one sentence: the length of its stored prefix, and
// why the next block is missing.
func Verdict(blocks []Why) string {
	n, all := 0, 0
	for i := range blocks {
		if blocks[i].Stored() {
			if all++; n == i {
				n++
			}
		}
	}
	switch {
	case len(blocks) == 0:
		return "there is no whole block"
	case len(blocks) == 1:
		return "the block " + blocks[0].String()
	case n == len(blocks):
		return fmt.Sprintf("all %d blocks are stored", n)
	}
	s := fmt.Sprintf("the first %d of %d blocks are stored", n, len(blocks))
	if n == 0 {
		s = fmt.Sprintf("the first of %d blocks is not stored", len(blocks))
	}
	s += fmt.Sprintf("; block %d %s", n, blocks[n].String())
	if all > n {
		s += fmt.Sprintf("; stored too: %d of the later blocks, but a prompt needs all blocks before them", all-n)
	}
	return s
}
