package pgtest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// remoteDaemon tells whether Docker runs on another machine, whose addresses
// need not be those under which we know it.
func remoteDaemon() bool {
	host := os.Getenv("DOCKER_HOST")
	return host != "" && !strings.HasPrefix(host, "unix:")
}

// daemonHost is where published ports are found. Testcontainers takes a file
// named /.dockerenv for proof that we are in a container beside Docker, which
// the root of a virtual machine can have too; so first we look whether Docker's
// bridge is an interface of ours.
func (c *container) daemonHost(ctx context.Context) (string, error) {
	const loopback = "127.0.0.1"
	if !remoteDaemon() && c.bridgeIsOurs(ctx) {
		return loopback, nil
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return "", err
	}
	defer func() { _ = provider.Close() }()
	host, err := provider.DaemonHost(ctx)
	if host == "localhost" {
		host = loopback
	}
	return host, err
}

func (c *container) bridgeIsOurs(ctx context.Context) bool {
	bridge, err := c.docker.NetworkInspect(ctx, "bridge", client.NetworkInspectOptions{})
	if err != nil {
		return false
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, config := range bridge.Network.IPAM.Config { // Gateway is empty where the daemon chose it by itself
		for _, addr := range addrs {
			ip, err := netip.ParsePrefix(addr.String())
			if err == nil && config.Subnet.IsValid() && config.Subnet.Contains(ip.Addr()) {
				return true
			}
		}
	}
	return false
}
