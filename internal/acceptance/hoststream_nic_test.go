package acceptance_test

import (
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/gdr"
)

func bySoftNIC(c *kvlane.Config) {
	c.Store.GDR, c.RDMA.Provider = kvlane.GDRRequire, gdr.Soft
}

func TestDumpByNICComesAfterRecordedWork(t *testing.T) { dumpAfterWork(t, bySoftNIC, false) }

func TestLoadsByNICWithParkedStreams(t *testing.T) { withParked(t, parked(bySoftNIC), 32) }
