package replay

import (
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// contentOf42 is the beginning of plane 3 of the block with hash id 42.
const contentOf42 = "245b48441915e2990a5b42e9"

// wholeTrace is the conversation trace of the Mooncake FAST'25 release.
const wholeTrace = "testdata/mooncake-conversation.jsonl.gz"
