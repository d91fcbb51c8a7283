package blockhost

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
)

// A root that is locked is refused with the name of its holder. It can be locked again afterwards.
func TestRootIsLocked(t *testing.T) {
	root := filepath.Join(t.TempDir(), "blocks")
	for _, holder := range []string{"process 12345, which listens at 127.0.0.1:7440", "process 7"} {
		unlock, err := LockRoot(root, holder)
		must(t, err)
		_, err = LockRoot(root, "another")
		wantErr(t, "a locked root", err, errdefs.ErrBusy)
		if !strings.Contains(err.Error(), "("+holder+")") {
			t.Errorf("the error does not name the holder: %v", err)
		}
		must(t, unlock())
	}
}
