package published

import (
	"flag"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

var rewrite = flag.Bool("rewrite", false, "write the section and the charts again")

func TestMain(m *testing.M) { testkit.Main(m) }
