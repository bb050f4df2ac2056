package pgtest_test

import (
	"testing"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
