package device_test

import (
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/device"
)

// entryOf makes an entry of random words with so many pieces.
func entryOf(rng *rand.Rand, pieces int) (w device.ResidentWords) {
	for i := range w {
		w[i] = rng.Uint64()
	}
	w[device.ResidentPieces] = uint64(pieces)
	return w
}

// used reports whether word i of an entry with so many pieces says something, but for the check.
func used(i, pieces int) bool {
	switch {
	case i == device.ResidentLast/8:
		return false
	case i < device.ResidentLine/8:
		return true
	}
	return pieces > device.ResidentFirst && i < device.ResidentPiece(pieces-1)+3
}

// TestResidentCheckCoversWhatIsUsed: whichever word arrives late, of however many pieces, the check tells; and what is left
// over from an entry before does not matter.
func TestResidentCheckCoversWhatIsUsed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for pieces := range device.ResidentInline + 1 {
		w := entryOf(rng, pieces)
		b := make([]byte, device.ResidentEntryBytes)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		check := w.Put(b)
		for i := range device.ResidentEntryWords {
			if used(i, pieces) && binary.LittleEndian.Uint64(b[8*i:]) != w[i] {
				t.Errorf("%d pieces: word %d was not put", pieces, i)
			}
			if i == device.ResidentPieces {
				continue // says what else counts
			}
			for _, late := range []uint64{0, w[i] ^ 1, w[i] + 4096, rng.Uint64()} {
				binary.LittleEndian.PutUint64(b[8*i:], late)
				if got := device.ResidentCheck(b); used(i, pieces) && got == check {
					t.Errorf("%d pieces: word %d is %#x, not %#x, and the check fits", pieces, i, late, w[i])
				} else if past := i >= 2*((device.ResidentPiece(max(pieces, device.ResidentFirst))+1)/2); past && got != check {
					t.Errorf("%d pieces: the check depends on word %d", pieces, i)
				}
			}
			binary.LittleEndian.PutUint64(b[8*i:], w[i])
		}
		for other := range device.ResidentInline + 2 {
			binary.LittleEndian.PutUint64(b[8*device.ResidentPieces:], uint64(other))
			if other != pieces && device.ResidentCheck(b) == check {
				t.Errorf("the check of %d pieces fits %d", pieces, other)
			}
		}
	}
}

// TestResidentCheckIsWhatItSays computes it as it is described, for who writes the other side.
func TestResidentCheckIsWhatItSays(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for pieces := range device.ResidentInline + 1 {
		w := entryOf(rng, pieces)
		b := make([]byte, device.ResidentEntryBytes)
		got := w.Put(b)
		words := device.ResidentLine / 8
		if pieces > device.ResidentFirst {
			words += 3 * (pieces - device.ResidentFirst)
		}
		w[device.ResidentLast/8] = 0
		var want uint64
		for i := 0; 2*i < words; i++ {
			step := uint64(0x9e3779b97f4a7c15)
			x := w[2*i] + uint64(2*i+1)*step
			y := w[2*i+1] ^ 0xbf58476d1ce4e5b9
			p := new(big.Int).Mul(new(big.Int).SetUint64(x), new(big.Int).SetUint64(y))
			low := new(big.Int).And(p, new(big.Int).SetUint64(1<<64-1))
			want += low.Uint64() ^ p.Rsh(p, 64).Uint64()
		}
		if got != want {
			t.Errorf("%d pieces: check %#x, want %#x", pieces, got, want)
		}
	}
}

func TestResidentPiecesLieWhereTheySay(t *testing.T) {
	if device.ResidentInline != 20 || device.ResidentPiece(device.ResidentInline-1)+3 != device.ResidentEntryWords {
		t.Errorf("%d pieces end at word %d", device.ResidentInline, device.ResidentPiece(device.ResidentInline-1)+3)
	}
	taken := map[int]bool{0: true, 1: true, device.ResidentPieces: true, device.ResidentLast / 8: true}
	for i := range device.ResidentInline {
		for k := range 3 {
			at := device.ResidentPiece(i) + k
			if taken[at] {
				t.Errorf("piece %d overlaps word %d", i, at)
			}
			taken[at] = true
		}
	}
}
