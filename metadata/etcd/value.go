package etcd

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
)

const maxValueBytes = 4 << 10

// value is the value of a member's key. Decoding ignores unknown fields.
type value struct {
	Address  string    `json:"address"`
	Weight   int       `json:"weight"`
	Zone     string    `json:"zone,omitempty"`
	Draining bool      `json:"draining,omitempty"`
	Boot     string    `json:"boot,omitempty"` // 32 hexadecimal digits
	Joined   time.Time `json:"joined,omitzero"`
}

func encode(m *metadata.Member) (string, error) {
	v := value{Address: m.Address, Weight: m.Weight, Zone: m.Zone, Draining: m.Draining, Joined: m.Joined}
	if m.Boot != [16]byte{} {
		v.Boot = hex.EncodeToString(m.Boot[:])
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// decode returns the member of a key. It returns ErrInvalid for a value that is not valid.
func decode(name string, b []byte) (metadata.Member, error) {
	var v value
	if len(b) > maxValueBytes {
		return metadata.Member{}, fmt.Errorf("member %q with a value of %d bytes: %w", name, len(b), errdefs.ErrInvalid)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return metadata.Member{}, fmt.Errorf("member %q: %w: %w", name, errdefs.ErrInvalid, err)
	}
	m := metadata.Member{Name: name, Address: v.Address, Weight: v.Weight, Zone: v.Zone, Draining: v.Draining, Joined: v.Joined.UTC()}
	if v.Boot != "" {
		boot, err := hex.DecodeString(v.Boot)
		if err != nil || len(boot) != len(m.Boot) {
			return metadata.Member{}, fmt.Errorf("member %q: boot %q: %w", name, v.Boot, errdefs.ErrInvalid)
		}
		m.Boot = [16]byte(boot)
	}
	_, err := metadata.NewStaticMembers([]metadata.Member{m})
	return m, err
}
