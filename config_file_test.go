package kvlane_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
)

// Open uses the values of a file for fields that the program leaves zero.
func TestOpenReadsAConfigurationFile(t *testing.T) {
	c := testConfig(t)
	dir := filepath.Join(t.TempDir(), "blocks")
	c.ConfigFile = filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("device: cuda\ncache-bytes: %d\nfile-dir: %s\nlog-bytes: 1GiB\nmetrics-addr: 127.0.0.1:1\n", c.Store.CacheBytes, dir)
	if err := os.WriteFile(c.ConfigFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Store.CacheBytes, c.Store.Dirs = 0, nil
	openEngine(t, c)
	if _, err := os.Stat(filepath.Join(dir, "kvlane.json")); err != nil {
		t.Errorf("the file's directory is not used: %v", err)
	}
	c.ConfigFile = filepath.Join(dir, "none")
	if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}
