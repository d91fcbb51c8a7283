package replay

import (
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// wholeTrace is the conversation trace of the Mooncake FAST'25 release.
const wholeTrace = "testdata/mooncake-conversation.jsonl.gz"
