package pgtest_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// needNetns skips the test only where the kernel itself refuses a namespace: a
// mistake of ours in NetnsAvailable must not pass for that.
func needNetns(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "unshare", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("no network namespaces on this machine: %v: %s", err, out)
	}
	require.NoError(t, pgtest.NetnsAvailable(t.Context()))
}

func TestNetnsBlackHoleIsSilent(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	needNetns(t)
	n, err := pgtest.NewNetwork(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	s := pgtest.New(t, pgtest.Listen(n.ServerIP()))
	h, err := n.NewHost(ctx)
	require.NoError(t, err)
	config, err := pgx.ParseConfig(s.ViaHost(n.ServerIP(), ""))
	require.NoError(t, err)
	config.DialFunc = h.Dial
	conn, err := pgx.ConnectConfig(ctx, config)
	require.NoError(t, err)
	var client string
	require.NoError(t, conn.QueryRow(ctx, "SELECT host(inet_client_addr())").Scan(&client))
	if s.Container() == "" { // Docker may show its own address
		require.Equal(t, h.IP(), client)
	}

	require.NoError(t, h.BlackHole(ctx))
	answered := make(chan error, 1)
	go func() { answered <- simple(ctx, conn, "SELECT 1") }()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = pgx.ConnectConfig(short, config)
	require.True(t, pgconn.Timeout(err), "neither connected nor refused: %v", err)
	require.Empty(t, answered, "neither an answer nor a reset")
	require.NoError(t, h.Heal(ctx))
	require.NoError(t, <-answered)
	require.NoError(t, conn.Close(ctx))

	out, err := h.Command(exec.CommandContext(ctx, "ip", "-4", "addr")).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), h.IP())
}

func TestNetworkIsGoneWithItsProcess(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	needNetns(t)
	p := pgtest.SpawnRole(t, "network")
	ip, err := p.Expect(ctx, "network")
	require.NoError(t, err)
	name := "pgtest-" + strings.Split(ip, ".")[1]
	namespaces := func() []string {
		found, err := filepath.Glob("/run/netns/" + name + "*")
		require.NoError(t, err)
		return found
	}
	require.Len(t, namespaces(), 2)
	require.NoError(t, p.Kill())
	pgtest.Eventually(t, "the namespaces to go", func() bool {
		_, err := os.Stat("/sys/class/net/" + name)
		return len(namespaces()) == 0 && os.IsNotExist(err)
	})
}

// network makes a host, says so, and waits to be killed.
func network(ctx context.Context, self *pgtest.Self) error {
	n, err := pgtest.NewNetwork(ctx)
	if err != nil {
		return err
	}
	if _, err := n.NewHost(ctx); err != nil {
		return err
	}
	self.Say("network", n.ServerIP())
	if _, err := self.Hear(); err != nil {
		return err
	}
	return n.Close()
}
